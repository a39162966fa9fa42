"""The layers of a traced model are the model: whatever it does in a forward, its stages do, or it is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from ddip.pipeline.parts import parts_of  # noqa: E402
from ddip.pipeline.split import Split, split  # noqa: E402
from ddip.pipeline.trace import Traced, trace  # noqa: E402
from ddip.pipeline.tying import tie_stages  # noqa: E402
from torch import nn  # noqa: E402

import ddip as library  # noqa: E402


class Three(nn.Module):
    """What the models here are made of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)


def samples(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(1))


def each_alone(traced: Traced) -> Split:
    """Every layer is a stage."""
    return split(traced, [[layer.name] for layer in traced.layers])


def gradients(model: nn.Module, result: torch.Tensor) -> dict[str, torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    result.square().sum().backward()
    return {name: value.grad for name, value in model.named_parameters()}


def run_parts(model: nn.Module, stages: int, x: torch.Tensor) -> Any:
    """A chain, as the pipeline runs it."""
    value: Any = x
    for part in parts_of(model, stages):
        (value,) = part.call([value])
    return value


# ---- nn.Sequential


def one_activation() -> nn.Sequential:
    torch.manual_seed(0)
    tanh = nn.Tanh()
    return nn.Sequential(nn.Linear(8, 8), tanh, nn.Sequential(nn.Linear(8, 8), tanh), tanh, nn.Linear(8, 4))


def one_linear() -> nn.Sequential:
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)
    return nn.Sequential(linear, nn.Tanh(), linear, nn.Tanh(), nn.Linear(8, 4))


@pytest.mark.parametrize("make", [one_activation, one_linear])
def test_a_module_that_a_sequential_uses_twice_is_used_twice(make: Callable[[], nn.Sequential]) -> None:
    model, x = make(), samples()
    for stages in range(1, 6):
        assert torch.equal(run_parts(model, stages, x), model(x))
    traced = trace(model, (x,))
    assert torch.equal(each_alone(traced)(x), model(x))
    assert set(each_alone(traced).state_dict()) == set(model.state_dict())


def test_a_weight_that_a_sequential_uses_in_two_stages_is_tied() -> None:
    model = one_linear()
    (weight, bias) = tie_stages(parts_of(model, 3))
    assert (weight.owner, weight.name, weight.borrowers) == (0, "0.weight", {1: ["2.weight"]})
    assert bias.name == "0.bias"
    assert each_alone(trace(model)).tied == [[(0, "0.weight"), (2, "2.weight")], [(0, "0.bias"), (2, "2.bias")]]


class Plus(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


def with_hook(kind: str) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    if kind == "before":
        model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    elif kind == "behind":
        model.register_forward_hook(lambda module, inputs, result: result + 1)
    else:
        model.forward = lambda x: nn.Sequential.forward(model, x) + 1  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    "make",
    [lambda: Plus(nn.Linear(8, 8)), *[lambda kind=kind: with_hook(kind) for kind in ("before", "behind", "own")]],
)
def test_a_sequential_that_does_more_than_its_modules_is_not_cut_as_if_it_did_not(
    make: Callable[[], nn.Sequential],
) -> None:
    model, x = make(), samples()
    with pytest.raises(library.ConfigError, match="can be cut only with example="):
        parts_of(model, 1)
    whole = nn.Sequential(nn.Linear(8, 8), model, nn.Linear(8, 4))
    traced = trace(whole, (x,))
    assert [layer.name for layer in traced.layers] == ["0", "1", "2"]
    assert torch.equal(each_alone(traced)(x), whole(x))
