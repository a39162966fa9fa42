"""A pipeline on disk: what is whole is loaded, what is not is refused before anything changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddip.errors import RankError
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-saving", "pipeline_saving as s") as group:
        yield group


@pytest.fixture(scope="module")
def saved(two: ddip.Group, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("saves") / "run"
    return folder, two.run(f"s.saved_twice({str(folder)!r})")[0].value


def copy_of(saved: tuple[Path, list[float]], tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in saved[0].iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def require_refused(two: ddip.Group, folder: Path, expected: str) -> None:
    for rank, result in enumerate(two.run(f"s.load_refused({str(folder)!r})")):
        said, same = result.value
        assert said.startswith("ConfigError: ") and expected in said, (rank, said)
        assert "\n" not in said
        assert same, "nothing has changed"


def test_the_newest_of_two_saves_is_loaded_and_without_its_manifest_the_older_one(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder = copy_of(saved, tmp_path)
    manifests = sorted(file.name for file in folder.iterdir() if file.suffix == ".json")
    assert len(manifests) == 2 and len(list(folder.iterdir())) == 6, "two saves: a file for each stage and a manifest"
    assert saved[1][0] != saved[1][1]
    for expected in reversed(saved[1]):
        for result in two.run(f"s.loaded_sum({str(folder)!r})"):
            assert result.value == expected
        (folder / manifests.pop()).unlink()
    require_refused(two, folder, "no pipeline is saved there")


def test_other_programs_read_the_weights(saved: tuple[Path, list[float]]) -> None:
    """By the format's own library."""
    safetensors = pytest.importorskip("safetensors.torch")
    manifest = json.loads(max(saved[0].glob("step-*.json")).read_text())
    total = 0.0
    for stage in range(2):
        found = safetensors.load_file(saved[0] / manifest["files"][f"stage-{stage}"]["name"])
        weights = {name: tensor for name, tensor in found.items() if name.startswith("model.")}
        assert sorted(weights) and all(f"optimizer.state.{i}.exp_avg" in found for i in range(len(weights)))
        total += float(sum(tensor.sum() for tensor in weights.values()))
    assert total == pytest.approx(saved[1][1], rel=1e-6)


