"""Pipelines whose stages share one GPU, beside one process; run inside workers."""

from __future__ import annotations

from typing import Any

import pipeline_failures
import pipeline_messages
import pipeline_tied
import pipelines as p
import torch

import ddip


def moved(parts: list[torch.nn.Module]) -> list[torch.nn.Module]:
    assert ddip.device().type == "cuda"
    return [part.to(ddip.device()) for part in parts]


def on_cpu(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in weights.items()}


def trained(schedule: str, **options: Any) -> float:
    """In double precision, beside one process on the CPU."""
    batches = p.data(5, 12, 7)
    pipe = p.pipe_of(moved(p.mlp(2)), schedule, **options)
    assert all(parameter.is_cuda for index in pipe.mine for parameter in pipe.modules[index].parameters())
    pipe.run(batches)
    return p.furthest(p.in_one_process(p.mlp(2), batches, clip=options.get("clip")), on_cpu(pipe.state_dict()))


def trained_tied(schedule: str) -> float:
    pipe = p.pipe_of(moved(pipeline_tied.tied(2)), schedule)
    pipe.run(pipeline_tied.tied_data())
    return p.furthest(p.in_one_process(pipeline_tied.tied(2), pipeline_tied.tied_data()), on_cpu(pipe.state_dict()))


def dropout() -> tuple[float, float]:
    """How far a pipeline that computes its forwards twice ends from one that keeps them: both draw the GPU's random numbers. And
    how far from one with another seed, so that it says something."""

    def trained(recompute: bool, seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        first = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8), torch.nn.Dropout(0.3)
        )
        pipe = p.pipe_of(moved([first.double(), p.mlp(2)[1]]), "gpipe", recompute=recompute, seed=seed)
        pipe.run(p.data(4, 12))
        return pipe.state_dict()

    kept = trained(False, 1)
    return p.furthest(kept, trained(True, 1)), p.furthest(kept, trained(False, 2))


def frozen(stage: int) -> float:
    """One of three stages is frozen, and the middle one has no tensors at all."""

    def parts() -> list[torch.nn.Module]:
        first, last = p.mlp(2)
        made = [first, torch.nn.Tanh(), last]
        made[stage].requires_grad_(False)
        return made

    batches = p.data(3, 12)
    pipe = p.pipe_of(moved(parts()), "1f1b", placement=[0, 1, 1])
    pipe.run(batches)
    return p.furthest(p.in_one_process(parts(), batches), on_cpu(pipe.state_dict()))


def targets_in_a_dict() -> float:
    batches = p.data(3, 12)
    pipe = p.pipe_of(
        moved(p.mlp(2)), "1f1b", loss=lambda out, target: torch.nn.functional.mse_loss(out, target["y"][0])
    )
    pipe.run([(x, {"y": (y,)}) for x, y in batches])
    return p.furthest(p.in_one_process(p.mlp(2), batches), on_cpu(pipe.state_dict()))


def in_growing_batches() -> float:
    """Activations from 16 KiB to 8 MiB, more than the place which the first message made, and small ones again."""

    def wide() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [torch.nn.Linear(6, 1024).double(), torch.nn.Linear(1024, 3).double()]

    batches = [batch for size in (8, 200, 2048, 4096, 12, 4095) for batch in p.data(1, size)]
    pipe = p.pipe_of(moved(wide()), "1f1b")
    pipe.run(batches)
    return p.furthest(p.in_one_process(wide(), batches), on_cpu(pipe.state_dict()))


def from_memory(kind: str) -> float:
    """Samples of 8 MiB a micro-batch, large enough that a forward which did not wait for its copy would compute with something else."""

    def wide() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [torch.nn.Linear(512, 64).double(), torch.nn.Linear(64, 64).double()]

    torch.manual_seed(1)
    batches = [(torch.randn(8192, 512).double(), torch.randn(8192, 64).double()) for _ in range(4)]
    to = {"pageable": torch.Tensor.clone, "pinned": torch.Tensor.pin_memory, "gpu": torch.Tensor.cuda}[kind]
    pipe = p.pipe_of(moved(wide()), "1f1b")
    pipe.run([(to(x), to(y)) for x, y in batches])
    return p.furthest(p.in_one_process(wide(), batches), on_cpu(pipe.state_dict()))


def replicas() -> float:
    """Two pipelines side by side, each on half of every micro-batch."""
    whole = p.data(4, 24)
    pipe = p.pipe_of(moved(p.mlp(2)), "1f1b", replicas=2)

    def share(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.tensor_split(2)[pipe.replica] for part in tensor.tensor_split(4)])

    pipe.run([(share(x), share(y)) for x, y in whole])
    return p.furthest(p.in_one_process(p.mlp(2), whole), on_cpu(pipe.state_dict()))


def after_a_failure(schedule: str) -> tuple[str, float]:
    """The last stage fails in the second batch, with messages under way; then the pipeline goes on with the third. What was said, and
    how far it ends from one process that never saw the second."""
    batches = p.data(5, 12)
    pipe = p.pipe_of(moved([p.mlp(2)[0], pipeline_failures.FailsAt(6)]), schedule)
    said = "nothing"
    try:
        pipe.run(batches)
    except Exception as error:  # noqa: BLE001
        said = f"{type(error).__name__}: {error}"
    pipe.run(batches[2:])
    expected = p.in_one_process([p.mlp(2)[0], pipeline_failures.FailsAt(10**9)], [batches[0], *batches[2:]])
    return said, p.furthest(expected, on_cpu(pipe.state_dict()))


def largest_message(ranks: Any = None) -> int:
    """Bytes of the largest that the communicator was given while activations of 1 MiB crossed the border."""
    ranks, seen = ranks or ddip.comm(), [0]
    parts = moved([torch.nn.Linear(6, 4096), torch.nn.Linear(4096, 3)])
    pipe = p.pipe_of(parts, "1f1b", micro_batches=2, ranks=ranks)
    ranks.watch_messages(lambda sends, peer, tag, tensor: seen.append(tensor.nbytes))
    try:
        pipe.run(p.data(2, 128, dtype=torch.float32))
    finally:
        ranks.watch_messages(None)
    return max(seen)


def resumed(path: str, staleness: str) -> tuple[float, float]:
    """How far a run that was saved and loaded into another pipeline ends from one that went on, and how far training went."""
    batches = p.data(6, 12)

    def made() -> ddip.Pipeline:
        return p.pipe_of(moved(p.mlp(2)), staleness=staleness)

    straight, first, loaded = made(), made(), made()
    begun = straight.state_dict()
    for pipe in (straight, first):
        pipe.run(batches[:3])
    first.save(path)
    loaded.load(path)
    for pipe in (straight, loaded):
        pipe.run(batches[3:])
    return p.furthest(straight.state_dict(), loaded.state_dict()), p.furthest(straight.state_dict(), begun)


def conjugates() -> float:
    """As `pipeline_messages.conjugates`, from GPU to GPU."""
    torch.manual_seed(2)
    batches = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(3)]

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(1)
        return [pipeline_messages.Spectrum(True), pipeline_messages.Back(True)]

    pipe = p.pipe_of(moved(parts()), "gpipe", micro_batches=1)
    pipe.run(batches)
    return p.furthest(p.in_one_process(parts(), batches), on_cpu(pipe.state_dict()))
