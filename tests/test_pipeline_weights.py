"""Which weights does a stage's backward use? Measured against gradients written by hand; docs/pipeline_weights.md shows the result.

`python tests/test_pipeline_weights.py` prints the tables of that page."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from ddip.communicators import engine
from torch import Tensor, nn

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pipeline_weights.md"
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- three stages, and their gradients by hand: activations of one set of weights, products with another


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v))


def linear_by_hand(x: Tensor, dy: Tensor | None, act: Weights, mult: Weights) -> tuple[Tensor, Weights]:
    hidden = torch.tanh(x @ act["0.weight"].T + act["0.bias"])
    y = hidden @ act["2.weight"].T + act["2.bias"]
    dy = y if dy is None else dy
    dz = (dy @ mult["2.weight"]) * (1 - hidden**2)
    grads = {"2.weight": dy.T @ hidden, "2.bias": dy.sum(0), "0.weight": dz.T @ x, "0.bias": dz.sum(0)}
    return y, {**grads, "input": dz @ mult["0.weight"]}


def unfolded(x: Tensor) -> Tensor:
    return nn.functional.unfold(x, 3, padding=1)


def conv_by_hand(x: Tensor, dy: Tensor | None, act: Weights, mult: Weights) -> tuple[Tensor, Weights]:
    def conv(columns: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (weight.flatten(1) @ columns + bias[:, None]).unflatten(2, x.shape[2:])

    def per_channel(t: Tensor) -> Tensor:
        return t[None, :, None, None]

    columns = unfolded(x)
    z = conv(columns, act["0.weight"], act["0.bias"])
    mean, variance = z.mean((0, 2, 3)), z.var((0, 2, 3), unbiased=False)
    scale = per_channel((variance + 1e-5).rsqrt())
    normal = (z - per_channel(mean)) * scale
    hidden = torch.relu(normal * per_channel(act["1.weight"]) + per_channel(act["1.bias"]))
    columns2 = unfolded(hidden)
    y = conv(columns2, act["3.weight"], act["3.bias"])
    dy = y if dy is None else dy
    flat = dy.flatten(2)
    dh = nn.functional.fold(mult["3.weight"].flatten(1).T @ flat, tuple(x.shape[2:]), 3, padding=1) * (hidden > 0)
    dn = dh * per_channel(mult["1.weight"])
    centred = dn - per_channel(dn.mean((0, 2, 3))) - normal * per_channel((dn * normal).mean((0, 2, 3)))
    dz = (centred * scale).flatten(2)
    grads = {
        "3.weight": (flat @ columns2.transpose(1, 2)).sum(0).view_as(act["3.weight"]), "3.bias": dy.sum((0, 2, 3)),
        "1.weight": (dh * normal).sum((0, 2, 3)), "1.bias": dh.sum((0, 2, 3)),
        "0.weight": (dz @ columns.transpose(1, 2)).sum(0).view_as(act["0.weight"]),
    }  # fmt: skip  # conv1's bias gradient is 0 before a batch norm: rounding noise, not compared
    dx = nn.functional.fold(mult["0.weight"].flatten(1).T @ dz, tuple(x.shape[2:]), 3, padding=1)
    return y, {**grads, "input": dx}


def attention_by_hand(x: Tensor, dy: Tensor | None, act: Weights, mult: Weights) -> tuple[Tensor, Weights]:
    q, k, v = (x @ act["qkv.weight"].T + act["qkv.bias"]).chunk(3, dim=-1)
    root = q.shape[-1] ** 0.5
    share = torch.softmax(q @ k.transpose(1, 2) / root, dim=-1)
    mixed = share @ v
    y = mixed @ act["out.weight"].T + act["out.bias"]
    dy = y if dy is None else dy
    dm = dy @ mult["out.weight"]
    ds = dm @ v.transpose(1, 2)
    da = share * (ds - (ds * share).sum(-1, keepdim=True)) / root
    dqkv = torch.cat([da @ k, da.transpose(1, 2) @ q, share.transpose(1, 2) @ dm], dim=-1)

    def of_weight(d: Tensor, a: Tensor) -> Tensor:
        return d.flatten(0, 1).T @ a.flatten(0, 1)

    grads = {"out.weight": of_weight(dy, mixed), "out.bias": dy.sum((0, 1)), "qkv.weight": of_weight(dqkv, x)}
    return y, {**grads, "input": dqkv @ mult["qkv.weight"]}


@dataclass
class Model:
    make: Callable[[], nn.Module]
    x: tuple[int, ...]
    by_hand: Callable[[Tensor, Tensor | None, Weights, Weights], tuple[Tensor, Weights]]


MODELS = {
    "Linear": Model(lambda: nn.Sequential(nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 64)), (3, 64), linear_by_hand),
    "conv+BN": Model(
        lambda: nn.Sequential(nn.Conv2d(64, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 128, 3, padding=1)),
        (2, 64, 4, 4), conv_by_hand,
    ),
    "attention": Model(lambda: Attention(384), (1, 3, 384), attention_by_hand),
}  # fmt: skip


# ---- a stage as the executor holds it: other memory is put behind its parameters without autograd noticing


class Stage:
    def __init__(self, model: Model) -> None:
        torch.manual_seed(3)
        self.module = model.make()
        self.names = [name for name, _ in self.module.named_parameters()]
        self.shapes = [p.shape for p in self.module.parameters()]
        self.weights = engine().Weights(list(self.module.parameters()), self.names, apart=True)
        self.true = self.weights.truth

    def views(self, flat: Tensor) -> Weights:
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def show(self, flat: Tensor) -> None:
        self.weights.show(flat)

    def noise(self, seed: int) -> Tensor:
        """Far enough that no two versions can be confused, also in bfloat16."""
        generator = torch.Generator().manual_seed(seed)
        pieces = []
        for piece in self.views(self.true).values():
            size = 0.5 if piece.dim() == 1 else 0.7 * piece.std().item()
            pieces.append(size * torch.randn(piece.numel(), generator=generator))
        return torch.cat(pieces)

    def call(self, x: Tensor, cast: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return self.module(x)


class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def live_bytes() -> int:
    """All that malloc has given out: saved tensors of graphs too, which Python cannot see."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallInfo
    gc.collect()
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def error_of(found: Weights, expected: Weights) -> float:
    return max(((found[name].double() - value).norm() / value.norm()).item() for name, value in expected.items())


