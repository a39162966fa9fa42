"""P1, P2: any model is cut into stages; the stages one after the other compute what the model does."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, ddip

pytest.importorskip("torch")

import torch  # noqa: E402
from ddip._engine import PartitionPlan, check_partition_world  # noqa: E402
from ddip.pipeline.cutting import made_plan  # noqa: E402
from ddip.pipeline.partition import plan_for, read_plan  # noqa: E402
from ddip.pipeline.profile import bytes_of, profile, shape_of  # noqa: E402
from ddip.pipeline.split import split  # noqa: E402
from ddip.pipeline.trace import Traced, trace  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import ddip as library  # noqa: E402
from ddip.pipeline import partition_command  # noqa: E402

UNET = ROOT / "examples" / "unet_pipeline.py"


class Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(size, size, 3, padding=1)
        self.norm = nn.BatchNorm2d(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(x))) + x


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(Residual(4), Residual(4))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(self.stem(x)).mean((2, 3))))


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Embedding and head are tied; the mask, an input, is needed in every block."""

    def __init__(self, words: int = 11, size: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.place = nn.Parameter(torch.randn(6, size))
        self.norms = nn.ModuleList([nn.LayerNorm(size) for _ in range(blocks)])
        self.blocks = nn.ModuleList([Attention(size, 2) for _ in range(blocks)])
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(words) + self.place
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x), mask)
        return self.head(x)


class AllToTheLast(nn.Module):
    """Every layer is connected to the last one, the input too."""

    def __init__(self, size: int = 4, layers: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(layers)])
        self.last = nn.Linear(size * (layers + 1), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for layer in self.layers:
            values.append(torch.tanh(layer(values[-1])))
        return self.last(torch.cat(values, -1))


class Looks(nn.Module):
    """Looks at its values: torch.fx cannot follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[-1] == 4, "torch.fx never throws this operation away")
        return self.inner(x) if x.sum() > 0 else -self.inner(x)


class SeveralOutputs(nn.Module):
    """Two results, one of them from the middle; one value twice; a module used twice; one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.unused = nn.Linear(2, 2)
        self.looks = Looks()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        early = self.first(x)
        late = self.again(torch.relu(self.again(early))) * self.scale
        return {"late": self.looks(late), "early": (early, x)}


def u_net() -> nn.Module:
    namespace: dict[str, Any] = {"__name__": "unet_pipeline"}
    exec(compile(UNET.read_text(encoding="utf-8"), str(UNET), "exec"), namespace)
    model = namespace["UNet"](width=2, depth=3)
    assert isinstance(model, nn.Module)
    return model


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2))


Make = Callable[[], nn.Module]
MODELS: dict[str, tuple[Make, Callable[[], tuple[Any, ...]]]] = {
    "mlp": (mlp, lambda: (torch.randn(3, 6),)),
    "convnet": (ConvNet, lambda: (torch.randn(2, 3, 6, 6),)),
    "transformer": (Transformer, lambda: (torch.randint(11, (2, 6)), torch.randn(6, 6))),
    "unet": (u_net, lambda: (torch.randn(2, 1, 16, 16),)),
    "all to the last": (AllToTheLast, lambda: (torch.randn(3, 4),)),
    "several outputs": (SeveralOutputs, lambda: (torch.randn(3, 4),)),
}
EXPORTED = [name for name in MODELS if name != "several outputs"]  # torch.export cannot follow Looks either
DOORS = [(name, "auto") for name in MODELS] + [(name, "export") for name in EXPORTED]


def made(name: str, how: str = "auto") -> tuple[nn.Module, tuple[Any, ...], Traced]:
    torch.manual_seed(3)
    make, inputs = MODELS[name]
    model, example = make(), inputs()
    return model, example, trace(model, example, how=how)


def some_cut(traced: Traced, stages: int, seed: int) -> list[list[str]]:
    """A legal cut that no cost function had a hand in: pieces of the order, by seed."""
    random = torch.Generator().manual_seed(seed)
    names = [layer.name for layer in traced.layers]
    ends = sorted((torch.randperm(len(names) - 1, generator=random)[: stages - 1] + 1).tolist())
    return [names[a:b] for a, b in zip([0, *ends], [*ends, len(names)], strict=True)]


