"""A language of 16 letters whose next letter depends on the last two, and a small causal transformer that learns it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddip.study.task import Samples, Task

LETTERS, LENGTH, WIDTH, HEADS = 16, 24, 32, 2
LIKELY = (0.6, 0.25, 0.1, 0.05)  # of the letters that may follow two others


def followers() -> Tensor:
    """(last but one, last) → the letters that may come next, likeliest first. The same for ever: it is the task."""
    generator = torch.Generator().manual_seed(21)
    # Mostly decided by the last letter, so that there is something to learn early and something late.
    by_last = torch.stack([torch.randperm(LETTERS, generator=generator) for _ in range(LETTERS)])
    table = by_last.expand(LETTERS, LETTERS, LETTERS).clone()
    for before in range(LETTERS):
        for last in range(LETTERS):
            if (before + last) % 4 == 0:
                table[before, last] = torch.randperm(LETTERS, generator=generator)
    return table[..., : len(LIKELY)]


def texts(count: int, generator: torch.Generator) -> Samples:
    """x: letters, y: at each place the next one."""
    table = followers()
    letters = torch.randint(0, LETTERS, (count, LENGTH + 1), generator=generator)
    chosen = torch.multinomial(torch.tensor(LIKELY), count * (LENGTH - 1), replacement=True, generator=generator)
    for place in range(2, LENGTH + 1):
        choice = chosen[(place - 2) * count : (place - 1) * count]
        letters[:, place] = table[letters[:, place - 2], letters[:, place - 1], choice]
    return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.letters(x) + self.places
        return result


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 3 * WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = x + self.outer(seen.transpose(1, 2).flatten(2))
        return result


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))
        return result


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.letters = nn.Linear(WIDTH, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.letters(self.norm(x))
        return result


def layers() -> list[nn.Module]:
    blocks = [part() for _ in range(3) for part in (Attention, Perceptron)]
    return [Embedding(), *blocks, Head()]


LANGUAGE = Task(
    name="language",
    said="the next of 16 letters, a causal transformer of 3 blocks",
    samples=texts,
    layers=layers,
    micro_batch=8,
    held_out=200,
    target=0.45,
    rates={"sgd": 0.1, "adam": 0.003, "adamw": 0.003, "nadam": 0.003},
)
