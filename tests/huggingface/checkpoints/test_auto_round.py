"""AutoRound: the layouts of GPTQ and AWQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import auto_round as reader
from tests.huggingface.checkpoints.formats import FORMATS, auto_round, gptq, read_back


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("auto-round")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("pattern", ["fc", ".*c"])
def test_settings_of_a_layer(pattern: str, tmp_path: Path) -> None:
    settings, _ = auto_round("auto_round")
    _, write = gptq(8, version="gptq_v2", group=48)
    extra = {pattern: {"bits": 8, "group_size": 48}, "f.*": {"bits": 2}}
    values, wanted = read_back(tmp_path, reader, ({**settings, "extra_config": extra}, write))
    assert torch.equal(values, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "packing_format 'auto_round:llm_c"),
        ({"data_type": "mx_fp"}, "weights of 'mx_fp' with inputs of 16 bits"),
        ({"extra_config": {"fc": {"act_bits": 8}}}, "weights of 'int' with inputs of 8 bits"),
        ({"extra_config": {"fc": {"rotation": 1}}}, "the setting rotation = 1"),
        ({"transform_config": {"a": 1}}, "AutoRound: the setting transform_config"),
    ],
)
def test_unsupported_settings(change: dict[str, Any], message: str) -> None:
    settings, _ = auto_round("auto_round")
    with pytest.raises(ModelSourceError, match=message):
        reader.check({**settings, **change})
