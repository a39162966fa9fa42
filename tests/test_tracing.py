"""The layers of a traced model are the model: whatever it does in a forward, its stages do, or it is refused with a reason."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from ddip.pipeline.auxiliary import auxiliary_loss, collected, taken  # noqa: E402
from ddip.pipeline.borders import with_tensors  # noqa: E402
from ddip.pipeline.faithful import Seen, check, difference_of  # noqa: E402
from ddip.pipeline.hidden_weights import hidden_weights  # noqa: E402
from ddip.pipeline.memory import Activations  # noqa: E402
from ddip.pipeline.partition import plan_for  # noqa: E402
from ddip.pipeline.parts import parts_of  # noqa: E402
from ddip.pipeline.profile import profile  # noqa: E402
from ddip.pipeline.shared_buffers import refuse_shared_statistics  # noqa: E402
from ddip.pipeline.split import Split, split  # noqa: E402
from ddip.pipeline.stage_calls import StageCalls  # noqa: E402
from ddip.pipeline.trace import Traced, trace  # noqa: E402
from ddip.pipeline.tying import tie_stages  # noqa: E402
from torch import nn  # noqa: E402

import ddip as library  # noqa: E402
from ddip.pipeline import faithful, untouched  # noqa: E402


class Three(nn.Module):
    """What the models here are made of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)


def samples(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(1))


def looked_at(model: nn.Module, inputs: tuple[Any, ...], **options: Any) -> Traced:
    """As before a cut."""
    traced = trace(model, inputs, **options)
    check(traced, inputs)
    return traced


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
    traced = looked_at(model, (x,))
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


def with_forward() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model.forward = lambda x: nn.Sequential.forward(model, x) + 1  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("make", [lambda: Plus(nn.Linear(8, 8)), with_forward])
def test_a_sequential_that_does_more_than_its_modules_is_not_cut_as_if_it_did_not(
    make: Callable[[], nn.Sequential],
) -> None:
    model, x = make(), samples()
    with pytest.raises(library.ConfigError, match="can be cut only with example="):
        parts_of(model, 1)
    assert torch.equal(each_alone(looked_at(model, (x,)))(x), model(x))
    whole = nn.Sequential(nn.Linear(8, 8), model, nn.Linear(8, 4))
    traced = looked_at(whole, (x,))
    assert [layer.name for layer in traced.layers] == ["0", "1", "2"]
    assert torch.equal(each_alone(traced)(x), whole(x))


@pytest.mark.parametrize("kind", ["register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"])
def test_a_module_with_hooks_is_one_layer_and_a_whole_model_with_hooks_is_refused(kind: str) -> None:
    calls = []
    inner, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), samples()
    getattr(inner, kind)(lambda *given: calls.append(type(given[1])))
    for refused in (
        lambda: parts_of(inner, 1),
        lambda: trace(inner, (x,)),
        lambda: trace([inner], (x,)) and trace(inner),
    ):
        with pytest.raises(
            library.ConfigError, match="^Sequential has hooks of its own, which no stage would call; expected"
        ):
            refused()
    for model in (nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(4, 4)), Around(inner)):
        traced = looked_at(model, (x,))
        assert [layer.name for layer in traced.layers] in (["0", "1", "2"], ["inner", "last"])
        calls.clear()
        each_alone(traced)(x.clone().requires_grad_()).sum().backward()
        assert calls == [tuple]


# ---- what is neither an operation nor a value


class Frozen(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.a(x)
        return self.c(self.b(x))


class FrozenByDecorator(Three):
    @torch.no_grad()
    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.features(x)))


