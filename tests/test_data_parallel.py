"""ddip.DataParallel on real ranks, beside one process that has the joint batch (tests/support/replicas.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

SUPPORT = Path(__file__).parent / "support"
INIT = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import replicas as r"
EXACT = 1e-12  # fp64: only the order of additions differs


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: Any) -> Any:
    with ddip.Group(workers=request.param, name=f"replicas-{request.param}") as group:
        group.run(INIT)
        yield group


@pytest.fixture(scope="module")
def two() -> Any:
    with ddip.Group(workers=2, name="replicas-two") as group:
        group.run(INIT)
        yield group


def values(group: Any, code: str) -> list[Any]:
    return [result.value for result in group.run(code)]


# Each gives the largest difference to one process.
LIKE_ONE_PROCESS = {
    "plain": "r.train()",
    "gradients that stay": "r.train(to_none=False)",
    "Adam": "r.train(optimizer=lambda m: r.torch.optim.Adam(m.parameters(), 0.01))",
    "without looking for unused": "r.train(find_unused=False)",
    "static graph": "r.train(static_graph=True)",
    "shared parameters": "r.train(r.Tied)",
    "branches by rank, one never used": "r.train(r.Branches, r.by_rank)",
    "branches by step": "r.train(r.Branches, r.by_step, steps=9)",
    "channels last": "r.train(r.Convolutions)",
    "checkpointing": "r.train(lambda: r.Checkpointed(False))",
    "re-entrant checkpointing": "r.train(lambda: r.Checkpointed(True), lambda m, x, y, of, step: r.squares(m, x.requires_grad_(), y, of, step))",
    "GAN by its own methods": "r.train(r.Gan, r.gan_loss, steps=9)",
    "gradient inside the loss": "r.train(r.mlp, r.penalty)",
    "two forwards, one backward": "r.train(r.mlp, r.twice)",
    "sparse embedding": "r.train(r.sparse_model, r.sparse_loss, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1))",
    "accumulation": "r.accumulated()",
    "accumulation, some only before": "r.accumulated(False)",
    "several backwards": "r.several_backwards()",
    "backward with create_graph": "r.with_history()",
    "frozen, then thawed": "r.frozen_and_thawed()",
    "a gradient that comes after its bucket has left": "r.train(r.Branches, r.late, steps=7)",
    "clipping": "r.clipped()",
    "changed by load_state_dict(assign=True)": "r.changed('assign')",
    "changed by .double()": "r.changed('double')",
    "changed by .float() and back": "r.changed('float and back')",
    "changed by .data of another type and back": "r.changed('data and back')",
    "changed by a pre-trained encoder": "r.changed('pretrained encoder')",
    "changed by a part replaced": "r.changed('replaced part')",
    "after a backward that failed": "r.broken_off()",
    "static graph, some never used": "r.train(r.Branches, r.always_one_branch, static_graph=True)",
    "static graph, sparse": "r.train(r.sparse_model, r.always_sparse, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1), static_graph=True)",
    "without looking for unused, sparse": "r.train(r.sparse_model, r.always_sparse, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1), find_unused=False)",
    "sparse on one rank, dense on another": "r.train(r.sparse_model, r.sparse_here_dense_there, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1))",
    "dense, then sparse": "r.train(r.sparse_model, r.dense_then_sparse, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1), steps=7)",
    "sparse, then dense": "r.train(r.sparse_model, r.sparse_then_dense, optimizer=lambda m: r.torch.optim.SGD(m.parameters(), 0.1), steps=7)",
    "thawed without looking for unused": "r.thawed_when_everything_is_expected()",
    "after a join that failed": "r.join_that_failed()",
    "two wrapped models in one loss": "r.two_models(True)",
    "two wrapped models in turn": "r.two_models(False)",
    "over a group of torch's": "r.torch.distributed.is_initialized() or r.torch.distributed.init_process_group('gloo')\nr.train(ranks=ddip.comm('c10d'))",
}


@pytest.mark.parametrize("name", LIKE_ONE_PROCESS)
def test_trains_like_one_process_on_the_joint_batch(ranks: Any, name: str) -> None:
    worst = values(ranks, "import ddip\n" + LIKE_ONE_PROCESS[name])
    assert all(one < EXACT for one in worst), worst


def test_a_model_that_is_wrapped_again_belongs_to_the_new_wrapper(ranks: Any) -> None:
    for worst, said in values(ranks, "r.wrapped_again()"):
        assert worst < EXACT
        assert said == "this model was wrapped again: use the new DataParallel, not the old one"


def test_gradients_that_were_given_up_stay_none(two: Any) -> None:
    assert values(two, "r.given_up()") == [[True, True]] * 2


@pytest.mark.parametrize("in_join", [False, True])
def test_a_gradient_that_nobody_asked_for_stays_as_it_is_beside_those_that_travel(ranks: Any, in_join: bool) -> None:
    world = ranks.world_size
    assert values(ranks, f"r.bystander({in_join})") == [[float(rank + 1)] * 2 for rank in range(world)]


def test_what_was_added_up_without_sync_is_averaged_once(ranks: Any) -> None:
    world = ranks.world_size
    assert values(ranks, "r.bystander_of_an_earlier_sum()") == [[float(rank + 1)] * 2 for rank in range(world)]


def test_training_goes_on_as_one_after_join_with_momentum(ranks: Any) -> None:
    for worst, differing in values(ranks, "r.joined_with_momentum()"):
        assert worst < EXACT and differing == []


def test_one_rank_may_evaluate_alone(two: Any) -> None:
    assert values(two, "r.evaluated_by_one_rank()") == ["done"] * 2


def test_mixed_precision_like_one_process(two: Any) -> None:
    assert all(one < 2e-3 for one in values(two, "r.autocast()"))


def test_grad_scaler_skips_a_step_on_all_ranks_when_one_overflows(two: Any) -> None:
    for worst, scales, stepped in values(two, "r.scaled()"):
        assert worst < EXACT
        assert scales[0] == scales[1]
        assert stepped


def test_buffers_are_those_of_rank_0_and_stay_in_evaluation(two: Any) -> None:
    assert values(two, "r.buffers()") == [[True, [], True]] * 2


def test_batch_norm_over_all_ranks_is_like_one_process(ranks: Any) -> None:
    for found in values(ranks, "r.batch_norm()"):
        assert all(one < EXACT for one in found), found


def test_helpers_make_things_alike_on_all_ranks(ranks: Any) -> None:
    world = ranks.world_size
    weights = [rank + 1 for rank in range(world)]
    accuracy = sum(rank * weight for rank, weight in enumerate(weights)) / sum(weights)
    for same, told, sums, means in values(ranks, "r.alike()"):
        assert same and told == list(range(world + 1))
        assert sums == {"loss": sum(range(world)), "correct": 2 * sum(range(world))}
        assert means == {"accuracy": pytest.approx(accuracy), "weight": sum(weights)}


@pytest.mark.parametrize(
    "case",
    [
        "False",
        "True",
        # what is used changes from step to step, so it travels late; and what is sparse travels by itself
        "False, r.Branches, r.by_step",
        "False, r.sparse_model, r.always_sparse",
        # a gradient that nobody expected, whose bucket has left without it
        "False, r.Branches, r.late",
        "True, r.Branches, r.late",
        # who has no data uses no parameter, and need not
        "False, find_unused=False",
    ],
)
def test_ranks_with_more_batches_finish_and_no_sample_is_dropped(ranks: Any, case: str) -> None:
    found = values(ranks, f"r.uneven({case})")
    assert all(worst < EXACT for worst, _ in found), found
    assert [seen for _, seen in found] == [2 + 3 * rank for rank in range(len(found))]


def test_each_gradient_is_copied_once_at_most(two: Any) -> None:
    for fresh, kept in values(two, "r.counted()"):
        total = 4 * fresh["bytes_of_gradients"]
        assert fresh["gradient_bytes"] == total and fresh["steps"] == 4
        assert fresh["copied_bytes"] == total
        # The first step may find gradients of the round before, which already lie there.
        assert kept["gradient_bytes"] == total and kept["copied_bytes"] == 0
        # What travels is what there is, and the gaps between gradients: less than a line each.
        assert total <= fresh["sent_bytes"] < total + 4 * 6 * 64


def test_one_half_of_a_gan_does_not_pay_for_the_other(two: Any) -> None:
    generator, critic = 8 * (6 * 16 + 16 + 16 * 3 + 3), 8 * (3 * 16 + 16 + 16 + 1)
    for found in values(two, "r.halves()"):
        for step, (sent, computed) in list(enumerate(found))[2:]:
            mine = generator if step % 2 == 1 else critic
            assert mine <= sent < mine + 4 * 64, (step, sent, mine)
            assert computed > 0


def test_communication_overlaps_backward(two: Any) -> None:
    for rank, stats in enumerate(values(two, "r.overlapped()")):
        assert stats["buckets"] == 2
        (first, _, _, first_ended), (second, second_ready, _, _) = stats["timeline"]
        assert (first, second) == (0, 1)
        # The first bucket was through before backward had the second: backward slept for 0.2 s in between.
        assert first_ended < second_ready <= stats["backward_ended"] + 0.1
        assert stats["slowest_rank"] in (1 - rank, None)


def test_the_slowest_rank_is_named(two: Any) -> None:
    found = values(
        two,
        """
