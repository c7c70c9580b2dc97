"""What caches of the package override and set exists in transformers."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from transformers import cache_utils, masking_utils

from coreai_onnx.errors import LibraryVersionError
from coreai_onnx.export.compat.experts import exchanged_experts, weighted_experts
from coreai_onnx.huggingface import caches, transformers_names
from coreai_onnx.huggingface.heads.tasks import TASKS
from coreai_onnx.huggingface.sources import _class_of
from coreai_onnx.huggingface.transformers_names import (
    has_class_for,
    model_of_config,
    offsets_by_row,
    require_states,
)
from tests.models.generators import GENERATORS

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


def test_masks_with_an_offset_for_each_row() -> None:
    with offsets_by_row(torch.nn.Identity()):
        offsets = torch.tensor([[0], [2]])
        mask = masking_utils.sdpa_mask(2, 1, 4, q_offset=offsets)
        assert mask.int().tolist() == [[[[1, 0, 0, 0]]], [[[1, 1, 1, 0]]]]
        # One offset for all rows, as other callers have it.
        mask = masking_utils.sdpa_mask(2, 2, 4, q_offset=1)
        assert mask.int().tolist() == [[[[1, 1, 0, 0], [1, 1, 1, 0]]]] * 2


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


def older(module: ModuleType, patch: pytest.MonkeyPatch) -> Any:
    """Import a module again, with what transformers has now."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, module.__name__, again)
    spec.loader.exec_module(again)
    return again


LATER = ("DummyLayer", "LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer")
"""What transformers 5.0 does not have."""


def test_models_without_recurrent_states_need_no_later_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only during the imports: transformers itself reads the names when a model runs.
    with monkeypatch.context() as patch:
        for name in LATER:
            patch.delattr(cache_utils, name)
        older(transformers_names, patch)
        old = older(caches, patch)
    slots = old.slots_of(GENERATORS["llama"].module())
    assert {slot.kind for slot in slots} == {"key", "value"}
    held = old.cache_of(slots, [slot.example(1) for slot in slots])
    assert held.get_seq_length() == caches.EXAMPLE_PAST
    with pytest.raises(LibraryVersionError, match=r'of LlamaModel needs .*"transformers>=5\.14"'):
        old.require_states("LlamaModel")


def test_recurrent_states_need_a_later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    require_states("Mamba", in_blocks=True)
    monkeypatch.setattr(transformers_names, "DummyLayer", cache_utils.LinearAttentionLayer)
    model = GENERATORS["recurrent_gemma"].module()
    with pytest.raises(LibraryVersionError, match=r'RecurrentGemma.* "transformers>=5\.23"'):
        caches.slots_of(model)
    monkeypatch.setattr(transformers_names, "LinearAttentionLayer", cache_utils.DynamicLayer)
    for name in ("lfm2", "mamba"):
        with pytest.raises(LibraryVersionError, match=r'states of .* "transformers>=5\.14"'):
            caches.slots_of(GENERATORS[name].module())


def test_a_task_without_a_class_needs_a_later_version() -> None:
    task = replace(TASKS["pose-estimation"], auto_class="AutoModelForNothingYet")
    assert not task.fits("VitPoseForPoseEstimation")
    with pytest.raises(LibraryVersionError, match=r'pose-estimation.* "transformers>=5\.11"'):
        _class_of(transformers.VitPoseConfig(), task)


def test_experts_that_are_looked_up_by_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    class Registry(dict[str, Any]):
        """That of transformers 5.0."""

    home = ModuleType("moe")
    home.ALL_EXPERTS_FUNCTIONS = registry = Registry(grouped_mm=len)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", home)
    with exchanged_experts(lambda name, original: (name, original)) as is_exchanged:  # type: ignore[arg-type,return-value]
        assert is_exchanged
        assert registry["grouped_mm"] == ("grouped_mm", len)
    assert registry["grouped_mm"] is len


def test_experts_without_later_members_have_a_gate_and_no_norm() -> None:
    class Experts:
        """Those of transformers 5.0."""

        def _apply_gate(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2] * x[:, 2:]

    def product(name: str, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, 2 * x], dim=-1) if name == "gate_up_proj" else x

    chosen = torch.zeros(3, 1, dtype=torch.int64)
    result = weighted_experts(Experts(), product, torch.full((3, 2), 3.0), chosen, torch.ones(3, 1))
    assert torch.equal(result, torch.full((3, 2), 18.0))
