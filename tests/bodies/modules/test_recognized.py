"""A user's class is a standard composite only if it means the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import SDPA, RMSNormImpl
from tests.support.externalized import agrees, calls, converted, functions
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


class Twice(torch.nn.Module):
    """Two modules on one input."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(*args), self.second(*args)


def random_weights(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_llamas_norm_is_rms_norm(dtype: torch.dtype) -> None:
    model = Twice(*(random_weights(LlamaRMSNorm(8, eps=e)) for e in (1e-6, 1e-3))).to(dtype)
    x = torch.randn(2, 3, 8).to(dtype)
    dims = {"args": ({0: Dim("batch"), 1: Dim("seq")},)}
    spec = ExternalizeSpec(LlamaRMSNorm, "rms_norm", ["variance_epsilon"])
    program = converted(model, (x,), [spec], dynamic_shapes=dims)
    assert functions(program) == ["ai.coreai::rms_norm"]
    nodes = calls(program, "rms_norm")
    assert [n.attributes["eps"].value for n in nodes] == pytest.approx([1e-6, 1e-3])
    assert [n.inputs[1].name for n in nodes] == ["first.weight", "second.weight"]
    agrees(program, model, (torch.randn(1, 7, 8).to(dtype),))


class NotANorm(torch.nn.Module):
    """Looks like a root-mean-square norm, but subtracts the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5

    def forward(self, input: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(input, (8,), eps=self.eps) * scale


class UnknownEps(LlamaRMSNorm):
    """Keeps its epsilon under a name nobody knows."""

    def __init__(self) -> None:
        super().__init__(8, eps=1e-3)
        self.secret = self.variance_epsilon
        del self.variance_epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, (8,), self.weight, self.secret)


class TakesMore(torch.nn.Module):
    """Has an argument that rms_norm has not."""

    def forward(self, input: Tensor, residual: Tensor) -> Tensor:
        return F.rms_norm(input + residual, (8,), eps=1e-5)


class ReturnsTwo(torch.nn.Module):
    """Returns two tensors."""

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return F.rms_norm(input, (8,), eps=1e-5), input * 2


class IgnoresWeight(torch.nn.Module):
    """Has a weight of ones, and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (8,), eps=self.eps)


class Sum(torch.nn.Module):
    """Adds up what an inner module returns for x and, if it takes one, a scale."""

    def __init__(self, inner: torch.nn.Module, extra: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self.inner, self.extra = inner, extra

    def forward(self, x: Tensor) -> Tensor:
        result = self.inner(x, *self.extra)
        return sum(result) if isinstance(result, tuple) else result


@pytest.mark.parametrize(
    ("inner", "extra", "reason"),
    [
        (NotANorm, (torch.ones(8),), "its result differs by"),
        (UnknownEps, (), "its result differs by"),
        (lambda: GemmaRMSNorm(8), (), "its result differs by"),
        (IgnoresWeight, (), "its result differs by"),
        (TakesMore, (torch.ones(8),), "its argument residual is not an input of it"),
        (ReturnsTwo, (), "it returns 2 values, not 1"),
    ],
)
def test_what_is_no_rms_norm_stays_the_users(inner: Any, extra: Any, reason: str) -> None:
    module = inner()
    name = type(module).__name__
    with pytest.warns(
        UserWarning, match=rf"inner \({name}\) is not the composite rms_norm: {reason}"
    ):
        program = converted(
            Sum(module, extra), (torch.randn(2, 8),), [ExternalizeSpec(type(module), "rms_norm")]
        )
    assert "ai.coreai.user::rms_norm" in functions(program)
    assert [n.domain for n in program.model.graph if n.op_type == "rms_norm"] == ["ai.coreai.user"]


class TorchAttention(torch.nn.Module):
    """Attention as torch has it, with the names Hugging Face uses."""

    def __init__(self, *, is_causal: bool = False, window: int = 0) -> None:
        super().__init__()
        self.is_causal, self.sliding_window = is_causal, window
        self.scaling = 0.25

    def forward(self, query_states: Tensor, key_states: Tensor, value_states: Tensor) -> Tensor:
        mask, causal = None, self.is_causal
        if self.sliding_window:
            position = torch.arange(query_states.shape[2])
            distance = position[:, None] - position[None, :]
            mask, causal = (distance >= 0) & (distance < self.sliding_window), False
        return F.scaled_dot_product_attention(
            query_states, key_states, value_states, mask, 0.0, causal, scale=self.scaling
        )


SDPA_SPEC = ExternalizeSpec(TorchAttention, "scaled_dot_product_attention")


def attention_inputs(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    q, kv = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8)
    return q, kv, kv + 1


def test_torchs_causal_attention_keeps_its_alignment() -> None:
    model = Twice(TorchAttention(is_causal=True), TorchAttention())
    keys = Dim("keys")
    dims = {"args": ({2: Dim("queries")}, {2: keys}, {2: keys})}
    program = converted(model, attention_inputs(4, 4), [SDPA_SPEC], dynamic_shapes=dims)
    nodes = [n for n in program.model.graph if n.domain == "ai.coreai"]
    assert [n.attributes["causal_alignment"].value for n in nodes] == ["upper_left", "lower_right"]
    assert [n.attributes["scale"].value for n in nodes] == [0.25, 0.25]
    agrees(program, model, attention_inputs(3, 6))


def test_a_window_must_show() -> None:
    model = Twice(
        TorchAttention(is_causal=True, window=3), TorchAttention(is_causal=True, window=9)
    )
    with pytest.warns(UserWarning, match="second .*: 5 keys do not show a window of 9"):
        program = converted(model, attention_inputs(5, 5), [SDPA_SPEC])
    assert [n.domain for n in program.model.graph if n.domain] == ["ai.coreai", "ai.coreai.user"]


class FunctionalRope(torch.nn.Module):
    """Llama's rotation with half-width angles."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def test_a_users_rotation_is_rope() -> None:
    model = Twice(FunctionalRope(), FunctionalRope())
    args = (torch.randn(1, 2, 5, 8), torch.randn(5, 4), torch.randn(5, 4))
    program = converted(model, args, [ExternalizeSpec(FunctionalRope, "rope")])
    assert functions(program) == ["ai.coreai::rope"]


def test_torchs_layer_norm_module_is_layer_norm() -> None:
    model = random_weights(Twice(torch.nn.LayerNorm(8, eps=1e-3), torch.nn.LayerNorm(8)))
    spec = ExternalizeSpec(torch.nn.LayerNorm, "layer_norm")
    program = converted(model, (torch.randn(2, 8),), [spec])
    assert functions(program) == ["ai.coreai::layer_norm"]
    assert len(calls(program, "layer_norm")[0].inputs) == 3


class UsersDelta(torch.nn.Module):
    """A gated delta rule of the user's own, with the axes of the composite."""

    def __init__(self, *, wrong_state: bool = False) -> None:
        super().__init__()
        self.use_qk_l2norm_in_kernel = True
        self.wrong_state = wrong_state

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        state = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
        outputs = []
        for t in range(q.shape[2]):
            state = state * g[:, :, t].exp()[..., None, None]
            write = v[:, :, t] - torch.einsum("bhk,bhkv->bhv", k[:, :, t], state)
            write = write * beta[:, :, t, None]
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], write)
            outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
        output = torch.stack(outputs, 1) * q.shape[3] ** -0.5
        return output, state * 2 if self.wrong_state else state