class Around(nn.Module):
    """Another module as a part: fx follows this one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x)).relu()


@pytest.mark.parametrize("make", [Frozen, FrozenByDecorator])
@pytest.mark.parametrize("inside", [False, True])
def test_what_the_model_computes_without_gradients_is_not_trained(make: Callable[[], nn.Module], inside: bool) -> None:
    model, x = Around(make()) if inside else make(), samples()
    traced = looked_at(model, (x,))
    assert traced.how == ("fx" if inside else "export")
    found, wanted = gradients(model, each_alone(traced)(x)), gradients(model, model(x))
    frozen = "inner.a.weight" if inside else "a.weight"
    assert wanted[frozen] is None and {name for name, value in found.items() if value is None} == {
        name for name, value in wanted.items() if value is None
    }


def test_autocast_inside_the_model_stays_there() -> None:
    class Low(Three):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.b(self.a(x))
            return self.c(x.float())

    model, x = Low(), samples()
    assert torch.equal(each_alone(looked_at(model, (x,)))(x), model(x))


# ---- training and evaluation


class Dropout(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(nn.functional.dropout(self.b(self.a(x)), 0.5, training=self.training))


class HiddenDropout(Three):
    def drop(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, training=self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.drop(self.b(self.a(x))))


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_asks_whether_it_trains_is_one_layer(training: bool) -> None:
    model, x = Around(Dropout()).train(training), samples()
    traced = looked_at(model, (x,))
    assert [layer.name for layer in traced.layers] == ["inner", "last"]
    for mode in (True, False):
        pieces = each_alone(traced)
        for module in (model, *pieces.modules):
            module.train(mode)
        torch.manual_seed(2)
        wanted = model(x)
        torch.manual_seed(2)
        assert torch.equal(pieces(x), wanted)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [Dropout, lambda: Around(HiddenDropout())])
def test_a_trace_that_would_be_fixed_to_one_mode_is_refused(make: Callable[[], nn.Module], training: bool) -> None:
    model = make().train(training)
    with pytest.raises(library.ConfigError) as error:
        looked_at(model, (samples(),))
    assert f" in {'evaluation' if training else 'training'}: " in str(error.value)
    assert "use nn.Dropout and the like, name the module in leaves=, or give a list of stages" in str(error.value)
    assert model.training == training
    assert looked_at(Around(HiddenDropout()), (samples(),), leaves=[HiddenDropout]).checked


def test_an_exported_batch_norm_cannot_be_evaluated_and_is_refused() -> None:
    class Exported(Three):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.norm(self.a(x) if x.shape[0] > 2 else self.b(x)))

    with pytest.raises(
        library.ConfigError,
        match="with torch.export the layers of Exported .* in evaluation: .* fixes a model to the mode",
    ):
        looked_at(Exported(), (samples(),))


def test_a_frozen_part_stays_in_its_mode_while_it_is_looked_at() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    whole = Around(model)
    model[1].eval()
    looked_at(whole, (samples(),))
    assert [module.training for module in (whole, model, model[0], model[1])] == [True, True, True, False]


# ---- what a forward changes


class Counts(Three):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.a(x)
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.c(self.b(x - self.mean))


class Mean(Three):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.c(self.b(x))


class Probe(Three):
    """A module that is called for what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        self.norm(x)
        return self.c(self.b(x))


