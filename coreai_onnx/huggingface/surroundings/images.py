"""The image processor of a folder as a graph of ONNX operators, checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import transformers

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.surroundings.graphs import graph_of
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.extensions import extensions_path
from coreai_onnx.runtime.sessions.session import Session

IMAGE = "image"
"""The input: pictures of one size, uint8 ``[batch, height, width, 3]``, red first."""
FILE = "image_file"
"""The input of a decoder: the bytes of a JPEG or PNG file, uint8 ``[bytes]``."""
# Numbers of Pillow's filters. Resize has the others, BOX, HAMMING and LANCZOS, in no mode.
_FILTERS = {
    0: 'mode="nearest", nearest_mode="round_prefer_ceil"',
    2: 'mode="linear", antialias=1',
    3: 'mode="cubic", antialias=1, cubic_coeff_a=-0.5',
}
_SAMPLES = ((37, 61), (90, 48), (250, 330))
"""Height and width of the pictures that are compared."""
_TOLERANCE = 1e-5
"""Largest difference of pixel values, whose range is about 4: rounding of float32."""
_DECODER = """
  pixels = ai.onnx.contrib.DecodeImage <color_space="RGB"> (image_file)
  image = Unsqueeze (pixels, zero)
"""
# Doubles, as in Python: other numbers would round to another size now and then.
_EDGES = """
  hw = Cast <to=11> (hw_int)
  shortest = ReduceMin <keepdims=0> (hw)
  longest = ReduceMax <keepdims=0> (hw)
  LIMIT
  scaled = Mul (edge_exact, hw)
  divided = Div (scaled, shortest)
  floor = Floor (divided)
  is_short = Equal (hw, shortest)
  new_hw_free = Where (is_short, edge_int, floor)
  as_it_is = Equal (shortest, edge_int)
  new_hw_double = Where (as_it_is, hw, new_hw_free)
  new_hw = Cast <to=7> (new_hw_double)
"""
_LIMIT = """
  ratio = Div (longest, shortest)
  reach = Mul (ratio, edge)
  too_long = Greater (reach, most)
  at_most = Mul (most, shortest)
  raw = Div (at_most, longest)
  raw_round = Round (raw)
  edge_exact = Where (too_long, raw, edge)
  edge_int = Where (too_long, raw_round, edge)
