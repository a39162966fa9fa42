"""TRUST's security design 1, 3, 5, 6, 9, 10 and faults 14, 15: who may come in, and what happens to the rest."""

from __future__ import annotations

import base64
import fcntl
import os
import resource
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from support import frames, processes
from support.waiting import Stopwatch, wait_until

import ddip
from ddip import _client

root_only = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
SOMEBODY = 1000


@pytest.fixture(scope="module")
def door(shared_groups: Any) -> Any:
    """(folder, key) of a group that all tests here attack."""
    lent = shared_groups.lend("attacked", workers=2)
    group = next(lent)
    folder = Path(group._folder)
    yield group, folder, (folder / "key").read_bytes()
    next(lent, None)


def unharmed(group: Any) -> bool:
    return [result.value for result in group.run("1 + 1")] == [2, 2]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_folders_socket_and_key_are_the_owners_alone(door: Any) -> None:
    group, folder, key = door
    assert mode(folder) == mode(folder.parent) == 0o700
    assert mode(folder / "socket") == mode(folder / "key") == 0o600 and len(key) == 32
    assert stat.S_ISSOCK((folder / "socket").lstat().st_mode)
    journal = Path(group.info()["journal"])
    assert mode(journal) == mode(journal.parent) == mode(journal.parent.parent) == 0o700
    assert all(mode(path) & 0o077 == 0 for path in [*journal.rglob("*"), *folder.iterdir()])


def test_keys_differ_between_groups_and_go_with_them(start: Any, home: Path) -> None:
    keys = []
    for name in ("a", "b"):
        group = start(name=name)
        keys.append((home / name / "key").read_bytes())
    assert keys[0] != keys[1]
    group.stop()
    assert not (home / "b").exists()


def test_the_key_is_in_nobodys_arguments_or_environment(door: Any) -> None:
    group, _, key = door
    pids = processes.with_marker(group.marker)
    assert len(pids) == 4
    for pid in pids:
        for what in ("cmdline", "environ"):
            text = Path(f"/proc/{pid}/{what}").read_bytes()
            for form in (
                key,
                key.hex().encode(),
                key.hex().upper().encode(),
                base64.b64encode(key).rstrip(b"="),
                base64.urlsafe_b64encode(key).rstrip(b"="),
            ):
                assert form not in text


@pytest.mark.parametrize("soft", [0, 1 << 20])
def test_the_coordinator_dumps_no_core_and_workers_do_as_the_users_shell(start: Any, soft: int) -> None:
    def core(pid: int) -> str:
        return next(
            line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core")
        ).split()[4]

    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] not in (resource.RLIM_INFINITY,) and before[1] < soft:
        pytest.skip("the hard limit forbids core files here")
    resource.setrlimit(resource.RLIMIT_CORE, (soft, before[1]))
    try:
        group = start()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert core(group.info()["pid"]) == "0"
    assert [core(pid) for pid in group.pids] == [str(soft)] * 2


def test_nothing_listens_but_the_store_on_loopback(door: Any) -> None:
    group, folder, _ = door
    pids = processes.with_marker(group.marker)
    assert processes.listening_addresses(pids) == {("0100007F", group.info()["port"])}
    abstract = [
        line for line in Path("/proc/net/unix").read_text().splitlines() if "@" in line and "ddip" in line.lower()
    ]
    assert abstract == []


def test_nothing_listens_beyond_loopback_while_torch_trains(torched: Any) -> None:
    torched.run(
        "import torch, torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))"
    )
    addresses = processes.listening_addresses(processes.with_marker(torched.marker))
    assert {address for address, _ in addresses} == {"0100007F"} and torched.info()["port"] in {
        port for _, port in addresses
    }
    torched.run("dist.destroy_process_group()")


# ---- runtime folder


@pytest.mark.parametrize("bits", [0o755, 0o710, 0o777, 0o701])
def test_a_runtime_folder_that_is_open_to_others_is_refused(home: Path, bits: int) -> None:
    home.chmod(bits)
    with pytest.raises(ddip.ConfigError, match=f"{bits:o}"):
        ddip.Group(2)
    assert list(home.iterdir()) == []