class InPlace(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x.clamp_(0)
        return self.c(self.b(x))


class OwnSteps(Three):
    """Python's own state, not a buffer."""

    steps = 0
    last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.last = self.b(self.a(x))
        return self.c(self.last) * self.steps


MUTABLE: list[Callable[[], nn.Module]] = [
    *[Counts, Mean, Probe, InPlace],
    *[lambda make=make: Around(make()) for make in (Counts, Mean, Probe, InPlace, OwnSteps)],  # type: ignore[misc]
]


@pytest.mark.parametrize("make", MUTABLE)
def test_the_stages_change_what_the_model_changes_and_tracing_changes_nothing(make: Callable[[], nn.Module]) -> None:
    model, other = make(), make()
    other.load_state_dict(model.state_dict())
    keys = [set(vars(module)) for module in model.modules()]
    traced = looked_at(model, (samples(),))
    assert [set(vars(module)) for module in model.modules()] == keys
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    pieces = each_alone(traced) if traced.how == "fx" else split(traced, [[layer.name for layer in traced.layers]])
    for seed in range(3):
        x = samples() + seed
        assert torch.equal(pieces(x), other(x))
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert set(pieces.state_dict()) == set(other.state_dict())


class Average(Three):
    """It is no buffer, but a forward writes it as one, and torch does not count that."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.mean, self.twice = nn.Parameter(torch.zeros(8), requires_grad=False), twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        self.mean.data.mul_(0.9).add_(x.detach().mean(0))
        x = self.b(x - self.mean)
        return self.c(x + self.mean if self.twice else x)


def limited() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 8, max_norm=0.1), nn.Linear(8, 4))


@pytest.mark.parametrize("make", [Average, lambda: Around(Average()), limited])
@pytest.mark.parametrize("nan", [False, True])
def test_a_parameter_that_a_forward_writes_is_as_it_was_after_tracing_checking_and_measuring(
    make: Callable[[], nn.Module], nan: bool
) -> None:
    model = make()
    x = samples() if isinstance(model, (Average, Around)) else torch.arange(8).view(2, 4)
    if nan:
        with torch.no_grad():
            list(model.parameters())[-1].view(-1)[0] = float("nan")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [parameter._version for parameter in model.parameters()]
    traced = trace(model, (x,))
    plan_for(traced, (x,), 2, times=1)
    for name, value in model.state_dict().items():
        assert torch.equal(value.nan_to_num(), before[name].nan_to_num()), name
    unwritten = [parameter._version for parameter in model.parameters()][1:]
    assert make is not limited or unwritten == versions[1:], "what nobody wrote is not written back"
    assert traced.written == ({"0.weight"} if make is limited else {"mean"} if make is Average else {"inner.mean"})


def test_all_weights_are_copied_once_and_not_for_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model on a GPU each copy is a way through the host."""
    model, x, copies = Average(), samples(), []
    made = untouched.Parameters.__init__
    monkeypatch.setattr(untouched.Parameters, "__init__", lambda *given: (copies.append(given[1]), made(*given))[1])
    traced = trace(model, (x,))
    copies.clear()  # stand-ins are followed without one
    plan_for(traced, (x,), 2, times=1)
    assert copies == [model] and not untouched._untouched


def test_layers_that_write_and_read_one_parameter_are_one_layer() -> None:
    model, other, x = Average(twice=True), Average(twice=True), samples()
    traced = looked_at(model, (x,))
    assert [layer.name for layer in traced.layers][0] == "a" and len(traced.layers) == 2
    pieces = each_alone(traced)
    for seed in range(2):
        assert torch.equal(pieces(x + seed), other(x + seed))
    assert torch.equal(pieces.state_dict()["mean"], other.mean)


class InCollections(Three):
    """What a forward keeps in lists and the like."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.last: deque[Any] = deque(maxlen=2)
        self.count, self.kinds, self.deep = {"n": 0}, {"none"}, {"inner": ([0],)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.a(x))
        self.seen.append(x.mean())
        self.last.append(x)
        self.count["n"] += 1
        self.kinds.add("some")
        self.deep["inner"][0][0] += 1
        return self.c(x)

    def kept(self) -> Any:
        return len(self.seen), len(self.last), self.count, self.kinds, self.deep


def test_a_module_that_keeps_something_in_its_lists_is_one_layer_and_finds_them_as_they_were() -> None:
    model, x = Around(InCollections()), samples()
    inner: Any = model.inner
    inner.seen.append("first")
    lists = [id(inner.seen), id(inner.count)]
    traced = trace(model, (x,))
    plan_for(traced, (x,), 2, times=1)
    assert [layer.name for layer in traced.layers] == ["inner", "last"]
    assert inner.seen == ["first"] and inner.kept() == (1, 0, {"n": 0}, {"none"}, {"inner": ([0],)})
    assert [id(inner.seen), id(inner.count)] == lists, "whoever has them sees the same ones"
    each_alone(traced)(x)
    assert inner.kept() == (2, 1, {"n": 1}, {"none", "some"}, {"inner": ([1],)})
    with pytest.raises(
        library.ConfigError, match="^InCollections cannot be cut: its forward changes self.(count|kinds)"
    ):
        trace(InCollections(), (x,))


def test_a_constant_that_a_forward_puts_into_a_dictionary_is_a_constant() -> None:
    class Table(Three):
        def __init__(self) -> None:
            super().__init__()
            self.made: dict[int, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if 8 not in self.made:
                self.made[8] = torch.arange(8) / 8
            return self.c(self.b(self.a(x)) * self.made[8])

    for model in (Table(), Around(Table())):
        traced = looked_at(model, (samples(),))
        assert traced.how == "fx" and torch.equal(each_alone(traced)(samples()), model(samples()))


class Keeps(Three):
    """For whoever looks at it, or for its own next forward."""

    last: Any = None

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x) + (self.last.detach() if self.reads and self.last is not None else 0)
        self.last = self.b(x)
        return self.c(self.last)


class MadeOnce(Three):
    scale: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = torch.arange(8) / 8
        return self.c(self.b(self.a(x)) * self.scale)


@pytest.mark.parametrize("inside", [False, True])
def test_a_constant_that_a_forward_makes_once_is_a_constant(inside: bool) -> None:
    model, x = Around(MadeOnce()) if inside else MadeOnce(), samples()
    traced = looked_at(model, (x,))
    assert traced.how == "fx" and torch.equal(each_alone(traced)(x), model(x))


def test_a_model_that_counts_in_python_is_refused() -> None:
    with pytest.raises(library.ConfigError) as error:
        trace(OwnSteps(), (samples(),))
    assert str(error.value) == (
        "OwnSteps cannot be cut: its forward changes self.steps; expected it in a buffer, in a module inside it, or a list of stages"
    )
    with pytest.raises(library.ConfigError, match="the result is another one; does"):
        looked_at(OwnSteps(), (samples(),), how="export")
    assert looked_at(Keeps(False), (samples(),)).how == "export"
    with pytest.raises(
        library.ConfigError, match="with torch.export the layers of Keeps .*: the result is another one; does"
    ):
        looked_at(Keeps(True), (samples(),))


# ---- random numbers


class Noise(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x) + 1e-4 * torch.randn(8)))


class RandomDepth(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.c(self.b(x) if random.random() < 0.05 else x)


@pytest.mark.parametrize("inside", [False, True])
def test_noise_is_drawn_anew_in_every_forward(inside: bool) -> None:
    model, x = Around(Noise()) if inside else Noise(), samples()
    pieces = each_alone(looked_at(model, (x,)))
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted = model(x)
        torch.manual_seed(seed)
        assert torch.equal(pieces(x), wanted)


def test_a_branch_by_pythons_random_numbers_is_one_layer_or_refused() -> None:
    model, numbers = Around(RandomDepth()), random.getstate()
    traced = looked_at(model, (samples(),))
    assert [layer.name for layer in traced.layers] == ["inner", "last"]
    with pytest.raises(
        library.ConfigError, match="it draws random numbers that depend on no input; nor .*random numbers"
    ):
        looked_at(RandomDepth(), (samples(),))
    assert random.getstate() == numbers


# ---- results


def test_the_imaginary_part_and_the_shape_of_a_result_are_compared() -> None:
    class Imaginary(Three):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.c(self.b(self.a(x)))
            z = torch.complex(y, y)
            z.imag.add_(3.0)
            return z

    model, x = Imaginary(), samples()
    traced = looked_at(model, (x,), how="fx")
    last = traced.layers[-1].nodes[-1]
    assert traced.checked and torch.equal(each_alone(traced)(x), model(x)), last
    ours = Seen(torch.tensor([1 + 2j]), {}, {}, set())
    for other in (
        torch.tensor([1 + 3j]),
        torch.tensor([[1 + 2j]]),
        torch.tensor([1 + 2j, 1 + 2j]),
        torch.tensor([1.0]),
    ):
        assert difference_of(ours, Seen(other, {}, {}, set())), other
    assert difference_of(ours, Seen(torch.tensor([1 + 2j]), {}, {}, set())) is None


class Masking(Three):
    """Where a sample is masked, the result stands for something else."""

    def __init__(self, value: float, adds: bool, fixed: bool) -> None:
        super().__init__()
        self.value, self.adds, self.fixed, self.drop = value, adds, fixed, nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        h = nn.functional.dropout(h, 0.5, self.training) if self.fixed else self.drop(h)
        y = self.b(h)
        return y + self.value * (x > 1.0) if self.adds else y.masked_fill(x > 1.0, self.value)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("value", [0.0, -1e9, -1e30, float("-inf"), float("nan")])
def test_a_mask_in_the_result_hides_no_difference(value: float, adds: bool) -> None:
    x = samples(16)
    if not adds or abs(value) < float("inf"):  # else all of it would be NaN
        looked_at(Masking(value, adds, fixed=False), (x,))
        with pytest.raises(library.ConfigError, match="in evaluation: the result is another one"):
            looked_at(Masking(value, adds, fixed=True), (x,))


def test_what_is_not_finite_is_compared_by_its_place_and_rounding_by_the_usual_size() -> None:
    inf = float("inf")

    def same(ours: list[float], theirs: list[float]) -> bool:
        seen = [Seen(torch.tensor(values), {}, {}, set()) for values in (ours, theirs)]
        return difference_of(*seen) is None

    assert same([inf, 1.0, -inf, float("nan")], [inf, 1.0 + 1e-6, -inf, float("nan")])
    assert not same([inf, 1.0], [-inf, 1.0]) and not same([inf, 1.0], [1e30, 1.0])
    assert not same([float("nan"), 1.0], [inf, 1.0]) and not same([inf, 1.0], [inf, 1.1])
    assert not same([-1e9] * 50 + [1.0, 2.0], [-1e9] * 50 + [1.0, 2.1])
    assert same([1e-9, 1.0, 2.0], [2e-9, 1.0, 2.0]), "one that is zero but for rounding"
    assert same([0.0, 0.0], [0.0, 0.0]) and not same([0.0, 0.0], [0.0, 1e-3])


@pytest.mark.parametrize("size", [64, 1000, 1000000])
def test_rounding_of_short_numbers_is_no_difference(size: int) -> None:
    """Many of them are the same number, though nothing stands for something else."""
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0))
    rounded = (numbers + 2e-3 * torch.randn(size, generator=torch.Generator().manual_seed(1))).bfloat16()
    assert faithful._near(rounded, numbers.bfloat16(), 1e-2)
    assert not faithful._near(numbers.bfloat16() + 0.5, numbers.bfloat16(), 1e-2)


def test_a_result_of_another_class_is_another_result() -> None:
    for mine, other in (({"a": 1}, OrderedDict(a=1)), ((1, 2), [1, 2]), (1, 2), ("a", "b")):
        assert difference_of(Seen(mine, {}, {}, set()), Seen(other, {}, {}, set())), other
        assert difference_of(Seen(other, {}, {}, set()), Seen(other, {}, {}, set())) is None


def test_a_result_may_have_truth_values_and_whole_numbers() -> None:
    class Flags(Three):
        def forward(self, x: torch.Tensor) -> Any:
            x = self.a(x)
            return self.c(self.b(x)), x > 0, x.argmax(1), x.shape[0], None

    model, x = Flags(), samples()
    profile(looked_at(model, (x,)), (x,), times=1)


def test_a_parameter_without_a_shape_is_named() -> None:
    with pytest.raises(
        library.ConfigError, match="^parameter 0.weight has no shape yet; expected a model that has seen"
    ):
        trace(nn.Sequential(nn.LazyLinear(4)))


def test_a_weight_is_still_there_after_a_module_that_was_not_followed() -> None:
    class Looks(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight
            return y if y.sum() > 0 else -y

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.looks, self.last = Looks(self.weight), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.looks(x) + self.weight)

    traced = looked_at(Both(), (samples(),))
    assert [(layer.name, layer.path) for layer in traced.layers] == [("looks", "looks"), ("add", ""), ("last", "last")]


# ---- buffers of several stages


class OneNorm(Three):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.norm(self.b(self.norm(self.a(x)))))


class ReadTwice(Three):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("shift", torch.full((8,), 0.25), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x) * self.scale + self.shift) * self.scale + self.shift + torch.arange(8) / 8)


def test_layers_that_write_one_buffer_are_one_layer() -> None:
    model, other, x = OneNorm(), OneNorm(), samples()
    traced = trace(model, (x,))
    assert [layer.name for layer in traced.layers] == ["a", "norm", "b", "norm#2", "c"]
    plan = plan_for(traced, (x,), 3, times=0)
    assert plan.stages == [["a"], ["norm"], ["c"]]
    pieces = split(traced, plan.stages)
    parts_of(pieces, 3)
    for seed in range(2):
        assert torch.equal(pieces(x + seed), other(x + seed))
    for name, value in other.state_dict().items():
        assert torch.equal(pieces.state_dict()[name], value), name
    reads = Counts()
    traced = looked_at(reads, (x,))
    assert traced.written == {"calls", "mean"} and [layer.name for layer in traced.layers][-2:] == ["b", "c"]
    assert torch.equal(each_alone(traced)(x), Counts()(x))


def test_statistics_that_two_stages_would_write_are_refused() -> None:
    x = samples()
    norm = nn.BatchNorm1d(8)
    for model in (nn.Sequential(norm, nn.Linear(8, 8), norm), [norm, nn.Linear(8, 8), norm]):
        with pytest.raises(library.ConfigError, match="^buffer (2.)?running_mean of stage 2 is in stage 0 too"):
            parts_of(model, 3)
    counting = looked_at(Mean(), (x,))
    assert counting.written == {"mean"}
    with pytest.raises(library.ConfigError, match="^buffer mean of stage 1 is in stage 0 too"):
        refuse_shared_statistics([counting.model, counting.model], counting.written)


def test_what_stages_only_read_may_be_in_several_and_constants_are_in_no_checkpoint() -> None:
    model, x = ReadTwice(), samples()
    traced = trace(model, (x,))
    plan_for(traced, (x,), 3, times=0)
    pieces = each_alone(traced)
    assert torch.equal(pieces(x), model(x)) and traced.written == set()
    parts_of(pieces, 3)
    assert set(pieces.state_dict()) == set(model.state_dict())


# ---- sizes


class Reshapes(Three):
    """fx cannot follow it; export can."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x) if x.shape[0] > 2 else -x
        x = x.reshape(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0], 8)
        return self.c(self.b(x - x.sum(0, keepdim=True) / x.shape[0]))


