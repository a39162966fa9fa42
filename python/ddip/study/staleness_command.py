"""The flags of `ddip study staleness`. Everything is checked before the first process starts or a file is written."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from ddip.errors import ConfigError
from ddip.pipeline.ledger import did_you_mean
from ddip.pipeline.simulate_order import SCHEDULES
from ddip.study.settings import Settings

# What --quick changes, where nothing else is said: a look at the table, not a result.
QUICK = {"seeds": "2", "sweep_seeds": "1", "rates": "1", "steps": "24", "policies": "none,stash,msnag"}
DEFAULTS = {
    "tasks": "vision,language", "policies": "", "seeds": "5", "sweep_seeds": "2", "rates": "0.3,1,3", "stages": "4",
    "schedule": "async_1f1b", "accumulate": "1", "micro_batches": "8", "steps": "200", "cost": "1", "link": "0.5",
    "max_staleness": "", "target": "", "jobs": "",
}  # fmt: skip
LAYERS = 8  # of each task's model


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; ddip study --help explains")


def main(arguments: list[str]) -> int:
    parser = _Arguments(prog="ddip study staleness", add_help=False, allow_abbrev=False)
    for name in DEFAULTS:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = vars(parser.parse_args(arguments))
    texts = {**DEFAULTS, **(QUICK if asked["quick"] else {})}
    texts |= {name: asked[name] for name in DEFAULTS if asked[name] is not None}
    out = folder_of(asked["out"])
    tasks = names_of("tasks", texts["tasks"], DEFAULTS["tasks"].split(","))
    jobs = whole("jobs", texts["jobs"], 1, 1024) if texts["jobs"] else len(os.sched_getaffinity(0))
    seeds, sweep_seeds = whole("seeds", texts["seeds"], 2, 999), whole("sweep_seeds", texts["sweep_seeds"], 1, 999)
    rates = [number("rates", text, 1e-6, 1e6) for text in listed("rates", texts["rates"])]
    settings = settings_of(texts, asked["quick"])

    from ddip.study.plan import Study  # torch: not before the request is known to be good
    from ddip.study.results import Results
    from ddip.study.staleness import run

    choices = choices_of(texts["policies"], settings.schedule)
    check_schedule(settings)
    study = Study(settings, tasks, choices, seeds, sweep_seeds, sorted(set(rates)))
    Results(out / "results.csv", settings)  # is what lies there of this study?
    return run(study, out, jobs, asked["json"])


def settings_of(texts: dict[str, str], quick: bool) -> Settings:
    schedule, *others = names_of("schedule", texts["schedule"], SCHEDULES)
    if others:
        raise ConfigError(
            f"--schedule {texts['schedule']}: expected one, as {schedule}; seq and 1f1b are in each table"
        )
    if texts["max_staleness"] and schedule != "virtual_async":
        raise ConfigError(f"--max-staleness with schedule {schedule}; expected virtual_async")
    return Settings(
        stages=whole("stages", texts["stages"], 1, LAYERS),
        schedule=schedule,
        accumulate=whole("accumulate", texts["accumulate"], 1, 1000),
        micro_batches=whole("micro_batches", texts["micro_batches"], 1, 1000),
        steps=whole("steps", texts["steps"], 2, 1_000_000),
        cost=number("cost", texts["cost"], 1e-9, 1e9),
        link=number("link", texts["link"], 0, 1e9),
        max_staleness=whole("max_staleness", texts["max_staleness"], 0, 1000) if texts["max_staleness"] else -1,
        target=number("target", texts["target"], 1e-6, 1) if texts["target"] else 0.0,
        held_out=100 if quick else 0,
    )


def choices_of(text: str, schedule: str) -> list[tuple[str, str]]:
    """None asked for: all that the schedule takes."""
    from ddip.study.policies import POLICIES, choice_of, refusal

    if not text:
        return [choice_of(name) for name in POLICIES if not refusal(schedule, name)]
    choices = [choice_of(name) for name in listed("policies", text)]
    for name, (policy, _) in zip(listed("policies", text), choices, strict=True):
        if why := refusal(schedule, policy):
            raise ConfigError(f"--policies {name} with schedule {schedule}: {why}")
    return list(dict.fromkeys(choices))


def check_schedule(settings: Settings) -> None:
    from ddip.study.clock import plan_of

    plan_of(settings, settings.schedule)  # says itself what it misses


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def listed(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{flag(name)} {text!r}: expected a list with commas between")
    return parts


def names_of(name: str, text: str, known: Iterable[str]) -> list[str]:
    known = list(known)
    for part in listed(name, text):
        if part not in known:
            raise ConfigError(f"{flag(name)} {part}: expected {', '.join(known)}{did_you_mean(part, known)}")
    return list(dict.fromkeys(listed(name, text)))


def whole(name: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{flag(name)} {text}: expected a whole number from {low} to {high}")
    return int(text)


def number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{flag(name)} {text}: expected a number from {low:g} to {high:g}")
    return value


def folder_of(text: str) -> Path:
    path = Path(text).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--out {text}: not a folder")
    if not path.exists() and not path.parent.is_dir():
        raise ConfigError(f"--out {text}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--out {text}: the folder cannot be written to")
    return Path(text)
