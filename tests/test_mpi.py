"""Programs that mpirun started: what they get, how they train, how they end. The operations: test_communicator.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import mpirun, processes
from test_data_parallel import LIKE_ONE_PROCESS

import ddip

pytest.importorskip("torch")
ROOT = Path(__file__).parent.parent
if (ROOT / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )
pytestmark = pytest.mark.timeout(180)
SUPPORT = str(Path(__file__).parent / "support")


@mpirun.there
def test_a_script_finds_its_ranks_and_the_communicator_says_why(tmp_path: Path) -> None:
    done = mpirun.python(
        2,
        tmp_path,
        """
import os, ddip
comm = ddip.comm()
os.write(1, f"{ddip.rank()} {ddip.world_size()} {comm} {comm.capabilities['aborts']}\\n".encode())
""",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} 2 <ddip.Communicator mpi: rank {rank} of 2, started by mpirun> False" for rank in range(2)
    ]


# Process groups of torch's need a store, which mpirun does not give.
TRAININGS = {name: code for name, code in LIKE_ONE_PROCESS.items() if "init_process_group" not in code}


@mpirun.there
def test_it_trains_like_one_process_on_the_joint_batch(tmp_path: Path) -> None:
    done = mpirun.python(
        2,
        tmp_path,
        f"""
import json, os, sys
sys.path.insert(0, {SUPPORT!r})
import ddip, replicas as r
for name, code in {TRAININGS!r}.items():
    worst = eval(code)
    os.write(1, ("\\n" + json.dumps([name, r.rank, worst, ddip.comm().name]) + "\\n").encode())
os.write(1, ("\\n" + json.dumps(["uneven", r.rank, r.uneven(False)[0], ddip.comm().name]) + "\\n").encode())
""",
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 2 * (len(TRAININGS) + 1)
    assert [one for one in found if not one[2] < 1e-12 or one[3] != "mpi"] == []


def ended(done: subprocess.CompletedProcess[str], begun: float, folder: Path) -> None:
    """The whole job is over, soon, with an error; nobody of it is left."""
    assert done.returncode != 0
    assert time.monotonic() - begun < 60
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    processes.assert_gone(pids, 5.0, "after mpirun has ended")


JOB = """
import os, signal, sys, torch, ddip
comm = ddip.comm()
with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
comm.all_reduce(torch.ones(3))
"""


@mpirun.there
@pytest.mark.parametrize(
    "how", ["os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('lost')", "sys.exit(3)", "os._exit(4)"]
)
def test_a_rank_that_fails_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    done = mpirun.python(3, tmp_path, JOB + f"if ddip.rank() == 1: {how}\ncomm.all_reduce(torch.ones(3))\n")
    ended(done, begun, tmp_path)


@mpirun.there
def test_a_rank_that_does_not_come_is_a_timeout_and_then_mpi_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("gate")
    begun = time.monotonic()
    done = mpirun.python(
        2,
        tmp_path,
        """
import os, torch, ddip
with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
comm = ddip.comm(timeout=1)
comm.barrier()
if ddip.rank() == 1:
    open("gate").read()  # until the other has given up
    raise SystemExit(0)
for _ in range(2):
    try: comm.all_reduce(torch.ones(3))
    except ddip.TimedOut as error: os.write(1, f"{error}\\n".encode())
open("gate", "w").close()
""",
    )
    ended(done, begun, tmp_path)
    line = "rank 0 met its timeout of 1 s in all_reduce number 4; MPI has no way back"
    assert [said.startswith(line) for said in done.stdout.splitlines() if "timeout" in said] == [True, True], (
        done.stdout
    )


@mpirun.there
def test_a_message_may_be_the_last_that_a_program_does() -> None:
    code = """
import datetime, torch, torch.distributed
from ddip.communicators import engine
ranks = engine().C10dBackend.over_mpi(datetime.timedelta(seconds=0.5))
wanted = torch.zeros(1)
try: ranks.recv([wanted], 1 - ranks.rank(), 0).wait()
except RuntimeError as error: print(error, flush=True)
"""
    for _ in range(3):  # Python ends while our thread lets go of the message: not every time
        done = mpirun.mpirun(2, sys.executable, "-c", code)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("met its timeout of 0.5 s") == 2


@mpirun.there
def test_a_receive_that_nothing_meets_is_given_up_alone_and_the_job_ends_well(tmp_path: Path) -> None:
    done = mpirun.python(
        2,
        tmp_path,
        """
