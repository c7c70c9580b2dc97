"""GPTQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.gptq import read
from tests.huggingface.checkpoints.formats import FORMATS, gptq, read_back
from tests.tolerances import assert_close


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("gptq")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, read, FORMATS[name])
    assert_close(values.numpy(), wanted.numpy())


def test_other_formats(tmp_path: Path) -> None:
    settings, write = gptq(4)
    with pytest.raises(ModelSourceError, match="GPTQ in the format 'marlin', not one of gptq,"):
        read_back(tmp_path, read, ({**settings, "checkpoint_format": "marlin"}, write))
    with pytest.raises(ModelSourceError, match="weights of 5 bits"):
        read_back(tmp_path, read, ({**settings, "bits": 5}, write))
    with pytest.raises(ModelSourceError, match="words do not hold 96 codes of 8 bits"):
        read_back(tmp_path, read, ({**settings, "bits": 8}, write))