def the_one(found: Weights, candidates: dict[str, Weights], cast: bool) -> str:
    """The candidate that these gradients are. Exactly one may fit, the others must be far away."""
    errors = {name: error_of(found, expected) for name, expected in candidates.items()}
    best = min(errors, key=lambda name: errors[name])
    assert errors[best] < (0.06 if cast else 1e-4), errors
    assert all(error > 0.2 for name, error in errors.items() if name != best), errors
    return best


def doubled(views: Weights) -> Weights:
    return {name: view.double() for name, view in views.items()}


def gradients_of(stage: Stage, x: Tensor) -> Weights:
    assert x.grad is not None
    found = {name: p.grad for name, p in stage.module.named_parameters() if p.grad is not None}
    return {**found, "input": x.grad}


FORWARD, NEWEST = "forward's", "newest"
PARTLY = "newest only where no cast was saved (BN)"


def backward_candidates(model: Model, x: Tensor, dy: Tensor, old: Weights, new: Weights) -> dict[str, Weights]:
    x, dy, old, new = x.detach().double(), dy.detach().double(), doubled(old), doubled(new)
    candidates = {
        f"{FORWARD} × {FORWARD}": model.by_hand(x, dy, old, old)[1],
        f"{FORWARD} × {NEWEST}": model.by_hand(x, dy, old, new)[1],
        f"{NEWEST} × {NEWEST}": model.by_hand(x, dy, new, new)[1],
    }
    if "1.weight" in old and old["1.weight"].dim() == 1:
        mixed = {**old, "1.weight": new["1.weight"]}
        candidates[f"{FORWARD} × {PARTLY}"] = model.by_hand(x, dy, old, mixed)[1]
    return candidates


