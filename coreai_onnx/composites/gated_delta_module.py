"""The module of the composite ``gated_delta_update``."""

from __future__ import annotations

import torch
from torch import nn

from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.declaration import computes
from coreai_onnx.composites.gated_delta_update import gated_delta_update
from coreai_onnx.composites.modules import Version


class GatedDeltaUpdate(nn.Module):
    """Linear attention by the gated delta rule.

    Args:
        use_qk_l2_norm: Whether query and key are first divided by their L2 norms.
    """

    def __init__(
        self,
        use_qk_l2_norm: bool = True,  # noqa: FBT001, FBT002 - coreai-torch's signature
    ) -> None:
        """Store the attributes of the composite ``gated_delta_update``."""
        super().__init__()
        self.use_qk_l2_norm = use_qk_l2_norm
        self.version = Version.v1

    @computes("gated_delta_update")
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Process the tokens; shapes as in :mod:`coreai_onnx.composites.gated_delta_update`.

        In an exported program this is one op, which becomes the composite.

        Raises:
            ValueError: If ranks, heads, lengths or lanes do not fit.
        """
        _check_delta(query, key, value, {"g": g, "beta": beta}, initial_state)
        if torch.compiler.is_exporting():
            output, state = torch_ops.gated_delta_update(
                query, key, value, g, beta, initial_state, self.use_qk_l2_norm
            )
            return output, state
        return gated_delta_update(
            query, key, value, g, beta, initial_state, use_qk_l2_norm=int(self.use_qk_l2_norm)
        )


def _check_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gates: dict[str, torch.Tensor],
    state: torch.Tensor | None,
) -> None:
    """Check ranks, then the sizes that inputs share; each message names the mismatch."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check(x.ndim == 4, f"{name} must have rank 4, has shape {tuple(x.shape)}")
    batch, heads, length, lanes = query.shape
    _check(
        query.shape == key.shape,
        f"query {tuple(query.shape)} and key {tuple(key.shape)} must have one shape",
    )
    groups, columns = value.shape[1], value.shape[3]
    _check(
        groups % heads == 0,
        f"value has {groups} heads, not a multiple of the {heads} heads of query and key",
    )
    fits = value.shape[0] == batch and value.shape[2] == length
    message = f"value {tuple(value.shape)} has another batch or length than query"
    _check(fits, f"{message} {tuple(query.shape)}")
    wanted: dict[str, tuple[torch.Tensor, tuple[int, ...]]] = {
        name: (x, (batch, groups, length)) for name, x in gates.items()
    }
    if state is not None:
        wanted["initial_state"] = (state, (batch, groups, lanes, columns))
    for name, (x, shape) in wanted.items():
        message = f"{name} must have shape {shape}, has {tuple(x.shape)}"
        _check(tuple(x.shape) == shape, message)


def _check(condition: bool | torch.SymBool, message: str) -> None:  # noqa: FBT001 - one condition
    if not condition:
        raise ValueError(f"gated_delta_update: {message}")