class UsersExperts(torch.nn.Module):
    """A matrix per token, gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 8, 6))

    def forward(self, x: Tensor, expert_ids: Tensor) -> Tensor:
        return x @ self.weight[expert_ids]


def delta_inputs() -> tuple[Tensor, ...]:
    key, gate = torch.randn(2, 3, 4, 8), torch.rand(2, 3, 4)
    return key, torch.randn_like(key), torch.randn(2, 3, 4, 5), -gate, gate


class Both(torch.nn.Module):
    """Returns what an inner module returns."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Any:
        return self.inner(*args)


def test_a_users_delta_rule_is_compared_in_both_outputs() -> None:
    spec, inputs = ExternalizeSpec(UsersDelta, "gated_delta_update"), delta_inputs()
    model = Both(UsersDelta())
    program = converted(model, inputs, [spec])
    assert program.composites() == {"ai.coreai::gated_delta_update": 1}
    with pytest.warns(UserWarning, match="is not the composite gated_delta_update: its result"):
        program = converted(Both(UsersDelta(wrong_state=True)), inputs, [spec])
    assert program.composites() == {"ai.coreai.user::gated_delta_update": 1}


def test_a_users_experts_are_gather_mm() -> None:
    spec, model = ExternalizeSpec(UsersExperts, "gather_mm"), Both(UsersExperts())
    inputs = torch.randn(5, 1, 8), torch.tensor([2, 0, 1, 1, 2])
    program = converted(model, inputs, [spec])
    assert program.composites() == {"ai.coreai::gather_mm": 1}


def test_a_class_of_its_own_forward_is_checked_although_it_inherits() -> None:
    class Shifted(RMSNormImpl):
        def forward(self, input: Tensor, scale: Tensor) -> Tensor:
            return super().forward(input, scale) + 1

    class Uses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shifted = Shifted()

        def forward(self, x: Tensor) -> Tensor:
            return self.shifted(x, torch.ones(8))

    with pytest.warns(UserWarning, match="is not the composite rms_norm: its result differs"):
        program = converted(Uses(), (torch.randn(2, 8),), [ExternalizeSpec(Shifted, "rms_norm")])
    assert functions(program) == ["ai.coreai.user::rms_norm"]


class OverTheMiddle(torch.nn.Module):
    """A norm that no kernel computes: over an axis that is not the last."""

    def __init__(self) -> None:
        super().__init__()
        self.axes, self.eps = [1], 1e-5

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input / torch.sqrt((input * input).mean(1, keepdim=True) + self.eps)


def test_a_call_that_the_composite_refuses_stays_with_its_user() -> None:
    x = torch.randn(2, 3, 4)
    spec = ExternalizeSpec(OverTheMiddle, "rms_norm", ["axes", "eps"])
    model = torch.nn.Sequential(OverTheMiddle())
    with pytest.warns(UserWarning, match="axes is .1., not the last ones"):
        program = coreai_onnx.convert(model, (x,), externalize_modules=[spec])
    assert program.composites() == {"ai.coreai.user::rms_norm": 1}
    assert_close(program.run(x)[0], model(x))


def test_attention_with_lanes_that_are_not_known() -> None:
    class Attends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = SDPA(is_causal=True)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            attended: torch.Tensor = self.attend(q, k, v)
            return attended

    lanes = torch.export.Dim("lanes")
    spec = ExternalizeSpec(SDPA, "scaled_dot_product_attention", ["scale", "is_causal"])
    made = [torch.randn(1, 2, t, d) for t, d in ((3, 8), (5, 8), (5, 4))]
    sizes = ({3: lanes}, {3: lanes}, None)
    program = coreai_onnx.convert(
        Attends(), tuple(made), dynamic_shapes=sizes, externalize_modules=[spec]
    )
    for size in (8, 6):
        given = [made[0][..., :size], made[1][..., :size], made[2]]
        assert_close(program.run(*given, kernels=False)[0], Attends()(*given))