def test_an_exported_model_takes_other_sizes_or_says_which() -> None:
    model = Reshapes()
    traced = looked_at(model, (samples(),))
    names = [layer.name for layer in traced.layers]
    assert traced.how == "export"
    for pieces in (each_alone(traced), split(traced, [names])):
        for count in (3, 4, 7):
            assert torch.equal(pieces(samples(count)), model(samples(count)))
        with pytest.raises(library.ConfigError) as error:
            pieces(samples(2))
        assert str(error.value) == (
            "Reshapes was traced with (float32[4, 8]) and got (float32[2, 8]); expected x.size()[0] >= 3, or an example like it"
        )


class Counted(Three):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.c(self.b(self.a(x)))


def test_a_buffer_that_an_exported_model_writes_is_written_where_it_is_computed() -> None:
    x = samples()
    for model in (Counted(), Counts()):
        traced = looked_at(model, (x,))
        assert traced.how == "export" and "calls" in traced.written
        assert sum("calls" in dict(module.named_buffers()) for module in each_alone(traced).modules) == 1


# ---- auxiliary losses


class Penalty(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.a(x))
        auxiliary_loss(x.square().mean())
        return self.c(x)


def test_an_auxiliary_loss_inside_a_whole_model_is_not_lost() -> None:
    model, x = Around(Penalty()), samples()
    traced = looked_at(model, (x,))
    assert [layer.name for layer in traced.layers] == ["inner", "last"] and not taken()
    with collected():
        model(x)
    (wanted,) = taken()
    with collected():
        each_alone(traced)(x)
    (found,) = taken()
    assert torch.equal(found, wanted)
    why = "auxiliary_loss\\(\\) is in the model's own forward; expected it in that of a module inside it"
    with pytest.raises(library.ConfigError, match=f"^Penalty cannot be cut: {why}$"):
        trace(Penalty(), (x,))
    with pytest.raises(library.ConfigError, match=why):
        trace(Penalty(), (x,), how="export")
    assert not taken()


