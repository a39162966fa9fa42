"""Reads and writes ledgers (docs/ledger.md). A bad line is refused with its number; nothing is guessed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddip.errors import ConfigError
from ddip.pipeline.schedules import SCHEDULES, SYNCHRONOUS

FORMAT = 1
LONGEST_LINE = 1 << 20
LARGEST = 3.4e38  # a number becomes a float32
Json = dict[str, Any]

COUNT = "a whole number from 0 on"
NUMBER = "a number that fits a float32"
AMOUNT = "a number from 0 on that fits a float32"
TEXT = "text that can be printed"
HASH = "64 hexadecimal digits"
FLAG = "true or false"
OBJECT = "an object"
COUNTS = "a list of whole numbers from 0 on"
NUMBERS = "a list of numbers"
RATES = "a list of lists of numbers"
HASHES = "a list of hashes"
OBJECTS = "a list of objects"
NAMES = "a list of names"
ROUTES = "a list of lists of names"
OR_NULL = " or null"

HEADER = {
    "format": COUNT, "stages": COUNT, "schedule": TEXT, "staleness": TEXT, "options": OBJECT, "micro_batches": COUNT,
    "split": COUNT, "accumulate": COUNT, "optimizer": OBJECTS, "clip": NUMBER + OR_NULL, "precision": TEXT, "order": TEXT,
    "mean_staleness": NUMBERS, "threads": COUNT, "torch": TEXT, "capability": TEXT, "seed": COUNT,
    "program": TEXT + OR_NULL, "initial": HASHES,
}  # fmt: skip
# kind of record → (required, optional)
RECORDS: dict[str, tuple[Json, Json]] = {
    "forward": (
        {"stage": COUNT, "micro_batch": COUNT, "weights": OBJECT, "buffers": COUNT, "seed": COUNT},
        {"count": COUNT, "samples": COUNTS, "loss": NUMBER + OR_NULL},
    ),
    "backward": (
        {"stage": COUNT, "micro_batch": COUNT, "weights": OBJECT, "recomputed": FLAG},
        {"loss_scale": NUMBER, "split": FLAG},
    ),
    "weight_gradient": ({"stage": COUNT, "micro_batch": COUNT}, {}),
    "step": (
        {"stage": COUNT, "step": COUNT, "micro_batches": COUNTS, "count": AMOUNT, "rates": NUMBERS, "sha256": HASH},
        {"share": COUNTS, "gradient": HASH, "norm": NUMBER + OR_NULL, "left_out": FLAG},
    ),
    "drain": ({"stage": COUNT, "version": COUNT, "sha256": HASH}, {}),
    "run": ({"stage": COUNT, "micro_batch": COUNT, "planned": COUNT, "mean_staleness": AMOUNT}, {}),
}
# (kind of record, kind of weights) → (required, optional)
WEIGHTS: dict[tuple[str, str], tuple[Json, Json]] = {
    ("forward", "true"): ({"version": COUNT}, {"n": COUNT}),
    ("forward", "perturbed"): ({"version": COUNT}, {}),
    ("forward", "predicted"): ({"version": COUNT, "rates": RATES}, {"n": COUNT, "distance": COUNT, "partial": COUNTS}),
    ("backward", "forward"): ({}, {}),
    ("backward", "true"): ({"version": COUNT}, {}),
    ("backward", "predicted"): ({"version": COUNT, "rates": RATES, "distance": COUNT}, {}),
    ("backward", "corrected"): ({"version": COUNT}, {}),
}
GROUP_KEYS = {
    "sgd": {"momentum": NUMBER, "dampening": NUMBER, "weight_decay": NUMBER, "nesterov": FLAG, "maximize": FLAG},
    "adam": {"betas": NUMBERS, "eps": NUMBER, "weight_decay": NUMBER, "maximize": FLAG},
    "adamw": {"betas": NUMBERS, "eps": NUMBER, "weight_decay": NUMBER, "maximize": FLAG},
    "nadam": {
        "betas": NUMBERS, "eps": NUMBER, "weight_decay": NUMBER, "maximize": FLAG, "momentum_decay": NUMBER,
        "decoupled_weight_decay": FLAG,
    },
}  # fmt: skip


@dataclass
class Record:
    """One action, and the line it stands on."""

    line: int
    values: Json = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.values["kind"])

    @property
    def stage(self) -> int:
        return int(self.values["stage"])

    @property
    def name(self) -> str:
        """For people."""
        values = self.values
        version = f"version {values.get('step', values.get('version'))}"
        which = f"micro-batch {values['micro_batch']}" if "micro_batch" in values else version
        return f"line {self.line}: stage {self.stage}, {self.kind.replace('_', ' ')}, {which}"


@dataclass
class Ledger:
    header: Json
    records: list[Record]
    folder: Path = Path()

    def write(self, path: Path | str) -> None:
        lines = [self.header, *(record.values for record in self.records)]
        Path(path).write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines), encoding="utf-8")


def read(path: Path | str) -> Ledger:
    """ConfigError, one line with the line's number, if the file is not a ledger."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a ledger")
    header: Json | None = None
    records = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            where = f"{path} line {number}"
            if len(line) > LONGEST_LINE:
                raise ConfigError(f"{where}: longer than 1 MiB")
            values = _object_of(line, where)
            if header is None:
                header = checked_header(values, where)
            else:
                records.append(_checked_record(Record(number, values), header, where))
    if header is None:
        raise ConfigError(f"{path} line 1: the file is empty; expected a ledger's header")
    return Ledger(header, records, path.parent)


