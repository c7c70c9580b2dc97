"""Sessions: loading, running, checking, state."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
import torch

from coreai_onnx.errors import CoreaiError, InputError, SessionError
from coreai_onnx.model.files.saving import save_models, to_proto
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.states.binding import Binding
from tests.support.small_models import (
    add_model,
    cache_model,
    counter_model,
    echo_model,
    linear_model,
    linear_weights,
    parse,
    phase_model,
)
from tests.support.tolerances import assert_close

IDS, MASK = np.array([[1, 2, 3]]), np.ones((1, 3), np.float32)


def test_positional_named_and_mixed_inputs() -> None:
    s = session(add_model(), kernels=False)
    expected = np.array([[2, 3, 4]], np.float32)
    assert_close(s.run(IDS, MASK)["sum"], expected)
    assert_close(s.run(mask=MASK, ids=IDS)[0], expected)
    (unpacked,) = s.run(torch.from_numpy(IDS), mask=torch.from_numpy(MASK))
    assert_close(unpacked, expected)


def test_what_a_session_shows() -> None:
    s = session(counter_model(), kernels=False)
    assert isinstance(s.ort, ort.InferenceSession)
    assert [str(info) for info in s.inputs] == ["x: float32[n]"]
    assert [str(info) for info in s.outputs] == ["y: float32[n]"]
    assert s.states == ("count",)
    assert [str(info) for info in s.state_inputs] == ["count: float32[1]"]
    assert s.example_sizes({}) == {"n": 2}
    assert repr(s) == (
        "Session (bodies)\n  input   x: float32[n]\n"
        "  state   count: float32[1]\n  output  y: float32[n]"
    )


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16", "double", "int64", "bool"])
def test_every_dtype_goes_in_and_out(dtype: str) -> None:
    s = session(echo_model(dtype), kernels=False)
    array = np.arange(8).reshape(2, 4).astype(s.inputs[0].dtype)
    assert_close(s.run(array)["y"], array)


def test_bfloat16_of_torch_comes_back_as_ml_dtypes() -> None:
    tensor = torch.randn(3, 4, dtype=torch.bfloat16)
    out = session(echo_model("bfloat16"), kernels=False).run(tensor)["y"]
    assert out.dtype == ml_dtypes.bfloat16
    assert_close(out, tensor)


def test_complex_values_go_in_and_out_and_are_carried() -> None:
    s = session(phase_model(), kernels=False)
    assert [str(info) for info in (*s.inputs, *s.state_inputs, *s.outputs)] == [
        "z: complex64[n]",
        "phase: complex64[1]",
        "y: complex64[n]",
    ]
    z = torch.tensor([3 - 4j])
    outputs = s.run(z)
    assert_close(outputs["y"], np.array([2 - 6j], np.complex64))
    assert_close(s.run(z.numpy())["y"], np.array([1 + 2j], np.complex64))
    assert_close(outputs.states["phase"], np.array([2 - 6j], np.complex64))
    assert_close(s.run(z.conj(), phase=torch.tensor([1j]))["y"], np.array([3 + 3j], np.complex64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.ones(3), "dtype is float32, expected complex64"),
        (torch.ones(3, 2), r"array.astype\('complex64'\); pairs of numbers: torch.view_as_complex"),
        (np.ones(3, np.complex128), "dtype is complex128, expected complex64"),
        (np.ones((3, 2), np.complex64), "rank is 2, expected 1"),
    ],
)
def test_wrong_values_of_a_complex_input(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        session(phase_model(), kernels=False).run(wrong)


def test_a_complex_value_of_a_real_input_keeps_its_imaginary_part() -> None:
    s = session(echo_model("float"), kernels=False)
    with pytest.raises(InputError, match=r"the input is real: give tensor\.real") as caught:
        s.run(torch.ones(1, 4, dtype=torch.complex64))
    assert "torch.float32" not in str(caught.value)


@pytest.mark.parametrize("names", [["nobody"], "z", {"z": 1}, ["count"]])
def test_complex_names_that_are_wrong(names: Any) -> None:
    model = counter_model()
    model.metadata_props["coreai.complex"] = json.dumps(names)
    with pytest.raises(SessionError, match=r"the metadata of coreai_onnx cannot be read"):
        session(model, kernels=False)


def test_python_numbers() -> None:
    s = session(echo_model("float", ""), kernels=False)
    assert_close(s.run(2)["y"], np.array(2, np.float32))


@pytest.mark.parametrize("source", ["path", "str", "bytes", "proto", "model", "program"])
def test_sources(tmp_path: Path, source: str) -> None:
    class Program:
        model = linear_model()

    path = tmp_path / "m.onnx"
    save_models({path: linear_model()}, tmp_path / "m.onnx.data", external_data=source == "path")
    sources: dict[str, Any] = {
        "path": path,
        "str": str(path),
        "bytes": path.read_bytes(),
        "proto": to_proto(linear_model()),
        "model": linear_model(),
        "program": Program(),
    }
    x = np.ones((2, 8), np.float32)
    weights = linear_weights()
    assert_close(session(sources[source]).run(x)["y"], x @ weights["weight"] + weights["bias"])


def test_state_is_carried_and_reset() -> None:
    s = session(counter_model(), kernels=False)
    x = np.array([1, 10], np.float32)
    for factor in (1, 2, 3):
        outputs = s.run(x)
        assert outputs.names == ("y",)
        assert_close(outputs["y"], x * np.float32(factor))
        assert_close(outputs.states["count"], np.array([factor + 1], np.float32))
    s.reset()
    first = s.run(x)
    assert_close(first["y"], x)
    s.run(x)
    assert_close(first.states["count"], np.array([2], np.float32), message="an earlier result")


def test_a_state_can_be_given() -> None:
    s = session(counter_model(), kernels=False)
    x = torch.ones(2)
    assert_close(s.run(x, count=torch.tensor([5.0]))["y"], torch.full((2,), 5.0))
    assert_close(s.run(x)["y"], torch.full((2,), 6.0))


def test_two_sessions_have_their_own_state() -> None:
    a, b = session(counter_model()), session(counter_model())
    x = np.ones(1, np.float32)
    a.run(x)
    assert_close(a.run(x)["y"], x * 2)
    assert_close(b.run(x)["y"], x)


def test_a_state_may_grow_and_does_not_fit_another_batch() -> None:
    s = session(cache_model(), kernels=False)
    s.run(np.ones((2, 3), np.float32), cache=np.zeros((2, 0), np.float32))
    assert_close(s.run(np.ones((2, 1), np.float32))["y"], np.full(2, 4, np.float32))
    with pytest.raises(InputError, match=r"state 'cache', carried"):
        s.run(np.ones((1, 1), np.float32))
    assert_close(s.run(np.ones((2, 1), np.float32))["y"], np.full(2, 5, np.float32))


def test_a_state_without_an_initial_value_has_to_be_given_once() -> None:
    s = session(counter_model(initial=False), kernels=False)
    x = np.ones(1, np.float32)
    with pytest.raises(InputError, match=r"missing input 'count'(.|\n)*count: float32\[1\]"):
        s.run(x)
    s.run(x, count=np.ones(1, np.float32))
    assert_close(s.run(x)["y"], x * 2)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((IDS,), {}, "missing input 'mask'"),
        ((IDS, MASK, MASK), {}, "3 positional inputs given, 2 expected"),
        ((IDS,), {"mask": MASK, "token_type_ids": IDS}, "unexpected input 'token_type_ids'"),
        ((IDS,), {"ids": IDS}, "input 'ids' is given twice"),
        ((IDS.astype(np.int32), MASK), {}, "input 'ids': dtype is int32, expected int64"),
        ((IDS, torch.ones(1, 3).half()), {}, "input 'mask': dtype is float16, expected float32"),
        ((IDS[0], MASK), {}, "input 'ids': rank is 1, expected 2"),
        ((IDS, MASK[:, :2]), {}, "input 'mask': dimension 1 is 2, expected seq = 3 (from 'ids')"),
        ((np.zeros((9, 3), np.int64), np.zeros((9, 3), np.float32)), {},
         "input 'ids': dimension 0 (batch) is 9, expected between 1 and 8"),
        (({"ids": IDS, "mask": MASK},), {}, "input 'ids': dict is not a tensor"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_told_before_onnxruntime_sees_them(
    args: tuple[Any, ...], named: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = session(add_model({"batch": {"min": 1, "max": 8}}), kernels=False)
    monkeypatch.setattr(Binding, "run", lambda *_: pytest.fail("onnxruntime was called"))
    with pytest.raises(InputError) as caught:
        s.run(*args, **named)
    assert str(caught.value).startswith(message)
    assert "\n  expected  " in str(caught.value)
    assert isinstance(caught.value, CoreaiError)
    assert isinstance(caught.value, ValueError)


def test_a_call_that_fails_keeps_the_state() -> None:
    s = session(counter_model(), kernels=False)
    x = np.ones(2, np.float32)
    s.run(x)
    with pytest.raises(InputError):
        s.run(x.astype(np.float64))
    assert_close(s.run(x)["y"], x * 2)


def test_a_failure_inside_onnxruntime_is_typed() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, int64[1] shape) => (float[m] y) { y = Reshape(x, shape) }""")
    with pytest.raises(SessionError, match=r"failed while running(.|\n)*Reshape"):
        session(model, kernels=False).run(np.ones(3, np.float32), np.array([2]))


