"""A pipeline on disk; run inside workers."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipelines as p
import torch
from ddip.communicators import engine
from ddip.pipeline.saved_tree import put_together, taken_apart
from pipeline_runs import said_by

import ddip
from ddip.pipeline import saving

BATCHES = 3


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


def made(seed: int = 0, parts: Any = None, **options: Any) -> ddip.Pipeline:
    """It has whatever a save may have: moments, a scheduler, what a policy gathers, norms of other stages."""
    parts = parts or p.mlp(2)
    if seed:
        torch.manual_seed(seed)
        parts[0][0].reset_parameters()
    usual = {
        "staleness": "gap_aware",
        "optimizer": adam,
        "scheduler": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9]),
        "clip": 1.0,
        "clipping": "global",
    }
    return p.pipe_of(parts, **{**usual, **options})


def trained(batches: int = BATCHES, **options: Any) -> ddip.Pipeline:
    pipe = made(**options)
    pipe.run(p.data(batches, 12))
    return pipe


def all_of(pipe: ddip.Pipeline) -> str:
    """Everything that this rank has, to compare."""
    stages = {index: saving.stage_state(pipe, index) for index in pipe.mine}
    text, tensors = taken_apart((stages, pipe.micro_batches_done, pipe.heard), "all")
    return text + str({name: tensor.tolist() for name, tensor in tensors.items()})


def saved_twice(folder: str) -> list[float]:
    """Weights after the older save, and after the newer one."""
    pipe = trained()
    found = []
    for _ in range(2):
        pipe.run(p.data(1, 12))
        pipe.save(folder)
        found.append(float(sum(tensor.sum() for tensor in pipe.state_dict().values())))
    return found


def loaded_sum(folder: str) -> float:
    pipe = made()
    pipe.load(folder)
    return float(sum(tensor.sum() for tensor in pipe.state_dict().values()))


def loaded_as_it_is(folder: str) -> tuple[float, bool, list[Any]]:
    """The sum of the weights, whether a scheduler has learned words that it does not know, and how optimizers compute."""
    pipe = made()
    pipe.load(folder)
    total = float(sum(tensor.sum() for tensor in pipe.state_dict().values()))
    pipe.run(p.data(1, 12))
    steppings = pipe.steppings.values()
    noted = any("verbose" in one.scheduler.__dict__ for one in steppings if one.scheduler)
    return total, noted, [group["foreach"] for one in steppings for group in one.groups]


def load_refused(folder: str) -> tuple[str, bool]:
    """What a load says, and whether it left everything as it was; the pipeline can still train."""
    pipe = trained(1)
    before = all_of(pipe)
    said = said_by(lambda: pipe.load(folder))
    same = all_of(pipe) == before
    pipe.run(p.data(1, 12))
    return said, same


def save_fails(folder: str) -> tuple[str, bool]:
    """On rank 1 no file may become longer than some bytes."""
    pipe = trained(1)
    before = all_of(pipe)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ddip.rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        said = said_by(lambda: pipe.save(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return said, all_of(pipe) == before


def die_in_save(folder: str) -> None:
    """Rank 1, when its part is on the disk and before the manifest is."""
    pipe = trained(1)
    write = saving.write_parts

    def write_and_die(*arguments: Any) -> None:
        write(*arguments)
        if ddip.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    saving.write_parts = write_and_die  # type: ignore[assignment]
    pipe.save(folder)


class Stubborn(torch.nn.Module):
    """`fails`: when it is asked for its state, or given it."""

    def __init__(self, inner: torch.nn.Module, fails: str) -> None:
        super().__init__()
        self.inner, self.fails, self.looks = inner, fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        self.looks += 1
        if self.fails == "writes" or (self.fails == "is looked at" and self.looks == 2):
            raise ValueError("not today")
        return 3

    def set_extra_state(self, state: Any) -> None:
        if self.fails == "reads":
            self.fails = ""  # once: what was there before is put back
            raise ValueError("not today")


def fails(folder: str, what: str) -> tuple[str, bool]:
    lr = torch.optim.lr_scheduler

    def sequence(parts: int) -> Any:
        def of(optimizer: Any) -> Any:
            kinds = [lr.LinearLR(optimizer), lr.CosineAnnealingLR(optimizer, 9), lr.ExponentialLR(optimizer, 0.9)]
            return lr.SequentialLR(optimizer, kinds[:parts], [2, 4][: parts - 1])

        return of

    first, last = p.mlp(2)
    stubborn = Stubborn(last, "")
    pipe = trained(1, parts=[first, stubborn], scheduler=sequence(3))
    if what == "writes":
        stubborn.fails = what
        said = said_by(lambda: pipe.save(folder))
        stubborn.fails = ""
        ddip.comm().barrier()  # each rank removes its own part
        return said, not any(Path(folder).glob("*"))
    pipe.save(folder)
    first, last = p.mlp(2)
    stubborn = Stubborn(last, what)
    other = trained(2, parts=[first, stubborn], scheduler=sequence(2 if what == "schedules" else 3))
    before, stubborn.looks = all_of(other), 0
    said = said_by(lambda: other.load(folder))
    stubborn.fails = ""
    same = all_of(other) == before
    other.run(p.data(1, 12))
    return said, same


class Turned(torch.nn.Linear):
    """Of version 2: before, its weight lay on its side."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version") != 2:
            state[prefix + "weight"] = state[prefix + "weight"].T.contiguous()
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def versions(folder: str) -> bool:
    """A frozen weight, which nothing puts right afterwards."""

    def parts() -> list[torch.nn.Module]:
        first, last = p.mlp(2)
        turned = Turned(8, 8).double()
        turned.requires_grad_(False)
        return [first, torch.nn.Sequential(turned, last)]

    pipe = made(parts=parts())
    pipe.run(p.data(1, 12))
    pipe.save(folder)
    again = made(parts=parts())
    again.load(folder)
    return p.furthest(pipe.state_dict(), again.state_dict()) == 0


