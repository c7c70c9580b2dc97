"""From folders, programs and sessions to text and tokens."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import GenerationError, ProviderError
from coreai_onnx.huggingface import ExportedFolder, export_model
from coreai_onnx.huggingface.generation import LanguageModel, generate, stream
from coreai_onnx.huggingface.generation.streamed_text import pieces
from coreai_onnx.program import OnnxProgram
from tests.models.generators import padded, tokens_of_transformers
from tests.support.execution_providers import WITHOUT_ARENA, count_without_arena
from tests.support.huggingface_folders import llama_folder, tokenizer

PROMPT = [5, 9, 17, 33, 8]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ExportedFolder]:
    """A decoder and what it is exported to."""
    place = tmp_path_factory.mktemp("decoder")
    model = llama_folder(place / "source")
    return model, export_model(place / "source", place / "folder")


def test_every_kind_of_model_gives_the_same_tokens(decoder: tuple[Any, ExportedFolder]) -> None:
    model, exported = decoder
    ids = torch.tensor([PROMPT])
    wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=16)[0]
    session = exported.program.session()
    opened = LanguageModel.open(exported.path, kernels=False)
    for source in (exported.path, str(exported.path), exported.program, session, opened):
        tokens = generate(source, PROMPT, max_new_tokens=16, stop_ids=())
        assert tokens.tolist() == wanted.tolist(), source
    assert session.state == {}, "the states of the session do not change"


@pytest.mark.skipif(sys.platform == "win32", reason="files of packed weights are not mapped there")
def test_packed_weights_give_the_same_tokens(
    decoder: tuple[Any, ExportedFolder], tmp_path: Path
) -> None:
    folder, packed = tmp_path / "few_bits", tmp_path / "packed"
    export_model(decoder[1].path.parent / "source", folder, quantization={"bits": 4})
    wanted = LanguageModel.open(folder, kernels=True).generate(PROMPT, max_new_tokens=9)
    sizes = []
    for _ in range(2):
        opened = LanguageModel.open(folder, packed_weights=packed)
        assert opened.generate(PROMPT, max_new_tokens=9).tolist() == wanted.tolist()
        sizes.append(packed.stat().st_size)
    assert sizes[1] == sizes[0] > 64, "the second one has added to the file"


def test_a_batch_and_its_mask(decoder: tuple[Any, ExportedFolder]) -> None:
    model, exported = decoder
    ids, mask = padded()
    wanted = tokens_of_transformers(model, ids, mask, max_new_tokens=9)
    for options in ({"attention_mask": mask}, {"attention_mask": mask.numpy()}):
        tokens = generate(exported.path, ids, max_new_tokens=9, stop_ids=(), **options)
        assert isinstance(tokens, np.ndarray)
        assert tokens.tolist() == wanted.tolist()


def test_the_configuration_ends_a_sequence(decoder: tuple[Any, ExportedFolder]) -> None:
    opened = LanguageModel.open(decoder[1].path)
    assert (opened.stop_ids, opened.pad_id) == ((2,), 0)
    tokens = opened.generate(PROMPT, max_new_tokens=40, stop_ids=()).tolist()
    third = tokens[len(PROMPT) + 2]
    shorter = LanguageModel(opened.session, stop_ids=(third,)).generate(PROMPT, max_new_tokens=40)
    assert shorter.tolist() == tokens[: tokens.index(third, len(PROMPT)) + 1]


def test_text_goes_in_and_out(decoder: tuple[Any, ExportedFolder]) -> None:
    model, exported = decoder
    encoded = tokenizer()(["Hello there", "Hi"], padding=True, padding_side="left")
    ids, mask = (torch.tensor(encoded[name]) for name in ("input_ids", "attention_mask"))
    tokens = tokens_of_transformers(model, ids, mask, max_new_tokens=20)[:, ids.shape[1] :]
    wanted = tokenizer().batch_decode(tokens, skip_special_tokens=True)
    opened = LanguageModel.open(exported.path)
    texts = opened.generate(["Hello there", "Hi"], max_new_tokens=20, stop_ids=())
    assert texts == wanted
    assert opened.generate("Hi", max_new_tokens=20, stop_ids=()) == wanted[1]


def test_steps(decoder: tuple[Any, ExportedFolder]) -> None:
    opened = LanguageModel.open(decoder[1].path)
    options: dict[str, Any] = {"max_new_tokens": 12, "stop_ids": ()}
    whole = opened.generate(PROMPT, **options).tolist()
    assert list(stream(opened, PROMPT, **options)) == whole[len(PROMPT) :]
    rows = list(stream(opened, [PROMPT, PROMPT], **options))
    assert [row.tolist() for row in rows] == [[token] * 2 for token in whole[len(PROMPT) :]]
    started = stream(opened, PROMPT, **options)
    assert next(started) == whole[len(PROMPT)]
    started.close()


def test_steps_of_text_are_whole_characters() -> None:
    """A character of several tokens comes with its last one."""
    tokens = tokenizer()("aé€b")["input_ids"]
    steps = (torch.tensor([token]) for token in tokens)
    read = list(pieces(steps, tokenizer().decode, is_single=True))
    assert read == ["a", "", "é", "", "", "€", "b"]
    # What is left of a character comes at the end, as in the text of generate.
    rows = torch.tensor([tokens[:2], tokens[:2]]).T
    read = list(pieces(iter(rows), tokenizer().decode, is_single=False))
    assert read == [["a", "a"], ["", ""], ["\N{REPLACEMENT CHARACTER}"] * 2]


def test_sampling_repeats_with_a_seed(decoder: tuple[Any, ExportedFolder]) -> None:
    opened = LanguageModel.open(decoder[1].path)
    first, again, other = (
        opened.generate(PROMPT, max_new_tokens=16, temperature=1.5, seed=seed).tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_provider(decoder: tuple[Any, ExportedFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = decoder[1].path, count_without_arena(monkeypatch)
    expected = generate(path, [1, 5, 9], max_new_tokens=3)
    for count, model in enumerate((path, OnnxProgram.load(path / "model.onnx")), 1):
        actual = generate(model, [1, 5, 9], max_new_tokens=3, provider=WITHOUT_ARENA)
        assert actual.tolist() == expected.tolist()
        assert len(opened) == count
    steps = stream(path, [1, 5, 9], max_new_tokens=3, provider=WITHOUT_ARENA)
    assert [*steps] == expected.tolist()[3:]
    assert len(opened) == 3
    for model in (LanguageModel.open(path), coreai_onnx.session(path / "model.onnx")):
        with pytest.raises(GenerationError, match="provider and kernels are chosen when"):
            generate(model, [1, 5, 9], provider="cpu")
    with pytest.raises(ProviderError, match="tpu is not available"):
        LanguageModel.open(path, provider="tpu")


def test_what_is_refused(decoder: tuple[Any, ExportedFolder], tmp_path: Path) -> None:
    program = decoder[1].program
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (tmp_path / "nowhere", PROMPT, {}, "no such folder"),
        (tmp_path / ("x" * 300), PROMPT, {}, "no such folder"),
        (tmp_path, PROMPT, {}, "there is no model.onnx; export"),
        (3, PROMPT, {}, "a int does not generate"),
        (program, "text", {}, "there is no tokenizer"),
        (program, [], {}, "a prompt is text, token ids"),
        (program, PROMPT, {"top_p": 7.0}, "top_p"),
        (program, PROMPT, {"max_new_tokens": 0}, "max_new_tokens=0"),
        (program, PROMPT, {"max_length": 9}, "no option 'max_length'; there are max_new_tokens"),
    ]
    for model, prompt, options, message in cases:
        with pytest.raises(GenerationError, match=message):
            coreai_onnx.generate(model, prompt, **options)


def test_a_broken_configuration(decoder: tuple[Any, ExportedFolder], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((decoder[1].path / "model.onnx").read_bytes())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(GenerationError, match=r"cannot read .*config\.json"):
        LanguageModel.open(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(GenerationError, match="cannot read the tokenizer"):
        LanguageModel.open(tmp_path)


@pytest.mark.slow
def test_memory_does_not_grow_beyond_the_cache(decoder: tuple[Any, ExportedFolder]) -> None:
    """2,000 tokens: 2 layers of keys and values are 0.5 KiB a token, with capacity for more."""
    opened = LanguageModel.open(decoder[1].path, threads=1)
    before = 0
    for i, _ in enumerate(stream(opened, PROMPT, max_new_tokens=2000, stop_ids=())):
        if i == 100:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 24 * 1024, f"{grown} KiB"
