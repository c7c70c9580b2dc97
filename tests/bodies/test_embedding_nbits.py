"""Bodies of lookups: the rows are selected before they are unpacked."""

from __future__ import annotations

import torch

from tests.composites.one_model import model_of
from tests.support.composite_calls import CASES


def test_rows_are_selected_first_and_variants_are_named() -> None:
    calls = [(c, torch.float32) for c in CASES if c.composite == "embedding_nbits"]
    model, _ = model_of(calls, 23)
    names = {function.name for function in model.functions.values()}
    assert {"embedding_nbits", "embedding_nbits.bits2_palette"} <= names
    assert {"embedding_nbits.zero_points", "embedding_nbits.bits8_zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)
    plain = model.functions["ai.coreai", "embedding_nbits", ""]
    ops = [node.op_type for node in plain]
    assert ops.index("Gather") < ops.index("Div")
    assert ops.count("Gather") == 2