def test_nothing_is_printed_about_states(capfd: pytest.CaptureFixture[str]) -> None:
    session(counter_model(), kernels=False).run(np.ones(1, np.float32))
    assert capfd.readouterr().err == ""


def test_the_state_is_read_and_set() -> None:
    s, x = session(counter_model(), kernels=False), np.ones(2, np.float32)
    assert_close(s.state["count"], np.array([1], np.float32), message="from the file")
    s.run(x)
    saved = s.state
    assert_close(saved["count"], np.array([2], np.float32))
    s.run(x)
    s.state = saved
    assert_close(s.run(x)["y"], x * 2)
    assert_close(saved["count"], np.array([2], np.float32), message="a copy")
    s.state = {}
    s.state = {"count": torch.tensor([7.0])}
    assert_close(s.run(x)["y"], x * 7)
    assert session(counter_model(initial=False), kernels=False).state == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sum": 1.0}, "the model has no state 'sum'; there are count"),
        ({"count": np.ones(2, np.float32)}, "input 'count': dimension 0 is 2, expected 1"),
        ({"count": np.ones(1)}, "dtype is float64, expected float32"),
        ({"count": "one"}, "str is not a tensor"),
    ],
)
def test_a_state_that_does_not_fit(values: dict[str, Any], message: str) -> None:
    s, x = session(counter_model(), kernels=False), np.ones(2, np.float32)
    s.run(x)
    with pytest.raises(InputError, match=message):
        s.state = values
    assert_close(s.run(x)["y"], x * 2)


