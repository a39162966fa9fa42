"""Norms by which the steps of a replay are clipped: each stage's own, or that of all stages together."""

from __future__ import annotations

import math

from ddip.pipeline.ledger import Ledger, Record
from ddip.pipeline.replay_stage import Difference, Stage, hash_of


class Norms:
    def __init__(self, ledger: Ledger, stages: list[Stage]) -> None:
        self.ledger, self.stages = ledger, stages
        self.clipping, self.delay = ledger.header.get("clipping", "local"), ledger.header.get("norm_delay", 0)
        self.used: dict[tuple[int, int], float] = {}  # (stage, step) → what it was clipped by
        elements = [sum(stage.weights[name].numel() for name in stage.trained) for stage in stages]
        self.shares = [math.sqrt(count / max(1, sum(elements))) for count in elements]
        for stage, share in zip(stages, self.shares, strict=True):
            if self.clipping == "proportional" and stage.clip is not None:
                stage.clip *= share

    def of(self, record: Record, stage: Stage, divisor: float) -> float | None:
        """The norm of all stages that a step was clipped by. It is believed here, and looked at when all stages have stepped."""
        if self.clipping != "global":
            return None
        if "norm" not in record.values:
            raise Difference("a step that is clipped by the norm of all stages has no norm")
        early = record.values["step"] <= self.delay
        stage.clip = self.ledger.header["clip"] * (self.shares[stage.index] if early else 1.0)
        said = record.values["norm"]
        if said is None:
            said = self._endless_norm(record, stage, divisor)
        self.used[stage.index, record.values["step"]] = float(said)
        return float(said)

    def _endless_norm(self, record: Record, stage: Stage, divisor: float) -> float:
        """A ledger has null for infinity, by which gradients become 0, and for NaN, by which they stay: the gradient tells which."""
        gradient = stage.gradient(record.values["micro_batches"], divisor)
        stage.clip_by(math.inf, gradient)
        return math.inf if record.values.get("gradient") == hash_of(stage.module, gradient) else math.nan

    def check(self) -> None:
        for record in self.ledger.records if self.clipping == "global" else []:
            step = record.values.get("step", 0)
            if (record.stage, step) not in self.used:
                continue
            said = self.used[record.stage, step]
            early = step <= self.delay
            whose = [self.stages[record.stage]] if early else [s for s in self.stages if s.trained]
            at = step - 1 if early else step - 1 - self.delay
            here = math.sqrt(sum(stage.norms[at] * stage.norms[at] for stage in whose))
            # Of a gradient that is NaN already nobody can tell by which of the two it was clipped.
            if not math.isclose(here, said, rel_tol=1e-6) and (math.isfinite(here) or math.isfinite(said)):
                raise Difference(f"{record.name}: norm is {here:.9g}, the ledger says {said:.9g}")
