"""What exported decoders say that they are fed, and that sessions and targets keep to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import InputError, ModelSourceError
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.model.contract import Contract, read_contract
from coreai_onnx.program import OnnxProgram
from tests.models.generators import GENERATORS, padded, tokens_of_transformers
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close

LAYERS = 2
SAME_LENGTH = torch.tensor([[5, 9, 17, 33], [8, 3, 44, 6], [7, 7, 90, 1]])
LONG = torch.arange(3, 23)[None]


def contrib(program: OnnxProgram) -> Counter[str]:
    """The operators of onnxruntime."""
    nodes = program.model.graph
    return Counter(node.op_type for node in nodes if node.domain == "com.microsoft")


def contract(program: OnnxProgram) -> Contract | None:
    return read_contract(program.model.metadata_props)


@pytest.fixture(scope="module", params=["growing", "static"])
def exported(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A Llama, and its export for contrib."""
    model = llama()
    folder = tmp_path_factory.mktemp("llama") / request.param
    return model, export_model(model, folder, target="contrib", cache=request.param)


def test_attention_is_one_operator(exported: tuple[Any, Any]) -> None:
    _, folder = exported
    program = folder.program
    assert contract(program) == Contract("none", folder.path.name, 256)
    assert contrib(program) == {"GroupQueryAttention": LAYERS}
    ops = Counter(node.op_type for node in program.model.graph)
    # Queries, keys and values are one product, and the rest are four and the head.
    assert ops["MatMul"] == LAYERS * 5 + 1
    assert not {"Cos", "Sin", "LessOrEqual", "And", "Transpose", "Concat"} & set(ops)


@pytest.mark.parametrize("prompt", [SAME_LENGTH, SAME_LENGTH[:1], LONG], ids=["3", "1", "long"])
def test_the_tokens_of_transformers(exported: tuple[Any, Any], prompt: torch.Tensor) -> None:
    model, folder = exported
    wanted = tokens_of_transformers(model, prompt, torch.ones_like(prompt), max_new_tokens=24)
    opened = LanguageModel.open(folder.path)
    assert opened.generate(prompt, max_new_tokens=24, stop_ids=()).tolist() == wanted.tolist()


def test_candidates_and_beams(exported: tuple[Any, Any]) -> None:
    """Candidates are several tokens after cached ones; beams reorder the cache."""
    model, folder = exported
    opened = LanguageModel.open(folder.path)
    wanted = tokens_of_transformers(model, LONG, torch.ones_like(LONG), max_new_tokens=12)
    given = {"max_new_tokens": 12, "stop_ids": ()}
    assert opened.generate(LONG, prompt_lookup_num_tokens=3, **given).tolist() == wanted.tolist()
    beams = tokens_of_transformers(
        model, LONG, torch.ones_like(LONG), max_new_tokens=12, num_beams=3
    )
    assert opened.generate(LONG, num_beams=3, **given).tolist() == beams.tolist()


def test_a_plain_onnxruntime_reads_the_number_of_tokens_from_the_mask(
    exported: tuple[Any, Any],
) -> None:
    """A prompt in one call, and in three calls."""
    _, folder = exported
    plain = ort.InferenceSession(folder.path / "model.onnx")
    names = [node.name for node in plain.get_outputs()]
    capacity = 24 if folder.path.name == "static" else 0

    def read(parts: list[int]) -> np.ndarray:
        cache = {f"past_key_values.{i}.{p}": np.zeros((1, 2, capacity, 16), np.float32)
                 for i in range(LAYERS) for p in ("key", "value")}  # fmt: skip
        logits, start = [], 0
        for end in parts:
            inputs = {
                "input_ids": LONG[:, start:end].numpy(),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end)[None],
            }
            results = dict(zip(names, plain.run(None, inputs | cache), strict=True))
            logits.append(results.pop("logits"))
            cache = {name.replace("present", "past_key_values"): x for name, x in results.items()}
            start = end
        return np.concatenate(logits, axis=1)

    assert_close(read([7, 8, 20]), read([20]))


def test_what_breaks_the_contract_is_an_error(exported: tuple[Any, Any]) -> None:
    _, folder = exported
    session = coreai_onnx.session(folder.path / "model.onnx")
    ids, mask = padded()
    opened = LanguageModel(session)
    with pytest.raises(InputError, match=r"'attention_mask' has zeros.*padding=\"left\""):
        opened.generate([[5, 9, 17], [8]], max_new_tokens=2)
    with pytest.raises(InputError, match="'attention_mask' has zeros"):
        opened.generate(ids, attention_mask=mask, max_new_tokens=2)
    one = {"input_ids": LONG[:, :3], "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    caches = {info.name: np.zeros((1, 2, 8 if info.dims[2] == "max_length" else 0, 16), np.float32)
              for info in session.state_inputs}  # fmt: skip
    with pytest.raises(InputError, match="'position_ids' must be 0 to 2 in each row"):
        session.run(**one, position_ids=torch.tensor([[0, 1, 3]]), **caches)
    # The session is as it was: the right call runs.
    assert (
        session.run(**one, position_ids=torch.tensor([[0, 1, 2]]), **caches)["logits"].shape[1] == 3
    )


