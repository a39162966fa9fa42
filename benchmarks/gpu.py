"""Two ranks on one GPU: all-reduce through our backend and through Gloo, in turn. `python benchmarks/gpu.py`, on a machine with a GPU."""

from __future__ import annotations

from statistics import median

import ddip

SETUP = """
import time, torch, torch.distributed as dist, ddip
dist.init_process_group("ddip")
gloo = dist.new_group(backend="gloo")
device = ddip.device()

def times(count, repeats):
    x = torch.ones(count, device=device)
    sides = [lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, group=gloo)]
    found = [[] for _ in sides]
    for turn in range(repeats + 3):
        for call, seconds in zip(sides, found):
            x.fill_(1.0)
            torch.cuda.synchronize()
            dist.barrier()
            begun = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if turn >= 3:
                seconds.append(time.perf_counter() - begun)
    return found
"""
TARGETS = {"1 MiB": "≥ 3×", "16 MiB": "≥ 20×", "256 MiB": "≥ 100×"}


def main() -> None:
    with ddip.Group(workers=2, gpus=[0], name="bench-gpu") as group:
        group.run(SETUP)
        print("all-reduce, 2 ranks on one GPU | ddip | Gloo | ratio | target")
        for size, count in {"64 KiB": 1 << 14, "1 MiB": 1 << 18, "16 MiB": 1 << 22, "256 MiB": 1 << 26}.items():
            ours, gloo = (median(side) * 1e3 for side in group.run(f"times({count}, 20)")[0].value)
            print(f"{size} | {ours:.3f} ms | {gloo:.2f} ms | {gloo / ours:.1f}× | {TARGETS.get(size, '')}")


if __name__ == "__main__":
    main()
