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


def made(**options: Any) -> ddip.Pipeline:
    """It has whatever a save may have: moments, a scheduler, what a policy gathers, norms of other stages."""
    usual = {
        "staleness": "gap_aware",
        "optimizer": adam,
        "scheduler": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9]),
        "clip": 1.0,
        "clipping": "global",
    }
    return p.pipe_of(p.mlp(2), **{**usual, **options})


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
