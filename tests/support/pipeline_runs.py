"""One pipeline over several runs: what a save holds, what rates and phases do, what is read of a stream; run inside workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipelines as p
import torch

import ddip


def said_by(call: Any) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


# --- saves


def deep(layers: int) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [torch.nn.Sequential(*[torch.nn.Linear(48, 48) for _ in range(layers)]) for _ in range(2)]


def save_size(path: str, optimizer: str) -> float:
    """How many times as large a save is as the weights and moments in it."""
    make = {"sgd": p.sgd, "adamw": lambda ps: torch.optim.AdamW(ps, 0.01)}[optimizer]
    pipe = p.pipe_of(deep(12), optimizer=make)
    pipe.run([(torch.randn(8, 48), torch.randn(8, 48))])
    pipe.save(path)
    weights = sum(tensor.nbytes for tensor in pipe.state_dict().values())
    return sum(file.stat().st_size for file in Path(path).iterdir()) / (weights * (2 if optimizer == "sgd" else 3))


def loaded_elsewhere(path: str, saved: dict[str, Any], here: dict[str, Any]) -> tuple[str, float]:
    """What load says of a file that a pipeline with other options wrote, and how far the weights moved by it."""
    before = p.pipe_of(p.mlp(2), **saved)
    before.run(p.data(3, 12))
    before.save(path)
    pipe = p.pipe_of(p.mlp(2), **here)
    pipe.run(p.data(1, 12))
    weights = pipe.state_dict()
    said = said_by(lambda: pipe.load(path))
    return said, p.furthest(pipe.state_dict(), weights)


def step_lr(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 100)


def constant(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def rising(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))


class Thing:
    pass


class Remembering(torch.nn.Module):
    """Keeps what is no tensor in its state."""

    def __init__(self, inner: torch.nn.Module, what: Any) -> None:
        super().__init__()
        self.inner, self.what = inner, what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return {"what": self.what, "scale": torch.ones(2)}

    def set_extra_state(self, state: Any) -> None:
        self.what = state["what"]


def remembering(what: Any) -> ddip.Pipeline:
    first, last = p.mlp(2)
    return p.pipe_of([first, Remembering(last, what)])


def extra_state(path: str) -> Any:
    pipe = remembering("a word")
    pipe.run(p.data(2, 12))
    pipe.save(path)
    assert pipe.stage(1).version > 0  # it can be looked at, too
    other = remembering("another")
    other.load(path)
    return other.state_dict()["1._extra_state"]["what"]


def unsaved(path: str) -> tuple[str, bool]:
    pipe = remembering(Thing())
    pipe.run(p.data(2, 12))
    return said_by(lambda: pipe.save(path)), any(Path(path).glob("*"))


# --- rates


def rate_after_load(path: str) -> tuple[list[float], float]:
    """The rate some steps after it was set, and how far the weights are from those of a run that was not loaded."""

    def half() -> ddip.Pipeline:
        return p.pipe_of(p.mlp(2), scheduler=constant, staleness="msnag")

    straight, first, loaded = half(), half(), half()
    for pipe in (straight, first):
        pipe.run(p.data(2, 12))
    first.save(path)
    loaded.load(path)
    for pipe in (straight, loaded):
        pipe.set_rate(0.01)
        pipe.run(p.data(3, 12))
    return loaded.stage(0).rates, p.furthest(straight.state_dict(), loaded.state_dict())


def rate_in_a_warmup(schedule: str) -> tuple[list[float], float]:
    """A rate set where 0 was planned: what it is some steps later, and how far the weights are from a loop over those rates."""
    pipe = p.pipe_of(p.mlp(2), schedule, scheduler=rising, optimizer=lambda ps: torch.optim.SGD(ps, 0.05))
    pipe.set_rate(0.001)
    batches = p.data(8, 12)
    pipe.run(batches)
    model = torch.nn.Sequential(*p.mlp(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for step, (x, y) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.001 * (min(1.0, step / 4) if step else 1.0)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return pipe.stage(1).rates, p.furthest(pipe.state_dict(), dict(model.state_dict()))


# --- phases


def staleness_of_runs(runs: int, **options: Any) -> list[int]:
    """In each run: how many of the first rank's actions were stale."""
    pipe = p.pipe_of(p.mlp(2), staleness="none", **options)
    found = []
    for _ in range(runs):
        pipe.run(p.data(4, 12))
        found.append(sum(action.staleness > 0 for action in pipe.plan.ranks[0]))
    return found


# --- batches


def read_twice() -> tuple[int, int, float]:
    """Parts of a stream without an end: batches read by the end of each of two runs on the first rank, and how far the weights are
    from those of a pipeline that was given the same batches as lists."""
    read = [0]
    batches = p.data(20, 12)

    def endless() -> Iterator[Any]:
        while True:
            read[0] += 1
            yield batches[read[0] - 1]

    stream = endless()
    pipe, other = p.pipe_of(p.mlp(2)), p.pipe_of(p.mlp(2))
    pipe.run(stream, count=3)
    first = read[0]
    pipe.run(stream, count=4)
    other.run(batches[:3])
    other.run(batches[3:7], count=100)
    return first, read[0], p.furthest(pipe.state_dict(), other.state_dict())


def stream_after_a_failure() -> tuple[str, list[float], list[float]]:
    """A stream that a failed run has read to different places on the ranks is gone on with. What the first run said, and the losses
    of the second one beside those of a pipeline with the same weights on the batches that come next."""
    batches = p.data(40, 8)
    read = [0]

    def endless() -> Iterator[Any]:
        for batch in batches:
            read[0] += 1
            yield batch

    first, last = p.mlp(2)
    stream = endless()
    pipe = p.pipe_of([first, Failing(last)], window=[9, 0])
    said = said_by(lambda: pipe.run(stream, count=20))
    began = max(ddip.gather_objects(read[0]))
    steady = Failing(p.mlp(2)[1])
    steady.calls = 100
    other = p.pipe_of([p.mlp(2)[0], steady], "gpipe")
    weights = pipe.state_dict()
    for index in other.mine:
        names = {
            name.removeprefix(f"{index}."): tensor for name, tensor in weights.items() if name.startswith(f"{index}.")
        }
        other.modules[index].load_state_dict(names)
    return said, pipe.evaluate(stream, count=4).losses, other.evaluate(batches[began : began + 4]).losses


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.x, self.y = torch.randn(64, 6).double(), torch.randn(64, 3).double()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + torch.rand(6), self.y[index]


class Failing(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 9:
            raise ValueError("once")
        return self.inner(x)  # type: ignore[no-any-return]


def noise_after_a_failure() -> tuple[str, int]:
    """A run that fails half-way, and one after it, on samples with random noise: what the first said, losses of the second."""
    torch.manual_seed(3)
    first, last = p.mlp(2)
    pipe = p.pipe_of([first, Failing(last)], window=[6, 0])
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True)
    said = said_by(lambda: pipe.run(loader))
    return said, len(pipe.run(loader).losses)
