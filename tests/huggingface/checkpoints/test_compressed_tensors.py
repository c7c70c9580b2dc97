"""compressed-tensors, packed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.compressed_tensors import read
from tests.huggingface.checkpoints.formats import FORMATS, compressed, read_back
from tests.tolerances import assert_close


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("compressed")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, read, FORMATS[name])
    assert_close(values.numpy(), wanted.numpy())


def test_other_formats(tmp_path: Path) -> None:
    settings, write = compressed(4, symmetric=True)
    with pytest.raises(ModelSourceError, match="in the format 'int-quantized', not"):
        read_back(tmp_path, read, ({**settings, "format": "int-quantized"}, write))
    groups = {"group_0": {"input_activations": {"num_bits": 8}}}
    with pytest.raises(ModelSourceError, match="quantized activations"):
        read_back(tmp_path, read, ({**settings, "config_groups": groups}, write))


def test_words_that_do_not_fit(tmp_path: Path) -> None:
    settings, write = compressed(3, symmetric=True)
    with pytest.raises(ModelSourceError, match="9 words for 96 inputs are not of 8, 4 or 2 bits"):
        read_back(tmp_path, read, (settings, write))
