"""The U-Net: in Python beside one written in PyTorch, and `ddip unet train|evaluate|predict` as people call them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddip
from tests.support.waiting import wait_until

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

PROGRAM = Path(ddip.__file__).parent / "_bin" / "ddip"
SMALL = ["--width", 4, "--depth", 2, "--batch", 4, "--lr", 0.01]


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300, **options)


def train(data: Path, out: Path, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("unet", "train", "--data", data, "--out", out, *words, **options)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "small"
    done = run("data", "synth", "--out", folder, "--events", 45, "--size", 64, "--seed", 3)
    assert done.returncode == 0, done.stderr
    return folder


def last_weights(out: Path) -> dict[str, Any]:
    load = pytest.importorskip("safetensors.torch").load_file
    newest = max(out.glob("checkpoints/step-*.json"))
    manifest = json.loads(newest.read_text())
    return {
        f"{part}.{name}": tensor
        for part, file in manifest["files"].items()
        for name, tensor in load(out / "checkpoints" / file["name"]).items()
    }


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys() and len(ours) > 50
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("training", [True, False])
def test_the_network_computes_what_one_written_in_pytorch_does(training: bool) -> None:
    from ddip.models import UNet
    from tests.support.plain_unet import PlainUNet

    ours, plain = UNet(2, 3, width=4, depth=3, seed=1).double(), PlainUNet(2, 3, 4, 3).double()
    plain.load_state_dict(ours.state_dict())  # strict: the same names and shapes
    assert [name for name, _ in plain.named_parameters()] != [] and len(list(ours.parameters())) == len(
        list(plain.parameters())
    )
    images = torch.randn(3, 2, 32, 48, dtype=torch.float64)
    for model in (ours, plain):
        model.train(training)
        for _ in range(2):
            loss = model(images).square().mean()
            loss.backward()
    torch.testing.assert_close(ours(images), plain(images))
    for (name, a), (_, b) in zip(sorted(ours.named_parameters()), sorted(plain.named_parameters()), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=lambda text, name=name: f"{name}: {text}")
    for (name, a), (_, b) in zip(sorted(ours.named_buffers()), sorted(plain.named_buffers()), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


def test_the_network_is_an_ordinary_module() -> None:
    import copy
    import io

    from ddip.models import UNet

    torch.manual_seed(5)
    model = UNet(width=4, depth=2)
    torch.manual_seed(5)
    again = UNet(width=4, depth=2)
    other = UNet(width=4, depth=2)
    name = "down.0.conv1.weight"
    assert torch.equal(model.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(model.state_dict()[name], other.state_dict()[name])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), assign=True)
    images = torch.rand(1, 1, 32, 32)
    for one in (again, other, copy.deepcopy(model)):
        assert torch.equal(one.eval()(images), model.eval()(images))
    # What an optimizer does to a Parameter, the C++ code sees.
    with torch.no_grad():
        model.head.bias += 1
    torch.testing.assert_close(model(images), again(images) + 1)


def test_it_trains_under_torch_ddp_and_torch_optim_on_two_ranks() -> None:
    source = """
import ddip, torch, torch.distributed as dist
from ddip.models import UNet, segmentation_loss
torch.set_num_threads(1)
rank = ddip.rank()

def batch(step, of):
    generator = torch.Generator().manual_seed(10 * step + of)
    labels = torch.randint(0, 3, (4, 32, 32), generator=generator, dtype=torch.uint8)
    return labels.unsqueeze(1).double() + torch.randn(4, 1, 32, 32, generator=generator).double() * 0.1, labels

def fresh():
    # Without batch norm's dependence on the batch: two ranks see halves of it.
    model = UNet(width=4, depth=2, seed=rank).double().eval()
    return model

def fit(model, optimizer, mine):
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = sum(segmentation_loss(model(x), y) for x, y in (batch(step, of) for of in mine)) / len(mine)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

