"""Runs on bound values: memory of the caller, values that stay, optional inputs, failures."""

from __future__ import annotations

import weakref

import numpy as np
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.model.metadata import STATES
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.states.binding import Binding
from tests.support.small_models import linear_model, parse


def value(array: np.ndarray) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)


def x(rows: int = 2, size: int = 8) -> dict[str, ort.OrtValue]:
    return {"x": value(np.ones((rows, size), np.float32))}


@pytest.fixture
def session() -> ort.InferenceSession:
    return Session(linear_model(), kernels=False).ort


def test_a_result_in_given_memory(session: ort.InferenceSession) -> None:
    target = value(np.zeros((2, 64), np.float32))
    binding = Binding(session, ["y"])
    plain = binding.run(x(), {}, 60)["y"]
    assert binding.run(x(), {"y": target})["y"] is target
    np.testing.assert_array_equal(target.numpy(), plain.numpy())
    assert plain.numpy().any()


def test_results_outlive_later_runs_of_other_sizes(session: ort.InferenceSession) -> None:
    binding = Binding(session, ["y"])
    first = binding.run(x(), {})["y"]
    before = first.numpy().copy()
    assert binding.run(x(5), {})["y"].shape() == [5, 64]
    np.testing.assert_array_equal(first.numpy(), before)


def test_values_that_stay(session: ort.InferenceSession) -> None:
    target, fixed = value(np.zeros((2, 64), np.float32)), np.ones((2, 8), np.float32)
    binding = Binding(session, ["y"], {"x": value(fixed)}, {"y": target})
    assert binding.names == ()
    assert binding.run({}, {}) == {}
    first = target.numpy().copy()
    fixed *= 2
    binding.run({}, {})
    np.testing.assert_array_equal(target.numpy(), Binding(session, ["y"]).run(
        {"x": value(fixed)}, {})["y"].numpy())  # fmt: skip
    assert (target.numpy() != first).any()


def test_an_optional_input_counts_for_one_run() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1] x, float[1] bias = {5}) => (float[1] y) { y = Add(x, bias) }""")
    binding = Binding(Session(model, kernels=False).ort, ["y"])
    one = {"x": value(np.ones(1, np.float32))}
    bias = {"bias": value(np.array([7], np.float32))}
    sums = [binding.run(feeds, {})["y"].numpy() for feeds in (one, one | bias, one)]
    assert [float(y[0]) for y in sums] == [6, 8, 6]


def test_a_failure_is_typed_and_the_next_run_works(session: ort.InferenceSession) -> None:
    binding = Binding(session, ["y"])
    with pytest.raises(SessionError, match="onnxruntime failed while running"):
        binding.run(x(size=9), {})
    assert binding.run(x(), {})["y"].shape() == [2, 64]


IN_PLACE = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, int64[1, 1] i, float[1, 4096] row, float[4, 4096] cache)
      => (float[n] y, float[4, 4096] out) { y = Neg(x)  out = ScatterND(cache, i, row) }"""


@pytest.mark.parametrize(("size", "is_kept"), [(3, True), (1 << 16, False)])
def test_large_inputs_are_released_after_a_call(size: int, is_kept: bool) -> None:
    """The binding of a session whose state stays in place outlives the call."""
    session = Session(parse(IN_PLACE, {STATES: [{"input": "cache", "output": "out"}]}))
    row = np.ones((1, 4096), np.float32)
    cache = {"cache": np.zeros((4, 4096), np.float32)}
    for index in range(3):
        array = np.full(size, index, np.float32)
        outputs = session.run(array, np.array([[index]]), row, **cache)
        np.testing.assert_array_equal(outputs["y"], -array)
        cache = {}
    assert session.state["cache"].sum(axis=1).tolist() == [4096, 4096, 4096, 0]
    reference = weakref.ref(array)
    del array, outputs
    assert (reference() is not None) is is_kept