def leaves(value: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)  # type: ignore[no-any-return]


def gradients(model: nn.Module, result: Any) -> dict[str, torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    sum((leaf * (1 + torch.arange(leaf.numel()).view(leaf.shape) / 7)).sum() for leaf in leaves(result)).backward()  # type: ignore[union-attr]
    return {name: None if value.grad is None else value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize(("name", "how"), DOORS)
def test_stages_compose_to_the_model(name: str, how: str) -> None:
    model, inputs, traced = made(name, how)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = model(*inputs)
    after = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = gradients(model, expected)
    count = len(traced.layers)
    assert count >= 3
    for stages in sorted({1, 2, 3, count // 2, count}):
        for seed in range(3):
            model.load_state_dict(start)
            pieces = split(traced, some_cut(traced, stages, seed))
            torch.manual_seed(5)
            result = pieces(*inputs)
            assert torch.utils._pytree.tree_structure(result) == torch.utils._pytree.tree_structure(expected)
            for ours, theirs in zip(leaves(result), leaves(expected), strict=True):
                assert torch.equal(ours, theirs)
            for key, value in model.state_dict().items():  # running statistics moved as they should, once
                assert torch.equal(value, after[key]), key
            found = gradients(model, result)
            for key, gradient in wanted.items():
                assert (gradient is None) == (found[key] is None), key
                assert gradient is None or torch.allclose(gradient, found[key], rtol=1e-5, atol=1e-6), key  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "how"), DOORS)
def test_every_layer_and_every_operation_is_in_exactly_one_stage(name: str, how: str) -> None:
    _, _, traced = made(name, how)
    operations = [node for node in traced.graph.nodes if node.op.startswith("call_")]
    inside = [node for layer in traced.layers for node in layer.nodes]
    assert inside == operations  # each once, in the order of the model
    assert len({layer.name for layer in traced.layers}) == len(traced.layers)
    pieces = split(traced, some_cut(traced, 3, 0))
    assert sum(node.op.startswith("call_") for module in pieces.modules for node in module.graph.nodes) == len(
        operations
    )


@pytest.mark.parametrize(("name", "how"), DOORS)
def test_parameters_keep_their_names_and_are_the_models_own(name: str, how: str) -> None:
    model, _, traced = made(name, how)
    pieces = split(traced, some_cut(traced, 3, 1))
    whole, union = model.state_dict(), pieces.state_dict()
    assert set(union) == set(whole)
    for key in whole:
        assert union[key].data_ptr() == whole[key].data_ptr(), key
    ours = {id(value) for module in pieces.modules for value in module.parameters()}
    assert ours == {id(value) for value in model.parameters()}


def test_tied_weights_of_two_stages_are_named() -> None:
    _, _, traced = made("transformer")
    names = [layer.name for layer in traced.layers]
    assert split(traced, [names[:5], names[5:]]).tied == [[(0, "embed.weight"), (1, "head.weight")]]
    assert split(traced, [names]).tied == []


def test_values_go_straight_from_where_they_are_made_to_where_they_are_needed() -> None:
    _, _, traced = made("all to the last")
    names = [layer.name for layer in traced.layers]
    assert names == ["layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "cat", "last"]
    pieces = split(traced, [names[:2], names[2:4], names[4:]])
    assert pieces.routes == {(0, 1): ["tanh_1"], (0, 2): ["x", "tanh", "tanh_1"], (1, 2): ["tanh_2", "tanh_3"]}
    assert [stage.takes for stage in pieces.stages] == [["x"], ["tanh_1"], ["x", "tanh", "tanh_1", "tanh_2", "tanh_3"]]
    assert [stage.gives for stage in pieces.stages] == [["x", "tanh", "tanh_1"], ["tanh_2", "tanh_3"], ["output"]]
    x = torch.randn(2, 4)
    first = pieces.modules[0](x)
    assert list(first) == ["x", "tanh", "tanh_1"]
    second = pieces.modules[1](tanh_1=first["tanh_1"])  # by name
    assert torch.equal(pieces.modules[2](**first, **second), traced.model(x))


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ([["0", "1"], ["2.0", "2.1", "4"]], "stage 1: there is no layer 4"),
        ([["0", "1"], ["1", "2.0", "2.1", "3"]], "layer 1 is in stage 0 and in stage 1"),
        ([["0", "1"], ["2.0", "3"]], "layer 2.1 is in no stage"),
        ([["0", "1"], [], ["2.0", "2.1", "3"]], "stage 1 is empty; expected at least one layer"),
        (
            [["0", "2.0"], ["1", "2.1", "3"]],
            "layer 2.0 of stage 0 needs 1 of stage 1; expected an earlier or the same stage",
        ),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages: list[list[str]], why: str) -> None:
    _, _, traced = made("mlp")
    with pytest.raises(library.ConfigError) as error:
        split(traced, stages)
    assert str(error.value) == why


def test_a_chain_is_one_value_in_and_one_out() -> None:
    model, inputs, traced = made("mlp")
    assert [layer.name for layer in traced.layers] == ["0", "1", "2.0", "2.1", "3"]
    pieces = split(traced, [["0", "1"], ["2.0", "2.1", "3"]])
    assert torch.equal(pieces.modules[1](pieces.modules[0](*inputs)), model(*inputs))
    assert profile(traced, inputs, times=0).is_chain


def test_a_list_of_stages_is_taken_as_it_is() -> None:
    stages = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Looks(), nn.Linear(4, 2)]
    traced = trace(stages)
    assert traced.how == "stages" and [layer.name for layer in traced.layers] == ["0", "1", "2"]
    x = torch.randn(3, 4)
    assert torch.equal(split(traced, [["0"], ["1"], ["2"]])(x), stages[2](stages[1](stages[0](x))))


def test_a_module_that_looks_at_its_values_is_one_layer_and_leaves_nothing_behind() -> None:
    _, _, traced = made("several outputs")
    assert [layer.name for layer in traced.layers] == ["first", "again", "again#2", "mul", "looks"]


def test_a_model_that_only_export_can_follow() -> None:
    class Shapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x) if x.shape[0] > 1 else x)

    model, x = Shapes(), torch.randn(3, 4)
    traced = trace(model, (x,))
    assert traced.how == "export" and [layer.name for layer in traced.layers] == ["a", "b"]
    assert torch.equal(split(traced, [["a"], ["b"]])(x), model(x))
    with pytest.raises(library.ConfigError, match="^torch.fx cannot trace Shapes: TraceError: "):
        trace(model)
    with pytest.raises(
        library.ConfigError, match="^torch.fx cannot trace Looks: .*; nor torch.export cannot follow Looks: "
    ):
        trace(Looks(), (x,))


