"""Exported folders in transformers' own pipelines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from coreai_onnx.errors import CoreaiError, ModelSourceError
from coreai_onnx.huggingface import export_model, open_folder, pipeline
from tests.models.transformers_pipelines import ALL_PIPELINES, PIPELINES, Pipeline, picture
from tests.support.tolerances import assert_close

IN_SUITE = (
    ("text-classification", "BertForSequenceClassification"),
    ("image-classification", "ViTForImageClassification"),
    ("automatic-speech-recognition", "Wav2Vec2ForCTC"),
)
CASES = [
    case
    for case in PIPELINES
    if ALL_PIPELINES in os.environ or (case.task, case.architecture) in IN_SUITE
]


def assert_same(result: Any, wanted: Any) -> None:
    """Compare results of pipelines: nested, with numbers, texts, tensors and pictures."""
    assert type(result) is type(wanted)
    if isinstance(wanted, dict):
        assert result.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_same(result[name], value)
    elif isinstance(wanted, list | tuple):
        assert len(result) == len(wanted)
        for one, other in zip(result, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float):
        assert_close(np.float32(result), np.float32(wanted))  # of tensors in float32
    elif isinstance(wanted, torch.Tensor | np.ndarray):
        assert_close(np.asarray(result), np.asarray(wanted))
    elif hasattr(wanted, "tobytes"):
        # A level of gray may be rounded the other way.
        levels = np.asarray(result).astype(int) - np.asarray(wanted).astype(int)
        assert np.abs(levels).max() <= 1
    else:
        assert result == wanted


def compare(case: Pipeline, folder: Path) -> None:
    """Compare a pipeline of an exported folder with the one of transformers."""
    case.write(folder / "source")
    export_model(folder / "source", folder / "exported", include=case.include)
    reference = transformers.pipeline(case.task, str(folder / "source"))
    result = case.result(pipeline(folder / "exported", case.task))
    assert_same(result, case.result(reference))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{one.task}-{one.architecture}" for one in CASES])
def test_pipelines(case: Pipeline, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an image classifier, with its processor."""
    folder = tmp_path_factory.mktemp("images")
    case = next(case for case in PIPELINES if case.task == "image-classification")
    case.write(folder / "source")
    return export_model(folder / "source", folder / "exported").path


def test_an_opened_model(images: Path) -> None:
    """It is a model of the class that was exported, and tells its task."""
    opened = open_folder(images)
    assert isinstance(opened, transformers.ViTForImageClassification)
    assert (str(opened.device), opened.dtype) == ("cpu", torch.float32)
    assert opened(torch.zeros(2, 3, 16, 16)).logits.shape == (2, 2)
    assert pipeline(images)(picture())[0]["label"] in ("LABEL_0", "LABEL_1")


def test_wrong_inputs(images: Path) -> None:
    opened = open_folder(images)
    with pytest.raises(CoreaiError, match="pixel_values"):
        opened(pixel_values=torch.zeros(1, 3, 32, 32))
    with pytest.raises(ModelSourceError, match="has no input bool_masked_pos"):
        opened(pixel_values=torch.zeros(1, 3, 16, 16), bool_masked_pos=torch.ones(1, 4))


def test_folders_that_do_not_open(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="there is no"):
        open_folder(tmp_path / "missing")
    (tmp_path / "config.json").write_text((images / "config.json").read_text())
    with pytest.raises(ModelSourceError, match=r"model.onnx.*export the model first"):
        open_folder(tmp_path)
    (tmp_path / "model.onnx").write_bytes((images / "model.onnx").read_bytes())
    with pytest.raises(ModelSourceError, match=r"the image_processor for the task .* is missing"):
        pipeline(tmp_path)
    with pytest.raises(ModelSourceError, match="no pipeline for the task 'chess'"):
        pipeline(images, "chess")
