"""What caches of the package override and set exists in transformers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import transformers

from coreai_onnx.errors import LibraryVersionError
from coreai_onnx.huggingface import caches
from coreai_onnx.huggingface.transformers_names import has_class_for, model_of_config

OWN = {"filled", "hold", "resume"}
"""Members of the layers that only this package calls."""
LAYERS = [
    cls
    for _, cls in inspect.getmembers(caches, inspect.isclass)
    if cls.__module__ == caches.__name__ and cls is not caches.Slot
]


@pytest.mark.parametrize("layer", LAYERS)
def test_an_overridden_method_is_one_of_transformers(layer: Any) -> None:
    bases = [base for base in layer.__mro__ if base.__module__.startswith("transformers.")]
    members = {name for name in vars(layer) if not name.startswith("__")} - OWN
    members -= {name for name in members if name.startswith("_abc")}
    assert bases
    assert [name for name in members if not any(hasattr(base, name) for base in bases)] == []


def test_a_head_for_a_configuration() -> None:
    config = transformers.Wav2Vec2Config()
    assert has_class_for(transformers.AutoModelForCTC, config)
    assert not has_class_for(transformers.AutoModelForCausalLM, config)


@pytest.mark.parametrize("cls", [transformers.BertModel, transformers.AutoModel])
def test_a_model_with_random_weights(cls: Any) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
    config = transformers.BertConfig(num_hidden_layers=1, **sizes)
    assert type(model_of_config(cls, config)) is transformers.BertModel


def test_a_version_without_a_name_is_refused() -> None:
    class AutoModelForNothing:
        """Has no mapping."""

    with pytest.raises(LibraryVersionError, match=r"transformers \d.*lacks .*\._model_mapping"):
        has_class_for(AutoModelForNothing, transformers.BertConfig())
