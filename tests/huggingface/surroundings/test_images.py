"""Image processors in a file give the pixel values of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.surroundings.images import image_front, image_processor_of
from coreai_onnx.runtime.libraries.library import extensions_path
from tests.support.tolerances import assert_close

BICUBIC, LANCZOS = 3, 1


def session_of(front: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(extensions_path()))
    content = ir.to_proto(front).SerializeToString()
    return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    "processor",
    [
        ViTImageProcessorPil(),
        ViTImageProcessorPil(size={"height": 32, "width": 48}, resample=BICUBIC),
        CLIPImageProcessorPil(size={"shortest_edge": 60}, crop_size={"height": 50, "width": 60}),
        DetrImageProcessorPil(size={"shortest_edge": 60, "longest_edge": 90}),
        ViTImageProcessorPil(do_resize=False, do_normalize=False),
    ],
    ids=["vit", "bicubic", "clip", "detr", "plain"],
)
def test_processors(processor: Any) -> None:
    session = session_of(image_front(processor, 18))
    for height, width in ((48, 64), (100, 333), (64, 64), (31, 97)):
        image = picture(height, width)
        expected = np.stack(processor(image, return_tensors="np")["pixel_values"])
        (actual,) = session.run(None, {"image": image[None]})
        assert_close(actual, expected)


def test_image_files(tmp_path: Path) -> None:
    processor = ViTImageProcessorPil(size={"height": 20, "width": 30})
    image = picture(40, 60)
    Image.fromarray(image).save(tmp_path / "image.png")
    content = np.frombuffer((tmp_path / "image.png").read_bytes(), np.uint8)
    session = session_of(image_front(processor, 18, decodes=True, sizes=True))
    pixels, sizes = session.run(None, {"image_file": content})
    assert_close(pixels, np.stack(processor(image, return_tensors="np")["pixel_values"]))
    assert sizes.tolist() == [[40, 60]]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="needs a folder"):
        image_processor_of(None)
    with pytest.raises(ModelSourceError, match="cannot load the image processor of"):
        image_processor_of(tmp_path)
    cases: dict[str, Any] = {
        "resizes by LANCZOS is not supported": ViTImageProcessorPil(resample=LANCZOS),
        "crops to 50 × 60, which can be larger": CLIPImageProcessorPil(
            size={"shortest_edge": 40}, crop_size={"height": 50, "width": 60}
        ),
        "a size of max_height, max_width": DetrImageProcessorPil(
            size={"max_height": 40, "max_width": 40}
        ),
        "ConvNextImageProcessorPil differ in shape": ConvNextImageProcessorPil(),
    }
    for message, processor in cases.items():
        with pytest.raises(ModelSourceError, match=message):
            image_front(processor, 18)
