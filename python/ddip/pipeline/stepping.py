"""A stage's optimizer and rates, as the staleness policies see them: torch's own optimizer steps the stage's true weights,
and its momenta are moved into flat memory, so that a prediction is one pass over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.rates import FirstRates, Future, MakeScheduler, scheduler_of
from ddip.pipeline.whole_step import WholeStep

RULES: dict[type, str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.NAdam: "nadam",
}
# A rule's state that policies read: the first moment, the second.
MOMENTS = {
    "sgd": ("momentum_buffer", ""),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "nadam": ("exp_avg", "exp_avg_sq"),
}

SAID = {
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    "adam": ("betas", "eps", "weight_decay", "maximize"),
    "adamw": ("betas", "eps", "weight_decay", "maximize"),
    "nadam": ("betas", "eps", "weight_decay", "maximize", "momentum_decay", "decoupled_weight_decay"),
}

UNCHANGING = (float, bool, int, type(None))
# What group_of looks at.
SEEN = (
    "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "amsgrad", "betas", "eps", "momentum_decay",
    "decoupled_weight_decay",
)  # fmt: skip

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def hash_of(tensors: Sequence[torch.Tensor]) -> str:
    """SHA-256 of their bytes, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def rule_of(optimizer: torch.optim.Optimizer) -> str | None:
    return next((name for kind, name in RULES.items() if type(optimizer) is kind), None)


