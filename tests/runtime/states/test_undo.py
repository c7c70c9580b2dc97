"""States after calls that fail when an update in place has already overwritten them."""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.states.in_place import undo_recipe
from coreai_onnx.runtime.states.undo import Recipe, Saved, UndoLog
from tests.support.small_models import parse

SHAPE = (2, 2, 512, 16)
CACHE = "float[2, 2, 512, 16]"
OPSETS = '"": 24, "own": 1, "ai.coreai": 1'
FUNCTIONS = f"""
<domain: "ai.coreai", opset_import: [{OPSETS}]> kv_cache_update (cache, update, position) => (new)
{{ batch = Shape<start = 0, end = 1>(update)  rows = Expand(position, batch)
  new = TensorScatter<axis = 2>(cache, update, rows) }}
<domain: "own", opset_import: [{OPSETS}]> update (old, x, i) => (new)
{{ shape = Shape(x)  places = Expand(i, shape)
  new = ScatterElements<axis = 2>(old, places, x) }}"""
KV = "cache_out = ai.coreai.kv_cache_update(cache, made, i)"


def model(update: str, index: str, *, steps: str = "") -> Any:
    """A cache that ``update`` writes ``x + 1`` to, at ``i``; ``y`` is an element of its sums.

    ``pick`` chooses it, in a node after the update, which fails if it is out of range.
    """
    old, new = (steps and f", int64[1] {name}" for name in ("steps", "steps_out"))
    text = f"""<ir_version: 11, opset_import: [{OPSETS}]>
    agraph (float[2, h, t, 16] x, {index} i, int64 pick, {CACHE} cache{old})
      => (float y, {CACHE} cache_out{new})
    <int64[1] last = {{-1}}, float one = {{1.0}}, float[2, h, t, 16] made>
    {{ made = Add(x, one)  {update}  {steps}
      axes = Constant<value_ints = [2, 3]>()  sums = ReduceSum<keepdims = 0>(cache_out, axes)
      flat = Reshape(sums, last)  [pick] y = Gather(flat, pick) }}{FUNCTIONS}"""
    pairs = ["cache", "steps"] if steps else ["cache"]
    states = [{"input": name, "output": f"{name}_out"} for name in pairs]
    return parse(text, {"coreai.states": states})


def rows(length: int, heads: int = 2) -> Any:
    return np.random.default_rng(length).standard_normal((2, heads, length, 16)).astype(np.float32)


def grid(places: list[int]) -> Any:
    """Return the index of every element of ``x`` for ScatterElements."""
    return np.broadcast_to(np.array(places)[:, None], (2, 2, len(places), 16)).copy()


def coordinates(places: list[int]) -> Any:
    """Return the index of every row of ``x`` for ScatterND."""
    axes = np.meshgrid([0, 1], [0, 1], places, indexing="ij")
    return np.stack(axes, axis=-1)


