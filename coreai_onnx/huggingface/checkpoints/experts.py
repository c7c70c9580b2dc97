"""Experts of transformers with packed weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from coreai_onnx.composites import torch_ops
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.compat.experts import expert_product, weighted_experts
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointModule,
    LayerWeight,
    PackedMatrix,
)
from coreai_onnx.huggingface.checkpoints.rounded_activations import Rounding
from coreai_onnx.model.weight_formats import BY_ROW


class PackedExperts(CheckpointModule):
    """The experts of a layer, with packed weights.

    Args:
        like: The experts of transformers. Their weights are removed; the rest is used: the
            activation, biases and norms.
        weights: The matrices of all experts, by the names of the weights that they replace: the
            parts of a matrix have an axis for the experts in front. A weight is one matrix, or
            several whose outputs follow each other, if they differ in the size of codes or groups.
    """

    def __init__(self, like: Any, weights: Mapping[str, Sequence[LayerWeight]]) -> None:
        """Register the parts as buffers."""
        super().__init__()
        self.like, self.roundings = like, torch.nn.ModuleDict()
        self.matrices: dict[str, dict[str, dict[str, int]]] = {}
        for name, matrices in weights.items():
            # Otherwise the float weight would stay in memory, and be exported as a parameter that
            # nothing reads.
            delattr(like, name)
            self.matrices[name] = {}
            for i, (matrix, rounding) in enumerate(matrices):
                of = f"{name}_{i}" if i else name
                self.matrices[name][of] = matrix.sizes
                self.hold_weight(matrix, f"{of}_")
                if rounding is not None:
                    self.roundings[of] = rounding

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts; ``[tokens, hidden]``.

        Args:
            hidden_states: ``[tokens, hidden]``.
            top_k_index: int64, ``[tokens, k]``.
            top_k_weights: ``[tokens, k]``.
        """
        return weighted_experts(self.like, self._product, hidden_states, top_k_index, top_k_weights)

    def _product(self, name: str, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return ``x [tokens, 1 or k, 1, in]`` times the chosen matrices, plus their biases."""
        if name not in self.matrices:
            return expert_product(self.like, name, x, chosen)
        products = [self._part(of, x, chosen, s) for of, s in self.matrices[name].items()]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        if self.like.has_bias:
            product = product + getattr(self.like, f"{name}_bias")[chosen].unsqueeze(2)
        return product

    def _part(
        self, of: str, x: torch.Tensor, chosen: torch.Tensor, sizes: dict[str, int]
    ) -> torch.Tensor:
        """Return the product with the chosen ones of one matrix for each expert."""
        codes, scales, *others = self.weight_parts(f"{of}_")
        order = getattr(self, f"{of}_order")
        if of in self.roundings:
            x = self.roundings[of](x)
        if order is not None:
            # Each expert sorts its inputs in an order of its own.
            x = torch.take_along_dim(x, order[chosen].unsqueeze(2), -1)
        product: torch.Tensor = torch_ops.gather_mm_nbits(
            x, codes, scales, chosen, *others, **sizes
        )
        return product


def stacked(experts: Sequence[Sequence[LayerWeight]]) -> LayerWeight:
    """Return the matrices of all experts as one stacked matrix.

    Args:
        experts: The matrices of each expert, whose outputs are those of one weight after another.

    Raises:
        ModelSourceError: If the matrices of experts differ in the size of codes or groups.
    """
    joined = [_joined([weight.matrix for weight in weights]) for weights in experts]
    if any(matrix.order is not None for matrix in joined):
        # A stack has an order for all experts or for none.
        joined = [replace(matrix, order=_order(matrix)) for matrix in joined]
    roundings = [weight.rounding for weights in experts for weight in weights]
    rounding = _shared([r for r in roundings if isinstance(r, Rounding)], len(roundings))
    parts = {part: _merged(joined, part, torch.stack) for part in (*BY_ROW, "order")}
    matrix = replace(joined[0], **parts)
    return LayerWeight(matrix, rounding)


def _joined(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Return the matrices concatenated along their outputs."""
    first = matrices[0]
    # Outputs below each other read one row of inputs, which has one order.
    if any(not _same(matrix.order, first.order) for matrix in matrices):
        raise ModelSourceError("the matrices of an expert sort their inputs (g_idx) differently")
    parts = {part: _merged(matrices, part, torch.cat) for part in BY_ROW}
    return replace(first, **parts)


def _merged(matrices: Sequence[PackedMatrix], part: str, merge: Any) -> Any:
    values = [getattr(matrix, part) for matrix in matrices]
    if all(value is None for value in values):
        return None
    sizes = {(matrix.bits, matrix.group_size) for matrix in matrices}
    if len(sizes) > 1 or any(value is None for value in values):
        raise ModelSourceError(
            "the matrices of experts have different sizes of codes or groups: "
            f"{', '.join(f'{bits} bits in groups of {size}' for bits, size in sorted(sizes))}"
        )
    return merge(values)


def _order(matrix: PackedMatrix) -> torch.Tensor:
    _, groups, _ = matrix.codes.shape
    return torch.arange(groups * matrix.group_size) if matrix.order is None else matrix.order


def _shared(roundings: Sequence[Rounding], count: int) -> Rounding | None:
    """Return what rounds the inputs of all experts."""
    if not roundings:
        return None
    first = roundings[0].scheme
    same = len(roundings) == count and all(r.scheme == first for r in roundings)
    # Inputs are rounded once, before the experts: a scale of one expert would be wrong for the
    # others.
    if not same or not first.dynamic or first.strategy not in ("token", "group"):
        raise ModelSourceError(
            "inputs of experts are rounded with dynamic scales per token or group only"
        )
    return roundings[0]


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))
