"""The preset nesterov, on real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-nesterov", "pipeline_nesterov as n") as group:
        yield group


def test_the_first_beta_is_the_optimizers_or_grows_with_the_versions_of_its_stage(two: ddip.Group) -> None:
    for result in two.run("n.betas(0.99)"):
        assert result.value == ([0.99] * 4, [])
    # Weights are 3, 2, 1 and 0 steps old: 4, 3, 2 and 1 versions.
    by_stage = [0.8 + (versions - 1) * (0.99 - 0.8) / 4 for versions in (4, 3, 2, 1)]
    for result in two.run("n.betas(0.8, staleness_options={'nesterov_by_stage': True})"):
        assert result.value == (pytest.approx(by_stage, abs=1e-15), [])
    with_pairs = [0.8 + (versions - 1) * (0.99 - 0.8) / 4 for versions in (3, 2, 2, 1)]
    for result in two.run("n.betas(0.8, staleness_options={'nesterov_by_stage': True}, accumulate=2)"):
        assert result.value[0] == pytest.approx(with_pairs, abs=1e-15)


def test_a_small_beta_is_noted(two: ddip.Group) -> None:
    for result in two.run("n.betas(0.9)"):
        found, notes = result.value
        assert found == [0.9] * 4
        assert len(notes) == 1 and "NAdam has beta1 0.9; the policy is meant with 0.99" in notes[0]


def test_what_ran_is_computed_again_bit_for_bit(two: ddip.Group, tmp_path: Path) -> None:
    options = {"window": [3, 0], "staleness_options": {"nesterov_by_stage": True}}
    call = f"p.replayed({str(tmp_path / 'ledger')!r}, 'async_1f1b', 'nesterov', 'nadam', **{options!r})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


def test_the_simulator_has_the_same_betas(two: ddip.Group) -> None:
    for result in two.run("n.simulated()"):
        assert result.value < 1e-13


def test_the_momentum_of_the_next_step_is_what_torch_multiplies_by(two: ddip.Group) -> None:
    for result in two.run("n.momenta(4)"):
        said, grown, line = result.value
        assert len(grown) == 4 and said == pytest.approx(grown, rel=1e-6)
        assert 0.45 < said[0] < said[3] < 0.5, "far from 0.9 still"
        assert line.endswith(", 4 steps done, rate 0.01, momentum 0.459")
