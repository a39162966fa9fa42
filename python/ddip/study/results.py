"""results.csv: a row for each run, written as runs end, so that a study that was stopped goes on from it."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

import ddip
from ddip.errors import ConfigError
from ddip.study.settings import Run, Settings

RUN = [field.name for field in fields(Run)]
SETTINGS = [field.name for field in fields(Settings) if field.name != "schedule"]
SCHEDULE = "study_schedule"  # the study's; a run has its own
NUMBERS = [
    "loss", "accuracy", "target", "time_to_target", "time", "staleness", "moved", "prediction_error", "cosine", "copies", "bytes",
]  # fmt: skip
LISTS = ["losses", "accuracies", "moved_by_stage", "cosine_by_stage"]
VERSIONS = {"ddip": ddip.__version__, "torch": torch.__version__}  # others may compute otherwise
HEADER = [*RUN, *NUMBERS, *LISTS, SCHEDULE, *SETTINGS, *VERSIONS]
Row = dict[str, Any]


class Results:
    """Rows by run. REQUIRES: one study at a time writes into the folder."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self.rows: dict[Run, Row] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if not text.endswith("\n"):  # the row that was being written when somebody pulled the plug
            text = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(io.StringIO(text)))
        if lines and lines[0] == HEADER[: -len(VERSIONS)]:
            raise ConfigError(
                f"{self.path}: line 1: of a version of ddip that did not say which; expected another folder for --out"
            )
        if lines and lines[0] != HEADER:
            raise ConfigError(f"{self.path}: line 1: not the results of a study; expected another folder for --out")
        here = settings_in(self.settings)
        for number, line in enumerate(lines[1:], 2):
            where = f"{self.path}: line {number}"
            if len(line) != len(HEADER):
                raise ConfigError(f"{where}: {len(line)} values; expected {len(HEADER)}")
            values = dict(zip(HEADER, line, strict=True))
            for key, value in here.items():
                if values[key] != value:
                    name = {SCHEDULE: "schedule", "ddip": "version of ddip", "torch": "version of torch"}.get(key, key)
                    raise ConfigError(
                        f"{where}: {name} is {values[key]}, this study's is {value}; expected another folder for --out"
                    )
            try:
                run, row = row_of(values)
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
            self.rows[run] = row

    def add(self, run: Run, row: Row) -> None:
        new = not self.path.exists() or self.path.stat().st_size == 0
        if not new:
            self._cut_unfinished()
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write((line_of(HEADER) if new else "") + line_of(self._values(run, row)))
        self.rows[run] = row

    def _cut_unfinished(self) -> None:
        with self.path.open("rb+") as file:
            file.seek(0, os.SEEK_END)
            end = file.tell()
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

    def settle(self, order: list[Run]) -> None:
        """In this order, whoever was first: equal studies have equal files. Rows of other runs stay behind them."""
        from ddip.pipeline.partition_command import write

        runs = [*order, *(run for run in self.rows if run not in set(order))]
        write(str(self.path), line_of(HEADER) + "".join(line_of(self._values(run, self.rows[run])) for run in runs))

    def _values(self, run: Run, row: Row) -> list[str]:
        values = {**{key: shown(value) for key, value in {**asdict(run), **row}.items()}, **settings_in(self.settings)}
        return [values[key] for key in HEADER]


def settings_in(settings: Settings) -> dict[str, str]:
    values = asdict(settings)
    return {SCHEDULE: settings.schedule, **{key: shown(values[key]) for key in SETTINGS}, **VERSIONS}


def shown(value: Any) -> str:
    """Numbers so that they are read again as they were."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join("-" if entry is None else repr(entry) for entry in value)
    return value if isinstance(value, str) else repr(value)


def row_of(values: dict[str, str]) -> tuple[Run, Row]:
    run = Run(
        **{key: values[key] for key in ("task", "schedule", "policy", "optimizer", "phase")},
        rate=number(values["rate"]),
        seed=int(values["seed"]),
    )
    row: Row = {key: number(values[key]) if values[key] else None for key in NUMBERS}
    row |= {key: [None if entry == "-" else number(entry) for entry in values[key].split()] for key in LISTS}
    row |= {key: int(values[key]) for key in ("copies", "bytes")}
    return run, row


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r}; expected a number") from None


def line_of(values: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue()
