"""The contract of a decoder: what its callers feed, so that its file need not compute the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.metadata import CONTRACT

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
BLOCK_TABLE, CACHE_LENGTHS, STATE_SLOTS = "block_table", "cache_lengths", "state_slots"
"""The inputs of a decoder with a paged cache."""
SOURCE_TABLE, SOURCE_LENGTHS = "encoder_block_table", "encoder_lengths"
"""The same for the encoder's result, of a model that has one."""
ENCODED = "encoded."
"""What the inputs with new keys and values of that result begin with: ``encoded.0.key``."""
BLOCKS, SLOTS, SOURCE_BLOCKS = "blocks", "slots", "encoder_blocks"
"""The dims of its pools of keys and values, of recurrent states, and of an encoder's result."""
PADDINGS = ("left", "none")
_CACHES = ("growing", "static")


@dataclass(frozen=True)
class Contract:
    """What the callers of a decoder feed.

    Attributes:
        padding: ``"left"``: the prompts of a batch are padded on the left, with zeros in the mask.
            ``"none"``: the mask is ones, and positions continue from the number of cached tokens.
        cache: ``"growing"``: the cache in is as long as its tokens. ``"static"``: it has a
            capacity, and the mask covers the tokens only.
        max_positions: The number of positions that the model has; None if it has no limit.
    """

    padding: str
    cache: str
    max_positions: int | None = None

    def __post_init__(self) -> None:
        """Check the values, which a file may state.

        Raises:
            ValueError: If one of them is unknown.
        """
        count = self.max_positions
        # JSON's true is an integer in Python.
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if self.padding not in PADDINGS or self.cache not in _CACHES:
            raise ValueError(f"padding {self.padding!r:.20} or cache {self.cache!r:.20} is unknown")
        if not (count is None or is_count):
            raise ValueError(f"max_positions is {count!r:.20}, not a positive integer")

    @property
    def is_unpadded(self) -> bool:
        """Whether each row has the same positions, those after the cached tokens."""
        return self.padding == "none"

    def write(self, metadata: dict[str, str]) -> None:
        """Store the contract in the metadata of a model."""
        metadata[CONTRACT] = json.dumps(asdict(self))

    def fault(self, arrays: Mapping[str, Any]) -> tuple[str, str, str] | None:
        """Return the input that breaks the contract, how, and what to do; None if none does.

        Args:
            arrays: The inputs of a call, of the dtypes and ranks of the model.
        """
        if not self.is_unpadded or IDS not in arrays or MASK not in arrays:
            return None
        mask, (batch, count) = arrays[MASK], arrays[IDS].shape
        total = mask.shape[1]
        if not mask.all():
            return MASK, "has zeros, and the file was exported without padding", _UNPADDED
        if count > total:
            return MASK, f"has {total} columns for {count} tokens", _WHOLE
        if self.max_positions is not None and total > self.max_positions:
            return (
                MASK,
                f"has {total} columns, and the model has {self.max_positions} positions",
                ("give fewer tokens"),
            )
        expected = np.arange(total - count, total)
        if POSITIONS in arrays and not (arrays[POSITIONS] == expected).all():
            what = f"must be {total - count} to {total - 1} in each row, after the cached tokens"
            return POSITIONS, what, _UNPADDED
        if batch > 1 and 1 < count < total:
            what = f"has {count} tokens in each of {batch} rows, after {total - count} cached ones"
            return IDS, what, "onnxruntime takes one token per row, or one row: split the call"
        return None


_UNPADDED = 'give prompts of one length, or export with padding="left" for padded batches'
_WHOLE = "the mask covers cached and new tokens"


def read_contract(metadata: Mapping[str, str]) -> Contract | None:
    """Read the contract from a model's metadata (key ``CONTRACT``); None if there is none.

    Raises:
        ValueError: If it has another form.
    """
    if CONTRACT not in metadata:
        return None
    try:
        entry = json.loads(metadata[CONTRACT])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(entry, dict):
        raise ValueError(f"a {type(entry).__name__} is not a contract")
    # Entries of later versions are not read: they must not change the meaning of these.
    return Contract(entry.get("padding", ""), entry.get("cache", ""), entry.get("max_positions"))
