"""ddip data: synthetic events written, drawn and converted; files that NumPy and pyarrow wrote are read, files that we
write are read by them."""

from __future__ import annotations

import os
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
        "it holds <f8 (2, 1, 70, 70); expected float32": good.astype(np.float64),
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
        ([], "ddip data: expected synth, view or convert; ddip data -h lists the flags"),
        (["snth"], "ddip data snth: expected synth|view|convert; did you mean synth?"),
        (["synth", "--events", "3"], "ddip data synth: expected --out; ddip data -h lists the flags"),
        (
            ["synth", "--out", "x", "--events", "0"],
            "ddip data --events 0: expected a number of events from 1 to 100000000",
        ),
        (["synth", "--out", "/proc/x", "--events", "1"], "ddip data: /proc/x: No such file or directory"),
        (["view", "nowhere", "--out", "x.png"], "ddip data: nowhere: there is no such folder or file"),
        (["view", "a", "b", "--out", "x.png"], "ddip data view: one word too many: b"),
        (["view", "a", "--out", "x.png", "--seed", "1"], "ddip data view --seed: this flag does not belong to view"),
        (["convert", "a", "b"], "ddip data: a: there is no such folder or file"),
        (["convert", "a"], "ddip data convert: expected where the events are and the folder to write"),
        (
            ["synth", "--out", "x", "--events", "1", "--format", "csv"],
            "ddip data --format csv: expected npy|parquet",
        ),
    ],
)
def test_wrong_requests_get_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert (done.returncode, done.stderr.strip()) == (2, said)
    assert list(tmp_path.iterdir()) == []


def test_parquet_and_npy_hold_the_same_and_pyarrow_reads_ours(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, form in (("n", "npy"), ("p", "parquet")):
        assert run("synth", "--out", tmp_path / name, "--events", 11, "--size", 80, "--format", form).returncode == 0
    images, labels = np.load(tmp_path / "n" / "images.npy"), np.load(tmp_path / "n" / "labels.npy")
    table = parquet.read_table(tmp_path / "p" / "events.parquet")
    assert table.column_names == ["image", "label"] and table.num_rows == 11
    for row in range(11):
        assert (np.array(table["image"][row].as_py(), np.float32) == images[row].ravel()).all()
        assert (np.array(table["label"][row].as_py(), np.uint8) == labels[row].ravel()).all()
    for source, target in (("n", "p2"), ("p", "n2")):
        done = run("convert", tmp_path / source, tmp_path / target)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "p2" / "events.parquet").read_bytes() == (tmp_path / "p" / "events.parquet").read_bytes()
    for name in ("images.npy", "labels.npy"):
        assert (tmp_path / "n2" / name).read_bytes() == (tmp_path / "n" / name).read_bytes()
    again = run("convert", tmp_path / "n", tmp_path / "p")
    assert again.returncode == 2 and "it is there already" in again.stderr


def test_parquet_works_through_path_and_nothing_is_loaded_from_the_current_folder(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert run("synth", "--out", tmp_path / "n", "--events", 2, "--size", 64).returncode == 0
    # Bait: a program of this name and a library of ours here, where a stranger could have put them.
    (tmp_path / "ddip").touch()
    (tmp_path / "libddip_parquet.so").write_text("not ours")
    words = ["ddip", "data", "convert", "n", "p"]
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "p" / "events.parquet").exists(), done.stderr


def test_events_that_are_there_are_not_written_over(tmp_path: Path) -> None:
    assert run("synth", "--out", tmp_path / "n", "--events", 2, "--size", 64).returncode == 0
    before = (tmp_path / "n" / "images.npy").read_bytes()
    for form in ("npy", "parquet"):
        done = run("synth", "--out", tmp_path / "n", "--events", 3, "--size", 64, "--format", form)
        assert done.returncode == 2 and "it has events already; expected a new folder" in done.stderr
    assert (tmp_path / "n" / "images.npy").read_bytes() == before and len(list((tmp_path / "n").iterdir())) == 2


