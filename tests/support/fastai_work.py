"""Learners for test_fastai.py: the same code in the workers of a group and in one process."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from fastai.basics import (
    SGD,
    Callback,
    CrossEntropyLossFlat,
    DataLoader,
    DataLoaders,
    Learner,
    Metric,
    MSELossFlat,
    accuracy,
    nn,
)
from fastai.callback.all import *  # noqa: F403  (fit_one_cycle, lr_find, … become methods of Learner)
from fastai.metrics import F1Score


class Samples(list):  # type: ignore[type-arg]
    def new_empty(self) -> Samples:
        """What export() keeps of them."""
        return Samples()


def samples(count: int, seed: int, classes: bool = False) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    y = (x[:, :3].sum(1) + 0.3 * torch.randn(count, generator=generator)).unsqueeze(1)
    return Samples(zip(x, (y.squeeze(1) > 0).long() if classes else y, strict=True))


def net(outputs: int = 1) -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))


def halves(model: Any) -> Any:
    return [list(model[:2].parameters()), list(model[2:].parameters())]


def regression(bs: int, train: int = 45, valid: int = 21, **options: Any) -> Any:
    """No shuffling: the batches of one process with ranks × bs samples are the joint ones."""
    dls = DataLoaders(DataLoader(samples(train, 1), bs=bs), DataLoader(samples(valid, 2), bs=8))
    return Learner(dls, net(), loss_func=MSELossFlat(), **{"opt_func": SGD, "splitter": halves, **options})


class Seen(Metric):
    """A metric of the user's own: it gathers nothing, and counts what it is shown."""

    def reset(self) -> None:
        self.count, self.hits = 0, 0

    def accumulate(self, learn: Any) -> None:
        self.count += len(learn.yb[0])
        self.hits += int((learn.pred.argmax(1) == learn.yb[0]).sum())

    @property
    def value(self) -> float:
        return self.count + self.hits / 1000

    @property
    def name(self) -> str:
        return "seen"


def classification(bs: int, **options: Any) -> Any:
    dls = DataLoaders(DataLoader(samples(40, 1, True), bs=bs), DataLoader(samples(21, 2, True), bs=8))
    metrics = [accuracy, F1Score(), Seen()]
    return Learner(
        dls, net(2), loss_func=CrossEntropyLossFlat(), metrics=metrics, **{"opt_func": SGD, **options}
    )  # fmt: skip


def weights(learn: Any) -> list[float]:
    return [value for parameter in learn.model.parameters() for value in parameter.detach().flatten().tolist()]


class StopAt(Callback):
    """Something goes wrong on one rank, or on all, in the middle of a fit."""

    def __init__(self, step: int, error: BaseException, here: bool = True) -> None:
        self.step, self.error, self.here = step, error, here

    def after_backward(self) -> None:
        if self.here and self.train_iter == self.step:
            raise self.error


class Tell(Callback):
    def after_epoch(self) -> None:
        print(f"epoch {self.epoch} is over", flush=True)


class Numbers(Callback):
    """Which samples each epoch trained on: their x says."""

    def before_fit(self) -> None:
        self.epochs: list[list[int]] = []

    def before_train(self) -> None:
        self.epochs.append([])

    def before_batch(self) -> None:
        if self.training:
            self.epochs[-1] += [int(number) for number in self.xb[0][:, 0]]


def numbered(count: int, bs: int, torch_loader: bool = False, workers: int = 0) -> Any:
    data = [(torch.full((6,), float(number)), torch.zeros(1)) for number in range(count)]
    if torch_loader:
        train = torch.utils.data.DataLoader(data, batch_size=bs, shuffle=True, num_workers=workers)
    else:
        train = DataLoader(data, bs=bs, shuffle=True, num_workers=workers)
    return Learner(DataLoaders(train, DataLoader(data[:3], bs=bs)), net(), loss_func=MSELossFlat(), cbs=Numbers())


def gan(bs: int) -> Any:
    """Two nets of which one trains at a time; the noise is in the data, so that it is the same everywhere."""
    importlib.import_module("support.torchvision_operators")
    from fastai.vision.gan import FixedGANSwitcher, GANLearner

    generator = torch.Generator().manual_seed(5)
    noise, real = torch.randn(48, 4, generator=generator), 2 + torch.randn(48, 3, generator=generator)
    data = list(zip(noise, real, strict=True))
    torch.manual_seed(7)
    maker, critic = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
    )
    return GANLearner(
        DataLoaders(DataLoader(data, bs=bs), DataLoader(data[:9], bs=4)), maker, critic,
        lambda fake_pred, output, target: -fake_pred.mean() + 0.1 * (output - target).square().mean(),
        lambda real_pred, fake_pred: nn.functional.softplus(-real_pred).mean() + nn.functional.softplus(fake_pred).mean(),
        switcher=FixedGANSwitcher(n_crit=2, n_gen=1), opt_func=SGD,
    )  # fmt: skip