def test_classes_that_shall_stay_whole_are_one_layer() -> None:
    model, x = ConvNet(), torch.randn(2, 3, 6, 6)
    traced = trace(model, (x,), leaves=[Residual])
    assert [layer.name for layer in traced.layers] == ["stem", "body.0", "body.1", "drop", "head"]


# ---- costs


def test_a_profile_has_the_models_bytes_and_leaves_no_trace() -> None:
    model, inputs, traced = made("convnet")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    numbers = torch.get_rng_state()
    graph = profile(traced, inputs, times=1)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    layers = {layer.name: layer for layer in graph.layers}
    assert sum(layer.parameter_bytes for layer in graph.layers) == 4 * sum(p.numel() for p in model.parameters())
    assert all(layer.forward_ms > 0 for layer in graph.layers)
    assert layers["stem"].backward_ms > 0 and layers["head"].backward_ms > 0
    # A convolution keeps its input: 2 × 3 × 6 × 6 floats; weights are not counted again.
    assert layers["stem"].activation_bytes == 4 * 2 * 3 * 6 * 6
    shapes = {(graph.layers[edge.source].name, graph.layers[edge.target].name): edge for edge in graph.edges}
    assert shapes["stem", "body.0.conv"].shape == "float32[2, 4, 6, 6]"
    assert shapes["stem", "body.0.conv"].bytes == 4 * 2 * 4 * 6 * 6
    assert ("stem", "body.0.add") in shapes  # the residual is an edge too


