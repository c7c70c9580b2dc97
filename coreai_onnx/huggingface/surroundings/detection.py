"""What follows a detector: boxes in pixels, and non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.surroundings.graphs import graph_of

_SOFTMAX = ("detr", "table-transformer", "yolos")
"""Model types whose last class is "no object"; others take the best of all queries and classes."""
_RESULTS = (
    "(float[found] scores, int64[found] labels, float[found,4] boxes, int64[found] batch_index)"
)
# In the order of post_process_object_detection: by image, then by query.
_BOXES = f"""
boxes_in_pixels (
  float[batch,queries,classes] logits, float[batch,queries,4] pred_boxes,
  int64[batch,2] target_sizes, float[1] threshold
) => {_RESULTS} {{
  probabilities = Softmax <axis=-1> (logits)
  objects = Slice (probabilities, zero, last, last)
  best = ReduceMax <keepdims=0> (objects, last)
  which = ArgMax <axis=-1, keepdims=0> (objects)
  center, extent = Split <axis=-1, num_outputs=2> (pred_boxes)
  half = Mul (extent, one_half)
  low = Sub (center, half)
  high = Add (center, half)
  relative = Concat <axis=-1> (low, high)
  sizes = Cast <to=1> (target_sizes)
  scale = Gather <axis=1> (sizes, width_height)
  scale_each = Unsqueeze (scale, one)
  pixels = Mul (relative, scale_each)
  is_found = Greater (best, threshold)
  found = NonZero (is_found)
  found_rows = Transpose <perm=[1,0]> (found)
  scores = GatherND (best, found_rows)
  labels = GatherND (which, found_rows)
  boxes = GatherND (pixels, found_rows)
  first_row = Gather <axis=0> (found, zero_scalar)
  batch_index = Identity (first_row)
}}
"""
# A box takes part with its best class alone.
_YOLO = f"""
non_maximum_suppression (float[batch,rows,anchors] OUTPUT) => {_RESULTS} {{
  centered = Slice (OUTPUT, zero, four, one)
  class_scores = Slice (OUTPUT, four, many, one)
  top = ReduceMax <keepdims=1> (class_scores, one)
  which = ArgMax <axis=1, keepdims=1> (class_scores)
  class_count = Shape <start=1, end=2> (class_scores)
  class_scalar = Squeeze (class_count)
  class_range = Range (zero_scalar, class_scalar, one_scalar)
  class_column = Unsqueeze (class_range, one)
  is_best = Equal (which, class_column)
  best_scores = Where (is_best, class_scores, nothing)
  anchors = Transpose <perm=[0,2,1]> (centered)
  selected = NonMaxSuppression <center_point_box=1>
    (anchors, best_scores, most, iou, threshold)
  triples_score = GatherND (best_scores, selected)
  selected_batch = Slice (selected, zero, one, one)
  selected_class = Slice (selected, one, two, one)
  selected_box = Slice (selected, two, three, one)
  batches = Squeeze (selected_batch, one)
  batch_float = Cast <to=1> (batches)
  penalty = Mul (batch_float, two_float)
  rank_by = Sub (triples_score, penalty)
  count = Shape (batches)
  ranked, order = TopK <axis=0> (rank_by, count)
  scores_all = Gather (triples_score, order)
  labels_column = Gather (selected_class, order)
  labels_all = Squeeze (labels_column, one)
  batch_all = Gather (batches, order)
  box_index = Concat <axis=1> (selected_batch, selected_box)
  box_index_ranked = Gather (box_index, order)
  boxes_found = GatherND (anchors, box_index_ranked)
  centers, extents = Split <axis=-1, num_outputs=2> (boxes_found)
  half = Mul (extents, one_half)
  low = Sub (centers, half)
  high = Add (centers, half)
  boxes_all = Concat <axis=-1> (low, high)
  batch_column = Unsqueeze (batch_all, one)
  batch_row = Unsqueeze (batch_all, zero)
  same_batch = Equal (batch_column, batch_row)
  same_int = Cast <to=7> (same_batch)
  earlier = Trilu <upper=0> (same_int)
  place = ReduceSum <keepdims=0> (earlier, one)
  is_kept = LessOrEqual (place, most)
  scores = Compress <axis=0> (scores_all, is_kept)
  labels = Compress <axis=0> (labels_all, is_kept)
  boxes = Compress <axis=0> (boxes_all, is_kept)
  batch_index = Compress <axis=0> (batch_all, is_kept)
}}
"""


def boxes_behind(config: Any, opset: int) -> ir.Model:
    """Return the post-processing of DETR, Table Transformer and YOLOS.

    Its further inputs are ``target_sizes``, height and width of each picture, and ``threshold``.
    The results are those of ``post_process_object_detection``, one image after the other.

    Args:
        config: The configuration of the model.
        opset: The opset of the file.

    Raises:
        ModelSourceError: If the model is another detector.
    """
    if config.model_type not in _SOFTMAX:
        raise ModelSourceError(
            f'include "nms" is for {", ".join(_SOFTMAX)}, not for {config.model_type}'
        )
    constants = {
        "zero": [0], "one": [1], "last": [-1], "zero_scalar": np.int64(0),
        "one_half": np.float32(0.5), "width_height": [1, 0, 1, 0],
    }  # fmt: skip
    return graph_of(_BOXES, opset, constants)


def non_maximum_suppression(
    output: str,
    opset: int,
    *,
    threshold: float = 0.25,
    iou: float = 0.7,
    most: int = 300,
) -> ir.Model:
    """Return the post-processing of YOLO: of ``[batch, 4 + classes, anchors]``.

    The first four rows are center, width and height in pixels, the others scores between 0 and 1,
    as in the files of ultralytics. The defaults are ultralytics' as well.

    Args:
        output: The name of the output of the model.
        opset: The opset of the file, 18 or later.
        threshold: The smallest score.
        iou: The largest overlap, intersection over union, of two boxes of a class.
        most: The largest number of boxes of an image.
    """
    constants = {
        "zero": [0], "one": [1], "two": [2], "three": [3], "four": [4],
        "many": [np.iinfo(np.int64).max], "zero_scalar": np.int64(0), "one_scalar": np.int64(1),
        "one_half": np.float32(0.5), "nothing": np.float32(0), "two_float": np.float32(2),
        "most": [most], "iou": np.array([iou], np.float32),
        "threshold": np.array([threshold], np.float32),
    }  # fmt: skip
    return graph_of(_YOLO.replace("OUTPUT", output), opset, constants)
