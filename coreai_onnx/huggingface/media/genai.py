"""Models of pictures for onnxruntime-genai: their configuration, and embeddings with features.

onnxruntime-genai runs three files: an encoder, ``embedding.onnx``, which replaces the embeddings of
placeholders by features, and a decoder. It reads pictures with a file of its own format.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from coreai_onnx.huggingface.genai import CONFIG, genai_config
from coreai_onnx.huggingface.media.decoder import EMBEDS
from coreai_onnx.huggingface.media.encoders import FEATURES
from coreai_onnx.model.files.program_files import EMBEDDING_FILE, MEDIA_FILES, MERGED_FILE
from coreai_onnx.model.files.saving import EXTERNAL_TENSOR_BYTES

FEATURES_FILE, PROCESSOR_FILE = "embedding.onnx", "genai_processor.json"
_TYPES: Mapping[str, str] = MappingProxyType({"gemma3": "gemma3", "qwen2_5_vl": "qwen2_5_vl"})
"""The types of models of pictures in onnxruntime-genai, by the model type in transformers."""
_RESAMPLING = {0: "NEAREST", 2: "LINEAR", 3: "CUBIC"}
"""The names of interpolations in onnxruntime-extensions, by their numbers in Pillow."""
_OF_TOKENS = "token_embeds"


def media_config(parts: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """Return the configuration of a model of pictures, or None if onnxruntime-genai has no such.

    Args:
        parts: The parts of the model, by the names of their files.
        model: The model.
    """
    if (name := _TYPES.get(model.config.model_type)) is None:
        return None
    result = genai_config(parts[MERGED_FILE], MERGED_FILE)
    encoder = parts[MEDIA_FILES["image"]]
    vision = encoder.encoder.config
    decoder = result["model"]["decoder"]
    decoder["inputs"] = {EMBEDS: EMBEDS} | decoder["inputs"]
    del decoder["inputs"]["input_ids"]
    result["model"] |= {
        "type": name,
        "image_token_id": model.config.image_token_id,
        "embedding": {
            "filename": FEATURES_FILE,
            "inputs": {"input_ids": "input_ids", FEATURES["image"]: FEATURES["image"]},
            "outputs": {EMBEDS: EMBEDS},
        },
        "vision": {
            "filename": MEDIA_FILES["image"],
            "config_filename": PROCESSOR_FILE,
            "patch_size": vision.patch_size,
            "inputs": {name: name for name in encoder.input_names},
            "outputs": {FEATURES["image"]: FEATURES["image"]},
        },
    }
    if hasattr(model.config, "vision_start_token_id"):
        result["model"]["vision_start_token_id"] = model.config.vision_start_token_id
        result["model"]["video_token_id"] = model.config.video_token_id
        result["model"]["vision"]["spatial_merge_size"] = vision.spatial_merge_size
    return result


def genai_files(parts: Mapping[str, Any], model: Any, folder: Path | None) -> dict[str, Any]:
    """Return contents of JSON files for onnxruntime-genai, by file name.

    Args:
        parts: The parts of the model, by the names of their files.
        model: The model.
        folder: The folder that it came from; None for a model object.
    """
    config = media_config(parts, model)
    if config is None:
        return {}
    settings = _processor_settings(folder)
    return {CONFIG: config} | (
        {} if settings is None else {PROCESSOR_FILE: processor_config(settings)}
    )


def _processor_settings(folder: Path | None) -> Mapping[str, Any] | None:
    """Return the settings of the image processor in a folder of transformers."""
    for name, key in (
        ("preprocessor_config.json", None),
        ("processor_config.json", "image_processor"),
    ):
        if folder is not None and (folder / name).is_file():
            settings = json.loads((folder / name).read_text())
            section: dict[str, Any] | None = settings.get(key) if key else settings
            if section and "image_mean" in section:
                return section
    return None


def processed_size(folder: Path | None) -> tuple[int, int] | None:
    """Return height and width of the images that the processor in a folder makes.

    Returns:
        None if there is no processor, or the sizes depend on the images.
    """
    settings = _processor_settings(folder) or {}
    crops = settings.get("do_center_crop", False)
    size = settings.get("crop_size" if crops else "size")
    if isinstance(size, int) and crops:
        return size, size  # folders of earlier releases of transformers
    if isinstance(size, Mapping) and {"height", "width"} <= size.keys():
        return size["height"], size["width"]
    return None


def processor_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an image processor in the format of onnxruntime-extensions.

    Args:
        settings: Those of transformers, ``preprocessor_config.json``.
    """
    size = settings["size"]
    resize: dict[str, Any] = {"interpolation": _RESAMPLING[settings.get("resample", 3)]}
    mean = {"mean": settings["image_mean"], "std": settings["image_std"]}
    if "patch_size" in settings:
        places = {name: settings[name] for name in ("patch_size", "merge_size")}
        limits = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        # The size is not read; that of the picture is rounded to whole patches.
        resize |= {"width": 224, "height": 224, "smart_resize": 1, **limits, **places}
        mean["qwen2_5_vl"] = 1
        temporal = {"temporal_patch_size": settings["temporal_patch_size"]}
        # Its normalization swaps the colors.
        last = [("ConvertRGB", {}), ("PatchImage", {**places, **temporal})]
    else:
        resize |= {"width": size["width"], "height": size["height"], "keep_aspect_ratio": 0}
        last = [("Permute3D", {"dims": [2, 0, 1]})]
    steps: tuple[tuple[str, dict[str, Any]], ...] = (
        ("DecodeImage", {"color_space": "RGB"}),
        ("Resize", resize),
        ("Rescale", {"rescale_factor": settings.get("rescale_factor", 1 / 255)}),
        ("Normalize", mean),
        *last,
    )
    transforms = [
        {"operation": {"name": kind.lower(), "type": kind, "attrs": attributes}}
        for kind, attributes in steps
    ]
    return {"processor": {"name": "image_processor", "transforms": transforms}}


