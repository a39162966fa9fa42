"""I3, I4, I5, I24: starting is free of races, limited in time, and says which rank did not come."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from support import journal, processes
from support.scripts import Script
from support.waiting import Stopwatch, wait_until

import ddip

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed({seed})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed({seed} + dist.get_rank())
for step in range(20):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()
[p.detach().flatten().tolist() for p in model.parameters()]
"""


def refuse_to_start(tmp_path: Any, monkeypatch: Any, rank: int, what: str) -> None:
    """Makes exec'd workers of that rank do `what` before anything else of theirs runs."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys, time\nif os.environ.get('DDIP_RANK') == '{rank}':\n    {what}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_hundred_starts_and_stops_in_a_row_succeed(home: Any) -> None:
    seen: set[int] = set()
    for _ in range(100):
        with ddip.Group(2, name="again") as group:
            assert [result.value for result in group.run("1 + 1")] == [2, 2]
            seen.update(group.pids)
            coordinator = group.info()["pid"]
        assert not processes.alive(coordinator), "stop returns when the last process has ended"
        assert list(home.iterdir()) == []
    assert len(seen) > 100, "each start has processes of its own"
    assert processes.of_runtime(str(home)) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_hangs_at_start_is_named_at_the_limit(
    home: Any, tmp_path: Any, monkeypatch: Any, rank: int
) -> None:
    refuse_to_start(tmp_path, monkeypatch, rank, "time.sleep(600)")
    with Stopwatch() as watch, pytest.raises(ddip.TimedOut, match=rf"\b{rank}\b") as error:
        ddip.Group(2, start="exec", timeout=1)
    assert 0.9 < watch.seconds < 5
    assert f"rank {1 - rank}" not in str(error.value), "the rank that came is not blamed"
    processes.assert_gone(processes.of_runtime(str(home)), 2.0, "after the failed start")


def test_a_worker_that_dies_at_start_is_named_at_once(home: Any, tmp_path: Any, monkeypatch: Any) -> None:
    refuse_to_start(tmp_path, monkeypatch, 1, "os._exit(7)")
    with Stopwatch() as watch, pytest.raises((ddip.ConfigError, ddip.PeerLost), match=r"rank 1.*7"):
        ddip.Group(2, start="exec", timeout=30)
    assert watch.seconds < 5, "nobody waits for the limit when it is already clear"
    processes.assert_gone(processes.of_runtime(str(home)), 2.0, "after the failed start")


def test_a_warm_parent_that_cannot_start_is_told_with_its_reason(home: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'warm' in sys.argv or 'DDIP_GROUP' in os.environ:\n    os._exit(9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Stopwatch() as watch, pytest.raises((ddip.ConfigError, ddip.PeerLost), match="warm parent.*9"):
        ddip.Group(2, timeout=30)
    assert watch.seconds < 5
    processes.assert_gone(processes.of_runtime(str(home)), 2.0, "after the failed start")


def test_a_library_that_starts_threads_when_imported_means_exec_and_a_note(
    start: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "threaded_library.py").write_text(
        "import threading\n"
        "for _ in range(8):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DDIP_PRELOAD", "threaded_library")
    group = start()
    info = group.info()
    assert info["agent"]["start"] == "exec"
    notes = [body for kind, _, _, body, *_ in journal.records(info["journal"]) if kind == "note"]
    assert any("workers are started by exec" in note and "8 threads" in note for note in notes)
    code = "import sys; 'threaded_library' in sys.modules"
    assert [result.value for result in group.run(code)] == [True, True]


def test_a_pool_of_one_thread_that_computed_is_not_forked(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """A child's first parallel operator would wait for ever for threads that it does not have."""
    (tmp_path / "computing_library.py").write_text(
        "import torch\ntorch.set_num_threads(2)\n(torch.randn(600, 600) @ torch.randn(600, 600)).relu().sum()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    group = start(env={"DDIP_PRELOAD": "torch,computing_library"}, threads=2)
    assert group.info()["agent"]["start"] == "exec"
    code = "import torch; bool((torch.randn(600, 600) @ torch.randn(600, 600)).relu().sum() > 0)"
    assert [result.value for result in group.run(code)] == [True, True]


def test_figures_go_to_the_notebook_also_when_the_warm_parent_imported_matplotlib(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_PRELOAD", "matplotlib.pyplot")
    values = [result.value for result in start().run("import matplotlib; matplotlib.get_backend()")]
    assert values == ["module://matplotlib_inline.backend_inline"] * 2


@pytest.mark.parametrize("method", [pytest.param("fork"), "exec"])
def test_a_python_that_is_not_there_is_named(home: Any, method: str) -> None:
    with pytest.raises(ddip.ConfigError, match="/no/such/python"):
        ddip.Group(2, python="/no/such/python", start=method, timeout=10)
    processes.assert_gone(processes.of_runtime(str(home)), 2.0, "after the failed start")


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"workers": -1}, {"workers": 10**9}, {"backend": "gluu"}, {"on_exit": "maybe"}, {"start": "spawn"}, {"name": "a/b"},
     {"name": "x" * 33}, {"name": ".."}, {"gpus": [0]}, {"hosts": "a,b"}, {"app": "keras"}, {"timeout": -1}, {"threads": 0}, {"env": {"": "x"}},
     {"master_port": 70000}, {"idle": -1}, {"backend": "nccl"}],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_line_before_any_process_starts(home: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ddip.ConfigError) as error:
        ddip.Group(**options)
    assert "\n" not in str(error.value)
    assert list(home.iterdir()) == [], "no group folder, so nothing was started"


