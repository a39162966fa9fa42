"""`ddip.Pipeline`: a model cut into stages, one for each rank, trained by a schedule with a staleness policy."""

from __future__ import annotations

import contextlib
import hashlib
import math
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ddip.communicators import comm, engine
from ddip.errors import ConfigError
from ddip.keywords import known_keywords_only
from ddip.pipeline import saving
from ddip.pipeline.after_failure import make_replicas_equal
from ddip.pipeline.arguments import (
    clipping_of,
    loss_scaling_of,
    refuse_other_counts,
    refuse_other_kinds,
    refuse_other_numbers,
    refuse_other_order,
    refuse_other_stages,
    refuse_what_cannot_be_called,
    smoothing_of,
    window_of,
    without_effect,
)
from ddip.pipeline.batches import Batches
from ddip.pipeline.cutting import Cut, cut
from ddip.pipeline.hidden_weights import hidden_references
from ddip.pipeline.live import Watch
from ddip.pipeline.memory import Activations
from ddip.pipeline.metrics import Metric, Metrics
from ddip.pipeline.modes import evaluating, make_train
from ddip.pipeline.own_plan import own_plan
from ddip.pipeline.parts import Split, edges_of, parts_of
from ddip.pipeline.policy_choice import chosen_policy
from ddip.pipeline.random_state import RandomState
from ddip.pipeline.rates import MakeScheduler
from ddip.pipeline.report import Report
from ddip.pipeline.run_report import report_of
from ddip.pipeline.saved_stage import plain
from ddip.pipeline.stage_calls import StageCalls
from ddip.pipeline.stage_making import made_stage
from ddip.pipeline.stage_view import StageView, look_at, set_rate
from ddip.pipeline.stepping import MakeOptimizer, Stepping
from ddip.pipeline.textbook_policies import checked_options
from ddip.pipeline.tying import aliases, tie_stages
from ddip.pipeline.writer import STOPPED, Writer
from ddip.replicas import gather_objects, together

Loss = Callable[[Any, Any], Any]
ScaleState = tuple[float, int, list[float]]
Heard = tuple[dict[int, float], ScaleState | None]
# Schedules whose window follows the measured links. paci is left alone: it must not run ahead more than one step.
WIDENED = ("1f1b", "async_1f1b", "virtual_async", "2bw")


