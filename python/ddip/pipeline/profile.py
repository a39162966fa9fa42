"""What each layer costs on this machine: times, parameters, what its backward keeps; and how fast links are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ddip._engine import PartitionEdge, PartitionGraph, PartitionLayer
from ddip.errors import ConfigError
from ddip.pipeline.split import OUTPUT, Stage, split
from ddip.pipeline.traced import Traced

# Longer than a message's latency, short enough to be sent a few times.
LINK_BYTES = 4 << 20


def profile(traced: Traced, inputs: tuple[Any, ...], *, times: int = 3) -> PartitionGraph:
    """The graph that a cut is made of. Each layer runs `times` times forward and backward on the device where the model
    and `inputs` are, and the fastest counts; with times=0 only shapes and parameters are looked at. Afterwards buffers
    and random numbers are as they were."""
    alone = split(traced, [[layer.name] for layer in traced.layers])
    values: dict[str, Any] = dict(zip(alone.stages[0].takes, inputs, strict=False))
    costs = []
    with _untouched(traced.model, values):
        for layer, stage in zip(traced.layers, alone.stages, strict=True):
            arguments = [values[name] for name in stage.takes if name in values]
            result = _forward(traced, stage, layer.name, arguments)
            values.update({stage.gives[0]: result} if len(stage.gives) == 1 else result)
            costs.append(_Cost(stage.module, arguments))
        # Round by round: what disturbs the machine for a moment disturbs no layer each time.
        for turn in range(times + 1 if times else 0):
            for cost in costs:
                cost.measure(counting=turn == 0)
    layers = [
        PartitionLayer(layer.name, *cost.milliseconds(), _parameter_bytes(cost.module), sum(cost.kept.values()))
        for layer, cost in zip(traced.layers, costs, strict=True)
    ]
    _compare(traced, inputs, values[OUTPUT])
    edges = []
    for flow in traced.flows():
        value = values[flow.node.name]
        edges.append(PartitionEdge(flow.source, flow.target, flow.node.name, shape_of(value), bytes_of(value)))
    return PartitionGraph(layers, edges)


def _compare(traced: Traced, inputs: tuple[Any, ...], composed: Any) -> None:
    """Layers that were run one by one, each on copies, give what the model does; else a cut would change the result."""
    model = traced.module if isinstance(traced.model, nn.ModuleList) else traced.model
    with _untouched(traced.model, {"inputs": inputs}), torch.no_grad():
        expected = model(*[_fresh(value, False) for value in inputs])
    for ours, theirs in zip(_tensors(composed), _tensors(expected), strict=True):
        near = 1e-3 * float(theirs.abs().nan_to_num().max()) if theirs.numel() else 0.0
        if not torch.allclose(ours.double(), theirs.double(), rtol=1e-3, atol=near, equal_nan=True):
            raise ConfigError(
                f"the layers of {type(traced.model).__name__} one by one do not give what the model gives: does one of "
                "them change in place what another one needs?"
            )


def shape_of(value: Any) -> str:
    """For people: float32[8, 64], or (float32[8, 64], int)."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(shape_of(item) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shape_of(item)}' for key, item in value.items())}}}"
    return type(value).__name__


def bytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in _tensors(value))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _fresh(value: Any, gradient: bool) -> Any:
    """A copy that the layer may change in place, and that asks for a gradient as a value from another layer does."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        wanted = gradient and (leaf.is_floating_point() or leaf.is_complex())
        return leaf.detach().clone().requires_grad_(wanted).clone() if wanted else leaf.detach().clone()

    return pytree.tree_map(copy, value)


def _forward(traced: Traced, stage: Stage, name: str, arguments: list[Any]) -> Any:
    try:
        with torch.no_grad():
            return stage.module(*[_fresh(value, False) for value in arguments])
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        makers = {node.name: layer.name for layer in traced.layers for node in layer.nodes}
        given = ", ".join(
            (f"{makers[value]} gives" if value in makers else f"the input {value} is") + f" {shape_of(argument)}"
            for value, argument in zip(stage.takes, arguments, strict=False)
        )
        raise ConfigError(f"layer {name} cannot run: {given}; {type(error).__name__}: {lines[0][:200]}") from error


class _Cost:
    """One layer, measured as often as asked."""

    def __init__(self, module: nn.Module, arguments: list[Any]) -> None:
        self.module = module
        self.arguments = arguments
        self.kept: dict[int, int] = {}  # storage → bytes, between forward and backward
        self.forward: list[float] = []
        self.backward: list[float] = []

    def milliseconds(self) -> tuple[float, float]:
        """To the tenth of a microsecond: a person reads them in the plan."""
        return round(1000 * min(self.forward, default=0.0), 4), round(1000 * min(self.backward, default=0.0), 4)

    def measure(self, counting: bool) -> None:
        """Counting what is kept takes time of its own: such a turn warms up and is not timed."""
        fresh = [_fresh(value, True) for value in self.arguments]
        wanted = [leaf for leaf in _tensors(fresh) if leaf.requires_grad]
        wanted += [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        with torch.enable_grad(), self._counted() if counting else contextlib.nullcontext():
            begin = _now()
            result = self.module(*fresh)
            forward = _now() - begin
        backward = 0.0
        made = [leaf for leaf in _tensors(result) if leaf.requires_grad]
        if made and wanted:
            ones = [torch.ones_like(leaf) for leaf in made]
            begin = _now()
            torch.autograd.grad(made, wanted, ones, allow_unused=True)
            backward = _now() - begin
        if not counting:
            self.forward.append(forward)
            self.backward.append(backward)

    def _counted(self) -> Any:
        own = {parameter.untyped_storage().data_ptr() for parameter in self.module.parameters()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                self.kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


def _now() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@contextlib.contextmanager
def _untouched(model: nn.Module, values: dict[str, Any]) -> Iterator[None]:
    """A batch norm counts what it sees and a dropout draws numbers: neither is noticed afterwards."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    devices = {leaf.device.index for leaf in _tensors(values) if leaf.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(index for index in devices if index is not None)):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def link_bytes_per_ms(times: int = 5, ranks: Any = None) -> float:
    """How fast a value gets from a rank to the next one over `ranks` (ddip.comm()), on all ranks at once; the slowest link counts.
    All ranks call it. 0 where there is one rank only: it has no link."""
    import ddip

    comm = ddip.comm() if ranks is None else ranks
    if comm.world_size < 2:
        return 0.0
    size, rank = comm.world_size, comm.rank
    sent = torch.zeros(LINK_BYTES, dtype=torch.uint8, device=ddip.device())
    received = torch.empty_like(sent)
    best = float("inf")
    for _ in range(times + 1):
        comm.barrier()
        begin = _now()
        waits = [comm.start_receive(received, (rank - 1) % size, 0), comm.start_send(sent, (rank + 1) % size, 0)]
        for work in waits:
            work.wait()
        best = min(best, _now() - begin)
    slowest = torch.tensor([best], dtype=torch.float64)
    return LINK_BYTES / (1000 * float(comm.all_reduce(slowest, "max")[0]))
