"""What may follow the name of a magic, where the C++ flag tables (src/ddip/launch/) do not read it."""

from __future__ import annotations

import shlex

from IPython.core.error import UsageError


def words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot read the line: {error}") from None


def names_of(parts: list[str], command: str) -> list[str]:
    if not parts:
        raise UsageError(f"{command} NAMES: which variables?")
    if any("," in part for part in parts):
        meant = " ".join(" ".join(parts).replace(",", " ").split())
        raise UsageError(f"{command} {' '.join(parts)}: names are separated by spaces; did you mean {command} {meant}?")
    return parts


def of_autodip(parts: list[str]) -> tuple[bool, str]:
    """on|off [-a "ARGS"]: whether on, and ARGS."""
    switch, rest = parts[0], parts[1:]
    if switch not in ("on", "off"):
        raise UsageError(f"%autodip {switch}: expected on or off")
    if not rest:
        return switch == "on", ""
    if switch == "off":
        raise UsageError(f"%autodip off takes nothing more, found: {' '.join(rest)}")
    if rest[0] not in ("-a", "--args") or len(rest) != 2:
        raise UsageError('%autodip on [-a "ARGS"]: expected -a and one quoted string, found: ' + " ".join(rest))
    return True, rest[1]


def of_dipull(parts: list[str]) -> tuple[list[str], str]:
    """a b … [-r RANK|all]: the names, and RANK or all as it was typed."""
    names, rank = [], "0"
    rest = iter(parts)
    for part in rest:
        if part in ("-r", "--rank"):
            given = next(rest, None)
            if given is None:
                raise UsageError("%dipull -r: expected a rank or all")
            rank = given
        elif part.startswith("-"):
            raise UsageError(f"%dipull {part}: unknown flag; expected -r RANK|all")
        else:
            names.append(part)
    return names_of(names, "%dipull"), rank


def of_diplog(parts: list[str]) -> int | None:
    """[CELL|last]: a cell's number; 0: all; None: the newest."""
    if not parts:
        return 0
    if len(parts) > 1 or not (parts[0] == "last" or parts[0].isdigit()):
        raise UsageError(f"%diplog [CELL|last]: expected a cell's number or last, found: {' '.join(parts)}")
    return None if parts[0] == "last" else int(parts[0])