dp = ddip.DataParallel(r.mlp()); dp.stats()
for step in range(3):
    if ddip.rank() == 1:
        import time; time.sleep(0.2)
    r.squares(dp, *r.batch(step, r.rank), r.rank, step).backward()
stats = dp.stats(); (stats["slowest_rank"], stats["waited_seconds"], dp.stats())
""".replace("dp = ddip", "import ddip; dp = ddip"),
    )
    assert found[0][0] == 1 and found[0][1][1] > 0.5
    assert found[1][1][0] < 0.3
    for _, _, since in found:  # nothing has happened since
        assert not any(since["waited_seconds"]) and since["steps"] == 0 and since["sent_bytes"] == 0


def test_the_model_shines_through(two: Any) -> None:
    code = """
gan = ddip.DataParallel(r.Gan())
gan.switch(True)
gan.note = "hello"
[gan.gen_mode, gan.module.note, type(gan.critic).__name__, sorted(gan.state_dict())[:2], len(ddip.DataParallel(r.mlp())),
 isinstance(gan, r.nn.Module), [p.requires_grad for p in gan.parameters()].count(True)]
"""
    for found in values(two, "import ddip" + code):
        assert found == [True, "hello", "Sequential", ["critic.0.bias", "critic.0.weight"], 5, True, 4]
    (error, _) = values(two, "try: gan.no_such_thing\nexcept AttributeError as e: m = str(e)\nm")
    assert "no_such_thing" in error and "Gan" in error


def test_checkpoints_of_torchs_ddp_are_read_and_ours_are_the_models(two: Any) -> None:
    code = """
