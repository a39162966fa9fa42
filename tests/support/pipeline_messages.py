"""Messages between stages in unusual circumstances, beside one process; run inside workers."""

from __future__ import annotations

import signal
import time
from typing import Any

import torch

import ddip


def said_by(call: Any) -> str:
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1)


# --- numbers that are conjugated when they are read


class Spectrum(torch.nn.Module):
    def __init__(self, conjugated: bool) -> None:
        super().__init__()
        self.layer, self.conjugated = torch.nn.Linear(8, 8), conjugated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.fft(self.layer(x))
        return found.conj() if self.conjugated else found


class Back(torch.nn.Module):
    def __init__(self, conjugated: bool) -> None:
        super().__init__()
        self.layer, self.conjugated = torch.nn.Linear(8, 8), conjugated

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z = z.conj() if self.conjugated else z
        return self.layer(torch.fft.ifft(z * (1 + 2j)).real)  # type: ignore[no-any-return]


def conjugates(output: bool, gradient: bool) -> float:
    """How far the weights end from one process's, if what crosses the border is conjugated on its way out, on its way back."""

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(1)
        return [Spectrum(output), Back(gradient)]

    torch.manual_seed(2)
    batches = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(3)]
    pipe = ddip.Pipeline(parts(), loss=torch.nn.functional.mse_loss, optimizer=sgd, schedule="gpipe", micro_batches=1)
    pipe.run(batches)
    model = torch.nn.Sequential(*parts())
    optimizer = sgd(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    found = pipe.state_dict()
    return max(float((found[name] - tensor).abs().max()) for name, tensor in model.state_dict().items())


def complex_weights(staleness: str, optimizer: Any) -> str:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).real

    def trained() -> None:
        torch.manual_seed(0)
        pipe = ddip.Pipeline(
            [Turned(), torch.nn.Linear(8, 8)], loss=torch.nn.functional.mse_loss, optimizer=optimizer, staleness=staleness
        )  # fmt: skip
        pipe.run([(torch.randn(8, 8), torch.randn(8, 8))])

    return said_by(trained)


# --- messages larger than the channel's first


def growing(backend: str) -> int:
    """More messages under way than half of what the channel was made for, each larger than its frames. Losses."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(256, 256) for _ in range(3)]  # the first and the last stage share a rank
    pipe = ddip.Pipeline(
        parts, loss=torch.nn.functional.mse_loss, optimizer=sgd, schedule="gpipe", micro_batches=8, ranks=ddip.comm(backend)
    )  # fmt: skip
    reports = [pipe.run([(torch.randn(size, 256), torch.randn(size, 256))]) for size in (8, 1600)]
    return sum(len(report.losses) for report in reports)


# --- stops, and long silence


class Slow(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight, self.seconds = torch.nn.Parameter(torch.ones(1)), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x * self.weight


def stopped_many_times(stops: int) -> list[str]:
    """The first rank is stopped, and again while the ranks agree on the end of the run; then three more runs. What each said."""
    pipe = ddip.Pipeline(
        [Slow(0), Slow(0.4)], loss=lambda out, y: out.mean() * 0, optimizer=sgd, schedule="1f1b", micro_batches=4,
        ranks=ddip.comm("gloo", timeout=20.0),
    )  # fmt: skip
    batches = [(torch.ones(4, 20_000_000), torch.ones(4, 1))]
    seen = []

    def stop(number: int, frame: Any) -> None:
        if frame.f_code.co_name == "_execute" and len(seen) < stops:
            seen.append(number)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        if ddip.rank() == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.8, 0.02)
        first = said_by(lambda: pipe.run(batches))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return [first, *(said_by(lambda: pipe.run(batches)) for _ in range(2))]


def failed_after_silence() -> list[str]:
    """Nothing happens for longer than messages are waited for, then one rank refuses to begin. What this and the next run said."""
    parts = [torch.nn.Linear(8, 8) for _ in range(2)]
    pipe = ddip.Pipeline(
        parts, loss=torch.nn.functional.mse_loss, optimizer=sgd, schedule="gpipe", micro_batches=2,
        ranks=ddip.comm("shm", timeout=6.0),
    )  # fmt: skip

    def run() -> str:
        torch.manual_seed(3)
        return said_by(lambda: pipe.run([(torch.randn(8, 8), torch.randn(8, 8))]))

    found = [run()]
    time.sleep(7)  # longer than that: what is waited for is a time that has passed
    if ddip.rank() == 1:
        parts[1].weight.requires_grad_(False)
    found.append(run())
    parts[1].weight.requires_grad_(True)
    return [*found, run(), run()]
