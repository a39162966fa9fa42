"""What stages and pipelines do together before a step: limit the norm of their gradients, sum them over replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip


def started(workers: int) -> Iterator[ddip.Group]:
    with pipeline_group(f"replicas-{workers}", "pipeline_replicas", workers=workers) as group:
        yield group


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    yield from started(2)


@pytest.fixture(scope="module")
def four() -> Iterator[ddip.Group]:
    yield from started(4)


@pytest.mark.parametrize(
    ("schedule", "stages", "placement"),
    [("gpipe", 2, [0, 1]), ("1f1b", 3, [0, 0, 1]), ("zb1", 2, [0, 1]), ("interleaved", 4, [0, 1, 0, 1])],
)
def test_the_global_norm_is_one_processes_norm(
    two: ddip.Group, schedule: str, stages: int, placement: list[int]
) -> None:
    for result in two.run(f"pipeline_replicas.clipped({schedule!r}, 'global', {stages}, {placement!r})"):
        assert result.value < 1e-7  # one process divides by the norm plus 1e-6 too, but adds it in another order
    for kind in ("local", "proportional"):
        assert two.run(f"pipeline_replicas.clipped({schedule!r}, {kind!r}, {stages}, {placement!r})")[0].value > 1e-4, (
            "it differs"
        )


@pytest.mark.parametrize(
    ("schedule", "clipping", "stages", "options"),
    [
        ("1f1b", "global", 2, ""), ("1f1b", "proportional", 2, ""), ("async_1f1b", "global", 2, ""), ("async_1f1b", "global", 4, ""),
        ("async_1f1b", "global", 2, ", window=[3, 0], accumulate=2"), ("async_1f1b", "proportional", 2, ""), ("async_1f1b", "local", 2, ""),
        ("async_1f1b", "global", 2, ", runs=3"),
    ],
)  # fmt: skip
def test_clipping_is_computed_again(
    two: ddip.Group, tmp_path: Path, schedule: str, clipping: str, stages: int, options: str
) -> None:
    call = f"p.replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, 'stash', stages={stages}, clip=0.05, clipping={clipping!r}{options})"
    call = call.replace("'stash'", "'none'") if schedule == "1f1b" else call
    assert [result.value for result in two.run(call)] == ["identical"] * 2
    header, *lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    norms = [line["norm"] for line in lines if line["kind"] == "step" and "norm" in line]
    assert bool(norms) == (clipping == "global") and header["clipping"] == clipping
    assert all(norm > 0.05 for norm in norms), "every step was clipped"
    if schedule == "async_1f1b" and clipping == "global":
        assert header["norm_delay"] >= 2
        by_stage = [
            [line["norm"] for line in lines if line["kind"] == "step" and line["stage"] == stage]
            for stage in range(stages)
        ]
        assert all(norms[header["norm_delay"] :] == by_stage[0][header["norm_delay"] :] for norms in by_stage)
        changed = (
            (tmp_path / "ledger").read_text().replace(f'"norm": {by_stage[0][-1]}', f'"norm": {by_stage[0][-1] * 1.01}')
        )
        (tmp_path / "ledger").write_text(changed)
        found = two.run(f"p.replay_again({str(tmp_path / 'ledger')!r}, {stages}, {3 if 'runs' in options else 1})")[
            0
        ].value
        assert found is not None


@pytest.mark.parametrize(
    ("schedule", "staleness", "options"),
    [
        ("gpipe", "none", ""), ("1f1b", "none", ", clip=0.05"), ("1f1b", "none", ", last=5"), ("async_1f1b", "msnag", ""),
        ("async_1f1b", "stash", ", accumulate=5"), ("async_1f1b", "none", ", last=3, recompute=True"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("world", "replicas"), [(2, 2), (4, 2), (4, 4)])
def test_pipelines_side_by_side_are_one_on_all_their_samples(
    two: ddip.Group, four: ddip.Group, world: int, replicas: int, schedule: str, staleness: str, options: str
) -> None:
    group = two if world == 2 else four
    results = group.run(f"pipeline_replicas.replicated({schedule!r}, {staleness!r}, {world}, {replicas}{options})")
    for result in results:
        away, same, (loss,) = result.value
        assert away < (1e-7 if "clip" in options else 1e-13) and same and abs(loss) < 1e-13


def test_replicas_are_saved_each_with_its_own_statistics(four: ddip.Group, tmp_path: Path) -> None:
    for result in four.run(f"pipeline_replicas.replicas_resumed({str(tmp_path / 'saved')!r})"):
        away, differ = result.value
        assert differ, "or it would not matter whose are kept"
        assert away == 0.0


def test_a_stage_that_raises_ends_all_replicas(four: ddip.Group) -> None:
    """Replica 1 fails while replica 0 waits for its gradients; afterwards both go on."""
    said = [result.value for result in four.run("pipeline_replicas.replica_that_fails()")]
    assert all("no more today" in line for line, _ in said), said
    assert all(loss == said[0][1] for _, loss in said)
