"""The check of an exported decoder at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
import transformers

from coreai_onnx import OnnxProgram
from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface import export_model, verification
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear, of_codes
from coreai_onnx.huggingface.decoders import Decoder
from coreai_onnx.huggingface.verification import check_at_other_sizes, check_generation
from coreai_onnx.runtime.sessions import opening
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.checkpoints.test_rounded_activations import rounding
from tests.models.generators import GENERATORS
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> OnnxProgram:
    """A decoder as a program."""
    folder = tmp_path_factory.mktemp("decoder") / "folder"
    return export_model(llama(), folder, check=False).program


def test_a_decoder_passes(exported: OnnxProgram) -> None:
    check_at_other_sizes(Decoder(llama()), exported)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "lfm2", "zamba2"])
def test_decoders_whose_steps_write_to_their_states_pass(name: str, tmp_path: Path) -> None:
    export_model(GENERATORS[name].module(), tmp_path / "folder")


def test_equal_scores_of_experts_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JetMoE routes embeddings, and that of padding is zero: torch.topk chooses any of the experts.

    With the first ones, as ONNX defines TopK, torch returns the logits of the exported decoder.
    """
    model = GENERATORS["jetmoe"].module()
    embedding = model.get_input_embeddings()
    embedding.weight.data[::2] = 0
    session = export_model(model, tmp_path / "folder").program.session()
    ids = torch.tensor([[5, 2, 9, 0, 7, 4]])
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    feeds["position_ids"] = torch.arange(6)[None]
    cache = {slot.past: slot.example(1, 0) for slot in Decoder(model).slots}
    logits = torch.as_tensor(session.stream().run(**feeds, **cache)["logits"])
    with torch.no_grad():
        differences = (model(**feeds).logits - logits).abs().amax(dim=(0, 2))
        assert differences[0] < 1e-5 < differences[-1]
        monkeypatch.setattr(torch.Tensor, "topk", first_of_equal_scores)
        assert_close(logits, model(**feeds).logits)


def first_of_equal_scores(x: torch.Tensor, k: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = x.sort(dim=dim, descending=True, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def test_a_static_cache_passes(tmp_path: Path) -> None:
    export_model(llama(), tmp_path / "folder", cache="static")


def test_other_weights_are_found(exported: OnnxProgram) -> None:
    other = llama()
    other.model.norm.weight.data *= 1.01
    with pytest.raises(ConversionError, match=r"differs from torch: logits by .* for 1 × 5 tokens"):
        check_at_other_sizes(Decoder(other), exported)


def test_what_torch_itself_moves_is_allowed(tmp_path: Path) -> None:
    """A layer that rounds its inputs makes a step of 1 % of a difference in the last bits."""
    model = llama()
    for path, module in list(model.named_modules()):
        if path.endswith("_proj"):
            codes, scales = torch.randint(0, 256, module.weight.shape), module.weight.abs().amax(1)
            weight = of_codes(codes.to(torch.uint8), scales[:, None].detach() / 128, 8)
            model.set_submodule(path, PackedLinear(weight, rounding=rounding()))
    model.requires_grad_(requires_grad=False)
    program = export_model(model, tmp_path / "folder").program
    with torch.no_grad():
        model.model.norm.weight *= 1.5
    with pytest.raises(ConversionError, match=r"differs from torch: logits by .* for 1 × 5 tokens"):
        check_at_other_sizes(Decoder(model), program)


def test_a_branch_that_was_taken_for_the_size_of_the_example_is_found(
    exported: OnnxProgram,
) -> None:
    """Right for a batch of 2 only."""
    model = ir.from_proto(exported.to_proto())
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    half = ir.node("Constant", [], {"value_float": 0.5}).outputs[0]
    node = ir.node("Shape", [model.graph.inputs[0]], {"start": 0, "end": 1})
    cast = ir.node("Cast", [node.outputs[0]], {"to": ir.DataType.FLOAT.value})
    scale = ir.node("Mul", [cast.outputs[0], half])
    scaled = ir.node("Mul", [logits, scale.outputs[0]])
    model.graph.extend([half.producer(), node, cast, scale, scaled])
    result = scaled.outputs[0]
    result.type, result.shape = logits.type, logits.shape
    logits.name, result.name = "logits_before", "logits"
    model.graph.outputs[0] = result
    with pytest.raises(ConversionError, match=r"logits by .* for 1 × 5 tokens after 0"):
        check_at_other_sizes(Decoder(llama()), OnnxProgram({"main": model}))


def test_the_check_holds_no_copy_of_the_weights(
    exported: OnnxProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in a mapped file: nothing is prepacked, and the program keeps no session."""
    sessions = []

    def opened(*args: Any, **options: Any) -> Session:
        sessions.append(Session(*args, **options))
        return sessions[-1]

    monkeypatch.setattr(verification, "Session", opened)
    monkeypatch.setattr(opening, "TEMPORARY_FILE_BYTES", 0)
    exported._sessions.clear()
    check_at_other_sizes(Decoder(llama()), exported)
    (session,) = sessions
    options = session.ort.get_session_options()
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    session._model._folder.cleanup()
    assert not exported._sessions


XLNET = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}
XLM = {"emb_dim": 16, "n_layers": 1, "n_heads": 2, "causal": True, "max_position_embeddings": 32}
UNLIKE_GENERATE: list[tuple[Any, dict[str, Any], str]] = [
    (transformers.XLNetLMHeadModel, XLNET, "perm_mask, target_mapping"),
    (transformers.XLMWithLMHeadModel, XLM, "6 tokens for a prompt of 5"),
]


@pytest.mark.parametrize(("cls", "sizes", "reason"), UNLIKE_GENERATE)
def test_a_model_whose_generate_passes_more_is_refused(
    cls: Any, sizes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = cls(cls.config_class(vocab_size=64, pad_token_id=0, **sizes)).eval()
    with pytest.raises(ConversionError, match=r"generate and a call with input_ids") as caught:
        export_model(model, tmp_path / "folder", task="text-generation")
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", ["mamba", "openai_gpt"])
def test_a_model_whose_generate_passes_the_same_passes(name: str) -> None:
    check_generation(Decoder(GENERATORS[name].module()))
