"""Tokens that transformers chooses: those of its own model, for every way of choosing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel, stream
from tests.models.generators import GENERATORS
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.huggingface_folders import llama, tokenizer

IDS = torch.tensor([[5, 9, 17]])
PROMPT, NEW = [5, 9, 17], 12
NEVER: dict[str, Any] = {"max_new_tokens": NEW, "stop_ids": ()}
Opened = tuple[Any, LanguageModel]


class Even(transformers.LogitsProcessor):
    """Leaves even tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, with odd tokens at minus infinity."""
        del input_ids
        odd = torch.arange(scores.shape[-1]) % 2 == 1
        return scores.masked_fill(odd, -torch.inf)


class AfterSix(transformers.StoppingCriteria):
    """Ends after six tokens in all."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return which sequences have ended."""
        del scores
        return torch.full((len(input_ids),), input_ids.shape[1] >= 6)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A decoder and its folder, opened."""
    model = llama()
    return model, LanguageModel.open(export_model(model, tmp_path_factory.mktemp("d") / "f").path)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A T5 and its folder, opened."""
    model = SEQUENCE_TO_SEQUENCE[0].module()
    return model, LanguageModel.open(export_model(model, tmp_path_factory.mktemp("t") / "f").path)


def tokens_of(model: Any, ids: torch.Tensor = IDS, *, seed: int = 0, **options: Any) -> Any:
    """Return the tokens of transformers; none ends a sequence."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "use_cache": True}
    settings |= {"max_new_tokens": NEW}
    torch.manual_seed(seed)
    mask = torch.ones_like(ids)
    return model.generate(input_ids=ids, attention_mask=mask, **(settings | options)).tolist()


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    {"min_p": 0.05},
    {"temperature": 1.4, "num_return_sequences": 3},
    {"do_sample": True, "repetition_penalty": 1.3},
    {"temperature": 0.9, "num_beams": 3},
]
EVERY_TOKEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "do_sample": True}


@pytest.mark.parametrize("options", SAMPLED, ids=str)
def test_samples(options: dict[str, Any], decoder: Opened) -> None:
    model, opened = decoder
    before = torch.random.get_rng_state()
    tokens = opened.generate([PROMPT], seed=7, **NEVER, **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert tokens.tolist() == tokens_of(model, seed=7, **(EVERY_TOKEN | options))


@pytest.mark.parametrize("kind", ["decoder", "both"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0},
        {"num_beams": 2, "early_stopping": True, "no_repeat_ngram_size": 2},
        {"logits_processor": [Even()]},
        {"stopping_criteria": [AfterSix()]},
        {"prefix_allowed_tokens_fn": lambda _, ids: [len(ids), 50]},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda options: next(iter(options)) + str(len(options)),
)
def test_ways_to_choose(kind: str, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    model, opened = request.getfixturevalue(kind)
    batch = IDS if "prompt_lookup_num_tokens" in options else IDS.new_tensor([PROMPT, [8, 3, 44]])
    expected = tokens_of(model, batch, **options)
    assert opened.generate(batch, **NEVER, **options).tolist() == expected
    if kind == "decoder":
        assert expected != tokens_of(model, batch) or "num_beams" in options or len(batch) == 1
    assert opened.generate(batch, **NEVER).tolist() == tokens_of(model, batch)


def test_an_assistant(decoder: Opened, tmp_path: Path) -> None:
    """The assistant is a folder too, or a model of transformers."""
    model, opened = decoder
    small = llama(num_hidden_layers=1)
    folder = export_model(small, tmp_path / "assistant").path
    for assistant in (folder, small, opened):
        tokens = opened.generate([PROMPT], **NEVER, assistant_model=assistant)
        assert tokens.tolist() == tokens_of(model)


def test_a_static_cache_takes_candidates_and_beams(decoder: Opened, tmp_path: Path) -> None:
    model, _ = decoder
    opened = LanguageModel.open(export_model(model, tmp_path / "static", cache="static").path)
    options = {"prompt_lookup_num_tokens": 3}
    assert opened.generate([PROMPT], **NEVER, **options).tolist() == tokens_of(model)
    expected = tokens_of(model, num_beams=3)
    assert opened.generate([PROMPT], **NEVER, num_beams=3).tolist() == expected


def test_recurrent_states(tmp_path: Path) -> None:
    """They are reordered for beams; candidates cannot be taken back."""
    model = GENERATORS["lfm2"].module()
    opened = LanguageModel.open(export_model(model, tmp_path / "folder").path)
    expected = tokens_of(model, num_beams=3)
    assert opened.generate([PROMPT], **NEVER, num_beams=3).tolist() == expected
    with pytest.raises(GenerationError, match="not supported with stateful models"):
        opened.generate([PROMPT], **NEVER, prompt_lookup_num_tokens=3)


def test_a_prompt_of_one_token(tmp_path: Path) -> None:
    """The steps of Zamba 2 have limits in the first call, and none in those that follow."""
    model = GENERATORS["zamba2"].module()
    opened = LanguageModel.open(export_model(model, tmp_path / "folder").path)
    assert opened.generate([[7]], **NEVER).tolist() == tokens_of(model, torch.tensor([[7]]))


def test_a_streamer(decoder: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    model, opened = decoder
    tokens_of(model, streamer=transformers.TextStreamer(tokenizer()))
    expected = capsys.readouterr().out
    opened.generate(PROMPT, **NEVER, streamer=transformers.TextStreamer(tokenizer()))
    assert capsys.readouterr().out == expected != ""


def test_steps_stop_and_sample_as_transformers(decoder: Opened) -> None:
    model, opened = decoder
    options: dict[str, Any] = {"temperature": 0.8, "stopping_criteria": [AfterSix()]}
    expected = tokens_of(model, seed=3, **(EVERY_TOKEN | options))[0][len(PROMPT) :]
    assert list(stream(opened, PROMPT, seed=3, **NEVER, **options)) == expected
    with pytest.raises(GenerationError, match="final only at the end; use generate"):
        stream(opened, PROMPT, num_beams=2)


def test_a_model_of_transformers(decoder: Opened, both: Opened) -> None:
    """All arguments of transformers' generate; scores of both models agree."""
    for model, opened in (decoder, both):
        options = {"output_scores": True, "return_dict_in_generate": True, "num_beams": 2}
        settings = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None, **options}
        expected = model.generate(IDS, do_sample=False, **settings)
        result = opened.as_transformers().generate(IDS, **settings)
        assert result.sequences.tolist() == expected.sequences.tolist()
        torch.testing.assert_close(result.sequences_scores, expected.sequences_scores)


