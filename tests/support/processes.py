"""Processes as the kernel shows them: who lives, whose they are, what they hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from support.waiting import wait_until

MARKER = "DDIP_GROUP"


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def state(pid: int) -> str:
    """R, S, D, T, Z …; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    """A zombie is dead: nothing of it runs any more."""
    return state(pid) not in ("", "Z", "X")


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def environment_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def holds_file_under(pid: int, folder: str) -> bool:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(folder + "/"):
                return True
        except OSError:
            continue
    return False


def of_runtime(runtime: str) -> list[int]:
    """Live processes with our marker whose group lives in that runtime folder. A coordinator's environment holds the
    marker alone, so it is known by the files it holds."""
    found = []
    for pid in all_pids():
        variables = environment_of(pid)
        if MARKER not in variables or not alive(pid):
            continue
        if variables.get("DDIP_RUNTIME_DIR") == runtime or holds_file_under(pid, runtime):
            found.append(pid)
    return found


def with_marker(marker: str) -> list[int]:
    return [pid for pid in all_pids() if environment_of(pid).get(MARKER) == marker and alive(pid)]


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def describe(pid: int) -> str:
    command = " ".join(command_of(pid)) or "?"
    return f"{pid} [{state(pid)}, parent {parent_of(pid)}] {command}"


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def assert_gone(pids: Iterable[int], seconds: float, what: str = "") -> None:
    """All of them are dead in time. What is left over is named, and killed so that it harms no other test."""
    pids = list(pids)
    try:
        wait_until(lambda: not any(alive(pid) for pid in pids), seconds, "gone")
    except AssertionError:
        left = [pid for pid in pids if alive(pid)]
        text = "\n  ".join(describe(pid) for pid in left)
        kill(left)
        raise AssertionError(f"left over after {seconds} s {what}:\n  {text}") from None


def resident(pid: int) -> int:
    """Bytes of physical memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def listening_addresses(pids: Iterable[int]) -> set[tuple[str, int]]:
    """(address in /proc's hexadecimal, port) of every TCP socket in LISTEN that one of these processes holds."""
    inodes = set()
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found


def is_asleep(pid: int) -> bool:
    """Whether its main thread waits in a system call."""
    return state(pid) == "S"