def write_embedding(folder: Path, config: Mapping[str, Any]) -> None:
    """Write embeddings with features in place of placeholders, of a model of pictures.

    The weights are those of the file without features: by their places in it.

    Args:
        folder: The folder with the embeddings of tokens.
        config: The configuration of the model for onnxruntime-genai.
    """
    if "embedding" not in config:
        return
    token, size = config["image_token_id"], config["decoder"]["hidden_size"]
    model = ir.load(source := folder / EMBEDDING_FILE)
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) or tensor is None:
                continue
            content = tensor.tobytes()
            if len(content) >= EXTERNAL_TENSOR_BYTES and (offset := data.find(content)) >= 0:
                shape, name = ir.Shape(tensor.shape.numpy()), str(value.name)
                value.const_value = ir.ExternalTensor(
                    source.name, offset, len(content), tensor.dtype, shape=shape, name=name,
                    base_dir=folder,
                )  # fmt: skip
    _append_features(model.graph, token, size)
    ir.save(model, folder / FEATURES_FILE)


def _append_features(graph: ir.Graph, token: int, size: int) -> None:
    """Replace embeddings of placeholders in the output of a graph by the input with features."""
    (ids,), (embeds,) = graph.inputs, graph.outputs
    # No shape: a prompt without pictures has features of two axes, and one with pictures may have
    # three.
    features = ir.val(FEATURES["image"], type=embeds.type)
    graph.inputs.append(features)

    def constant(name: str, value: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        name = f"features.{name}"
        result = ir.val(name, const_value=ir.tensor(value, dtype, name=name))
        graph.initializers[name] = result
        return result

    def add(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = ir.node(op_type, inputs, attributes)
        node.name = node.outputs[0].name = f"features.{len(graph)}"
        graph.append(node)
        return node.outputs[0]

    assert embeds.dtype is not None
    flat, zero = constant("flat", [-1]), constant("zero", 0)
    nothing = constant("nothing", [[0.0] * size], embeds.dtype)
    rows = add("Reshape", features, constant("row", [-1, size]))
    is_placeholder = add("Equal", ids, constant("placeholder", token))
    ones = add("Reshape", add("Cast", is_placeholder, to=ir.DataType.INT64), flat)
    number = add("Reshape", add("CumSum", ones, zero), add("Shape", ids))
    # Without features, a placeholder is a token like others.
    has_feature = add("LessOrEqual", number, add("Shape", rows, start=0, end=1))
    selects = add("And", is_placeholder, has_feature)
    table = add("Concat", nothing, rows, axis=0)
    chosen = add("Gather", table, add("Where", selects, number, zero))
    result = add("Where", add("Unsqueeze", selects, flat), chosen, embeds)
    result.type, result.shape = embeds.type, embeds.shape
    embeds.name, result.name = _OF_TOKENS, embeds.name
    graph.outputs[0] = result