def test_auxiliary_losses_outside_of_a_pipeline_are_nobodys() -> None:
    model, x = Penalty(), samples()
    for _ in range(3):
        model(x)
    assert not taken()  # each would keep its graph


# ---- inputs


class Masked(Three):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 2.0) -> torch.Tensor:
        x = self.a(x)
        if mask is not None:
            x = x * mask
        return self.c(self.b(x).relu()) * scale


def test_an_argument_that_the_example_leaves_out_is_left_out(capfd: Any) -> None:
    model, x = Masked(), samples()
    for inputs in ((x,), (x, torch.rand(8))):
        traced = looked_at(model, inputs)
        assert traced.how == "fx" and torch.equal(each_alone(traced)(*inputs), model(*inputs))
    with pytest.raises(library.ConfigError, match="^layer a cannot run: the input x is float32"):
        looked_at(model, (x[:, :3],))
    assert capfd.readouterr().err == ""


class AnyNumber(Three):
    def forward(self, x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        return self.c(self.b(self.a(x))) * (len(args) + 1) * named.get("scale", 1)


class Several(Three):
    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(xs[0])) + sum(xs[1:]))


class TupleByDefault(Three):
    def forward(self, x: torch.Tensor, shape: tuple[int, int] = (2, 4)) -> torch.Tensor:
        return self.c(self.b(self.a(x)).view(-1, *shape).flatten(1))