import ddip, torch
torch.manual_seed(5)
source = r.mlp()
theirs = {"module." + key: value for key, value in source.state_dict().items()}
dp = ddip.DataParallel(r.mlp())
dp.load_state_dict(theirs)
plain = r.mlp(); plain.load_state_dict(dp.state_dict())
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.inner = ddip.DataParallel(r.mlp())
outer = Outer(); keys = list(outer.state_dict()); outer.load_state_dict({"inner." + k: v for k, v in source.state_dict().items()})
[all(torch.equal(a, b) for a, b in zip(plain.parameters(), source.parameters())), keys[0],
 all(torch.equal(a, b) for a, b in zip(outer.parameters(), source.parameters()))]
"""
    assert values(two, code) == [[True, "inner.0.weight", True]] * 2


WRONG = {
    "ddip.DataParallel(lambda x: x)": "DataParallel wraps a torch.nn.Module, not a function",
    "ddip.DataParallel(r.mlp(), compress='zip')": "compress='zip' is unknown, one of none, fp16, bf16, int8, topk[:SHARE], powersgd[:RANK] was expected",
    "ddip.DataParallel(r.mlp(), bucket_mb=0)": "bucket_mb=0 is no size",
    "ddip.DataParallel(r.mlp(), nonfinite='x')": "nonfinite='x' is unknown, skip or keep was expected",
    "ddip.comm('nvlink')": "backend='nvlink' is unknown, one of auto, shm, nccl, mpi, gloo, c10d was expected",
    "ddip.DataParallel(r.nn.Linear(2 + r.rank, 2))": "parameter number 0 differs between the ranks: on rank 0 it is weight, Float of 2×2, strides 2,1",
    "ddip.DataParallel(r.mlp() if r.rank else r.nn.Linear(2, 2))": "the model has 2 parameters on rank 0 and 6 on rank 1",
    "ddip.DataParallel(r.nn.Linear(4, 4, dtype=r.torch.complex64), compress='int8')": "parameter weight is complex, which no compression knows",
    "dp = ddip.DataParallel(r.mlp()); dp.module = r.mlp()": "another model needs another DataParallel: wrap it",
    "m = r.nn.Linear(4, 3); m.weight = r.nn.Parameter(m.weight.detach().t().contiguous().t()) if r.rank else m.weight; ddip.DataParallel(m)": "parameter number 0 differs between the ranks: on rank 0 it is weight, Float of 3×4, strides 4,1",
    "m = ddip.DataParallel(r.mlp()); [p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None)) for p in m.parameters()]; r.squares(m, *r.batch(0, 0), 0, 0).backward()": "the gradient of 4.bias is gone before it was averaged: an optimizer that steps inside backward trains each rank alone",
    "ddip.DataParallel(r.mlp(), buckets_mb=25)": "ddip.DataParallel has no argument buckets_mb=; did you mean bucket_mb?",
    "import copy; copy.deepcopy(ddip.DataParallel(r.mlp()))": "DataParallel belongs to its ranks: copy dp.module",
}


@pytest.mark.parametrize("code", WRONG)
def test_wrong_requests_get_one_line(two: Any, code: str) -> None:
    lines = code.split("; ")
    guarded = (
        "import ddip\n" + "\n".join(lines[:-1]) + f"\ntry: {lines[-1]}\nexcept ddip.ConfigError as e: m = str(e)\nm"
    )
    assert values(two, guarded)[0] == WRONG[code]
    assert all(one < EXACT for one in values(two, "r.train()"))


def test_a_parameter_without_gradient_is_named_when_none_is_expected(two: Any) -> None:
    code = """
