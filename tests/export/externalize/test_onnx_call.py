"""The op that calls an ONNX model."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import OnnxModule
from coreai_onnx.errors import DelegationError
from coreai_onnx.export.externalize.onnx_call import ONNX_CALL
from tests.delegation.foreign_models import RELU, parsed
from tests.support.tolerances import assert_close


def test_a_program_outlives_its_module() -> None:
    x = torch.randn(2, 4)
    program = export(OnnxModule(parsed(*RELU)), (x,))
    gc.collect()
    assert_close(program.module()(x), x.relu())


def test_a_model_of_another_process_is_an_error() -> None:
    with pytest.raises(DelegationError, match="model#x was opened in another process"):
        ONNX_CALL([torch.ones(1)], [], "model#x")
