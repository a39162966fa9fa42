"""Writes the ledger of a pipeline (docs/ledger.md): what each rank's stages really did, gathered after every run. The hashes are
taken where the optimizer steps, not where the plan says it should."""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddip.pipeline.seeds import seed_of
from ddip.pipeline.stepping import hash_of
from ddip.replicas import gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline

Json = dict[str, Any]


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


class Writer:
    def __init__(self, path: str | Path, pipe: Pipeline, program: str | None) -> None:
        self.path, self.program = Path(path), program
        self.pipe: Pipeline = weakref.proxy(pipe)  # it has us: in a circle it would outlive its last user
        self.notes = {index: Notes(pipe, index) for index in pipe.steppings}
        self.lines: list[str] = []  # on the rank that writes them
        self.forwards = dict.fromkeys(pipe.steppings, 0)
        self.staleness = dict.fromkeys(pipe.steppings, 0)  # the sum over the forwards
        self.steps = dict.fromkeys(pipe.steppings, 0)
        self.empty: set[tuple[int, int]] = set()  # (stage, micro-batch of the run): it has no samples
        self.micro_batches = 0
        self.first = 0
        self.complete = True  # every run so far is in it

    def close(self) -> None:
        """What is written stays as it is; nothing is noted any more."""
        for index, notes in self.notes.items():
            self.pipe.steppings[index].noted.remove(notes.note)

    def add(self, record: Any, first: int) -> None:
        """All ranks, after a run whose micro-batches are counted from `first`."""
        self.first = first
        self.empty.clear()
        losses = {k: loss for k, loss, _ in record.losses}
        begins = self._begins(record)
        self.micro_batches = first + max((line["planned"] for line in begins), default=0)
        actions = [line for done in record.actions if (line := self._line(done, first, losses))]
        mine = [json.dumps(line) for line in [*begins, *actions]]
        everything = gather_objects((mine, self._about_stages(), self.micro_batches), self.pipe.ranks)
        if self.pipe.ranks.rank == 0:
            self.lines += [line for lines, _, _ in everything for line in lines]
            about = {index: one for _, stages, _ in everything for index, one in stages.items()}
            self._write(about, max(total for _, _, total in everything))
        self.complete = True

    def _begins(self, record: Any) -> list[Json]:
        """Of each stage. The mean is that of the run's own plan, empty micro-batches too, as the policies take it."""
        planned: dict[int, list[int]] = {stage: [] for stage in self.notes}
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
        if stage not in self.notes:
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
            return {**line, "split": True} if done.split else line
        if action.kind == "weight_gradient" and done.split:
            return {"kind": "weight_gradient", "stage": stage, "micro_batch": micro_batch}
        return self._step(stage, done.stepped, first) if action.kind == "step" else None

    def _step(self, stage: int, stepped: Any, first: int) -> Json:
        self.steps[stage] += 1
        line = {
            "kind": "step", "stage": stage, "step": self.steps[stage], "count": plain(stepped.count),
            "micro_batches": [first + k for k in stepped.micro_batches],
        }  # fmt: skip
        if self.pipe.clipping == "global":
            line["norm"] = or_null(stepped.norm)
        if stepped.count == 0:  # the optimizer was not asked
            return {**line, "rates": [], "sha256": self.notes[stage].newest}
        if self.pipe.asynchronous and len(stepped.micro_batches) < self.pipe.accumulate:
            line["share"] = [len(stepped.micro_batches), self.pipe.accumulate]
        noted = self.notes[stage].steps.pop(0)
        self.notes[stage].newest = noted["sha256"]
        return {**line, **noted}

    def _seen(self, stage: int, used: Any) -> Json:
        seen: Json
        if not used.predicted:
            seen = {"kind": "true", "version": used.version}
            # 2bw reads a version that is old already, so that n says more than the steps to come.
            return seen if self.pipe.request["schedule"] == "2bw" else {**seen, "n": used.staleness}
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

    def _about_stages(self) -> dict[int, Json]:
        about = {}
        for index, notes in self.notes.items():
            about[index] = {
                "initial": notes.initial,
                "optimizer": self.pipe.steppings[index].described(),
                "mean_staleness": self.staleness[index] / max(self.forwards[index], 1),
            }
        return about

    def _write(self, about: dict[int, Json], micro_batches: int) -> None:
        pipe = self.pipe
        stages = [about[index] for index in sorted(about)]
        header = {
            "kind": "header", "format": 1, "stages": len(pipe.modules), "schedule": pipe.request["schedule"],
            "staleness": pipe.policy_name, "options": pipe.policy_options, "micro_batches": micro_batches, "split": pipe.micro_batches,
            "accumulate": pipe.accumulate if pipe.asynchronous else pipe.accumulate * pipe.micro_batches,
            "optimizer": [stage["optimizer"] for stage in stages], "clip": pipe.clip, "precision": pipe.precision,
            "order": "plan", "mean_staleness": [stage["mean_staleness"] for stage in stages],
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(), "seed": pipe.seed, "program": self.program,
            "initial": [stage["initial"] for stage in stages],
        }  # fmt: skip
        if pipe.clip is not None:
            header |= {"clipping": pipe.clipping, "norm_delay": pipe.norm_delay}
        if any(part.gives for part in pipe.parts):
            header["takes"] = [part.takes for part in pipe.parts]
            header["gives"] = [part.gives for part in pipe.parts]
        text = "".join(line + "\n" for line in [json.dumps(header), *self.lines])
        whole = self.path.with_name(self.path.name + ".new")
        whole.write_text(text)
        whole.replace(self.path)


def plain(count: float) -> float:
    """Whole numbers as such: most counts are samples."""
    return int(count) if count == int(count) else count


def or_null(number: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return number if math.isfinite(number) else None
