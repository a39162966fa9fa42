"""torch.distributed's backend `ddip`, on real ranks: in cells, and without any group of ours under torchrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

INIT = """
import os, torch, torch.distributed as dist, ddip
rank, world = ddip.rank(), ddip.world_size()
torch.set_num_threads(1)
if not dist.is_initialized():
    dist.init_process_group("ddip")
"""


@pytest.fixture(scope="module")
def three() -> Any:
    with ddip.Group(workers=3) as group:
        group.run(INIT)
        yield group


def test_it_is_the_backend_that_was_asked_for(three: Any) -> None:
    assert [result.value for result in three.run("dist.get_backend()")] == ["ddip"] * 3


LAST = """
def left(operation, *tensors):
    before = [tensor._use_count() for tensor in tensors]
    work = operation()
    work.wait()
    return [tensor._use_count() for tensor in tensors] == before
x, y, parts = torch.ones(world), torch.empty(1), [torch.empty(world) for _ in range(world)]
"""


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_reduce(x, async_op=True), x",
        "dist.broadcast(x, 0, async_op=True), x",
        "dist.reduce(x, 0, async_op=True), x",
        "dist.all_gather(parts, x, async_op=True), x, *parts",
        "dist.all_gather_into_tensor(y.expand(world).contiguous().repeat(world), x, async_op=True), x",
        "dist.reduce_scatter_tensor(y, x, async_op=True), x, y",
        "dist.all_to_all_single(x, torch.ones(world), async_op=True), x",
        "dist.gather(x, parts if rank == 0 else None, async_op=True), x, *parts",
        "dist.scatter(x, parts if rank == 0 else None, async_op=True), x, *parts",
    ],
)
def test_what_is_done_holds_none_of_pythons_tensors(three: Any, call: str) -> None:
    """Letting go of one when Python has ended aborts the process: a collective may be the last that a program does."""
    if not three.run("hasattr(torch.Tensor, '_use_count')")[0].value:
        pytest.skip("this torch does not tell how many hold a tensor")
    assert [result.value for result in three.run(f"{LAST}all(left(lambda: {call}) for _ in range(100))")] == [True] * 3


# Each operation is compared with what one process computes of all ranks' inputs: integers in floats, so exactly.
OPERATIONS = {
    "all_reduce": "x = mine(); dist.all_reduce(x); torch.equal(x, sum(of(r) for r in range(world)))",
    "all_reduce max": "x = mine(); dist.all_reduce(x, dist.ReduceOp.MAX); torch.equal(x, torch.stack([of(r) for r in range(world)]).amax(0))",
    "all_reduce avg": "x = mine(); dist.all_reduce(x, dist.ReduceOp.AVG); torch.equal(x, sum(of(r) for r in range(world)) / world)",
    "all_reduce of a transposed view": "x = mine().t(); dist.all_reduce(x); torch.equal(x, sum(of(r) for r in range(world)).t())",
    "all_reduce of nothing": "x = torch.empty(0); dist.all_reduce(x); x.numel() == 0",
    "all_reduce of integers": "x = mine().long(); dist.all_reduce(x); torch.equal(x, sum(of(r) for r in range(world)).long())",
    "all_reduce bf16": "x = mine().bfloat16(); dist.all_reduce(x); torch.equal(x, sum(of(r).bfloat16().float() for r in range(world)).bfloat16())",
    "all_reduce complex": "x = torch.complex(mine(), mine()); dist.all_reduce(x); s = sum(of(r) for r in range(world)); torch.equal(x, torch.complex(s, s))",
    "all_reduce sparse": "x = torch.eye(4).to_sparse() * (rank + 1); dist.all_reduce(x); torch.equal(x.to_dense(), torch.eye(4) * sum(range(1, world + 1)))",
    "all_reduce async": "x = mine(); w = dist.all_reduce(x, async_op=True); w.wait(); torch.equal(x, sum(of(r) for r in range(world)))",
    "all_reduce large": "x = torch.full((5_000_003,), float(rank)); dist.all_reduce(x); bool((x == sum(range(world))).all())",
    "reduce": "x = mine(); dist.reduce(x, 1); torch.equal(x, sum(of(r) for r in range(world)) if rank == 1 else of(rank))",
    "broadcast": "x = mine(); dist.broadcast(x, 2); torch.equal(x, of(2))",
    "all_gather": "out = [torch.empty(3, 5) for _ in range(world)]; dist.all_gather(out, mine()); all(torch.equal(out[r], of(r)) for r in range(world))",
    "all_gather_into_tensor": "out = torch.empty(3 * world, 5); dist.all_gather_into_tensor(out, mine()); torch.equal(out, torch.cat([of(r) for r in range(world)]))",
    "gather": "out = [torch.empty(3, 5) for _ in range(world)] if rank == 0 else None; dist.gather(mine(), out, 0); rank != 0 or all(torch.equal(out[r], of(r)) for r in range(world))",
    "scatter": "out = torch.empty(3, 5); dist.scatter(out, [of(r) * 10 for r in range(world)] if rank == 1 else None, 1); torch.equal(out, of(rank) * 10)",
    "reduce_scatter": "out = torch.empty(3, 5); dist.reduce_scatter(out, [of(rank) + r for r in range(world)]); torch.equal(out, sum(of(r) for r in range(world)) + rank * world)",
    "reduce_scatter_tensor": "out = torch.empty(3, 5); dist.reduce_scatter_tensor(out, torch.cat([of(rank) + r for r in range(world)])); torch.equal(out, sum(of(r) for r in range(world)) + rank * world)",
    "all_to_all": "out = [torch.empty(2) for _ in range(world)]; dist.all_to_all(out, [torch.tensor([rank, r]).float() for r in range(world)]); all(out[r].tolist() == [r, rank] for r in range(world))",
    "all_to_all_single with sizes": "n = [r + 1 for r in range(world)]; out = torch.empty((rank + 1) * world); dist.all_to_all_single(out, torch.full((sum(n),), float(rank)), [rank + 1] * world, n); torch.equal(out, torch.arange(world).float().repeat_interleave(rank + 1))",
    "barrier": "dist.barrier(); True",
    "objects": "out = [None] * world; dist.all_gather_object(out, {'rank': rank}); out == [{'rank': r} for r in range(world)]",
    "send and receive round the ring": "x = torch.empty(100_000); w = dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % world); dist.recv(x, (rank - 1) % world); w.wait(); bool((x == (rank - 1) % world).all())",
    "receive from anybody": "x = torch.empty(1)\nif rank == 0:\n    got = sorted((dist.recv(x), x.item()) for _ in range(world - 1))\nelse:\n    dist.send(torch.tensor([float(rank)]), 0)\nrank != 0 or got == [(r, float(r)) for r in range(1, world)]",
    "batch of messages": "x = torch.empty(4); ops = [dist.P2POp(dist.isend, mine()[0, :4].contiguous(), (rank + 1) % world), dist.P2POp(dist.irecv, x, (rank - 1) % world)]; [w.wait() for w in dist.batch_isend_irecv(ops)]; torch.equal(x, of((rank - 1) % world)[0, :4])",
    "a group of some ranks": "g = dist.new_group([0, 2]); x = mine()\nif rank != 1: dist.all_reduce(x, group=g)\ntorch.equal(x, of(1) if rank == 1 else of(0) + of(2))",
}
INPUTS = "of = lambda r: torch.arange(15.0).reshape(3, 5) * (r + 1) + r\nmine = lambda: of(rank).clone()\n"


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_what_one_process_computes(three: Any, name: str) -> None:
    assert [result.value for result in three.run(INPUTS + OPERATIONS[name].replace("; ", "\n"))] == [True] * 3


TRAIN = """
from torch.nn.parallel import DistributedDataParallel
def train(backend):
    if dist.is_initialized(): dist.destroy_process_group()
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.randn(world * 8, 20, generator=torch.Generator().manual_seed(1))
    for _ in range(10):
        optimizer.zero_grad()
        model(data[rank * 8 : rank * 8 + 8]).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
