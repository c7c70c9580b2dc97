"""Known blocks found, checked and replaced: in transformers' models and in a user's own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from torch.export import Dim
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

import coreai_onnx
from coreai_onnx import ExternalizeSpec, TorchConverter
from coreai_onnx.export.compat import experts
from coreai_onnx.export.recognize import automatic
from coreai_onnx.export.recognize.automatic import Automatic, wants
from coreai_onnx.program import OnnxProgram
from tests.support.externalized import functions, kernels_built, untouched
from tests.support.tolerances import assert_close

Tensor = torch.Tensor
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
ONE_LAYER = {"num_hidden_layers": 1}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "num_hidden_layers": 4,
    "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


class Logits(torch.nn.Module):
    """The logits of a small model of a family, for its token ids."""

    def __init__(self, family: str, eager: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**(SMALL | options))
        self.model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        if eager:
            self.model.set_attn_implementation("eager")

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, use_cache=False)[0]


def ids(length: int) -> Tensor:
    return torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(length))


def converted(model: torch.nn.Module, given: Any = "auto") -> OnnxProgram:
    """Convert with a dynamic length, and compare with torch at two lengths."""
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    homes = [dict(home) for home in automatic._homes(model)]
    dims = {"input_ids": {1: Dim("seq", min=2, max=64)}}
    program = coreai_onnx.convert(model, (ids(9),), dynamic_shapes=dims, externalize_modules=given)
    untouched(model, before)
    assert [dict(home) for home in automatic._homes(model)] == homes
    for length in (9, 5):
        with torch.no_grad():
            expected = model(ids(length))
        for kernels in (False, True) if kernels_built() else (False,):
            (actual,) = program.run(ids(length), kernels=kernels)
            assert_close(actual, expected, message=f"{length} tokens, kernels={kernels}")
    return program


FAMILIES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "Llama": ({}, {"rms_norm": 5, "rope": 4, "scaled_dot_product_attention": 2}),
    "Qwen3Moe": (
        {**MOE, "decoder_sparse_step": 1},
        {"rms_norm": 9, "rope": 4, "scaled_dot_product_attention": 2, "gather_mm": 4},
    ),
    "Qwen3Next": (
        {**MOE, **DELTA},
        {
            "rms_norm": 14,
            "rope": 2,
            "scaled_dot_product_attention": 1,
            "gather_mm": 8,
            "gated_delta_update": 3,
        },
    ),
    "GptOss": (
        {**ONE_LAYER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        {"rms_norm": 3, "rope": 2, "scaled_dot_product_attention": 1, "gather_mm": 2},
    ),
    "Gemma2": (
        {**ONE_LAYER, "eager": True},
        {"rms_norm": 5, "rope": 2, "scaled_dot_product_attention": 1},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_of_a_family(family: str) -> None:
    options, counts = FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = converted(Logits(family, **options))
    composites = {k.removeprefix("ai.coreai::"): v for k, v in program.composites().items()}
    composites["rms_norm"] += composites.get("skip_rms_norm", 0)
    assert {name: composites.get(name) for name in counts} == counts
    assert program.recognized is not None
    assert not program.recognized.refused
    called = dict.fromkeys(counts, 0)
    for block in program.recognized.recognized:
        called[block.composite] += block.calls
    assert called["rms_norm"] == counts["rms_norm"]
    assert called["rope"] * 2 == counts["rope"]  # queries and keys in one call


def test_together_with_layers() -> None:
    program = converted(Logits("Llama"), ["auto", LlamaDecoderLayer])
    assert [f for f in functions(program) if "module" in f] == [
        "ai.coreai.module::LlamaDecoderLayer"
    ]
    called = program.composites()
    assert called["ai.coreai::rms_norm"] + called["ai.coreai::skip_rms_norm"] == 5
    assert program.composites()["ai.coreai::rope"] == 4


def test_what_the_user_names_is_left_to_the_user() -> None:
    spec = ExternalizeSpec(LlamaRMSNorm, "my_norm")
    program = converted(Logits("Llama"), ["auto", spec])
    assert program.composites()["ai.coreai.user::my_norm"] == 5
    assert not [b for b in program.recognized.blocks if b.kind == "LlamaRMSNorm"]  # type: ignore[union-attr]


class Norm(torch.nn.Module):
    """A norm of a user's own; its numbers differ for one kind of input if it is to trick."""

    def __init__(self, trick: bool = False) -> None:
        super().__init__()
        self.scale, self.eps, self.trick = torch.nn.Parameter(torch.rand(8)), 1e-5, trick

    def forward(self, values: Tensor) -> Tensor:
        result = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale
        return torch.where(values > 100, 0.0, result) if self.trick else result


