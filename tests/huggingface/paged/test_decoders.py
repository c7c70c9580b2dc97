"""Decoders with a paged cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.paged import decoders
from coreai_onnx.huggingface.paged.decoders import (
    BLOCK,
    CacheForm,
    CodedPagedDecoder,
    PagedDecoder,
    Pages,
    check_pages,
    decoder_of,
)
from tests.models.generators import GENERATORS, RWKV
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close


def test_names_and_arguments() -> None:
    decoder = PagedDecoder(llama())
    first = ["input_ids", "block_table", "cache_lengths", "logits_to_keep"]
    assert decoder.input_names[:5] == [*first, "past_key_values.0.key"]
    ids, table, lengths, slots, kept, pools = decoder.arguments(3, 2, 7)
    assert lengths.tolist() == [21, 28, 35]
    assert table.shape == (3, 4)
    assert table.unique().numel() == 12
    assert slots is None
    assert kept.tolist() == [0, 1]
    assert {tuple(pool.shape) for pool in pools} == {(15, BLOCK, 2, 16)}
    assert ids.shape == (3, 2)
    assert decoder.contract("left") is None
    recurrent = PagedDecoder(GENERATORS["mamba2"].module())
    assert recurrent.input_names[:3] == ["input_ids", "cache_lengths", "state_slots"]
    assert recurrent.arguments(3, 2, 7)[1] is None
    assert type(decoder_of(llama(), CacheForm())) is not PagedDecoder
    assert decoder_of(llama(), CacheForm("static")).slots[0].is_static


def test_tokens_are_written_to_the_blocks_of_their_rows() -> None:
    table = torch.tensor([[3, 1], [0, 2]])
    pages = Pages(table, torch.tensor([BLOCK - 1, 4]), 2)
    keys = torch.arange(1.0, 9).reshape(2, 1, 2, 2)
    pool = pages.written(torch.zeros(4, BLOCK, 1, 2), keys)
    assert pool[3, BLOCK - 1, 0].tolist() == [1, 2]
    assert pool[1, 0, 0].tolist() == [3, 4]
    assert pool[0, 4:6, 0].tolist() == [[5, 6], [7, 8]]
    assert int((pool != 0).sum()) == 8
    rows = pages.read(pool)
    assert rows.shape == (2, 1, 2 * BLOCK, 2)
    assert rows[0, 0, BLOCK - 1 : BLOCK + 1].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gemma3_text", "jamba", "mamba2"])
def test_rows_of_several_lengths_have_the_logits_of_each_alone(name: str) -> None:
    check_pages(PagedDecoder(GENERATORS[name].module()))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", ["llama", "falcon_h1"])
@torch.no_grad()
def test_codes_in_blocks_are_those_of_a_growing_cache(name: str, bits: int) -> None:
    model = GENERATORS[name].module()
    paged, growing = (decoder_of(model, CacheForm(kind, bits)) for kind in ("paged", "growing"))
    assert isinstance(paged, CodedPagedDecoder)
    assert [slot.kind for slot in paged.slots] == [slot.kind for slot in growing.slots]
    _, table, _, slots, _, pools = paged.arguments(2, 1, 30)
    _, mask, positions, kept, cache = growing.arguments(1, 21, 0)
    prompt = torch.randint(3, 60, (1, 21), generator=torch.Generator().manual_seed(0))
    for tokens, past in ((prompt, 0), (prompt[:, :1], 21)):
        _, mask, positions, kept, _ = growing.arguments(1, tokens.shape[1], past)
        expected, *cache = growing(tokens, mask, positions, kept, cache)
        where = [None if x is None else x[:1] for x in (table, slots)]
        logits, *pools = paged(tokens, where[0], torch.tensor([past]), where[1], kept, pools)
        assert_close(logits, expected)
    pages = Pages(table[:1], torch.tensor([22]), 0)
    for slot, pool, x in zip(paged.slots, pools, cache, strict=True):
        if slot.dtype == torch.uint8:
            assert (pages.read(pool)[:, :, :22] == x).double().mean() > 0.99


def test_rwkv_has_states_only() -> None:
    check_pages(PagedDecoder(RWKV.module()))


def test_masks_without_an_offset_for_each_row_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a model that computes them in its own code."""
    lengths = decoders._Paged.get_seq_length
    monkeypatch.setattr(
        decoders._Paged,
        "get_seq_length",
        lambda self: lengths(self).amax().expand(len(lengths(self)), 1),
    )
    with pytest.raises(ConversionError, match="a row in a paged cache has other logits beside"):
        check_pages(PagedDecoder(llama()))


def test_models_without_a_paged_cache(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="OpenAIGPTLMHeadModel has no cache"):
        export_model(GENERATORS["openai_gpt"].module(), tmp_path / "folder", cache="paged")
    for name in ("opt", "mpt"):  # positions and biases in code of their own
        with pytest.raises(ConversionError, match="does not run with a paged cache"):
            export_model(GENERATORS[name].module(), tmp_path / "folder", cache="paged")
    assert not list(tmp_path.iterdir())


def test_a_plain_onnxruntime_runs_the_file(tmp_path: Path) -> None:
    model = llama()
    folder = export_model(model, tmp_path / "folder", cache="paged").path
    assert not (folder / "genai_config.json").exists()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    pools = {
        x.name: np.zeros((6, BLOCK, 2, 16), np.float32)
        for x in session.get_inputs()
        if x.name.startswith("past")
    }
    names = [output.name for output in session.get_outputs()]
    tables, rows = [[4, 2], [1, 5]], [list(range(3, 23)), [5, 9, 17]]
    for table, row in zip(tables, rows, strict=True):
        feeds = {"input_ids": np.array([row]), "block_table": np.array([table])}
        feeds["cache_lengths"] = np.array([0])
        results = dict(zip(names, session.run(None, feeds | pools), strict=True))
        pools = {name: results[name.replace("past_key_values", "present")] for name in pools}
    feeds = {"input_ids": np.array([[7], [8]]), "block_table": np.array(tables)}
    feeds["cache_lengths"] = np.array([20, 3])
    logits = session.run(["logits"], feeds | pools)[0]
    with torch.no_grad():
        expected = [model(torch.tensor([[*rows[0], 7]])), model(torch.tensor([[*rows[1], 8]]))]
    assert_close(logits[:, 0], torch.cat([x.logits[:, -1] for x in expected]))
