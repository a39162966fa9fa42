"""On a machine with a real GPU: several ranks on one GPU, started by fork, each with a CUDA context of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddip

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(params=["fork", "exec"])
def four_ranks(request: pytest.FixtureRequest) -> Iterator[ddip.Group]:
    with ddip.Group(workers=4, gpus=[0], start=request.param) as group:
        yield group


def test_four_ranks_compute_on_one_gpu(four_ranks: ddip.Group) -> None:
    assert four_ranks.info()["agent"]["start"] in ("fork", "exec")
    four_ranks.run(
        "import torch, ddip\nx = torch.full((1024, 1024), float(ddip.rank()), device=ddip.device())\ny = (x @ x).sum().item()"
    )
    assert four_ranks.pull("y", rank="all") == [1024.0**3 * rank * rank for rank in range(4)]
    assert [result.value for result in four_ranks.run("str(x.device)")] == ["cuda:0"] * 4


def test_training_with_gloo_on_one_gpu_keeps_replicas_equal(four_ranks: ddip.Group) -> None:
    four_ranks.run(
        "import torch, ddip, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).to(ddip.device()))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "torch.manual_seed(ddip.rank())\n"
        "for step in range(5):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(16, 64, device=ddip.device())).square().mean().backward()\n"
        "    optimizer.step()\n"
        "weight = model.module.weight.detach().cpu()"
    )
    weights = four_ranks.pull("weight", rank="all")
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_a_pushed_cuda_tensor_lands_on_the_ranks_device(four_ranks: ddip.Group) -> None:
    four_ranks.push({"t": torch.arange(4.0, device="cuda")})
    assert [result.value for result in four_ranks.run("(str(t.device), t.sum().item())")] == [("cuda:0", 6.0)] * 4


def test_cuda_tensors_that_share_memory_still_do_where_they_arrive(four_ranks: ddip.Group) -> None:
    base = torch.arange(8.0, device="cuda")
    four_ranks.push({"base": base, "part": base[2:4]})
    assert [result.value for result in four_ranks.run("part += 10\n(base.tolist(), str(base.device))")] == [
        ([0, 1, 12, 13, 4, 5, 6, 7], "cuda:0")
    ] * 4
    pulled = four_ranks.pull_many(["base", "part"])[0]
    pulled["part"].zero_()
    assert pulled["base"].tolist() == [0, 1, 0, 0, 4, 5, 6, 7]


def test_an_interrupted_gpu_loop_keeps_pids_and_variables(four_ranks: ddip.Group) -> None:
    four_ranks.run("import torch, ddip\na = torch.randn(2048, 2048, device=ddip.device())\nkept = 7")
    pids = four_ranks.pids
    cell = four_ranks.run("while True:\n    a = torch.tanh(a @ a)", wait=False)
    while any(rank.get("cell") != cell.number for rank in four_ranks.why()["ranks"]):
        pass
    begun = time.monotonic()
    four_ranks.stop_cell(cell)
    assert cell.wait(5)
    assert time.monotonic() - begun < 5
    assert four_ranks.pids == pids
    assert four_ranks.pull("kept", rank="all") == [7] * 4


def test_a_restarted_rank_can_use_the_gpu_again(four_ranks: ddip.Group) -> None:
    four_ranks.run("import torch, ddip\nx = torch.ones(1, device=ddip.device())")
    four_ranks.restart(ranks=[2])
    result = four_ranks.run("import torch, ddip\ntorch.ones(3, device=ddip.device()).sum().item()")
    assert [one.value for one in result] == [3.0] * 4


# --- our communicators on one GPU, which nothing else lets ranks share

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(scope="module")
def three() -> Iterator[ddip.Group]:
    if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
        pytest.skip("make setup left the data plane out")
    with ddip.Group(workers=3, gpus=[0], name="gpu-three") as group:
        group.run(
            f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import replicas as r\n"
            "import torch, torch.distributed as dist, ddip\n"
            "dist.init_process_group('ddip')\nrank, world, device = ddip.rank(), ddip.world_size(), ddip.device()\n"
            "of = lambda k: (torch.arange(15.0).reshape(3, 5) * (k + 1) + k).to(device)\nmine = lambda: of(rank)"
        )
        yield group


OPERATIONS = {
    "sum": "x = mine(); dist.all_reduce(x); torch.equal(x, sum(of(k) for k in range(world)))",
    "mean": "x = mine(); dist.all_reduce(x, dist.ReduceOp.AVG); torch.equal(x, sum(of(k) for k in range(world)) / world)",
    "max": "x = mine(); dist.all_reduce(x, dist.ReduceOp.MAX); torch.equal(x, of(world - 1))",
    "bf16": "x = mine().bfloat16(); dist.all_reduce(x); torch.equal(x, sum(of(k).bfloat16().float() for k in range(world)).bfloat16())",
    "transposed": "x = mine().t(); dist.all_reduce(x); torch.equal(x, sum(of(k) for k in range(world)).t())",
    "nothing": "x = torch.empty(0, device=device); dist.all_reduce(x); x.numel() == 0",
    "integers": "x = mine().long(); dist.all_reduce(x); torch.equal(x, sum(of(k) for k in range(world)).long())",
    "large": "x = torch.full((100_000_003,), float(rank), device=device); dist.all_reduce(x); bool((x == sum(range(world))).all())",
    "async": "x = mine(); w = dist.all_reduce(x, async_op=True); w.wait(); torch.equal(x, sum(of(k) for k in range(world)))",
    "after work on another stream": "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    big = torch.ones(3000, 3000, device=device); big = (big @ big) / 3000; x = big * (rank + 1); dist.all_reduce(x); y = x.sum()\nbool((x == 6).all()) and y.item() == 6 * 9e6",
    "shared": "c = ddip.comm(); x = c.empty(1_000_003, device=device); x.fill_(rank + 1.0); c.all_reduce(x); bool((x == 6).all())",
    "broadcast": "x = mine(); dist.broadcast(x, 2); torch.equal(x, of(2))",
    "all_gather": "out = [torch.empty(3, 5, device=device) for _ in range(world)]; dist.all_gather(out, mine()); all(torch.equal(out[k], of(k)) for k in range(world))",
    "reduce_scatter": "out = torch.empty(3, 5, device=device); dist.reduce_scatter_tensor(out, torch.cat([of(rank) + k for k in range(world)])); torch.equal(out, sum(of(k) for k in range(world)) + rank * world)",
    "gather": "out = [torch.empty(3, 5, device=device) for _ in range(world)] if rank == 0 else None; dist.gather(mine(), out, 0); rank != 0 or all(torch.equal(out[k], of(k)) for k in range(world))",
    "all_to_all": "out = torch.empty(world, device=device); dist.all_to_all_single(out, torch.arange(world, device=device) * 10.0 + rank); out.tolist() == [rank * 10.0 + k for k in range(world)]",
    "send and receive": "x = torch.empty(1000, device=device); w = dist.isend(torch.full((1000,), float(rank), device=device), (rank + 1) % world); dist.recv(x, (rank - 1) % world); w.wait(); bool((x == (rank - 1) % world).all())",
    "objects": "out = [None] * world; dist.all_gather_object(out, {'rank': rank}); out == [{'rank': k} for k in range(world)]",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_gpu_tensors_gives_what_one_process_computes(three: ddip.Group, name: str) -> None:
    code = OPERATIONS[name] if "\n" in OPERATIONS[name] else OPERATIONS[name].replace("; ", "\n")
    assert [result.value for result in three.run(code)] == [True] * 3


TRAININGS = {
    "plain": "r.train()",
    "branches by rank": "r.train(r.Branches, r.by_rank)",
    "GAN": "r.train(r.Gan, r.gan_loss, steps=9)",
    "accumulation": "r.accumulated()",
    "channels last": "r.train(r.Convolutions)",
    "gradients that stay": "r.train(to_none=False)",
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_on_a_shared_gpu_is_like_one_process(three: ddip.Group, name: str) -> None:
    worst = [result.value for result in three.run(TRAININGS[name])]
    assert all(one < 1e-9 for one in worst), worst


def test_torchs_ddp_trains_on_a_shared_gpu_over_our_backend(three: ddip.Group) -> None:
    three.run(
        "torch.manual_seed(rank)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).to(device))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(5):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(16, 64, device=device)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "weight = model.module.weight.detach().cpu()"
    )
    weights = three.pull("weight", rank="all")
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_a_killed_rank_ends_the_wait_of_the_others_on_the_gpu() -> None:
    with ddip.Group(workers=2, gpus=[0], name="gpu-killed") as group:
        group.run(
            "import ddip, os, signal, torch\nc = ddip.comm()\nx = torch.ones(1000, device=ddip.device())\nc.all_reduce(x)"
        )
        with pytest.raises(ddip.RankError) as failed:
            group.run(
                "if ddip.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
                "try: c.all_reduce(x); said = 'nothing'\nexcept ddip.PeerLost as error: said = str(error)"
            )
        assert list(failed.value.lost) == [1]
        assert "rank 1 is lost" in group.run("said", ranks=[0])[0].value
        assert group.run("x.sum().item()", ranks=[0])[0].value == 2000.0


# --- NCCL by name: one GPU allows one rank only


def test_nccl_by_name_reduces_and_trains_on_one_rank() -> None:
    with ddip.Group(gpus=[0], backend="nccl", name="gpu-nccl") as group:
        group.run(f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import replicas as r\nimport ddip, torch")
        assert group.run("repr(ddip.comm())")[0].value == (
            "<ddip.Communicator nccl: rank 0 of 1, the group has --backend nccl>"
        )
        code = "x = torch.arange(5.0, device=ddip.device())\nddip.comm().all_reduce(x, 'mean').tolist()"
        assert group.run(code)[0].value == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert group.run("ddip.broadcast_object({'a': 1})")[0].value == {"a": 1}
        assert group.run("ddip.gather_objects(ddip.rank())")[0].value == [0]
        assert group.run("r.train()")[0].value < 1e-9


def test_nccl_is_refused_where_ranks_share_a_gpu() -> None:
    with pytest.raises(ddip.ConfigError, match="--backend nccl: it needs a GPU for each worker, and 2 workers"):
        ddip.Group(workers=2, gpus=[0], backend="nccl")
    with ddip.Group(workers=2, gpus=[0], name="gpu-two") as group:
        group.run("import ddip\ntry: ddip.comm('nccl')\nexcept ddip.ConfigError as error: said = str(error)")
        line = "backend='nccl' needs one GPU per rank, and ranks 0 and 1 share one: shm lets them"
        assert group.pull("said", rank="all") == [line] * 2
