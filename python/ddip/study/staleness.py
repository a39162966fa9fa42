"""`ddip study staleness`: every policy on the same tasks, each at its best rate, over several seeds."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from ddip.pipeline.partition_command import write
from ddip.study.confidence import Interval
from ddip.study.crew import Crew
from ddip.study.plan import Study
from ddip.study.plots import accuracy_over_time, losses
from ddip.study.progress import Progress
from ddip.study.results import Results
from ddip.study.settings import Run
from ddip.study.summary import Line, csv_of, lines_of
from ddip.study.table import tables_of


def run(study: Study, out: Path, jobs: int, as_json: bool = False) -> int:
    """Exit code: 0, or 130 after Ctrl-C; runs that ended stay in results.csv."""
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / "results.csv", study.settings)
    try:
        complete(study, results, jobs)
    except KeyboardInterrupt:
        print(
            f"\nddip study staleness: interrupted; {len(results.rows)} runs are kept in {out}, the same command goes on",
            file=sys.stderr,
        )
        return 130
    lines = lines_of(study, results.rows)
    save(study, lines, out)
    if as_json:
        print(json.dumps({"lines": [for_programs(line) for line in lines]}))
    else:
        print(tables_of(study, lines))
        print(f"results.csv, summary.csv and pictures are in {out}")
    return 0


def complete(study: Study, results: Results, jobs: int) -> None:
    """Computes the runs that are not there yet; the sweep first: it decides what comes then."""
    sweep = study.sweep()
    with Crew(min(jobs, max(1, len(study.cells) * study.seeds))) as crew:
        compute(crew, "sweep", sweep, results)
        final = study.final(results.rows)
        compute(crew, "final", final, results)
    results.settle([*sweep, *final])


def compute(crew: Crew, what: str, runs: list[Run], results: Results) -> None:
    missing = [run for run in runs if run not in results.rows]
    if len(missing) < len(runs):
        print(f"{what}: {len(runs) - len(missing)} of {len(runs)} runs are there already", file=sys.stderr)
    progress = Progress(what, len(missing))

    def take(run: Run, row: dict[str, object]) -> None:
        results.add(run, row)
        progress.one_more()

    try:
        crew.compute(missing, results.settings, take)
    finally:
        progress.end()


def save(study: Study, lines: list[Line], out: Path) -> None:
    write(str(out / "summary.csv"), csv_of(lines))
    for task in study.tasks:
        of = [line for line in lines if line.cell.task == task]
        write(str(out / f"loss_{task}.svg"), losses(study, of))
        write(str(out / f"accuracy_{task}.svg"), accuracy_over_time(study, of))


def for_programs(line: Line) -> dict[str, object]:
    def plain(value: object) -> object:
        """JSON has no infinity: null."""
        if isinstance(value, Interval):
            return [number if math.isfinite(number) else None for number in (value.mean, value.half)]
        return value

    values = {key: plain(value) for key, value in vars(line).items() if key not in ("cell", "accuracies")}
    return {**vars(line.cell), **values}
