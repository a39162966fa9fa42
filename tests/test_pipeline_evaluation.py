"""What `pipe.evaluate` measures."""

from __future__ import annotations

import pytest
from support.pipeline_groups import pipeline_group

import ddip

pytest.importorskip("torch")


@pytest.mark.parametrize("replicas", [1, 2])
def test_metrics_are_those_of_one_process_on_every_rank(replicas: int) -> None:
    with pipeline_group("pipeline-metrics", "numpy as np", workers=2 * replicas) as group:
        # Batches of 12 and of 7 samples, which make micro-batches of 3 and of 2, 2, 2 and 1.
        group.run(
            f"pipe = p.pipe_of(p.mlp(2), '1f1b', replicas={replicas})\n"
            "away = lambda out, y: (out - y).abs().mean()\n"
            "near = lambda out, y: float(((out - y).abs() < 1).double().mean())\n"
            f"batches = p.data(4, 12, 7)[pipe.replica :: {replicas}]\n"
            "before = {name: part.clone() for name, part in pipe.state_dict().items()}\n"
            "counted = lambda out, y: (out[y > 0].sum(), (y > 0).sum())\n"
            "sized = lambda out, y: (out.sum(), np.prod(y.shape))\n"
            "masked = lambda out, y: (torch.tensor(torch.nan), 0) if y[0, 0] > 0 else (1, 1)\n"
            "report = pipe.evaluate(batches, metrics={'away': away, 'near': near, 'positive': counted, 'masked': masked, 'sized': sized})\n"
            "model = torch.nn.Sequential(*p.mlp(2))\n"
            "x, y = (torch.cat(parts) for parts in zip(*p.data(4, 12, 7)))\n"
            "with torch.no_grad(): out = model(x)\n"
            "expected = {'away': float(away(out, y)), 'near': near(out, y), 'positive': float(out[y > 0].mean()), 'masked': 1.0, 'sized': float(out.mean())}\n"
            "moved = p.furthest(before, pipe.state_dict())"
        )
        for rank in range(2 * replicas):
            found, expected = group.pull("report", rank=rank).metrics, group.pull("expected", rank=rank)
            assert found == pytest.approx(expected, abs=1e-12)
            assert list(found) == ["away", "near", "positive", "masked", "sized"]
        assert group.pull("moved", rank=0) == 0.0
        assert f"near {group.pull('expected', rank=0)['near']:.4g}" in group.run("str(report)")[0].value
        mean = group.run("report.loss, float(torch.nn.functional.mse_loss(model(x), y)), str(report)")[0].value
        assert mean[0] == pytest.approx(mean[1], abs=1e-12) and f"mean loss {mean[1]:.4g}" in mean[2]
        assert group.run("pipe.run(p.data(1, 12)).metrics")[0].value == {}


def test_a_run_without_samples_trains_nothing_and_measures_nothing() -> None:
    with pipeline_group("pipeline-nothing", "warnings") as group:
        group.run(
            "warnings.simplefilter('error')\n"
            "pipe = p.pipe_of(p.mlp(2), '1f1b')\n"
            "before = pipe.state_dict()\n"
            "nothing = [(torch.empty(0, 6, dtype=torch.float64), torch.empty(0, 3, dtype=torch.float64))]\n"
            "pipe.run(nothing)\n"
            "found = [pipe.evaluate(given, metrics={'one': lambda out, y: 1}).metrics['one'] for given in ([], nothing, p.data(1, 12))]"
        )
        assert str(group.pull("found", rank=0)) == "[nan, nan, 1.0]"
        assert group.run("p.furthest(before, pipe.state_dict())")[0].value == 0.0
        assert group.run("pipe.notes")[0].value == []


def test_metrics_that_cannot_be_are_refused_in_our_words() -> None:
    with pipeline_group("pipeline-metrics") as group:
        group.run("pipe = p.pipe_of(p.mlp(2), '1f1b')")
        for given, said in [
            ("[max]", "expected names and functions of (output, target), as a dict"),
            ("{'away': lambda out, y: 'far'}", "metrics['away'] gave str; expected one number, the mean over"),
            (
                "{'away': lambda out, y: (1, 2, 3)}",
                "metrics['away'] gave (1, 2, 3); expected one number, the mean over the samples, or (sum",
            ),
            ("{'away': lambda out, y: (1.0, -2)}", "metrics['away'] gave (1.0, -2); expected one number"),
            ("{'away': lambda out, y: (1.0, float('nan'))}", "metrics['away'] gave (1.0, nan); expected one number"),
            ("{'away': lambda out, y: (1.0, float('inf'))}", "metrics['away'] gave (1.0, inf); expected one number"),
            ("{'away': lambda out, y: (10**400, 1)}", "expected one number, the mean over the samples, or (sum"),
            ("{'away': lambda out, y: out[:1, :1].max(0)}", "gave (a tensor [1], a tensor [1]); expected one number"),
            ("{'away': 3}", "metrics= has 'away': 3; expected names and functions of (output, target)"),
            (
                "{'away': lambda out, y: out}",
                "metrics['away'] gave a tensor [3, 3]; expected one number, the mean over",
            ),
            (
                "{'a': max} if ddip.rank() else {'b': max}",
                "metrics= has ['a'] on rank 1 and ['b'] on rank 0; expected the same names",
            ),
        ]:
            with pytest.raises(ddip.RankError) as error:
                group.run(f"pipe.evaluate(p.data(1, 12), metrics={given})")
            assert any(said in text for text in error.value.tracebacks.values()), error.value.tracebacks
            assert len(group.run("pipe.evaluate(p.data(1, 12)).losses")[0].value) == 1