@pytest.mark.parametrize(
    ("make", "count"), [(AnyNumber, 1), (AnyNumber, 3), (Several, 1), (Several, 2), (Several, 3), (TupleByDefault, 1)]
)
def test_a_forward_takes_any_number_of_inputs(make: Callable[[], nn.Module], count: int) -> None:
    model, inputs = make(), tuple(samples() + place for place in range(count))
    traced = looked_at(model, inputs)
    assert traced.how == "fx" and len(traced.inputs()) == count
    plan = plan_for(traced, inputs, 2, times=0)
    assert torch.equal(split(traced, plan.stages)(*inputs), model(*inputs))


def test_an_argument_that_is_none_in_the_example_stays_none() -> None:
    model, x = Masked(), samples()
    traced = looked_at(model, (x, None))
    assert traced.how == "fx"
    pieces = each_alone(traced)
    assert torch.equal(pieces(x, None), model(x)) and torch.equal(pieces(x), model(x))
    with pytest.raises(library.ConfigError) as error:
        pieces(x, torch.ones(8))
    assert str(error.value) == "Masked was traced with mask=None and got a Tensor; expected an example like it"


class ByName(Three):
    def forward(self, values: dict[str, torch.Tensor]) -> torch.Tensor:
        x = self.a(values["x"])
        return self.c(self.b(x * values["mask"] if "mask" in values else x))


