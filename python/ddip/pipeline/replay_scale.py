"""By what losses in half precision were multiplied, computed again: from which steps had gradients that were finite."""

from __future__ import annotations

import math

from ddip.pipeline.ledger import Ledger, Record
from ddip.pipeline.replay_stage import Difference, Stage
from ddip.pipeline.schedules import SYNCHRONOUS

LEAST, MOST = 2.0**-24, 2.0**24


class Scales:
    """What a ledger says is believed while stages compute, and looked at when all of them have stepped: a synchronous step is left
    out because of any stage's gradients, and a scale depends on them all, some steps before."""

    def __init__(self, ledger: Ledger, stages: list[Stage]) -> None:
        self.rule = ledger.header.get("loss_scale")
        self.delay = ledger.header.get("norm_delay", 0)
        self.together = ledger.header["schedule"] in SYNCHRONOUS
        self.stages = len(stages)
        self.of: dict[int, float] = {}  # micro-batch → scale
        self.finite: dict[int, dict[int, bool]] = {}  # step → stage → whether its gradients were
        self.left_out: dict[tuple[int, int], str] = {}  # (step, stage) → the record that says so
        self.micro_batches: dict[int, set[int]] = {}  # step → those that it has

    def backward(self, micro_batch: int, scale: float) -> None:
        if self.rule and scale != (known := self.of.setdefault(micro_batch, scale)):
            raise Difference(f"loss scale {scale:g}, but the last stage's is {known:g}")

    def step(self, record: Record, stage: Stage, count: float) -> bool:
        """Whether it is left out. REQUIRES: its gradients are pending."""
        said = bool(record.values.get("left_out", False))
        if self.rule is None:
            if said:
                raise Difference("left out, which is of half precision only")
            return False
        number, micro_batches = record.values["step"], list(stage.pending)
        finite = count == 0 or math.isfinite(stage.norm(micro_batches, count * stage.loss_scale))
        self.finite.setdefault(number, {})[stage.index] = finite
        self.micro_batches.setdefault(number, set()).update(micro_batches)
        if said:
            self.left_out[number, stage.index] = record.name
        if said != (not finite) and not (self.together and said):
            raise Difference(f"left_out is {str(said).lower()}, but its gradients are {'' if finite else 'not '}finite")
        return said

    def check(self) -> None:
        """When all stages have stepped."""
        if self.rule is None:
            return
        if self.together:
            for (number, _), name in self.left_out.items():
                if all(self.finite[number].values()):
                    raise Difference(f"{name}: left out, but the gradients of all stages are finite")
                missing = [s for s in self.finite[number] if (number, s) not in self.left_out]
                if missing:
                    raise Difference(f"{name}: left out, but not on stage {missing[0]}")
        scale, in_a_row, used = float(self.rule["initial"]), 0, {}
        for number in sorted(self.finite):
            used[number] = scale
            for k in sorted(self.micro_batches[number]):
                if self.of[k] != scale:
                    raise Difference(
                        f"micro-batch {k}, of step {number}: loss scale is {scale:g}, the ledger says {self.of[k]:g}"
                    )
            seen = number - self.delay
            if seen not in used or not self.rule["interval"]:
                continue
            if not all(self.finite[seen].values()):
                if used[seen] <= scale:
                    scale, in_a_row = max(LEAST, used[seen] / 2), 0
            elif used[seen] == scale:
                in_a_row += 1
                if in_a_row == self.rule["interval"]:
                    scale, in_a_row = min(MOST, scale * 2), 0