def test_an_argument_that_is_not_there_is_refused_with_the_nearest(home: Any) -> None:
    with pytest.raises(ddip.ConfigError, match="^ddip.Group has no argument worker=; did you mean workers\\?$"):
        ddip.Group(worker=2)  # type: ignore[call-arg]
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_any_number_of_cpu_ranks_works_without_a_gpu(start: Any, workers: int) -> None:
    group = start(workers)
    assert [result.value for result in group.run("import ddip; (ddip.rank(), ddip.world_size())")] == [
        (rank, workers) for rank in range(workers)
    ]


def test_without_a_shape_a_machine_without_gpus_gets_two_cpu_ranks(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "0")
    assert start(None).world_size == 2


def test_gpus_keep_the_users_order(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "4")
    group = start(None, gpus=[3, 1])
    assert group.world_size == 2
    code = "import os; [os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'LOCAL_RANK', 'DDIP_DEVICE')]"
    assert [result.value for result in group.run(code)] == [
        ["3,1", "PCI_BUS_ID", "0", "cuda:0"],
        ["3,1", "PCI_BUS_ID", "1", "cuda:1"],
    ]
    assert [rank["device"] for rank in group.info()["ranks"]] == ["cuda:0", "cuda:1"]


def test_several_ranks_share_a_gpu_in_turn(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "2")
    group = start(4, gpus=[0])
    assert [
        result.value
        for result in group.run(
            "import os; [os.environ[n] for n in ('LOCAL_RANK', 'DDIP_DEVICE', 'CUDA_VISIBLE_DEVICES')]"
        )
    ] == [[str(rank), "cuda:0", "0"] for rank in range(4)]