def test_shapes_of_anything() -> None:
    value = {"a": (torch.zeros(2, 3, dtype=torch.int64), None), "b": 3}
    assert shape_of(value) == "{a: (int64[2, 3], NoneType), b: int}" and bytes_of(value) == 48


def test_two_layers_that_do_not_fit_are_both_named() -> None:
    traced = trace([nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 2)])
    with pytest.raises(library.ConfigError) as error:
        profile(traced, (torch.randn(2, 4),), times=0)
    assert re.match(r"layer 2 cannot run: 1 gives float32\[2, 8\]; RuntimeError: mat1 and mat2 ", str(error.value))


class Destroys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.first(x)
        return self.last(self.relu(kept)) + kept  # which is not what it was


def test_a_layer_that_changes_in_place_what_another_needs_is_refused_before_it_is_cut() -> None:
    inputs = (torch.randn(8, 4),)
    with pytest.raises(
        library.ConfigError, match="^the layers of Destroys one by one do not give what the model gives"
    ):
        profile(trace(Destroys(), inputs), inputs, times=0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 4))
    profile(trace(model, inputs), inputs, times=1)  # harmless: nobody else needs it


def test_links_are_measured_between_ranks(tmp_path: Path) -> None:
    script = tmp_path / "links.py"
    script.write_text("from ddip.pipeline.profile import link_bytes_per_ms\nprint(link_bytes_per_ms(2) > 1000)\n")
    done = ddip("run", "-n", "3", "--no-prefix", "--", "python", str(script), PATH=f"{ROOT}/.venv/bin:/usr/bin:/bin")
    assert done.stdout.split() == ["True"] * 3
    from ddip.pipeline.profile import link_bytes_per_ms

    assert link_bytes_per_ms() == 0


# ---- plans


def mirrored_plan(devices: int = 2) -> tuple[Traced, tuple[Any, ...], PartitionPlan]:
    torch.manual_seed(0)
    model, inputs = u_net(), (torch.randn(2, 1, 16, 16),)
    traced = trace(model, inputs, leaves=[type(model.encoder[0]), type(model.decoder[0])])  # type: ignore[index]
    return traced, inputs, plan_for(traced, inputs, devices, placement="mirrored", times=1)


def test_a_u_nets_encoder_blocks_lie_beside_their_mirrors_and_no_skip_crosses_a_link() -> None:
    for devices in (2, 3, 4):
        traced, inputs, plan = mirrored_plan(devices)
        device = {name: plan.device_of[stage] for stage, names in enumerate(plan.stages) for name in names}
        assert plan.devices == devices and sorted(set(device.values())) == list(range(devices))
        for level in range(3):
            assert device[f"encoder.{level}"] == device[f"decoder.{level}"]
        pieces = split(traced, plan.stages)
        for (source, target), values in pieces.routes.items():
            if plan.device_of[source] != plan.device_of[target]:
                assert target == source + 1 and len(values) == 1
        torch.manual_seed(1)
        assert torch.equal(pieces(*inputs), traced.model(*inputs))


def test_the_memory_cap_is_respected_or_refused() -> None:
    _, inputs, traced = made("convnet")
    free = plan_for(traced, inputs, 2, times=1)
    most = max(device["memory_bytes"] for device in free.predict()["devices"])
    for cap in (most, most - 1, most * 9 // 10):
        try:
            plan = plan_for(traced, inputs, 2, memory_cap=cap, times=1)
        except library.ConfigError as error:
            assert re.fullmatch(r"no cut into 2 stages was found that fits in .* per device", str(error))
        else:
            assert max(device["memory_bytes"] for device in plan.predict()["devices"]) <= cap
    with pytest.raises(library.ConfigError, match="fits in 100 bytes per device"):
        plan_for(traced, inputs, 2, memory_cap=100, times=0)


def test_a_plan_for_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    _, inputs, traced = made("mlp")
    path = tmp_path / "plan.json"
    path.write_text(str(plan_for(traced, inputs, 2, times=0)), encoding="utf-8")
    assert read_plan(path, traced, inputs).stages == plan_for(traced, inputs, 2, times=0).stages
    other = trace(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Sequential(nn.Linear(9, 8), nn.Tanh()), nn.Linear(8, 2)))
    with pytest.raises(library.ConfigError) as error:
        read_plan(path, other, inputs)
    assert str(error.value) == f"{path}: between 0 and 1 the plan has float32[3, 8] and the model float32[3, 9]"
    with pytest.raises(library.ConfigError, match="No such file"):
        read_plan(tmp_path / "none.json")