# ---- the policies


POLICIES = ("none", "stash", "msnag", "msnag+stash")
STEPS = 2  # of the stage between a forward and its backward: three micro-batches are in flight


@cache
def fly(name: str, policy: str, recompute: bool, cast: bool) -> tuple[str, str, float]:
    """(weights of the forward, activations × weights of the backward, copies of the weights alive) of a micro-batch
    that crosses two steps."""
    model = MODELS[name]
    stage = Stage(model)
    velocity, steps = stage.noise(5), [stage.noise(6), stage.noise(7)]
    xs = [
        torch.randn(model.x, generator=torch.Generator().manual_seed(20 + k)).requires_grad_() for k in range(STEPS + 1)
    ]
    stage.call(xs[0], cast).sum().backward()  # kernels make their caches
    stage.module.zero_grad()
    xs[0].grad = None
    size = stage.true.numel() * 4
    before = live_bytes() - size  # the true ones count
    kept: dict[int, Tensor] = {}
    flying = []
    for k in range(STEPS + 1):
        used = torch.add(stage.true, velocity, alpha=-0.9) if policy.startswith("msnag") else stage.true
        stage.show(used)
        if policy == "msnag+stash":
            kept[k] = used
        elif policy == "stash" and k < STEPS:
            kept[k] = used.clone()  # the newest needs no copy before the next step
        del used
        with torch.set_grad_enabled(not recompute):
            flying.append(stage.call(xs[k], cast))
        if k < STEPS:
            stage.true.add_(steps[k])
    copies = round(2 * (live_bytes() - before) / size) / 2

    first = Stage(model).true
    guesses = {"w": first, "ŵ": torch.add(first, velocity, alpha=-0.9)}
    outputs = {
        guess: {
            "y": model.by_hand(xs[0].detach().double(), None, doubled(stage.views(flat)), doubled(stage.views(flat)))[0]
        }
        for guess, flat in guesses.items()
    }
    forward = the_one({"y": flying[0]}, outputs, cast)

    stage.show(kept[0] if 0 in kept else stage.true)
    y = stage.call(xs[0], cast) if recompute else flying[0]
    dy = flying[0].detach()
    y.backward(dy)
    candidates = backward_candidates(model, xs[0], dy, stage.views(guesses[forward]), stage.views(stage.true))
    return forward, the_one(gradients_of(stage, xs[0]), candidates, cast), copies


# What the design counts on. Copies: the true weights are there always; a prediction is one that is shown.
def expected(name: str, policy: str, recompute: bool, cast: bool) -> tuple[str, str, float]:
    forward = "ŵ" if policy.startswith("msnag") else "w"
    copies = 1.0 + {"msnag": 1, "stash": STEPS, "msnag+stash": STEPS + 1}.get(policy, 0)
    if cast and not recompute:
        copies += 0.5 * (STEPS + 1)  # each graph saved its own bfloat16 weights
    if policy.endswith("stash"):
        return forward, f"{FORWARD} × {FORWARD}", copies
    if recompute:
        return forward, f"{NEWEST} × {NEWEST}", copies
    if cast:
        return forward, f"{FORWARD} × {PARTLY if name == 'conv+BN' else FORWARD}", copies
    return forward, f"{FORWARD} × {NEWEST}", copies


ROWS = [(policy, recompute, cast) for policy in POLICIES for recompute in (True, False) for cast in (False, True)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("policy", "recompute", "cast"), ROWS)
def test_forward_and_backward_see_the_weights_that_the_table_says(
    name: str, policy: str, recompute: bool, cast: bool
) -> None:
    assert fly(name, policy, recompute, cast) == expected(name, policy, recompute, cast)


# ---- torch alone: five ways to change weights between forward and backward


