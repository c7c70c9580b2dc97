"""Boxes of detectors, beside transformers and a loop over boxes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.surroundings.detection import boxes_behind, non_maximum_suppression
from tests.support.tolerances import assert_close

THRESHOLD, OVERLAP, MOST = 0.3, 0.5, 7


def run(model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    content = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(content).run(None, inputs)


def test_boxes_of_detr() -> None:
    torch.manual_seed(0)
    logits, boxes = torch.randn(3, 20, 6) * 2, torch.rand(3, 20, 4)
    logits[1, :, -1] = 20  # nothing in the second picture
    sizes = torch.tensor([[480, 640], [100, 200], [333, 77]])
    threshold = np.array([THRESHOLD], np.float32)
    model = boxes_behind(SimpleNamespace(model_type="detr"), 18)
    scores, labels, found, batch = run(
        model,
        logits=logits.numpy(), pred_boxes=boxes.numpy(), target_sizes=sizes.numpy(),
        threshold=threshold,
    )  # fmt: skip
    outputs = SimpleNamespace(logits=logits, pred_boxes=boxes)
    expected = DetrImageProcessorPil().post_process_object_detection(
        outputs, THRESHOLD, target_sizes=sizes
    )
    assert len(scores) == sum(len(one["scores"]) for one in expected) > 10
    for index, one in enumerate(expected):
        mine = batch == index
        assert_close(scores[mine], one["scores"])
        assert_close(labels[mine], one["labels"])
        assert_close(found[mine], one["boxes"])
    with pytest.raises(ModelSourceError, match=r'"nms" is for detr, .*, not for rt_detr'):
        boxes_behind(SimpleNamespace(model_type="rt_detr"), 18)


def suppressed(output: np.ndarray) -> list[tuple[float, int, list[float]]]:
    """Return score, class and corners of the boxes of a picture, by score."""
    centers, extents, classes = output[:2].T, output[2:4].T, output[4:]
    corners = np.concatenate([centers - extents / 2, centers + extents / 2], axis=1)
    kept: list[int] = []
    for one in np.argsort(-classes.max(axis=0), kind="stable"):
        if classes[:, one].max() <= THRESHOLD:
            continue
        same = [k for k in kept if classes[:, k].argmax() == classes[:, one].argmax()]
        if all(overlap(corners[one], corners[k]) <= OVERLAP for k in same):
            kept.append(one)
    return [(classes[:, k].max(), classes[:, k].argmax(), corners[k].tolist()) for k in kept[:MOST]]


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    both = np.prod(np.maximum(high - low, 0))
    areas = [np.prod(box[2:] - box[:2]) for box in (one, other)]
    return float(both / (sum(areas) - both))


def test_non_maximum_suppression_of_yolo() -> None:
    draw = np.random.default_rng(0)
    output = draw.random((3, 4 + 5, 60), np.float32)
    output[:, :2] *= 40
    output[:, 2:4] = output[:, 2:4] * 20 + 5
    output[1, 4:] = 0.1  # nothing in the second picture
    model = non_maximum_suppression("output0", 18, threshold=THRESHOLD, iou=OVERLAP, most=MOST)
    scores, labels, boxes, batch = run(model, output0=output)
    assert not (batch == 1).any()
    for index in (0, 2):
        expected = suppressed(output[index])
        mine = batch == index
        assert mine.sum() == len(expected) == MOST
        assert_close(scores[mine], np.array([one[0] for one in expected], np.float32))
        assert_close(labels[mine], np.array([one[1] for one in expected]))
        assert_close(boxes[mine], np.array([one[2] for one in expected], np.float32))
