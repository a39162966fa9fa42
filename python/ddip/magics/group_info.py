"""A group in words: its ranks, its running cells, how long it lives."""

from __future__ import annotations

from typing import Any

from ddip import _client


def describe(info: dict[str, Any]) -> str:
    lines = [f"group {info['name']}: {info['sentence']}; {info['phase']}, {life_of(info)}"]
    for rank in info["ranks"]:
        why = f" ({rank['why']})" if rank["why"] else ""
        lines.append(f"  rank {rank['rank']}: pid {rank['pid']}, {rank['device']}, {rank['status']}{why}")
    for cell in info["cells"]:
        lines.append(
            f"  cell {cell['cell']} runs for {cell['seconds']:.1f} s on ranks {_client.rank_list(cell['open'])}: {cell['line']}"
        )
    agent = info["agent"]
    warming = agent.get("warm", {}).get("seconds", 0)
    lines += [
        f"  coordinator pid {info['pid']}, warm parent pid {agent['warm_parent']} ({warming:.1f} s to warm), start by {agent['start']}",
        f"  store on 127.0.0.1:{info['port']}, seed {info['seed']} + rank, backend {info['backend']}",
        f"  journal {info['journal']}",
    ]
    return "\n".join(lines)


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
