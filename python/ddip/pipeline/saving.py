"""A pipeline on disk: a folder of checkpoints (checkpoint/store.h) that all ranks see. Each rank writes what its stages carry,
rank 0 then the manifest with their hashes that makes them one. Between two runs nothing is under way, so that weights,
optimizers, policies and counters are all of it, and a run that goes on from here is a run that drains at this place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.arguments import is_scale_state, is_whole
from ddip.pipeline.saved_stage import buffers_of, refuse_other_stage, restore_stage, stage_state
from ddip.pipeline.saved_tree import put_together, taken_apart
from ddip.replicas import broadcast_object, gather_objects, together

if TYPE_CHECKING:
    from ddip.pipeline.front import Heard, Pipeline

WHAT = "ddip pipeline of Python"
# As the manifest has it of a file: name, bytes, hash.
File = tuple[str, int, str]
FORGETFUL = {"none", "stash", "msnag", "aggmsnag", "spectrain", "lwp", "adam", "adamw", "nadam", "nesterov", "spike"}


def save(pipe: Pipeline, path: str | Path) -> None:
    """All ranks. Whatever happens, what was saved before is there until this is whole."""
    store = engine().CheckpointStore(str(path))
    # Not the micro-batches': what is saved last is what is loaded, also if it is a younger run.
    number = broadcast_object((store.newest() or 0) + 1 if pipe.ranks.rank == 0 else None, ranks=pipe.ranks)
    mine: dict[str, File] = {}
    try:
        together(lambda: write_parts(pipe, store, number, mine), pipe.ranks)
        everybody = gather_objects((mine, pipe.heard), pipe.ranks, root=0)
        together(lambda: publish(pipe, store, number, everybody, Path(path)), pipe.ranks)
    except ConfigError:  # not a lost peer: then nobody knows how far rank 0 is
        for name, _, _ in mine.values():
            store.discard(number, name)
        raise


def write_parts(pipe: Pipeline, store: Any, number: int, done: dict[str, File]) -> None:
    """Of replicas the first one's weights, and of each its own running statistics."""
    for index in pipe.mine:
        state = stage_state(pipe, index)
        if pipe.replica:
            state = {
                "model": {name: state["model"][name] for name in buffers_of(pipe, index) if name in state["model"]}
            }
        texts: dict[str, str] = {}
        tensors: dict[str, Any] = {}
        for kind, values in state.items():
            texts[kind], found = taken_apart(values, kind, f"stage {index}: ")
            tensors.update(found)
        part = part_of(index, pipe.replica)
        try:
            done[part] = store.write(number, part, list(tensors.items()), texts)
        except RuntimeError as error:  # a full disk, say
            raise ConfigError(str(error)) from None


def part_of(stage: int, replica: int) -> str:
    return f"stage-{stage}" if replica == 0 else f"stage-{stage}.replica-{replica}"


def publish(
    pipe: Pipeline, store: Any, number: int, everybody: list[tuple[dict[str, File], Heard]], folder: Path
) -> None:
    """On rank 0."""
    if pipe.ranks.rank:
        return
    parts = {}
    for rank, (files, _) in enumerate(everybody):
        for part, (name, size, hashed) in files.items():
            file = folder / name
            if not file.exists() or file.stat().st_size != size:
                raise ConfigError(
                    f"{folder}: rank {rank}'s file is not seen by rank 0; expected a folder that all ranks share"
                )
            parts[part] = (name, size, hashed)
    squares = max((squares for _, (squares, _) in everybody), key=len)  # a rank without weights has none
    scale = next((scale for _, (_, scale) in everybody if scale), None)  # on the last stage's rank
    about = {
        "what": WHAT,
        "stages": len(pipe.modules),
        "staleness": pipe.policy_name,
        "micro_batches": pipe.micro_batches_done,
        "heard": taken_apart((squares, scale), "heard")[0],
    }
    try:
        store.publish(number, json.dumps(about), parts)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None