TENSOR = "cache_out = TensorScatter<axis = {}>(cache, made, i)"
RING = 'cache_out = TensorScatter<axis = 2, mode = "circular">(cache, made, i)'
FORMS = {
    "elements": (
        "cache_out = ScatterElements<axis = 2>(cache, i, made)",
        "int64[2, 2, t, 16]",
        [grid([3, 4, 5]), grid([4, 500, 3])],
    ),
    "negative elements": (
        "cache_out = ScatterElements<axis = -2>(cache, i, made)",
        "int64[2, 2, t, 16]",
        [grid([3, 4, 5]), grid([-1, -512, 3])],
    ),
    "nd": (
        "cache_out = ScatterND(cache, i, made)",
        "int64[2, 2, t, 3]",
        [coordinates([3, 4, 5]), coordinates([-1, 4, 200])],
    ),
    "rows": (TENSOR.format(2), "int64[2]", [np.array([3, 3]), np.array([4, 4])]),
    "rows of each": (TENSOR.format(-2), "int64[2]", [np.array([3, 9]), np.array([10, 400])]),
    "rows in a ring": (RING, "int64[2]", [np.array([3, 9]), np.array([511, 10])]),
    "first rows": ("cache_out = TensorScatter(cache, made)", "int64", [np.array(0), np.array(0)]),
    "kv": (KV, "int64[1]", [np.array([3]), np.array([4])]),
    "kv of an input": (KV.replace("made", "x"), "int64[1]", [np.array([3]), np.array([4])]),
    "computed": (
        "n = Neg(i)  p = Neg(n)  " + KV.replace("i)", "p)"),
        "int64[1]",
        [np.array([3]), np.array([2])],
    ),
    "of shapes": (
        "n = Shape<start = 2, end = 3>(made)  p = Add(i, n)  " + KV.replace("i)", "p)"),
        "int64[1]",
        [np.array([3]), np.array([4])],
    ),
    "in a function": (
        "cache_out = own.update(cache, made, i)",
        "int64[1, 1, t, 1]",
        [np.arange(3).reshape(1, 1, 3, 1), np.array([7, 1, 2]).reshape(1, 1, 3, 1)],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_call_that_fails_overwrote_is_restored(form: str) -> None:
    update, index, (first, second) = FORMS[form]
    one_model = model(update, index)
    recipe = undo_recipe(one_model)
    assert UndoLog(recipe).states == {"cache"}, "it is updated in place"
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    session = Session(one_model, kernels=False)
    old = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    session.run(rows(3), first, np.array(0), cache=old)
    before = session.state["cache"]
    assert (before != old).any()
    with pytest.raises(SessionError, match="pick"):
        session.run(rows(3), second, np.array(99))
    assert (session.state["cache"] == before).all()
    fork = session.fork()
    fork.state = {"cache": before}
    wanted, found = (s.run(rows(3), second, np.array(1)) for s in (fork, session))
    assert wanted["y"] == found["y"]
    assert (wanted.states["cache"] == found.states["cache"]).all()


def test_the_call_that_fails_did_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above tests nothing."""
    monkeypatch.setattr(Saved, "restore", lambda _: None)
    update, index, (first, second) = FORMS["kv"]
    session = Session(model(update, index), kernels=False)
    session.run(rows(3), first, np.array(0), cache=np.zeros(SHAPE, np.float32))
    before = session.state["cache"]
    with pytest.raises(SessionError, match="pick"):
        session.run(rows(3), second, np.array(99))
    assert (session.state["cache"] != before).any()


@pytest.mark.parametrize("of_a_fork", [False, True])
def test_a_stream_without_undo_keeps_what_a_call_that_fails_wrote(of_a_fork: bool) -> None:
    update, index, (first, second) = FORMS["kv"]
    session = Session(model(update, index), kernels=False)
    stream = session.stream(zeros={"cache": SHAPE}, undo=False)
    stream = stream.fork() if of_a_fork else stream
    stream.run(rows(3), first, np.array(0))
    before = stream.state["cache"]
    with pytest.raises(SessionError, match="pick"):
        stream.run(rows(3), second, np.array(99))
    assert (stream.state["cache"] != before).any()
    assert (stream.run(rows(3), second, np.array(1)).states["cache"] != 0).any(), "it goes on"


def test_positions_that_another_state_counts() -> None:
    one_model = model(
        "n = Shape<start = 2, end = 3>(made)  cache_out = ai.coreai.kv_cache_update"
        "(cache, made, steps)",
        "int64",
        steps="steps_out = Add(steps, n)",
    )
    session = Session(one_model, kernels=False)
    start = {"cache": np.zeros(SHAPE, np.float32), "steps": np.array([0])}
    session.run(rows(3), 0, np.array(0), **start)
    before = session.state
    with pytest.raises(SessionError, match="pick"):
        session.run(rows(2), 0, np.array(99))
    assert (session.state["cache"] == before["cache"]).all()
    session.run(rows(2), 0, np.array(0))
    assert session.state["steps"].tolist() == [5]
    assert (session.state["cache"][:, :, 3:5] == rows(2) + 1).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_call_that_is_interrupted(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    update, index, (first, second) = FORMS["kv"]
    session = Session(model(update, index), kernels=False)
    session.run(rows(3), first, np.array(0), cache=np.zeros(SHAPE, np.float32))
    before = session.state["cache"]

    def interrupted(*_: object) -> None:
        raise error

    file = sys.modules[Session.__module__]
    monkeypatch.setattr(file, "from_ort", interrupted)  # after onnxruntime has run
    with pytest.raises((error, SessionError)):
        session.run(rows(3), second, np.array(0))
    monkeypatch.undo()
    assert (session.state["cache"] == before).all()


def test_a_call_that_takes_too_long() -> None:
    endless = """count = Constant<value = int64 {9223372036854775807}>()
      yes = Constant<value = bool {1}>()  top = ReduceMax<keepdims = 0>(cache_out)
      two = Constant<value = float {2.0}>()  go = Less(top, two)
      end = Loop<body = step (int64 n, bool going, float s) => (bool on, float t)
          { on = Identity(going)  t = Neg(s) }>(count, go, top)"""
    one_model = model(f"{KV}  {endless}", "int64[1]")
    session = Session(one_model, kernels=False, timeout=0.5)
    large, small = np.full(SHAPE, 5, np.float32), np.zeros((2, 2, 512, 16), np.float32)
    session.run(rows(3), np.array([0]), np.array(0), cache=large)
    before = session.state["cache"]
    with pytest.raises(SessionError, match="did not finish"):
        session.run(small, np.array([0]), np.array(0))
    assert (session.state["cache"] == before).all()


def test_indices_that_the_update_refuses() -> None:
    update, index, (first, _) = FORMS["nd"]
    session = Session(model(update, index), kernels=False)
    session.run(rows(3), first, np.array(0), cache=np.zeros(SHAPE, np.float32))
    before = session.state["cache"]
    with pytest.raises(SessionError, match="ScatterND"):
        session.run(rows(3), coordinates([5, 6, 9999]), np.array(0))
    assert (session.state["cache"] == before).all()


@pytest.mark.parametrize(
    "update",
    [
        "r = RandomUniform<shape = [1]>()  p = Cast<to = 7>(r)  " + KV.replace("i)", "p)"),
        "u = Unsqueeze(made, i)  s = Squeeze(u, i)  " + KV.replace("made", "s"),
        "cache_out = TensorScatter<axis = 0>(cache, made, i)",
    ],
    ids=["random positions", "unknown number of rows", "along the batch"],
)
def test_updates_that_are_done_in_turn(update: str) -> None:
    assert UndoLog(undo_recipe(model(update, "int64[1]"))).states == frozenset()


def test_positions_that_onnxruntime_refuses() -> None:
    """The state is updated in turn, and the session reports what is wrong with the model."""
    one_model = model("p = Neg(i)  " + KV.replace("i)", "p)"), "int64[1]")
    next(node for node in one_model.graph if node.op_type == "Neg").op_type = "NoSuchOperator"
    assert UndoLog(undo_recipe(one_model)).states == frozenset()


TWO = """<ir_version: 11, opset_import: ["": 24, "ai.coreai": 1]>
    agraph (float[2, 2, t, 16] x, int64[1] i, int64 pick, float[2, 2, c, 16] a,
        float[2, 2, c, 16] b, float[1] steps)
      => (float y, float[2, 2, c, 16] a_out, float[2, 2, c, 16] b_out, float[1] steps_out)
    <int64[1] last = {-1}, float[1] one = {1.0}, float[2, 2, t, 16] twice>
    { a_out = ai.coreai.kv_cache_update(a, x, i)  twice = Add(x, x)
      b_out = ai.coreai.kv_cache_update(b, twice, i)  steps_out = Add(steps, one)
      sum = Add(a_out, b_out)  flat = Reshape(sum, last)  [pick] y = Gather(flat, pick) }"""


def two_caches() -> Any:
    """Two caches of one type, of a capacity that the first call chooses, and a state that moves."""
    states = [{"input": name, "output": f"{name}_out"} for name in ("a", "b", "steps")]
    return parse(TWO + FUNCTIONS, {"coreai.states": states})


def start(capacity: int) -> dict[str, Any]:
    zeros = np.zeros((2, 2, capacity, 16), np.float32)
    return {"a": zeros, "b": zeros.copy(), "steps": np.zeros(1, np.float32)}


def test_states_of_one_type_are_saved_at_once() -> None:
    session = Session(two_caches(), kernels=False)
    session.run(rows(1), np.array([0]), np.array(0), **start(512))
    for step in range(1, 4):
        session.run(rows(1), np.array([step]), np.array(0))
        before, (kept,) = session.state, session._calls.kept.values()
        assert [one.states.shape for one in kept.overwritten] == [(2, *SHAPE)], "one block"
        with pytest.raises(SessionError, match="pick"):
            session.run(rows(2), np.array([step + 1]), np.array(10**6))
        assert all((session.state[name] == before[name]).all() for name in before)
    assert session.state["steps"].tolist() == [4]
    assert (session.state["b"][:, :, :4] == 2 * rows(1)).all()


def test_the_undo_of_a_fork_and_of_a_state_that_was_given_alone() -> None:
    session = Session(two_caches(), kernels=False)
    session.run(rows(1), np.array([0]), np.array(0), **start(512))
    fork = session.fork()
    session.run(rows(1), np.array([1]), np.array(0), b=start(512)["b"])
    for one in (session, fork):
        for _ in range(2):  # the states have moved before the first of them
            one.run(rows(1), np.array([3]), np.array(0))
            before = one.state
            with pytest.raises(SessionError, match="pick"):
                one.run(rows(2), np.array([2]), np.array(10**6))
            assert all((one.state[name] == before[name]).all() for name in before)


def test_another_capacity_after_calls_in_place() -> None:
    session = Session(two_caches(), kernels=False)
    for capacity in (512, 700, 512):
        session.run(rows(1), np.array([0]), np.array(0), **start(capacity))
        for step in (1, 2, 3):
            session.run(rows(1), np.array([step]), np.array(0))
        assert session.state["a"].shape[2] == capacity
        assert (session.state["a"][:, :, :4] == rows(1)).all()
        with pytest.raises(InputError, match="expected c = 600"):
            session.run(rows(1), np.array([4]), np.array(0), b=start(600)["b"])


def test_closing_and_resetting_release_what_calls_keep() -> None:
    for end in (Session.reset, Session.close):
        session = Session(two_caches(), kernels=False)
        session.run(rows(1), np.array([0]), np.array(0), **start(512))
        for _ in range(2):
            session.run(rows(1), np.array([1]), np.array(0))
        value = weakref.ref(session._stream.states["a"].value)
        assert value() is not None
        end(session)
        assert value() is None


def test_positions_from_the_default_of_an_input() -> None:
    """Its dim has the size of another input, but the call omits it."""
    text = TWO.replace("steps)", "steps, float[t] extra)", 1).replace(", i)  ", ", n)  ")
    text = text.replace("{ a_out", "{ n = Shape(extra)  a_out")
    model = parse(text + FUNCTIONS)
    model.metadata_props.update(two_caches().metadata_props)
    extra = model.graph.inputs[-1]
    extra.const_value = ir.tensor(np.ones(5, np.float32), name="extra")
    model.graph.register_initializer(extra)
    session = Session(model, kernels=False)
    session.run(rows(1), np.array([0]), np.array(0), **start(512))
    session.run(rows(1), np.array([1]), np.array(0))
    before = session.state
    with pytest.raises(SessionError, match="pick"):
        session.run(2 * rows(1), np.array([2]), np.array(10**6))
    assert all((session.state[name] == before[name]).all() for name in before)
