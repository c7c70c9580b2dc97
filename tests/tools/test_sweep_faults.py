"""A sample of the faults that ``tools/sweep_faults.py`` injects."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.debugging.blaming import blame
from tests.debugging.faults import faults
from tools.sweep_faults import converted, outcomes


@pytest.mark.parametrize(
    ("name", "target", "dtype"),
    [
        ("bert", "onnxruntime", torch.float32),
        ("llama", "contrib", torch.float16),
        ("vit", "portable", torch.float32),
    ],
)
def test_faults_are_found_with_one_line_each(name: str, target: str, dtype: torch.dtype) -> None:
    program = converted(name, target, dtype)
    blame(program, kernels=False).assert_clean()
    done = list(outcomes(program, dtype, 8))
    assert len(done) >= 4
    assert all(outcome.found and outcome.lines == 1 for outcome in done), done


def test_there_are_ten_kinds_of_faults() -> None:
    models = [converted(name, "onnxruntime", torch.float32).model for name in ("bert", "llama")]
    assert len({fault.kind for model in models for fault in faults(model)}) >= 10
