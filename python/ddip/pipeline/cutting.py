"""A whole model cut into stages by itself, with what its stages and links cost. One rank measures; all of them cut by its plan,
because two measurements are never alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ddip.errors import ConfigError
from ddip.pipeline.profile import link_bytes_per_ms, profile
from ddip.pipeline.split import Split, split
from ddip.pipeline.trace import classes_of, trace
from ddip.pipeline.traced import Traced, first_line, keep_together
from ddip.replicas import broadcast_object

Cost = tuple[float, float, float, float, float]  # ms: forward, backward, weight gradient, step, predict


@dataclass
class Cut:
    model: Split | list[nn.Module]
    placement: list[int] | None = None
    costs: list[Cost] = field(default_factory=list)  # by stage
    bytes_of: dict[tuple[int, int], int] = field(default_factory=dict)  # by edge: of a micro-batch
    link: float = 0.0  # bytes in a millisecond
    plan: Any = None  # a PartitionPlan; none of a list of stages

    def links(self, edges: list[tuple[int, int]]) -> list[float]:
        """Milliseconds of a message."""
        return [self.bytes_of.get(edge, 0) / self.link if self.link else 0.0 for edge in edges]


def cut(
    model: nn.Module | Sequence[nn.Module],
    example: Any,
    ranks: Any,
    width: int,
    stages: int | None = None,
    partition: Any = None,
    recompute: bool = False,
    leaves: Sequence[str | type[nn.Module]] = (),
) -> Cut:
    """All ranks; `width` of them are one pipeline. `example`: the inputs of one micro-batch. `stages`: one for each rank, or a multiple.
    `partition`: single, mixed or mirrored, as `ddip partition` knows them,
    or the plan that it made, or the name of its file. `leaves`: modules that no cut divides."""
    inputs = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    traced = trace(model, inputs, leaves=classes_of(model, leaves, "leaves="))
    link = link_bytes_per_ms(ranks=ranks)
    if not isinstance(model, nn.Module):
        if partition is not None:
            raise ConfigError("partition= is for a whole model; a list of stages is cut already")
        layers, edges = on_rank_0(ranks, lambda: measured_layers(traced, inputs))
        return Cut(list(model), None, layers, edges, link)
    count = width if stages is None else stages
    if count % width:
        raise ConfigError(f"stages={stages}: expected a multiple of the pipeline's {width} ranks")
    text, *looked = on_rank_0(
        ranks,
        lambda: (
            str(made_plan(traced, inputs, count, partition, recompute, link)),
            *(traced.written, traced.changes, traced.unsent),
        ),
    )
    written, traced.changes, traced.unsent = looked  # by rank 0
    keep_together(traced, written)
    return cut_by(traced, text, count, width, link)


def cut_by(traced: Traced, text: str, count: int, width: int, link: float) -> Cut:
    from ddip._engine import PartitionPlan

    plan = PartitionPlan.read(text, "the plan of rank 0")
    if plan.devices != count:
        raise ConfigError(f"partition=: it is a plan for {plan.devices} devices; this pipeline has {count}")
    stage_of = {layer: stage for stage, layers in enumerate(plan.stages) for layer in layers}
    forward, backward = [0.0] * len(plan.stages), [0.0] * len(plan.stages)
    for layer in plan.graph.layers:
        forward[stage_of[layer.name]] += layer.forward_ms
        backward[stage_of[layer.name]] += layer.backward_ms
    names = [layer.name for layer in plan.graph.layers]
    sent: dict[tuple[int, int], dict[str, int]] = {}  # a value that several layers of a stage take is sent once
    for edge in plan.graph.edges:
        ends = stage_of[names[edge.source]], stage_of[names[edge.target]]
        if ends[0] != ends[1]:
            sent.setdefault(ends, {})[edge.value] = edge.bytes
    return Cut(
        split(traced, plan.stages), [device % width for device in plan.device_of], [halves(*one) for one in zip(forward, backward, strict=True)],
        {ends: sum(values.values()) for ends, values in sent.items()}, link, plan,
    )  # fmt: skip


def halves(forward: float, backward: float) -> Cost:
    """A backward is measured whole; its two parts are about as long as each other."""
    return forward, backward / 2, backward / 2, 0.0, 0.0


def measured_layers(traced: Traced, inputs: tuple[Any, ...]) -> tuple[list[Cost], dict[tuple[int, int], int]]:
    graph = profile(traced, inputs)
    costs = [halves(layer.forward_ms, layer.backward_ms) for layer in graph.layers]
    return costs, {(edge.source, edge.target): edge.bytes for edge in graph.edges}


def made_plan(traced: Traced, inputs: tuple[Any, ...], width: int, partition: Any, recompute: bool, link: float) -> Any:
    from ddip._engine import PartitionPlan
    from ddip.pipeline.partition import PLACEMENTS, plan_for, read_plan, refuse_for

    if isinstance(partition, PartitionPlan):
        refuse_for(partition, traced, inputs)
        return partition
    if not isinstance(partition, (str, Path, type(None))):
        raise ConfigError(f"partition={partition!r}: expected {', '.join(PLACEMENTS)}, a plan or the file of one")
    if partition is None or partition in PLACEMENTS:
        return plan_for(
            traced, inputs, width, placement=partition or "single", recompute=recompute, link_bytes_per_ms=link
        )
    if isinstance(partition, str) and not Path(partition).exists():
        raise ConfigError(
            f"partition={partition!r}: expected {', '.join(PLACEMENTS)} or the file of a plan; there is no such file"
        )
    return read_plan(partition, traced, inputs)


def on_rank_0(ranks: Any, make: Any) -> Any:
    """What rank 0 makes, on every rank; what it could not do is said by all of them."""
    said: tuple[str, Any] = ("", None)
    cause: Exception | None = None
    if ranks.rank == 0:
        try:
            said = ("", make())
        except ConfigError as error:
            said = (str(error), None)
        except Exception as error:  # whatever it is: the others wait to be told
            said, cause = (f"rank 0 cannot cut the model: {first_line(error)}", None), error
    failure, made = broadcast_object(said, ranks=ranks)
    if failure:
        raise ConfigError(failure) from cause
    return made
