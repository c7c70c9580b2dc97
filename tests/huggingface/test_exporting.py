"""Export of whole folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import (
    ConversionError,
    InputError,
    KernelsNotBuiltError,
    ModelSourceError,
    SaveError,
)
from coreai_onnx.huggingface import exporting
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.model.inventory import weights
from coreai_onnx.runtime.libraries import library
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.generation.test_engine import check_orders
from tests.huggingface.heads.test_head import VIT, model
from tests.models.generators import GENERATORS, padded, tokens_of_transformers
from tests.support.huggingface_folders import BERT, llama, llama_folder
from tests.support.tolerances import assert_close


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A decoder and the folder that it is exported to."""
    place = tmp_path_factory.mktemp("decoder")
    model = llama_folder(place / "source")
    export_model(place / "source", place / "folder")
    return model, place / "folder"


def test_files_of_a_decoder(decoder: tuple[Any, Path]) -> None:
    names = {file.name for file in decoder[1].iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    configs = {"config.json", "generation_config.json", "genai_config.json"}
    assert names == {"model.onnx", *configs, *tokenizer}


def test_the_interface_of_a_decoder(decoder: tuple[Any, Path]) -> None:
    plain = ort.InferenceSession(decoder[1] / "model.onnx")
    dims = {node.name: node.shape for node in (*plain.get_inputs(), *plain.get_outputs())}
    past, seq = "past_sequence_length", "sequence_length"
    total = f"{past} + {seq}"
    assert dims["input_ids"] == dims["position_ids"] == ["batch_size", seq]
    assert dims["attention_mask"] == ["batch_size", total]
    assert dims["past_key_values.1.value"] == ["batch_size", 2, past, 16]
    assert dims["present.1.value"] == ["batch_size", 2, total, 16]
    assert dims["logits"] == ["batch_size", "kept_length", 260]


def test_a_plain_onnxruntime_runs_a_decoder(decoder: tuple[Any, Path]) -> None:
    """In two calls, the second with the cache of the first, and with padding on the left."""
    model, folder = decoder
    plain = ort.InferenceSession(folder / "model.onnx")
    ids = np.array([[0, 0, 5, 9, 17], [8, 3, 44, 6, 7]])
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    with torch.no_grad():
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        expected = model(**{n: torch.tensor(x) for n, x in given.items()}).logits
    names = [node.name for node in plain.get_outputs()]
    cache = {f"past_key_values.{i}.{p}": np.zeros((2, 2, 0, 16), np.float32)
             for i in (0, 1) for p in ("key", "value")}  # fmt: skip
    for start, end in ((0, 3), (3, 5)):
        part = {n: x[:, start:end] for n, x in given.items()} | {"attention_mask": mask[:, :end]}
        results = dict(zip(names, plain.run(None, part | cache), strict=True))
        cache = {name.replace("present", "past_key_values"): x
                 for name, x in results.items() if name != "logits"}  # fmt: skip
        seen = mask[:, start:end].astype(bool)
        assert_close(results["logits"][seen], expected[:, start:end].numpy()[seen])


def test_a_session_carries_the_cache(decoder: tuple[Any, Path]) -> None:
    session = coreai_onnx.session(decoder[1] / "model.onnx")
    assert [info.name for info in session.inputs] == [
        "input_ids", "attention_mask", "position_ids",
    ]  # fmt: skip
    assert session.states[0] == "past_key_values.0.key"


@pytest.mark.parametrize("name", ["BertModel", "BertForTokenClassification"])
def test_text_models(name: str, tmp_path: Path) -> None:
    bert = model(name, **BERT)
    exported = export_model(bert, tmp_path / "folder")
    session = coreai_onnx.session(exported.path / "model.onnx")
    for batch, length in ((1, 3), (3, 17)):
        ids = torch.randint(0, 260, (batch, length))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given |= {"token_type_ids": torch.randint(0, 2, (batch, length))}
        with torch.no_grad():
            expected = bert(**given)[0]
        assert_close(session.run(**given)[0], expected)


def test_image_models(tmp_path: Path) -> None:
    vit = model("ViTForImageClassification", **VIT)
    exported = export_model(vit, tmp_path / "folder", target="portable", opset_version=18)
    session = coreai_onnx.session(exported.path / "model.onnx")
    image = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = vit(image).logits
    assert_close(session.run(pixel_values=image)["logits"], expected)
    assert "image-classification" in str(exported)
    assert "model.onnx" in str(exported)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_computation_in_half_precision(dtype: str, tmp_path: Path) -> None:
    bert = model("BertModel", **BERT)
    exported = export_model(bert, tmp_path / "folder", dtype=dtype)
    assert exported.program.session().outputs[0].dtype == dtype
    with pytest.raises(ModelSourceError, match=r"'int3' must be one of float32, float16, bfloat16"):
        export_model(bert, tmp_path / "other", dtype="int3")


@pytest.mark.parametrize("target", ["kernels", "onnxruntime"])
@pytest.mark.parametrize("cache", ["growing", "static", "paged"])
def test_decoders_in_bfloat16(cache: Any, target: Any, tmp_path: Path) -> None:
    """Norms of Gemma are in float32 between Casts; the export compares logits with torch."""
    gemma = GENERATORS["gemma3_text"].module().to(torch.bfloat16)
    exported = export_model(
        gemma, tmp_path / "folder", cache=cache, target=target, dtype="bfloat16"
    )
    names = {node.op_type for node in exported.program.model.graph}
    norms = {"rms_norm.wide_scale", "skip_rms_norm.wide_scale"}
    assert norms <= names if target == "kernels" else "rms_norm" in names
    session = exported.program.session(kernels=target == "kernels")
    assert {info.dtype for info in (*session.outputs, *session.state_inputs)} == {"bfloat16"}
    opened = LanguageModel.open(exported.path, kernels=target == "kernels")
    prompt = [3, 14, 15, 9, 2, 6]
    if cache == "paged":
        check_orders(opened, 3, 60)
    else:
        *_, last = opened.stream(prompt, max_new_tokens=8, stop_ids=())
        assert opened.generate(prompt, max_new_tokens=8, stop_ids=())[-1] == last


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_weights_of_16_bits(dtype: str, tmp_path: Path) -> None:
    """The tokens are those of the rounded weights, computed in float32."""
    model = llama()
    exported = export_model(model, tmp_path / "folder", weights_dtype=dtype)
    stored = {x.dtype.name.lower() for x in exported.program.model.graph.initializers.values()
              if x.const_value.size > 128}  # fmt: skip
    assert stored == {dtype}
    assert exported.program.session().outputs[0].dtype == "float32"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(getattr(torch, dtype)))
    ids, mask = padded()
    wanted = tokens_of_transformers(model, ids, mask, max_new_tokens=20)
    given = {"attention_mask": mask, "max_new_tokens": 20, "stop_ids": ()}
    assert coreai_onnx.generate(exported.path, ids, **given).tolist() == wanted.tolist()


