"""Experts of transformers as products that choose their matrix, without the sorting around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GptOssConfig, MixtralConfig, SwitchTransformersConfig
from transformers.integrations import moe
from transformers.models.dbrx.configuration_dbrx import DbrxFFNConfig
from transformers.models.dbrx.modeling_dbrx import DbrxExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.jetmoe.configuration_jetmoe import JetMoeConfig
from transformers.models.jetmoe.modeling_jetmoe import JetMoeMoA, JetMoeMoE
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
)

from coreai_onnx import convert
from coreai_onnx.errors import LibraryVersionError
from coreai_onnx.export.compat.experts import IMPLEMENTATIONS, experts_as_gather_mm, experts_forward
from tests.support.tolerances import assert_close

SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_local_experts": 4}


def experts(kind: str, implementation: str = "grouped_mm") -> torch.nn.Module:
    """Experts without bias and with matrices [N, K], or with bias and matrices [K, N]."""
    configured, made = {
        "mixtral": (MixtralConfig, MixtralExperts),
        "gpt_oss": (GptOssConfig, GptOssExperts),
    }[kind]
    module = made(configured(**SIZES, experts_implementation=implementation))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.eval()


def routed(tokens: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(tokens, 8), torch.randint(0, 4, (tokens, 2)), torch.rand(tokens, 2)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_the_numbers_are_those_of_transformers(kind: str, implementation: str) -> None:
    module, given = experts(kind, implementation), routed(9)
    with torch.no_grad():
        expected = module(*given)
        with experts_as_gather_mm():
            assert_close(module(*given), expected)


def test_a_transformers_without_a_member_of_experts_is_refused() -> None:
    with pytest.raises(LibraryVersionError, match=r"transformers \d.*: Linear\._apply_gate"):
        experts_forward(len)(torch.nn.Linear(2, 2), *routed(3))


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_a_conversion_has_two_products_and_no_sorting(kind: str) -> None:
    module, tokens = experts(kind), torch.export.Dim("tokens")
    dims = [{0: tokens}] * 3
    program = convert(module, routed(5), dynamic_shapes=tuple(dims))
    assert program.composites()["ai.coreai::gather_mm"] == 2
    made = {n.op_type for n in program.model.graph}
    assert not made & {"TopK", "CumSum", "ScatterElements", "Loop"}
    read = {n.inputs[1].name for n in program.model.graph if n.op_type == "gather_mm"}
    assert read == {"gate_up_proj", "down_proj"}
    for count in (5, 1, 40):
        given = routed(count)
        with torch.no_grad():
            assert_close(program.run(*given, kernels=False)[0], module(*given))


def test_experts_on_several_devices_are_left_alone() -> None:
    module = experts("mixtral")
    module._is_expert_parallel = True
    given = routed(4)
    with torch.no_grad():
        expected = module(*given)
        with experts_as_gather_mm():
            assert_close(module(*given), expected)


def test_everything_is_back_after_an_error() -> None:
    before = moe.ALL_EXPERTS_FUNCTIONS.get_interface

    def fail() -> None:
        with experts_as_gather_mm():
            assert moe.ALL_EXPERTS_FUNCTIONS.get_interface != before
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert moe.ALL_EXPERTS_FUNCTIONS.get_interface == before


def test_other_implementations_are_left_alone() -> None:
    def default(*_: Any) -> None: ...

    with experts_as_gather_mm():
        found = moe.ALL_EXPERTS_FUNCTIONS.get_interface("deepgemm", default)
    assert found is moe.deepgemm_bf16_experts_forward


def test_the_numbers_of_loops_over_experts() -> None:
    """DBRX, and Switch Transformers with a token beyond the capacity of its expert."""
    sizes = {"hidden_size": 8, "ffn_hidden_size": 12, "moe_num_experts": 4}
    dbrx: Any = DbrxExperts(DbrxFFNConfig(**sizes)).eval()
    for parameter in dbrx.parameters():
        torch.nn.init.normal_(parameter)
    switch: Any = SwitchTransformersSparseMLP(
        SwitchTransformersConfig(d_model=8, d_ff=12, num_experts=4, expert_capacity=2)
    ).eval()
    (tokens, *chosen), x = routed(9), torch.randn(2, 9, 8)
    given = tokens.view(3, 3, 8), *chosen
    with torch.no_grad():
        expected = dbrx(*given), switch(x)
        with experts_as_gather_mm():
            assert_close((dbrx(*given), switch(x)), expected)
            program = torch.export.export(switch, (x,))
    assert not any("nonzero" in str(node.target) for node in program.graph.nodes)
    assert bool((expected[1] == 0).all(dim=-1).any())


def test_the_numbers_of_jetmoe() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_key_value_heads": 2, "kv_channels": 3}
    config = JetMoeConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    mlp, attention = JetMoeMoE(config), JetMoeMoA(config)
    for parameter in (*mlp.parameters(), *attention.parameters()):
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 5, 8)

    def outputs() -> tuple[torch.Tensor, ...]:
        queries, logits, routing = attention.map(x)
        return mlp(x), queries, logits, attention.reduce(queries.tanh(), routing)

    with torch.no_grad():
        expected = outputs()
        with experts_as_gather_mm():
            assert_close(outputs(), expected)
            program = torch.export.export(mlp, (x,))
    assert not any("sort" in str(node.target) for node in program.graph.nodes)
