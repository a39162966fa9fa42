"""What stands on torch.distributed runs over our backend: each beside one process without any of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.libraries import python_with

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

INIT = """
import ddip, torch, torch.nn.functional as F, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
rank, world = ddip.rank(), ddip.world_size()
dist.init_process_group("ddip")

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))

def batch(step, of):
    generator = torch.Generator().manual_seed(100 * step + of)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)

def alone(steps):
    # What one process learns of everybody's batches.
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(F.mse_loss(model(x), y) for x, y in (batch(step, of) for of in range(world))) / world).backward()
        optimizer.step()
    return model

def together(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(step, rank)
        F.mse_loss(model(x), y).backward()
        optimizer.step()

def apart(ours, model):
    return max((ours[key] - value).abs().max().item() for key, value in model.state_dict().items())
"""


@pytest.fixture(scope="module")
def two() -> Any:
    with ddip.Group(workers=2, name="torch-on-ddip") as group:
        group.run(INIT)
        yield group


def values(group: Any, code: str) -> list[Any]:
    return [result.value for result in group.run(code)]


def test_fsdp2_trains_like_one_process(two: Any) -> None:
    code = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (world,))
model = net()
for layer in model:
    if isinstance(layer, nn.Linear): fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
together(model, torch.optim.Adam(model.parameters(), 0.01), 5)
sharded = {key: value.full_tensor() for key, value in model.state_dict().items()}
[apart(sharded, alone(5)), [tuple(p.to_local().shape) for p in model.parameters()][0], dist.get_backend()]
"""
    for worst, shard, backend in values(two, code):
        assert worst < 1e-5 and shard == (16, 8) and backend == "ddip"


def test_dtensors_multiply_and_are_laid_out_anew(two: Any) -> None:
    code = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (world,))
generator = torch.Generator().manual_seed(3)
a, b = torch.randn(8, 12, generator=generator), torch.randn(12, 10, generator=generator)
by_rows = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Replicate()])
inside = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
columns = by_rows.redistribute(mesh, [Shard(1)])
[torch.allclose(by_rows.full_tensor(), a @ b, atol=1e-6), torch.allclose(inside.full_tensor(), a @ b, atol=1e-5),
 torch.allclose(columns.full_tensor(), a @ b, atol=1e-6), isinstance(inside.placements[0], Partial), tuple(columns.to_local().shape)]
"""
    assert values(two, code) == [[True, True, True, True, (8, 5)]] * 2


def test_functional_collectives_and_their_gradients(two: Any) -> None:
    code = """
import torch.distributed._functional_collectives as fc
x = torch.full((4,), float(rank + 1))
[fc.all_reduce(x, "sum", dist.group.WORLD).tolist(), fc.all_gather_tensor(x, 0, dist.group.WORLD).tolist(),
 fc.reduce_scatter_tensor(torch.arange(8.0) + rank, "sum", 0, dist.group.WORLD).tolist(),
 fc.all_to_all_single(torch.arange(4.0) + 10 * rank, None, None, dist.group.WORLD).tolist(), x.tolist()]
"""
    first, second = values(two, code)
    assert first[0] == second[0] == [3.0] * 4
    assert first[1] == second[1] == [1.0] * 4 + [2.0] * 4
    assert (first[2], second[2]) == ([1.0, 3.0, 5.0, 7.0], [9.0, 11.0, 13.0, 15.0])
    assert (first[3], second[3]) == ([0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0])
    assert (first[4], second[4]) == ([1.0] * 4, [2.0] * 4)


def test_a_distributed_checkpoint_is_written_and_read_by_another_number_of_shards(two: Any, tmp_path: Path) -> None:
    code = f"""
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (world,))
model = net(); fully_shard(model, mesh=mesh)
together(model, torch.optim.Adam(model.parameters(), 0.01), 3)
dcp.save({{"model": model.state_dict()}}, checkpoint_id={str(tmp_path)!r})
fresh = {{key: torch.zeros_like(value) for key, value in net().state_dict().items()}}
dcp.load({{"model": fresh}}, checkpoint_id={str(tmp_path)!r})
apart(fresh, alone(3))
"""
    assert all(worst < 1e-5 for worst in values(two, code))
    assert list(tmp_path.glob("*.distcp")) and (tmp_path / ".metadata").exists()


def test_object_collectives_and_groups_in_groups(two: Any) -> None:
    code = """
pair = dist.new_group([0, 1]); lone = [dist.new_group([k]) for k in range(world)]
told = [{"from": rank, "list": list(range(rank + 3))}]
dist.broadcast_object_list(told, 1, group=pair)
x = torch.ones(2) * (rank + 1); dist.all_reduce(x, group=lone[rank])
found = [None, None] if rank == 0 else None
dist.gather_object(rank * 5, found, 0)
[told, x.tolist(), found]
"""
    told = [{"from": 1, "list": [0, 1, 2, 3]}]
    assert values(two, code) == [[told, [1.0, 1.0], [0, 5]], [told, [2.0, 2.0], None]]


@pytest.mark.timeout(150)
def test_lightning_trains_with_its_ddp_strategy(tmp_path: Path) -> None:
    python = python_with("lightning")
    script = tmp_path / "train.py"
    script.write_text(
        """
import support.torchvision_operators, torch, ddip, lightning as L
from lightning.pytorch.strategies import DDPStrategy
class Model(L.LightningModule):
    def __init__(self):
        super().__init__(); torch.manual_seed(0); self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, index): return self.layer(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
model = Model()
L.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="ddip"), max_epochs=2, logger=False,
          enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(model, torch.utils.data.DataLoader(data, 8))
print("weights", torch.distributed.get_rank(), torch.distributed.get_backend(), model.layer.weight.sum().item(), flush=True)
"""
    )
    run = Path(ddip.__file__).parent / "_bin" / "ddip"
    done = subprocess.run(
        [run, "run", "-n", "2", "--", python, script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    lines = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("weights"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line[:2] for line in lines] == [["0", "ddip"], ["1", "ddip"]] and lines[0][2] == lines[1][2]
