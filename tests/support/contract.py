"""What every communicator promises. Runs on its ranks, in a group or under mpirun: each case computes what one process
would of all ranks' inputs, and compares. As a script it prints one line of JSON per case and rank:

    contract.py BACKEND
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

import ddip

Case = Callable[[Any], bool]
CASES: dict[str, Case] = {}
REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def of(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What this rank gives: small whole numbers, so that sums and products are exact in every type."""
    return ((torch.arange(15).reshape(3, 5) * (rank + 1) + rank) % 5 + 1).to(dtype)


def all_of(world: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of(rank, dtype) for rank in range(world)])


EXPECTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0, dtype=x.dtype),
    "min": lambda x: x.amin(0),
    "max": lambda x: x.amax(0),
    "product": lambda x: x.prod(0, dtype=x.dtype),
}


def reduction(op: str, dtype: torch.dtype) -> Case:
    def run(comm: Any) -> bool:
        x = of(comm.rank, dtype)
        comm.all_reduce(x, op)
        return torch.equal(x, EXPECTED[op](all_of(comm.world_size, dtype)))

    return run


for op in EXPECTED:
    for dtype in REAL + WHOLE:
        CASES[f"{op} of {str(dtype).removeprefix('torch.')}"] = reduction(op, dtype)


@case
def bits_of_integers(comm: Any) -> bool:
    parts = all_of(comm.world_size, torch.int32)
    found = {op: comm.all_reduce(parts[comm.rank].clone(), op) for op in ("bit_and", "bit_or", "bit_xor")}
    expected = {"bit_and": parts[0].clone(), "bit_or": parts[0].clone(), "bit_xor": parts[0].clone()}
    for part in parts[1:]:
        expected["bit_and"] &= part
        expected["bit_or"] |= part
        expected["bit_xor"] ^= part
    return all(torch.equal(found[op], expected[op]) for op in expected)


@case
def mean_of_every_float(comm: Any) -> bool:
    return all(
        torch.allclose(
            comm.all_reduce(of(comm.rank, dtype), "mean").double(),
            all_of(comm.world_size, torch.float64).mean(0),
            rtol=torch.finfo(dtype).eps,
        )
        for dtype in REAL
    )


@case
def truth_values(comm: Any) -> bool:
    mine = torch.tensor([comm.rank == 0, True, False])
    some, every = comm.all_reduce(mine.clone(), "max"), comm.all_reduce(mine.clone(), "min")
    return some.tolist() == [True, True, False] and every.tolist() == [comm.world_size == 1, True, False]


@case
def complex_numbers(comm: Any) -> bool:
    x = torch.complex(of(comm.rank), -of(comm.rank))
    total = EXPECTED["sum"](all_of(comm.world_size))
    return torch.equal(comm.all_reduce(x), torch.complex(total, -total))


@case
def not_a_number_stays_one(comm: Any) -> bool:
    x = torch.tensor([float("nan") if comm.rank == 0 else 1.0, 2.0])
    return [comm.all_reduce(x.clone(), op).isnan().tolist() for op in ("max", "min", "sum")] == [[True, False]] * 3


@case
def wide_sums_if_declared(comm: Any) -> bool:
    """256 + 1 + 1 is 256 in bfloat16 if each sum is rounded, and 258 if only the last one is."""
    x = torch.tensor([256.0 if comm.rank == 0 else 1.0], dtype=torch.bfloat16)
    y = torch.tensor([2048.0 if comm.rank == 0 else 1.0], dtype=torch.float16)
    comm.all_reduce(x), comm.all_reduce(y)
    wide = (x.item(), y.item()) == (
        torch.tensor(256.0 + comm.world_size - 1).bfloat16().item(),
        torch.tensor(2048.0 + comm.world_size - 1).half().item(),
    )
    return wide if comm.capabilities["wide_sums"] else True


@case
def identical_bits_if_declared(comm: Any) -> bool:
    for count in (7, 1000, 300_000):
        x = torch.randn(count, generator=torch.Generator().manual_seed(comm.rank))
        comm.all_reduce(x)
        every = comm.all_gather(x)
        if comm.capabilities["identical_bits"] and not all(torch.equal(every[0], other) for other in every):
            return False
    return True


@case
def views_that_are_not_contiguous(comm: Any) -> bool:
    """Transposed, and with gaps that nobody may touch."""
    total = all_of(comm.world_size).sum(0)
    around = [torch.full((6, 10), -7.0) for _ in range(3)]
    summed, told, one = (whole[::2, ::2].copy_(of(comm.rank)) for whole in around)
    comm.all_reduce(summed)
    comm.broadcast(told, comm.world_size - 1)
    comm.reduce(one, 0)
    return (
        torch.equal(comm.all_reduce(of(comm.rank).t()), total.t())
        and torch.equal(summed, total)
        and torch.equal(told, of(comm.world_size - 1))
        and (comm.rank != 0 or torch.equal(one, total))
        and all(bool((whole[1::2] == -7).all()) and bool((whole[:, 1::2] == -7).all()) for whole in around)
    )


