"""ddip data: synthetic events written and drawn; files that NumPy wrote are read, files that we write are read by NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import ddip

np = pytest.importorskip("numpy")
PROGRAM = Path(ddip.__file__).parent / "_bin" / "ddip"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "data", *map(str, words)], capture_output=True, text=True, timeout=60)


def test_synthetic_events_are_read_by_numpy_and_fixed_by_their_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        done = run("synth", "--out", tmp_path / name, "--events", 30, "--size", 128, "--seed", seed)
        assert done.returncode == 0, done.stderr
    images, labels = np.load(tmp_path / "a" / "images.npy"), np.load(tmp_path / "a" / "labels.npy")
    assert images.shape == (30, 1, 128, 128) and images.dtype == np.float32
    assert labels.shape == (30, 128, 128) and labels.dtype == np.uint8
    assert set(np.unique(labels)) == {0, 1, 2}
    assert ((images[:, 0] == 0) == (labels == 0)).all() and images[images > 0].min() >= 10
    assert (tmp_path / "a" / "images.npy").read_bytes() == (tmp_path / "b" / "images.npy").read_bytes()
    assert (tmp_path / "a" / "images.npy").read_bytes() != (tmp_path / "c" / "images.npy").read_bytes()


@pytest.mark.parametrize("writer", ["numpy", "numpy version 2"])
def test_an_event_that_numpy_wrote_is_drawn(tmp_path: Path, writer: str) -> None:
    pictures = pytest.importorskip("matplotlib.image")
    images, labels = np.zeros((2, 1, 70, 90), np.float32), np.zeros((2, 70, 90), np.uint8)
    images[1, 0, 5, 7], labels[1, 5, 7] = 400, 1
    images[1, 0, 60, 80], labels[1, 60, 80] = 100, 2
    for name, array in (("images", images), ("labels", labels)):
        with open(tmp_path / f"{name}.npy", "wb") as file:
            np.lib.format.write_array(file, array, version=(2, 0) if "2" in writer else (1, 0))
    done = run("view", tmp_path, "--index", 1, "--out", tmp_path / "event.png")
    assert done.returncode == 0, done.stderr
    picture = np.rint(pictures.imread(tmp_path / "event.png")[:, :, :3] * 255).astype(int)
    assert picture.shape == (70, 188, 3)
    assert picture[5, 7].tolist() == [255, 255, 255] and picture[60, 80].tolist() == [127, 127, 127]
    assert picture[5, 98 + 7].tolist() == [80, 160, 255] and picture[60, 98 + 80].tolist() == [255, 150, 40]
    assert (picture[:, :90].sum(2) > 0).sum() == 2 and (picture[:, 98:].sum(2) > 0).sum() == 2


def test_bad_files_are_refused_with_one_line_and_change_nothing(tmp_path: Path) -> None:
    good = np.zeros((2, 1, 70, 70), np.float32)
    np.save(tmp_path / "labels.npy", np.zeros((2, 70, 70), np.uint8))
    bad = {
        "pickle": np.array([{"a": 1}], dtype=object),
        "big-endian": good.astype(">f4"),
        "Fortran": np.asfortranarray(np.ones((4, 4), np.float32)),
        "float32 (N, 1, H, W)": good.astype(np.float64),
    }
    for words, array in bad.items():
        np.save(tmp_path / "images.npy", array, allow_pickle=True)
        done = run("view", tmp_path, "--out", tmp_path / "x.png")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    np.save(tmp_path / "images.npy", good)
    data = (tmp_path / "images.npy").read_bytes()
    (tmp_path / "images.npy").write_bytes(data[:-100])
    done = run("view", tmp_path, "--out", tmp_path / "x.png")
    assert done.returncode == 2 and "cut off" in done.stderr
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "ddip data: expected synth or view; ddip data -h lists the flags"),
        (["snth"], "ddip data snth: expected synth|view; did you mean synth?"),
        (["synth", "--events", "3"], "ddip data synth: expected --out; ddip data -h lists the flags"),
        (
            ["synth", "--out", "x", "--events", "0"],
            "ddip data --events 0: expected a number of events from 1 to 100000000",
        ),
        (["synth", "--out", "/proc/x", "--events", "1"], "ddip data synth --out /proc/x: No such file or directory"),
        (["view", "nowhere", "--out", "x.png"], "ddip data: nowhere/images.npy: No such file or directory"),
        (["view", "a", "b", "--out", "x.png"], "ddip data view: one word too many: b"),
        (["view", "a", "--out", "x.png", "--seed", "1"], "ddip data view --seed: this flag does not belong to view"),
        (["convert", "a", "b"], "ddip data convert: comes in a later release, with Parquet"),
    ],
)
def test_wrong_requests_get_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert (done.returncode, done.stderr.strip()) == (2, said)
    assert list(tmp_path.iterdir()) == []
