"""Models of onnx's backend tests, before and after: a few of them, and two that were made bad."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.test_case import TestCase

from coreai_onnx import OnnxProgram
from coreai_onnx.errors import LoadError
from coreai_onnx.targets.opsets import TARGETS
from tools.backend.measuring import FAULTY, NOT_RUN, Before, measure, run_stock
from tools.backend.models import BackendModel
from tools.operators.measuring import (
    CONVERSION_FAILED,
    MISMATCH,
    PASS,
    REFUSED,
    RUN_FAILED,
)


def _model(op: str = "Add", inputs: int = 2) -> BackendModel:
    names = [f"x{i}" for i in range(inputs)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node(op, names, ["y"])], "g", infos, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    data = [np.arange(3, dtype=np.float32) + i for i in range(inputs)]
    case = TestCase(
        name="test", model_name="test", url=None, model_dir=None, model=proto,
        data_sets=[(data, [sum(data)])], kind="node", rtol=1e-3, atol=1e-7,
    )  # fmt: skip
    return BackendModel(case)


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "kernels"])
def test_a_model_that_keeps_its_results_passes(target) -> None:
    model = _model()
    before = run_stock(model)
    assert before.stored
    assert measure(model, target, before).status == PASS


def test_a_changed_result_is_found() -> None:
    before = Before([np.zeros(3, np.float32)])
    outcome = measure(_model(), "onnxruntime", before)
    assert outcome.status == MISMATCH


def test_what_does_not_run_is_optimized_all_the_same() -> None:
    before = run_stock(_model("NoSuchOp"))
    assert before.results is None
    assert measure(_model("Add"), "onnxruntime", before).status == NOT_RUN


def test_a_model_known_to_be_at_fault_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = _model("NoSuchOp"), Before([np.zeros(3, np.float32)])
    assert measure(model, "onnxruntime", before).status == RUN_FAILED
    monkeypatch.setitem(FAULTY, model.name, "why")
    outcome = measure(model, "onnxruntime", before)
    assert (outcome.status, outcome.detail) == (NOT_RUN, "why")


def test_random_results_are_not_compared() -> None:
    model = _model("RandomNormalLike", inputs=1)
    assert run_stock(model).reason == "random"


@pytest.mark.parametrize(
    ("error", "status"), [(LoadError("no"), REFUSED), (KeyError("no"), CONVERSION_FAILED)]
)
def test_only_typed_errors_are_refusals(error, status, monkeypatch) -> None:
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(OnnxProgram, "load", fail)
    assert measure(_model(), "onnxruntime", Before(None, "")).status == status


def test_models_on_disk_come_with_their_inputs(tmp_path) -> None:
    model = _model()
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    onnx.save(model.proto, tmp_path / "model.onnx")
    inputs, outputs = model.first_data()
    for name, arrays in (("input", inputs), ("output", outputs)):
        for i, array in enumerate(arrays):
            proto = onnx.numpy_helper.from_array(array)
            (folder / f"{name}_{i}.pb").write_bytes(proto.SerializeToString())
    stored = BackendModel(replace(model.case, model=None, data_sets=None, model_dir=str(tmp_path)))
    read, expected = stored.first_data()
    assert [list(x) for x in read] == [list(x) for x in inputs]
    assert list(expected[0]) == list(outputs[0])
    assert run_stock(stored).stored