def test_complex_states_are_read_and_set() -> None:
    s, z = session(phase_model(), kernels=False), np.array([3 - 4j], np.complex64)
    assert_close(s.state["phase"], np.array([1 + 2j], np.complex64))
    s.state = {"phase": np.array([1j], np.complex64)}
    assert_close(s.run(z)["y"], np.array([3 - 5j], np.complex64))
    assert_close(s.fork().state["phase"], s.state["phase"])


def test_streams_share_the_loaded_model() -> None:
    s, x = session(counter_model(), kernels=False), np.ones(1, np.float32)
    s.run(x)
    fork, fresh = s.fork(), s.stream()
    assert fork.ort is s.ort
    assert_close(fork.run(x)["y"], x * 2)
    assert_close(fork.run(x)["y"], x * 3)
    assert_close(s.run(x)["y"], x * 2)
    assert_close(fresh.run(x)["y"], x)


def test_a_second_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    s, x = session(counter_model(), kernels=False), np.ones(1, np.float32)
    run, errors = Binding.run, list[Exception]()

    def from_another_thread() -> None:
        for use in (lambda: s.run(x), s.reset, s.fork, s.close, lambda: s.state):
            try:
                use()
            except SessionError as error:
                errors.append(error)

    def meanwhile(*arguments: Any) -> Any:
        thread = threading.Thread(target=from_another_thread)
        thread.start()
        thread.join()
        return run(*arguments)

    monkeypatch.setattr(Binding, "run", meanwhile)
    assert_close(s.run(x)["y"], x)
    assert len(errors) == 5
    assert all("another thread uses it" in str(error) for error in errors)
    monkeypatch.undo()
    assert_close(s.run(x)["y"], x * 2, message="no update was lost")


def test_a_model_without_states_runs_in_any_number_of_threads() -> None:
    s, x = session(echo_model("float"), kernels=False), np.ones((2, 4), np.float32)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: s.run(x)["y"], range(40)))
    assert len(results) == 40


def test_a_closed_session() -> None:
    s, x = session(counter_model(), kernels=False), np.ones(1, np.float32)
    other = s.stream()
    s.close()
    s.close()
    for use in (lambda: s.run(x), s.reset, s.fork, s.stream, lambda: s.state):
        with pytest.raises(SessionError, match="the session is closed"):
            use()
    assert_close(other.run(x)["y"], x)