def test_weights_stay_in_the_dtype_of_the_source(tmp_path: Path) -> None:
    """In half the bytes of float32, unless the user asks for it."""
    model = llama().bfloat16()
    model.save_pretrained(tmp_path / "source")
    sizes = {}
    for dtype in (None, "float32"):
        exported = export_model(tmp_path / "source", tmp_path / str(dtype), weights_dtype=dtype)
        sizes[dtype] = weights(exported.program.model)[1]
    assert sizes[None] < 0.51 * sizes["float32"]


def test_stored_dtypes_that_are_refused(tmp_path: Path) -> None:
    model = llama()
    for options, message in (
        (
            {"weights_dtype": "int4"},
            "weights_dtype 'int4' must be one of float32, float16, bfloat16",
        ),
        ({"weights_dtype": "bfloat16", "dtype": "float16"}, "has weights in float16; only one in"),
    ):
        with pytest.raises(ModelSourceError, match=message):
            export_model(model, tmp_path / "folder", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bert = model("BertModel", **BERT)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(bert.config), "save_pretrained", full)
    with pytest.raises(SaveError, match="No space left"):
        export_model(bert, tmp_path / "folder")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(SaveError, match="exists and is not empty"):
        export_model("nowhere", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_a_static_cache_is_updated_in_place(tmp_path: Path) -> None:
    """In the memory of a plain onnxruntime too: the same value is input and output."""
    model = llama()
    folder = export_model(model, tmp_path / "folder", cache="static").path
    session = coreai_onnx.session(folder / "model.onnx")
    assert session._model.undo is not None
    assert session._model.undo.states == set(session.states)
    ids, mask = padded()
    wanted = tokens_of_transformers(model, ids, mask, max_new_tokens=20)
    tokens = coreai_onnx.generate(folder, ids, attention_mask=mask, max_new_tokens=20, stop_ids=())
    assert tokens.tolist() == wanted.tolist()
    config = json.loads((folder / "genai_config.json").read_text())
    assert config["search"]["past_present_share_buffer"] is True
    refuses_longer_texts(session)


def refuses_longer_texts(session: Session) -> None:
    """A text that does not fit a static cache of 16, at once or later, changes nothing."""
    cache = {name: np.zeros((1, 2, 16, 16), np.float32) for name in session.states}

    def read(tokens: int, cached: int, **states: Any) -> Any:
        positions = np.arange(cached, cached + tokens)[None]
        mask = np.ones((1, cached + tokens), np.int64)
        return session.run(np.full((1, tokens), 5), mask, positions, **states)

    too_long = r"attention_mask.*max_length is 16 .*expected max_length >= total_sequence_length"
    with pytest.raises(InputError, match=too_long):
        read(20, 0, **cache)
    read(10, 0, **cache)
    before = session.state
    with pytest.raises(InputError, match=too_long):
        read(10, 10)
    assert all((session.state[name] == before[name]).all() for name in before)


def test_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    first = export_model(model("BertModel", **BERT), tmp_path / "folder", external_data=True)
    assert "model.onnx.data" in {file.name for file in first.files}
    again = export_model(llama(), tmp_path / "folder", overwrite=True, check=False)
    assert {file.name for file in again.files} == {file.name for file in again.path.iterdir()}
    assert "model.onnx.data" not in {file.name for file in again.files}
    with pytest.raises(ModelSourceError, match="no such folder"):
        export_model(tmp_path / "nowhere", tmp_path / "folder", overwrite=True)
    assert coreai_onnx.generate(again.path, [5, 9], max_new_tokens=2).shape == (4,)


def test_weights_for_kernels_are_in_a_file_that_sessions_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MAPPED_BYTES", 1000)
    data = {}
    for target, external in (("kernels", None), ("kernels", False), ("onnxruntime", None)):
        options = {"target": target, "external_data": external, "overwrite": True, "check": False}
        files = export_model(llama(), tmp_path / "folder", **options).files
        data[target, external] = "model.onnx.data" in {file.name for file in files}
    assert data == {
        ("kernels", None): True,
        ("kernels", False): False,
        ("onnxruntime", None): False,
    }


def test_a_source_is_not_replaced_by_its_export(tmp_path: Path) -> None:
    llama_folder(tmp_path / "model")
    (tmp_path / "model" / "model.onnx").touch()
    with pytest.raises(SaveError, match=r"an export does not write model\.safetensors"):
        export_model(tmp_path / "model", tmp_path / "model", overwrite=True)


def test_static_caches_that_are_refused(tmp_path: Path) -> None:
    mamba = GENERATORS["mamba2"].module()
    with pytest.raises(ConversionError, match="a static cache holds keys and values"):
        export_model(mamba, tmp_path / "folder", cache="static")
    with pytest.raises(ModelSourceError, match="a model for feature-extraction has no static"):
        export_model(model("BertModel", **BERT), tmp_path / "folder", cache="static")
    with pytest.raises(ModelSourceError, match="cache 'ring' must be one of growing, static, pag"):
        export_model(mamba, tmp_path / "folder", cache="ring")  # type: ignore[arg-type]
    with pytest.raises(ModelSourceError, match="a model for feature-extraction has no paged cache"):
        export_model(model("BertModel", **BERT), tmp_path / "folder", cache="paged")
    assert not list(tmp_path.iterdir())


def test_the_kernel_library_is_added(tmp_path: Path, kernels: Path) -> None:
    folder = export_model(llama(), tmp_path / "folder", include_kernels=True, check=False).path
    assert (folder / kernels.name).read_bytes() == kernels.read_bytes()
    config = json.loads((folder / "genai_config.json").read_text())
    options = config["model"]["decoder"]["session_options"]
    assert options["custom_ops_library"] == kernels.name
    assert options["coreai.huge_pages"] == "1"


def test_kernels_that_are_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere/ops.so")
    with pytest.raises(KernelsNotBuiltError):
        export_model(llama(), tmp_path / "folder", include_kernels=True)


def test_other_models_that_make_sound_in_steps_are_refused(tmp_path: Path) -> None:
    """MusicGen Melody continues a sound, which its decoder reads before the tokens."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "ffn_dim": 16}
    config = transformers.MusicgenMelodyConfig(
        text_encoder=transformers.T5Config(
            vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
        ),
        audio_encoder=transformers.EncodecConfig(
            hidden_size=8, num_filters=2, codebook_size=16, num_lstm_layers=1
        ),
        decoder=transformers.MusicgenMelodyDecoderConfig(vocab_size=16, num_codebooks=2, **sizes),
    )
    model = transformers.MusicgenMelodyForConditionalGeneration(config)
    with pytest.raises(
        ModelSourceError, match=r"MusicgenMelodyForConditional.* generate the sound in"
    ):
        export_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