def test_world_and_placement_are_checked() -> None:
    check_partition_world(4, 2, 2)
    with pytest.raises(library.ConfigError, match="^world size 6 ≠ 2 replicas × 4 devices = 8$"):
        check_partition_world(6, 2, 4)
    _, inputs, traced = made("mlp")
    with pytest.raises(library.ConfigError, match="one of single, mixed, mirrored was expected"):
        plan_for(traced, inputs, 2, placement="spread")
    with pytest.raises(library.ConfigError, match="^6 stages for 5 layers; expected no more stages than layers$"):
        plan_for(traced, inputs, 6, times=0)
    with pytest.raises(library.ConfigError, match="no mirrored cut"):
        plan_for(traced, inputs, 2, placement="mirrored", times=0)


# ---- the command


def partition(*arguments: str, code: int = 0) -> str:
    done = ddip("partition", *arguments, code=code)
    if code:
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.rstrip("\n") if code else done.stdout


def test_the_command_writes_plan_table_and_picture(tmp_path: Path) -> None:
    out, svg = tmp_path / "plan.json", tmp_path / "cut.svg"
    text = partition(
        f"{UNET}:make", "--stages", "2", "--mirrored", "--whole", "Block", "--whole", "Up",
        "--link", "1000", "--out", str(out), "--svg", str(svg),
    )  # fmt: skip
    assert re.search(r"^stage +device +layers +forward +backward +parameters$", text, re.MULTILINE)
    assert re.search(r"^predicted speed-up \d\.\d\d of 2$", text, re.MULTILINE)
    assert re.search(
        r"^predicted bubble .*% without flush, .*% with a flush every 8 micro-batches$", text, re.MULTILINE
    )
    plan = read_plan(out)
    assert plan.device_of == [0, 1, 0] and plan.costs.link_bytes_per_ms == 1_000_000
    picture = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    shown = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {name for names in plan.stages for name in names} <= shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.svg", "plan.json"]


