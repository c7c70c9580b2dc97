"""The files of onnxruntime-genai: what they say, and embeddings with features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers

from coreai_onnx.huggingface.media.genai import (
    genai_files,
    processed_size,
    processor_config,
    write_embedding,
)
from coreai_onnx.huggingface.media.parts import media_parts
from tests.models.media import MEDIA_MODELS, PLACEHOLDER

MODELS = {one.name: one for one in MEDIA_MODELS}
SIZE = 32


def files_of(name: str, folder: Path | None = None) -> dict[str, Any]:
    model = MODELS[name].make()
    return genai_files(media_parts(model), model, folder)


def test_the_configuration_of_a_model_of_pictures() -> None:
    (config,) = files_of("Qwen2.5-VL").values()
    model = config["model"]
    assert model["type"] == "qwen2_5_vl"
    assert (model["image_token_id"], model["vision_start_token_id"]) == (PLACEHOLDER, 102)
    assert model["vision"]["inputs"].keys() == {"pixel_values", "image_grid_thw"}
    assert (model["vision"]["patch_size"], model["vision"]["spatial_merge_size"]) == (2, 2)
    assert model["embedding"]["filename"] == "embedding.onnx"
    assert "inputs_embeds" in model["decoder"]["inputs"]
    assert "input_ids" not in model["decoder"]["inputs"]


def test_a_model_that_genai_does_not_have() -> None:
    assert files_of("LLaVA") == {}


def test_the_processor_of_a_folder(tmp_path: Path) -> None:
    processor = transformers.models.gemma3.Gemma3ImageProcessorPil(size={"height": 16, "width": 24})
    processor.save_pretrained(tmp_path)
    steps = files_of("Gemma 3", tmp_path)["genai_processor.json"]["processor"]["transforms"]
    by_type = {step["operation"]["type"]: step["operation"]["attrs"] for step in steps}
    assert list(by_type) == ["DecodeImage", "Resize", "Rescale", "Normalize", "Permute3D"]
    resize = {"interpolation": "LINEAR", "height": 16, "width": 24, "keep_aspect_ratio": 0}
    assert by_type["Resize"] == resize
    assert by_type["Normalize"]["mean"] == list(processor.image_mean)


def test_pictures_as_patches() -> None:
    settings = {
        "size": {"shortest_edge": 3136, "longest_edge": 6272}, "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    *_, colors, patches = processor_config(settings)["processor"]["transforms"]
    assert colors["operation"]["type"] == "ConvertRGB"
    sizes = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    assert patches["operation"]["attrs"] == sizes


@pytest.fixture
def embeddings(tmp_path: Path) -> tuple[onnxruntime.InferenceSession, np.ndarray]:
    """A session of ``embedding.onnx``, and the embeddings of tokens."""
    table = np.random.default_rng(0).standard_normal((120, SIZE)).astype(np.float32)
    dims = ["batch", "length"]
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, dims)
    output = onnx.helper.make_tensor_value_info(
        "inputs_embeds", onnx.TensorProto.FLOAT, [*dims, SIZE]
    )
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["inputs_embeds"])
    graph = onnx.helper.make_graph(
        [node], "embeddings", [ids], [output], [onnx.numpy_helper.from_array(table, "table")]
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(model, tmp_path / "embed_tokens.onnx")
    write_embedding(
        tmp_path,
        {"embedding": {}, "image_token_id": PLACEHOLDER, "decoder": {"hidden_size": SIZE}},
    )
    # The weights are not written again.
    assert (tmp_path / "embedding.onnx").stat().st_size < table.nbytes / 4
    return onnxruntime.InferenceSession(tmp_path / "embedding.onnx"), table


@pytest.mark.parametrize("shape", [(4, SIZE), (2, 2, SIZE), (0, SIZE), (2, 0, SIZE)])
def test_features_replace_placeholders(
    shape: tuple[int, ...], embeddings: tuple[onnxruntime.InferenceSession, np.ndarray]
) -> None:
    session, table = embeddings
    ids = torch.tensor([[1, PLACEHOLDER, 5, PLACEHOLDER], [PLACEHOLDER, PLACEHOLDER, 7, 9]])
    features = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    expected = torch.from_numpy(table)[ids]
    if features.numel():
        expected = expected.masked_scatter((ids == PLACEHOLDER)[..., None], features)
    feeds = {"input_ids": ids.numpy(), "image_features": features.numpy()}
    (actual,) = session.run(None, feeds)
    np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"size": {"height": 48, "width": 64}}, (48, 64)),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, None),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True}, (224, 224)),
        ({"size": 800}, None),
    ],
)
def test_the_size_that_an_image_processor_makes(
    settings: dict[str, Any], size: tuple[int, int] | None, tmp_path: Path
) -> None:
    assert processed_size(tmp_path) is None
    settings["image_mean"] = [0.5] * 3
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert processed_size(tmp_path) == size
