"""Writes the ledger of a pipeline (docs/ledger.md): gathered from all ranks after every run, written whole by the first."""

from __future__ import annotations

import contextlib
import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.ledger import FORMAT, Json
from ddip.pipeline.ledger_lines import Lines
from ddip.pipeline.ledger_refusals import why_not
from ddip.replicas import broadcast_object, gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline

# Before what a ledger may end.
STOPPED = "the run that was stopped"
OTHER_SETTINGS = "a run with other options of an optimizer than its rate, or another number of threads"


class Writer:
    """All ranks make it: what cannot be written or replayed is refused on all of them. The file of an earlier pipeline is replaced at
    once by a header without runs, so that it is not taken for this one's."""

    def __init__(self, path: str | Path, pipe: Pipeline, program: str | None) -> None:
        self.path, self.program = Path(path), program
        self.pipe: Pipeline = weakref.proxy(pipe)
        self.noted = Lines(pipe)
        self.lines: list[str] = []  # on the rank that writes them
        self.micro_batches = 0
        self.complete = True  # every run so far is in it
        self.told = ""  # the settings of the first run
        self._refuse([f"stage {index}: {why}" for index, one in pipe.steppings.items() if (why := why_not(one))])
        self._refuse([why] if (why := self._write([])) else [])

    def _refuse(self, mine: list[str]) -> None:
        for theirs in gather_objects(mine, self.pipe.ranks):
            for why in theirs:
                raise ConfigError(f"ledger={str(self.path)!r}: {why}")

    def close(self) -> None:
        """What is written stays as it is."""
        self.noted.close()

    def ends_before(self, training: bool) -> str:
        """Before what this rank's part of the ledger ends; nothing, if another run can be in it."""
        if not self.complete:
            return STOPPED
        if not training:
            return ""
        self.told = self.told or self._settings()
        return OTHER_SETTINGS if self._settings() != self.told else ""

    def add(self, record: Any, first: int) -> str:
        """All ranks, after a run whose micro-batches are counted from `first`. Before what the ledger ends, if it cannot have this run."""
        lines = self.noted.of(record, first)
        # A scheduler may have changed more than rates.
        mine = [json.dumps(line) for line in lines], self._settings() != self.told
        everything = gather_objects(mine, self.pipe.ranks)
        if any(changed for _, changed in everything):
            return OTHER_SETTINGS
        self.micro_batches = first + max(line["planned"] for line in lines if line["kind"] == "run")
        if why := self._write([line for theirs, _ in everything for line in theirs]):
            return f"a run that could not be written: {why}"
        self.complete = True
        return ""

    def _settings(self) -> str:
        """What the header says of all runs."""
        optimizers = [one.described() for one in self.pipe.steppings.values()]
        return json.dumps([torch.get_num_threads(), optimizers], default=float)

    def _write(self, lines: list[str]) -> str:
        """All ranks: with these lines behind those that are there. Why it did not work, on all of them."""
        everybody = gather_objects(self.noted.about_stages(), self.pipe.ranks)
        why = ""
        if self.pipe.ranks.rank == 0:
            header = self._header({index: one for stages in everybody for index, one in stages.items()})
            why = self._replace([header, *self.lines, *lines])
            self.lines += lines
        return str(broadcast_object(why, 0, self.pipe.ranks))

    def _replace(self, lines: list[str]) -> str:
        if self.path.exists() and not self.path.is_file():
            return "not an ordinary file"
        new = self.path.with_name(self.path.name + ".new")
        try:
            new.write_text("".join(line + "\n" for line in lines))
            new.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            return error.strerror or str(error)
        return ""

    def _header(self, about: dict[int, Json]) -> str:
        pipe = self.pipe
        stages = [about[index] for index in sorted(about)]
        header = {
            "kind": "header", "format": FORMAT, "stages": len(pipe.modules), "schedule": pipe.request["schedule"],
            "staleness": pipe.policy_name, "options": pipe.policy_options, "micro_batches": self.micro_batches, "split": pipe.micro_batches,
            "accumulate": pipe.accumulate if pipe.asynchronous else pipe.accumulate * pipe.per_batch,
            "optimizer": [stage["optimizer"] for stage in stages], "clip": pipe.clip, "precision": pipe.precision,
            "order": pipe.request["order"], "mean_staleness": [stage["mean_staleness"] for stage in stages],
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(), "seed": pipe.seed, "program": self.program,
            "initial": [stage["initial"] for stage in stages],
        }  # fmt: skip
        if pipe.clip is not None:
            header |= {"clipping": pipe.clipping, "norm_delay": pipe.norm_delay}
        if pipe.loss_scaling:
            header |= {"loss_scale": pipe.loss_scaling, "norm_delay": pipe.norm_delay}
        if pipe.smoothing.radius > 0:
            header["smoothing"] = pipe.smoothing._asdict()
        if any(part.gives for part in pipe.parts):
            header["takes"] = [part.takes for part in pipe.parts]
            header["gives"] = [part.gives for part in pipe.parts]
        return json.dumps(header, default=float)
