"""Long runs, and what they leave in memory; these run inside workers."""

from __future__ import annotations

import os

import pipelines as p
import torch


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def many(batches: int, parts: list[torch.nn.Module] | None = None) -> tuple[float, int]:
    """(growth of the resident memory in KiB per micro-batch, open descriptors more than before)."""

    pipe = p.pipe_of(parts or p.mlp(2), "async_1f1b", staleness="msnag+stash", micro_batches=8)
    small = p.data(batches // 10, 8)

    def least() -> int:
        """The allocator gives memory back now and then: what is held is the least of some runs."""
        found = []
        for _ in range(5):
            pipe.run(small)
            found.append(resident_kib())
        return min(found)

    least()  # everything that is made once is made here
    before, open_before = least(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pipe.run(small)
    return (least() - before) / (batches * 8), len(os.listdir("/proc/self/fd")) - open_before


class Watched(torch.nn.Module):
    """Notes the resident memory in KiB at each of its forwards."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(resident_kib())
        return self.inner(x)  # type: ignore[no-any-return]


def one_long_run(batches: int, warm: int, parts: list[torch.nn.Module] | None = None) -> tuple[float, float]:
    """Growth of the resident memory in KiB per micro-batch, within a run of 8 a batch after the first `warm` of them; and what the
    report's trace takes of it, in KiB."""
    import pickle

    watched = [Watched(part) for part in parts or p.mlp(2)]
    pipe = p.pipe_of(watched, "async_1f1b", staleness="msnag+stash", micro_batches=8)  # type: ignore[arg-type]
    report = pipe.run(p.data(1, 8) * batches)
    (seen,) = [part.seen for part in watched if part.seen]
    return (seen[-1] - seen[warm]) / (len(seen) - warm), len(pickle.dumps(report.trace)) / 1024 / len(seen)


class Leaks(torch.nn.Module):
    """Keeps 1.5 KiB of every micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = p.mlp(2)[1], []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(bytearray(b"x" * 1536))
        return self.inner(x)  # type: ignore[no-any-return]