dist.init_process_group("ddip")
ours = torch.nn.parallel.DistributedDataParallel(fresh())
losses = fit(ours, torch.optim.Adam(ours.parameters(), 0.01), [rank])
alone = UNet(width=4, depth=2, seed=0).double().eval()
fit(alone, torch.optim.Adam(alone.parameters(), 0.01), [0, 1])
apart = max((a - b).abs().max().item() for a, b in zip(ours.module.parameters(), alone.parameters()))
dist.destroy_process_group()
(apart, losses[0], losses[-1])
"""
    with ddip.Group(workers=2, name="unet_ddp") as group:
        for result in group.run(source):
            apart, first, last = result.value
            assert apart < 1e-6 and last < first


def test_synthetic_events_are_those_that_the_accuracy_was_measured_on(tmp_path: Path) -> None:
    assert run("data", "synth", "--out", tmp_path / "e", "--events", 4, "--size", 128, "--seed", 1).returncode == 0
    found = hashlib.sha256((tmp_path / "e" / "images.npy").read_bytes()).hexdigest()
    assert found == EVENTS_SHA256, "another generator: accuracies of before mean nothing any more"


EVENTS_SHA256 = "4f3b6936c73f299352cc2d5b8b4b25c08908d7d66c2a59a487d16b06cdc42810"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, str]]:
    folder = tmp_path_factory.mktemp("trained")
    assert run("data", "synth", "--out", folder / "e", "--events", 200, "--size", 128, "--seed", 1).returncode == 0
    done = train(
        folder / "e", folder / "run", "-n", 2, "--width", 8, "--depth", 3, "--epochs", 8, "--lr", 0.01, "--batch", 4
    )
    assert done.returncode == 0, done.stderr
    yield folder / "e", folder / "run", done.stdout


def test_two_ranks_reach_the_promised_accuracy_and_the_baselines_do_not(trained: tuple[Path, Path, str]) -> None:
    data, out, said = trained
    done = run("unet", "evaluate", "--run", out, "--data", data, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["held_out"] is True and answer["events"] == 20
    assert answer["nonzero_accuracy"] >= 0.92, answer
    assert set(answer["baselines"]) == {"threshold", "majority class", "one layer"}
    for name, scores in answer["baselines"].items():
        assert scores["nonzero_accuracy"] < 0.9, name
    assert answer["iou"]["shower"] > 0.8 and answer["iou"]["track"] > 0.8
    assert "180 events to train on, 20 held out" in said and "epoch 8/8" in said and "\r" not in said
    table = run("unet", "evaluate", "--run", out, "--data", data).stdout
    assert f"{answer['nonzero_accuracy']:.4f}" in table and "majority class" in table
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log] == list(range(1, 9)) and log[-1]["ranks"] == 2


def test_predictions_are_those_of_the_same_weights_in_plain_pytorch(
    trained: tuple[Path, Path, str], tmp_path: Path
) -> None:
    from ddip.models import UNet, prepared
    from tests.support.plain_unet import PlainUNet

    data, out, _ = trained
    done = run("unet", "predict", "--run", out, "--data", data, "--out", tmp_path / "p", "--pictures", 3)
    assert done.returncode == 0, done.stderr
    masks = np.load(tmp_path / "p" / "masks.npy")
    images, labels = np.load(data / "images.npy")[180:], np.load(data / "labels.npy")[180:]
    assert masks.shape == labels.shape and masks.dtype == np.uint8
    plain = PlainUNet(1, 3, 8, 3)
    plain.load_state_dict(UNet.from_run(out).state_dict())
    with torch.no_grad():
        said = plain.eval()(prepared(torch.from_numpy(images))).argmax(1).numpy()
    assert (said == masks).mean() > 0.99999  # a tie may fall the other way
    answer = json.loads(run("unet", "evaluate", "--run", out, "--data", data, "--json").stdout)
    lit = images[:, 0] > 0
    assert abs((masks == labels)[lit].mean() - answer["nonzero_accuracy"]) < 1e-6
    assert abs((masks == labels).mean() - answer["pixel_accuracy"]) < 1e-6
    for label, name in enumerate(("background", "shower", "track")):
        both, either = ((masks == label) & (labels == label)).sum(), ((masks == label) | (labels == label)).sum()
        assert abs(both / either - answer["iou"][name]) < 1e-6
    pictures = pytest.importorskip("matplotlib.image")
    assert sorted(path.name for path in (tmp_path / "p").glob("*.png")) == [
        f"event-{n:06}.png" for n in (180, 181, 182)
    ]
    picture = pictures.imread(tmp_path / "p" / "event-000181.png")
    assert picture.shape[:2] == (128, 3 * 128 + 2 * 8)
    blue = (picture[:, 2 * 136 :, :3] * 255).round().astype(int) == [80, 160, 255]
    assert (blue.all(2) == (masks[1] == 1)).all()


def test_events_without_labels_get_the_same_masks(trained: tuple[Path, Path, str], tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data, out, _ = trained
    images = np.load(data / "images.npy")[180:]
    for name in ("n", "p"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "n" / "images.npy", images)
    column = pa.array(images.reshape(20, -1).tolist(), pa.list_(pa.float32()))
    parquet.write_table(pa.table({"image": column}), tmp_path / "p" / "events.parquet")
    masks = []
    for source in (data, tmp_path / "n", tmp_path / "p"):
        target = tmp_path / f"out{len(masks)}"
        done = run("unet", "predict", "--run", out, "--data", source, "--out", target, "--pictures", 1)
        assert done.returncode == 0, done.stderr
        masks.append(np.load(target / "masks.npy"))
        assert ("truth" in done.stdout) == (source == data)
    assert (masks[0] == masks[1]).all() and (masks[0] == masks[2]).all()
    refused = run("unet", "evaluate", "--run", out, "--data", tmp_path / "n")
    assert refused.returncode == 2 and "labels.npy: No such file or directory" in refused.stderr


@contextlib.contextmanager
def training_behind_its_first_epoch(
    events: Path, out: Path, words: list[object], environment: dict[str, str]
) -> Iterator[Any]:
    """A run that goes on; whatever happens to it, it has ended afterwards."""
    process = subprocess.Popen(
        [PROGRAM, "unet", "train", "--data", events, "--out", out, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        yield process
    finally:
        process.kill()
        process.wait(60)


def interrupted_run(events: Path, out: Path, words: list[object], environment: dict[str, str]) -> dict[str, Any]:
    """Trains until SIGTERM comes some steps behind the first epoch; what the checkpoint says of it."""
    with training_behind_its_first_epoch(events, out, words, environment) as process:
        # Some steps later: seen by the time that it has computed.
        ticks = Path(f"/proc/{process.pid}/stat")
        begun = int(ticks.read_text().split()[13])
        wait_until(lambda: int(ticks.read_text().split()[13]) > begun + 4, 30, "it trains on")
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        code = process.wait(60)
    assert code == 128 + signal.SIGTERM, rest
    assert "a checkpoint was saved, --resume goes on" in rest, rest
    about: dict[str, Any] = json.loads(max((out / "checkpoints").glob("step-*.json")).read_text())["about"]
    return about


def test_a_run_that_was_interrupted_and_goes_on_ends_with_the_same_weights(events: Path, tmp_path: Path) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    # 40 steps an epoch; on the CPU, where the same steps give the same bits.
    words = ["--width", 4, "--depth", 2, "--batch", 1, "--lr", 0.01, "--epochs", 6, "--device", "cpu"]
    whole = train(events, tmp_path / "whole", *words, env=one_thread)
    assert whole.returncode == 0, whole.stderr
    # The signal may fall between two epochs, which is the easy case: until it is in the middle of one.
    for attempt in range(6):
        out = tmp_path / f"cut{attempt}"
        about = interrupted_run(events, out, words, one_thread)
        done = train(events, out, *words, "--resume", env=one_thread)
        assert done.returncode == 0, done.stderr
        assert_same(last_weights(out), last_weights(tmp_path / "whole"))
        if about["done"] != "":
            return
    raise AssertionError("no interruption was in the middle of an epoch")


@pytest.mark.parametrize("compress", ["none", "int8", "topk", "powersgd"])
def test_two_ranks_that_were_killed_go_on_from_the_last_epoch_to_the_same_weights(
    events: Path, tmp_path: Path, compress: str
) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    # 41 events on two ranks: 21 and 20, so that one has a batch more than the other.
    words = ["-n", 2, "--width", 4, "--depth", 2, "--batch", 5, "--lr", 0.01, "--epochs", 3, "--hold-out", 0.09, "--device", "cpu", "--compress", compress]  # fmt: skip
    whole = train(events, tmp_path / "whole", *words, env=one_thread)
    assert whole.returncode == 0, whole.stderr
    with training_behind_its_first_epoch(events, tmp_path / "cut", words, one_thread) as process:
        process.kill()  # `ddip run` itself: its ranks end with it
    wait_until(lambda: not ranks_of(tmp_path / "cut"), 30, "the ranks are gone")
    done = train(events, tmp_path / "cut", *words, "--resume", env=one_thread)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/3" not in done.stdout
    assert_same(last_weights(tmp_path / "cut"), last_weights(tmp_path / "whole"))


def test_another_number_of_ranks_takes_over_what_compression_had_left(events: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*SMALL, "--epochs", 2, "--compress", "int8"]
    with training_behind_its_first_epoch(events, out, ["-n", 2, *words], {**os.environ}) as process:
        process.kill()
    wait_until(lambda: not ranks_of(out), 30, "the ranks are gone")
    done = train(events, out, "-n", 3, *words, "--resume")
    assert done.returncode == 0, done.stderr
    load = pytest.importorskip("safetensors.torch").load_file
    kept = load(max((out / "checkpoints").glob("*.left_over.safetensors")))
    assert {tensor.size(0) for tensor in kept.values()} == {3}


def ranks_of(out: Path) -> list[int]:
    """Processes that train into this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if entry.name.isdigit() and b"rank" in words and str(out).encode() in words:
            found.append(int(entry.name))
    return found


