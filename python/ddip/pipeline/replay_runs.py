"""The runs of a ledger, and the mean staleness of each, which pipemare and spike compute with."""

from __future__ import annotations

from dataclasses import dataclass

from ddip.pipeline.ledger import Ledger
from ddip.pipeline.replay_stage import Difference


@dataclass
class Run:
    """One stage's part of it."""

    line: int
    first: int
    planned: int  # micro-batches, empty ones too
    mean: float
    forwards: int = 0
    staleness: int = 0  # the sum


def runs_of(ledger: Ledger, stage: int) -> list[Run]:
    """Without lines for them: one, with the header's mean."""
    header = ledger.header
    found = [Run(1, 0, header["micro_batches"], header["mean_staleness"][stage])]
    for record in ledger.records:
        values = record.values
        if record.stage != stage:
            continue
        if record.kind == "run":
            found.append(Run(record.line, values["micro_batch"], values["planned"], values["mean_staleness"]))
        elif record.kind == "forward":
            found[-1].forwards += 1
            found[-1].staleness += values["weights"].get("n", 0)
    return found[1:] if len(found) > 1 and not found[0].forwards else found


def check_runs(ledger: Ledger, stage: int, uses_means: bool) -> None:
    """`uses_means`: the policy computes with them."""
    runs = runs_of(ledger, stage)
    begin = 0
    for run in runs:
        where = f"line {run.line}: stage {stage}"
        if run.first != begin:
            raise Difference(f"{where}: the run begins with micro-batch {run.first}, the one before ended at {begin}")
        begin += run.planned
        # The staleness of an empty micro-batch is planned too, and has no line.
        here = run.staleness / max(1, run.forwards)
        if uses_means and run.forwards == run.planned and here != run.mean:
            raise Difference(f"{where}: mean_staleness is {here}, the ledger says {run.mean}")
    if begin != ledger.header["micro_batches"]:
        raise Difference(f"line 1: stage {stage}: its runs have {begin} micro-batches, the header says otherwise")