NET = """
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
def pair():
    return make(), torch.zeros(2, 4)
def broken():
    raise ValueError("no such\\nthing")
def number():
    return 3
def leaves():
    raise SystemExit(0)
def two_inputs():
    return make(), (torch.zeros(2, 4), torch.zeros(2))
def no_module():
    return [nn.Linear(4, 4), torch.relu], torch.zeros(2, 4)
class Odd(nn.Linear):
    def state_dict(self, *given, **named):
        raise RuntimeError("never")
def odd():
    return nn.Sequential(nn.Linear(4, 4), Odd(4, 4)), torch.zeros(2, 4)
"""


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    net, out = tmp_path / "net.py", str(tmp_path / "plan.json")
    net.write_text(NET, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "net", None)  # taken away again

    def refused(factory: str, *flags: str, code: int = 2, stages: int = 2) -> str:
        """As `ddip` calls it, in this process: torch takes long to import."""
        said = partition_command.main([f"{net}:{factory}", f"--stages={stages}", f"--out={out}", *flags])
        shown = capsys.readouterr()
        assert said == code and shown.out == "" and not Path(out).exists(), shown
        (line,) = shown.err.splitlines()
        return str(line)

    assert refused("mke") == f"ddip partition {net}:mke: {net} has no mke; did you mean make?"
    assert refused("number") == f"ddip partition {net}:number: it returned a int; expected a torch module"
    assert refused("make").endswith("expected --input SHAPE, or a factory that returns (model, micro-batch)")
    assert refused("pair", "--input=2xx4") == (
        "ddip partition --input 2xx4: expected a shape, as 8x3x32x32 or 8x128:int64"
    )
    assert refused("make", "--input=2x5").startswith(
        "ddip partition: layer 0 cannot run: the input x is float32[2, 5]; RuntimeError: mat1 and mat2 "
    )
    assert refused("pair", "--memory=8PB").endswith("expected bytes of one device, as 512MiB or 8GiB")
    assert refused("pair", "--memory=10") == "ddip partition: no cut into 2 stages fits in 10 bytes per device"
    assert refused("pair", "--link=fast").endswith("expected megabytes per second, as 1000")
    assert refused("pair", "--whole=Linea") == "ddip partition --whole Linea: no such module; did you mean Linear?"
    assert refused("broken", code=1) == f"ddip partition {net}:broken: ValueError: no such thing (net.py:9)"
    assert refused("no_module") == ("ddip partition: stage 1 is a builtin_function_or_method; expected a torch module")
    assert refused("odd", code=1) == f"ddip partition {net}:odd: RuntimeError: never (net.py:20)"
    assert refused("pair", stages=4) == "ddip partition: 4 stages for 3 layers; expected no more stages than layers"
    assert refused("pair", f"--svg={tmp_path}/none/cut.svg").endswith("there is no such folder")
    for shape in ("4x4:qint8", "4x4:strided", "4x"):
        assert refused("pair", f"--input={shape}").endswith("expected a shape, as 8x3x32x32 or 8x128:int64")
    assert refused("pair", "--input=0x4").endswith("it has no element; expected sizes from 1 on")
    assert refused("pair", "--input=99999999999x99999999999").startswith("ddip partition --input 99999999999x")
    for memory in ("20000000TiB", "2000TiB", "9" * 400):
        assert refused("pair", f"--memory={memory}").endswith("expected bytes of one device, as 512MiB or 8GiB")
    for link in ("9" * 400, f"0.{'0' * 320}1"):
        assert refused("pair", f"--link={link}").endswith("expected megabytes per second, as 1000")
    assert refused("leaves", code=1) == f"ddip partition {net}:leaves: SystemExit: 0 (net.py:13)"
    assert refused("two_inputs").endswith("cannot be called with 2 inputs: too many positional arguments")
    assert refused("pair", f"--svg={out}").endswith("plan.json would be written twice; expected two names")
    assert refused("pair", "--svg=/proc/cut.svg").startswith(
        "ddip partition: /proc/cut.svg: nothing can be written there"
    )
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, "/dev/null"):
        assert refused("pair", f"--svg={place}") == (
            f"ddip partition: {place}: it is there and is no file; expected a file's name"
        )


def test_a_plan_is_read_from_a_file_or_a_save(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(library.ConfigError, match=f"^{place}: it is no file$"):
            read_plan(place)
    with pytest.raises(
        library.ConfigError, match=f"^{tmp_path}: no pipeline with a plan is saved there; expected one that was"
    ):
        read_plan(tmp_path)
    _, inputs, traced = made("mlp")
    for other in (0, True, 2.5, b"plan", ["single"]):
        with pytest.raises(library.ConfigError, match="is no plan; expected the name of its file$"):
            read_plan(other)  # type: ignore[arg-type]
        with pytest.raises(library.ConfigError, match="expected single, mixed, mirrored, a plan or the file of one$"):
            made_plan(traced, inputs, 2, other, False, 0.0)


def test_the_commands_exit_codes_and_json(tmp_path: Path) -> None:
    net, out = tmp_path / "net.py", str(tmp_path / "plan.json")
    net.write_text(NET, encoding="utf-8")
    assert partition("gone.py:f", "--stages", "2", "--out", out, code=2).endswith("there is no file gone.py")
    assert partition(f"{net}:broken", "--stages", "2", "--out", out, code=1).startswith("ddip partition ")
    assert json.loads(partition(f"{net}:pair", "--stages", "2", "--out", out, "--json"))["device_of"] == [0, 1]
