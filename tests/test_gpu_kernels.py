"""The text of our GPU kernels, compiled for the processor and run thread by thread: the bits of the stated operations.

What torch's CUDA kernels contract, a + alpha * b, is torch.add(a, b, alpha=alpha) on the processor too; of addcdiv, only
CUDA's has it. tests/test_gpu.py compares on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
SOURCE = Path(__file__).resolve().parent.parent / "src" / "ddip" / "staleness" / "fused_cuda_kernels.cpp"

# What CUDA has and a processor has not.
SHIM = """
#include <cmath>
#define __device__
#define __global__
#define __launch_bounds__(...)
struct Place { unsigned x; } blockIdx, blockDim, threadIdx, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float __fmul_rn(float x, float y) { return x * y; }
static float __fadd_rn(float x, float y) { return x + y; }
static float __fsub_rn(float x, float y) { return x - y; }
static float __fdiv_rn(float x, float y) { return x / y; }
static float __fsqrt_rn(float x) { return std::sqrt(x); }
static float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
extern "C" void be(unsigned thread, unsigned block, unsigned threads, unsigned blocks) {
  threadIdx.x = thread; blockIdx.x = block; blockDim.x = threads; gridDim.x = blocks;
}
"""


class Range(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("count", "head", "fours")]


class Step(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("kept", "root", "moment", "gradient")]


class Steps(ctypes.Structure):
    _fields_ = [
        ("steps", Step * 64),
        *((name, ctypes.c_float) for name in ("eps", "first", "decay", "pending")),
        *((name, ctypes.c_int) for name in ("count", "through_moments", "moves_by_gradient")),
    ]


def test_structures_have_the_places_that_the_host_gives_them() -> None:
    # src/ddip/staleness/fused_cuda_test.cpp has the same numbers.
    assert [getattr(Range, field[0]).offset for field in Range._fields_] == [0, 8, 16]
    assert [getattr(Step, field[0]).offset for field in Step._fields_] == [0, 4, 8, 12]
    assert [getattr(Steps, field[0]).offset for field in Steps._fields_] == [0, *range(1024, 1049, 4)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("kernels")
    found = re.search(r'R"cuda\((.*?)\)cuda"', SOURCE.read_text(), re.DOTALL)
    assert found and COMPILER
    (folder / "kernels.cpp").write_text(SHIM + found[1])
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"]
    subprocess.run([COMPILER, *flags, "-o", folder / "kernels.so", folder / "kernels.cpp"], check=True)
    yield ctypes.CDLL(str(folder / "kernels.so"))


class Tensors:
    """Random ones that all begin `offset` elements after a multiple of 16 bytes, with a border that must stay."""

    def __init__(self, count: int, offset: int) -> None:
        self.count, self.offset = count, offset
        self.generator = torch.Generator().manual_seed(1000 * count + offset)

    def one(self, *, positive: bool = False) -> Any:
        whole = torch.randn(self.count + 16, generator=self.generator)
        assert whole.data_ptr() % 16 == 0
        part = whole[8 + self.offset : 8 + self.offset + self.count]
        return part.abs_() if positive else part

    @property
    def range(self) -> Range:
        head = min(self.count, -self.offset % 4)
        return Range(self.count, head, (self.count - head) // 4)


# Threads in a block, blocks: fewer threads than elements, and more.
GRIDS = [(1, 1), (3, 2), (32, 3)]
COUNTS = [1, 2, 3, 4, 5, 8, 31, 130]


def launch(kernels: ctypes.CDLL, name: str, grid: tuple[int, int], out: Any, *arguments: Any) -> None:
    converted = [
        ctypes.c_void_p(one.data_ptr()) if torch.is_tensor(one) else ctypes.c_float(one) if type(one) is float else one
        for one in arguments
    ]
    border = out._base.clone()
    for block in range(grid[1]):
        for thread in range(grid[0]):
            kernels.be(thread, block, *grid)
            getattr(kernels, name)(ctypes.c_void_p(out.data_ptr()), *converted)
    border[out.storage_offset() : out.storage_offset() + out.numel()] = out
    assert torch.equal(border, out._base), "it wrote outside its tensor"


def cases(count: int) -> Iterator[tuple[Tensors, Range, tuple[int, int]]]:
    for offset in range(4):
        for grid in GRIDS:
            yield Tensors(count, offset), Tensors(count, offset).range, grid
            yield Tensors(count, offset), Range(count, 0, 0), grid  # as where pointers are not placed alike


NOTHING = ctypes.c_void_p(None)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("terms", [(), ("v",), ("p",), ("v", "p")], ids=str)
def test_linear_updates(kernels: ctypes.CDLL, count: int, terms: tuple[str, ...]) -> None:
    for tensors, places, grid in cases(count):
        for a in (1.0, 0.9371):
            out, w, v, p = (tensors.one() for _ in range(4))
            given = [x if name in terms else NOTHING for name, x in (("v", v), ("p", p))]
            launch(kernels, "linear", grid, out, places, w, *given, a, -0.271, 0.0333)
            stated = torch.mul(w, a)
            if "v" in terms:
                stated.add_(v, alpha=-0.271)
            if "p" in terms:
                stated.add_(p, alpha=0.0333)
            assert torch.equal(out, stated)


def root_of(second: Any) -> Any:
    return second.double().sqrt().float()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("with_pending", [False, True])
def test_adaptive_updates(kernels: ctypes.CDLL, count: int, with_pending: bool) -> None:
    for tensors, places, grid in cases(count):
        for a, b in ((1.0, 1.0), (0.97, 0.9)):
            out, w, m, p = (tensors.one() for _ in range(4))
            u = tensors.one(positive=True)
            given = p if with_pending else NOTHING
            launch(kernels, "adaptive", grid, out, places, w, m, u, given, a, -0.0123, 1.7, 1e-3, b, 0.07)
            moment = torch.mul(m, b)
            if with_pending:
                moment.add_(p, alpha=0.07)
            denominator = root_of(u).mul_(1.7).add_(1e-3)
            assert torch.equal(out, torch.mul(w, a).add_(moment.div(denominator), alpha=-0.0123))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["second decays", "L2", "L2 and pending", "L2 of NAdam"])
def test_step_by_step_updates(kernels: ctypes.CDLL, count: int, kind: str) -> None:
    through, by_gradient, with_pending = kind.startswith("L2"), "NAdam" in kind, "pending" in kind
    kept = [1.0, 1.0, 1.0] if through else [0.99, 0.98, 0.97]
    steps = [Step(kept[k], 1.7 - 0.1 * k, -0.012 - 0.002 * k, -0.003 + 0.0007 * k) for k in range(3)]
    by = Steps((Step * 64)(*steps), 1e-3, 0.9, 0.013, 0.07, 3, through, by_gradient)
    for tensors, places, grid in cases(count):
        out, w, m, p = (tensors.one() for _ in range(4))
        u = tensors.one(positive=True)
        launch(kernels, "steps", grid, out, places, w, m, u, p if with_pending else NOTHING, by)
        now, moment = w.clone(), m.clone()
        for k, step in enumerate(steps):
            now.mul_(step.kept)
            before, denominator = now.clone(), root_of(u).mul_(step.root).add_(1e-3)
            if through:
                moment.mul_(by.first).add_(now, alpha=by.decay)
            if with_pending and k == 0:
                moment.add_(p, alpha=by.pending)
            if by_gradient:
                now.add_(before.div(denominator), alpha=step.gradient)
            now.add_(moment.div(denominator), alpha=step.moment)
        assert torch.equal(out, now)


@pytest.mark.parametrize("count", COUNTS)
def test_gap_aware_gradients_in_place(kernels: ctypes.CDLL, count: int) -> None:
    for tensors, places, grid in cases(count):
        gradient, now, used = (tensors.one() for _ in range(3))
        unit = tensors.one(positive=True)
        stated = gradient.clone().div_(torch.sub(now, used).abs_().div_(unit).add_(1))
        launch(kernels, "gap", grid, gradient, places, gradient, now, used, unit)
        assert torch.equal(gradient, stated)