class Own(torch.nn.Module):
    """Two norms of a user's own, one of which is none for the inputs the model gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm(trick=True)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.second(self.first(x) * 1000)


def test_the_example_inputs_decide() -> None:
    """The second norm passes on random inputs; on the example's it differs, and stays."""
    model, exports = Own(), []

    def export(m: torch.nn.Module) -> Any:
        exports.append(m)
        return torch.export.export(m, (torch.ones(3, 8),))

    converter = TorchConverter()
    converter.add_pytorch_module(model, export_fn=export, externalize_modules="auto")
    program = converter.to_onnx()
    assert len(exports) == 2
    assert model.calls == 0
    assert program.composites() == {"ai.coreai::rms_norm": 1}
    report = program.recognized
    assert report is not None
    assert [(b.place, b.calls) for b in report.recognized] == [("first", 1)]
    assert [b.place for b in report.refused] == ["second"]
    assert report.refused[0].reason.startswith("the result differs by")
    assert "the result differs by" in str(report)
    x = torch.randn(2, 8).repeat(2, 1)[:3]
    assert_close(program.run(x, kernels=False)[0], model(x).detach())


def test_alike_layers_share_their_body_around_recognized_blocks() -> None:
    class Layer(torch.nn.Module):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.norm = Norm()
            self.norm.eps = eps

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(x)

    model = torch.nn.Sequential(Layer(1e-5), Layer(1e-5), Layer(0.5))
    x = torch.randn(2, 8)
    program = coreai_onnx.convert(model, (x,), externalize_modules=["auto", Layer])
    assert functions(program) == [
        "ai.coreai::rms_norm",
        "ai.coreai.module::Layer",
        "ai.coreai.module::Layer.2",
    ]
    assert_close(program.run(x, kernels=False)[0], model(x).detach())


def test_without_example_inputs_nothing_is_replaced() -> None:
    model, x = torch.nn.Sequential(Norm()), torch.randn(2, 8)

    def export(m: torch.nn.Module) -> Any:
        program = torch.export.export(m, (x,))
        program.example_inputs = None
        return program

    converter = TorchConverter()
    converter.add_pytorch_module(model, export_fn=export, externalize_modules="auto")
    program = converter.to_onnx()
    assert program.composites() == {}
    assert "no example inputs" in program.recognized.refused[0].reason  # type: ignore[union-attr]


def test_experts_that_differ_are_exported_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(original: Any) -> Any:
        return lambda *args, **kwargs: original(*args, **kwargs) * 2

    monkeypatch.setattr(experts, "experts_forward", wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Logits("Qwen3Moe", **ONE_LAYER, **MOE, decoder_sparse_step=1)
        model.model.set_experts_implementation("batched_mm")
        program = converted(model)
    refused = program.recognized.refused  # type: ignore[union-attr]
    assert {(b.kind, b.composite) for b in refused} == {("Qwen3MoeExperts", "gather_mm")}
    assert "ai.coreai::rms_norm" in program.composites()


def test_an_error_leaves_everything_as_it_was() -> None:
    model = Logits("Llama")
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    rotate = modeling_llama.apply_rotary_pos_emb
    found = Automatic(model)
    with found.patched():
        assert modeling_llama.apply_rotary_pos_emb is not rotate
    with pytest.raises(KeyboardInterrupt), found.patched():
        raise KeyboardInterrupt
    assert modeling_llama.apply_rotary_pos_emb is rotate
    untouched(model, before)


def test_a_replacement_that_cannot_take_a_call_lets_the_original_run() -> None:
    model = torch.nn.Sequential(Norm())
    found = Automatic(model)
    found.report.blocks[0].replacement = lambda x: x @ x
    x = torch.randn(2, 8)
    expected = model(x)
    with found.patched():
        assert torch.equal(model(x), expected)
    assert found.report.refused


def test_what_is_wanted() -> None:
    assert wants(None) == (False, [])
    assert wants("auto") == (True, [])
    assert wants([Norm]) == (False, [Norm])
    assert wants(["auto", Norm]) == (True, [Norm])
    for bad in ({"auto": 1}, Norm, 3):
        with pytest.raises(TypeError, match='must be "auto" or a list'):
            wants(bad)
    with pytest.raises(TypeError, match="must be a module class, not 'automatic'"):
        coreai_onnx.convert(Norm(), (torch.ones(8),), externalize_modules="automatic")  # type: ignore[arg-type]


def test_a_conversion_without_it_has_no_report() -> None:
    assert coreai_onnx.convert(Norm(), (torch.ones(8),)).recognized is None
