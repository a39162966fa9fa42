"""A pipeline on disk: a folder of checkpoints (checkpoint/store.h) that all ranks see. Each rank writes what its stages carry,
rank 0 then the manifest with their hashes that makes them one. Between two runs nothing is under way, so that weights,
optimizers, policies and counters are all of it, and a run that goes on from here is a run that drains at this place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddip.communicators import engine
from ddip.errors import ConfigError, PeerLost, TimedOut
from ddip.pipeline.arguments import is_scale_state, is_whole
from ddip.pipeline.saved_plan import refuse_other_cut
from ddip.pipeline.saved_stage import buffers_of, is_count, refuse_other_stage, restore_stage, stage_state
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
    lock, found = together(lambda: begun(store, str(path)) if pipe.ranks.rank == 0 else (None, 0), pipe.ranks)
    mine: dict[str, File] = {}
    try:
        number = broadcast_object(found, ranks=pipe.ranks)
        together(lambda: write_parts(pipe, store, number, mine), pipe.ranks)
        everybody = gather_objects((mine, pipe.heard), pipe.ranks, root=0)
        together(lambda: publish(pipe, store, number, everybody, Path(path)), pipe.ranks)
    except (PeerLost, TimedOut):
        raise  # nobody knows how far rank 0 is
    except Exception:
        for name, _, _ in mine.values():
            store.discard(number, name)
        raise
    finally:
        if lock:
            lock.release()


def begun(store: Any, place: str) -> tuple[Any, int]:
    """Rank 0: nobody else saves there until the lock is released. The save's number is not that of micro-batches: what is saved last
    is what is loaded, also if it is a younger run."""
    lock = store.lock()
    try:
        manifest = store.newest_whole()  # where the last one is damaged, a new one is all the better
        if manifest and what_of(manifest) != WHAT:  # its checkpoints would be removed sooner or later
            raise ConfigError(f"{place}: it has checkpoints of something else; expected a folder of its own")
        return lock, (store.newest() or 0) + 1
    except BaseException:
        lock.release()  # whoever shows the error may keep this frame
        raise


def what_of(manifest: Any) -> Any:
    about = json.loads(manifest.about)
    return about.get("what") if isinstance(about, dict) else None


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
        "batches": pipe.batches_done,
        "heard": taken_apart((squares, scale), "heard")[0],
    }
    if pipe.cut and pipe.cut.plan:
        about["plan"] = str(pipe.cut.plan)
    try:
        store.publish(number, json.dumps(about), parts)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None


def load(pipe: Pipeline, path: str | Path) -> None:
    """All ranks, each reads what its stages need. If one of them cannot take it, none of them is changed."""
    store = engine().CheckpointStore(str(path))
    manifest, states = together(lambda: read(pipe, store, str(path)), pipe.ranks)
    theirs = gather_objects((manifest.step, manifest.about, manifest.hashes), pipe.ranks)
    if other := next((rank for rank, found in enumerate(theirs) if found != theirs[0]), None):
        raise ConfigError(
            f"{path}: rank {other} has found another pipeline there than rank 0; expected a folder that all ranks share"
        )
    about = json.loads(manifest.about)
    before = together(
        lambda: ({index: stage_state(pipe, index) for index in pipe.mine}, done_by(pipe), pipe.heard), pipe.ranks
    )
    try:
        done = about["micro_batches"], about["batches"]
        together(lambda: restore(pipe, states, done, put_together(about["heard"], {})), pipe.ranks)
    except (PeerLost, TimedOut):
        raise
    except Exception as error:
        # What a scheduler or a module makes of its own state cannot be known before.
        try:
            restore(pipe, *before)
        except Exception as second:  # noqa: BLE001 - it is said
            raise ConfigError(
                f"{path}: {in_a_line(error)}; and what was here could not be put back ({in_a_line(second)}): make the pipeline anew"
            ) from error
        raise ConfigError(f"{path}: {in_a_line(error)}; nothing was changed") from error


def in_a_line(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    return said if isinstance(error, ConfigError) else f"{type(error).__name__}: {said}"


def done_by(pipe: Pipeline) -> tuple[int, int]:
    """Micro-batches, which random numbers follow, and batches, which phases do: a later run may cut them into other parts."""
    return pipe.micro_batches_done, pipe.batches_done


def restore(pipe: Pipeline, states: dict[int, dict[str, Any]], done: tuple[int, int], heard: Heard) -> None:
    for index, state in states.items():
        restore_stage(pipe, index, state)
    pipe.micro_batches_done, pipe.batches_done = done
    pipe.heard = heard


def read(pipe: Pipeline, store: Any, place: str) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The manifest, and this rank's stages, which fit."""
    try:
        if Path(place).is_file():
            raise ConfigError(f"{place}: it is a file; expected a folder that pipe.save wrote")
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}") from None
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
    refuse_other_cut(pipe, about, place)
    if about.get("stages") != len(pipe.modules):
        raise ConfigError(f"{place}: it is no pipeline of {len(pipe.modules)} stages, but of {about.get('stages')!r}")
    theirs = about.get("staleness")
    if theirs != pipe.policy_name and not (remembers_nothing(theirs) and remembers_nothing(pipe.policy_name)):
        raise ConfigError(f"{place}: it was trained with staleness={theirs!r}; here it is {pipe.policy_name!r}")
    for what in ("micro_batches", "batches"):
        if not is_count(about.get(what)):
            raise ConfigError(f"{place}: its number of {what.replace('_', '-')} is {about.get(what)!r}")
    try:
        squares, scale = put_together(about["heard"], {})
        # Of gradients that were too large they are no finite numbers.
        alike = all(
            is_whole(step) and abs(step) < 2**62 and type(square) is float and not square < 0
            for step, square in squares.items()
        )
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError):
        alike = False
    if not alike:
        raise ConfigError(f"{place}: its gradients' norms are damaged")
    if scale is not None and not (is_scale_state(scale) and is_count(scale[1])):
        raise ConfigError(f"{place}: its loss scale is {scale!r}; expected powers of two")


def remembers_nothing(policy: Any) -> bool:
    """From step to step: then one may go on where another was. What the others have gathered says nothing to any but themselves."""
    return isinstance(policy, str) and not set(policy.split("+")) - FORGETFUL


def read_stage(pipe: Pipeline, store: Any, manifest: Any, index: int, place: str) -> dict[str, Any]:
    state = read_part(store, manifest, part_of(index, 0), place)
    own = part_of(index, pipe.replica)
    if pipe.replica and own in manifest.parts:  # else there were fewer replicas
        statistics = read_part(store, manifest, own, place).get("model")
        model, buffers = state.get("model"), set(buffers_of(pipe, index))
        if isinstance(model, dict) and isinstance(statistics, dict):
            state["model"] = {**model, **{name: statistics[name] for name in statistics.keys() & buffers}}
    refuse_other_stage(pipe, index, state, place)
    return state


def read_part(store: Any, manifest: Any, part: str, place: str) -> dict[str, Any]:
    try:
        tensors, texts = store.read(manifest, part)
    except RuntimeError as error:  # the disk's own
        raise ConfigError(f"{place}: {part}: {in_a_line(error)}") from None
    try:
        return {kind: put_together(text, tensors) for kind, text in texts.items() if kind != "format"}
    except ConfigError as error:
        raise ConfigError(f"{place}: {part}: {error}") from None