def in_place(stage: Stage, new: Tensor) -> None:
    with torch.no_grad():
        for parameter, view in zip(stage.module.parameters(), stage.views(new).values(), strict=True):
            parameter.copy_(view)


def through_data(stage: Stage, new: Tensor) -> None:
    for parameter, view in zip(stage.module.parameters(), stage.views(new).values(), strict=True):
        parameter.data.copy_(view)


def other_data(stage: Stage, new: Tensor) -> None:
    for parameter, view in zip(stage.module.parameters(), stage.views(new).values(), strict=True):
        parameter.data = view


def other_memory(stage: Stage, new: Tensor) -> None:
    stage.show(new)


WAYS = {
    "in-place step": in_place,
    "`.data` step": through_data,
    "`p.data = new`": other_data,
    "functional call": in_place,
    "other memory behind it (alias mode)": other_memory,
}
REFUSED = "RuntimeError"


@cache
def change_between(name: str, way: str, cast: bool) -> str:
    model, stage = MODELS[name], Stage(MODELS[name])
    old, new = stage.true, stage.true + stage.noise(6)
    stage.show(old.clone())  # some of the ways write into it
    x = torch.randn(model.x, generator=torch.Generator().manual_seed(20)).requires_grad_()
    leaves = {n: v.clone().requires_grad_() for n, v in stage.views(old).items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        y = torch.func.functional_call(stage.module, leaves, (x,)) if way == "functional call" else stage.module(x)
    WAYS[way](stage, new)
    try:
        y.backward(y.detach())
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return REFUSED
    if way == "functional call":
        found = {**{n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}, "input": x.grad}
    else:
        found = gradients_of(stage, x)
    return the_one(found, backward_candidates(model, x, y, stage.views(old), stage.views(new)), cast)


def expected_change(name: str, way: str, cast: bool) -> str:
    if way == "functional call" or (cast and name != "conv+BN"):
        return f"{FORWARD} × {FORWARD}"  # the graph holds what it needs: its own leaves, or its casts
    if way == "in-place step":
        return REFUSED  # under autocast by batch norm, which saves the leaf
    if way == "`p.data = new`" and name != "conv+BN":
        return f"{FORWARD} × {FORWARD}"  # Linear saves a view, which keeps the old memory; conv and BN save the leaf itself
    return f"{FORWARD} × {PARTLY if cast else NEWEST}"


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_torch_does_with_changed_weights_what_the_table_says(name: str, way: str, cast: bool) -> None:
    assert change_between(name, way, cast) == expected_change(name, way, cast)


# ---- the page


def tables() -> dict[str, str]:
    """As the page shows them, from what is measured now."""
    precision = {False: "fp32", True: "autocast bf16"}
    heads = " | ".join(MODELS)
    raw = [f"| between forward and backward | precision | {heads} |", "|---|---|" + "---|" * len(MODELS)]
    for way in WAYS:
        for cast in (False, True):
            cells = " | ".join(change_between(name, way, cast) for name in MODELS)
            raw.append(f"| {way} | {precision[cast]} | {cells} |")
    policies = [
        f"| policy | activations | precision | forward | backward: {' | '.join(MODELS)} | copies |",
        "|---|---|---|---|" + "---|" * (len(MODELS) + 1),
    ]
    for policy, recompute, cast in ROWS:
        found = [fly(name, policy, recompute, cast) for name in MODELS]
        assert len({(forward, copies) for forward, _, copies in found}) == 1
        cells = " | ".join(backward for _, backward, _ in found)
        kept = "recompute" if recompute else "keep graph"
        policies.append(f"| {policy} | {kept} | {precision[cast]} | {found[0][0]} | {cells} | {found[0][2]:g} |")
    return {"raw": "\n".join(raw), "policies": "\n".join(policies)}


def test_the_page_shows_what_is_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        shown = re.search(rf"<!-- measured: {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
        assert shown is not None and shown[1].strip() == table, name


if __name__ == "__main__":
    for title, text in tables().items():
        print(f"<!-- measured: {title} -->\n{text}\n<!-- end -->\n")
