"""Finished programs: files, methods and runs."""

from __future__ import annotations

import io

import onnx
import pytest
import torch
from torch.export import export

from coreai_onnx import OnnxProgram
from coreai_onnx.delegation import FinishConfig, to_edge
from coreai_onnx.errors import SaveError, StagingError
from tests.support.tolerances import assert_close

X = torch.randn(2, 3)
METHODS = {"second": torch.nn.ReLU(), "first": torch.nn.Sigmoid(), "another": torch.nn.Tanh()}


def several():
    return to_edge({name: export(module, (X,)) for name, module in METHODS.items()}).finish()


def test_one_method_is_one_file(tmp_path) -> None:
    finished = to_edge(export(torch.nn.ReLU(), (X,))).finish()
    file = io.BytesIO()
    finished.write_to_file(file)
    assert file.getvalue() == finished.buffer
    onnx.checker.check_model(onnx.load_from_string(file.getvalue()))
    (path,) = finished.save(tmp_path / "model.onnx")
    loaded = OnnxProgram.load(path)
    assert loaded.entrypoints == finished.methods == ("forward",)
    assert_close(loaded.run(X)[0], X.relu())
    assert_close(finished.run(X)[0], X.relu())


def test_methods_keep_their_order_in_files(tmp_path) -> None:
    finished = several()
    finished.save(tmp_path / "model.onnx")
    finished.onnx_program.save_bundle(tmp_path / "bundle")
    for path in (tmp_path / "model.onnx", tmp_path / "bundle"):
        loaded = OnnxProgram.load(path)
        assert loaded.entrypoints == finished.methods == tuple(METHODS)
        for name, module in METHODS.items():
            assert_close(loaded.run(X, entrypoint=name)[0], module(X))


def test_several_methods_share_one_data_file_at_any_size(tmp_path) -> None:
    layer = torch.nn.Linear(3, 300)
    methods = {name: export(layer, (X[:n],)) for name, n in (("prefill", 2), ("decode", 1))}
    finished = to_edge(methods).finish()
    paths = finished.save(tmp_path / "model.onnx")
    names = ["model.prefill.onnx", "model.decode.onnx", "model.onnx.data"]
    assert [path.name for path in paths] == names
    weights = layer.weight.nbytes + layer.bias.nbytes
    assert weights <= paths[-1].stat().st_size < 1.1 * weights, "equal weights are stored once"
    assert paths[0].stat().st_size < weights
    loaded = OnnxProgram.load(tmp_path / "model.onnx")
    assert_close(loaded.run(X, entrypoint="prefill")[0], layer(X).detach())
    assert len(finished.save(tmp_path / "one.onnx", external_data=False)) == 2
    assert len(several().save(tmp_path / "small.onnx")) == 3, "without weights, no data file"


def test_several_methods_are_not_one_file() -> None:
    file = io.BytesIO()
    with pytest.raises(SaveError, match=r"the program has second, first, another\n.*save_bundle"):
        several().write_to_file(file)
    assert not file.getvalue()


def test_an_unknown_method_is_an_error_that_lists_the_methods() -> None:
    finished = several()
    assert finished.exported_program("first") is not finished.exported_program("second")
    for failing in (
        lambda: finished.run(X),
        lambda: finished.exported_program("third"),
    ):
        with pytest.raises(StagingError, match="there are second, first, another"):
            failing()


def test_the_config_chooses_opset_and_optimization() -> None:
    manager = to_edge(export(torch.nn.ReLU(), (X,)))
    config = FinishConfig(optimize=False, opset_version=19, minimum_onnxruntime="1.21")
    program = manager.finish(config).onnx_program
    assert program.model.opset_imports[""] == 19
    assert program.pass_report is None
    assert manager.finish().onnx_program.pass_report is not None
