"""Sessions of the entrypoints of one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.opening import OpenModel
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import cache_model, counter_model, linear_model, parse
from tests.support.tolerances import assert_close

SHAPE = "float[2, 2, 512, 16]"


def writer(name: str) -> Any:
    """A cache of 128 KiB whose first rows, or one row, a call writes; ``y`` is its sum."""
    length = "t" if name == "prefill" else "1"
    text = f"""<ir_version: 11, opset_import: ["": 24]>
    agraph (float[2, 2, {length}, 16] x, int64[2] start, int64 pick, {SHAPE} cache)
      => (float y, {SHAPE} cache_out)
    <int64[1] last = {{-1}}>
    {{ cache_out = TensorScatter<axis = 2>(cache, x, start)
      total = ReduceSum<keepdims = 0>(cache_out)  all = Reshape(total, last)
      y = Gather(all, pick) }}"""
    return parse(text, {"coreai.states": [{"input": "cache", "output": "cache_out"}]})


def reader() -> Any:
    """Reads the cache of `writer`, and changes nothing."""
    return parse(f"""<ir_version: 11, opset_import: ["": 24]>
    agraph (float x, {SHAPE} cache) => (float y)
    {{ sum = ReduceSum<keepdims = 0>(cache)  y = Mul(sum, x) }}""")


@pytest.fixture(params=["bundle", "program"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    program = OnnxProgram(
        {"prefill": writer("prefill"), "decode": writer("decode"), "read": reader()}
    )
    if request.param == "program":
        return program
    program.save_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def x(length: int = 1) -> Any:
    return np.ones((2, 2, length, 16), np.float32)


def at(start: int) -> Any:
    return np.array([start, start])


ZEROS = np.zeros((2, 2, 512, 16), np.float32)


def test_one_entrypoint_continues_from_the_state_of_another(source: Any) -> None:
    prefill = Session(source, kernels=False)
    assert prefill.entrypoints == ("prefill", "decode", "read")
    decode, read = prefill.entrypoint("decode"), prefill.entrypoint("read")
    assert prefill.run(x(5), at(0), 0, cache=ZEROS)["y"] == 5 * 64
    for step in range(3):
        assert decode.run(x(), at(5 + step), 0)["y"] == (6 + step) * 64
    assert read.run(np.float32(2))["y"] == 2 * 8 * 64
    assert (prefill.state["cache"] == decode.state["cache"]).all()
    assert prefill.run(x(2), at(8), 0)["y"] == 10 * 64, "the prompt goes on"


def test_streams_forks_and_resets_are_those_of_all_entrypoints(source: Any) -> None:
    prefill = Session(source, kernels=False)
    prefill.run(x(5), at(0), 0, cache=ZEROS)
    fork = prefill.fork()
    assert fork.entrypoint("decode").run(x(), at(5), 0)["y"] == 6 * 64
    assert prefill.entrypoint("decode").run(x(), at(5), 0)["y"] == 6 * 64
    assert prefill.stream().entrypoint("decode").state == {}
    prefill.entrypoint("decode").reset()
    with pytest.raises(InputError, match="missing input 'cache'"):
        prefill.run(x(5), at(0), 0)
    assert fork.entrypoint("read").run(np.float32(1))["y"] == 6 * 64


def test_a_call_that_fails_leaves_the_shared_state_as_it_was(source: Any) -> None:
    prefill = Session(source, kernels=False)
    decode = prefill.entrypoint("decode")
    prefill.run(x(5), at(0), 0, cache=ZEROS)
    decode.run(x(), at(5), 0)
    before = decode.state["cache"]
    with pytest.raises(SessionError, match="Gather"):
        decode.run(x() * 9, at(2), 7)
    assert (prefill.state["cache"] == before).all()
    with pytest.raises(InputError, match=r"dimension 2 is 511, expected 512"):
        decode.run(x(), at(2), 0, cache=ZEROS[:, :, 1:])
    assert (prefill.state["cache"] == before).all()


def test_an_earlier_result_is_not_that_of_another_entrypoint(source: Any) -> None:
    prefill = Session(source, kernels=False)
    first = prefill.run(x(5), at(0), 0, cache=ZEROS)
    prefill.entrypoint("decode").run(x(), at(5), 0)
    with pytest.raises(SessionError, match="a later call has overwritten the states 'cache'"):
        _ = first.states


def test_closing_closes_all_entrypoints(source: Any) -> None:
    prefill = Session(source, kernels=False)
    decode = prefill.entrypoint("decode")
    prefill.close()
    for use in (lambda: decode.run(x(), at(0), 0), lambda: prefill.entrypoint("read")):
        with pytest.raises(SessionError, match="the session is closed"):
            use()


def test_an_entrypoint_that_is_chosen(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(OpenModel, "_open", lambda *_: opened.append(1) or pytest.fail("opened"))
    with pytest.raises(SessionError, match="no entrypoint 'generate'; there are prefill, decode"):
        Session(source, entrypoint="generate")
    assert not opened
    monkeypatch.undo()
    assert Session(source, entrypoint="read", kernels=False).states == ()


def test_the_sessions_of_a_program_share_states() -> None:
    program = OnnxProgram({"a": counter_model(), "main": counter_model()})
    one = np.ones(1, np.float32)
    program.run(one, entrypoint="a", kernels=False)
    assert_close(program.run(one, kernels=False)["y"], one * 2)
    assert program.session(kernels=False) is program.session("main", kernels=False)


def test_states_of_other_types_are_refused() -> None:
    session = Session(OnnxProgram({"a": cache_model(), "b": writer("decode")}), kernels=False)
    with pytest.raises(SessionError, match=r"state 'cache' is float32\[batch, past\] in the entry"):
        session.entrypoint("b")


def test_entrypoints_without_states_run_in_any_number_of_threads() -> None:
    program = OnnxProgram({"a": linear_model(), "b": linear_model()})
    session = Session(program, kernels=False)
    with session._used("run"), session.entrypoint("b")._used("run"):
        pass


@pytest.mark.parametrize("prepack", [None, True, False])
def test_weights_of_a_bundle_are_mapped_once(tmp_path: Path, prepack: bool | None) -> None:
    models = {"a": linear_model(64), "b": linear_model(64)}
    OnnxProgram(models).save_bundle(tmp_path / "bundle")
    session = Session(tmp_path / "bundle", kernels=False, prepack=prepack)
    options = session.entrypoint("b").ort.get_session_options()
    assert _disabled(options) is (prepack is not True)
    assert _disabled(Session(models["a"], kernels=False).ort.get_session_options()) is False
    expected = Session(models["a"], kernels=False).run(np.ones((3, 64), np.float32))["y"]
    assert_close(session.run(np.ones((3, 64), np.float32))["y"], expected)


def _disabled(options: Any) -> bool:
    try:
        return bool(options.get_session_config_entry("session.disable_prepacking") == "1")
    except RuntimeError:
        return False


def test_folders_that_are_no_bundles(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"is a folder without a coreai_manifest\.json"):
        Session(tmp_path)
