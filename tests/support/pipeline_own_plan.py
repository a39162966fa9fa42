"""Plans that somebody has written, run by pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pipelines as p
import torch

import ddip


def lazy(pipe: ddip.Pipeline, batches: int, file: str) -> str:
    """The plan of a 1f1b whose first stage does one forward more before its first backward: an order that no generator makes."""
    path = Path(f"{file}.{ddip.rank()}")
    pipe.plan_of(batches).save(str(path))
    plan = json.loads(path.read_text())
    actions = plan["ranks"][0]
    per_batch = plan["micro_batches"]
    for batch in range(batches):
        first, third = batch * per_batch, batch * per_batch + 2
        moved = [
            a for a in actions if f"micro_batch={third} " in a + " " and a.startswith(("forward", "send activation"))
        ]
        assert len(moved) == 2
        for action in moved:
            actions.remove(action)
        before = next(
            i for i, a in enumerate(actions) if a.startswith("receive gradient") and f"micro_batch={first} " in a
        )
        actions[before:before] = moved
    plan["capacity"] = [4, 4]
    plan["activations"] = plan["versions"] = []
    path.write_text(json.dumps(plan))
    return str(path)


def order_of(pipe: ddip.Pipeline) -> list[str]:
    return [f"{a.kind[0]}{a.micro_batch}" for a in pipe.plan.ranks[0] if a.kind in ("forward", "backward")]


def runs(file: str, **options: Any) -> tuple[float, list[str], list[str], float]:
    """How far a run in an order of its own ends from one process; that order; that of the run after it; and both runs' end."""
    pipe = p.pipe_of(p.mlp(2), "1f1b", **options)
    batches = p.data(2, 12)
    pipe.run(batches, plan=lazy(pipe, 2, file))
    away, own = p.furthest(p.in_one_process(p.mlp(2), batches), pipe.state_dict()), order_of(pipe)
    pipe.run(p.data(3, 12)[2:])
    again = order_of(pipe)
    return away, own, again, p.furthest(p.in_one_process(p.mlp(2), p.data(3, 12)), pipe.state_dict())


SEEN: list[str] = []


class Noted(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append("forward")
        out = self.inner(x)
        out.register_hook(lambda _: SEEN.append("backward"))
        return out  # type: ignore[no-any-return]


def seen(file: str) -> list[str]:
    """What the first stage's module saw."""
    SEEN.clear()
    first, last = p.mlp(2)
    pipe = p.pipe_of([Noted(first), last], "1f1b")
    pipe.run(p.data(1, 12), plan=lazy(pipe, 1, file))
    return SEEN


def replayed(file: str, ledger: str) -> str | None:
    """An asynchronous run in the order of a plan with a narrower window, from its ledger."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    make: dict[str, Any] = {"staleness": "msnag", "seed": 5}
    narrow = p.pipe_of(p.mlp(2, torch.float32), window=[1, 0], **make)
    path = f"{file}.{ddip.rank()}"
    narrow.plan_of(3).save(path)
    pipe = p.pipe_of(p.mlp(2, torch.float32), window=[3, 0], ledger=ledger, **make)
    batches = p.data(3, 12, dtype=torch.float32)
    pipe.run(batches, plan=path)
    assert max(a.staleness for a in pipe.plan.ranks[0]) == 1
    found = replay(ledger, p.mlp(2, torch.float32), torch.nn.functional.mse_loss, batches)
    stale = [record.values["weights"]["n"] for record in found_records(ledger)]
    assert max(stale) == 1
    return found.difference


def found_records(ledger: str) -> list[Any]:
    from ddip.pipeline.ledger import read

    return [record for record in read(ledger).records if record.kind == "forward"]


def late_steps(pipe: ddip.Pipeline, file: str) -> str:
    """The last stage steps before it has sent the gradient that the first stage's step waits for."""
    pipe.plan_of(2).save(file)
    plan = json.loads(Path(file).read_text())
    actions = plan["ranks"][1]
    sent = next(i for i, a in enumerate(actions) if a.startswith("send gradient") and "micro_batch=3 " in a)
    step = next(i for i, a in enumerate(actions) if a.startswith("step"))
    assert step > sent
    actions.insert(sent, actions.pop(step))
    Path(file).write_text(json.dumps(plan))
    return file


def steps_first(file: str, **options: Any) -> str:
    """What a run says whose steps are told of nothing, or meet."""
    pipe = p.pipe_of(p.mlp(2), "1f1b", **options)
    path = late_steps(pipe, f"{file}.{ddip.rank()}")
    try:
        pipe.run(p.data(2, 12), plan=path)
    except Exception as error:
        return str(error)
    assert p.furthest(p.in_one_process(p.mlp(2), p.data(2, 12)), pipe.state_dict()) < 1e-13
    return "ran"


def refused(what: str, file: str) -> str:
    """And the pipeline trains still."""
    pipe = p.pipe_of(p.mlp(2), "1f1b")
    before = pipe.state_dict()
    path = f"{file}.{ddip.rank()}"
    batches = 2
    plan: Any = path
    if what == "another schedule":
        p.pipe_of(p.mlp(2), "gpipe").plan_of(2).save(path)
    elif what == "other batches":
        pipe.plan_of(3).save(path)
    elif what == "staler weights":
        pipe = p.pipe_of(p.mlp(2), window=[1, 0])
        p.pipe_of(p.mlp(2), window=[3, 0]).plan_of(2).save(path)
    elif what == "another needs":
        pipe = p.pipe_of(p.mlp(2), staleness="stash")
        p.pipe_of(p.mlp(2), staleness="msnag").plan_of(2).save(path)
    elif what == "a deadlock":
        # The last stage wants all its inputs before it gives a gradient; the first one's last input comes after that.
        batches = 1
        pipe.plan_of(1).save(path)
        edited = json.loads(Path(path).read_text())
        edited["ranks"][1].sort(key=lambda action: not action.startswith(("receive activation", "forward")))
        Path(path).write_text(json.dumps(edited))
    elif what == "batches that go back":
        pipe = p.pipe_of(p.mlp(2), "gpipe", accumulate=2)
        pipe.plan_of(2).save(path)
        edited = json.loads(Path(path).read_text())
        for actions in edited["ranks"]:
            for index, action in enumerate(actions):  # 3 and 4 change places
                for one, other in ((3, 9), (4, 3), (9, 4)):
                    if not action.startswith(("step", "drain")):
                        action = action.replace(f"micro_batch={one} ", f"micro_batch={other} ")
                actions[index] = action
        Path(path).write_text(json.dumps(edited))
    elif what == "no plan":
        plan = 3
    elif what == "no file":
        plan = path + ".none"
    elif what == "ready":
        pipe = p.pipe_of(p.mlp(2), order="ready")
        pipe.plan_of(2).save(path)
    elif what == "on one rank only":
        pipe.plan_of(2).save(path)
        plan = path if ddip.rank() else None
    elif what == "nothing to run":
        pipe.plan_of(2).save(path)
        batches = 0
    try:
        pipe.run(p.data(2, 12)[:batches], plan=plan)
    except Exception as error:
        said = str(error)
    else:
        raise AssertionError("it ran")
    if what not in ("staler weights", "another needs", "ready", "batches that go back"):
        assert p.furthest(before, pipe.state_dict()) == 0
    assert len(pipe.run(p.data(2, 12)).losses) == 2
    return said
