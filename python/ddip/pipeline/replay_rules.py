"""Which weights an action may say that it read, and how many micro-batches a step may have, by the header's schedule and policy.

Bits alone do not tell: where the weights did not move, or a gradient does not depend on them, two versions give the same.
"""

from __future__ import annotations

from ddip.pipeline.ledger import Json, Ledger
from ddip.pipeline.replay_stage import Difference, Flight, Stage
from ddip.pipeline.schedules import SYNCHRONOUS
from ddip.pipeline.textbook_policies import check_schedule, parts_of, predictor_in


class Rules:
    def __init__(self, ledger: Ledger) -> None:
        header = ledger.header
        self.schedule, self.accumulate, self.stages = header["schedule"], header["accumulate"], header["stages"]
        self.is_synchronous = self.schedule in SYNCHRONOUS
        self.parts = parts_of(header["staleness"])
        check_schedule(self.schedule, self.parts)
        self.predictor = predictor_in(self.parts)
        self.perturbs = "smoothing" in header
        self.keeps = self.perturbs or bool(self.parts & {"stash", "gap_aware", "nesterov"})
        self.recomputed: bool | None = None  # by all stages but the last, once one has said it
        # (stage, version) → the rates of the step that leaves it
        self.rates = {(r.stage, r.values["step"] - 1): r.values["rates"] for r in ledger.records if r.kind == "step"}

    # ---- forward

    def forward(self, stage: Stage, said: Json) -> None:
        newest, version = stage.version, said["version"]
        n = said.get("n", 0)
        if self.is_synchronous and n > 0:
            raise Difference(f"n = {n}, but in {self.schedule} no weights are stale")
        if self.schedule == "2bw" and version not in (newest, newest - 1):
            raise Difference(f"reads version {version}; 2bw reads {newest} or the one before")
        if self.schedule != "2bw" and version != newest:
            raise Difference(f"reads version {version}; the newest is {newest}")
        if (said["kind"] == "perturbed") != (self.perturbs and bool(stage.trained)):
            raise Difference(
                f"weights of kind {said['kind']!r}; smoothing, where the header has it, perturbs those of each forward"
            )
        if said["kind"] == "predicted":
            self._prediction(stage, said, n)
        elif n > 0 and self._has_to_predict(stage):
            raise Difference(f"reads true weights that will be {n} steps old; {self.predictor} predicts them")

    def _prediction(self, stage: Stage, said: Json, n: int) -> None:
        if self.predictor is None or not stage.trained:
            raise Difference("predicts, but the ledger's policy has no prediction for this stage")
        if self.predictor != "spectrain":
            if "n" not in said or n == 0:
                raise Difference(f"{self.predictor} predicts as many steps as there are to come, n from 1 on")
            return
        expected = self._distance(stage.index // 2 + self.stages - stage.index - 1)
        if said.get("distance") != expected:
            raise Difference(f"predicts by a distance of {said.get('distance')}; spectrain's here is {expected}")

    def _has_to_predict(self, stage: Stage) -> bool:
        """Whether the policy had something to predict from, so that true weights are a lie."""
        if self.predictor is None or self.schedule == "2bw":
            return False
        rates = self.rates.get((stage.index, stage.version), [0.0] * len(stage.groups))
        for group, rate in zip(stage.groups, rates, strict=False):
            moves = group.name != "sgd" or group.momentum > 0
            if moves and rate > 0 and any(stage.memory[name].has_moved for name in group.parameters):
                return True
        return False

    def _distance(self, micro_batches: int) -> int:
        return -(-micro_batches // int(self.accumulate))

    # ---- backward

    def backward(self, stage: Stage, said: Json, flight: Flight, recomputed: bool) -> None:
        self._recomputation(stage, recomputed)
        kind, newest = said["kind"], stage.version
        if not stage.trained:
            expected = ["true", "forward"]
        elif self.schedule == "2bw":
            expected = ["true", "forward"]
            newest = flight.read
        elif self.keeps:
            expected = ["forward"]
        elif "pipemare" in self.parts:
            # Before the first step that moved something there is nothing to correct by.
            expected = ["corrected"] if stage.pipemare and stage.pipemare.has_moved else ["corrected", "true"]
        elif self.predictor == "spectrain":
            expected = ["predicted"] if self._distance(stage.index // 2) and self._has_to_predict(stage) else []
            expected = expected or ["predicted", "true"]
        else:
            expected = ["true"]
        if kind not in expected:
            raise Difference(
                f"weights of kind {kind!r}; with {self.schedule} and this policy expected {' or '.join(expected)}"
            )
        if kind != "forward" and said["version"] != newest:
            what = "its forward read" if self.schedule == "2bw" else "the newest is"
            raise Difference(f"reads version {said['version']}; {what} {newest}")
        if kind == "predicted" and said["distance"] != self._distance(stage.index // 2):
            expected_distance = self._distance(stage.index // 2)
            raise Difference(f"predicts by a distance of {said['distance']}; spectrain's here is {expected_distance}")

    def _recomputation(self, stage: Stage, recomputed: bool) -> None:
        if stage.last:
            if recomputed:
                raise Difference("recomputed, but the last stage's backward follows its forward at once")
            return
        if self.recomputed is None:
            self.recomputed = recomputed
        if recomputed != self.recomputed:
            raise Difference(f"recomputed is {str(recomputed).lower()}, of the backwards before it {not recomputed}")

    # ---- step

    def step(self, micro_batches: list[int], share: list[int] | None, fresh: bool) -> None:
        """`fresh`: no step came between the forwards and the backwards of its micro-batches."""
        several = len(micro_batches)
        if self.is_synchronous:
            if several > self.accumulate:
                raise Difference(f"{several} micro-batches; the header's accumulate is {self.accumulate}")
            return
        expected = [several, self.accumulate] if several < self.accumulate else None
        if share != expected:
            raise Difference(f"share {share} of a step with {several} micro-batches; expected {expected}")
        # More than that only where an asynchronous schedule is synchronous for a while.
        if several > self.accumulate and not fresh:
            raise Difference(f"{several} micro-batches; the header's accumulate is {self.accumulate}")