import ddip
dp = ddip.DataParallel(r.Branches(), find_unused=False)
try: r.by_rank(dp, *r.batch(0, 0), 0, 0).backward()
except ddip.ConfigError as e: m = str(e)
m
"""
    assert (
        values(two, code)
        == ["parameter branches.1.weight got no gradient in this backward; find_unused=True allows that"] * 2
    )


def test_a_parameter_in_two_parts_of_re_entrant_checkpointing_is_named(two: Any) -> None:
    """Its first gradient has left with its bucket when the second comes."""
    code = """
import ddip
dp = ddip.DataParallel(r.CheckpointedTwice(), bucket_mb=0.0001)
said = "nothing"
for step in range(3):
    dp.zero_grad()
    x, y = r.batch(step, r.rank)
    try: r.squares(dp, x.requires_grad_(), y, r.rank, step).backward()
    except ddip.ConfigError as e: said = str(e)
said
"""
    for said in values(two, code):
        assert said.startswith("parameter twice.") and "got a gradient twice in one backward" in said, said
        assert "use_reentrant=False" in said
    assert all(one < EXACT for one in values(two, "r.train()"))


def test_a_killed_rank_is_peer_lost_in_backward_and_no_half_step_stays() -> None:
    with ddip.Group(workers=3, name="replicas-killed") as group:
        group.run(
            INIT
            + "\nimport ddip, os, signal\ndp = ddip.DataParallel(r.mlp())\nr.squares(dp, *r.batch(0, r.rank), r.rank, 0).backward()"
        )
        with pytest.raises(ddip.RankError) as failed:
            group.run("""
dp.zero_grad()
loss = r.squares(dp, *r.batch(1, r.rank), r.rank, 1)
if r.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
try:
    loss.backward(); said = "nothing"
except ddip.PeerLost as error:
    said = str(error)
""")
        assert failed.value.ranks[0] == 1 and list(failed.value.lost) == [1]
        for result in group.run("(said, [p.grad for p in dp.parameters()])", ranks=[0, 2]):
            said, gradients = result.value
            assert said.startswith("rank 1 is lost during all_reduce"), said
            assert gradients == [None] * 6
        # The rank comes back, the group is rebuilt by one call, and the wrapper plans anew by itself.
        group.restart(ranks=[1])
        group.run(INIT + "\nimport ddip", ranks=[1])
        group.rebuild()
        assert all(one < EXACT for one in values(group, "r.train()"))


def test_stop_ends_a_backward_that_waits_for_a_rank(two: Any) -> None:
    cell = two.run(
        """
import ddip
dp = ddip.DataParallel(r.mlp())
print("made", flush=True)
if r.rank == 0: r.squares(dp, *r.batch(0, 0), 0, 0).backward()
else:
    import time; time.sleep(600)
