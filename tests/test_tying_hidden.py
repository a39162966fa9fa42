"""A weight that one stage uses and another one has is shared, or the model is refused: no stage trains a copy that nobody sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from ddip.pipeline.faithful import check  # noqa: E402
from ddip.pipeline.split import split  # noqa: E402
from ddip.pipeline.trace import trace  # noqa: E402
from torch import nn  # noqa: E402

import ddip as library  # noqa: E402


class Head(nn.Module):
    """Its weight is the embedding's; torch does not know."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.of = [embedding]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.of[0].weight)


class BehindTorch(nn.Module):
    of: nn.Embedding

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.__dict__["of"] = embedding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.of.weight)


class Registered(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


class Whole(nn.Module):
    def __init__(self, embedding: nn.Embedding, head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.middle, self.head = embedding, nn.Linear(8, 8), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(x)).tanh())  # type: ignore[no-any-return]


class Output(nn.Module):
    def forward(self, given: tuple[torch.Tensor, Any]) -> torch.Tensor:
        return given[0]


def layers(head: Callable[[nn.Embedding], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 8)
    return [embedding, nn.Linear(8, 8), nn.Tanh(), head(embedding)]


def words() -> torch.Tensor:
    return torch.randint(0, 10, (4, 3), generator=torch.Generator().manual_seed(1))


def look(model: Any, **options: Any) -> Any:
    traced = trace(model, (words(),), **options)
    check(traced, (words(),))
    return traced


@pytest.mark.parametrize("head", [Head, BehindTorch])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_by_a_hidden_reference_is_refused_with_its_name(head: Any, frozen: bool) -> None:
    made = layers(head)
    made[0].requires_grad_(not frozen)  # the same everywhere, if nobody trains it
    embedding, _, _, last = made
    for model, options, layer, name in (
        (nn.Sequential(*made), {}, "3", "0.weight"),
        (made, {}, "3", "0.weight"),
        (Whole(embedding, last), {"leaves": [head]}, "head", "embedding.weight"),  # type: ignore[arg-type]
    ):
        if frozen:
            look(model, **options)
            continue
        with pytest.raises(library.ConfigError) as error:
            look(model, **options)
        assert str(error.value) == (
            f"layer {layer} uses parameter {name} by a reference that torch does not know, and a stage of its own would not train it; "
            "expected the parameter, or its module, as an attribute of the layer: then stages share it"
        )


def test_what_is_registered_or_followed_by_the_trace_is_shared() -> None:
    traced = look(nn.Sequential(*layers(Registered)))
    assert split(traced, [["0", "1"], ["2", "3"]]).tied == [[(0, "0.weight"), (1, "3.weight")]]
    embedding, _, _, last = layers(Head)
    traced = look(Whole(embedding, last))  # type: ignore[arg-type]
    names = [layer.name for layer in traced.layers]
    assert [[stage for stage, _ in tie] for tie in split(traced, [names[:1], names[1:]]).tied] == [[0, 1]]


def pipe(model: Any, **options: Any) -> Any:
    return library.Pipeline(
        model, loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, 0.1), schedule="1f1b", micro_batches=2, **options
    )  # fmt: skip


def test_without_an_example_a_hidden_reference_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="^stage 3 refers to weights of stage 0 that are not its own: if its forward"):
        made = pipe(layers(Head))
    assert len([note for note in made.notes if "refers to weights of stage 0" in note]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipe(layers(Registered)).ties
        pipe(nn.Sequential(*layers(Head)), stages=1)
        recurrent = nn.LSTM(8, 8)  # it has a list of its weights
        assert pipe([nn.Linear(8, 8), nn.Sequential(recurrent), Output(), nn.Sequential(recurrent)]).ties
    with pytest.raises(library.ConfigError, match="^layer 3 uses parameter 0.weight by a reference"):
        pipe(layers(Head), example=words())