def load(pipe: Pipeline, path: str | Path) -> None:
    """All ranks, each reads what its stages need. If one of them cannot take it, none of them is changed."""
    store = engine().CheckpointStore(str(path))
    manifest, states = together(lambda: read(pipe, store, str(path)), pipe.ranks)
    theirs = gather_objects((manifest.step, manifest.about), pipe.ranks)
    if other := next((rank for rank, found in enumerate(theirs) if found != theirs[0]), None):
        raise ConfigError(
            f"{path}: rank {other} has found another pipeline there than rank 0; expected a folder that all ranks share"
        )
    for index, state in states.items():
        restore_stage(pipe, index, state)
    about = json.loads(manifest.about)
    pipe.micro_batches_done = about["micro_batches"]
    pipe.heard = put_together(about["heard"], {})


def read(pipe: Pipeline, store: Any, place: str) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The manifest, and this rank's stages, which fit."""
    if Path(place).is_file():
        raise ConfigError(f"{place}: it is a file; expected a folder that pipe.save wrote")
    manifest = store.last()
    if manifest is None:
        raise ConfigError(f"{place}: no pipeline is saved there")
    refuse_other_pipeline(pipe, json.loads(manifest.about), place)
    return manifest, {index: read_stage(pipe, store, manifest, index, place) for index in pipe.mine}


def refuse_other_pipeline(pipe: Pipeline, about: Any, place: str) -> None:
    what = about.get("what") if isinstance(about, dict) else None
    if what == "ddip pipeline":
        raise ConfigError(f"{place}: a C++ program saved it; expected what pipe.save of Python wrote")
    if what != WHAT:
        raise ConfigError(f"{place}: it has checkpoints, but of no pipeline")
    if about.get("stages") != len(pipe.modules):
        raise ConfigError(f"{place}: it is no pipeline of {len(pipe.modules)} stages, but of {about.get('stages')!r}")
    theirs = about.get("staleness")
    if theirs != pipe.policy_name and not (remembers_nothing(theirs) and remembers_nothing(pipe.policy_name)):
        raise ConfigError(f"{place}: it was trained with staleness={theirs!r}; here it is {pipe.policy_name!r}")
    if not is_whole(about.get("micro_batches")) or about["micro_batches"] < 0:
        raise ConfigError(f"{place}: its number of micro-batches is {about.get('micro_batches')!r}")
    try:
        squares, scale = put_together(about["heard"], {})
        alike = all(is_whole(step) and type(square) is float for step, square in squares.items())
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError):
        alike = False
    if not alike:
        raise ConfigError(f"{place}: its gradients' norms are damaged")
    if scale is not None and not is_scale_state(scale):
        raise ConfigError(f"{place}: its loss scale is {scale!r}; expected powers of two")


def remembers_nothing(policy: Any) -> bool:
    """From step to step: then one may go on where another was. What the others have gathered says nothing to any but themselves."""
    return isinstance(policy, str) and not set(policy.split("+")) - FORGETFUL


def read_stage(pipe: Pipeline, store: Any, manifest: Any, index: int, place: str) -> dict[str, Any]:
    state = read_part(store, manifest, part_of(index, 0), place)
    own = part_of(index, pipe.replica)
    if pipe.replica and own in manifest.parts:  # else there were fewer replicas
        statistics = read_part(store, manifest, own, place).get("model")
        model = state.get("model")
        if isinstance(model, dict) and isinstance(statistics, dict):
            state["model"] = {**model, **statistics}
    refuse_other_stage(pipe, index, state, place)
    return state


def read_part(store: Any, manifest: Any, part: str, place: str) -> dict[str, Any]:
    tensors, texts = store.read(manifest, part)
    try:
        return {kind: put_together(text, tensors) for kind, text in texts.items() if kind != "format"}
    except ConfigError as error:
        raise ConfigError(f"{place}: {part}: {error}") from None
