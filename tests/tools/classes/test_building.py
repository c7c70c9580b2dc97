"""Small models and their inputs, from a class of transformers alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers.exporters.auto")

import transformers

from tools.classes.configurations import PROFILES, shrunk, small_configs
from tools.classes.feeding import Feeder, found_inputs
from tools.classes.listing import every_class
from tools.classes.measuring import built
from tools.foreign.case import FIRST, SECOND


def shapes(inputs: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in inputs.items()}


def test_classes_are_listed_once_and_each_model_type_before_the_second_class_of_any() -> None:
    jobs = every_class()
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names) > 1000
    types = [job.model_type for job in jobs]
    assert len(set(types)) == types.index(types[0], 1)
    assert {"LlamaForCausalLM", "BertModel", "ViTForImageClassification"} <= set(names)
    assert sum(job.beside for job in jobs) == -(-len(jobs) // 3)


def test_fields_are_recognized_by_name_in_parts_as_well() -> None:
    config = next(small_configs(transformers.LlavaConfig))
    text, vision = config.text_config, config.vision_config
    assert (text.hidden_size, text.num_hidden_layers, text.num_attention_heads) == (32, 2, 4)
    assert (text.head_dim, text.num_key_value_heads, text.vocab_size) == (8, 2, 128)
    assert (vision.image_size, vision.patch_size, vision.num_channels) == (32, 8, 3)
    assert config.image_token_id == 100


def test_one_layer_of_each_kind_is_kept() -> None:
    config = next(small_configs(transformers.Gemma3TextConfig))
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.num_hidden_layers == 2


def test_lists_with_a_value_per_layer_keep_the_layers_that_are_left() -> None:
    config = next(small_configs(transformers.LagunaConfig))
    assert config.num_hidden_layers == len(config.layer_types) == len(config.mlp_layer_types)
    assert len(config.num_attention_heads_per_layer) == config.num_hidden_layers
    depth = next(small_configs(transformers.DepthAnythingConfig))
    assert depth.backbone_config.num_hidden_layers == len(depth.neck_hidden_sizes) == 4
    assert depth.backbone_config.out_features == ["stage1", "stage2", "stage3", "stage4"]


def test_fields_that_the_whole_model_changes_in_a_part_are_kept() -> None:
    config = next(small_configs(transformers.RTDetrConfig))
    assert config.backbone_config.out_features == ["stage2", "stage3", "stage4"]
    assert config.encoder_in_channels == [32, 64, 128]


def test_mamba_heads_have_the_inner_width() -> None:
    config = next(small_configs(transformers.Mamba2Config))
    assert config.num_heads * config.head_dim == config.expand * config.hidden_size


def test_sizes_without_a_default_are_filled_in_the_second_profile() -> None:
    first, second, *_ = small_configs(transformers.EsmConfig)
    assert (first.vocab_size, second.vocab_size) == (None, 128)


def test_given_fields_win_over_the_rules() -> None:
    config = shrunk(transformers.LlamaConfig(), PROFILES[0], {"hidden_size": 48}, {})
    assert (config.hidden_size, config.num_hidden_layers) == (48, 2)


@pytest.mark.parametrize(
    ("model_type", "name", "expected"),
    [
        ("bert", "BertModel", {"input_ids": (2, 12), "attention_mask": (2, 12)}),
        ("vit", "ViTModel", {"pixel_values": (2, 3, 32, 32)}),
        (
            "llava",
            "LlavaForConditionalGeneration",
            {
                "input_ids": (2, 28),
                "attention_mask": (2, 28),
                "pixel_values": (2, 3, 32, 32),
            },
        ),
        (
            "t5",
            "T5ForConditionalGeneration",
            {
                "input_ids": (2, 12),
                "attention_mask": (2, 12),
                "decoder_input_ids": (2, 6),
            },
        ),
        (
            "bert",
            "BertForMultipleChoice",
            {"input_ids": (2, 2, 12), "attention_mask": (2, 2, 12)},
        ),
        ("vit_mae", "ViTMAEModel", {"pixel_values": (2, 3, 32, 32), "noise": (2, 16)}),
    ],
)
def test_inputs_follow_from_the_signature(
    model_type: str, name: str, expected: dict[str, tuple[int, ...]]
) -> None:
    model, (first, second) = built(model_type, name)
    assert shapes(first) == expected
    assert all(second[key].shape[0] == SECOND.batch for key in first)
    with torch.no_grad():
        model(**first)


def test_convolutions_of_small_models_keep_the_scale_of_their_input() -> None:
    model, (inputs, _) = built("resnet", "ResNetModel")
    with torch.no_grad():
        pooled = model(**inputs).pooler_output
    assert (pooled[0] - pooled[1]).abs().max() > 0.1


def test_the_first_complaint_is_the_reason_of_a_model_that_runs_on_nothing() -> None:
    class Picky(torch.nn.Module):
        config = transformers.BertConfig()

        def forward(self, input_ids, attention_mask=None):
            raise TypeError(f"not these {tuple(input_ids.shape)}")

    with pytest.raises(ValueError, match=r"TypeError: not these \(2, 12\)"):
        found_inputs(Picky(), (FIRST, SECOND))
    assert Feeder(Picky()).required == ["input_ids"]


def test_a_class_that_cannot_be_built_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.classes.measuring.PARAMETERS", 10)
    with pytest.raises(ValueError, match="parameters"):
        built("bert", "BertModel")