def test_a_signal_to_one_of_two_ranks_ends_both_after_the_same_step(events: Path, tmp_path: Path) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["-n", 2, "--width", 4, "--depth", 2, "--batch", 1, "--lr", 0.01, "--epochs", 8, "--device", "cpu"]
    whole = train(events, tmp_path / "whole", *words, env=one_thread)
    assert whole.returncode == 0, whole.stderr
    with training_behind_its_first_epoch(events, tmp_path / "cut", words, one_thread) as process:
        os.kill(max(ranks_of(tmp_path / "cut")), signal.SIGTERM)
        rest = process.stdout.read()
        process.wait(60)
    assert "a checkpoint was saved, --resume goes on" in rest, rest
    about = json.loads(max((tmp_path / "cut" / "checkpoints").glob("step-*.json")).read_text())["about"]
    from ddip.data import Ledger

    assert len(Ledger(about["done"])) == 2 * (about["step"] - 20 * about["epoch"]), "equally far: two samples a step"
    done = train(events, tmp_path / "cut", *words, "--resume", env=one_thread)
    assert done.returncode == 0, done.stderr
    assert_same(last_weights(tmp_path / "cut"), last_weights(tmp_path / "whole"))


def test_two_processes_do_not_train_in_one_folder(events: Path, tmp_path: Path) -> None:
    words = [*map(str, SMALL), "--epochs", "500"]
    process = subprocess.Popen(
        [PROGRAM, "unet", "train", "--data", events, "--out", tmp_path / "run", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        process.stdout.readline()
        second = train(events, tmp_path / "run", *words, "--resume")
        assert second.returncode == 2 and "another process trains in it" in second.stderr
    finally:
        process.kill()
        process.wait(60)


def test_other_events_under_the_same_name_are_refused(events: Path, tmp_path: Path) -> None:
    mine = tmp_path / "e"
    mine.mkdir()
    for name in ("images.npy", "labels.npy"):
        np.save(mine / name, np.load(events / name)[:20])
    assert train(mine, tmp_path / "run", *SMALL, "--epochs", 1).returncode == 0
    for name in ("images.npy", "labels.npy"):
        np.save(mine / name, np.load(events / name))
    for done in (
        run("unet", "evaluate", "--run", tmp_path / "run", "--data", mine),
        run("unet", "train", "--out", tmp_path / "run", "--resume"),
    ):
        assert done.returncode == 2 and "it has 45 events; when the run began it had 20" in done.stderr


def test_images_of_two_channels_train_and_load_in_python(tmp_path: Path) -> None:
    from ddip.models import UNet

    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((12, 2, 32, 32), np.float32) * 50)
    np.save(tmp_path / "labels.npy", np.ones((12, 32, 32), np.uint8))
    assert train(tmp_path, tmp_path / "run", *SMALL, "--epochs", 1).returncode == 0
    assert UNet.from_run(tmp_path / "run")(torch.rand(1, 2, 32, 32)).shape == (1, 3, 32, 32)
    assert run("unet", "evaluate", "--run", tmp_path / "run", "--data", tmp_path).returncode == 0


def test_a_rank_that_is_killed_ends_the_run_and_leaves_a_checkpoint_that_loads(events: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [PROGRAM, "unet", "train", "--data", events, "--out", tmp_path / "run", "-n", "2", *map(str, SMALL), "--epochs", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("epoch 2/500"):
                break
        victim = max(ranks_of(tmp_path / "run"))
        os.kill(victim, signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(60)
    assert process.returncode != 0 and said, "it says that a rank is gone"
    wait_until(lambda: not ranks_of(tmp_path / "run"), 30, "no rank is left")
    done = run("unet", "evaluate", "--run", tmp_path / "run", "--data", events, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["events"] == 5, done.stderr


def test_early_stop_stops_all_ranks_together(events: Path, tmp_path: Path) -> None:
    words = ["-n", 2, "--width", 4, "--depth", 2, "--lr", "1e-12", "--epochs", 50, "--patience", 2]
    done = train(events, tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    assert "no better than epoch" in done.stdout and "for 2 epochs: stopped" in done.stdout
    again = train(events, tmp_path / "run", *words, "--resume")
    assert again.returncode == 0 and "for 2 epochs: stopped" in again.stdout and "epoch 1" not in again.stdout[:200]
    # and a second start adds nothing
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert 3 <= len(epochs) < 50


def test_a_full_disk_does_not_end_training_and_no_checkpoint_is_claimed(events: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "ddip-test", disk], capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    try:
        done = train(events, disk / "run", *SMALL, "--epochs", 2)
        after = run("unet", "evaluate", "--run", disk / "run", "--data", events)
        left = sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("could not be saved") == 2 and "No space left on device; training goes on" in done.stdout
    assert not [name for name in left if name.endswith((".json", ".part"))]
    assert after.returncode == 2 and "it has no checkpoint yet" in after.stderr


def test_a_damaged_checkpoint_is_refused_before_training_goes_on(events: Path, tmp_path: Path) -> None:
    assert train(events, tmp_path / "run", *SMALL, "--epochs", 2).returncode == 0
    newest = max((tmp_path / "run" / "checkpoints").glob("*.model.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    done = train(events, tmp_path / "run", *SMALL, "--epochs", 2, "--resume")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "its hash differs; remove step-" in done.stderr and "to go on from step" in done.stderr


def test_checkpoints_of_other_shapes_are_refused_by_name(events: Path, tmp_path: Path) -> None:
    from ddip.models import UNet

    assert train(events, tmp_path / "run", *SMALL, "--epochs", 1).returncode == 0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    (tmp_path / "run" / "settings.json").write_text(json.dumps({**settings, "depth": 3}))
    with pytest.raises(ddip.ConfigError, match=r"does not fit this model; missing: down\.2\.conv1\.weight.* more"):
        UNet.from_run(tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text(json.dumps({**settings, "width": 5}))
    with pytest.raises(
        ddip.ConfigError, match=r"different: down\.0\.conv1\.weight is F32 \(4, 1, 3, 3\), expected F32 \(5, "
    ):
        UNet.from_run(tmp_path / "run")


@pytest.mark.parametrize("compress", ["fp16", "powersgd"])
def test_ranks_train_with_compressed_gradients(events: Path, tmp_path: Path, compress: str) -> None:
    done = train(events, tmp_path / "run", "-n", 2, *SMALL, "--epochs", 3, "--compress", compress)
    assert done.returncode == 0, done.stderr
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]


def test_bf16_on_the_cpu_trains_too(events: Path, tmp_path: Path) -> None:
    done = train(events, tmp_path / "run", *SMALL, "--epochs", 2, "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    assert last_weights(tmp_path / "run")["model.head.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("words", "config", "said"),
    [
        ([], None, "ddip unet: expected train, evaluate or predict; ddip unet -h explains"),
        (["trian"], None, "ddip unet trian: expected train|evaluate|predict; did you mean train?"),
        (["train", "--data", "E"], None, "ddip unet train: expected --out; ddip unet train -h lists the flags"),
        (["train", "--out", "r"], None, "ddip unet train: expected --data; ddip unet train -h lists the flags"),
        (["train", "--data", "E", "--out", "r", "x"], None, "ddip unet train: one word too many: x"),
        (["train", "--data", "E", "--out", "r", "-n", "0"], None, "ddip unet train -n 0: expected a number of ranks from 1 to 1024"),
        (["train", "--data", "E", "--out", "r", "--lr", "nan"], None, "ddip unet train --lr nan: expected a rate from 1e-12 to 100"),
        (["train", "--data", "E", "--out", "r", "--lr", "-1"], None, "ddip unet train --lr -1: expected a rate from 1e-12 to 100"),
        (["train", "--data", "E", "--out", "r", "--batch", "0"], None, "ddip unet train --batch 0: expected a number of events from 1 to 65536"),
        (["train", "--data", "E", "--out", "r", "--compress", "zip"], None, "ddip unet train --compress zip: expected none|fp16|bf16|int8|topk|powersgd"),
        (["train", "--data", "nowhere", "--out", "r"], None, "ddip unet: {here}/nowhere: there is no such folder or file"),
        (["train", "--data", "E", "--out", "E"], None, "ddip unet: E: it has files that are no run; expected a new or empty folder"),
        (["train", "--data", "E", "--out", "/proc/r"], None, "ddip unet: /proc/r: No such file or directory"),
        (["train", "--data", "E", "--out", "r", "--config", "c"], '{"epocs": 3}', "ddip unet: c, epocs: there is no such setting; did you mean epochs?"),
        (["train", "--data", "E", "--out", "r", "--config", "c"], '{"epochs": "3"}', 'ddip unet: c, epochs: "3" is no number'),
        (["train", "--data", "E", "--out", "r", "--config", "c"], '{"epochs": 0}', "ddip unet: c, epochs: 0: expected a number of epochs from 1 to 100000"),
        (["train", "--data", "E", "--out", "r", "--config", "c"], '{"epochs": 3, "epochs": 4}', 'ddip unet: c: it has "epochs" twice'),
        (["train", "--data", "E", "--out", "r", "--config", "c"], '{"lr": [[[[[[1]]]]]]}', "ddip unet: c: it is nested too deeply"),
        (["train", "--data", "E", "--out", "r", "--config", "c"], "\udcff\udcfe", "ddip unet: c: it is no JSON, at byte 1"),
        (["train", "--data", "E", "--out", "r", "--config", "c"], " " * (1 << 20) + "{}", "ddip unet: c: it is 1048578 bytes long; expected at most 1 MiB"),
        (["train", "--data", "E", "--out", "r", "--config", "/dev/zero"], None, "ddip unet: /dev/zero: it is no regular file"),
        (["evaluate", "--run", "r", "--data", "E"], None, "ddip unet: r: there is no run: ddip unet train --out makes one"),
        (["predict", "--run", "r", "--data", "E"], None, "ddip unet predict: expected --out; ddip unet predict -h lists the flags"),
    ],
    ids=lambda value: ascii(value)[:60],  # pytest puts the whole id into the environment, and the kernel refuses a long one
)  # fmt: skip
def test_wrong_requests_get_one_line_and_change_nothing(
    words: list[str], config: str | None, said: str, events: Path, tmp_path: Path
) -> None:
    (tmp_path / "E").symlink_to(events)
    if config is not None:
        (tmp_path / "c").write_text(config, errors="surrogateescape")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run("unet", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, said.format(here=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_run_is_not_overwritten_and_goes_on_with_its_own_settings_only(events: Path, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"epochs": 1, "width": 4, "depth": 2, "lr": 0.5}')
    done = train(events, tmp_path / "run", "--config", tmp_path / "c.json", "--lr", "0.02")
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (kept["epochs"], kept["lr"], kept["width"]) == (1, 0.02, 4), "flags beat the file, and both are kept"
    again = train(events, tmp_path / "run")
    assert again.returncode == 2 and "a run is there already; --resume goes on with it" in again.stderr
    other = run("unet", "train", "--out", tmp_path / "run", "--resume", "--epochs", 3)
    assert other.returncode == 2 and "was begun with other settings: epochs 1 and 3; expected the same" in other.stderr
    same = run("unet", "train", "--data", f"{events}/.", "--out", tmp_path / "run", "--resume", "--epochs", 1)
    assert same.returncode == 0, same.stderr
