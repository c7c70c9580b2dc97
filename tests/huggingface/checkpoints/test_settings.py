"""Settings are known, off, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.settings import check_settings, matches


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_what_is_off_is_not_refused(value: Any) -> None:
    check_settings("GPTQ", {"bits": 4, "rotation": value}, {"bits"})


def test_another_setting_is_named() -> None:
    with pytest.raises(ModelSourceError, match="GPTQ: the setting rotation = 'hadamard' is not"):
        check_settings("GPTQ", {"bits": 4, "rotation": "hadamard"}, {"bits"})


def test_patterns_match_the_start_of_a_path() -> None:
    assert matches(r"model\.layers\.\d+", "model.layers.10.mlp")
    assert not matches("layers", "model.layers.10.mlp")
    with pytest.raises(ModelSourceError, match=r"the pattern '\[' of layers is not valid"):
        matches("[", "model")
