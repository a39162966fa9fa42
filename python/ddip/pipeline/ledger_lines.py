"""A ledger's lines about what this rank's stages really did in a run (docs/ledger.md). The hashes are taken where the optimizer
steps, not where the plan says it should."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

from ddip.pipeline.ledger import Json
from ddip.pipeline.seeds import seed_of
from ddip.pipeline.stepping import hash_of

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


class Notes:
    """What one stage's optimizer did, noted by itself."""

    def __init__(self, pipe: Pipeline, index: int) -> None:
        stepping = pipe.steppings[index]
        self.module, self.names, self.masters = pipe.modules[index], stepping.names, stepping.masters
        self.steps: list[Json] = []
        self.initial = self.newest = self.hash()
        stepping.noted.append(self.note)

    def hash(self) -> str:
        """Of the true weights, frozen ones too."""
        true = dict(zip(self.names, self.masters, strict=True))
        return hash_of([true.get(name, parameter) for name, parameter in self.module.named_parameters()])

    def note(self, rates: list[float], gradient: str) -> None:
        self.steps.append({"rates": rates, "sha256": self.hash(), "gradient": gradient})


class Lines:
    """Counts over all runs: a stage's steps and forwards have numbers."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe: Pipeline = weakref.proxy(pipe)  # it has us: in a circle it would outlive its last user
        self.notes = {index: Notes(pipe, index) for index in pipe.steppings}
        # Of stages with nothing to train: their weights stay as they are.
        self.still = {
            index: hash_of(list(pipe.modules[index].parameters())) for index in pipe.mine if index not in self.notes
        }
        self.forwards = dict.fromkeys(pipe.mine, 0)
        self.staleness = dict.fromkeys(pipe.mine, 0)  # the sum over the forwards
        self.steps = dict.fromkeys(pipe.steppings, 0)
        self.empty: set[tuple[int, int]] = set()  # (stage, micro-batch of the run): it has no samples
        self.first = 0  # micro-batch of the run

    def close(self) -> None:
        """Nothing is noted any more."""
        for index, notes in self.notes.items():
            self.pipe.steppings[index].noted.remove(notes.note)

    def of(self, record: Any, first: int) -> list[Json]:
        """Of a run whose micro-batches are counted from `first`."""
        self.first = first
        self.empty.clear()
        losses = {k: loss for k, loss, _ in record.losses}
        return self._begins(record) + [line for done in record.actions if (line := self._line(done, first, losses))]

    def about_stages(self) -> dict[int, Json]:
        """What the header has of each of them."""
        about = {}
        for index in self.pipe.mine:
            trained = self.notes.get(index)
            about[index] = {
                "initial": trained.initial if trained else self.still[index],
                "optimizer": self.pipe.steppings[index].described() if trained else {"name": "sgd", "groups": []},
                "mean_staleness": self.staleness[index] / max(self.forwards[index], 1),
            }
        return about

    def _begins(self, record: Any) -> list[Json]:
        """Of each stage. The mean is that of the run's own plan, empty micro-batches too, as the policies take it."""
        planned: dict[int, list[int]] = {stage: [] for stage in self.pipe.mine}
        for done in record.actions:
            if done.action.kind == "forward" and done.action.stage in planned:
                planned[done.action.stage].append(done.action.staleness)
        return [
            {
                "kind": "run", "stage": stage, "micro_batch": self.first, "planned": len(staleness),
                "mean_staleness": sum(staleness) / max(len(staleness), 1),
            }
            for stage, staleness in planned.items()
        ]  # fmt: skip

    def _line(self, done: Any, first: int, losses: dict[int, float]) -> Json | None:
        action, stage = done.action, done.action.stage
        micro_batch = first + action.micro_batch
        if stage not in self.forwards:
            return None
        if action.kind == "forward":
            if done.count == 0:
                self.empty.add((stage, action.micro_batch))
                return None
            line = {
                "kind": "forward", "stage": stage, "micro_batch": micro_batch, "count": int(done.count),
                "weights": self._seen(stage, done.used), "buffers": self.forwards[stage],
                "seed": seed_of(self.pipe.seed, stage, micro_batch),
            }  # fmt: skip
            self.forwards[stage] += 1
            self.staleness[stage] += done.used.staleness
            if stage == len(self.pipe.modules) - 1:
                line["loss"] = or_null(losses[action.micro_batch])
            return line
        if action.kind == "backward" and (stage, action.micro_batch) not in self.empty:
            line = {
                "kind": "backward", "stage": stage, "micro_batch": micro_batch, "weights": self._seen_back(stage, done.read),
                "recomputed": self.pipe.recomputes(stage),
            }  # fmt: skip
            if self.pipe.loss_scaling:
                line["loss_scale"] = done.loss_scale
            return {**line, "split": True} if done.split else line
        if action.kind == "weight_gradient" and done.split:
            return {"kind": "weight_gradient", "stage": stage, "micro_batch": micro_batch}
        if action.kind == "step" and stage in self.notes:
            return self._step(stage, done.stepped, first)
        return None

    def _step(self, stage: int, stepped: Any, first: int) -> Json:
        self.steps[stage] += 1
        line = {
            "kind": "step", "stage": stage, "step": self.steps[stage], "count": plain(stepped.count),
            "micro_batches": [first + k for k in stepped.micro_batches],
        }  # fmt: skip
        if stepped.left_out:
            line["left_out"] = True
        elif self.pipe.clipping == "global":
            line["norm"] = or_null(stepped.norm)
        if stepped.count == 0 or stepped.left_out:  # the optimizer was not asked
            return {**line, "rates": [], "sha256": self.notes[stage].newest}
        if self.pipe.asynchronous and len(stepped.micro_batches) < self.pipe.accumulate:
            line["share"] = [len(stepped.micro_batches), self.pipe.accumulate]
        noted = self.notes[stage].steps.pop(0)
        self.notes[stage].newest = noted["sha256"]
        return {**line, **noted}

    def _seen(self, stage: int, used: Any) -> Json:
        seen: Json
        if stage in self.still:
            return {"kind": "true", "version": 0}
        if not used.predicted:
            seen = {"kind": "true", "version": used.version}
            # 2bw reads a version that is old already, so that n says more than the steps to come.
            return seen if self.pipe.request["schedule"] == "2bw" else {**seen, "n": used.staleness}
        if self.pipe.smoothing.radius > 0:
            return {"kind": "perturbed", "version": used.version}
        seen = {"kind": "predicted", "version": used.version, "rates": self._by_group(stage, used.rates)}
        if "spectrain" in self.pipe.policy_name:
            seen["distance"] = self._distance(stage, backward=False)
            seen["rates"] = [rates[:1] for rates in seen["rates"]]
        else:
            seen["n"] = used.staleness
        if "aggmsnag" in self.pipe.policy_name:
            seen["partial"] = [self.first + k for k in used.pending]
        return seen

    def _seen_back(self, stage: int, read: Any) -> Json:
        if stage in self.still:
            return {"kind": "true", "version": 0}
        if read.source == "forward":
            return {"kind": "forward"}
        if read.source == "true":
            return {"kind": "true", "version": read.version}
        if "pipemare" in self.pipe.policy_name:
            return {"kind": "corrected", "version": read.version}
        rates = [one[:1] for one in self._by_group(stage, read.rates)]
        return {
            "kind": "predicted",
            "version": read.version,
            "distance": self._distance(stage, backward=True),
            "rates": rates,
        }

    def _distance(self, stage: int, backward: bool) -> int:
        stages = len(self.pipe.modules)
        distance = stage // 2 + (0 if backward else stages - stage - 1)
        return -(-distance // self.pipe.accumulate)

    def _by_group(self, stage: int, rates: list[list[float]]) -> list[list[float]]:
        return self.pipe.steppings[stage].by_group(rates)


def plain(count: float) -> float:
    """Whole numbers as such: most counts are samples."""
    return int(count) if count == int(count) else count


def or_null(number: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return number if math.isfinite(number) else None