@pytest.mark.parametrize("part", ["stage-0", "stage-1", "json"])
def test_one_flipped_bit_is_refused_on_all_ranks_and_the_older_save_is_named(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path, part: str
) -> None:
    folder = copy_of(saved, tmp_path)
    newest = max(folder.glob("step-*.json"))
    (file,) = folder.glob(f"{newest.stem}.{part}*")
    whole = file.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 7)):
        bytes_now = bytearray(whole)
        bytes_now[place] ^= 1 << (place % 8)
        file.write_bytes(bytes_now)
        require_refused(two, folder, f"remove {newest.name} to go on from step")
    file.write_bytes(whole[: len(whole) // 2])
    require_refused(two, folder, f"remove {newest.name} to go on from step")
    file.write_bytes(whole)
    assert two.run(f"s.loaded_sum({str(folder)!r})")[0].value == saved[1][1]


def test_a_full_disk_is_an_error_on_all_ranks_and_the_save_before_stays(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder = copy_of(saved, tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for rank, result in enumerate(two.run(f"s.save_fails({str(folder)!r})")):
        said, same = result.value
        assert said.startswith("ConfigError: " if rank == 1 else "ConfigError: rank 1: ") and "File too large" in said
        assert same, "training can go on"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert two.run(f"s.loaded_sum({str(folder)!r})")[0].value == saved[1][1]


def test_a_rank_that_is_killed_in_a_save_leaves_the_one_before(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    with pipeline_group("pipeline-saving-killed", "pipeline_saving as s") as group:
        with pytest.raises(RankError, match="rank 1 is lost"):
            group.run(f"s.die_in_save({str(folder)!r})")
        assert len(list(folder.glob("*.stage-1.safetensors"))) == 3, "it was killed when its part was written"
        group.restart()
        group.run(
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent / 'support')!r}); import pipeline_saving as s"
        )
        assert group.run(f"s.loaded_sum({str(folder)!r})")[0].value == saved[1][1]
        group.run(f"s.trained(1).save({str(folder)!r})")
    assert len(list(folder.iterdir())) == 6, "what the killed one left is gone with the next save"


def test_a_save_of_two_ranks_is_loaded_on_one(saved: tuple[Path, list[float]]) -> None:
    with pipeline_group("pipeline-saving-alone", "pipeline_saving as s", workers=1) as group:
        assert group.run(f"s.loaded_sum({str(saved[0])!r})")[0].value == saved[1][1]


def test_what_is_no_save_is_refused(two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    require_refused(two, tmp_path / "nowhere", "no pipeline is saved there")
    file = tmp_path / "file"
    file.write_text("{}")
    require_refused(two, file, "it is a file; expected a folder that pipe.save wrote")
    for result in two.run(f"pipe = s.trained(1); said = s.said_by(lambda: pipe.save({str(file)!r})); said"):
        assert result.value.startswith("ConfigError: ") and str(file) in result.value


def test_ranks_that_see_different_folders_are_told(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """Of two runs that differ in nothing but their weights."""
    for seed in (1, 2):
        two.run(f"s.trained(seed={seed}).save({str(tmp_path)!r} + '/{seed}')")
    for result in two.run(f"s.load_refused({str(tmp_path)!r} + f'/{{ddip.rank() + 1}}')"):
        said, same = result.value
        assert "rank 1 has found another pipeline there than rank 0" in said and same


def test_a_folder_that_somebody_else_uses_is_left_alone(two: ddip.Group, tmp_path: Path) -> None:
    from ddip._engine import CheckpointStore

    def refused(expected: str) -> None:
        for result in two.run(f"pipe = s.trained(1); s.said_by(lambda: pipe.save({str(tmp_path)!r}))"):
            assert result.value.startswith("ConfigError: ") and expected in result.value

    lock = CheckpointStore(str(tmp_path)).lock()
    refused("somebody else saves there at this moment; expected a folder of its own for each run")
    lock.release()
    two.run(f"pipe.save({str(tmp_path)!r})")
    store = CheckpointStore(str(tmp_path))
    store.publish(7, '{"epoch": 3}', {"model": store.write(7, "model", [("w", torch.ones(1))], {})})
    before = sorted(tmp_path.iterdir())
    refused("it has checkpoints of something else; expected a folder of its own")
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "step-0000000008.json").write_text("cut off")  # a damaged one does not make it ours
    refused("it has checkpoints of something else; expected a folder of its own")
    # Whoever was refused, and shows the error still, does not keep the folder.
    kept = f"try: pipe.save({str(tmp_path)!r})\nexcept Exception as error: kept = error"
    two.run(kept)
    for path in before:
        path.unlink()
    (tmp_path / "step-0000000008.json").unlink()
    two.run(f"pipe.save({str(tmp_path)!r})")
    assert two.run("type(kept).__name__")[0].value == "ConfigError"
    assert store.newest() == 1


@pytest.mark.parametrize("what", ["writes", "reads", "is looked at", "schedules"])
def test_what_fails_on_one_rank_changes_nothing_on_any(two: ddip.Group, tmp_path: Path, what: str) -> None:
    """A module's own function raises in the last stage; a scheduler of other parts would fail half way."""
    for rank, result in enumerate(two.run(f"s.fails({str(tmp_path / 'run')!r}, {what!r})")):
        said, same = result.value
        if what == "schedules":
            assert said.endswith("was trained with a SequentialLR of another kind than here")
        elif what in ("writes", "is looked at"):
            assert said == ("ValueError: not today" if rank == 1 else "ConfigError: rank 1: ValueError: not today")
        else:
            assert "ValueError: not today" in said and said.endswith("; nothing was changed")
        assert same


def test_a_module_reads_its_state_as_of_the_version_that_it_has(two: ddip.Group, tmp_path: Path) -> None:
    assert [result.value for result in two.run(f"s.versions({str(tmp_path / 'run')!r})")] == [True, True]


def test_a_trained_weight_of_an_older_version_is_as_its_module_reads_it(two: ddip.Group, tmp_path: Path) -> None:
    assert [result.value for result in two.run(f"s.older({str(tmp_path / 'run')!r})")] == [0, 0]


def test_a_model_that_is_cut_elsewhere_the_next_time_can_be_cut_as_it_was(two: ddip.Group, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    for result in two.run(f"s.cut_elsewhere({folder!r})"):
        said, moved, stages = result.value
        assert said == (
            f"ConfigError: {folder}: it was cut elsewhere, into stages that begin with 0, 1, here with 0, 3; partition={folder!r} "
            "makes a pipeline that is cut as that one"
        )
        assert moved == 0 and stages == [["0"], ["1", "2", "3", "4"]]
    with pytest.raises(
        RankError, match="no pipeline with a plan is saved there; expected one that was made with example="
    ):
        two.run(f"s.trained(1).save({str(tmp_path / 'list')!r})\ns.cut_as({str(tmp_path / 'list')!r})")


# What a folder may have whose hashes are right: `a`, about the pipeline; `o`, stage 0.
LIES = {
    "a.update(what='ddip pipeline')": "a C++ program saved it",
    "a.update(what='ddip unet')": "it has checkpoints, but of no pipeline",
    "a.clear()": "of no pipeline",
    "a.update(stages=3)": "it is no pipeline of 2 stages, but of 3",
    "a.update(staleness=7)": "staleness=7",
    "a.update(micro_batches=-1)": "its number of micro-batches is -1",
    "a.update(micro_batches=2**70)": "its number of micro-batches is 1.18",
    "a.update(batches=-1)": "its number of batches is -1",
    "a.pop('batches')": "its number of batches is None",
    "a.update(heard=({2**70: 1.0}, None))": "its gradients' norms are damaged",
    "a.update(heard=({}, (2.0, 2**70, [])))": "expected powers of two",
    "a.update(micro_batches='12')": "its number of micro-batches is '12'",
    "a.update(heard=1)": "its gradients' norms are damaged",
    "a.update(heard=({0: -1.0}, None))": "its gradients' norms are damaged",
    "a.update(heard=({'x': 1.0}, None))": "its gradients' norms are damaged",
    "a.update(heard=({}, (3.0, 0, [])))": "expected powers of two",
    "a.update(heard=({}, (0.0, 0, [])))": "expected powers of two",
    "a.update(heard=({}, (2.0, -1, [])))": "expected powers of two",
    "a.update(heard=({}, (2.0, 0, [float('nan')])))": "expected powers of two",
    "a.update(heard=({}, 'much'))": "expected powers of two",
    "o.pop('model')": "stage 0 has no weights",
    "o['model'].popitem()": "the file has none",
    "o['model'].update(more=torch.ones(1))": "only the file has it",
    "o['model'].update({list(o['model'])[0]: 1})": "is a tensor here or there only",
    "o['model'].update({list(o['model'])[0]: torch.ones(1)})": "is float32[1] there and float64[8, 6] here",
    "o['model'].update({k: v.float() for k, v in o['model'].items()})": "is float32[8, 6] there and float64[8, 6] here",
    "o.update(versions=3)": "stage 0 has no weights",
    "o.pop('optimizer')": "with other options or parameters than here",
    "o.update(optimizer_name='SGD')": "was trained by SGD; here it is Adam",
    "o.update(optimizer_name=torch.ones(2, 2))": "was trained by nobody; here it is Adam",
    "o['optimizer']['param_groups'][0].update(lr='x')": "with other options",
    "o['optimizer']['param_groups'][0].update(lr=float('nan'))": "with other options",
    "o['optimizer']['param_groups'][0].update(betas=3)": "with other options",
    "o['optimizer']['param_groups'][0].update(amsgrad=True)": "with other options",
    "o['optimizer']['param_groups'][0].update(amsgrad=0)": "with other options",
    "o['optimizer']['param_groups'][0].update(amsgrad=torch.zeros(2))": "with other options",
    "o['optimizer']['param_groups'][0].update(params=[0, 0])": "with other options",
    "o['optimizer']['param_groups'][0].update(params=[[1], [2]])": "with other options",
    "o['optimizer']['state'][0].pop('exp_avg')": "with other options",
    "o['optimizer']['state'][0].update(step='x')": "with other options",
    "o['optimizer']['state'][0].update(more=torch.ones(1))": "with other options",
    "o['optimizer'].update(param_groups=3)": "with other options",
    "o['optimizer'].update(state=[])": "with other options",
    "o['optimizer']['param_groups'][0].pop('lr')": "with other options",
    "o['optimizer']['state'][0].update(exp_avg=torch.ones(2))": "with other options",
    "o.update(steps=-3)": "has done -3 steps",
    "o.update(steps=torch.ones(3, 3))": "has done a Tensor steps",
    "o.update(steps=2**70)": "has done 1180591620717411303424 steps",
    "o.pop('policy')": "has not what gap_aware keeps",
    "o['policy'].pop('unit')": "has not what gap_aware keeps",
    "o['policy'].update(squares=torch.ones(3))": "has not what gap_aware keeps",
    "o['policy'].update(more=o['policy']['unit'])": "has not what gap_aware keeps",
    "o['policy'].update(squares=torch.ones(1, dtype=torch.float64))": "has not what gap_aware keeps",
    "o.pop('scheduler')": "with a MultiStepLR of another kind",
    "o['scheduler'].clear()": "with a MultiStepLR of another kind",
    "o['scheduler'].pop('_last_lr')": "with a MultiStepLR of another kind",
    "o['scheduler'].update(_peak=1)": "with a MultiStepLR of another kind",
    "o['scheduler'].pop('last_epoch')": "with a MultiStepLR of another kind",
    "o['scheduler'].update(step=3)": "with a MultiStepLR of another kind",
    "o['scheduler'].update(milestones=7)": "with a MultiStepLR of another kind",
    "o.update(scheduler_name=['StepLR'])": "was trained with something else; it is with MultiStepLR here",
    "o.update(scheduler_name='StepLR')": "was trained with StepLR",
}


@pytest.mark.parametrize("lie", LIES)
def test_what_does_not_fit_is_refused_although_its_hashes_are_right(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path, lie: str
) -> None:
    folder = copy_of(saved, tmp_path)
    two.run(f"s.changed({str(folder)!r}, lambda a, o: {lie})")
    require_refused(two, folder, LIES[lie])


# Nothing, so that the lies above are refused for what they are; what another version of torch notes; another way to compute it.
@pytest.mark.parametrize(
    "change",
    [
        "None",
        "o['scheduler'].pop('_is_initial', 0)",
        "o['scheduler'].update(verbose=True)",
        "o['optimizer']['param_groups'][0].update(foreach=True, fused=None)",
    ],
)
def test_what_is_not_another_one_is_loaded(
    two: ddip.Group, saved: tuple[Path, list[float]], tmp_path: Path, change: str
) -> None:
    folder = copy_of(saved, tmp_path)
    two.run(f"s.changed({str(folder)!r}, lambda a, o: {change})")
    for rank, result in enumerate(two.run(f"s.loaded_as_it_is({str(folder)!r})")):
        total, noted, ways = result.value
        assert total == saved[1][1] and not noted, rank
        assert ways == [None], "computed as here"


# --- Python's state as JSON beside tensors


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)


def require_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape
        assert bytes_of(left).equal(bytes_of(right))
    elif isinstance(left, dict):
        assert [(type(key), key) for key in left] == [(type(key), key) for key in right]
        for one, other in zip(left.values(), right.values(), strict=True):
            require_same(one, other)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            require_same(one, other)
    else:
        assert repr(left) == repr(right)  # NaN is not itself


def tensors_of_all_kinds() -> list[torch.Tensor]:
    torch.manual_seed(0)
    wide = torch.randn(3, 4, dtype=torch.complex128)
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16 uint32 uint64 float8_e4m3fn"
    found = [wide.real.mul(9).abs().to(getattr(torch, name)) for name in names.split()]
    return [*found, wide.conj(), wide.T, wide.imag, torch.tensor(float("nan")), torch.empty(0, 3), torch.ones(5)[::2]]


def test_whatever_state_is_made_of_comes_back() -> None:
    from collections import Counter, OrderedDict

    from ddip.pipeline.saved_tree import put_together, taken_apart

    value = {
        "numbers": [
            0,
            -1,
            2**70,
            True,
            False,
            None,
            0.1,
            -0.0,
            1e-320,
            float("inf"),
            float("-inf"),
            float("nan"),
            1 - 2j,
        ],
        "texts": ["", "a.b", "ü\u2028\x00", b"", b"\x00\xff"],
        "tuple": ((), (1, (2.5, [3])), torch.Size([2, 3])),
        "kinds": [torch.float8_e5m2, torch.device("cuda", 1), {1, 2}],
        "dicts": [{}, {1: "number", "1": "text", (0, 1): "pair"}, OrderedDict(b=1, a=2), Counter({4: 2, 9: 1})],
        "tensors": tensors_of_all_kinds(),
        "same name": {1: torch.ones(1), "1": torch.zeros(1), "1'": torch.full((1,), 2.0)},
        "no object of ours": {"tensor": "x", "dict": {"dict": [["tensor", 1]]}},
    }
    text, tensors = taken_apart(value, "all")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    require_same(put_together(text, tensors), value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [object()]}, "it.a.0 is a builtins.object, which cannot be saved"),
        (Path("x"), "it is a pathlib."),
        (torch.eye(2).to_sparse(), "it is a tensor of the kind torch.sparse_coo"),
        (type("Text", (str,), {})("x"), "Text, which cannot be saved"),
    ],
)
def test_what_would_not_come_back_is_named(value: Any, expected: str) -> None:
    from ddip.pipeline.saved_tree import taken_apart

    with pytest.raises(ddip.ConfigError) as refused:
        taken_apart(value, "it")
    assert expected in str(refused.value)


