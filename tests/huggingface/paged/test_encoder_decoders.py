"""Models of an encoder and a decoder with a paged cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import ConversionError, ModelSourceError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.encoder_decoders import EncoderPart
from coreai_onnx.huggingface.paged import decoders
from coreai_onnx.huggingface.paged.decoders import BLOCK, SPARE, Pages
from coreai_onnx.huggingface.paged.encoder_decoders import PagedDecoderPart, paged_encoder
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE, SWITCH

SPECIAL = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
SMALL: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "max_position_embeddings": 80}
HALVES = {
    f"{half}_{name}": value
    for half in ("encoder", "decoder")
    for name, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()
}
T5_SHAPE = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    shape = T5_SHAPE if name.endswith("T5") else SMALL | HALVES
    config = getattr(transformers, f"{name}Config")(**shape, **SPECIAL)
    return transformers.AutoModelForSeq2SeqLM.from_config(config).eval()


def test_names_and_arguments() -> None:
    model = SEQUENCE_TO_SEQUENCE[0].module()
    encoder = paged_encoder(model, check=False)
    decoder = encoder.decoder
    assert encoder.input_names == ["input_ids", "attention_mask"]
    encoded = ["encoded.0.key", "encoded.0.value"]
    assert encoder.output_names == encoded
    first = ["input_ids", "block_table", "cache_lengths", "encoder_block_table", "encoder_lengths"]
    assert decoder.input_names[:8] == [*first, *encoded, "past_key_values.0.decoder.key"]
    assert decoder.output_names[-1] == "present.0.encoder.value"
    _, table, lengths, sources, states, new, pools = decoder.arguments((20, 3), (5, 60), 2, 4)
    assert (lengths.tolist(), states.tolist()) == ([20, 3], [5, 60])
    assert (table.shape, sources.shape) == ((2, 3), (2, 6))
    assert {tuple(x.shape) for x in new} == {(2, 4, 4, 16)}
    own, cross = ((count + SPARE, BLOCK, 4, 16) for count in (6, 12))
    assert [tuple(x.shape) for x in pools] == [own, own, cross, cross]


@pytest.mark.parametrize(
    "name", ["T5", "MT5", "LongT5", "Bart", "MBart", "Marian", "Pegasus", "Blenderbot"]
)
def test_rows_of_several_lengths_have_the_logits_of_each_alone(name: str) -> None:
    paged_encoder(model_of(name), check=True)


def test_states_beyond_the_length_of_a_row_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a row would attend to what its blocks had before."""
    sources = Pages.written

    def dirty(self: Pages, pool: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return sources(self, torch.where(pool == 0, 9.0, pool), x)

    monkeypatch.setattr(Pages, "written", dirty)
    paged_encoder(model_of("T5"), check=True)


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_positions_without_an_offset_for_each_row_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = decoders._Paged.get_seq_length
    monkeypatch.setattr(
        decoders._Paged,
        "get_seq_length",
        lambda self: lengths(self).amax().expand(len(lengths(self)), 1),
    )
    with pytest.raises(ConversionError, match="a row in a paged cache has other logits beside"):
        paged_encoder(model_of(name), check=True)


def test_models_without_a_paged_cache(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"Whisper.* its encoder does not read text"):
        export_model(SEQUENCE_TO_SEQUENCE[2].module(), tmp_path / "folder", cache="paged")
    with pytest.raises(ModelSourceError, match=r"Switch.* experts take a number of tokens of all"):
        export_model(SWITCH.module(), tmp_path / "folder", cache="paged")
    model = model_of("M2M100")
    encoder = EncoderPart(model)
    with pytest.raises(ModelSourceError, match=r"M2M100.* after cached ones of several lengths: "):
        PagedDecoderPart(model, encoder)
    with pytest.raises(ModelSourceError, match="has no paged cache"):
        export_model(model_of("T5"), tmp_path / "folder", cache="paged", lora=True)
    assert not list(tmp_path.iterdir())
