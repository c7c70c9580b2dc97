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
from coreai_onnx.runtime.libraries.library import extensions_path
from coreai_onnx.runtime.sessions.session import Session

IMAGE = "image"
"""The input: pictures of one size, uint8 ``[batch, height, width, 3]``, red first."""
FILE = "image_file"
"""The input of a decoder: the bytes of a JPEG or PNG file, uint8 ``[bytes]``."""
# Pillow's filters as functions of a distance: their number, reach and nodes. Bicubic has a = -0.5.
_FILTERS = {
    2: (1.0, "  rest_A = Sub (d_one, far_A)\n  filter_A = Max (rest_A, d_zero)"),
    3: (
        2.0,
        """  near_1_A = Mul (far_A, cubic_1)
  near_2_A = Sub (near_1_A, cubic_2)
  square_A = Mul (far_A, far_A)
  near_3_A = Mul (near_2_A, square_A)
  near_A = Add (near_3_A, d_one)
  out_1_A = Sub (far_A, cubic_5)
  out_2_A = Mul (out_1_A, far_A)
  out_3_A = Add (out_2_A, cubic_8)
  out_4_A = Mul (out_3_A, far_A)
  out_5_A = Sub (out_4_A, cubic_4)
  out_A = Mul (out_5_A, cubic_a)
  is_near_A = Less (far_A, d_one)
  is_in_A = Less (far_A, cubic_reach)
  out_or_none_A = Where (is_in_A, out_A, d_zero)
  filter_A = Where (is_near_A, near_A, out_or_none_A)""",
    ),
}
# The weights of an axis as Pillow computes them for 8-bit pictures, ``[new size, size]``: whole
# numbers of 22 binary places. Resize of onnxruntime chooses other windows, and differs by up to 20
# of 255 levels (noise of 64 × 64 pixels and others, bicubic, 1.31).
_WEIGHTS = """
  old_A = Cast <to=11> (size_A)
  new_A = Cast <to=11> (new_size_A)
  scale_A = Div (old_A, new_A)
  stretch_A = Max (scale_A, d_one)
  reach_A = Mul (stretch_A, support)
  shrink_A = Div (d_one, stretch_A)
  targets_A = Range (d_zero, new_A, d_one)
  middle_A = Add (targets_A, d_half)
  center_flat_A = Mul (middle_A, scale_A)
  center_A = Unsqueeze (center_flat_A, one)
  low_1_A = Sub (center_A, reach_A)
  low_2_A = Add (low_1_A, d_half)
  low_A = Floor (low_2_A)
  high_1_A = Add (center_A, reach_A)
  high_2_A = Add (high_1_A, d_half)
  high_A = Floor (high_2_A)
  pixels_A = Range (d_zero, old_A, d_one)
  not_before_A = GreaterOrEqual (pixels_A, low_A)
  not_after_A = Less (pixels_A, high_A)
  is_inside_A = And (not_before_A, not_after_A)
  offset_A = Sub (pixels_A, center_A)
  offset_half_A = Add (offset_A, d_half)
  distance_A = Mul (offset_half_A, shrink_A)
  far_A = Abs (distance_A)
  FILTER
  weights_1_A = Where (is_inside_A, filter_A, d_zero)
  total_A = ReduceSum (weights_1_A, one)
  weights_2_A = Div (weights_1_A, total_A)
  weights_3_A = Mul (weights_2_A, places)
  sign_A = Sign (weights_3_A)
  size_of_A = Abs (weights_3_A)
  half_up_A = Add (size_of_A, d_half)
  floor_A = Floor (half_up_A)
  weights_A = Mul (floor_A, sign_A)
"""
_ROUND = """
  shifted_A = Div (sum_A, places)
  half_A = Add (shifted_A, d_half)
  whole_A = Floor (half_A)
  levels_A = Clip (whole_A, d_zero, most_level)
"""
# Rows first, as Pillow.
_RESIZE = """
  size_w = Gather (hw_int, one_scalar)
  new_size_w = Gather (new_hw, one_scalar)
  size_h = Gather (hw_int, zero_scalar)
  new_size_h = Gather (new_hw, zero_scalar)
  WEIGHTS_w
  WEIGHTS_h
  doubles = Cast <to=11> (planes)
  columns = Transpose <perm=[1,0]> (weights_w)
  sum_w = MatMul (doubles, columns)
  ROUND_w
  sum_h = MatMul (weights_h, levels_w)
  ROUND_h
  resized = Identity (levels_h)
"""
_NAMES = {0: "NEAREST", 1: "LANCZOS", 4: "BOX", 5: "HAMMING"}
_SAMPLES = ((37, 61), (48, 90), (250, 330))
"""Height and width of the pictures that are compared. They are wide: Pillow 13 resizes the columns
of some tall pictures first, and its rounding between the passes then gives other levels, by 1 of
255 for bilinear and up to 4 for bicubic."""
_TOLERANCE = 1e-5
"""Largest difference of pixel values, whose range is about 4: rounding of float32."""
_DECODER = """
  pixels = com.microsoft.extensions.DecodeImage <color_space="rgb"> (image_file)
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
    text = f"""image_processor ({source}) => ({result})
{"<uint8[height,width,3] pixels>" if decodes else ""} {{
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
    text, constants = "", dict[str, Any]()
    shape: tuple[int | str, int | str] = ("height", "width")
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
            f"an image processor that resizes by {_NAMES.get(number, number)} is not supported, "
            "BILINEAR and BICUBIC are"
        )
    size: Mapping[str, int] = {k: v for k, v in dict(processor.size).items() if v}
    constants: dict[str, Any] = {}
    shape: tuple[int | str, int | str] = ("new_height", "new_width")
    if set(size) == {"height", "width"}:
        text, shape = "", (size["height"], size["width"])
        constants["new_hw"] = np.array(shape)
    elif set(size) <= {"shortest_edge", "longest_edge"} and "shortest_edge" in size:
        text = _EDGES.replace("LIMIT", _LIMIT if "longest_edge" in size else _FREE)
        constants["edge"] = np.float64(size["shortest_edge"])
        if "longest_edge" in size:
            constants["most"] = np.float64(size["longest_edge"])
        constants["smallest"] = [0, 0] if "longest_edge" in size else [size["shortest_edge"]] * 2
    else:
        raise ModelSourceError(
            f"an image processor with a size of {', '.join(size)} is not supported"
        )
    reach, nodes = _FILTERS[number]
    text += _RESIZE
    for axis in "wh":
        weights = _WEIGHTS.replace("FILTER", nodes.strip()).replace("_A", f"_{axis}")
        text = text.replace(f"WEIGHTS_{axis}", weights)
        text = text.replace(f"ROUND_{axis}", _ROUND.replace("_A", f"_{axis}"))
    numbers = {
        "d_zero": 0, "d_one": 1, "d_half": 0.5, "support": reach, "places": 1 << 22,
        "most_level": 255, "cubic_1": 1.5, "cubic_2": 2.5, "cubic_5": 5, "cubic_8": 8, "cubic_4": 4,
        "cubic_a": -0.5, "cubic_reach": 2,
    }  # fmt: skip
    doubles = {name: np.float64(value) for name, value in numbers.items() if name in text}
    scalars = {"zero_scalar": np.int64(0), "one_scalar": np.int64(1)}
    return text, {**constants, **doubles, **scalars}, shape


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
