"""The names of a model's weights in a checkpoint: transformers renames and merges some of them."""

from __future__ import annotations

import re
from typing import Any

from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.huggingface.transformers_names import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    get_model_conversion_mapping,
    rename_source_key,
)

_WEIGHT = ".weight"
_STORED = re.compile(r"(.+?)\.(?:weight|qweight|W_q)(?:[._].*)?$")
"""The names of tensors that hold a weight, or a part of one, after the path of the layer."""
_OF_EXPERTS = re.compile(r"(.+)_(?:blocks|scale_inv)$")
"""The names of parts of a weight of all experts."""


class WeightNames:
    """The names of a model's weights in a checkpoint.

    Args:
        model: The model, with its layers as transformers builds them.
        tensors: The checkpoint.

    Attributes:
        tensors: The name in the checkpoint of each weight.
        layers: The path in the checkpoint of each layer.
        experts: The paths in the checkpoint of the layers that are parts of an experts' weight: by
            the name of the weight a list for each expert.
    """

    def __init__(self, model: Any, tensors: Checkpoint) -> None:
        """Rename everything in the checkpoint."""
        conversions = get_model_conversion_mapping(model)
        self._renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
        self._converters = [c for c in conversions if isinstance(c, WeightConverter)]
        self._prefix, self._state = model.base_model_prefix, model.state_dict()
        self.tensors: dict[str, str] = {}
        self.layers: dict[str, str] = {}
        self.experts: dict[str, list[list[str]]] = {}
        paths: dict[str, None] = {}
        for name in tensors:
            # transformers' own functions rename, so that names follow its releases.
            renamed, pattern = self._renamed(name)
            # A pattern means that several tensors become one weight: none of them is that weight.
            if pattern is None:
                self.tensors[renamed] = name
            if match := _STORED.match(name):
                paths[match[1]] = None
            elif match := _OF_EXPERTS.match(name):
                self.layers[self._renamed(match[1])[0]] = match[1]
        parts: dict[str, dict[int, dict[int, str]]] = {}
        for path in paths:
            # Renamings are written for plain weights: codes have other endings, so that the path is
            # renamed as if it had a weight.
            renamed, pattern = self._renamed(path + _WEIGHT)
            place = None if pattern is None else self._expert(path + _WEIGHT, pattern)
            if place is not None:
                expert, part = place
                parts.setdefault(renamed, {}).setdefault(expert, {})[part] = path
            else:
                self.layers[renamed.removesuffix(_WEIGHT)] = path
        for renamed, experts in parts.items():
            self.experts[renamed] = [
                # Files list experts in the order of text: 10 before 2.
                [experts[expert][part] for part in sorted(experts[expert])]
                for expert in sorted(experts)
            ]

    def _renamed(self, name: str) -> tuple[str, str | None]:
        """Return a name in the model, and the pattern of the weights that are merged to it."""
        renamed: tuple[str, str | None] = rename_source_key(
            name, self._renamings, self._converters, self._prefix, self._state
        )
        return renamed

    def _expert(self, name: str, pattern: str) -> tuple[int, int] | None:
        """Return the number of an expert and of the part of its weight."""
        # The star of a pattern is the number of the expert.
        number = re.escape(pattern).replace(r"\*", r"(\d+)")
        match = re.search(number, rename_source_key(name, self._renamings, [])[0])
        for converter in self._converters:
            if match and pattern in converter.source_patterns:
                merges = [type(operation) for operation in converter.operations]
                # Other operations, such as a transposition, cannot be made on packed codes.
                if merges in ([MergeModulelist], [MergeModulelist, Concatenate]):
                    return int(match[1]), converter.source_patterns.index(pattern)
        return None
