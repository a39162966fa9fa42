"""Whether the stages of one cut do what the model does.

Each layer by itself has been compared with the model (faithful.py), in the model's order. A stage has several layers, and a cut may
change their order: what a layer changes in place, or what a message does not carry, shows only now.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ddip.pipeline.auxiliary import taken
from ddip.pipeline.faithful import NotTheModel, difference_of, seen
from ddip.pipeline.random_state import begin_with
from ddip.pipeline.split import Split, split
from ddip.pipeline.traced import Traced, first_line, kind


def check_cut(traced: Traced, stages: Sequence[Sequence[str]], inputs: tuple[Any, ...]) -> None:
    """`traced` has been checked; `inputs`: one micro-batch. Raises NotTheModel with the first difference."""
    pieces = split(traced, stages)
    mode = traced.model.training
    for training in (mode, not mode):
        try:
            theirs = seen(traced.model, _whole(traced), inputs, training)
        except Exception:
            if training == mode:
                raise
            continue  # it is no model for this mode
        try:
            ours = seen(traced.model, _cut(pieces), inputs, training)
        except Exception as error:
            raise _refusal(traced, stages, first_line(error)) from error
        for mine, other in zip(ours, theirs, strict=True):
            if difference := difference_of(mine, other):
                raise _refusal(traced, stages, difference)


def _refusal(traced: Traced, stages: Sequence[Sequence[str]], difference: str) -> NotTheModel:
    begins = ", ".join(names[0] for names in stages)
    return NotTheModel(
        f"the stages of {kind(traced.model)} that begin with {begins} do not give what the model gives: {difference}; does a layer "
        "change in place what another one needs, or read a named tuple's fields? Cut elsewhere, or name the module in leaves="
    )


def _whole(traced: Traced) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        run = _Run()
        return run(traced.module, *inputs), run.ordered()

    return call


def _cut(pieces: Split) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        run = _Run()
        return pieces.run(inputs, run), run.ordered()

    return call


class _Run:
    """Operations one by one. Each draws the same numbers and has the same losses wherever a cut has put it."""

    def __init__(self) -> None:
        self.first = torch.initial_seed()
        self.losses: dict[str, list[torch.Tensor]] = {}

    def __call__(self, module: fx.GraphModule, *inputs: Any) -> Any:
        return _Seeded(module, self).run(*inputs)

    def ordered(self) -> list[list[torch.Tensor]]:
        return [self.losses[name] for name in sorted(self.losses)]


class _Seeded(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, run: _Run) -> None:
        super().__init__(module)
        self.extra_traceback, self.of = False, run

    def run_node(self, n: fx.Node) -> Any:
        begin_with(zlib.crc32(f"{self.of.first} {n.name}".encode()))
        result = super().run_node(n)
        if losses := taken():
            self.of.losses[n.name] = losses
        return result
