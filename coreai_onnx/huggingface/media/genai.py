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

import onnx
import onnx.helper as make
from onnx import TensorProto

from coreai_onnx.huggingface.genai import CONFIG, genai_config
from coreai_onnx.huggingface.media.decoder import EMBEDS
from coreai_onnx.huggingface.media.encoders import FEATURES
from coreai_onnx.huggingface.sources import LoadedModel
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


def genai_files(parts: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """Return contents of JSON files for onnxruntime-genai, by file name.

    Args:
        parts: The parts of the model, by the names of their files.
        loaded: The model and its folder.
    """
    config = media_config(parts, loaded.model)
    if config is None:
        return {}
    settings = _processor_settings(loaded.folder)
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
            found: dict[str, Any] | None = settings.get(key) if key else settings
            if found and "image_mean" in found:
                return found
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
    source = folder / EMBEDDING_FILE
    model = onnx.load(source, load_external_data=False)
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= EXTERNAL_TENSOR_BYTES:
                _refer(tensor, source.name, data.find(tensor.raw_data))
    _append_features(model.graph, token, size)
    onnx.save(model, folder / FEATURES_FILE)


def _append_features(graph: onnx.GraphProto, token: int, size: int) -> None:
    """Replace embeddings of placeholders in the output of a graph by the input with features."""
    outside = {FEATURES["image"], "input_ids", EMBEDS, _OF_TOKENS}

    def own(name: str) -> str:
        return name if name in outside else f"features.{name}"

    for node in graph.node:
        node.output[:] = [_OF_TOKENS if name == EMBEDS else name for name in node.output]
    kind = graph.output[0].type.tensor_type.elem_type
    # No shape: a prompt without pictures has features of two axes, and one with pictures may have
    # three.
    features = make.make_tensor_value_info(FEATURES["image"], kind, None)
    graph.input.append(features)
    constants = {
        "placeholder": (TensorProto.INT64, [], [token]),
        "row": (TensorProto.INT64, [2], [-1, size]),
        "flat": (TensorProto.INT64, [1], [-1]),
        "zero": (TensorProto.INT64, [], [0]),
        "axes": (TensorProto.INT64, [1], [-1]),
        "nothing": (kind, [1, size], [0.0] * size),
    }
    graph.initializer.extend(make.make_tensor(own(name), *x) for name, x in constants.items())
    nodes: tuple[tuple[str, list[str], str, dict[str, Any]], ...] = (
        ("Reshape", [FEATURES["image"], "row"], "rows", {}),
        ("Concat", ["nothing", "rows"], "table", {"axis": 0}),
        ("Shape", ["rows"], "count", {"start": 0, "end": 1}),
        ("Equal", ["input_ids", "placeholder"], "is_placeholder", {}),
        ("Cast", ["is_placeholder"], "ones", {"to": TensorProto.INT64}),
        ("Reshape", ["ones", "flat"], "flat_ones", {}),
        ("CumSum", ["flat_ones", "zero"], "flat_number", {}),
        ("Shape", ["input_ids"], "shape", {}),
        ("Reshape", ["flat_number", "shape"], "number", {}),
        # Without features, a placeholder is a token like others.
        ("LessOrEqual", ["number", "count"], "has_feature", {}),
        ("And", ["is_placeholder", "has_feature"], "is_feature", {}),
        ("Where", ["is_feature", "number", "zero"], "place", {}),
        ("Gather", ["table", "place"], "features", {}),
        ("Unsqueeze", ["is_feature", "axes"], "selects", {}),
        ("Where", ["selects", "features", _OF_TOKENS], EMBEDS, {}),
    )
    graph.node.extend(
        make.make_node(
            kind, list(map(own, inputs)), [own(output)], name=f"features.{output}", **attributes
        )
        for kind, inputs, output, attributes in nodes
    )


def _refer(tensor: TensorProto, location: str, offset: int) -> None:
    """Replace the data of a tensor by their place in a file."""
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    place = {"location": location, "offset": str(offset), "length": str(length)}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
