"""I14, I15: values go there and back whole, share memory only where they did before, and a failed push changes nothing."""

from __future__ import annotations

import types
from typing import Any

import numpy
import pytest
import torch

import ddip
from ddip import values


def main_function(source: str, name: str = "f", **globals_there: Any) -> Any:
    """A function as if it had been typed into the client's notebook: it belongs to __main__."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__, **globals_there}
    exec(source, namespace)
    return namespace[name]


ROUND_TRIPS = {
    "none": None,
    "text": "näh ✓",
    "nested": {"a": [1, (2.5, None)], 3: {b"x", b"y"}},
    "big_bytes": b"x" * (3 << 20),
    "integer": 1 << 200,
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_plain_values_come_back_equal(plain: Any, name: str) -> None:
    plain.push({"x": ROUND_TRIPS[name]})
    assert plain.pull("x") == ROUND_TRIPS[name] and plain["x"] == ROUND_TRIPS[name]
    assert plain.pull("x", rank="all") == [ROUND_TRIPS[name]] * 2


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0).reshape(2, 3), torch.tensor(3), torch.empty(0), torch.empty(0, 4), torch.randn(4, 5).t(), torch.randn(10)[::3], torch.randn(3, 4, 5)[1:, ::2],
     torch.tensor([True, False]), torch.randn(3, dtype=torch.bfloat16), torch.randn(3).half(), torch.tensor([1 + 2j]), torch.arange(5, dtype=torch.uint8),
     torch.ones(3).expand(4, 3), torch.randn(3, requires_grad=True), torch.eye(3).to_sparse(), torch.tensor([1 + 2j]).conj()],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.dtype}-{tensor.layout}".replace("torch.", ""),
)  # fmt: skip
def test_tensors_come_back_equal_with_dtype_shape_stride_and_grad_flag(torched: Any, tensor: Any) -> None:
    torched.push({"x": tensor})
    back = torched.pull("x", rank=1)
    assert type(back) is torch.Tensor and (back.dtype, back.shape, back.requires_grad, back.layout) == (
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
        tensor.layout,
    )
    assert torch.equal(back.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())
    if tensor.layout is torch.strided and not tensor.is_conj():
        assert back.stride() == tensor.stride()


def test_a_requires_grad_leaf_still_learns_over_there(torched: Any) -> None:
    torched.push({"w": torch.ones(3, requires_grad=True)})
    assert [result.value for result in torched.run("(w * 2).sum().backward(); (w.is_leaf, w.grad.tolist())")] == [
        (True, [2.0, 2.0, 2.0])
    ] * 2


def test_a_parameter_stays_a_parameter(torched: Any) -> None:
    torched.push({"p": torch.nn.Parameter(torch.ones(2))})
    assert [result.value for result in torched.run("type(p).__name__, p.requires_grad, p.tolist()")] == [
        ("Parameter", True, [1.0, 1.0])
    ] * 2


@pytest.mark.parametrize(
    "array",
    [numpy.arange(6).reshape(2, 3), numpy.float32(1.5), numpy.array([]), numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), numpy.arange(10)[::3],
     numpy.array(["a", "bc"]), numpy.array([{"x": 1}], dtype=object), numpy.array([1, 2], dtype=">i4"), numpy.zeros((2, 0)), numpy.arange(1 << 18)],
    ids=str,
)  # fmt: skip
def test_arrays_come_back_equal_and_writable(plain: Any, array: Any) -> None:
    plain.push({"x": array})
    back = plain.pull("x", rank=1)
    assert numpy.array_equal(back, array) and back.dtype == array.dtype
    if isinstance(array, numpy.ndarray) and array.size:
        plain.run("x.flat[0] = x.flat[-1]")
        back.flat[0] = back.flat[-1]


def test_tensors_that_share_memory_still_do_within_one_push(torched: Any) -> None:
    base = torch.zeros(4)
    torched.push({"whole": base, "part": base[1:3], "apart": base.clone(), "same": base})
    assert [
        result.value
        for result in torched.run(
            "part.fill_(7); (whole.tolist(), apart.tolist(), same is whole or same.data_ptr() == whole.data_ptr())"
        )
    ] == [([0.0, 7.0, 7.0, 0.0], [0.0] * 4, True)] * 2
    assert base.tolist() == [0.0] * 4, "the client's own memory is untouched"


def test_shared_memory_survives_a_pull_too(torched: Any) -> None:
    torched.run("import torch; base = torch.zeros(4); pair = (base, base[2:])")
    whole, part = torched.pull("pair")
    part.fill_(1)
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert torched.pull("base").tolist() == [0.0] * 4, "what was pulled is a copy"


def test_tied_weights_of_a_module_stay_tied(torched: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    torched.push({"model": model})
    assert [
        result.value for result in torched.run("model[0].weight is model[1].weight, len(list(model.parameters()))")
    ] == [(True, 1)] * 2


def test_a_big_tensor_arrives_writable_and_no_rank_sees_anothers_writes(torched: Any) -> None:
    big = torch.zeros(16 << 20)  # 64 MiB
    torched.push({"big": big})
    sums = torched.run("import os; big += int(os.environ['RANK']) + 1; big.sum().item() / big.numel()")
    assert [result.value for result in sums] == [1.0, 2.0]
    assert big.sum().item() == 0.0, "the client's own memory is untouched"
    again = torched.pull("big", rank=1)
    again += 1
    assert again[-1].item() == 3.0 and torched.run("big[-1].item()", ranks=[1])[0].value == 2.0


def test_a_later_write_by_the_client_does_not_reach_the_ranks(torched: Any) -> None:
    big = torch.zeros(1 << 20)
    torched.push({"big": big})
    big.fill_(9)
    assert [result.value for result in torched.run("big.max().item()")] == [0.0, 0.0]


def test_of_a_view_only_what_it_covers_travels(torched: Any) -> None:
    big, numbers = torch.arange(1 << 20), numpy.arange(1 << 20)
    for small in (big[:4], big[1000:1004], big[-3:], numbers[:4], numbers[:: 1 << 18], big[8:8]):
        packed = values.pack(small)
        assert packed.size < 4096
        assert values.unpack(packed.release()).tolist() == small.tolist()
    torched.push({"head": big[1001:1005], "tail": big[1003:1008], "bytes": big[1003:1004].view(torch.uint8)})
    shared = torched.run("tail.fill_(7); (head.tolist(), bytes.tolist(), head.untyped_storage().nbytes())")
    assert [result.value for result in shared] == [([1001, 1002, 7, 7], [7, *[0] * 7], 64)] * 2
    assert big[1003].item() == 1003


@pytest.mark.parametrize("order", [("head", "whole"), ("whole", "head")])
def test_tensors_over_parts_of_one_array_that_begin_alike_travel(torched: Any, order: tuple[str, str]) -> None:
    array = numpy.arange(100.0)
    tensors = {"head": torch.from_numpy(array[:10]), "whole": torch.from_numpy(array)}
    torched.push({name: tensors[name] for name in order})
    shared = torched.run("head.fill_(-1); (whole[9:11].tolist(), len(whole), len(head))")
    assert [result.value for result in shared] == [([-1.0, 10.0], 100, 10)] * 2
    assert array[0] == 0.0


def test_a_big_tensor_is_one_sealed_file_without_its_bytes_pickled() -> None:
    import os
    import pickletools

    packed = values.pack(torch.zeros(1 << 20))
    size = os.fstat(packed.fd).st_size
    assert (4 << 20) <= size < (4 << 20) + 4096
    head = os.pread(packed.fd, values.HEAD.size, 0)
    _, length, count = values.HEAD.unpack(head)
    assert length < 2048 and count == 1
    with pytest.raises(OSError):
        os.pwrite(packed.fd, b"x", 0)
    with pytest.raises(OSError):
        os.ftruncate(packed.fd, 0)
    list(pickletools.genops(os.pread(packed.fd, length, values.HEAD.size + values.SPAN.size * count)))


def test_modules_round_trip_with_their_weights_and_compute_the_same(torched: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).eval()
    x = torch.randn(3, 4)
    torched.push({"model": model, "x": x})
    for result in torched.run("model(x).tolist()"):
        assert torch.allclose(torch.tensor(result.value), model(x))
    torched.run("model[0].weight.data.zero_()")
    assert torched.pull("model")[0].weight.abs().sum().item() == 0 and model[0].weight.abs().sum().item() > 0


def test_lambdas_closures_and_classes_of_main_travel(plain: Any) -> None:
    factor = 3
    closure = main_function("def make(factor):\n    return lambda x, more=1: x * factor + more", "make")(factor)
    plain.push({"f": lambda x: x + 1, "g": closure})
    assert [result.value for result in plain.run("f(1), g(2), g(2, more=10)")] == [(2, 7, 16)] * 2


def test_a_function_made_over_there_comes_back_and_works(plain: Any) -> None:
    plain.run("def twice(x): return 2 * x")
    assert plain.pull("twice")(4) == 8


def test_an_instance_of_a_class_of_a_cell_comes_back_usable(plain: Any) -> None:
    plain.run(
        "class Point:\n    def __init__(self, x): self.x = x\n    def double(self): return 2 * self.x\npoint = Point(4)"
    )
    assert plain.pull("point").double() == 8


def test_a_recursive_function_of_main_travels(plain: Any) -> None:
    fact = main_function("def fact(n): return 1 if n < 2 else n * fact(n - 1)", "fact")
    plain.push({"fact": fact})
    assert [result.value for result in plain.run("fact(5)")] == [120, 120]


def test_a_function_whose_closure_holds_itself_travels(plain: Any) -> None:
    fib = main_function(
        "def make():\n    def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n    return fib", "make"
    )()
    plain.push({"fib": fib})
    assert [result.value for result in plain.run("fib(10)")] == [55, 55]


COUNTER = "def make():\n    n = 0\n    def add():\n        nonlocal n\n        n += 1\n    return add, lambda: n"


def test_closures_that_share_a_variable_still_do(plain: Any) -> None:
    add, get = main_function(COUNTER, "make")()
    plain.push({"add": add, "get": get})
    assert [result.value for result in plain.run("add(); add(); get()")] == [2, 2]
    assert get() == 0, "the client's own variable is untouched"
    other, _ = main_function(COUNTER, "make")()
    plain.push({"pair": (add, get), "other": other})
    assert [result.value for result in plain.run("other(); pair[0](); pair[1]()")] == [1, 1]


def test_functions_that_call_each_other_through_their_closure_travel(plain: Any) -> None:
    source = "def make():\n    def even(n): return n == 0 or odd(n - 1)\n    def odd(n): return n > 0 and even(n - 1)\n    return even, odd"
    even, odd = main_function(source, "make")()
    plain.push({"even": even, "odd": odd})
    assert [result.value for result in plain.run("even(10), odd(10), even.__closure__[0].cell_contents is odd")] == [
        (True, False, True)
    ] * 2


def test_a_method_that_calls_super_travels_with_its_class(plain: Any) -> None:
    source = "class Base:\n    def say(self): return 1\nclass More(Base):\n    def say(self): return super().say() + 1"
    plain.push({"more": main_function(source, "More")()})
    assert [result.value for result in plain.run("more.say()")] == [2, 2]


def test_a_value_that_refers_to_itself_travels(plain: Any) -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    plain.push({"loop": loop})
    assert [result.value for result in plain.run("loop[1] is loop")] == [True, True]


def test_a_non_leaf_tensor_is_refused_with_a_word(torched: Any) -> None:
    result = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(TypeError, match=r"bad.*detach"):
        torched.push({"good": 1, "bad": result})
    with pytest.raises(TypeError, match="detach"):
        torched.push({"deep": {"inside": [result]}})
    assert [found.value for found in torched.run("'good' in globals() or 'deep' in globals()")] == [False, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: __import__("socket").socket(),
        lambda: (n for n in range(3)),
        lambda: __import__("threading").Lock(),
        lambda: types.FrameType,
    ],
)
def test_what_cannot_travel_is_named_and_nothing_changes(plain: Any, make: Any) -> None:
    value = make()
    if value is types.FrameType:
        value = __import__("sys")._getframe()
    plain.push({"before": 1})
    with pytest.raises(TypeError, match="culprit") as error:
        plain.push({"before": 2, "culprit": value})
    assert "\n" not in str(error.value)
    assert plain.pull("before", rank="all") == [1, 1]


class FailsOnRank1:
    def __reduce__(self) -> Any:
        return fail_on_rank_1, ()


def fail_on_rank_1() -> str:
    import os

    if os.environ.get("RANK") == "1":
        raise RuntimeError("not on rank 1")
    return "arrived"


def test_a_push_that_fails_on_one_rank_changes_nothing_on_any(plain: Any) -> None:
    plain.push({"x": "old"})
    with pytest.raises(ddip.RankError, match="not on rank 1") as error:
        plain.push({"x": "new", "y": FailsOnRank1()})
    assert error.value.ranks == [1]
    assert plain.pull("x", rank="all") == ["old", "old"]
    assert [result.value for result in plain.run("'y' in globals()")] == [False, False]
    plain.push({"x": "newer"})
    assert plain.pull("x", rank="all") == ["newer", "newer"], "the next push works"


def test_a_push_to_a_dead_rank_changes_nothing_on_the_others(start: Any) -> None:
    group = start()
    group.push({"x": "old"})
    with pytest.raises(ddip.RankError):
        group.run("import os; os._exit(1)", ranks=[1])
    with pytest.raises((ddip.ConfigError, ddip.RankError)):
        group.push({"x": "new"})
    assert group.pull("x", rank=0) == "old"


@pytest.mark.parametrize("name", [1, "1x", "class", "a b", None])
def test_a_push_under_what_is_no_name_is_refused(plain: Any, name: Any) -> None:
    with pytest.raises(ddip.ConfigError, match="is not a variable name"):
        plain.push({"good": 1, name: 2})
    assert [result.value for result in plain.run("'good' in globals()")] == [False, False]


def test_pushes_of_two_attachments_do_not_meet(start: Any, monkeypatch: Any) -> None:
    first = start()
    second = ddip.attach(first.name)
    finish, between = first.finish, [{"theirs": 2}]

    def finish_and_let_the_other_push(*args: Any) -> Any:
        finished = finish(*args)
        while between:
            second.push(between.pop())
        return finished

    monkeypatch.setattr(first, "finish", finish_and_let_the_other_push)
    first.push({"ours": 1})
    assert [result.value for result in first.run("ours, theirs")] == [(1, 2)] * 2


def test_a_rank_that_lost_what_was_pushed_says_so(plain: Any) -> None:
    with pytest.raises(ddip.RankError, match="push it again"):
        plain.complete({"kind": "commit", "push": 12345, "keep": True, "silent": True})


def test_a_push_to_some_ranks_reaches_only_them(plain: Any) -> None:
    plain.push({"x": 1}, ranks=[1])
    assert [result.value for result in plain.run("globals().get('x')")] == [None, 1]


@pytest.mark.parametrize("name", ["a b", "1x", "", "a.b", "class"])
def test_a_name_that_is_no_variable_is_refused(plain: Any, name: str) -> None:
    with pytest.raises(ddip.ConfigError, match="variable name"):
        plain.push({name: 1})


def test_a_missing_name_is_told_with_its_rank(plain: Any) -> None:
    plain.run("only_on_0 = 1", ranks=[0])
    with pytest.raises(ddip.RankError, match=r"only_on_0.*rank 1"):
        plain.pull("only_on_0", rank=1)
    with pytest.raises(ddip.RankError, match="only_on_0") as error:
        plain.pull("only_on_0", rank="all")
    assert error.value.ranks == [1]


def test_a_value_that_cannot_come_back_is_named(plain: Any) -> None:
    plain.run("import threading; lock = threading.Lock()")
    with pytest.raises(ddip.RankError, match="lock"):
        plain.pull("lock")


@pytest.mark.parametrize("rank", [2, -1, "each", None])
def test_a_wrong_rank_is_refused(plain: Any, rank: Any) -> None:
    plain.push({"x": 1})
    with pytest.raises((ddip.ConfigError, ValueError, TypeError)):
        plain.pull("x", rank=rank)


def test_pull_during_a_running_cell_waits_for_it(plain: Any) -> None:
    cell = plain.run("import time; x = 1; time.sleep(0.3); x = 2", wait=False)
    assert plain.pull("x") == 2 and cell.wait(5)


def test_a_result_that_cannot_travel_stays_there_as_its_repr(plain: Any) -> None:
    results = plain.run("import threading; threading.Lock()")
    for rank, result in enumerate(results):
        assert "unlocked _thread.lock" in repr(result.value) and result.value.rank == rank
        with pytest.raises(TypeError, match="stayed on rank"):
            result.value.fetch()


def test_a_large_result_stays_there_until_it_is_fetched(torched: Any) -> None:
    result = torched.run("import torch; torch.full((1 << 20,), 5.0)")[1]
    assert "large" in repr(result.value) and result.value.rank == 1
    fetched = result.value.fetch()
    assert fetched.shape == (1 << 20,) and fetched[0].item() == 5.0
    torched.run("torch.zeros(1 << 20)")
    try:
        assert result.value.fetch()[0].item() == 5.0, "the value of that cell, not of a later one"
    except ddip.RankError as error:
        assert "not defined" in str(error)  # gone is fair; another's value is not


def test_call_gives_one_result_per_rank_in_order_with_the_workers_globals(plain: Any) -> None:
    plain.run("import os; base = 10 * int(os.environ['RANK'])")
    function = main_function("def f(a, b=0): return base + a + b", base=99999)
    assert plain.call(function, 1, b=2) == [3, 13]
    assert plain.call(function, 1, ranks=[1]) == [11]


def test_call_sets_globals_where_it_runs(plain: Any) -> None:
    plain.call(main_function("def f():\n    global made\n    made = 5"))
    assert [result.value for result in plain.run("made")] == [5, 5]


def test_call_of_a_function_that_fails_names_the_ranks(plain: Any) -> None:
    with pytest.raises(ddip.RankError, match="ZeroDivisionError") as error:
        plain.call(main_function("def f(): import os; return 1 / int(os.environ['RANK'])"))
    assert error.value.ranks == [0]


def test_call_refuses_arguments_that_cannot_travel(plain: Any) -> None:
    with pytest.raises(TypeError, match="f and its arguments"):
        plain.call(main_function("def f(x): return x"), (n for n in range(3)))


def test_call_uses_modules_that_the_client_imported(plain: Any) -> None:
    import json

    assert plain.call(main_function("def f(): return json.dumps([1])", json=json)) == ["[1]", "[1]"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return [colorsys.rgb_to_hsv(0, 0, n)[2] for n in range(3)]",
        "def f(): return list(colorsys.rgb_to_hsv(0, 0, n)[2] for n in range(3))",
        "def f(): return list(map(lambda n: colorsys.rgb_to_hsv(0, 0, n)[2], range(3)))",
        "def f():\n    def one(n): return [colorsys.rgb_to_hsv(0, 0, n)[2] for _ in '.'][0]\n    return [one(n) for n in range(3)]",
        "def f():\n    class Of:\n        values = [colorsys.rgb_to_hsv(0, 0, n)[2] for n in range(3)]\n    return Of.values",
    ],
    ids=["comprehension", "generator", "lambda", "inner_function", "class"],
)
def test_modules_that_only_inner_code_uses_come_along(plain: Any, source: str) -> None:
    import colorsys

    plain.run("globals().pop('colorsys', None)")
    assert plain.call(main_function(source, colorsys=colorsys)) == [[0, 1, 2]] * 2


@pytest.mark.parametrize("length", [0, 1, 2, 5, 6])
def test_scatter_then_gather_gives_the_same_sequence(plain: Any, length: int) -> None:
    plain.scatter("part", list(range(length)))
    sizes = [result.value for result in plain.run("len(part)")]
    assert sum(sizes) == length and max(sizes) - min(sizes) <= 1
    assert plain.gather("part") == list(range(length))


def test_scatter_cuts_tensors_by_rows(torched: Any) -> None:
    torched.scatter("part", torch.arange(10).reshape(5, 2))
    assert [result.value for result in torched.run("part.tolist()")] == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    gathered = torched.gather("part")
    assert torch.equal(torch.stack(list(gathered)), torch.arange(10).reshape(5, 2))


@pytest.mark.parametrize("length", [0, 1, 7])
def test_map_keeps_the_order_and_uses_every_rank(plain: Any, length: int) -> None:
    found = plain.map(main_function("def f(x): import os; return (x * x, os.environ['RANK'])"), range(length))
    assert [square for square, _ in found] == [x * x for x in range(length)]
    if length > 1:
        assert {rank for _, rank in found} == {"0", "1"}


def test_map_names_the_rank_whose_results_cannot_travel(plain: Any) -> None:
    with pytest.raises(TypeError, match="map: the results of rank 0 stayed there: it cannot be pickled"):
        plain.map(main_function("def f(x): return (n for n in range(x))"), [1, 2])


def test_descriptors_and_mappings_do_not_pile_up(plain: Any) -> None:
    import os

    def held() -> list[int]:
        there = [result.value for result in plain.run("import os; len(os.listdir('/proc/self/fd'))")]
        return [len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{plain.info()['pid']}/fd")), *there]

    plain.push({"x": b"x" * 10000}), plain.pull("x", rank="all"), plain.run("b'y' * 10000")
    before = held()
    for _ in range(50):
        plain.push({"x": b"x" * 10000})
        plain.pull("x", rank="all")
        plain.run("b'y' * 10000")
    after = held()
    assert all(late <= early + 6 for early, late in zip(before, after, strict=True)), (before, after)


def test_a_value_that_cannot_be_pulled_is_named(torched: Any) -> None:
    torched.run("import torch\nw = torch.ones(2, requires_grad=True); y = w * 2; gen = (i for i in range(3))")
    for names, culprit in ((["w", "y"], "'y' (Tensor)"), (["w", "gen"], "'gen' (generator)")):
        with pytest.raises(ddip.RankError) as error:
            torched.pull_many(names)
        last = error.value.tracebacks[0].strip().splitlines()[-1]
        assert culprit in last and "x.detach()" not in last, last
