"""The report, and how a replacement is held to its original."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx.export.recognize.blocks import Block, Recognition

ONE = torch.ones(2, 3)


def block(replacement: Any, kind: str = "Norm") -> Block:
    return Block("layers.0.norm", kind, "rms_norm", replacement)


def test_a_block_is_refused_for_the_first_reason() -> None:
    checked = block(lambda x: x * 2)
    checked.check(ONE * 2, (ONE,), {})
    assert (checked.reason, checked.calls) == ("", 1)
    checked.check(ONE, (ONE,), {})
    checked.check(ONE.double(), (ONE,), {})
    assert checked.reason == "the result differs by 1"
    assert (checked.calls, checked.worst) == (3, 1.0)


def test_a_replacement_that_raises_is_refused() -> None:
    checked = block(lambda x: x @ x)
    checked.check(ONE, (ONE,), {})
    assert checked.reason.startswith("the replacement does not take its arguments (")
    assert "mat1 and mat2" in checked.reason


def test_only_what_counts_is_compared() -> None:
    checked = Block("f", "f", "rope", lambda x: (x, None), compared=lambda r: r[0])
    checked.check((ONE, ONE), (ONE,), {})
    assert not checked.reason


def test_the_report_is_a_table() -> None:
    blocks = [block(lambda x: x) for _ in range(3)] + [block(lambda x: x, "Other")]
    for each in blocks[:2]:
        each.check(ONE, (ONE,), {})
    blocks[3].refuse("it is something else")
    report = Recognition(blocks)
    assert report.recognized == blocks[:2]
    assert report.refused == blocks[3:]
    lines = [line.split() for line in str(report).splitlines()]
    assert lines[0] == ["block", "composite", "places", "calls", "difference", "result"]
    assert lines[2] == ["Norm", "rms_norm", "2", "2", "0.0e+00", "recognized"]
    assert lines[3] == ["Norm", "rms_norm", "1", "0", "not", "called"]
    assert lines[4] == ["Other", "rms_norm", "1", "0", "it", "is", "something", "else"]


def test_the_british_name_is_deprecated() -> None:
    report = Recognition([block(lambda x: x)])
    report.blocks[0].check(ONE, (ONE,), {})
    with pytest.warns(DeprecationWarning, match=r"Recognition\.recognized"):
        assert report.recognised == report.blocks
    program = coreai_onnx.convert(torch.nn.Linear(8, 8), (torch.ones(8),))
    program.recognized = report
    with pytest.warns(DeprecationWarning, match=r"OnnxProgram\.recognized"):
        assert program.recognised is report