def _object_of(line: bytes, where: str) -> Json:
    def without_twins(pairs: list[tuple[str, Any]]) -> Json:
        twins = {key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1}
        if twins:
            raise ConfigError(f"{where}: {sorted(twins)[0]!r} stands there twice")
        return dict(pairs)

    def no_number(text: str) -> Any:
        raise ConfigError(f"{where}: {text} is not a number")

    try:
        values = json.loads(line.decode("utf-8"), object_pairs_hook=without_twins, parse_constant=no_number)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number of thousands of digits
        raise ConfigError(f"{where}: not a JSON object ({str(error).splitlines()[0]})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: not a JSON object")
    return values


def checked_header(values: Json, where: str) -> Json:
    """ConfigError for what no replay could begin with."""
    if values.get("kind") != "header":
        raise ConfigError(f'{where}: not a ledger; expected a header, that is "kind": "header"')
    if values.get("format") != FORMAT:
        raise ConfigError(f"{where}: format {values.get('format')!r}; this ddip reads format {FORMAT}")
    more = {
        "takes": ROUTES, "gives": ROUTES, "clipping": TEXT, "norm_delay": COUNT, "loss_scale": OBJECT,
        "smoothing": OBJECT,
    }  # fmt: skip
    _check_keys(values, HEADER, more, where)
    _check_loss_scale(values, where)
    _check_smoothing(values, where)
    stages = values["stages"]
    if stages < 1:
        raise ConfigError(f"{where}: stages 0; expected at least 1")
    if ("takes" in values) != ("gives" in values):
        raise ConfigError(f"{where}: takes and gives come together or not at all")
    for key in ("optimizer", "mean_staleness", "initial", *(["takes", "gives"] if "takes" in values else [])):
        if len(values[key]) != stages:
            raise ConfigError(f"{where}: {key} has {len(values[key])} entries; expected one per stage, {stages}")
    for key, allowed in (
        ("precision", ["fp32", "bf16", "fp16"]),
        ("order", ["plan", "ready"]),
        ("clipping", ["local", "proportional", "global"]),
    ):
        if values.get(key, "local" if key == "clipping" else None) not in allowed:
            raise ConfigError(f"{where}: {key} {values[key]!r}; expected {' or '.join(allowed)}")
    if (schedule := values["schedule"]) not in SCHEDULES:
        expected = ", ".join(SCHEDULES)
        raise ConfigError(f"{where}: schedule {schedule!r}; expected {expected}{did_you_mean(schedule, SCHEDULES)}")
    for key in ("split", "accumulate", "threads"):
        if values[key] < 1:
            raise ConfigError(f"{where}: {key} {values[key]}; expected at least 1")
    for key, most in (("threads", 4096), ("split", 1 << 16)):
        if values[key] > most:
            raise ConfigError(f"{where}: {key} {values[key]}; expected at most {most}")
    for optimizer in values["optimizer"]:
        _check_keys(optimizer, {"name": TEXT, "groups": OBJECTS}, {"form": TEXT}, f"{where}: optimizer")
        name = optimizer["name"]
        if name not in GROUP_KEYS:
            raise ConfigError(
                f"{where}: optimizer {name!r}; expected {', '.join(GROUP_KEYS)}{did_you_mean(name, GROUP_KEYS)}"
            )
        other = "sutskever" if name == "sgd" else "libtorch"
        if optimizer.get("form", "torch") not in ("torch", other):
            raise ConfigError(f"{where}: form {optimizer['form']!r} of {name}; expected torch or {other}")
        for group in optimizer["groups"]:
            _check_keys(group, {"parameters": NAMES}, GROUP_KEYS[name], f"{where}: group of {name}")
            betas = group.get("betas", [0.0, 0.0])
            if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
                raise ConfigError(f"{where}: betas {betas}; expected two numbers from 0 to below 1")
    return values


