"""Optional inputs for adapters beside the linear layers of a decoder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import InputError, ModelSourceError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.surroundings.adapter_inputs import add_adapter_inputs
from tests.support.huggingface_folders import BERT, LLAMA
from tests.support.tolerances import assert_close

SIZES = {**LLAMA, "num_hidden_layers": 1}
LAYERS = 7
"""Linear layers of a block of Llama."""


def operators(place: Path, **options: Any) -> Counter[str]:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    exported = export_model(model, place, check=False, overwrite=True, **options)
    return Counter(node.op_type for node in exported.program.model.graph)


def test_the_rest_of_the_file_stays_as_it_is(tmp_path: Path) -> None:
    without, with_inputs = operators(tmp_path), operators(tmp_path, lora=True)
    assert with_inputs - without == Counter({"add_low_rank": LAYERS})
    assert not without - with_inputs


class Block(torch.nn.Module):
    """Two linear layers, one of which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 6)
        self.down = torch.nn.Linear(6, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.down(self.up(x))))


class Model(torch.nn.Module):
    """A block and a head, at the path of a model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.ModuleDict({"block": Block(), "head": torch.nn.Linear(4, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model["head"](self.model["block"](x))


def test_some_layers_only() -> None:
    def inputs(layers: list[str] | None) -> list[str]:
        program = coreai_onnx.convert(Model().eval(), (torch.ones(1, 2, 4),), optimize=False)
        names = [value.name for value in program.model.graph.outputs]
        add_adapter_inputs(program.model, layers)
        assert [value.name for value in program.model.graph.outputs] == names
        return [str(value.name) for value in program.model.graph.inputs][1:]

    assert inputs(["head"]) == ["head.lora_A.weight", "head.lora_B.weight"]
    both = ("block.down", "block.up")
    assert sorted(inputs(None)) == [
        f"{one}.lora_{factor}.weight" for one in both for factor in "AB"
    ]
    with pytest.raises(ModelSourceError, match="no linear layer 'k'; there are down, head, up"):
        inputs(["head", "k"])


@pytest.mark.parametrize("kernels", [False, True])
def test_a_layer_that_is_called_twice(*, kernels: bool) -> None:
    module, x = Model().eval(), torch.randn(1, 2, 4)
    program = coreai_onnx.convert(module, (x,), optimize=False)
    add_adapter_inputs(program.model, None)
    program.optimize()
    first, second = torch.randn(1, 4, 3), torch.randn(1, 3, 6)
    session = program.session(kernels=kernels)
    plain, inputs = module(x), {"block.up.lora_A.weight": first, "block.up.lora_B.weight": second}
    assert_close(session.run(x)[0], plain)
    adapted = session.with_inputs(**inputs).run(x)[0]
    module.model["block"].up.weight.data += (first @ second)[0].T
    assert_close(adapted, module(x))
    assert_close(session.run(x, **inputs)[0], module(x))
    with pytest.raises(InputError, match="block_up_columns"):
        session.run(x, **inputs | {"block.up.lora_B.weight": torch.randn(1, 3, 7)})


def test_a_layer_of_tokens_without_rows() -> None:
    program = coreai_onnx.convert(Model().eval(), (torch.ones(2, 4),), optimize=False)
    with pytest.raises(ModelSourceError, match="no linear layers that adapters can change"):
        add_adapter_inputs(program.model, None)


def test_only_decoders_have_inputs_for_adapters(tmp_path: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig(**BERT)).eval()
    with pytest.raises(ModelSourceError, match="feature-extraction has no inputs for adapters"):
        export_model(model, tmp_path / "m", lora=True)
