"""On a machine with a real GPU: pipelines whose stages share it, on ranks of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddip

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SUPPORT = Path(__file__).parent / "support"
IMPORTS = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import pipelines as p, pipeline_failures, gpu_pipelines as g\nimport ddip, torch"


@pytest.fixture(scope="module")
def stages() -> Iterator[ddip.Group]:
    with ddip.Group(workers=2, gpus=[0], name="gpu-pipeline") as group:
        group.run(IMPORTS)
        yield group


@pytest.mark.parametrize(
    "call",
    [
        "'1f1b'",
        "'gpipe', recompute=True",
        "'zb1'",
        "'1f1b', clip=0.05",
        "'1f1b', accumulate=1",
        "'1f1b', ranks=ddip.comm('gloo')",
    ],
)
def test_stages_on_one_gpu_train_like_one_process(stages: ddip.Group, call: str) -> None:
    for result in stages.run(f"g.trained({call})"):
        assert result.value < (1e-7 if "clip" in call else 1e-12)


def test_a_weight_of_two_stages_on_one_gpu(stages: ddip.Group) -> None:
    for result in stages.run("g.trained_tied('1f1b')"):
        assert result.value < 1e-12


def test_the_gpus_random_numbers_are_drawn_again(stages: ddip.Group) -> None:
    for result in stages.run("g.dropout()"):
        again, other = result.value
        assert again < 1e-12 and other > 1e-4


def test_an_asynchronous_pipeline_on_one_gpu_predicts_and_learns(stages: ddip.Group) -> None:
    stages.run("pipe = p.pipe_of([part.to(ddip.device()) for part in p.mlp(2)], staleness='msnag', recompute=True)")
    losses = stages.run("pipe.run(p.data(1, 12) * 60).losses")[0].value
    assert losses[-1] < 0.8 * losses[0]
    assert stages.run("pipe.versions[ddip.rank()].version")[0].value == 240


@pytest.mark.parametrize("call", ["frozen(0)", "frozen(2)", "targets_in_a_dict()"])
def test_frozen_stages_empty_ones_and_targets_find_their_gpu(stages: ddip.Group, call: str) -> None:
    for result in stages.run(f"g.{call}"):
        assert result.value < 1e-12


# --- samples


@pytest.mark.parametrize("kind", ["pageable", "pinned", "gpu"])
def test_samples_may_be_in_any_memory(stages: ddip.Group, kind: str) -> None:
    for result in stages.run(f"g.from_memory({kind!r})"):
        assert result.value < 1e-12


def test_ranks_that_read_different_samples_on_a_gpu_are_found(stages: ddip.Group) -> None:
    stages.run("pipe = p.pipe_of(g.moved(p.mlp(2)), '1f1b')")
    with pytest.raises(ddip.RankError) as error:
        stages.run("pipe.run([((x + 0.01 * ddip.rank()).cuda(), y.cuda()) for x, y in p.data(3, 12)])")
    assert "is not the one that the first stage read" in str(error.value)


# --- messages from GPU memory to GPU memory


def test_messages_between_ranks_that_share_a_gpu_stay_on_it(stages: ddip.Group) -> None:
    assert stages.run("g.largest_message()")[0].value == 4096, "the frame that says where the tensors lie"
    assert stages.run("g.largest_message(ddip.comm('gloo'))")[0].value > 2**20, "through the host"


def test_batches_that_grow_find_room_on_the_gpu(stages: ddip.Group) -> None:
    for result in stages.run("g.in_growing_batches()"):
        assert result.value < 1e-12


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_after_a_stage_failed_messages_on_the_gpu_are_in_order_again(stages: ddip.Group, schedule: str) -> None:
    for result in stages.run(f"g.after_a_failure({schedule!r})"):
        said, distance = result.value
        assert "no more today" in said
        assert distance < 1e-12


def test_replicas_on_one_gpu_train_like_one_process() -> None:
    with ddip.Group(workers=4, gpus=[0], name="gpu-replicas") as group:
        group.run(IMPORTS)
        for result in group.run("g.replicas()"):
            assert result.value < 1e-12


def test_a_killed_stage_leaves_the_others_gpu_usable() -> None:
    with ddip.Group(workers=2, gpus=[0], name="gpu-pipeline-kill") as group:
        group.run(IMPORTS)
        group.run("pipe = p.pipe_of(g.moved([p.mlp(2)[0], pipeline_failures.DiesAt(11)]))")
        with pytest.raises(ddip.RankError) as error:
            group.run("pipe.run(p.data(5, 12))")
        assert list(error.value.lost) == [1]
        assert "PeerLost" in error.value.tracebacks[0]
        group.run(
            "torch.cuda.synchronize(); y = (torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')).sum().item()",
            ranks=[0],
        )
        assert group.pull("y", rank=0) == 64**3


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gpu_that_fails_in_one_stage_ends_all_of_them(recompute: bool) -> None:
    with ddip.Group(workers=2, gpus=[0], name="gpu-pipeline-assert") as group:
        group.run(IMPORTS)
        group.run(
            "class Asserts(pipeline_failures.FailsAt):\n"
            "    def forward(self, x):\n"
            "        self.left -= 1\n"
            "        place = torch.tensor([99 if self.left == 0 else 0], device=x.device)\n"
            "        return self.inner(x) + x.new_zeros(1)[place]\n"
            "failing = Asserts(11)\n"
            "failing.register_buffer('seen', torch.zeros(3))\n"
            f"pipe = p.pipe_of(g.moved([p.mlp(2)[0], failing]), recompute={recompute})"
        )
        begun = time.monotonic()
        with pytest.raises(ddip.RankError) as error:
            group.run("pipe.run(p.data(50, 12))")
        assert time.monotonic() - begun < 30
        assert "device-side assert" in error.value.tracebacks[1]
        assert "StageFailed" in error.value.tracebacks[0]
        group.run("y = torch.ones(64, device='cuda').sum().item()", ranks=[0])
        assert group.pull("y", rank=0) == 64


def test_stages_that_do_what_has_come_first(stages: ddip.Group) -> None:
    call = "p.pipe_of([part.to(ddip.device()) for part in p.mlp(2)], staleness='msnag', window=[4, 0], order='ready')"
    stages.run(f"pipe = {call}; losses = pipe.run(p.data(1, 12) * 60).losses; done = pipe.done_plan()")
    for result in stages.run("(done.check().error, losses[-1] < 0.8 * losses[0])"):
        assert result.value == ("", True)


@pytest.mark.parametrize("staleness", ["msnag", "gap_aware", "pipemare"])
def test_a_saved_run_goes_on_as_if_nothing_had_happened(stages: ddip.Group, tmp_path: Path, staleness: str) -> None:
    for result in stages.run(f"g.resumed({str(tmp_path / 'save')!r}, {staleness!r})"):
        off, moved = result.value
        assert off == 0 and moved > 1e-3


def test_numbers_that_are_conjugated_when_they_are_read_arrive_so(stages: ddip.Group) -> None:
    for result in stages.run("g.conjugates()"):
        assert result.value < 1e-5