"""


def test_torchs_ddp_learns_on_it_what_it_learns_on_gloo(start: Any) -> None:
    group = start(torch=True)  # two ranks: a sum of two has one order only, so the bits must agree
    group.run(INIT + TRAIN + "ours, gloo = train('ddip'), train('gloo')")
    ours, gloo = group.pull("ours", rank="all"), group.pull("gloo", rank="all")
    assert (ours[0] == ours[1]).all() and (ours[0] == gloo[0]).all()
    assert (ours[0] != 0).any()


def test_a_comm_hook_runs_on_it(start: Any) -> None:
    group = start(torch=True)
    code = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model.register_comm_hook(None, fp16_compress_hook)
model(torch.randn(4, 8)).sum().backward()
model.module.weight.grad
"""
    gradients = [result.value for result in group.run(INIT + code)]
    assert (gradients[0] == gradients[1]).all() and (gradients[0] != 0).any()


def test_different_calls_are_an_error_that_names_both(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT)
    with pytest.raises(ddip.RankError) as error:
        group.run("dist.all_reduce(torch.ones(4 if rank == 0 else 5))")
    for rank in (0, 1):
        assert "of 4 float32" in error.value.tracebacks[rank] and "of 5 float32" in error.value.tracebacks[rank]
    assert [r.value for r in group.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()")] == [2.0, 2.0]


def test_stop_ends_a_blocked_operation_and_keeps_variables(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT + "precious = rank + 40")
    pids = group.pids
    cell = group.run(
        "if rank == 0: dist.all_reduce(torch.ones(1))\nelse:\n    import time; time.sleep(600)", wait=False
    )
    while any(rank.get("cell") != cell.number for rank in group.why()["ranks"]):
        pass
    begun = time.monotonic()
    group.stop_cell(cell)
    assert cell.wait(5) and time.monotonic() - begun < 5
    assert group.pids == pids
    group.rebuild()
    assert [r.value for r in group.run("x = torch.ones(1)\ndist.all_reduce(x)\n(precious, x.item())")] == [
        (40, 2.0),
        (41, 2.0),
    ]


@pytest.mark.parametrize("how", ["dist.all_reduce(torch.ones(7))", "ddip.DataParallel(torch.nn.Linear(7, 1))"])
def test_why_names_operation_number_and_who_has_not_come(start: Any, how: str) -> None:
    group = start(torch=True)
    group.run(INIT + "dist.barrier()\nddip.comm()")
    cell = group.run(f"if rank == 0: {how}\nelse:\n    import time; time.sleep(600)", wait=False)
    wait_until(lambda: group.why()["ranks"][0].get("communicators"), 10, "rank 0 waits")
    (said,) = group.why()["ranks"][0]["communicators"]
    assert re.fullmatch(r"\w+ number \d+ of \d+ \w+.*; rank 1 has not come \(its last call is .+\)", said), said
    assert ("all_reduce number 3 of 7 float32 (sum)" in said) == ("dist" in how), said
    shown = subprocess.run(
        [Path(ddip.__file__).parent / "_bin" / "ddip", "why", group.name], capture_output=True, text=True, timeout=30
    )
    assert f"waits in {said}" in shown.stdout, shown.stdout
    group.interrupt()
    assert cell.wait(10)
    assert group.why()["ranks"][0]["communicators"] == []


def test_a_killed_rank_ends_the_wait_of_the_others_at_once(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT)
    cell = group.run("if rank == 1: os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(1))", wait=False)
    assert cell.wait(5)
    with pytest.raises(ddip.RankError) as error:
        cell.results()
    assert "rank 1 is lost" in error.value.tracebacks[0]


SCRIPT = """
import os, ddip, torch, torch.distributed as dist
dist.init_process_group("ddip")
x = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
os.write(1, f"sum {x.tolist()} {dist.get_backend()}\\n".encode())  # in one piece: two ranks write to one pipe
dist.destroy_process_group()
"""


def test_a_restarted_rank_is_rebuilt_with_the_backend_that_the_others_have(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT)
    with pytest.raises(ddip.RankError):
        group.run("import os\nif rank == 1: os._exit(3)\ndist.all_reduce(torch.ones(2))")
    group.restart(ranks=[1])
    group.rebuild()
    code = (
        "import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)\n(x.item(), dist.get_backend())"
    )
    assert [result.value for result in group.run(code)] == [(2.0, "ddip")] * 2


def test_a_script_under_torchrun_needs_no_group_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum [3.0, 3.0, 3.0] ddip") == 2


# A part of `make test-torch`, one of each kind; all of them pass on Gloo.
TORCHS_OWN = [
    "test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view", "test_accumulate_gradients_no_sync", "test_all_gather_coalesced_complex",
    "test_all_reduce_coalesced_sum", "test_all_reduce_full_group_min", "test_all_reduce_sum_complex", "test_barrier_full_group", "test_scatter_object_list",
    "test_gather_full_group", "test_isend", "test_reduce_product", "test_scatter_full_group", "test_send_recv_any_source", "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
]  # fmt: skip


def test_cases_of_torchs_own_suite_pass(tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's own suite needs expecttest")
    suite = Path(__file__).parent.parent / "scripts" / "torch_suite.py"
    out = tmp_path / "outcomes.json"
    done = subprocess.run(
        [sys.executable, suite, "--backend", "ddip", "--out", out, *TORCHS_OWN],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert json.loads(out.read_text()) == dict.fromkeys(TORCHS_OWN, "passed"), done.stdout[-3000:]