def older(folder: str) -> float:
    """A trained weight of the version before, which the module turns when it is loaded: how far it is from where it was."""

    def parts() -> list[torch.nn.Module]:
        first, last = p.mlp(2)
        return [torch.nn.Sequential(first, Turned(8, 8).double()), last]

    def lies_on_its_side(about: Any, stage: Any) -> None:
        stage.pop("versions")
        stage["model"]["1.weight"] = stage["model"]["1.weight"].T.contiguous()

    pipe = made(parts=parts())
    pipe.run(p.data(1, 12))
    pipe.save(folder)
    changed(folder, lies_on_its_side)
    again = made(parts=parts())
    again.load(folder)
    return p.furthest(pipe.state_dict(), again.state_dict())


def cut_as(partition: Any) -> ddip.Pipeline:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return p.pipe_of(torch.nn.Sequential(*layers).double(), example=p.data(1, 3)[0][0], partition=partition)  # type: ignore[arg-type]


def edited(pipe: ddip.Pipeline, stages: list[list[str]], file: str) -> str:
    """Its plan's file with other stages."""
    assert pipe.cut
    plan = json.loads(str(pipe.cut.plan))
    if ddip.rank() == 0:
        for stage, layers in zip(plan["stages"], stages, strict=True):
            stage["layers"] = layers
        Path(file).write_text(json.dumps(plan))
    ddip.comm().barrier()
    return file


def cut_elsewhere(folder: str) -> tuple[str, float, Any]:
    """A pipeline that is saved, and another one that is cut behind the third layer and not behind the first."""
    measured = cut_as("single")
    pipe = cut_as(edited(measured, [["0"], ["1", "2", "3", "4"]], folder + ".first"))
    pipe.run(p.data(2, 12))
    pipe.save(folder)
    other = cut_as(edited(measured, [["0", "1", "2"], ["3", "4"]], folder + ".third"))
    said = said_by(lambda: other.load(folder))
    again = cut_as(folder)
    again.load(folder)
    assert again.cut and again.cut.plan
    return said, p.furthest(pipe.state_dict(), again.state_dict()), again.cut.plan.stages


# --- what somebody may have written


def changed(folder: str, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """The newest save in a folder, with a manifest and hashes that are right: `change` gets what is about the pipeline, and stage 0."""
    if ddip.rank() == 0:
        store = engine().CheckpointStore(folder)
        manifest = store.last()
        about = json.loads(manifest.about)
        about["heard"] = put_together(about["heard"], {})
        files = json.loads((Path(folder) / f"step-{manifest.step:010}.json").read_text())["files"]
        parts = {part: (file["name"], file["bytes"], file["sha256"]) for part, file in files.items()}
        tensors, texts = store.read(manifest, "stage-0")
        state = {kind: put_together(text, tensors) for kind, text in texts.items() if kind != "format"}
        change(about, state)
        if "heard" in about:
            about["heard"] = taken_apart(about["heard"], "heard")[0]
        apart = {kind: taken_apart(values, kind) for kind, values in state.items()}
        tensors = {name: tensor for _, found in apart.values() for name, tensor in found.items()}
        step = manifest.step + 1
        parts["stage-0"] = store.write(
            step, "stage-0", list(tensors.items()), {kind: text for kind, (text, _) in apart.items()}
        )
        store.publish(step, json.dumps(about), parts)
    ddip.comm().barrier()