def test_no_flags_take_every_visible_gpu_in_the_visible_order(start: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,3")
    group = start(None)
    assert [result.value for result in group.run("import os; os.environ['CUDA_VISIBLE_DEVICES']")] == ["2,0,3"] * 3


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(home: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "2")
    with pytest.raises(ddip.ConfigError, match="0") as error:
        ddip.Group(gpus=[5])
    assert "5" in str(error.value) and "1" in str(error.value)


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_two_groups_train_at_once_without_disturbing_each_other(start: Any, method: str) -> None:
    groups = [start(torch=True, name=name, start=method) for name in ("one", "two")]
    assert len({group.info()["port"] for group in groups}) == 2
    cells = [group.run(TRAIN.format(seed=seed), wait=False) for seed, group in enumerate(groups)]
    weights = [[result.value for result in cell.results()] for cell in cells]
    assert weights[0][0] == weights[0][1] and weights[1][0] == weights[1][1], "replicas of one group are equal"
    assert weights[0][0] != weights[1][0], "the groups trained on different data"
    groups[0].stop()
    assert [result.value for result in groups[1].run("dist.all_reduce(x := torch.ones(1)); x.item()")] == [2.0, 2.0]


def test_a_master_port_in_use_is_refused_before_the_workers_start(home: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ddip.ConfigError, match=str(port)):
            ddip.Group(2, master_port=port)
    processes.assert_gone(processes.of_runtime(str(home)), 2.0, "after the refusal")


def test_a_master_port_that_is_asked_for_is_used(start: Any, monkeypatch: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = start(master_port=port)
    assert group.info()["port"] == port
    assert ("0100007F", port) in processes.listening_addresses([group.info()["pid"]])


def test_seeds_differ_by_rank_and_come_back_with_the_same_seed(start: Any) -> None:
    draw = "import random, numpy, torch; (random.random(), float(numpy.random.rand()), torch.rand(1).item())"
    first = [result.value for result in start(torch=True, seed=7).run(draw)]
    again = [result.value for result in start(torch=True, seed=7, start="exec", name="other").run(draw)]
    assert all(a != b for a, b in zip(*first, strict=True)), "every generator differs between the ranks"
    assert first == again


def test_without_a_seed_two_groups_draw_different_numbers(start: Any) -> None:
    draws = [[result.value for result in start(name=name).run("import random; random.random()")] for name in ("a", "b")]
    assert len({number for draw in draws for number in draw}) == 4


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_forked_workers_size_their_thread_pools(start: Any, threads: Any) -> None:
    group = start(torch=True, threads=threads)
    code = "import os, torch; x = torch.randn(700, 700); y = (x @ x).relu().sum(); (torch.get_num_threads(), os.environ.get('OMP_NUM_THREADS'))"
    expected = threads or max(1, (os.cpu_count() or 1) // 2)
    assert [result.value for result in group.run(code)] == [(expected, str(expected))] * 2


def test_a_start_that_is_interrupted_leaves_nothing(home: Any, tmp_path: Any, monkeypatch: Any) -> None:
    refuse_to_start(tmp_path, monkeypatch, 1, "time.sleep(600)")
    with Script(
        "import ddip\nprint('go')\ntry:\n    ddip.Group(2, start='exec', timeout=60)\nexcept KeyboardInterrupt:\n    print('stopped')\ninput()"
    ) as script:
        script.hear()
        wait_until(lambda: len(processes.of_runtime(str(home))) >= 2, 10, "the group is being started")
        script.signal(2)
        assert script.hear(5) == "stopped"
        wait_until(lambda: not processes.of_runtime(str(home)), 5, "nothing of the half-started group is left")


def test_a_former_group_of_this_name_that_still_stops_is_waited_for(start: Any) -> None:
    former = start(name="again")
    deaf = "import ctypes, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); print('in', flush=True); ctypes.CDLL(None).sleep(600)"
    cell = former.run(deaf, wait=False)
    wait_until(lambda: len(cell._lines) == 2, 10, "both ranks are where an orderly end takes its time")
    wait_until(lambda: all(map(processes.is_asleep, former.pids)), 10, "in C, behind the last line of Python")
    pids = former.pids
    former.control.send("stop", {})
    group = start(name="again")
    assert not set(pids) & set(group.pids) and [result.value for result in group.run("1 + 1")] == [2, 2]
    processes.assert_gone(pids, 2.0)


def test_a_group_that_stays_is_not_waited_for(start: Any) -> None:
    start(name="taken")
    with Stopwatch() as watch, pytest.raises(ddip.ConfigError, match="group taken is already running"):
        start(name="taken")
    assert watch.seconds < 5


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "x" * 33, 5])
def test_attach_refuses_what_is_no_name(plain: Any, name: Any) -> None:
    for given in ((name, None), (plain.name, name or "/")):
        with pytest.raises(ddip.ConfigError, match="expected 1 to 32 letters, digits, _ or -"):
            ddip.attach(*given)
