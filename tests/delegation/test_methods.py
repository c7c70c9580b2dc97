"""Programs by method, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import export

from coreai_onnx import OnnxProgram
from coreai_onnx.delegation import KernelPartitioner, to_edge, to_edge_transform_and_lower
from coreai_onnx.delegation.methods import FORWARD, Methods
from coreai_onnx.errors import StagingError


def test_methods_keep_their_order() -> None:
    x = torch.randn(2)
    programs = {name: export(torch.nn.ReLU(), (x,)) for name in ("z", FORWARD, "a")}
    methods = Methods(programs)
    assert methods.methods == ("z", "forward", "a")
    assert methods.exported_program() is programs["forward"]
    assert methods.exported_program("a") is programs["a"]
    assert repr(methods) == "Methods(z, forward, a)"
    with pytest.raises(StagingError, match="no method 'b'; there are z, forward, a"):
        methods.exported_program("b")


PROGRAM = export(torch.nn.ReLU(), (torch.randn(2),))


def test_constant_methods_are_models_without_inputs(tmp_path: Path) -> None:
    table = torch.arange(6, dtype=torch.int8).reshape(2, 3)
    constants = {"get_length": 128, "get_theta": 0.1, "use_cache": True, "tables": [table, 7]}
    manager = to_edge_transform_and_lower(
        PROGRAM, partitioner=KernelPartitioner(), constant_methods=constants
    )
    finished = manager.finish()
    assert finished.methods == ("forward", *constants)
    finished.save(tmp_path / "model.onnx")
    for program in (finished.onnx_program, OnnxProgram.load(tmp_path / "model.onnx")):
        (length,) = program.run(entrypoint="get_length")
        (theta,) = program.run(entrypoint="get_theta")
        (cached,) = program.run(entrypoint="use_cache")
        assert (length, theta, cached) == (128, 0.1, True)
        assert (length.dtype, theta.dtype, cached.dtype) == (np.int64, np.float64, np.bool_)
        codes, seven = program.run(entrypoint="tables")
        assert codes.dtype == np.int8
        assert np.array_equal(codes, table.numpy())
        assert seven == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"constant_methods": {"name": "bert"}},
            "'name' must return tensors or numbers, got 'bert",
        ),
        ({"constant_methods": {"name": []}}, r"'name' must return tensors or numbers, got \[\]"),
        ({"constant_methods": {"name": [1, None]}}, "'name' must return .* got None"),
        ({"constant_methods": {"name": 1 << 70}}, "'name' cannot be exported: .*[Oo]verflow"),
        ({"constant_methods": {"forward": 1}}, "'forward' is both a program and a constant"),
        ({"constant_methods": [1]}, r"must be a dict by method, got \[1\]"),
        ({"generate_etrecord": True}, r"no counterpart: .*\n .*record\(\"forward\"\).save"),
    ],
)
def test_other_constants_and_etrecords_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(StagingError, match=said):
        to_edge(PROGRAM, **options)


def test_the_record_that_stands_for_an_etrecord(tmp_path: Path) -> None:
    finished = to_edge(PROGRAM, generate_etrecord=False).finish()
    finished.onnx_program.record("forward").save(tmp_path / "forward.pt2")
    assert (tmp_path / "forward.pt2").stat().st_size > 0
