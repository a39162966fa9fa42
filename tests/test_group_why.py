"""I20, I23: what every rank is doing and who is missing; input, debuggers, and the last words of a crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support.waiting import wait_until

import ddip


def test_why_of_an_idle_group_shows_that_nothing_runs(plain: Any) -> None:
    why = plain.why()
    assert why["cells"] == [] and [rank["cell"] for rank in why["ranks"]] == [0, 0]
    assert all("collective" not in rank for rank in why["ranks"])


def test_why_names_the_python_line_of_each_rank_and_since_when(plain: Any) -> None:
    code = "import os, time\ndef deep():\n    print('in', flush=True)\n    time.sleep(600)  # here\nif os.environ['RANK'] == '1':\n    deep()"
    cell = plain.run(code, wait=False)
    wait_until(lambda: (1, "in") in cell._lines and 0 in cell.endings, 5, "rank 1 sleeps, rank 0 is done")
    first = plain.why()
    rank = first["ranks"][1]
    assert rank["cell"] == cell.number and f'"<cell {cell.number}>", line 4 in deep' in rank["stack"], rank["stack"]
    assert first["ranks"][0]["cell"] == 0
    assert [(entry["cell"], entry["open"]) for entry in first["cells"]] == [(cell.number, [1])]
    later = plain.why()["ranks"][1]
    assert later["seconds"] >= rank["seconds"] > 0
    plain.interrupt()
    assert cell.wait(5)


def test_why_does_not_disturb_what_it_looks_at(plain: Any) -> None:
    """A signal would cut a sleep or a C call short."""
    cell = plain.run(
        "import time, ctypes; print('in', flush=True); begun = time.monotonic(); left = ctypes.CDLL(None).sleep(1); (left, time.monotonic() - begun)",
        wait=False,
    )
    wait_until(lambda: len(cell._lines) == 2, 5, "both are in it")
    while not cell.done():
        plain.why()
    for result in cell.results():
        assert result.value[0] == 0 and result.value[1] >= 0.99


def test_why_shows_the_collective_and_who_is_not_in_it(torched: Any) -> None:
    torched.run(
        "import torch, torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group('gloo')"
    )
    cell = torched.run(
        "if dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(1))\nelse:\n    import time; time.sleep(600)",
        wait=False,
    )
    rank = wait_until(
        lambda: next((rank for rank in torched.why()["ranks"] if "collective" in rank), None),
        5,
        "rank 0 is in the collective",
    )
    assert rank["rank"] == 0 and rank["collective"]["operation"] == "all_reduce"
    assert f'"<cell {cell.number}>", line 2' in rank["stack"]
    later = torched.why()["ranks"]
    assert later[0]["collective"]["seconds"] > rank["collective"]["seconds"] >= 0
    assert later[0]["collective"]["number"] == rank["collective"]["number"]
    assert "collective" not in later[1] and "line 4" in later[1]["stack"], "who never arrived, and where it is instead"
    assert "gloo" in later[0].get("native", "") or "Work" in later[0].get("native", ""), "the native frame"
    torched.interrupt()
    assert cell.wait(5)
    torched.rebuild()
    torched.run("dist.destroy_process_group()")


def test_why_counts_collectives_so_that_a_rank_that_is_one_behind_shows(torched: Any) -> None:
    torched.run(
        "import torch, torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group('gloo')"
    )
    torched.run("for _ in range(3): dist.all_reduce(torch.ones(1))")
    cell = torched.run("dist.all_reduce(torch.ones(1))\nif dist.get_rank() == 0: dist.barrier()", wait=False)
    found = wait_until(
        lambda: next(
            (rank for rank in torched.why()["ranks"] if rank.get("collective", {}).get("operation") == "barrier"), None
        ),
        5,
        "rank 0 is in the barrier",
    )
    assert found["rank"] == 0 and found["collective"]["number"] >= 5
    torched.interrupt()
    assert cell.wait(5)
    torched.rebuild()
    torched.run("dist.destroy_process_group()")


def test_a_process_group_without_a_name_is_not_named() -> None:
    from ddip import _client

    waits = {"operation": "all_reduce", "group": "", "number": 2, "seconds": 1.5}
    (line,) = _client.explain({"ranks": [{"rank": 0, "cell": 1, "stack": "", "collective": waits}]})
    assert line.endswith("; in all_reduce number 2 for 1.5 s"), line


def requests(cell: Any) -> list[tuple[int, dict[str, Any]]]:
    """Input requests of this cell as they come; takes events by hand."""
    found = []
    while not found:
        event = cell.pump(5)
        assert event is not None, "no input request came"
        if event[0] == "input_request":
            found.append((event[2], event[3]))
    return found


def test_input_is_asked_of_the_front_end_with_its_prompt_and_rank(either: Any) -> None:
    cell = either.submit({"kind": "cell", "code": "name = input('who? ')\nname * 2", "want_value": True}, [1])
    rank, body = requests(cell)[0]
    assert rank == 1 and body["prompt"] == "who? " and not body.get("secret")
    either.client.send("input_reply", {"text": "me"}, rank, cell.number)
    assert cell.results()[0].value == "meme"


def test_getpass_asks_in_secret(either: Any) -> None:
    cell = either.submit(
        {"kind": "cell", "code": "import getpass; len(getpass.getpass('key: '))", "want_value": True}, [0]
    )
    rank, body = requests(cell)[0]
    assert body["prompt"] == "key: " and body["secret"] is True
    either.client.send("input_reply", {"text": "hush"}, rank, cell.number)
    assert cell.results()[0].value == 4


def test_breakpoint_talks_to_the_front_end(either: Any) -> None:
    cell = either.submit({"kind": "cell", "code": "x = 41\nbreakpoint()\nx", "want_value": True}, [0])
    for command in ("p x + 1", "x = 7", "c"):
        rank, body = requests(cell)[0]
        either.client.send("input_reply", {"text": command}, rank, cell.number)
    cell.wait(5)
    assert "42" in cell.text(0, 1) + cell.text(0, 2)
    assert cell.status == "done"


def read_lines_of_a_question(group: Any) -> None:
    cell = group.submit({"kind": "cell", "code": "input('who? ')"}, [1])
    assert list(cell.lines()) == []
    cell.results()


ASKERS: dict[str, Callable[[Any], Any]] = {
    "run": lambda group: group.run("input('who? ')", ranks=[1]),
    "call": lambda group: group.call(input, "who? ", ranks=[1]),
    "async": lambda group: group.run("input('who? ')", ranks=[1], wait=False).results(),
    "lines": read_lines_of_a_question,
    "breakpoint": lambda group: group.run("breakpoint()", ranks=[1]),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("way", ASKERS)
def test_input_where_a_script_runs_the_cell_is_a_clear_error(plain: Any, way: str) -> None:
    with pytest.raises(ddip.RankError, match=r"input\(\) needs a front end: a notebook, or ddip exec"):
        ASKERS[way](plain)


def test_input_without_a_front_end_is_a_clear_error(start: Any, home: Any) -> None:
    """The client that asked for the cell is gone; nobody will ever answer."""
    group = start(name="asks")
    from support.life import Forked

    from ddip import _client

    def work(say: Any) -> Any:
        client = _client.Client(str(home / "asks"), "gone")
        number, _ = client.execute(
            {
                "kind": "cell",
                "code": f"import os, time\nwhile not os.path.exists({str(home / 'gate')!r}): time.sleep(0.005)\ninput('? ')",
                "ranks": [0],
                "first_line": "",
            }
        )
        say(str(number))
        return client

    victim = Forked(work)
    number = int(victim.hear())
    victim.kill()
    wait_until(lambda: len(group.info()["clients"]) == 2, 5, "it is gone")
    (home / "gate").touch()
    from support import journal

    ending = wait_until(
        lambda: next(
            (record for record in journal.records(group.info()["journal"]) if record[:2] == ("rank_done", number)), None
        ),
        5,
        "the cell's ending",
    )
    assert ending[3]["outcome"] == "error" and "front end" in ending[3]["message"]
    (home / "gate").unlink()


def test_an_input_whose_client_dies_while_it_waits_is_a_clear_error(start: Any, home: Any) -> None:
    group = start(name="asks")
    from support import journal
    from support.life import Forked

    from ddip import _client

    def work(say: Any) -> Any:
        client = _client.Client(str(home / "asks"), "gone")
        number, _ = client.execute({"kind": "cell", "code": "input('? ')", "ranks": [0], "first_line": ""})
        while client.next(number, 5)[0] != "input_request":
            pass
        say(str(number))
        return client

    victim = Forked(work)
    number = int(victim.hear())
    victim.kill()
    ending = wait_until(
        lambda: next(
            (record for record in journal.records(group.info()["journal"]) if record[:2] == ("rank_done", number)), None
        ),
        5,
        "the cell's ending",
    )
    assert ending[3]["outcome"] == "error" and "front end" in ending[3]["message"]


@pytest.mark.skipif(shutil.which("gdb") is None or os.getuid() != 0, reason="needs gdb and the right to attach")
def test_a_rank_waits_for_a_native_debugger_and_goes_on_when_it_came(plain: Any) -> None:
    cell = plain.run("import ddip; ddip.wait_for_debugger(timeout=50); 'attached'", ranks=[1], wait=False)
    line = wait_until(
        lambda: next((line for _, line in cell._lines if "gdb -p" in line), None), 5, "it says how to attach"
    )
    pid = int(line.split("gdb -p")[1].split()[0])
    assert pid == plain.pids[1]
    commands = ["handle SIGINT stop nopass", "continue", "detach"]
    arguments = [word for command in commands for word in ("-ex", command)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(["gdb", "-nx", "-batch", *arguments, "-p", str(pid)], **quiet) as gdb:
        assert cell.results()[0].value == "attached"
        gdb.send_signal(signal.SIGINT)
        gdb.wait(20)
    assert plain.run("1", ranks=[1])[0].value == 1


def test_waiting_for_a_debugger_ends_at_its_limit(plain: Any) -> None:
    with pytest.raises(ddip.RankError, match="no debugger came"):
        plain.run("import ddip; ddip.wait_for_debugger(timeout=0.2)", ranks=[0])


def test_a_crash_leaves_its_stack(start: Any) -> None:
    group = start()
    with pytest.raises(ddip.RankError) as error:
        group.run("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()", ranks=[1])
    text = error.value.lost[1]
    assert "SIGSEGV" in text and "line 3 in crash" in text, text