def test_what_contains_itself_is_refused() -> None:
    from ddip.pipeline.saved_tree import taken_apart

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ddip.ConfigError, match="contains itself"):
        taken_apart(endless, "it")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"tensor": "there is none"}', '{"a": 1, "b": 2}', "{}", '{"unknown": 1}', '{"dict": 3}', '{"dict": [[1]]}',
        '{"dict": [[[], 1]]}', '{"float": "much"}', '{"float": [1]}', '{"bytes": "xy"}', '{"dtype": "torch.save"}', '{"size": ["x"]}',
        '{"device": "nowhere"}', '{"bytes of": ["t", "torch.float32", [7]]}', '{"bytes of": ["t", "torch.float32", [-1, -1]]}',
        '{"complex": ["1"]}', "[" * 100_000, '{"tensor": ["t"]}', '{"set": [[1]]}', '{"counter": [[1, 2, 3]]}', "1" * 5000,
    ],
)  # fmt: skip
def test_a_strange_text_is_refused_in_one_line(text: str) -> None:
    from ddip.pipeline.saved_tree import put_together

    with pytest.raises(ddip.ConfigError, match="^it is damaged") as refused:
        put_together(text, {"t": torch.zeros(5, dtype=torch.uint8)})
    assert "\n" not in str(refused.value)
