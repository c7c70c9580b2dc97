"""Prompts of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.prompts import read_prompt
from tests.support.huggingface_folders import tokenizer


@pytest.mark.parametrize(
    "prompt", [[5, 9], np.array([5, 9]), torch.tensor([5, 9]), torch.tensor([5, 9]).int(), (5, 9)]
)
def test_ids_of_one_prompt(prompt: Any) -> None:
    read = read_prompt(prompt, None)
    assert (read.ids.tolist(), read.mask.tolist()) == ([[5, 9]], [[1, 1]])
    assert (read.is_single, read.is_text) == (True, False)
    assert not read_prompt([prompt], None).is_single


def test_shorter_prompts_are_padded_on_the_left() -> None:
    read = read_prompt([[5, 9, 7], [4]], None, pad_id=3)
    assert read.ids.tolist() == [[5, 9, 7], [3, 3, 4]]
    assert read.mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_ids_that_are_padded_already() -> None:
    read = read_prompt(torch.tensor([[0, 5], [6, 7]]), None, mask=[[0, 1], [1, 1]])
    assert read.mask.tolist() == [[0, 1], [1, 1]]
    with pytest.raises(GenerationError, match=r"mask is \[1, 3\], and the token ids are \[1, 2\]"):
        read_prompt([5, 6], None, mask=[1, 1, 1])


def test_text() -> None:
    read = read_prompt(["Hello", "Hi"], tokenizer(), pad_id=0)
    assert read.is_text
    assert read.ids.tolist()[1][:3] == [0, 0, 0]
    assert read_prompt("Hello", tokenizer()).is_single
    with pytest.raises(GenerationError, match="there is no tokenizer: give token ids"):
        read_prompt("Hello", None)


@pytest.mark.parametrize("prompt", ["", [], [[]], [[1], []], torch.zeros(0), [1.5], {"a": 1}, 3])
def test_prompts_that_are_refused(prompt: Any) -> None:
    with pytest.raises(GenerationError, match="prompt is"):
        read_prompt(prompt, tokenizer())