"""
_FREE = "  edge_exact = Identity (edge)\n  edge_int = Identity (edge)"


def image_processor_of(folder: Path | None) -> Any:
    """Load the image processor of a folder.

    Raises:
        ModelSourceError: If there is no folder or no processor, or it needs a package.
    """
    if folder is None:
        raise ModelSourceError('include=["image_processor"] needs a folder: a model has none')
    with failures_as(ModelSourceError, f"cannot load the image processor of {folder}"):
        load = transformers.AutoImageProcessor.from_pretrained
        return load(folder, local_files_only=True, backend="pil")


def image_front(
    processor: Any, opset: int, *, decodes: bool = False, sizes: bool = False, check: bool = True
) -> ir.Model:
    """Return the model of an image processor: ``image`` to ``pixel_values``.

    Args:
        processor: An image processor of transformers.
        opset: The opset of the file.
        decodes: Whether the input is the content of a JPEG or PNG file, ``image_file``.
        sizes: Whether the sizes of the pictures are returned too, as ``target_sizes``.
        check: Whether to compare it with the processor on sample pictures.

    Raises:
        ModelSourceError: If the processor does what the graph has no form for, or gives other
            values.
        SessionError: If onnxruntime-extensions is needed and not installed.
    """
    if check:
        _check(processor, _front(processor, opset, decodes=False, sizes=False))
    if decodes:
        extensions_path()
    return _front(processor, opset, decodes=decodes, sizes=sizes)


def _front(processor: Any, opset: int, *, decodes: bool, sizes: bool) -> ir.Model:
    steps, constants, shape = _steps(processor)
    source = f"uint8[bytes] {FILE}" if decodes else f"uint8[batch,height,width,3] {IMAGE}"
    result = f"float[{1 if decodes else 'batch'},3,{shape[0]},{shape[1]}] pixel_values"
    if sizes:
        result += ", int64[batch,2] target_sizes"
        steps += """
  batch = Slice (image_shape, zero, one)
  sizes_shape = Concat <axis=0> (batch, two)
  target_sizes = Expand (hw_int, sizes_shape)"""
    text = f"""image_processor ({source}) => ({result}) {{
  {_DECODER if decodes else ""}
  image_shape = Shape (image)
  hw_int = Slice (image_shape, one, three)
  planes = Transpose <perm=[0,3,1,2]> (image)
  {steps}
}}"""
    numbers = {"zero": [0], "one": [1], "two": [2], "three": [3]}
    return graph_of(text, opset, {**constants, **numbers})


def _steps(processor: Any) -> tuple[str, dict[str, Any], tuple[int | str, int | str]]:
    """Return the nodes from ``planes`` on, their constants, and the height and width."""
    text, constants, shape = "", {}, ("height", "width")
    value = "planes"
    if processor.do_resize:
        text, constants, shape = _resize(processor)
        value = "resized"
    if getattr(processor, "do_center_crop", None):
        crop = (processor.crop_size["height"], processor.crop_size["width"])
        smallest = constants["new_hw"] if "new_hw" in constants else constants["smallest"]
        if min(np.subtract(smallest, crop)) < 0:
            raise ModelSourceError(
                f"the image processor crops to {crop[0]} × {crop[1]}, which can be larger than the "
                "resized picture; padding is not supported"
            )
        text += """
  crop_rest = Sub (new_hw, crop)
  crop_start = Div (crop_rest, two)
  crop_end = Add (crop_start, crop)
  cropped = Slice (resized, crop_start, crop_end, crop_axes)"""
        constants |= {"crop": np.array(crop), "crop_axes": [2, 3]}
        value, shape = "cropped", crop
    if getattr(processor, "do_pad", None) and getattr(processor, "pad_size", None):
        raise ModelSourceError("an image processor that pads to a size is not supported")
    constants.pop("smallest", None)
    text += f"\n  as_float = Cast <to=1> ({value})"
    value = "as_float"
    if processor.do_rescale:
        text += "\n  rescaled = Mul (as_float, factor)"
        constants["factor"] = np.float32(processor.rescale_factor)
        value = "rescaled"
    if processor.do_normalize:
        text += f"\n  centered = Sub ({value}, mean)\n  normalized = Div (centered, std)"
        for name in ("mean", "std"):
            numbers = np.array(getattr(processor, f"image_{name}"), np.float32)
            constants[name] = numbers.reshape(-1, 1, 1)
        value = "normalized"
    return f"{text}\n  pixel_values = Identity ({value})", constants, shape


def _resize(processor: Any) -> tuple[str, dict[str, Any], tuple[int | str, int | str]]:
    number = int(processor.resample if processor.resample is not None else 2)
    if number not in _FILTERS:
        raise ModelSourceError(
            f"the image processor resizes by {type(processor.resample)(number).name}, which is no "
            "mode of the operator Resize"
        )
    size: Mapping[str, int] = {k: v for k, v in dict(processor.size).items() if v}
    constants: dict[str, Any] = {}
    shape: tuple[int | str, int | str] = ("new_height", "new_width")
    if set(size) == {"height", "width"}:
        text, shape = "", (size["height"], size["width"])
        constants["new_hw"] = np.array(shape)
    elif set(size) <= {"shortest_edge", "longest_edge"} and "shortest_edge" in size:
        text = _EDGES.replace("LIMIT", _LIMIT if "longest_edge" in size else _FREE)
        constants = {k: np.float64(v) for k, v in zip(("edge", "most"), size.values(), strict=False)}
        constants["smallest"] = [0, 0] if "longest_edge" in size else [size["shortest_edge"]] * 2
    else:
        raise ModelSourceError(
            f"an image processor with a size of {', '.join(size)} is not supported"
        )
    text += f"""
  channels = Slice (image_shape, three, four)
  new_batch = Slice (image_shape, zero, one)
  new_shape = Concat <axis=0> (new_batch, channels, new_hw)
  resized = Resize <{_FILTERS[number]}> (planes, , , new_shape)"""
    return text, {**constants, "four": [4]}, shape


def _check(processor: Any, front: ir.Model) -> None:
    session = Session(OnnxProgram({"main": front})).ort
    random = np.random.default_rng(0)
    for height, width in _SAMPLES:
        # Smooth and noisy at once: noise alone averages to gray.
        ramp = np.add.outer(np.linspace(0, 160, height), np.linspace(0, 80, width))
        image = (ramp[..., None] + random.integers(0, 16, (height, width, 3))).astype(np.uint8)
        expected = np.stack(processor(image, return_tensors="np")["pixel_values"])
        actual = session.run(["pixel_values"], {IMAGE: image[None]})[0]
        if actual.shape != expected.shape or np.abs(actual - expected).max() > _TOLERANCE:
            difference = (
                f"by {np.abs(actual - expected).max():.3g}"
                if actual.shape == expected.shape
                else f"in shape, {actual.shape} and {expected.shape}"
            )
            raise ModelSourceError(
                f"the image processor in the file and {type(processor).__name__} differ "
                f"{difference} for a picture of {height} × {width}: such a processor cannot be "
                "included"
            )
