"""Passes whose results are compared with torch."""

from __future__ import annotations

from pathlib import Path

import onnx_graphsurgeon as gs
import pytest
import torch

from coreai_onnx.converter import TorchConverter
from coreai_onnx.debugging import PassVerifier
from coreai_onnx.errors import ComparisonError, PassError, WrongPassError
from coreai_onnx.passes import Why
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import Small, converted


def staged() -> OnnxProgram:
    """Return a program that was not optimized."""
    exported = torch.export.export(Small().eval(), (torch.randn(3, 8),))
    return TorchConverter().add_exported_program(exported).to_onnx()


def sine_of_tanh(graph: gs.Graph, why: Why) -> int:
    """Replace Tanh by Sin, which is wrong."""
    found = [node for node in graph.nodes if node.op == "Tanh"]
    for node in found:
        node.op = "Sin"
    return len(found)


def test_right_passes_pass() -> None:
    program, plain = staged(), staged()
    program.optimize(verify=True)
    plain.optimize()
    assert [n.op_type for n in program.model.graph] == [n.op_type for n in plain.model.graph]
    report = program.pass_report
    assert report is not None
    assert report.counts == plain.pass_report.counts  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["contrib", "portable"])
def test_targets_are_verified(target: str) -> None:
    staged().optimize(target=target, verify=(torch.randn(3, 8),))  # type: ignore[arg-type]


def test_a_wrong_pass_is_named_with_the_place_and_a_reproduction(tmp_path: Path) -> None:
    program = staged()
    verifier = PassVerifier(program.record(), None, tmp_path)
    with pytest.raises(WrongPassError, match="pass sine_of_tanh on main made results") as caught:
        program.optimize([remove_identities, sine_of_tanh], verify=verifier)
    text = str(caught.value)
    assert "hidden = torch.tanh(hidden) + x" in text
    assert f"reproduced in {tmp_path / '0'}" in text
    assert (tmp_path / "0" / "run.py").is_file()
    assert any(node.op_type == "Tanh" for node in program.model.graph)


def test_the_example_inputs_and_a_temporary_folder_are_the_default() -> None:
    with pytest.raises(PassError, match="coreai_onnx_wrong_pass_"):
        staged().optimize([sine_of_tanh], verify=True)


def test_what_was_wrong_before_is_not_attributed_to_passes() -> None:
    program = staged()
    next(n for n in program.model.graph if n.op_type == "Tanh").op_type = "Sin"
    program.optimize(verify=True)


def test_a_file_is_verified_with_its_record(tmp_path: Path) -> None:
    converted().save(tmp_path / "m.onnx")
    program = OnnxProgram.load(tmp_path / "m.onnx")
    with pytest.raises(ComparisonError, match="there is no record"):
        program.optimize(verify=True)
    record = converted().record()
    program.optimize(target="contrib", verify=PassVerifier(record))
    wrong = OnnxProgram.load(tmp_path / "m.onnx")
    with pytest.raises(WrongPassError):
        wrong.optimize([sine_of_tanh], verify=PassVerifier(record))