def group_of(options: dict[str, Any], begin: int = 0, end: int = 0) -> Any:
    """A parameter group of torch.optim's as the policies know it, on this slice of flat memory."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    return engine().StageGroup(
        begin=begin, end=end, rate=float(options["lr"]), momentum=options.get("momentum", 0.0),
        dampening=options.get("dampening", 0.0), weight_decay=options.get("weight_decay", 0.0),
        nesterov=options.get("nesterov", False), maximize=options.get("maximize", False),
        amsgrad=options.get("amsgrad", False), beta1=beta1, beta2=beta2, eps=options.get("eps", 1e-8),
        momentum_decay=options.get("momentum_decay", 4e-3),
        decoupled_weight_decay=options.get("decoupled_weight_decay", False),
    )  # fmt: skip


def plain(option: Any) -> Any:
    """As it is now: what is changed in place later is another one."""
    if type(option) in UNCHANGING:
        return option
    if isinstance(option, (list, tuple)):
        return [float(part) for part in option]
    return float(option) if isinstance(option, torch.Tensor) else option


def stays(option: Any) -> bool:
    """Nobody can change it in place."""
    return type(option) in UNCHANGING or (type(option) is tuple and all(type(part) in UNCHANGING for part in option))


class Stepping:
    """One stage's. `weights`: its flat memory; `stage`: its name, for people."""

    def __init__(
        self,
        weights: Any,
        names: list[str],
        make_optimizer: MakeOptimizer,
        make_scheduler: MakeScheduler | None,
        stage: str,
    ) -> None:
        self.weights, self.names = weights, names
        self.noted: list[
            Callable[[list[float], str], None]
        ] = []  # called after each step: its rates, the gradient's hash
        self.masters = [torch.nn.Parameter(master.detach()) for master in weights.masters]
        for master, given in zip(self.masters, weights.masters, strict=True):
            master.grad = given.grad
        self.optimizer = make_optimizer(self.masters) if self.masters else None
        self.rule = rule_of(self.optimizer) if self.optimizer else "sgd"
        if self.optimizer:
            self._refuse_other_parameters(stage)
            self._refuse_lbfgs()
        self.scheduler = scheduler_of(make_scheduler, self.optimizer) if make_scheduler and self.optimizer else None
        self.future = Future(self.optimizer, make_scheduler) if self.scheduler else None
        self._first_rates = FirstRates(self.groups, self.scheduler)
        self.whole = WholeStep()
        self.velocity: torch.Tensor | None = None
        self.second: torch.Tensor | None = None
        self.steps = 0
        self._last: tuple[list[float], str] = ([], "")
        self._runs = self._find_runs()
        self._state: Any = None
        self._said: list[tuple[Any, ...]] = []  # options of the groups, when they were described
        self._said_is_plain = False
        self._values: list[list[Any]] = []  # the same, as they were then
        self._described: list[Any] = []
        self._moments_are_known = False
        self._waiting = set(range(len(self.masters)))  # parameters that have not stepped yet
        self._uneven = False  # some have stepped more often than others

    def _refuse_other_parameters(self, stage: str) -> None:
        assert self.optimizer
        ours = {id(master) for master in self.masters}
        for group in self.optimizer.param_groups:
            if any(id(parameter) not in ours for parameter in group["params"]):
                raise ConfigError(
                    f"optimizer= was given the parameters of {stage} and took others; use those it is called with"
                )
            if group.get("amsgrad"):
                raise ConfigError("amsgrad=True is not supported in a pipeline: its maximum cannot be predicted")
        taken = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        for name, master in zip(self.names, self.masters, strict=True):
            if id(master) not in taken:
                raise ConfigError(
                    f"optimizer= leaves out {name!r} of {stage}; freeze what is not to be trained (requires_grad_(False))"
                )

    def _refuse_lbfgs(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS asks for new gradients within a step; expected an optimizer that takes those it is given"
            )

    def _find_runs(self) -> list[tuple[int, int, int]]:
        """(group, begin, end): slices of the flat memory, each within one parameter group."""
        home = {id(p): index for index, group in enumerate(self.groups) for p in group["params"]}
        runs: list[tuple[int, int, int]] = []
        for master, begin in zip(self.masters, self.weights.begins, strict=True):
            group = home[id(master)]
            end = begin + master.numel()
            if runs and runs[-1][0] == group:
                runs[-1] = (group, runs[-1][1], end)  # over the padding between them, which is zero and stays so
            else:
                runs.append((group, begin, end))
        return runs

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups if self.optimizer else []

    def state(self) -> Any:
        """What the policies ask: `_engine.StageOptimizer`. It is asked for before every prediction, so it is made anew only
        where something has changed."""
        said = [tuple(map(group.get, SEEN)) for group in self.groups]
        if said != self._said or not self._said_is_plain:
            self._describe(said)
        if self._state is None:
            native = engine()
            self._state = native.StageOptimizer(
                rule=native.rule_of(self.rule) if self.rule else native.Rule.other, groups=self._described, steps=-1,
                mu_products=[], weights=self.weights.truth, velocity=self.velocity, second=self.second,
                unstepped=self._unstepped(),
            )  # fmt: skip
        if self._state.steps != self.steps:
            self._state.steps = self.steps
            if self.rule == "nadam" and self.steps:
                self._state.mu_products = self._mu_products()
        return self._state

    def _unstepped(self) -> list[tuple[int, int]]:
        """Slices of parameters that have not stepped yet, where others have."""
        begins = self.weights.begins
        return [(begins[i], begins[i] + self.masters[i].numel()) for i in sorted(self._waiting)] if self.steps else []

    def _mu_products(self) -> list[float]:
        """Of each slice's group: that of the parameter that has stepped most often."""
        assert self.optimizer
        found = []
        for group, _, _ in self._runs:
            states = [self.optimizer.state.get(master, {}) for master in self.groups[group]["params"]]
            most = max(states, key=lambda state: float(state.get("step", 0))) if self._uneven else states[0]
            found.append(float(most.get("mu_product", 1.0)))
        return found

    def _describe(self, said: list[tuple[Any, ...]]) -> None:
        """What can be changed in place (a tensor, a list) is looked at each time."""
        self._said = said
        self._said_is_plain = all(stays(option) for options in said for option in options)
        values = [[plain(option) for option in options] for options in said]
        if values != self._values:
            if [value[1:] for value in values] != [value[1:] for value in self._values]:
                self._moments_are_known = False  # a momentum that was 0, say
            self._described = [group_of(self.groups[group], begin, end) for group, begin, end in self._runs]
            self._values, self._state = values, None

    def by_group(self, rates: list[list[float]]) -> list[list[float]]:
        """What was said of each slice, of each parameter group."""
        found = {group: rates[index] for index, (group, _, _) in reversed(list(enumerate(self._runs)))}
        return [found[group] for group in sorted(found)]

    def described(self) -> dict[str, Any]:
        """For the ledger."""
        name_of = {id(master): name for master, name in zip(self.masters, self.names, strict=True)}
        groups = []
        for group in self.groups:
            said = {key: group[key] for key in SAID.get(self.rule or "", ()) if key in group}
            if "betas" in said:
                said["betas"] = list(said["betas"])
            groups.append({"parameters": [name_of[id(parameter)] for parameter in group["params"]], **said})
        found: dict[str, Any] = {"name": self.rule or type(self.optimizer).__name__, "groups": groups}
        return {**found, "form": "torch"} if self.rule == "sgd" else found

    def rates(self, steps: int) -> list[list[float]]:
        """Of each slice: the rates of the next steps."""
        ahead = self.future.rates(self.steps, steps, self.groups) if self.future else None
        return [ahead[group] if ahead else [float(self.groups[group]["lr"])] * steps for group, _, _ in self._runs]

    def step(self, rates: list[float]) -> None:
        self.whole.begin()
        try:
            self._step(rates)
        except BaseException:
            self.whole.end()
            raise

    def _step(self, rates: list[float]) -> None:
        assert self.optimizer
        kept = [group["lr"] for group in self.groups]
        gradient = hash_of([master.grad for master in self.weights.masters]) if self.noted else ""
        for (group, _, _), rate in zip(self._runs, rates, strict=True):
            self.groups[group]["lr"] = rate
        unreached = self.weights.unreached
        for index in unreached:
            self.masters[index].grad = None  # so that the optimizer leaves it as it is
        try:
            self.optimizer.step()
        finally:
            for index in unreached:
                self.masters[index].grad = self.weights.masters[index].grad
            for options, rate in zip(self.groups, kept, strict=True):
                options["lr"] = rate
        self.steps += 1
        self._follow(unreached)
        self._gather_moments()
        self._last = [float(rate) for rate in kept], gradient
        if self.scheduler:
            self.scheduler.step()

    def _follow(self, unreached: list[int]) -> None:
        self._uneven = self._uneven or bool(unreached)
        if self._waiting and (first := self._waiting.difference(unreached)):
            self._waiting -= first
            self._moments_are_known = False  # they have got some

    def set_rate(self, rate: float) -> None:
        """From the next step on. What a scheduler makes of it later is scaled alike, also where that computes each rate from the
        first one (LambdaLR) and not from the last."""
        for index, group in enumerate(self.groups):
            if self.future:
                self._first_rates.scale(index, group, self.future.factor(self.steps, index, rate))
            group["lr"] = rate

    def restore(self, optimizer: dict[str, Any], steps: int, scheduler: dict[str, Any] | None) -> None:
        assert self.optimizer
        self.optimizer.load_state_dict(optimizer)
        self._keep_products(optimizer)
        self.steps, self.velocity, self.second = steps, None, None
        self._state = None  # of other moments
        self._uneven = True  # perhaps
        self._waiting = {i for i, master in enumerate(self.masters) if not self.optimizer.state.get(master)}
        self._moments_are_known = False
        if steps:
            self._gather_moments()
        if self.scheduler and scheduler:
            self.scheduler.load_state_dict(scheduler)

    def _keep_products(self, saved: dict[str, Any]) -> None:
        """NAdam's are numbers of their own kind; torch loads them as numbers of the parameter's, and would round otherwise."""
        assert self.optimizer
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            product = saved["state"].get(number, {}).get("mu_product")
            if product is not None:
                state = self.optimizer.state[parameter]
                state["mu_product"] = product.to(state["step"].device, copy=True)

    def stepped(self) -> bool:
        """The policy has had its part in the step, too. Whether a stop came meanwhile."""
        try:
            for note in self.noted:
                note(*self._last)
        finally:
            came = self.whole.end()
        return came

    def _gather_moments(self) -> None:
        """After the first step, which makes them: into flat memory, where the optimizer goes on changing them."""
        if self.rule is None or (self.velocity is not None and self._moments_are_known):
            return
        assert self.optimizer
        self._moments_are_known = True
        first, second = MOMENTS[self.rule]
        self._state = None  # it has other moments
        self.velocity = self._gather(first)
        self.second = self._gather(second) if second else None

    def _gather(self, name: str) -> torch.Tensor | None:
        assert self.optimizer
        parts = [self.optimizer.state.get(master, {}).get(name) for master in self.masters]
        if all(part is None for part in parts):
            return None
        flat = torch.zeros_like(self.weights.truth)
        for master, part, place in zip(self.masters, parts, self.weights.slices(flat), strict=True):
            if part is not None:
                place.copy_(part)
                self.optimizer.state[master][name] = place
        return flat
