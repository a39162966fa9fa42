"""A group in words: its ranks, its running cells, how long it lives."""

from __future__ import annotations

from typing import Any

from ddip import _client


def describe(info: dict[str, Any]) -> str:
    lines = [f"group {info['name']}: {info['sentence']}; {info['phase']}, {life_of(info)}"]
    for rank in info["ranks"]:
        lines.append(f"  rank {rank['rank']}: {state_of(rank)}")
    for cell in info["cells"]:
        lines.append(f"  {running(cell)}: {cell['line']}")
    agent = info["agent"]
    warming = agent.get("warm", {}).get("seconds", 0)
    lines += [
        f"  coordinator pid {info['pid']}, warm parent pid {agent['warm_parent']} ({warming:.1f} s to warm), start by {agent['start']}",
        f"  store on 127.0.0.1:{info['port']}, seed {info['seed']} + rank, backend {info['backend']}"
        + (f", app {info['app']}" if info["app"] else ""),
        f"  journal {info['journal']}",
    ]
    return "\n".join(lines)


def joined(info: dict[str, Any]) -> str:
    """For somebody who comes to it and does not know what happened there."""
    lines = [f"attached to group {info['name']}: {info['sentence']}"]
    for rank in info["ranks"]:
        if rank["status"] == "lost":
            number = rank["rank"]
            lines.append(f"  rank {number} is lost ({rank['why']}); %makedip -r --ranks {number} starts it anew, empty")
    for cell in info["cells"]:
        lines.append(f"  {running(cell)} ({cell['line']}); %diplog {cell['cell']} shows its output")
    if info["user_cells"] and not info["cells"]:
        lines.append("  %diplog last shows what its newest cell printed")
    return "\n".join(lines)


def state_of(rank: dict[str, Any]) -> str:
    why = f": {rank['why']}" if rank["why"] else ""
    if not rank["pid"]:
        return f"{rank['status']}{why}, {rank['device']}"
    return f"pid {rank['pid']}, {rank['device']}, {rank['status']}{why}"


def running(cell: dict[str, Any]) -> str:
    ranks = f"rank{'s' if len(cell['open']) > 1 else ''} {_client.rank_list(cell['open'])}"
    return f"cell {cell['cell']} is running on {ranks} for {cell['seconds']:.0f} s"


def life_of(info: dict[str, Any]) -> str:
    if info["on_exit"] == "stop":
        return "ends with this kernel"
    idle = f", and ends after {duration(info['idle'])} without use (--idle)" if info["idle"] else ""
    return "outlives this kernel" + idle


def duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