""",
        wait=False,
    )
    next(line for rank, line in cell.lines() if rank == 0)
    two.interrupt()
    with pytest.raises(KeyboardInterrupt):
        cell.results()
    two.rebuild()
    assert all(one < EXACT for one in values(two, "r.train()"))


# --- compression

COUNTS = [1200, 7, 4608, 1, 1200]  # elements of each parameter of replicas.Given


def bytes_of_int8(world: int) -> int:
    """In four buckets (4 KiB): a scale per parameter, every byte once, and the slice that this rank adds up."""
    buckets = [[1200], [1, 4608], [7, 1200]]
    return sum(4 * len(bucket) + -(-sum(bucket) // world) * world + -(-sum(bucket) // world) for bucket in buckets)


def bytes_of_powersgd(rank: int) -> int:
    matrices = [(40, 30), (64, 72), (30, 40)]
    return 4 * (7 + 1 + sum((rows + columns) * rank for rows, columns in matrices))


SENT = {
    "fp16": lambda world: 2 * sum(COUNTS),
    "bf16": lambda world: 2 * sum(COUNTS),
    "int8": bytes_of_int8,
    "topk:0.1": lambda world: 8 * (120 + 461 + 121),
    "powersgd": lambda world: bytes_of_powersgd(4),
    "powersgd:1": lambda world: bytes_of_powersgd(1),
}


@pytest.mark.parametrize("compress", SENT)
def test_nothing_is_lost_by_compression_and_a_step_that_is_not_finite_is_dropped_everywhere(
    ranks: Any, compress: str
) -> None:
    found = values(ranks, f"r.conserved({compress!r})")
    for one in found:
        # Halves keep nothing for the next step: what a step loses is gone, and little.
        assert one["gap"] < (0.05 if compress in ("fp16", "bf16") else 2e-5), one
        assert one["skipped"] == 1
        assert one["identical"]
        assert one["largest"] > 1e-6, "nothing was compressed"
        assert one["sent"] == found[0]["sent"]
        # As soon as the buckets are those of the first step's order.
        assert one["sent"][-1] == SENT[compress](len(found)), one["sent"]


KEEPERS = ["int8", "topk:0.1", "powersgd"]


@pytest.mark.parametrize("how", ["abort", "error in backward"])
@pytest.mark.parametrize("compress", KEEPERS)
def test_a_step_that_is_broken_off_leaves_nothing_in_what_compression_keeps(
    ranks: Any, compress: str, how: str
) -> None:
    ranks.run("import survivors")
    for found in values(ranks, f"survivors.aborted({compress!r}, {how!r})"):
        assert found["said"] == ("PeerLost" if how == "abort" else "Interrupted")
        assert how != "abort" or all(found["dropped"])
        assert found["early has a rest"] and found["early is as it was"]
        assert not found["late is as it was"], "the step after it counts"


@pytest.mark.parametrize("compress", SENT)
def test_a_gradient_of_nothing_but_zeros_is_zero_and_a_tiny_one_arrives(two: Any, compress: str) -> None:
    code = f"""
import ddip
dp = ddip.DataParallel(r.nn.Linear(30, 40), compress={compress!r}, bucket_mb=0.0001)
(dp.module.weight.sum() * 0 + dp.module.bias.sum() * 0).backward()
zeros = [bool((p.grad == 0).all()) for p in dp.parameters()]
dp.zero_grad()
(dp.module.weight.sum() + dp.module.bias.sum()).backward()
zeros.append(dp.stats()["nonfinite"] == 0 and all(p.grad.any() for p in dp.parameters()))  # and the next is as ever
tiny = ddip.DataParallel(r.nn.Linear(1, 3, bias=False), compress="topk:0.01" if {compress!r}.startswith("topk") else {compress!r})
tiny.module.weight.sum().backward()
(zeros, int(tiny.module.weight.grad.count_nonzero()))
"""
    for zeros, arrived in values(two, code):
        assert zeros == [True, True, True]
        assert arrived == (1 if compress.startswith("topk") else 3)


@pytest.mark.parametrize("compress", KEEPERS)
def test_what_is_left_over_of_a_part_that_is_not_used_waits_for_it(ranks: Any, compress: str) -> None:
    ranks.run("import survivors")
    for gap, largest in values(ranks, f"survivors.switched({compress!r})"):
        assert gap < 1e-4 and largest > 0.01


@pytest.mark.parametrize("compress", ["fp16", "bf16", "int8", "topk:0.1", "powersgd"])
def test_compressed_training_ends_where_uncompressed_does(two: Any, compress: str) -> None:
    for seed in range(3):
        plain = values(two, f"r.final_loss('none', {seed})")[0]
        packed = values(two, f"r.final_loss({compress!r}, {seed})")[0]
        assert packed <= 1.02 * plain + 1e-4, (seed, plain, packed)


def test_a_step_that_is_not_finite_is_left_to_a_grad_scaler_if_asked(two: Any) -> None:
    code = """
dp = ddip.DataParallel(r.Given(), compress="int8", nonfinite="keep")
mine = r.given(0, r.rank)
mine[0][0, 0] = float("inf") if r.rank else 1.0
dp(mine).backward()
[dp.stats()["skipped"], all(p.grad is not None for p in dp.parameters()), any(not p.grad.isfinite().all() for p in dp.parameters())]
"""
    assert values(two, "import ddip" + code) == [[1, True, True]] * 2
