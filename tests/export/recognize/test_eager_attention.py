"""Attention spelled out: sinks, soft caps, grouped heads, masks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama

from coreai_onnx.export.recognize.functions import NAME, attention_block, function_block
from tests.support.tolerances import assert_close


def layer(**given: Any) -> Any:
    module = torch.nn.Module().eval()
    for name, value in {"num_key_value_groups": 2, "head_dim": 8, **given}.items():
        setattr(module, name, value)
    return module


CASES = [
    (llama, {}, {"scaling": 0.3}),
    (gemma2, {}, {"softcap": 5.0}),
    (gemma2, {}, {"softcap": None, "scaling": 0.5}),
    (gpt_oss, {"sinks": torch.nn.Parameter(torch.randn(4))}, {"scaling": 0.3}),
]


@pytest.mark.parametrize(("home", "given", "options"), CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_attention(home: Any, given: Any, options: Any, masked: bool) -> None:
    function, module = home.eager_attention_forward, layer(**given)
    assert function_block("f", NAME, function) is not None
    block = attention_block("f", function)
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    value = torch.randn(2, 2, 7, 8)
    mask = torch.zeros(2, 1, 5, 7)
    mask[..., 4:] = torch.finfo(torch.float32).min
    with torch.no_grad():
        arguments = (module, query, key, value, mask if masked else None)
        expected = function(*arguments, **options)
        actual = block.replacement(*arguments, **options)
    assert actual[1] is None
    assert_close(actual[0], expected[0])
    block.check(expected, arguments, options)
    assert not block.reason


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"output_attentions": True}),
        ({"config": SimpleNamespace(output_attentions=True)}, {}),
        ({}, {"position_bias": torch.zeros(1)}),
    ],
)
def test_a_model_that_wants_the_weights_keeps_its_own(given: Any, options: Any) -> None:
    block = attention_block("f", llama.eager_attention_forward)
    x = torch.randn(2, 4, 5, 8)
    with pytest.raises(ValueError, match="asked for its weights"):
        block.replacement(layer(**given), x, x, x, None, 0.3, **options)


def test_dropout_in_training_is_refused() -> None:
    block = attention_block("f", llama.eager_attention_forward)
    x = torch.randn(2, 4, 5, 8)
    with pytest.raises(ValueError, match="drops out"):
        block.replacement(layer().train(), x, x, x, None, 0.3, 0.1)


def test_which_functions_are_looked_at() -> None:
    assert function_block("f", "attention", llama.eager_attention_forward) is None
    assert function_block("f", NAME, llama.rotate_half) is None
    assert function_block("f", NAME, None) is None