class Pipeline:
    """Every rank of the group makes it with the same arguments and the same initial weights.

    model      a list of stages (modules; each takes what the one before returned), an nn.Sequential, which is cut into parts of as
               many layers, any module with `example`, or what ddip.pipeline.split made of one
    example    the inputs of one micro-batch: stages and links are measured, a module is traced and cut where it takes least time, and
               the window is as wide as the links ask for. partition: how it is cut (single, mixed, mirrored, a plan's file, or as a
               pipeline that was saved: its folder);
               leaves: classes of modules, or their names, that stay whole
    schedule   seq, gpipe, 1f1b, interleaved, zb1, zbv, async_1f1b, virtual_async, 2bw, paci
    window     how many backwards each stage may owe when another forward begins, by stage; "depth" is its distance from the last
               one; None: as wide as the measured links ask for, where there is an example, else the textbook's
    order      plan, or ready: a stage does what has come first, a backward or a forward, instead of waiting for what the plan has next
    staleness  auto, or a policy: none, stash, msnag, … ("msnag+stash"); docs/staleness.md. staleness_options: what it can be told,
               as {"gap_decay": 0.99}
    optimizer  a function from a list of parameters to an optimizer, called once for each stage
    scheduler  a function from such an optimizer to its learning-rate scheduler
    micro_batches   parts of a batch. accumulate: micro-batches to a step (asynchronous), or batches to a step (synchronous)
    precision  fp32, or bf16, fp16: autocast. loss_scale: of fp16, by what the sum of a micro-batch's losses is multiplied before its
               backward: a power of two that stays, {"initial": 1024, "interval": 2000}, halved when gradients are too large and doubled after so many
               steps in which they are not, or "auto", which is that one
    smoothing  of gradients, in the bubbles of synchronous schedules: {"passes": 4, "radius": 0.01} sends each micro-batch through the
               pipe four times, on weights with noise of that standard deviation, and steps by the mean of the gradients
    recompute  a micro-batch keeps its inputs instead of its graph
    warmup, switch_at, flush_every, max_staleness   batches before, from or after which an asynchronous schedule is synchronous (the
               first two count those of earlier runs, too), and the limit of virtual_async; docs/pipeline.md
    placement  the rank of each stage. seed: of the random numbers in the stages
    clip       the largest norm of a step's gradient. clipping: "global", the norm of all stages together (of some steps before where
               steps do not wait for each other), "proportional", each stage its share of the limit, by its number of parameters,
               "local", each stage by itself; "auto" is global where it is exact (synchronous schedules), else local
    replicas   pipelines side by side, each on its own batches (`replica` says which this is), that step together
    ranks      the communicator, ddip.comm() if not given
    gaps       reports also say how far each stage's weights moved between forwards and backwards, and how near predictions came; it
               takes a copy of what each forward used, two with a prediction, and some time
    ledger     a file for what was done (docs/ledger.md); program: the "file.py:factory" that replay is to call
    loss       a function of (output, target) that gives the mean over the samples, or (sum, count)
    """

    @known_keywords_only
    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module] | Split,
        stages: int | None = None,
        *,
        loss: Loss,
        optimizer: MakeOptimizer,
        schedule: str = "async_1f1b",
        staleness: str = "auto",
        staleness_options: Mapping[str, float] | None = None,
        micro_batches: int = 8,
        accumulate: int = 1,
        window: str | Sequence[int] | None = None,
        order: str = "plan",
        scheduler: MakeScheduler | None = None,
        clip: float | None = None,
        clipping: str = "auto",
        replicas: int = 1,
        precision: str = "fp32",
        loss_scale: str | float | Mapping[str, float] = "auto",
        smoothing: Mapping[str, float] | None = None,
        gaps: bool = False,
        recompute: bool | None = None,
        max_staleness: int | None = None,
        warmup: int = 0,
        flush_every: int = 0,
        switch_at: int | None = None,
        seed: int = 0,
        placement: Sequence[int] | None = None,
        example: Any = None,
        partition: Any = None,
        leaves: Sequence[str | type[torch.nn.Module]] = (),
        ranks: Any = None,
        ledger: str | Path | None = None,
        program: str | None = None,
    ) -> None:
        self._given_ranks = ranks
        self.ranks = comm() if ranks is None else ranks
        refuse_what_cannot_be_called(optimizer, scheduler, loss)
        refuse_other_stages(stages)
        counts = {"warmup": warmup, "flush_every": flush_every, "switch_at": switch_at, "max_staleness": max_staleness}
        refuse_other_kinds(replicas, counts, {"recompute": recompute, "gaps": gaps})
        if self.ranks.name == "nccl":
            raise ConfigError(
                "backend nccl: a pipeline does not send its messages by it; expected shm, which goes from GPU to GPU, or gloo, mpi"
            )
        if replicas < 1 or self.ranks.world_size % replicas:
            raise ConfigError(f"replicas={replicas}: expected a divisor of the group's {self.ranks.world_size} ranks")
        self.replicas, self.width = replicas, self.ranks.world_size // replicas
        self.replica: int = self.ranks.rank // self.width  # which of the pipelines this is
        self.place: int = self.ranks.rank % self.width  # and which of its ranks
        self.cut: Cut | None = None
        if example is not None:
            self.cut = cut(model, example, self.ranks, self.width, stages, partition, bool(recompute), leaves)  # type: ignore[arg-type]
            model, placement = self.cut.model, placement or self.cut.placement
            if recompute is None and self.cut.plan:
                recompute = self.cut.plan.costs.recompute
        elif partition is not None or leaves:
            needs = "partition=" if partition is not None else "leaves="
            raise ConfigError(f"{needs} needs example=, the inputs of one micro-batch")
        self.parts = parts_of(model, stages, self.width)
        self.kinds = [type(part.module).__name__ for part in self.parts]  # for people
        # With an example somebody has looked at what they compute.
        hidden = [] if self.cut else hidden_references([part.module for part in self.parts])
        self.ties = tie_stages(self.parts)
        self.modules = [part.module for part in self.parts]
        self.placement = list(placement) if placement else [i % self.width for i in range(len(self.modules))]
        self.edges = edges_of(self.parts)
        if set(self.placement) != set(range(self.width)) or len(self.placement) != len(self.modules):
            raise ConfigError(
                f"{len(self.modules)} stages on ranks {self.placement} leave some of the pipeline's {self.width} ranks without a stage"
            )
        refuse_other_numbers(clip, seed)
        if order == "ready" and replicas > 1:
            raise ConfigError("order='ready' is of one pipeline; expected replicas=1")
        if ledger and replicas > 1:
            raise ConfigError("ledger= is of one pipeline; expected replicas=1")
        if precision not in ("fp32", "bf16", "fp16"):
            raise ConfigError(f"precision={precision!r}: expected fp32, bf16 or fp16")
        self.loss_scaling = loss_scaling_of(loss_scale, precision)
        refuse_other_counts(micro_batches, accumulate)
        self.loss, self.precision, self.seed, self.clip, self.gaps = loss, precision, seed, clip, gaps
        native = engine()
        self.asynchronous = not native.is_synchronous(schedule)
        self.smoothing = smoothing_of(smoothing, schedule, not self.asynchronous, staleness)
        self.per_batch = micro_batches * self.smoothing.passes  # what the plan calls micro-batches
        self.request: dict[str, Any] = {
            "schedule": schedule, "stages": len(self.modules), "rank_of_stage": self.placement, "edges": self.edges,
            "micro_batches": self.per_batch, "accumulate": accumulate, "warmup": warmup, "flush_every": flush_every,
            "window": window_of(window), "order": str(order),
        }  # fmt: skip
        if self.cut:
            measured = {"costs": self.cut.costs, "links": self.cut.links(self.edges)}
            self.request |= measured
            if window is None and schedule in WIDENED:
                self.request["window"] = list(
                    engine().default_window(
                        len(self.modules), rank_of_stage=self.placement, edges=self.edges, **measured
                    )
                )
        if max_staleness is not None:
            self.request["max_staleness"] = max_staleness
        if switch_at is not None:
            self.request["switch_at"] = switch_at
        self.micro_batches, self.accumulate = micro_batches, accumulate
        self.clipping = clipping_of(clipping, clip, self.asynchronous, precision)
        # Long enough to show what every batch of a longer run will be like, with as many messages under way.
        ahead = min(max(self.request["window"], default=len(self.modules)), 4096)  # nobody has memory for more
        enough = max(8, max(3 * accumulate, 2 * (ahead + 1)) // max(self.per_batch, 1) + 1)
        self.micro_batches_done = self.batches_done = 0  # in earlier runs
        self.plan = self.plan_of(enough + warmup + (switch_at or 0))
        # By stage: by how many steps a forward's weights are old at its backward, at the most.
        self.prepared_staleness: list[int] = self.plan.check().staleness
        stale = any(self.prepared_staleness)
        self._frames = [max(2, frames) for frames in self.plan.capacity]
        self.notes: list[str] = list(self.plan.notes)  # what was asked for and is not so, for people
        self.notes += without_effect(schedule, window, clip, clipping, ledger, program)
        self.policy_name, notes = chosen_policy(
            staleness, schedule, optimizer, self.modules, stale, staleness_options or {}
        )
        self.notes += notes
        if self.cut and self.cut.plan and bool(recompute) != self.cut.plan.costs.recompute:
            self.notes.append(f"recompute={recompute}: the plan reckons with recompute={self.cut.plan.costs.recompute}")
        for line in hidden:
            self.warn(line)
        refuse_other_order(order, self.policy_name, self.clipping, precision)
        self.policy_options = checked_options(self.policy_name, staleness_options or {})
        needs = self.make_policy().needs(native.StageOptimizer())
        self.request.update(predicts=needs.forward_weights, stashes=needs.stash, perturbs=self.smoothing.radius > 0)
        if precision != "fp32" and stale and not needs.stash and not recompute:
            recompute = True
            self.notes.append("recompute=True: under autocast a kept graph would use the weights of its forward")
        self._done: Any = None  # this rank's actions in the last one, if their order was found
        self._trained = [{name for name, p in module.named_parameters() if p.requires_grad} for module in self.modules]
        self._whole = True  # no run was stopped or has failed since the replicas were equal
        self._left: tuple[Any, int] | None = None  # an iterator that a run which failed has read so many batches of
        self.policies: dict[int, Any] = {}
        self.calls: dict[int, StageCalls] = {}
        self.steppings: dict[int, Stepping] = {}
        self.versions: dict[int, Any] = {}
        mine = [index for index, rank in enumerate(self.placement) if rank == self.place]
        self.native_stages = together(
            lambda: [made_stage(self, index, optimizer, scheduler, clip, recompute) for index in mine], self.ranks
        )
        # How many steps old a global norm is: so many that nobody waits for it.
        self.norm_delay = 1 + max(self.prepared_staleness) if self.asynchronous else 0
        self._writer = Writer(ledger, self, program) if ledger else None
        self._executor = self._make_executor(self._frames)

    def _make_executor(self, frames: list[int]) -> Any:
        return engine().Executor(
            self.ranks, self.native_stages, self.edges, self.placement, frames,
            replicas=self.replicas, global_norm=self.clipping == "global", norm_delay=self.norm_delay,
            norm_ranks=sorted(
                {rank for index, rank in enumerate(self.placement) if self.loss_scaling or self.trained_elements(index)}
            ),
            loss_scale=self.loss_scaling and (self.loss_scaling["initial"], int(self.loss_scaling["interval"])),
        )  # fmt: skip

    def follow_rebuild(self) -> None:
        """The group was made again since the last call: so are the channels between the stages. All ranks come here, as each call
        that all ranks make begins with it. Weights and optimizers stay as they are."""
        if self._given_ranks is not None or (ranks := comm()) is self.ranks:
            return
        self.ranks, heard = ranks, self.heard
        self._executor = self._make_executor(self._frames)
        self.heard = heard
        # A rank may have missed the end of a run that others have seen.
        done = gather_objects((self.micro_batches_done, self.batches_done), self.ranks)
        self.micro_batches_done, self.batches_done = max(done)

    # --- what is run

    def plan_of(self, batches: int) -> Any:
        """The plan for so many batches after those that are done; it is checked before anything runs."""
        done = self.batches_done
        request = {**self.request, "warmup": max(0, self.request["warmup"] - done)}
        if "switch_at" in request:
            request["switch_at"] = max(0, request["switch_at"] - done)
        plan = engine().make_plan(batches=batches, **request)
        verdict = plan.check()
        if not verdict.ok:
            raise ConfigError(f"the plan is refused: {verdict.error}")
        return plan

    def _make_room(self) -> None:
        """For a plan of somebody's own that has more messages under way. All ranks."""
        frames = [max(now, asked) for now, asked in zip(self._frames, self.plan.capacity, strict=True)]
        if frames != self._frames:
            heard, made = self.heard, self._make_executor(frames)
            made.heard = heard
            self._executor, self._frames = made, frames

    def run(
        self, batches: Iterable[Any], show: bool = False, count: int | None = None, plan: Any | None = None
    ) -> Report:
        """Trains on them. Every rank gives its own iterable of pairs (x, y), equally seeded and equally long: the first
        stage reads x, the last one y. `show`: a notebook draws what the ranks do while they do it. `count`: on so many of them at
        most; an iterator, which must have as many, has the others still, so that a stream without an end can be trained on part by
        part. An iterable without a length is read to its end before anything runs, unless there is a `count`. `plan`: another order
        of what `plan_of(len(batches))` has, a Plan or its file."""
        with Watch(show) as watch:
            watch.report = self._run(batches, True, watch, Metrics(None), count, plan)
        return watch.report

    def evaluate(
        self, batches: Iterable[Any], metrics: Mapping[str, Metric] | None = None, count: int | None = None
    ) -> Report:
        """The losses of the newest weights, without training. `metrics`: functions of (output, target) that give the mean over a
        micro-batch, or (sum, count), each under its name; `report.metrics` has their means over all samples. `count`: see `run`."""
        return self._run(batches, False, Watch(show=False), Metrics(metrics), count)

    def _run(
        self,
        batches: Iterable[Any],
        training: bool,
        watch: Watch,
        metrics: Metrics,
        count: int | None,
        plan: Any = None,
    ) -> Report:
        self.follow_rebuild()
        self._make_equal_again()
        self._refuse_other_parameters()
        before = RandomState()
        source = None
        try:
            source = Batches(batches, self.micro_batches, count, self.smoothing.passes if training else 1)
            return self._run_all(source, training, watch, metrics, plan)
        except BaseException:
            # The first stage has read further than the last one, and a loader may draw random numbers for each sample: the next
            # batches would not be the same on all ranks. Nor would an iterator's, if it is gone on with.
            before.restore()
            # Refused before what others had read more was made up for: it is so still.
            if not (self._left and source and self._left[0] is source.batches):
                self._left = (batches, source.read) if source and isinstance(batches, Iterator) else None
            raise

    def _run_all(self, source: Batches, training: bool, watch: Watch, metrics: Metrics, plan: Any) -> Report:
        own = together(lambda: own_plan(self, plan, len(source)), self.ranks)
        said = [len(source), self.fingerprint() + (own.json() if own else ""), training, metrics.names]
        ends = self._writer.ends_before(training) if self._writer else ""
        left = self._left[1] if self._left and self._left[0] is source.batches else 0
        everybody = gather_objects((said, uuid.uuid4().hex, ends, left), self.ranks)
        run = everybody[0][1]
        for rank, (theirs, *_) in enumerate(everybody):
            if theirs != said:
                if theirs[:-1] == said[:-1]:
                    raise ConfigError(
                        f"metrics= has {theirs[-1]} on rank {rank} and {said[-1]} on rank {self.ranks.rank}; expected the same names"
                    )
                what = f"{theirs[0]} batches, here {said[0]}" if theirs[0] != said[0] else "another pipeline"
                raise ConfigError(f"rank {rank} runs {what}: every rank must run the same pipeline on as many batches")
        for _, _, ends, _ in everybody:
            self._end_ledger(ends)
        if self._left and self._left[0] is source.batches:
            source.skip(max(read for *_, read in everybody) - left)
        self._left = None
        source.start()
        for index in {0, len(self.modules) - 1} & set(self.calls):
            self.calls[index].begin(source, metrics)
        for calls in self.calls.values():
            calls.activations.begin()
        if len(source) == 0:
            return Report([], [], 0.0, [], metrics.means(self.ranks), is_evaluation=not training)
        if training:
            self.plan = own or self.plan_of(len(source))
            if own:
                self._make_room()
            actions, self._done = engine().PlanActions(self.plan, self.place), None
        else:
            actions = engine().forwards_only(self.edges, self.placement, self.place, len(source) * source.per_batch)
        if training and self._writer:
            self._writer.complete = False  # until it is: a stop may come anywhere, and twice
            stop = f"ledger={str(self._writer.path)!r} ends before {STOPPED}"
            self._note(stop)  # and it stands there when one comes
        record = self._execute(actions, training, watch.begin(run, self.ranks.rank, len(source) * source.per_batch))
        if training and self.plan.order == "ready":
            self._done = actions
        if training and self._writer:
            ends = self._writer.add(record, self.micro_batches_done)
            self.notes.remove(stop)
            self._end_ledger(ends)
        for index, node in record.whole_backwards.items():
            self._note(f"stage {index}: its backward is not split, because {node} computes both parts at once")
        if training:
            self.micro_batches_done += len(source) * source.per_batch
            self.batches_done += len(source)
        report = report_of(self, record, source, training, metrics)
        for index in record.unreached:
            self.warn(
                f"stage {index} has not been trained: its output, or that of a stage behind it, has no graph "
                "(.detach(), torch.no_grad() or .item() in a forward?)"
            )
        return report

    def done_plan(self) -> Any:
        """What the ranks did in the last run, as a plan that can be checked and drawn: order="ready" finds its order while it runs. All
        ranks call it."""
        self.follow_rebuild()
        if self.plan.order == "plan":
            return self.plan
        everybody = gather_objects(self._done and self._done.lines, self.ranks)
        if None in everybody:
            raise ConfigError("order='ready': there is no run that came to its end, and so no order")
        return self.plan.as_done(everybody)

    def _execute(self, actions: Any, training: bool, progress: Any) -> Any:
        modules = [self.modules[index] for index in self.mine]
        if training:
            make_train(self.modules)
            self._whole = False  # until it is: a stop may come anywhere
        try:
            with contextlib.nullcontext() if training else evaluating(modules):
                record = self._executor.run(
                    actions, training=training, seed=self.seed + (self.replica << 32), progress=progress,
                    first_micro_batch=self.micro_batches_done if training else 0,
                    step_size=self.accumulate if self.asynchronous else 0,
                    smoothing_radius=self.smoothing.radius if training else 0.0,
                )  # fmt: skip
        finally:
            for stepping in self.steppings.values():
                stepping.whole.end()
            for calls in self.calls.values():
                calls.end()
        self._whole = True
        return record

    def _refuse_other_parameters(self) -> None:
        """On every rank those of all stages, so that all of them are refused. What was frozen since, C++ sees."""
        for index, module in enumerate(self.modules):
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and name not in self._trained[index]:
                    raise ConfigError(
                        f"{name!r} of stage {index} was frozen when the pipeline was made; make the pipeline anew"
                    )

    def _make_equal_again(self) -> None:
        """After a run that was stopped, or failed."""
        if self.replicas > 1 and not all(gather_objects(self._whole, self.ranks)):
            if stages := make_replicas_equal(self):
                self._note(
                    f"replicas of stages {stages} had done other steps when a run ended early; they are equal again"
                )
            self._whole = True

    def _end_ledger(self, before: str) -> None:
        """`before`: a run of which not everything is known, so that nothing after it could be replayed. All ranks; nothing: it goes on."""
        if self._writer and before:
            self.warn(f"ledger={str(self._writer.path)!r} ends before {before}")
            self._writer.close()
            self._writer = None

    def warn(self, text: str) -> None:
        if text not in self.notes:
            warnings.warn(text, stacklevel=4)
        self._note(text)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def fingerprint(self) -> str:
        return hashlib.sha256(
            repr(
                (
                    sorted(self.request.items()),
                    self.policy_name,
                    sorted(self.policy_options.items()),
                    self.seed,
                    self.precision,
                    self.replicas,
                    self.clipping,
                    self.loss_scaling,
                    self.smoothing,
                )
            ).encode()
        ).hexdigest()

    def recomputes(self, index: int) -> bool:
        return next(bool(stage.recompute) for stage in self.native_stages if stage.index == index)

    def activations(self, index: int) -> Activations:
        return self.calls[index].activations

    # --- the weights

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The newest true weights and buffers of the whole model, on every rank, under the model's own names; of a list of stages:
        "0.weight", …"""
        self.follow_rebuild()
        mine: dict[str, Any] = {}
        for stage in self.native_stages:
            for name, tensor in self.stage_state_dict(stage.index).items():
                mine[self.parts[stage.index].name_of(name)] = tensor
        whole: dict[str, torch.Tensor] = {}
        for part in gather_objects(mine, self.ranks):
            whole.update(part)
        return whole | aliases(self.ties, self.parts, whole)

    def stage_state_dict(self, index: int) -> dict[str, Any]:
        """Of one of this rank's stages, copied to the CPU. A module's extra state may be no tensor."""
        if index in self.versions:
            self.versions[index].settle()
        return {name: plain(value) for name, value in self.modules[index].state_dict().items()}

    def stage(self, index: int) -> StageView:
        """What is in a stage, wherever it is: weights, steps done, rates. All ranks call it."""
        self.follow_rebuild()
        return look_at(self, index)

    def set_rate(self, rate: float) -> None:
        """From the next step on, in all parameter groups. All ranks call it, between two runs."""
        set_rate(self, rate)

    @property
    def mine(self) -> list[int]:
        """This rank's stages."""
        return [stage.index for stage in self.native_stages]

    def save(self, path: str | Path) -> None:
        """Weights, optimizers, policies: everything that a later run needs, into a folder that all ranks see. All ranks call it."""
        self.follow_rebuild()
        self._make_equal_again()
        saving.save(self, path)

    def load(self, path: str | Path) -> None:
        """What save wrote, into a pipeline that was made with the same arguments. All ranks call it."""
        self.follow_rebuild()
        if self._writer:
            raise ConfigError(
                f"ledger={str(self._writer.path)!r} begins with the weights that the program makes; load into a pipeline without one"
            )
        saving.load(self, path)
        self._whole = True  # also if a run before it was not

    @property
    def heard(self) -> Heard:
        """What the stages told each other in the last steps, for a run that goes on from here: squares of the gradients' norms, and
        what became of the loss's scale. Taken over from another run as far as it says something here."""
        heard: Heard = self._executor.heard
        return heard

    @heard.setter
    def heard(self, heard: Heard) -> None:
        self._executor.heard = heard

    @property
    def scale_state(self) -> ScaleState | None:
        """Of the loss: how large it is, finite steps in a row, scales of the last steps, whose ends are not known. None: it is not
        scaled, or the last stage is on another rank."""
        return self.heard[1]

    def trained_elements(self, index: int) -> int:
        return sum(p.numel() for p in self.modules[index].parameters() if p.requires_grad)

    def clip_share(self, index: int) -> float:
        """Stages whose gradients have each its share of the norm have the whole norm together."""
        everything = sum(self.trained_elements(other) for other in range(len(self.modules)))
        return math.sqrt(self.trained_elements(index) / everything) if everything else 1.0

    # --- making

    def make_policy(self) -> Any:
        # One is the optimizer's, not the policy's.
        options = {name: value for name, value in self.policy_options.items() if name != "nesterov_by_stage"}
        return engine().make_policy(self.policy_name, **options)
