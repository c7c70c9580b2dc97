"""The whole file: it is formatted, stable, and has a line for each kernel."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.model.python.model_text import ModelText
from coreai_onnx.model.standard_composites import KERNEL_FILES
from tests.model.python.modules import layered
from tests.rules.tree import REPO
from tests.support.small_models import layers_model, phase_model


def lines(model: ir.Model) -> list[str]:
    return ModelText(model).lines("title")


def transformer(activation=torch.relu, layers: int = 2) -> ir.Model:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, activation=activation, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    for parameter in module.parameters():  # equal weights would be shared
        torch.nn.init.normal_(parameter)
    return coreai_onnx.convert(module, (torch.randn(2, 3, 16),)).model


def test_ruff_changes_nothing(tmp_path: Path) -> None:
    for number, model in enumerate(
        [layers_model(), phase_model(), layered(3, odd=1), transformer()]
    ):
        (tmp_path / f"m{number}.py").write_text("\n".join(lines(model)) + "\n")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_same_model_has_the_same_text() -> None:
    assert lines(transformer()) == lines(transformer())


def test_a_changed_layer_is_one_changed_hunk() -> None:
    before, after = lines(transformer(torch.relu)), lines(transformer(torch.tanh))
    start = next(i for i, line in enumerate(before) if line.startswith("def "))
    matcher = difflib.SequenceMatcher(None, before[start:], after, autojunk=False)
    changed = [op for op in matcher.get_opcodes() if op[0] == "replace"]
    assert len(changed) <= 1


def test_every_composite_with_a_kernel_has_a_file() -> None:
    declared = {name for name, composite in COMPOSITES.items() if composite.kernel}
    assert KERNEL_FILES.keys() == declared
    assert all((REPO / path).is_file() for path in KERNEL_FILES.values())


def test_a_kernel_comment_is_on_its_function() -> None:
    text = "\n".join(lines(transformer()))
    place = "custom_ops/ops/attention/scaled_dot_product_attention.cc"
    fixed = '"causal_alignment": "lower_right", "is_causal": 0, "softcap": 0.0, "window_size": 0'
    metadata = f'metadata={{"coreai.fixed_attributes": {{{fixed}}}}}'
    function = text.partition(f"\n# kernel: {place}\n@model.function(")[2].partition("\ndef ")[0]
    written, expected = (
        "".join(x.replace(",", "").split()) for x in (function, f'"ai.coreai" {metadata})')
    )
    assert written == expected


@pytest.mark.parametrize("layers", [4, 12])
def test_the_number_of_layers_does_not_matter(layers: int) -> None:
    assert len(lines(transformer(layers=layers))) == len(lines(transformer(layers=3)))