@case
def nothing_at_all(comm: Any) -> bool:
    x = torch.empty(0)
    comm.all_reduce(x)
    comm.broadcast(x)
    return list(comm.all_gather(x).shape) == [comm.world_size, 0]


@case
def large(comm: Any) -> bool:
    x = torch.full((3_000_001,), float(comm.rank))
    comm.all_reduce(x)
    return bool((x == sum(range(comm.world_size))).all())


@case
def handles(comm: Any) -> bool:
    parts = [torch.full((1000,), float(comm.rank + step)) for step in range(5)]
    for work in [comm.start_all_reduce(part) for part in parts]:
        work.wait()
    ranks = sum(range(comm.world_size))
    return all(bool((part == ranks + step * comm.world_size).all()) for step, part in enumerate(parts))


@case
def reduce_to_one(comm: Any) -> bool:
    root, x = comm.world_size - 1, of(comm.rank, torch.bfloat16)
    comm.reduce(x, root)
    return comm.rank != root or torch.equal(x.float(), all_of(comm.world_size).sum(0))


@case
def broadcast(comm: Any) -> bool:
    x = of(comm.rank, torch.int64)
    comm.broadcast(x, comm.world_size - 1)
    return torch.equal(x, of(comm.world_size - 1, torch.int64))


@case
def all_gather(comm: Any) -> bool:
    return torch.equal(comm.all_gather(of(comm.rank)), all_of(comm.world_size))


@case
def gather(comm: Any) -> bool:
    found = comm.gather(of(comm.rank), 0)
    return found == [] if comm.rank else torch.equal(torch.stack(found), all_of(comm.world_size))


@case
def scatter(comm: Any) -> bool:
    x, root = torch.empty(3, 5), comm.world_size - 1
    comm.scatter(x, [of(peer) * 10 for peer in range(comm.world_size)] if comm.rank == root else [], root)
    return torch.equal(x, of(comm.rank) * 10)


@case
def reduce_scatter(comm: Any) -> bool:
    x, world = torch.empty(4), comm.world_size
    comm.reduce_scatter(x, torch.arange(4.0 * world) * (comm.rank + 1))
    return torch.equal(x, torch.arange(4.0 * world)[4 * comm.rank :][:4] * sum(range(1, world + 1)))


@case
def reduce_scatter_mean_of_bfloat16(comm: Any) -> bool:
    x, world = torch.empty(2, dtype=torch.bfloat16), comm.world_size
    comm.reduce_scatter(x, torch.full((2 * world,), 3.0, dtype=torch.bfloat16), "mean")
    return x.tolist() == [3.0, 3.0]


@case
def all_to_all(comm: Any) -> bool:
    x = torch.empty(comm.world_size)
    comm.all_to_all(x, torch.arange(float(comm.world_size)) * 10 + comm.rank)
    return x.tolist() == [comm.rank * 10.0 + peer for peer in range(comm.world_size)]


@case
def messages_keep_their_order(comm: Any) -> bool:
    """Ten to the next rank, of two tags; the second tag is read first."""
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    works = [comm.start_send(torch.tensor([float(n)]), after, n % 2) for n in range(10)]
    got = []
    for tag in (1, 0):
        for _ in range(5):
            x = torch.empty(1)
            comm.receive(x, before, tag)
            got.append(x.item())
    for work in works:
        work.wait()
    return got == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


@case
def large_messages_both_ways(comm: Any) -> bool:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    x = torch.empty(500_000)
    work = comm.start_send(torch.full((500_000,), float(comm.rank)), after)
    comm.receive(x, before)
    work.wait()
    return bool((x == before).all())


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ddip.ConfigError, RuntimeError) as error:
        return str(error)
    return ""


@case
def wrong_requests_are_refused_before_anything_travels(comm: Any) -> bool:
    lines = [
        refused(lambda: comm.all_reduce(torch.ones(2), "median")),
        refused(lambda: comm.all_reduce(torch.ones(2), "bit_or")),
        refused(lambda: comm.broadcast(torch.ones(2), comm.world_size)),
        refused(lambda: comm.send(torch.ones(2), comm.world_size)),
    ]
    comm.barrier()
    return all(lines) and torch.equal(comm.all_reduce(torch.ones(2)), torch.full((2,), float(comm.world_size)))


def outcome(name: str, comm: Any) -> bool | str:
    try:
        return CASES[name](comm)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = ddip.comm(sys.argv[1])
    for name in CASES:
        line = json.dumps([name, ranks.rank, outcome(name, ranks)])
        os.write(1, f"\n{line}\n".encode())  # in one piece: all ranks write to one pipe
