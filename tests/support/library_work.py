"""What a worker of the soak tests is asked to do. Each function checks its own result; all of them run in workers."""

from __future__ import annotations

import os
from typing import Any


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def differentiate_in_parallel(threads: int) -> None:
    """Small integers, so that every sum is exact in any order."""
    import torch

    assert torch.get_num_threads() == threads
    before = count_threads()
    place = torch.arange(512)
    x = ((place[:, None] * 7 + place * 3) % 5).float().requires_grad_()
    y = (x @ x).relu().sum(dtype=torch.float64)
    y.backward()
    rows, columns = x.detach().sum(1), x.detach().sum(0)
    assert y.item() == (rows.double() @ columns.double()).item()
    assert torch.equal(x.grad, columns[:, None] + rows), "wrong gradient"
    assert count_threads() > before, "nothing ran in parallel, so nothing was tried"


def drain_loader() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    numbers = torch.arange(64)
    loader = DataLoader(TensorDataset(numbers, numbers**2), batch_size=8, num_workers=2)
    batches = list(loader)
    assert torch.equal(torch.cat([x for x, _ in batches]), numbers), "samples are missing or out of order"
    assert torch.equal(torch.cat([y for _, y in batches]), numbers**2)


def one_step_of_descent(weight: Any, x: Any, y: Any, rate: float) -> Any:
    """Where the weight of `x * weight` is after one step down the mean squared error, by hand."""
    return weight - rate * (2 * (x * weight - y) * x).mean()


def work_with_torch() -> None:
    """What every library's workers do is all there is to try."""


def work_with_fastai() -> None:
    import torch
    from fastai.vision.all import SGD, DataLoader, DataLoaders, Learner

    # fastai reads WORLD_SIZE: where it is above 1 a Learner gathers its losses from all ranks.
    torch.distributed.init_process_group("gloo")
    x = torch.arange(8.0)[:, None]
    samples = list(zip(x, 3 * x, strict=True))
    loaders = DataLoaders(DataLoader(samples, bs=8, num_workers=2), DataLoader(samples, bs=8, num_workers=2))
    model = torch.nn.Linear(1, 1, bias=False)
    expected = one_step_of_descent(model.weight.item(), x, 3 * x, 0.01)
    learner = Learner(loaders, model, loss_func=torch.nn.functional.mse_loss, opt_func=SGD, train_bn=False)
    learner.fit(1, lr=0.01, wd=0.0)
    torch.testing.assert_close(model.weight.detach()[0, 0], expected)


def work_with_lightning() -> None:
    import lightning.pytorch as lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Slope(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1, bias=False)

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    x = torch.arange(8.0)[:, None]
    model = Slope()
    expected = one_step_of_descent(model.layer.weight.item(), x, 3 * x, 0.01)
    # A group's RANK and WORLD_SIZE are there; one device means that each rank trains alone.
    trainer = lightning.Trainer(
        max_epochs=1, limit_train_batches=1, accelerator="cpu", devices=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(x, 3 * x), batch_size=8))
    torch.testing.assert_close(model.layer.weight.detach()[0, 0], expected)


def work_with_pandas() -> None:
    import tempfile

    import numpy
    import pandas
    import pyarrow
    import pyarrow.parquet

    numbers = numpy.arange(100_000)
    frame = pandas.DataFrame({"key": numbers % 10, "number": numbers, "text": (numbers % 100).astype(str)})
    sums = frame.groupby("key")["number"].sum()
    assert sums.tolist() == [sum(range(key, 100_000, 10)) for key in range(10)]

    pyarrow.set_cpu_count(2)
    before = count_threads()
    table = pyarrow.Table.from_pandas(frame)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "table.parquet")
        pyarrow.parquet.write_table(table, path, row_group_size=10_000)
        again = pyarrow.parquet.read_table(path, use_threads=True)
    assert again.equals(table), "the file holds something else"
    assert count_threads() > before, "pyarrow's pool did not work, so it was not tried"


def work_with_matplotlib() -> None:
    import io

    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(figsize=(4, 3), dpi=50, facecolor="red")
    axes.plot(range(100), [number**2 for number in range(100)], label="square")
    axes.set_title("a title needs fonts")
    axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png")
    pyplot.close(figure)
    file.seek(0)
    picture = pyplot.imread(file, format="png")
    assert picture.shape == (150, 200, 4)
    assert picture[0, 0].tolist() == [1, 0, 0, 1], "the corner is not red"