def test_a_spectrogram(tmp_path: Path) -> None:
    """A speech model without Whisper's settings is a decoder like others."""
    model = SEQUENCE_TO_SEQUENCE[2].module()
    opened, sound = (
        LanguageModel.open(export_model(model, tmp_path / "w").path),
        torch.randn(16, 40),
    )
    tokens = opened.generate(sound, max_new_tokens=4, stop_ids=())
    assert tokens.shape == (5,)
    assert opened.generate(sound[None].numpy(), max_new_tokens=4, stop_ids=()).shape == (1, 5)
    for wrong in ([5, 9], "text", torch.zeros(3)):
        with pytest.raises(GenerationError, match="the prompt is a spectrogram"):
            opened.generate(wrong)


def test_padding_is_neither_repeated_nor_read(decoder: Opened, both: Opened) -> None:
    """A shorter prompt of a batch gives the tokens that it gives alone."""
    for _, opened in (decoder, both):
        options: dict[str, Any] = {**NEVER, "repetition_penalty": 1.5}
        alone = opened.generate([4, 7], **options).tolist()
        batch = opened.generate([[5, 9, 17, 3], [4, 7]], **options).tolist()
        assert batch[1][-NEW:] == alone[-NEW:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0 must be a number above 0"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.5}, "top_p=1.5 must be a number above 0 and at most 1"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": -1.0}, "penalty"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5 must be an integer"),
        ({"num_beams": 0}, "num_beams"),
        ({"seed": "x"}, "seed|int"),
        ({"assistant_model": 3}, "a int does not generate"),
    ],
    ids=str,
)
def test_options_out_of_range(options: Any, message: str, decoder: Opened) -> None:
    with pytest.raises(GenerationError, match=message):
        decoder[1].generate(PROMPT, **options)


RULES: list[dict[str, Any]] = [
    {"forced_bos_token_id": 7, "forced_eos_token_id": 9},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"suppress_tokens": [3, 5, 8], "begin_suppress_tokens": [4, 2], "forced_bos_token_id": 7},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: next(iter(rules)))
def test_the_rules_of_a_configuration(rules: dict[str, Any], tmp_path: Path) -> None:
    """Of BART, and of Llama, with its likely tokens suppressed."""
    for model in (SEQUENCE_TO_SEQUENCE[1].module(), llama()):
        likely = model(input_ids=IDS).logits[0, -1].argsort(descending=True)[:4].tolist()
        suppressed = {name: likely for name in rules if "suppress" in name}
        model.generation_config.update(**{"forced_eos_token_id": None} | rules | suppressed)
        model.config.forced_eos_token_id = None
        settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        wanted = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), **settings)
        folder = export_model(model, tmp_path / type(model).__name__, check=False).path
        tokens = LanguageModel.open(folder).generate(IDS, max_new_tokens=12, stop_ids=())
        assert tokens.tolist() == wanted.tolist()