def test_a_runtime_folder_that_is_a_link_or_a_file_is_refused(home: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        monkeypatch.setenv("DDIP_RUNTIME_DIR", str(tmp_path / name))
        with pytest.raises(ddip.ConfigError, match="not a directory"):
            ddip.Group(2)
    assert list((tmp_path / "real").iterdir()) == []


@root_only
def test_a_runtime_folder_of_somebody_else_is_refused(home: Path) -> None:
    os.chown(home, SOMEBODY, SOMEBODY)
    with pytest.raises(ddip.ConfigError, match=str(SOMEBODY)):
        ddip.Group(2)
    assert list(home.iterdir()) == []


@root_only
def test_a_group_folder_prepared_by_somebody_else_is_refused(home: Path) -> None:
    (home / "trap").mkdir(mode=0o700)
    os.chown(home / "trap", SOMEBODY, SOMEBODY)
    with pytest.raises(ddip.ConfigError, match=str(SOMEBODY)):
        ddip.Group(2, name="trap")


@root_only
@pytest.mark.parametrize("owner", ["runtime", "group"])
def test_a_client_does_not_walk_into_a_folder_of_somebody_else(home: Path, owner: str) -> None:
    """It would unpickle what it is sent there."""
    trap = home / "trap"
    trap.mkdir(mode=0o700)
    (trap / "key").write_bytes(b"k" * 32)
    with open(trap / "lock", "w") as lock, socket.socket(socket.AF_UNIX) as listener:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listener.bind(str(trap / "socket"))
        listener.listen()
        os.chown(home if owner == "runtime" else trap, SOMEBODY, SOMEBODY)
        with pytest.raises(ddip.ConfigError, match=str(SOMEBODY)):
            ddip.attach("trap")


# ---- before the handshake


def test_the_right_key_opens_the_door_to_a_raw_client(door: Any) -> None:
    """The control experiment: what the tests below send is wrong in one place only."""
    group, folder, key = door
    with frames.connect(str(folder / "socket")) as raw:
        raw.sendall(frames.frame(frames.hello(key)))
        assert frames.read_message(raw)[0] == frames.WELCOME
        raw.sendall(frames.frame(frames.message(frames.INFO, {}, 2)))
        assert frames.read_message(raw)[0] == frames.ANSWER


def padded_hello(key: bytes, size: int) -> bytes:
    bare = len(frames.hello(key, pad=b""))
    return frames.frame(frames.hello(key, pad=b"p" * (size - bare)))


WRONG = {
    "wrong_key": lambda key: frames.frame(frames.hello(bytes(32))),
    "one_bit_of_the_key": lambda key: frames.frame(frames.hello(key[:-1] + bytes([key[-1] ^ 1]))),
    "short_key": lambda key: frames.frame(frames.hello(key[:31])),
    "empty_key": lambda key: frames.frame(frames.hello(b"")),
    "key_as_text": lambda key: frames.frame(
        frames.message(frames.HELLO, {"role": "client", "client": "x", "key": key.hex()})
    ),
    "no_key": lambda key: frames.frame(frames.message(frames.HELLO, {"role": "client"})),
    "wrong_role": lambda key: frames.frame(frames.hello(key, "worker")),
    "role_is_a_number": lambda key: frames.frame(frames.message(frames.HELLO, {"role": 1, "key": key})),
    "early_info": lambda key: frames.frame(frames.message(frames.INFO, {})),
    "early_stop": lambda key: frames.frame(frames.message(frames.STOP, {})),
    "early_execute": lambda key: frames.frame(
        frames.message(frames.EXECUTE, {"kind": "cell", "code": "open('/tmp/never', 'w')", "ranks": []})
    ),
    "stop_in_one_packet_with_a_wrong_hello": lambda key: (
        frames.frame(frames.hello(bytes(32))) + frames.frame(frames.message(frames.STOP, {}))
    ),
    "garbage": lambda key: os.urandom(4096),
    "http": lambda key: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "length_0": lambda key: frames.header(0) + b"x" * 64,
    "length_cap_plus_1": lambda key: padded_hello(key, frames.CAP_BEFORE_HELLO + 1),
    "length_2_31": lambda key: frames.header(1 << 31),
    "length_2_32_minus_1": lambda key: frames.header((1 << 32) - 1),
    "unknown_type": lambda key: frames.frame(frames.message(7777, {"role": "client", "key": key})),
    "type_of_a_worker": lambda key: frames.frame(frames.message(97, {"role": "client", "key": key})),
    "wrong_version": lambda key: frames.frame(frames.hello(key), version=2),
    "wrong_magic": lambda key: frames.frame(frames.hello(key), magic=b"DDIQ"),
    "reserved_bytes": lambda key: frames.frame(frames.hello(key), reserved=1),
    "descriptors_that_do_not_come": lambda key: frames.frame(frames.hello(key), descriptors=1),
    "too_many_descriptors": lambda key: frames.frame(frames.hello(key), descriptors=200),
    "body_is_no_map": lambda key: frames.frame(frames.message(frames.HELLO, [1, 2])),
    "body_is_broken_msgpack": lambda key: frames.frame(frames.message(frames.HELLO, b"\xde\xff\xff")),
    "body_is_deep": lambda key: frames.frame(frames.message(frames.HELLO, b"\x91" * 60000 + b"\xc0")),
    "body_claims_4_gib": lambda key: frames.frame(frames.message(frames.HELLO, b"\xdf\xff\xff\xff\xff\xa1k")),
    "body_with_garbage_behind": lambda key: frames.frame(frames.hello(key) + b"\xc0"),
    "body_cut_short": lambda key: frames.frame(b"\x01\x00"),
}


@pytest.mark.parametrize("what", WRONG)
def test_whoever_begins_wrongly_is_closed_and_told_nothing(door: Any, what: str) -> None:
    group, folder, key = door
    with frames.connect(str(folder / "socket")) as raw, Stopwatch() as watch:
        try:
            raw.sendall(WRONG[what](key))
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed while we still wrote
        assert frames.answer(raw) == b""
    assert watch.seconds < 4, "at once, not at the handshake's end"
    assert unharmed(group)


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ (1 << bit % 8)]) + data[bit // 8 + 1 :]


def test_every_single_flipped_bit_of_a_hello_is_noticed(door: Any) -> None:
    """Or at least nobody gets in with it: a longer length only makes the door wait for more, so we close our side."""
    group, folder, key = door
    good = frames.frame(frames.hello(key))
    for bit in range(0, 8 * len(good), 3):
        with frames.connect(str(folder / "socket")) as raw:
            raw.sendall(flipped(good, bit))
            raw.shutdown(socket.SHUT_WR)
            assert frames.answer(raw) == b"", f"bit {bit}"
    assert unharmed(group)


def test_a_hello_of_exactly_the_cap_is_welcome(door: Any) -> None:
    group, folder, key = door
    with frames.connect(str(folder / "socket")) as raw:
        raw.sendall(padded_hello(key, frames.CAP_BEFORE_HELLO))
        assert frames.read_message(raw)[0] == frames.WELCOME


def test_a_hello_that_comes_byte_by_byte_is_welcome(door: Any) -> None:
    group, folder, key = door
    with frames.connect(str(folder / "socket")) as raw:
        for byte in frames.frame(frames.hello(key)):
            raw.sendall(bytes([byte]))
        assert frames.read_message(raw)[0] == frames.WELCOME


def test_whoever_says_nothing_is_closed_after_the_handshake_time(door: Any) -> None:
    group, folder, _ = door
    with (
        frames.connect(str(folder / "socket")) as silent,
        frames.connect(str(folder / "socket")) as half,
        Stopwatch() as watch,
    ):
        half.sendall(frames.frame(frames.hello(bytes(32)))[:20])
        assert frames.answer(silent, 15) == b"" and frames.answer(half, 15) == b""
    assert 3 < watch.seconds < 12


@pytest.mark.parametrize(
    "how",
    ["garbage and close", "garbage and stay", "close at once", pytest.param("stay silent")],
)
def test_a_thousand_connections_do_not_keep_a_real_client_out(door: Any, how: str) -> None:
    """They come in bursts, as many as the listener's queue takes, while a real client connects again and again."""
    group, folder, _ = door
    before = len(os.listdir(f"/proc/{group.info()['pid']}/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held: list[socket.socket] = []
    stop = threading.Event()

    def attack() -> None:
        for _ in range(1000):
            if stop.is_set():
                return
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.settimeout(5)
            try:
                raw.connect(str(folder / "socket"))
                if how.startswith("garbage"):
                    raw.sendall(os.urandom(64))
            except OSError:
                pass
            held.append(raw) if "stay" in how else raw.close()

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        times = []
        while attacker.is_alive() and len(times) < 50 or not times:
            with Stopwatch() as watch:
                client = _client.Client(str(folder), "real", timeout=6)
                client.request("info", {})
            times.append(watch.seconds)
            del client
        print(f"{how}: {len(times)} real clients, slowest {max(times):.3f} s")
        assert max(times) < 5, "promised: 1 s more than usual"
    finally:
        stop.set()
        for raw in held:
            raw.close()
        attacker.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert unharmed(group)
    wait_until(
        lambda: len(os.listdir(f"/proc/{group.info()['pid']}/fd")) <= before + 2, 10, "no descriptor is left of them"
    )


@root_only
def test_another_user_is_refused_even_with_the_key_and_an_open_folder(start: Any, home: Path) -> None:
    group = start(name="open")
    folder = home / "open"
    key = (folder / "key").read_bytes()
    home.chmod(0o711), folder.chmod(0o711), (folder / "socket").chmod(0o666)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        verdict = b"error"
        try:
            os.setgroups([]), os.setgid(SOMEBODY), os.setuid(SOMEBODY)
            with frames.connect(str(folder / "socket")) as raw:
                verdict = b"connected"
                try:
                    raw.sendall(frames.frame(frames.hello(key)))
                    verdict = b"closed" if frames.answer(raw) == b"" else b"answered"
                except (BrokenPipeError, ConnectionResetError):
                    verdict = b"closed"
        finally:
            os.write(write, verdict)
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"closed"
    os.close(read)
    home.chmod(0o700), folder.chmod(0o700), (folder / "socket").chmod(0o600)
    assert unharmed(group)


# ---- after the handshake


def entered(folder: Path, key: bytes) -> socket.socket:
    raw = frames.connect(str(folder / "socket"))
    raw.sendall(frames.frame(frames.hello(key)))
    assert frames.read_message(raw)[0] == frames.WELCOME
    return raw


WRONG_LATER = {
    "length_0": frames.header(0),
    "length_cap_plus_1": frames.header(frames.CAP + 1),
    "length_2_31": frames.header(1 << 31),
    "garbage": b"\x00" * 64,
    "flipped_checksum": flipped(frames.frame(frames.message(frames.INFO, {})), 12 * 8),
    "flipped_body": flipped(frames.frame(frames.message(frames.INFO, {})), 18 * 8),
    "unknown_type": frames.frame(frames.message(7777, {})),
    "a_workers_type": frames.frame(frames.message(99, {})),
    "an_agents_type": frames.frame(frames.message(81, {}, rank=0)),
    "a_coordinators_type": frames.frame(frames.message(64, {"environment": {}}, rank=0)),
    "a_second_hello": frames.frame(frames.hello(bytes(32))),
    "execute_without_ranks": frames.frame(frames.message(frames.EXECUTE, {"kind": "cell"})),
    "execute_ranks_of_the_wrong_type": frames.frame(frames.message(frames.EXECUTE, {"kind": "cell", "ranks": "all"})),
    "restart_without_ranks": frames.frame(frames.message(frames.RESTART, {})),
    "acknowledge_without_sequence": frames.frame(frames.message(9, {})),
    "interrupt_of_the_wrong_type": frames.frame(frames.message(frames.INTERRUPT, {"cell": "x"})),
}


@pytest.mark.parametrize("what", WRONG_LATER)
def test_a_client_that_sends_nonsense_later_is_closed_and_nobody_else_is_harmed(door: Any, what: str) -> None:
    group, folder, key = door
    pids = group.pids
    with entered(folder, key) as raw:
        raw.sendall(WRONG_LATER[what])
        frames.answer(raw)  # closed; a reason may be said, it is a friend
    assert unharmed(group) and group.pids == pids


@pytest.mark.parametrize(
    "body", [{"kind": "cell", "code": "x = 1", "ranks": [7]}, {"kind": "cell", "code": "x = 1", "ranks": [-1]}]
)
def test_a_request_for_a_rank_that_is_not_there_is_refused(door: Any, body: Any) -> None:
    group, _, _ = door
    with pytest.raises(ddip.ConfigError, match="rank"):
        group.client.execute(body)
    assert unharmed(group)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "no such task", "ranks": [0]},
        {"kind": "cell", "ranks": [0]},
        {"kind": "call", "ranks": [0]},
        {"kind": "pull", "ranks": [0]},
        {"kind": "commit", "ranks": [0]},
    ],
)
def test_a_task_that_makes_no_sense_fails_and_its_worker_lives(door: Any, body: Any) -> None:
    group, _, _ = door
    pids = group.pids
    number, _ = group.client.execute(body)
    ending = wait_until(
        lambda: next(
            (event for event in iter(lambda: group.client.next(number, 2), None) if event[0] == "rank_done"), None
        ),
        5,
        "an ending",
    )
    group.client.forget(number)
    assert ending[3]["outcome"] == "error"
    assert group.pids == pids and unharmed(group)


def test_a_message_of_exactly_the_cap_is_taken(door: Any) -> None:
    group, folder, _ = door
    client = _client.Client(str(folder), "big")
    overhead = 20 + 1 + 4 + 5  # prefix, map, "pad", its length
    assert client.request("ping", {"pad": "x" * (frames.CAP - overhead)}) == {}
    with pytest.raises(ddip.ProtocolError):
        client.request("ping", {"pad": "x" * (frames.CAP - overhead + 1)})


def test_a_frame_that_stays_half_harms_nobody(door: Any) -> None:
    group, folder, key = door
    with entered(folder, key) as raw:
        raw.sendall(frames.frame(frames.message(frames.STOP, {}))[:-1])
        assert unharmed(group)
    assert unharmed(group)
