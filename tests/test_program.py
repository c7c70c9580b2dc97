"""The program object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.errors import InputError, LoadError, SaveError, StagingError
from coreai_onnx.passes import Target
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries import library
from tests.support.small_models import counter_model, layers_model, linear_model, parse, phase_model
from tests.support.tolerances import assert_close

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def two_entrypoints() -> OnnxProgram:
    models = {"prefill": layers_model(), "decode": linear_model()}
    for name, model in models.items():
        model.metadata_props["coreai.entrypoint"] = name
    return OnnxProgram(models)


def wasteful_model() -> ir.Model:
    return parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 4] x) => (float[2, 4] y)
    { a = Identity(x)  b = Identity(a)  unused = Neg(b)  y = Relu(b) }""")


def test_a_program_of_one_entrypoint() -> None:
    model = layers_model()
    program = OnnxProgram({"encode": model})
    assert program.model is model
    assert program.entrypoints == ("encode",)
    assert repr(program) == "OnnxProgram(encode)"
    assert isinstance(program.to_proto(), onnx.ModelProto)


def test_a_program_of_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one entrypoint"):
        OnnxProgram({})


def test_entrypoints_have_to_be_named_if_none_is_main() -> None:
    program = two_entrypoints()
    with pytest.raises(StagingError, match="say which entrypoint; there are prefill, decode"):
        program.run(X)
    with pytest.raises(StagingError, match="no entrypoint 'encode'; there are prefill, decode"):
        program.to_proto("encode")
    assert program.run(X, entrypoint="prefill", kernels=False).names == ("y",)
    main = OnnxProgram({"other": layers_model(), "main": linear_model()})
    assert main.model is main.models["main"]


def test_run_keeps_its_session_and_state() -> None:
    program = OnnxProgram({"main": counter_model()})
    x = np.ones(2, np.float32)
    program.run(x, kernels=False)
    assert_close(program.run(x, kernels=False)["y"], x * 2)
    assert program.session(kernels=False) is program.session(kernels=False)
    program.session(kernels=False).reset()
    assert_close(program.run(x, kernels=False)["y"], x)
    with pytest.raises(InputError, match="unexpected input 'z'"):
        program.run(z=x, kernels=False)


def test_optimize_is_in_place_idempotent_and_chains() -> None:
    program = OnnxProgram({"main": wasteful_model()})
    assert program.pass_report is None
    before = program.run(X, kernels=False)["y"]
    assert program.optimize() is program
    assert program.pass_report is not None
    assert program.pass_report.total > 0
    assert [node.op_type for node in program.model.graph] == ["Relu"]
    assert_close(program.run(X, kernels=False)["y"], before)
    once = program.to_proto().SerializeToString()
    program.optimize()
    assert program.pass_report.total == 0
    assert program.to_proto().SerializeToString() == once


def test_optimize_with_chosen_passes() -> None:
    program = OnnxProgram({"main": wasteful_model()})
    program.optimize(passes=())
    assert len(program.model.graph) == 4
    assert program.pass_reports["main"].counts == {}


def test_save_and_load(tmp_path: Path) -> None:
    program = OnnxProgram({"main": linear_model()})
    x = np.ones((2, 8), np.float32)
    for external in (None, True):
        written = program.save(tmp_path / "m.onnx", external_data=external)
        assert all(path.is_file() for path in written)
        loaded = OnnxProgram.load(tmp_path / "m.onnx")
        assert loaded.entrypoints == ("main",)
        assert_close(loaded.run(x)["y"], program.run(x)["y"])
    assert program.save_asset(str(tmp_path / "asset.onnx")) == (tmp_path / "asset.onnx",)


def test_several_entrypoints_are_several_files(tmp_path: Path) -> None:
    program = two_entrypoints()
    written = program.save(tmp_path / "lm.onnx", external_data=True)
    assert sorted(path.name for path in written) == [
        "lm.decode.onnx", "lm.onnx.data", "lm.prefill.onnx",
    ]  # fmt: skip
    loaded = OnnxProgram.load(tmp_path / "lm.onnx")
    assert sorted(loaded.entrypoints) == ["decode", "prefill"]
    assert_close(
        loaded.run(X, entrypoint="prefill", kernels=False)["y"],
        program.run(X, entrypoint="prefill", kernels=False)["y"],
    )
    assert program.save(tmp_path / "one.onnx", entrypoint="decode") == (tmp_path / "one.onnx",)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"the folder .*nowhere does not exist"):
        OnnxProgram({"main": linear_model()}).save(tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(SaveError, match="is a folder"):
        OnnxProgram({"main": linear_model()}).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loading_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        OnnxProgram.load(tmp_path / "m.onnx")
    with pytest.raises(LoadError, match="is a folder"):
        OnnxProgram.load(tmp_path)
    for content in (b"", b"not a model"):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(LoadError, match="is not an ONNX model"):
            OnnxProgram.load(tmp_path / "m.onnx")


def test_composites_of_all_entrypoints() -> None:
    program = OnnxProgram({"a": layers_model(), "b": layers_model()})
    assert program.composites() == {"ai.coreai.user::square": 10, "ai.coreai.module::Block": 4}
    assert program.composites("a") == {"ai.coreai.user::square": 5, "ai.coreai.module::Block": 2}


def test_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere")
    text = str(OnnxProgram({"main": layers_model(), "count": counter_model()}))
    lines = [line.split() for line in text.splitlines()]
    assert "entrypoint main: 0 B of weights, IR 10, ai.onnx 21, ai.coreai.user 1" in text
    assert ["input", "x", "float32[batch,", "4]"] in lines
    assert ["state", "count", "float32[1]"] in lines
    assert ["output", "y", "float32[n]"] in lines
    assert lines.count(["ai.coreai.user::square", "5"]) == 2  # as composite and as operator
    assert ["ai.coreai.module::Block", "3"] in lines  # nodes of the function
    assert ["Relu", "2"] in lines
    assert text == OnnxProgram({"main": layers_model(), "count": counter_model()}).summary()


@pytest.mark.parametrize("target", ["onnxruntime", "kernels", "contrib", "portable"])
def test_complex_tensors_stay_complex_through_passes_and_files(
    target: Target, tmp_path: Path
) -> None:
    program = OnnxProgram({"main": phase_model()}).optimize(target=target)
    program.save(tmp_path / "m.onnx")
    (y,) = OnnxProgram.load(tmp_path / "m.onnx").run(np.array([3 - 4j], np.complex64))
    assert_close(y, np.array([2 - 6j], np.complex64))
    assert "complex64[n]" in str(program)
