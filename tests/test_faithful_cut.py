"""Whatever cut is accepted, the stages are the model: they return, and learn, what one process does."""

from __future__ import annotations

import copy
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from ddip.pipeline.faithful import check  # noqa: E402
from ddip.pipeline.faithful_cut import check_cut  # noqa: E402
from ddip.pipeline.partition import plan_for  # noqa: E402
from ddip.pipeline.split import split  # noqa: E402
from ddip.pipeline.trace import Traced, trace  # noqa: E402
from torch import nn  # noqa: E402

import ddip as library  # noqa: E402


class Parts(nn.Module):
    """What the models here are made of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.relu, self.up, self.flat = nn.ReLU(inplace=True), nn.Tanh(), nn.Flatten()
        self.drop = nn.Dropout(0.5)


def samples(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(1))


def trained_alike(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: Any) -> Any:
    """A pipeline of stages in this process, which three steps leave where plain PyTorch would be."""
    plain = copy.deepcopy(model)
    pipe = library.Pipeline(
        model, example=x[:4], loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, 0.1), schedule="1f1b",
        micro_batches=2, **options,
    )  # fmt: skip
    pipe.run([(x, y)] * 3)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    for name, value in plain.named_parameters():
        assert torch.allclose(pipe.state_dict()[name], value, atol=1e-6), name
    return pipe


def cuts(traced: Traced, stages: int) -> Iterator[list[list[str]]]:
    """Every one that is allowed, those that change the layers' order included."""
    flows = traced.flows()
    for stage_of in itertools.product(range(stages), repeat=len(traced.layers)):
        if set(stage_of) == set(range(stages)) and all(stage_of[f.source] <= stage_of[f.target] for f in flows):
            yield [
                [layer.name for layer, at in zip(traced.layers, stage_of, strict=True) if at == stage]
                for stage in range(stages)
            ]


def edited(traced: Traced, x: torch.Tensor, stages: list[list[str]], path: Path, **options: Any) -> str:
    """The file of a plan in which somebody has moved the layers."""
    plan = json.loads(str(plan_for(traced, (x,), len(stages), times=0, **options)))
    plan["stages"] = [{"device": device, "layers": names} for device, names in enumerate(stages)]
    path.write_text(json.dumps(plan), encoding="utf-8")
    return str(path)


# ---- what an operation changes in place


