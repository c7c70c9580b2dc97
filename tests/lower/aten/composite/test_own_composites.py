"""The torch ops of this package become nodes of their composites, with all their outputs."""

from __future__ import annotations

import torch
from torch.export import Dim

from coreai_onnx import convert
from coreai_onnx.composites import torch_ops
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close


def test_gather_mm_keeps_its_inputs_and_attributes() -> None:
    def product(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch_ops.gather_mm(x, w, i, i, 1, True)

    given = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 6, 8), torch.tensor([3, 0, 0])
    program = convert(Wrapped(product), given)
    (node,) = program.model.graph
    assert (node.domain, node.op_type, len(node.inputs)) == ("ai.coreai", "gather_mm", 4)
    attributes = {name: a.as_int() for name, a in node.attributes.items()}
    assert attributes == {"num_batch_axes": 1, "transpose_rhs": 1, "version": 1}
    assert_close(program.run(*given, kernels=False)[0], product(*given))


def test_gather_mm_nbits_keeps_its_inputs_and_attributes() -> None:
    def product(x: torch.Tensor, codes: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        scales, palette = codes[..., 0].float() / 256, torch.linspace(-1, 1, 4)
        return torch_ops.gather_mm_nbits(x, codes, scales, i, None, palette, 2, 16, 8)

    tokens = Dim("tokens")
    codes = torch.randint(0, 256, (3, 5, 2, 4), dtype=torch.uint8)

    def given(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(count, 1, 32), codes, torch.randint(0, 3, (count,))

    program = convert(
        Wrapped(product), given(4), dynamic_shapes=(({0: tokens}, None, {0: tokens}),)
    )
    (node,) = (n for n in program.model.graph if n.domain == "ai.coreai")
    assert (node.op_type, len(node.inputs), node.inputs[4]) == ("gather_mm_nbits", 6, None)
    attributes = {name: a.as_int() for name, a in node.attributes.items()}
    assert attributes == {"bits": 2, "group_size": 16, "activation_bits": 8, "version": 1}
    again = given(9)
    assert_close(program.run(*again, kernels=False)[0], product(*again))


def test_gated_delta_update_gives_both_outputs_or_the_state_alone() -> None:
    def last(*given: torch.Tensor) -> torch.Tensor:
        return torch_ops.gated_delta_update(*given)[1]

    def both(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch_ops.gated_delta_update(*given, None, False)

    def tensors(length: int) -> tuple[torch.Tensor, ...]:
        key, gate = torch.randn(1, 2, length, 4), torch.rand(1, 2, length)
        return key, torch.randn_like(key), torch.randn_like(key), -gate, torch.rand_like(gate)

    dims = (({2: Dim("length")},) * 5,)
    for function in (last, both):
        program = convert(Wrapped(function), tensors(5), dynamic_shapes=dims)
        assert program.composites() == {"ai.coreai::gated_delta_update": 1}
        given = tensors(7)
        expected = function(*given)
        actual = list(program.run(*given, kernels=False))
        assert_close(actual, [expected] if isinstance(expected, torch.Tensor) else expected)
