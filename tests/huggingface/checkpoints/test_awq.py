"""AWQ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import awq as reader
from tests.huggingface.checkpoints.formats import FORMATS, awq, read_back


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("awq")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("change", [{"version": "gemv"}, {"bits": 8}])
def test_other_versions(change: dict[str, object], tmp_path: Path) -> None:
    settings, write = awq()
    with pytest.raises(ModelSourceError, match="must be 'gemm' with 4 bits, got"):
        read_back(tmp_path, reader, ({**settings, **change}, write))