def table_of(images: list[object], labels: list[object], **columns: object) -> object:
    pa = pytest.importorskip("pyarrow")
    return pa.table({"image": pa.array(images, pa.list_(pa.float32())), "label": pa.array(labels, pa.list_(pa.uint8())), **columns})  # fmt: skip


@pytest.mark.parametrize("form", ["list", "large_list", "fixed_size_list"])
def test_a_file_that_pyarrow_wrote_is_read(tmp_path: Path, form: str) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(0)
    images, labels = random.random((7, 2 * 36), np.float32), random.integers(0, 3, (7, 36), np.uint8)
    make = {
        "list": lambda item, _: pa.list_(item),
        "large_list": lambda item, _: pa.large_list(item),
        "fixed_size_list": lambda item, size: pa.list_(item, size),
    }[form]
    table = pa.table({
        "label": pa.array(labels.tolist(), make(pa.uint8(), 36)),
        "run": pa.array(range(7)),
        "image": pa.array(images.tolist(), make(pa.float32(), 72)),
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=3, compression="snappy")
    done = run("convert", tmp_path / "x.parquet", tmp_path / "n")
    assert done.returncode == 0, done.stderr
    assert (np.load(tmp_path / "n" / "images.npy") == images.reshape(7, 2, 6, 6)).all()
    assert (np.load(tmp_path / "n" / "labels.npy") == labels.reshape(7, 6, 6)).all()


def test_bad_parquet_files_are_refused_with_one_line(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image, label = [1.0] * 16, [1] * 16
    good = table_of([image] * 4, [label] * 4)
    shaped = good.replace_schema_metadata({"ddip.shape": "1,2,8"})  # type: ignore[attr-defined]
    bad = {
        "no column \"label\"": good.drop_columns(["label"]),  # type: ignore[attr-defined]
        "no column \"image\"": good.drop_columns(["image"]),  # type: ignore[attr-defined]
        "expected lists of float32": pa.table({"image": pa.array([image], pa.list_(pa.float64())), "label": [label]}),
        "holds no lists; expected lists of uint8": good.set_column(1, "label", pa.array([1, 2, 3, 4], pa.int32())),  # type: ignore[attr-defined]
        "an empty place": table_of([image, [*image[:15], None]], [label] * 2),
        "different lengths": table_of([image, image[:15], image], [label] * 3),
        "different lengths; expected 16 numbers in each": table_of([image, image[:15], [1.0] * 17], [label] * 3),
        "no square image": table_of([[1.0] * 15] * 2, [[1] * 15] * 2),
        "a label 256": pa.table({"image": pa.array([image], pa.list_(pa.float32())), "label": pa.array([[256] * 16], pa.list_(pa.int32()))}),
        "its row group 0 is empty": good.slice(0, 0),  # type: ignore[attr-defined]
        "its ddip.shape says \"1,0,16\"": good.replace_schema_metadata({"ddip.shape": "1,0,16"}),  # type: ignore[attr-defined]
        "its ddip.shape says \"1,4\"": good.replace_schema_metadata({"ddip.shape": "1,4"}),  # type: ignore[attr-defined]
    }  # fmt: skip
    path = tmp_path / "x.parquet"

    def refused(words: str) -> None:
        done = run("convert", path, tmp_path / "n")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, (words, done.stderr)
        assert not (tmp_path / "n" / "images.npy").exists()
        if (tmp_path / "n").exists():
            (tmp_path / "n").rmdir()  # and nothing else is in it

    for words, table in bad.items():
        parquet.write_table(table, path)
        refused(words)
    parquet.write_table(shaped, path)
    done = run("convert", path, tmp_path / "shaped")
    assert done.returncode == 0 and np.load(tmp_path / "shaped" / "images.npy").shape == (4, 1, 2, 8)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    refused("it is no Parquet file")
    path.write_bytes(b"PAR1" + b"\xff" * 60 + b"PAR1")
    refused("it is no Parquet file")
    path.write_bytes(b"")
    refused("it is no Parquet file")
    # A damaged page is found when it is read.
    damaged = bytearray(whole)
    damaged[10:60] = bytes(b ^ 0x5A for b in damaged[10:60])
    path.write_bytes(bytes(damaged))
    refused("is damaged")


def test_the_loader_gives_the_same_batches_from_both_formats_and_its_ledger_is_exact(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("ddip.data")
    for name, form in (("n", "npy"), ("p", "parquet")):
        assert run("synth", "--out", tmp_path / name, "--events", 23, "--size", 64, "--format", form).returncode == 0
    images, labels = np.load(tmp_path / "n" / "images.npy"), np.load(tmp_path / "n" / "labels.npy")
    order = []
    for epoch in range(2):
        ledger = data.Ledger()
        for rank in range(2):
            loaders = [data.Loader(tmp_path / name, 4, rank=rank, world=2, seed=3, threads=3) for name in ("n", "p")]
            for loader in loaders:
                loader.set_epoch(epoch)
            sampler = data.Sampler(23, 4, rank=rank, world=2, seed=3)
            sampler.set_epoch(epoch)
            count = 0
            for (a, one), (b, two), which in zip(*loaders, sampler, strict=True):
                count += 1
                assert len(loaders[0]) == len(sampler) == 3, "asking does not begin anew"
                assert torch.equal(a, b) and torch.equal(one, two) and a.dtype == torch.float32
                assert (a.numpy() == images[which]).all() and (one.numpy() == labels[which]).all()
                order.append(which)
            assert count == 3 and str(loaders[0].ledger) == str(loaders[1].ledger)
            ledger.merge(loaders[0].ledger)
        assert str(ledger) == "0-22" and len(ledger) == 23
    assert order[: len(order) // 2] != order[len(order) // 2 :]
    part = data.Loader(tmp_path / "p", 4, part=(20, 23), rank=0, world=1, shuffle=False)
    assert len(part) == 1 and part.shape == (3, 1, 64, 64)
    assert (next(iter(part))[0].numpy() == images[20:]).all()
    with pytest.raises(ddip.ConfigError, match=r"part=\(20, 24\): expected a first event .* of 23"):
        data.Loader(tmp_path / "n", 4, part=(20, 24), rank=0, world=1)
    with pytest.raises(RuntimeError, match="another iteration of this loader has begun"):
        list(zip(part, part, strict=True))
    # What is done does not come again.
    loader = data.Loader(tmp_path / "n", 4, rank=0, world=1, seed=3)
    loader.set_epoch(0, data.Ledger("0-19"))
    assert sum(len(a) for a, _ in loader) == 3 and str(loader.ledger) == "20-22"


@pytest.mark.parametrize("samples", [1, 7, 12, 13])
def test_a_sampler_is_as_long_as_it_says(samples: int) -> None:
    data = pytest.importorskip("ddip.data")
    for world in (1, 2, 3):
        for rank in range(world):
            for batch in (1, 2, 5):
                sampler = data.Sampler(samples, batch, rank=rank, world=world)
                assert len(sampler) == len(list(sampler)) == len(list(sampler))


def test_a_loader_for_nothing_or_for_bad_events_says_so(tmp_path: Path) -> None:
    data = pytest.importorskip("ddip.data")
    with pytest.raises(ddip.ConfigError, match="there is no such folder or file"):
        data.Loader(tmp_path / "nowhere", rank=0, world=1)
    np.save(tmp_path / "images.npy", np.zeros((3, 1, 8, 8), np.float32))
    labels = np.zeros((3, 8, 8), np.uint8)
    labels[1, 2, 2] = 7
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(ddip.ConfigError, match="batch"):
        data.Loader(tmp_path, 0, rank=0, world=1)
    loader = data.Loader(tmp_path, 1, rank=0, world=1, shuffle=False)
    with pytest.raises(ddip.ConfigError, match=r".*: event 1: it has a pixel of class 7; expected 0 to 2"):
        list(loader)