import torch, ddip
comm = ddip.comm(timeout=1)
try: comm.receive(torch.zeros(3), 1 - ddip.rank(), 3)
except ddip.TimedOut as error: print(error, flush=True)
total = torch.ones(3)
comm.all_reduce(total)
kept = torch.zeros(3)
left = comm.start_receive(kept, 1 - ddip.rank(), 7)  # nobody will send it
print("sum", total.tolist(), flush=True)
""",
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} met its timeout of 1 s in receive from rank {1 - rank}\n" in done.stdout, done.stdout
    assert done.stdout.count("sum [2.0, 2.0, 2.0]") == 2


@mpirun.there
def test_a_message_of_another_size_is_named(tmp_path: Path) -> None:
    done = mpirun.python(
        2,
        tmp_path,
        """
import os, torch, ddip
comm = ddip.comm()
if ddip.rank() == 0: comm.send(torch.ones(2), 1)
else:
    try: comm.receive(torch.ones(3), 0)
    except ddip.ConfigError as error: os.write(1, f"{error}\\n".encode())
comm.barrier()
""",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "rank 0 sent 8 bytes, rank 1 expected 12")


def said_by(code: str, **environment: str) -> str:
    """What a process of its own says, without mpirun."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**outside, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = "import ddip\ntry: ddip.comm('mpi')\nexcept ddip.ConfigError as error: print(error)"


def test_without_mpirun_it_is_refused_in_one_line_and_nothing_of_mpi_is_loaded() -> None:
    code = ASK + "\nddip.comm().barrier()\nprint('libmpi' in open('/proc/self/maps').read(), ddip.comm().name)"
    assert said_by(code).splitlines() == [
        "backend='mpi' is for programs started by mpirun: OMPI_COMM_WORLD_SIZE is not set",
        "False shm",
    ]


def test_in_a_group_it_is_refused_in_one_line() -> None:
    with ddip.Group(workers=1, name="not-mpi") as group:
        said = group.run(
            "import ddip\ntry: ddip.comm('mpi')\nexcept ddip.ConfigError as error: said = str(error)\nsaid"
        )
    assert said[0].value == "backend='mpi' is for programs started by mpirun: this rank is a worker of a group"


@pytest.mark.parametrize("library", ["missing", "unavailable"])
def test_where_mpi_is_not_there_it_says_so_and_the_rest_works(tmp_path: Path, library: str) -> None:
    """The package as it is without the library, and with what is built where there are no headers of MPI."""
    package = tmp_path / "ddip"
    package.mkdir()
    for file in (ROOT / "python" / "ddip").iterdir():
        if file.name != "libddip_mpi.so":
            (package / file.name).symlink_to(file)
    if library == "unavailable":
        source = ROOT / "src"
        subprocess.run(
            [shutil.which("c++") or "c++", "-std=c++20", "-shared", "-fPIC", f"-I{source}", "-o", package / "libddip_mpi.so",
             source / "ddip/mpi/unavailable/open.cpp", source / "ddip/base/error.cpp"],
            check=True,
        )  # fmt: skip
    alone = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PYTHONPATH": str(tmp_path)}
    said, rest = said_by(ASK + "\nprint(ddip.comm('shm').name, ddip.__file__)", **alone).splitlines()
    assert rest == f"shm {package / '__init__.py'}"
    if library == "missing":
        assert said.startswith("backend mpi: libddip_mpi.so: cannot open shared object file")
    else:
        assert (
            said == "backend mpi: ddip was built without Open MPI: install its headers (libopenmpi-dev) and build again"
        )


@mpirun.there
def test_a_pipeline_trains_like_one_process_and_replays_bit_for_bit(tmp_path: Path) -> None:
    """Ordered channels are tags there; two pipelines side by side, too."""
    done = mpirun.python(
        2,
        tmp_path,
        f"""
import json, os, sys
sys.path.insert(0, {SUPPORT!r})
import ddip, pipelines as p, pipeline_replicas
assert ddip.comm().name == "mpi"
found = [p.synchronous("1f1b", 2, 4, last=7), p.replayed({str(tmp_path / "ledger")!r}, "async_1f1b", "msnag"),
         pipeline_replicas.replicated("1f1b", "none", 2, 2)[:2], pipeline_replicas.clipped("gpipe", "global") < 1e-7]
os.write(1, (json.dumps(found) + "\\n").encode())
""",
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        away, replayed, (apart, same), clipped = json.loads(line)
        assert away < 1e-13 and replayed == "identical" and apart < 1e-13 and same and clipped
