"""Adapters of peft in sessions: as a model with merged weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import GenerationError, InputError, SaveError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.adapters import adapter_of
from coreai_onnx.huggingface.generation.decoding import logits_of
from tests.models.generators import tokens_of_transformers
from tests.support.adapters import factors, merged, of_four_bits, settings, write
from tests.support.huggingface_folders import LLAMA
from tests.support.tolerances import assert_close

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FIRST = settings(target_modules=["q_proj", "v_proj"])
SECOND = settings(
    target_modules=r".*_proj", use_rslora=True,
    rank_pattern={"down_proj": 3, "self_attn.k_proj": 2}, alpha_pattern={"gate_proj": 5},
)  # fmt: skip
RANKS = {**dict.fromkeys(NAMES, 4), "down_proj": 3, "k_proj": 2}
IDS = torch.tensor([[5, 9, 17, 33], [8, 1, 44, 7], [3, 3, 90, 12]])
FOUR = {"bits": 4, "group_size": 16, "minimum_size": 0, "scale_dtype": "float32"}


KINDS = {"Llama": "Llama", "Qwen3": "Qwen3", "Gemma3": "Gemma3Text"}
"""Names of models, and of their configurations."""


def model_of(name: str) -> Any:
    sizes = {**LLAMA, "num_hidden_layers": 1, **({} if name == "Llama" else {"head_dim": 16})}
    config = getattr(transformers, f"{KINDS[name]}Config")(**sizes)
    torch.manual_seed(0)
    return of_four_bits(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of an export beside two adapters, and the model with each of them and without."""
    place = tmp_path_factory.mktemp("adapters")
    model = model_of("Llama")
    export_model(model, place / "model", check=False, lora=True)
    contents = {"first": FIRST, "second": SECOND}
    models = {"none": model}
    for name, ranks in (("first", {"q_proj": 4, "v_proj": 4}), ("second", RANKS)):
        tensors = factors(model, ranks)
        write(place / name, contents[name], tensors)
        models[name] = merged(model, contents[name], tensors)
    return place, models


def opened(place: Path, **options: Any) -> LanguageModel:
    model = LanguageModel.open(place / "model", **options)
    model.load_adapter(place / "first")
    model.load_adapter(place / "second", "other")
    return model