def _check_loss_scale(header: Json, where: str) -> None:
    if ("loss_scale" in header) != (header["precision"] == "fp16"):
        raise ConfigError(f"{where}: loss_scale is there with precision fp16, and only then")
    if scale := header.get("loss_scale"):
        _check_keys(scale, {"initial": NUMBER, "interval": NUMBER}, {}, f"{where}: loss_scale")
        if scale["initial"] <= 0:
            raise ConfigError(f"{where}: loss_scale: initial {scale['initial']}; expected more than 0")


def _check_smoothing(header: Json, where: str) -> None:
    if (smoothing := header.get("smoothing")) is None:
        return
    _check_keys(smoothing, {"passes": COUNT, "radius": AMOUNT}, {}, f"{where}: smoothing")
    passes, radius = smoothing["passes"], smoothing["radius"]
    if not 1 <= passes <= 1024 or not 0 < radius <= 1e3:
        raise ConfigError(
            f"{where}: smoothing: {passes} passes, radius {radius}; expected 1 to 1024, and more than 0, at most 1000"
        )
    if header["schedule"] not in SYNCHRONOUS or header["staleness"] != "none":
        raise ConfigError(f"{where}: smoothing is of synchronous schedules with staleness none")


def _checked_record(record: Record, header: Json, where: str) -> Record:
    kind = record.values.get("kind")
    if not isinstance(kind, str) or kind not in RECORDS:
        raise ConfigError(f"{where}: kind {kind!r}; expected {', '.join(RECORDS)}{did_you_mean(kind, RECORDS)}")
    _check_keys(record.values, *RECORDS[kind], where)
    if record.stage >= header["stages"]:
        raise ConfigError(f"{where}: stage {record.stage}; expected less than {header['stages']}")
    batch = record.values.get("micro_batch", 0)
    if batch >= header["micro_batches"]:
        raise ConfigError(f"{where}: micro_batch {batch}; expected less than {header['micro_batches']}")
    if kind == "forward" and ("count" in record.values) == ("samples" in record.values):
        raise ConfigError(f"{where}: expected either count or samples")
    if "weights" in record.values:
        weights = record.values["weights"]
        known = [name for action, name in WEIGHTS if action == kind]
        if weights.get("kind") not in known:
            raise ConfigError(f"{where}: weights of kind {weights.get('kind')!r}; expected {', '.join(known)}")
        _check_keys(weights, *WEIGHTS[kind, weights["kind"]], f"{where}: weights")
        if (kind, weights["kind"]) == ("forward", "predicted") and ("n" in weights) == ("distance" in weights):
            raise ConfigError(f"{where}: weights: expected either n or distance")
    share = record.values.get("share")
    if share is not None and (len(share) != 2 or not 0 < share[0] <= share[1]):
        raise ConfigError(f"{where}: share {share}; expected [r, se] with 0 < r <= se")
    return record


def _check_keys(values: Any, required: Json, optional: Json, where: str) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected an object")
    known = {**required, **optional}
    for key, value in values.items():
        if key == "kind":
            continue
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{did_you_mean(key, known)}")
        if not _is(value, known[key]):
            raise ConfigError(f"{where}: {key} is {json.dumps(value)[:60]}; expected {known[key]}")
    for key in required:
        if key not in values:
            raise ConfigError(f"{where}: {key} is missing")


def _is(value: Any, what: str) -> bool:
    if what.endswith(OR_NULL):
        return value is None or _is(value, what.removesuffix(OR_NULL))
    whole = isinstance(value, int) and not isinstance(value, bool)
    checks: dict[str, bool] = {
        COUNT: whole and 0 <= value < 1 << 63,
        NUMBER: (whole or isinstance(value, float)) and abs(value) <= LARGEST,
        AMOUNT: (whole or isinstance(value, float)) and 0 <= value <= LARGEST,
        TEXT: isinstance(value, str)
        and value.isprintable(),  # it is: neither half characters nor a terminal's commands
        FLAG: isinstance(value, bool),
        OBJECT: isinstance(value, dict),
        HASH: isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"),
    }
    if what in checks:
        return checks[what]
    of = {COUNTS: COUNT, NUMBERS: NUMBER, RATES: NUMBERS, HASHES: HASH, OBJECTS: OBJECT, NAMES: TEXT, ROUTES: NAMES}[
        what
    ]
    return isinstance(value, list) and all(_is(entry, of) for entry in value)


def did_you_mean(name: object, known: Iterable[str]) -> Literal[""] | str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
