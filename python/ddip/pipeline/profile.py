"""What each layer costs on this machine: times, parameters, what its backward keeps; and how fast links are."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch import nn

from ddip._engine import PartitionEdge, PartitionGraph, PartitionLayer
from ddip.errors import ConfigError
from ddip.pipeline.faithful import called, check, composed
from ddip.pipeline.split import split
from ddip.pipeline.traced import Traced, first_line
from ddip.pipeline.untouched import untouched
from ddip.pipeline.values import bytes_of, fresh, shape_of, tensors_of

__all__ = ["bytes_of", "link_bytes_per_ms", "profile", "shape_of"]

# Longer than a message's latency, short enough to be sent a few times.
LINK_BYTES = 4 << 20


def profile(traced: Traced, inputs: tuple[Any, ...], *, times: int = 3) -> PartitionGraph:
    """The graph that a cut is made of. Each layer runs `times` times forward and backward on the device where the model
    and `inputs` are, and the fastest counts; with times=0 only shapes and parameters are looked at. Afterwards buffers
    and random numbers are as they were."""
    if not traced.checked:
        check(traced, inputs)
    alone = split(traced, [[layer.name] for layer in traced.layers])
    with untouched(traced.model):
        with torch.no_grad():
            values = composed(traced, alone, inputs)
        costs = [
            _Cost(stage.module, [values[name] for name in stage.takes if name in values]) for stage in alone.stages
        ]
        # Round by round: what disturbs the machine for a moment disturbs no layer each time.
        for turn in range(times + 1 if times else 0):
            for layer, cost in zip(traced.layers, costs, strict=True):
                try:
                    cost.measure(counting=turn == 0)
                except Exception as error:
                    raise ConfigError(f"layer {layer.name} cannot run backward: {first_line(error)}") from error
    layers = [
        PartitionLayer(layer.name, *cost.milliseconds(), _parameter_bytes(cost.module), sum(cost.kept.values()))
        for layer, cost in zip(traced.layers, costs, strict=True)
    ]
    edges = []
    for flow in traced.flows():
        value = values[flow.node.name]
        edges.append(PartitionEdge(flow.source, flow.target, flow.node.name, shape_of(value), bytes_of(value)))
    return PartitionGraph(layers, edges)


def _parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


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
        arguments = [fresh(value, True) for value in self.arguments]
        wanted = [leaf for leaf in tensors_of(arguments) if leaf.requires_grad]
        wanted += [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        with torch.enable_grad(), self._counted() if counting else contextlib.nullcontext():
            begin = _now()
            result = called(self.module, *arguments)
            forward = _now() - begin
        backward = 0.0
        made = [leaf for leaf in tensors_of(result) if leaf.requires_grad]
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
