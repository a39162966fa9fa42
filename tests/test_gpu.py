"""On a machine with a real GPU: several ranks on one GPU, started by fork, each with a CUDA context of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