@pytest.mark.parametrize("name", KINDS)
def test_logits_over_four_bits(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    export_model(model, tmp_path / "model", check=False, lora=True, quantization=FOUR)
    tensors = factors(model, RANKS)
    write(tmp_path / "adapter", SECOND, tensors)
    with torch.no_grad():
        plain, adapted = (m(IDS).logits for m in (model, merged(model, SECOND, tensors)))
    assert (plain - adapted).abs().max() > 1, "the adapter changes the logits"
    for kernels in (False, True):
        session = coreai_onnx.session(tmp_path / "model" / "model.onnx", kernels=kernels)
        adapter = adapter_of(str(tmp_path / "adapter"), {}, session)
        assert_close(logits_of(session, IDS), plain)
        assert_close(logits_of(session.with_inputs(**adapter), IDS), adapted)


@pytest.mark.parametrize("kernels", [False, True])
def test_rows_of_a_batch_have_their_adapters(
    llama: tuple[Path, dict[str, Any]], *, kernels: bool
) -> None:
    place, models = llama
    model = opened(place, kernels=kernels)
    options: dict[str, Any] = {"max_new_tokens": 8, "stop_ids": ()}
    wanted = {
        name: tokens_of_transformers(one, IDS, torch.ones_like(IDS), max_new_tokens=8).tolist()
        for name, one in models.items()
    }
    assert len({str(tokens) for tokens in wanted.values()}) == len(models), "they differ"
    assert model.generate(IDS, adapter="first", **options).tolist() == wanted["first"]
    mixed = model.generate(IDS, adapter=["first", None, "other"], **options).tolist()
    assert mixed == [wanted[n][row] for row, n in enumerate(("first", "none", "second"))]
    assert model.generate(IDS, adapter=[None] * 3, **options).tolist() == wanted["none"]
    assert model.generate(IDS, **options).tolist() == wanted["none"], "nothing stays"
    steps = model.stream(IDS[0].tolist(), adapter="other", **options)
    assert [*steps] == wanted["second"][0][IDS.shape[1] :]
    alone = model.generate(IDS[0], adapter="other", num_beams=2, **options).tolist()
    among = model.generate(IDS[:2], adapter=["other", None], num_beams=2, **options).tolist()
    assert among[0] == alone


@pytest.mark.parametrize("kernels", [False, True])
def test_an_absent_adapter_has_no_nodes(
    llama: tuple[Path, dict[str, Any]], *, kernels: bool
) -> None:
    place, _ = llama
    model = LanguageModel.open(place / "model", kernels=kernels)
    options: dict[str, Any] = {"max_new_tokens": 8, "stop_ids": ()}
    plain, before = model.session, model.generate(IDS, **options)
    names = [x.name for x in plain.optional_inputs]
    assert names == ["num_logits_to_keep"]
    whole = coreai_onnx.session(place / "model" / "model.onnx", kernels=kernels)
    assert whole.with_adapters() is whole
    assert (logits_of(plain, IDS) == logits_of(whole, IDS)).all()
    with pytest.raises(GenerationError, match="there is no adapter 'nobody'"):
        model.generate(IDS, adapter="nobody", **options)
    assert len(model.session.optional_inputs) == len(names) + 2 * len(NAMES)
    assert (model.generate(IDS, **options) == before).all()
    assert len(plain.optional_inputs) == 1, "sessions that are open stay as they are"


def test_onnxruntime_reads_the_adapter(llama: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    place, models = llama
    model = opened(place)
    model.save_adapter("other", tmp_path / "other.onnx_adapter")
    adapter, options = ort.LoraAdapter(), ort.RunOptions()
    adapter.Load(str(tmp_path / "other.onnx_adapter"))
    options.add_active_adapter(adapter)
    stream = model.session.ort
    feeds = {
        "input_ids": IDS.numpy(),
        "attention_mask": torch.ones_like(IDS).numpy(),
        "position_ids": torch.arange(IDS.shape[1]).repeat(len(IDS), 1).numpy(),
        **{info.name: torch.zeros(3, 2, 0, 16).numpy() for info in model.session.state_inputs},
    }
    for name, how in (("second", options), ("none", None)):
        (logits,) = stream.run(["logits"], feeds, how)
        with torch.no_grad():
            assert_close(logits, models[name](IDS).logits)
    with pytest.raises(SaveError, match="cannot write"):
        model.save_adapter("other", tmp_path / "nowhere" / "a")


WRONG = {
    "peft_type is 'IA3'": {"peft_type": "IA3"},
    "use_dora=True is not supported": {"use_dora": True},
    "modules_to_save=['lm_head'] is not": {"modules_to_save": ["lm_head"]},
    "bias='all' is not supported": {"bias": "all"},
    "init_lora_weights='pissa' changes": {"init_lora_weights": "pissa"},
    "expected [8, 64], with rank 8": {"r": 8},
    "k_proj.lora_A.weight is missing": {"target_modules": ["k_proj"]},
    "KeyError: 'lora_alpha'": {"lora_alpha": None},
}


@pytest.mark.parametrize("message", WRONG)
def test_adapters_that_are_refused(
    message: str, llama: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    place, models = llama
    model = opened(place)
    before = dict(model.adapters)
    content = {name: x for name, x in {**FIRST, **WRONG[message]}.items() if x is not None}
    tensors = factors(models["none"], {"q_proj": 4, "v_proj": 4})
    with pytest.raises(GenerationError, match=re.escape(message)) as caught:
        model.load_adapter(write(tmp_path / "first", content, tensors))
    assert "\n" not in str(caught.value)
    assert model.adapters == before


def test_files_that_are_refused(llama: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    place, models = llama
    model, tensors = opened(place), factors(models["none"], {"q_proj": 4, "v_proj": 4})
    query = "model.layers.0.self_attn.q_proj"
    first = tensors[f"{query}.lora_A.weight"]
    cases = {
        "no input for factors of the layer model.layers.1.self": {
            **tensors, "model.layers.1.self_attn.q_proj.lora_A.weight": first.clone(),
        },
        "no input for the tensor model.embed_tokens.lora_embedding_A": {
            **tensors, "model.embed_tokens.lora_embedding_A": first.clone(),
        },
        "q_proj.lora_A.weight is [4, 32], expected [4, 64]": {
            **tensors, f"{query}.lora_A.weight": first[:, :32],
        },
        "q_proj.lora_B.weight is missing": {
            name: x for name, x in tensors.items() if name != f"{query}.lora_B.weight"
        },
    }  # fmt: skip
    for place_in_list, (message, changed) in enumerate(cases.items()):
        folder = write(tmp_path / str(place_in_list), FIRST, changed)
        with pytest.raises(GenerationError, match=re.escape(message)):
            model.load_adapter(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(GenerationError, match=r"cannot read .*adapter_model"):
        model.load_adapter(folder)
    (folder / "adapter_config.json").write_text("[")
    with pytest.raises(GenerationError, match=r"cannot read .*adapter_config"):
        model.load_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(GenerationError, match=r"there is no adapter_model\.safetensors"):
        model.load_adapter(folder)
    assert [*model.adapters] == ["first", "other"]


def test_calls_that_are_refused(llama: tuple[Path, dict[str, Any]]) -> None:
    place, _ = llama
    model = opened(place)
    for adapter, message in (
        ("third", "no adapter 'third'; loaded: first, other"),
        (["first"], "adapter has 1 names, and there are 3 prompts"),
        (3, "adapter=3 must be the name of an adapter, or a list"),
    ):
        with pytest.raises(GenerationError, match=re.escape(message)):
            model.generate(IDS, adapter=adapter)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'input_ids' is not an optional input"):
        model.session.with_inputs(input_ids=IDS)


def test_a_model_without_inputs_for_adapters(tmp_path: Path) -> None:
    exported = export_model(model_of("Llama"), tmp_path / "model", check=False)
    model = LanguageModel.open(exported.path)
    for call in (lambda: model.load_adapter(tmp_path), lambda: model.generate(IDS, adapter="a")):
        with pytest.raises(GenerationError, match="no inputs for adapters: export it with"):
            call()