class InPlace(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        skip = self.up(h)
        return self.c(self.b(self.relu(h)) + skip)


class AView(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        view = self.flat(h)
        skip = self.up(h)
        return self.c(self.b(self.relu(view)) + skip)


class NothingDropped(Parts):
    """In evaluation a dropout returns what it was given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        y = self.drop(h)
        skip = self.up(h)
        return self.c(self.b(self.relu(y)) + self.drop(skip))


class Inside(nn.Module):
    """No trace looks into it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) if x.sum() != 0 else x


class Hidden(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.relu = Inside()  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        skip, other = self.up(h), self.d(self.flat(h).sum(1, keepdim=True) * x)
        return self.c(self.b(self.relu(h)) + skip + other)


class ItsInput(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x.sign())
        skip = self.up(x)
        return self.c(self.b(self.relu(x)) + skip + h)


IN_PLACE = [InPlace, AView, NothingDropped, Hidden, ItsInput]


@pytest.mark.parametrize("make", IN_PLACE)
@pytest.mark.parametrize("stages", [2, 3])
def test_every_cut_of_a_model_that_changes_values_in_place_is_the_model(
    make: Callable[[], nn.Module], stages: int
) -> None:
    model, x = make(), samples()
    traced = trace(model, (x,))
    check(traced, (x,))
    everything = list(cuts(traced, stages))
    found = everything[:: len(everything) // 12 + 1]
    assert any(sum(cut, []) != [layer.name for layer in traced.layers] for cut in found), "none changes the order"
    for mode in (True, False):
        model.train(mode)
        for cut in found if mode is False or make is not NothingDropped else []:  # in another order it drops others
            model.zero_grad(set_to_none=True)
            wanted = model(x.clone())
            wanted.square().sum().backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            model.zero_grad(set_to_none=True)
            result = split(traced, cut)(x.clone())
            result.square().sum().backward()
            assert torch.equal(result, wanted), cut
            for name, parameter in model.named_parameters():
                if gradients[name] is not None:
                    assert torch.allclose(parameter.grad, gradients[name], atol=1e-5), (cut, name)
    model.train()
    for cut in found:
        check_cut(traced, cut, (x,))


def test_an_edited_plan_that_takes_a_value_behind_its_change_trains_like_one_process(tmp_path: Path) -> None:
    x, y = samples(8), torch.randn(8, 8)
    for stages in ([["a", "relu", "b"], ["up", "add", "c"]], [["a"], ["relu", "b"], ["up", "add", "c"]]):
        file = edited(trace(InPlace(), (x[:4],)), x[:4], stages, tmp_path / "plan.json")
        pipe = trained_alike(InPlace(), x, y, stages=len(stages), partition=file)
        assert pipe.cut.plan.stages == stages


class Unseen(Parts):
    """torch counts no write to `.data`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        skip = self.up(h)
        other = self.drop(self.c(x))
        return self.c(self.b(h.data.clamp_(0)) + skip) + other


def test_a_cut_whose_stages_are_not_the_model_is_refused_in_one_line(tmp_path: Path) -> None:
    model, x = Unseen(), samples()
    traced = trace(model, (x,))
    check(traced, (x,))
    said = []
    for cut in cuts(traced, 2):
        try:
            check_cut(traced, cut, (x,))
        except library.ConfigError as error:
            said.append(str(error))
            assert "up" in cut[1] and "getattr_1" in cut[0], cut  # it changes what `up` needs
    assert said and all(
        line.startswith("the stages of Unseen that begin with ") and "\n" not in line and "another" in line
        for line in said
    ), said
    names = [layer.name for layer in traced.layers]
    bad = next(cut for cut in cuts(traced, 2) if "up" in cut[1] and "getattr_1" in cut[0])
    with pytest.raises(library.ConfigError, match=r"^.*plan.json: the stages of Unseen that begin with "):
        trained_alike(model, x, x, stages=2, partition=edited(traced, x, bad, tmp_path / "plan.json"))
    assert [layer.name for layer in traced.layers] == names


# ---- layers that nothing leads to, or from


class Prompt(Parts):
    """`q` is made of parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(64, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        q = self.b(self.prompt.tanh()).mean(0)
        return self.c(self.d(h) + q)


class PromptFirst(Prompt):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.b(self.prompt)
        z = self.d(q).mean(0)
        return self.c(self.a(x) + z)


class Monitor(nn.Module):
    """It is called for what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor | None:
        if x.sum() > 1e9:
            return x
        self.mean += x.detach().mean(0)
        return None


class Watched(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.monitor, self.last = Monitor(), Monitor()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        self.monitor(self.up(h))
        y = self.c(self.b(h))
        self.last(y)
        return y


@pytest.mark.parametrize("make", [Prompt, PromptFirst, Watched])
def test_a_layer_that_needs_no_input_or_that_nobody_needs_is_part_of_another(make: Callable[[], nn.Module]) -> None:
    x, y = samples(8), torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    traced = trace(make(), (x[:4],))
    check(traced, (x[:4],))
    for stages in range(2, len(traced.layers) + 1):
        for cut in cuts(traced, stages):
            pieces = split(traced, cut)
            assert {target for _, target in pieces.routes} == set(range(1, stages)), "something leads to each"
            assert {source for source, _ in pieces.routes} == set(range(stages - 1)), "and on from each"
        trained_alike(make(), x, y, stages=stages)


# ---- named tuples


class Best(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Linear(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        best = h.topk(3)
        y = self.b(h)
        return self.c(y) + self.d(best.values) + best.indices.float().mean(1, keepdim=True)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x, -x) if x.sum() != 0 else Pair(x, x)


class Adds(nn.Module):
    def forward(self, pair: Pair) -> torch.Tensor:
        return pair.left + 2 * pair.right if pair.left.sum() != 0 else pair.left


class OwnClass(Parts):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.two, self.adds, self.whole = Two(), Adds(), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair = self.two(self.a(x))
        y = self.b(x)
        return self.c(y) + (self.adds(pair) if self.whole else pair.left + 2 * pair.right)


@pytest.mark.parametrize("make", [Best, lambda: OwnClass(whole=False)])
def test_the_fields_of_a_named_tuple_cross_every_cut(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    x, y = samples(8), samples(8)
    traced = trace(make(), (x[:4],))
    for cut in cuts(traced, 2):
        trained_alike(make(), x, y, stages=2, partition=edited(traced, x[:4], cut, tmp_path / "plan.json"))


class Ordered(nn.Module):
    def forward(self, x: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        return OrderedDict(left=x, right=-x) if x.sum() != 0 else OrderedDict(left=x)


class AddsNamed(nn.Module):
    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return given["left"] + 2 * given["right"] if given["left"].sum() != 0 else given["left"]


class OwnDict(OwnClass):
    def __init__(self) -> None:
        super().__init__(whole=True)
        self.two, self.adds = Ordered(), AddsNamed()  # type: ignore[assignment]


class Encoder(nn.Module):
    """No trace looks into it, and what it returns is nothing that a message has a place for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> Any:
        mean, spread = self.layer(x).chunk(2, 1)
        return torch.distributions.Normal(mean, spread.exp() if spread.sum() != 0 else spread)


class Sample(nn.Module):
    def forward(self, latent: Any) -> torch.Tensor:
        return latent.mean + latent.stddev  # type: ignore[no-any-return]


class Variational(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.sample = Encoder(), Sample()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.sample(self.encoder(self.a(x)))))  # type: ignore[no-any-return]


def test_what_only_python_can_hold_stays_in_one_stage(tmp_path: Path) -> None:
    x, y = samples(8), torch.randn(8, 8)
    traced = trace(Variational(), (x[:4],), leaves=(Encoder, Sample))
    check(traced, (x[:4],))
    assert [layer.name for layer in traced.layers] == ["a", "encoder", "b", "c"]
    trained_alike(Variational(), x, y, stages=2, leaves=("Encoder", "Sample"))


@pytest.mark.parametrize("make", [lambda: OwnClass(whole=True), OwnDict])
def test_layers_between_which_a_value_would_lose_its_class_are_one_layer(make: Callable[[], nn.Module]) -> None:
    x, y = samples(8), samples(8)
    traced = trace(make(), (x[:4],))
    assert [layer.name for layer in traced.layers] == ["a", "two", "b", "c", "adds", "add"]
    check(traced, (x[:4],))
    assert [layer.name for layer in traced.layers] == ["a", "two", "add"]
    for stages in (2, 3):
        trained_alike(make(), x, y, stages=stages)


# ---- what else a plan says


@pytest.mark.parametrize("planned", [False, True])
def test_what_a_plan_says_of_recomputation_is_done_unless_somebody_says_otherwise(
    planned: bool, tmp_path: Path
) -> None:
    x, y = samples(8), samples(8)
    file = edited(trace(InPlace()), x[:4], [["a", "up"], ["relu", "b", "add", "c"]], tmp_path / "plan.json", recompute=planned)  # fmt: skip
    pipe = trained_alike(InPlace(), x, y, stages=2, partition=file)
    assert [pipe.recomputes(stage) for stage in (0, 1)] == [planned, False] and pipe.notes == []
    for asked in (False, True):
        pipe = trained_alike(InPlace(), x, y, stages=2, partition=file, recompute=asked)
        assert [pipe.recomputes(stage) for stage in (0, 1)] == [asked, False]
        note = f"recompute={asked}: the plan reckons with recompute={planned}"
        assert pipe.notes == ([note] if asked != planned else [])
