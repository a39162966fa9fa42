"""An asynchronous pipeline on a slow link, beside the best synchronous schedule with the same window, in turn.

Each rank lives in a network namespace of its own; neighbours are joined by a veth pair whose two ends are limited by `tc tbf`, and
the ranks speak over Gloo, that is TCP. Where root, `ip` or `tc` are missing, or with --relay, a relay between the ranks limits the
links instead (relay.py says what it limits and what it does not). All schedules step once in a batch of 8 micro-batches
(asynchronous: accumulate=8). First the link is left fast, and the time c of a micro-batch on a stage is measured with all ranks
running; then each direction is limited so that a message takes `ratio` × c. A call trains on 20 batches: an asynchronous pipeline
fills and drains once in a call, as it does once in a real training; the simulator is asked about the same 20.

    .venv/bin/python benchmarks/slow_link.py [--stages 2] [--ratios 0.5,1] [--repeats 8] [--relay]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from table import Table

TARGETS = {(2, 1.0): "≥ 1.25×", (4, 1.0): "≥ 1.5×"}
M, SIZE, WIDTH, LAYERS, TOGETHER = (
    8,
    32,
    512,
    8,
    20,
)  # micro-batches, their samples, layers of a stage, batches in one call
PACKET = os.environ.get("DDIP_BENCH_PACKET", "9000")  # bytes: as a cluster's Ethernet has them
MESSAGE = SIZE * WIDTH * 4 + 4096  # bytes


# --- the network


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Chain:
    """Namespaces one behind the other; each has an address of its own that the others reach through the chain."""

    def __init__(self, count: int) -> None:
        self.names = [f"ddip-bench-{os.getpid()}-{rank}" for rank in range(count)]
        self.limited = False
        try:
            self._make(count)
        except BaseException:
            self.close()
            raise

    def _make(self, count: int) -> None:
        for rank, name in enumerate(self.names):
            call("ip", "netns", "add", name)
            self.within(rank, "ip", "link", "set", "lo", "up")
            self.within(rank, "ip", "link", "add", "home", "type", "veth", "peer", "name", "attic")  # leads nowhere
            self.within(rank, "ip", "link", "set", "attic", "up")
            self.within(rank, "ip", "addr", "add", f"{self.address(rank)}/32", "dev", "home")
            self.within(rank, "ip", "link", "set", "home", "up")
            self.within(rank, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for rank in range(count - 1):
            left, right = self.names[rank], self.names[rank + 1]
            ends = ("right", "mtu", PACKET, "netns", left), ("left", "mtu", PACKET, "netns", right)
            call("ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
            for at, device, end in ((rank, "right", 1), (rank + 1, "left", 2)):
                self.within(at, "ip", "addr", "add", f"10.77.{rank}.{end}/30", "dev", device)
                self.within(at, "ip", "link", "set", device, "up")
        for rank in range(count):
            for other in range(count):
                if other != rank:
                    gate = f"10.77.{rank}.2" if other > rank else f"10.77.{rank - 1}.1"
                    home = self.address(rank)
                    self.within(rank, "ip", "route", "add", f"{self.address(other)}/32", "via", gate, "src", home)

    @staticmethod
    def address(rank: int) -> str:
        return f"10.78.0.{rank + 1}"

    def within(self, rank: int, *words: str) -> None:
        call("ip", "netns", "exec", self.names[rank], *words)

    def limit(self, bytes_per_second: float) -> None:
        """Each direction of each link."""
        how = "change" if self.limited else "add"
        for rank in range(len(self.names)):
            for device in (["left"] if rank else []) + (["right"] if rank < len(self.names) - 1 else []):
                self.within(
                    rank, "tc", "qdisc", how, "dev", device, "root", "tbf", "rate", f"{int(8 * bytes_per_second)}bit", "burst", "16kb",
                    "limit", "4mb",
                )  # fmt: skip
        self.limited = True

    def start(self, rank: int, command: list[str], environment: dict[str, str], **pipes: Any) -> subprocess.Popen[str]:
        within = ["ip", "netns", "exec", self.names[rank], *command]
        return subprocess.Popen(within, env={**environment, "GLOO_SOCKET_IFNAME": "home"}, text=True, **pipes)

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Relayed:
    """The same ranks without namespaces: a relay between them limits the rate."""

    def __init__(self, count: int) -> None:
        from relay import Relay

        self.relay = Relay(count)

    def limit(self, bytes_per_second: float) -> None:
        self.relay.bytes_per_second = bytes_per_second

    def start(self, rank: int, command: list[str], environment: dict[str, str], **pipes: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, "--port", str(self.relay.store.port)], env=environment, text=True, **pipes)

    def close(self) -> None:
        self.relay.close()


# --- one rank


def ranks_of(rank: int, stages: int, port: int | None) -> Any:
    """Gloo in a chain of namespaces, or through the relay whose store listens at `port`."""
    import torch.distributed as dist
    from ddip.communicators import engine

    import ddip

    if port is None:
        dist.init_process_group("gloo", init_method=f"tcp://{Chain.address(0)}:29400", rank=rank, world_size=stages)
        return ddip.comm("c10d")
    from relay import join

    return engine().Communicator(join(port, rank, stages), "gloo", "through a relay")


def worker(rank: int, stages: int, repeats: int, port: int | None) -> None:
    import time

    import torch

    import ddip

    torch.set_num_threads(1)
    ranks = ranks_of(rank, stages, port)

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        layers = [[torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()] for _ in range(LAYERS * stages)]
        return [
            torch.nn.Sequential(*(part for pair in layers[s * LAYERS : (s + 1) * LAYERS] for part in pair))
            for s in range(stages)
        ]

    torch.manual_seed(1)
    x, y = torch.randn(M * SIZE, WIDTH), torch.randn(M * SIZE, WIDTH)

    def pipe_of(schedule: str, **options: Any) -> Any:
        return ddip.Pipeline(
            parts(), loss=torch.nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
            schedule=schedule, micro_batches=M, ranks=ranks, **options,
        )  # fmt: skip

    pipe = pipe_of("async_1f1b", staleness="msnag", accumulate=M, window=[2 * (stages - 1 - s) for s in range(stages)])
    for _ in range(2):
        report = pipe.run([(x, y)] * TOGETHER)
    c = max((stage.forward + stage.backward + stage.update) / (M * TOGETHER) for stage in report.stages)
    tell = sys.stdout if rank == 0 else open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    print(json.dumps({"c": c}), file=tell, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ranks.barrier()
        sides = [pipe_of(schedule, **options) for schedule, options in asked["sides"]]
        times: list[list[float]] = [[] for _ in sides]
        for turn in range(repeats + 1):
            for side, seconds in zip(sides, times, strict=True):
                ranks.barrier()
                begun = time.perf_counter()
                side.run([(x, y)] * TOGETHER)
                ranks.barrier()
                if turn:
                    seconds.append((time.perf_counter() - begun) / TOGETHER)
        print(json.dumps({"times": times}), file=tell, flush=True)
    ranks.barrier()  # nobody leaves while another one's message is on its way


# --- all of them


def answer(stream: IO[str] | None) -> Any:
    assert stream
    line = stream.readline()
    if not line:
        raise SystemExit("a rank ended before its answer")
    return json.loads(line)


def possible() -> bool:
    return os.geteuid() == 0 and bool(shutil.which("ip")) and bool(shutil.which("tc"))


def measure(table: Table, stages: int, ratios: list[float], repeats: int, relayed: bool) -> None:
    from ddip.schedule import default_window, make_plan

    links_of_ranks: Chain | Relayed = Relayed(stages) if relayed else Chain(stages)
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(stages):
            command = [sys.executable, str(Path(__file__)), "--worker", str(rank)]
            command += ["--stages", str(stages), "--repeats", str(repeats)]
            told = subprocess.PIPE if rank == 0 else None
            environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
            processes.append(links_of_ranks.start(rank, command, environment, stdin=subprocess.PIPE, stdout=told))
        c = answer(processes[0].stdout)["c"]
        print(f"c = {c * 1000:.2f} ms for a micro-batch on a stage, {MESSAGE} bytes in a message", flush=True)
        for ratio in ratios:
            links_of_ranks.limit(MESSAGE / (ratio * c))
            costs, links = [(c / 3, c / 3, c / 3, 0.0, 0.0)] * stages, [ratio * c] * (stages - 1)
            window = list(default_window(stages, costs=costs, links=links))
            wide = {"window": window}
            sides: list[tuple[str, dict[str, Any]]] = [
                ("gpipe", {}), ("1f1b", {}), ("1f1b", wide), ("async_1f1b", {**wide, "staleness": "msnag", "accumulate": M}),
            ]  # fmt: skip
            for process in processes:
                assert process.stdin
                process.stdin.write(json.dumps({"sides": sides}) + "\n")
                process.stdin.flush()
            times = [statistics.median(found) for found in answer(processes[0].stdout)["times"]]
            foreseen = [
                make_plan(
                    schedule, stages, M, batches=TOGETHER, costs=costs, links=links, **{"window": options["window"]} if "window" in options else {}
                ).simulate().makespan / TOGETHER
                for schedule, options in sides
            ]  # fmt: skip
            show(table, stages, relayed, ratio, window, times, foreseen)
    finally:
        for process in processes:
            if process.stdin:
                process.stdin.close()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        links_of_ranks.close()


def show(
    table: Table, stages: int, relayed: bool, ratio: float, window: list[int], times: list[float], foreseen: list[float]
) -> None:
    names = ["gpipe", "1f1b", f"1f1b window {window}", f"async_1f1b msnag window {window}"]
    how = "relay" if relayed else "tc"
    for name, seconds, simulated in zip(names, times, foreseen, strict=True):
        print(
            f"  {ratio:g} c: {name:40} {seconds * 1000:8.1f} ms a batch, simulated {simulated * 1000:8.1f} ms",
            flush=True,
        )
    best = min(range(3), key=lambda side: times[side])
    ideal = min(foreseen[:3]) / foreseen[3]
    table.say(
        f"slow link ({how}), {stages} stages, a message takes {ratio:g} × a micro-batch (simulated {ideal:.2f}×)",
        f"{times[3] * 1000:.1f} ms a batch", f"{names[best]} {times[best] * 1000:.1f} ms", f"{times[best] / times[3]:.2f}×",
        TARGETS.get((stages, ratio), ""),
    )  # fmt: skip


def measure_two(table: Table, quick: bool, stages: int = 2) -> None:
    measure(table, stages, [1.0] if quick else [0.5, 1.0], 2 if quick else 5, not possible())


def measure_four(table: Table, quick: bool) -> None:
    # Beside each rank's own thread, Gloo's and the executor's carry its messages, and the relay's pass them on.
    if len(os.sched_getaffinity(0)) >= 16:
        measure_two(table, quick, stages=4)
    else:
        table.say("slow link, 4 stages", "not measured: needs 16 cores")


MEASURES = {"slow_link": measure_two, "slow_link_four": measure_four}


def main() -> None:
    asks = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    asks.add_argument("--stages", type=int, default=2)
    asks.add_argument("--ratios", default="0.5,1")
    asks.add_argument("--repeats", type=int, default=8)
    asks.add_argument("--relay", action="store_true", help="even where the kernel could limit links")
    asks.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    asks.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = asks.parse_args()
    if asked.worker is not None:
        return worker(asked.worker, asked.stages, asked.repeats, asked.port)
    table = Table()
    ratios = [float(ratio) for ratio in asked.ratios.split(",")]
    measure(table, asked.stages, ratios, asked.repeats, asked.relay or not possible())
    print(table.text())
    return None


if __name__ == "__main__":
    main()