class Plain(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


def test_what_inputs_are_wrong_is_said_and_not_what_layers_do() -> None:
    x = samples()
    for inputs in ({"x": x}, {"x": x, "mask": x}):
        with pytest.raises(
            library.ConfigError, match="; nor torch.export takes a dict among the inputs of ByName apart, and a stage"
        ):
            trace(ByName(), (inputs,))
    with pytest.raises(library.ConfigError) as error:
        check(trace(Plain()), (x, x))
    assert str(error.value) == "Plain was traced with the inputs x and the example has 2; expected as many"


class NormStays(Three):
    """The usual way to leave a batch norm in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.norm(self.a(x))))

    def train(self, mode: bool = True) -> NormStays:
        super().train(mode)
        self.norm.eval()
        return self


def test_a_batch_norm_that_the_models_own_train_leaves_in_evaluation_is_no_difference() -> None:
    model, x = NormStays().train(), samples()
    traced = looked_at(model, (x,))
    assert model.training and not model.norm.training and traced.written == set()
    assert torch.equal(each_alone(traced)(x), model(x))
    with pytest.raises(library.ConfigError, match="in training: "):  # a pipeline would make it train
        looked_at(NormStays().eval(), (x,))


def test_what_nobody_can_follow_is_said_and_nothing_is_printed(capfd: Any) -> None:
    class Looks(Three):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.a(x) if x.sum() > 0 else self.b(x))

    with pytest.raises(
        library.ConfigError, match="; nor torch.export cannot follow Looks: GuardOnDataDependentSymNode: "
    ):
        trace(Looks(), (samples(),))
    assert capfd.readouterr() == ("", "")


def test_an_example_with_another_number_of_inputs_is_refused() -> None:
    x = samples()
    for inputs, why in (((), "missing a required argument: 'x'"), ((x, x, x), "too many positional arguments")):
        with pytest.raises(
            library.ConfigError,
            match=f"^Masked.forward takes x, mask, scale and cannot be called with {len(inputs)} inputs: {why}",
        ):
            trace(Masked(), inputs)
    with pytest.raises(
        library.ConfigError, match="^Sequential.forward takes input and cannot be called with 2 inputs: too many"
    ):
        trace(nn.Sequential(nn.Linear(8, 4)), (x, x))
    with pytest.raises(library.ConfigError, match="^a list of stages takes one input and the example has 2"):
        trace([nn.Linear(8, 4)], (x, x))


def test_a_type_or_a_device_is_read_where_it_is_needed() -> None:
    class Types(Three):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size, kind, place = x.size(), x.dtype, x.device
            x = self.b(self.a(x))
            return self.c(x.view(size).to(kind) + torch.ones(size[1], dtype=kind, device=place))

    model, x = Types(), samples()
    traced = looked_at(model, (x,))
    pieces = each_alone(traced)
    assert torch.equal(pieces(x), model(x))
    sent = {value for values in pieces.routes.values() for value in values}
    assert "x" in sent and not any("getattr" in value for value in sent), sent


# ---- what cannot be cut is said in one line


class KeepsMore(Three):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise RuntimeError("no way\nback")


class OneWay(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NoWayBack.apply(x)  # type: ignore[no-any-return]


def test_a_model_with_more_state_than_tensors_is_refused() -> None:
    with pytest.raises(library.ConfigError, match=r"^KeepsMore has get_extra_state\(\), which its stages cannot keep"):
        looked_at(KeepsMore(), (samples(),))
    assert looked_at(nn.Sequential(KeepsMore(), nn.Linear(4, 4)), (samples(),)).checked


def test_a_layer_whose_backward_fails_is_named() -> None:
    x = samples()
    for model, why in (
        (nn.Sequential(OneWay(), nn.Linear(8, 4)), "layer 0 cannot run backward: RuntimeError: no way"),
        (
            nn.Sequential(nn.Linear(8, 4), OneWay()),
            "Sequential cannot run forward and backward on the example: RuntimeError: no way",
        ),
    ):
        with pytest.raises(library.ConfigError) as error:
            profile(trace(model, (x,)), (x,), times=1)
        assert str(error.value) == why


# ---- what crosses from stage to stage


def test_a_dictionary_of_another_class_keeps_it_or_is_refused() -> None:
    tree = OrderedDict(b=torch.ones(2), a=(defaultdict(list, {"c": torch.ones(1)}), None))
    changed = with_tensors(tree, lambda tensor: tensor + 1)
    assert type(changed) is OrderedDict and list(changed) == ["b", "a"] and type(changed["a"][0]) is defaultdict
    assert torch.equal(changed["b"], torch.full((2,), 2.0)) and torch.equal(tree["b"], torch.ones(2))
    calls = StageCalls("stage 0 (A)", SimpleNamespace(call=lambda inputs: [({"x": tree["b"]}, tree)]), torch.device("cpu"), "fp32", Activations(nn.Linear(1, 1), False), hidden_weights([nn.Linear(1, 1)], 0))  # fmt: skip
    with pytest.raises(library.ConfigError) as error:
        calls.forward([])
    assert str(error.value) == "stage 0 (A) returned a OrderedDict for the next stage; expected a plain dict"
    calls.is_last = True
    assert calls.forward([])[0][1] is tree