def test_a_text_is_as_long_as_the_model_has_positions(exported: tuple[Any, Any]) -> None:
    opened = LanguageModel.open(exported[1].path)
    prompt = torch.ones(1, 256, dtype=torch.int64)
    assert opened.generate(prompt, max_new_tokens=1, stop_ids=()).shape == (1, 257)
    with pytest.raises(InputError, match="257 columns, and the model has 256 positions"):
        opened.generate(prompt, max_new_tokens=2, stop_ids=())


@pytest.mark.parametrize(
    ("target", "dtype", "padding", "made"),
    [
        ("webgpu", "float32", "none", LAYERS),
        ("cuda", "float16", "none", LAYERS),
        ("cuda", "float32", "left", 0),  # CUDA's kernel computes 16 bits only
    ],
)
def test_files_for_providers(
    target: Any, dtype: str, padding: str, made: int, tmp_path: Path
) -> None:
    """They are right on a plain CPU as well."""
    model = llama()
    folder = export_model(model, tmp_path / "folder", target=target, dtype=dtype)
    assert contract(folder.program) == Contract(padding, "growing", 256)
    assert contrib(folder.program)["GroupQueryAttention"] == made
    assert not folder.program.model.functions
    ops = Counter(node.op_type for node in folder.program.model.graph)
    assert bool({"Cos", "Softmax"} & ops.keys()) == (made == 0)
    # Queries, keys and values are one product, as for contrib.
    assert made == 0 or ops["MatMul"] == LAYERS * 5 + 1
    wanted = tokens_of_transformers(model, LONG, torch.ones_like(LONG), max_new_tokens=12)
    tokens = coreai_onnx.generate(folder.path, LONG, max_new_tokens=12, stop_ids=())
    assert tokens.tolist() == wanted.tolist()


def test_batches_with_padding_stay_possible(tmp_path: Path) -> None:
    model = llama()
    folder = export_model(model, tmp_path / "folder", target="contrib", padding="left")
    assert contract(folder.program) == Contract("left", "growing", 256)
    assert not contrib(folder.program)["GroupQueryAttention"]
    misses = {miss.miss.reason for miss in folder.program.pass_report.near_misses}
    assert "the contract of the file allows padding on the left" in misses
    ids, mask = padded()
    wanted = tokens_of_transformers(model, ids, mask, max_new_tokens=12)
    tokens = coreai_onnx.generate(
        folder.path, ids, attention_mask=mask, max_new_tokens=12, stop_ids=()
    )
    assert tokens.tolist() == wanted.tolist()


def test_a_file_without_padding_is_optimized_later(tmp_path: Path) -> None:
    """The contract is in the file, so a later call of optimize can use it."""
    folder = export_model(llama(), tmp_path / "folder", padding="none")
    assert not contrib(folder.program)
    program = OnnxProgram.load(folder.path / "model.onnx").optimize(target="contrib")
    assert contrib(program) == {"GroupQueryAttention": LAYERS}


def test_paddings_of_other_models(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="padding 'right' must be one of left, none"):
        export_model(llama(), tmp_path / "folder", padding="right")
    # Without keys and values, padding is what the mask says.
    mamba = export_model(GENERATORS["mamba"].module(), tmp_path / "mamba", target="contrib")
    assert contract(mamba.program) is None


def test_a_part_of_each_head_is_rotated_inside_the_operator(tmp_path: Path) -> None:
    """The export compares it with torch: prompts and steps."""
    config = transformers.GPTNeoXConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=2, rotary_pct=0.5, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.GPTNeoXForCausalLM(config).eval()
    program = export_model(model, tmp_path / "folder", target="contrib").program
    nodes = [n for n in program.model.graph if n.op_type == "GroupQueryAttention"]
    assert [node.attributes["do_rotary"].value for node in nodes] == [1] * LAYERS
    assert all(node.inputs[7].shape == (64, 8) for node in nodes)
    assert all(node.op_type != "rope" for node in program.model.graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_the_tokens_of_contrib(name: str, tmp_path: Path) -> None:
    """Prompts of one length, and one prompt, in files without padding."""
    model = GENERATORS[name].module()
    folder = export_model(model, tmp_path / "folder", target="contrib")
    opened = LanguageModel.open(folder.path)
    for prompt in (SAME_LENGTH, LONG):
        wanted = tokens_of_transformers(model, prompt, torch.ones_like(prompt), max_new_tokens=32)
        assert opened.generate(prompt, max_new_tokens=32, stop_ids=()).tolist() == wanted.tolist()
