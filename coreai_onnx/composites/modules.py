"""Modules for users' models; each computes the reference of its composite."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import torch
from torch import nn

from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.attention import scaled_dot_product_attention
from coreai_onnx.composites.checks import refuse, require
from coreai_onnx.composites.declaration import Composite, computes
from coreai_onnx.composites.gated_delta import GATED_DELTA_UPDATE, gated_delta_update
from coreai_onnx.composites.norms import rms_norm
from coreai_onnx.composites.products import GATHER_MM, gather_mm
from coreai_onnx.composites.rotary import rope


class Version(Enum):
    """Version of a composite's semantics."""

    v1 = 1


class RMSNormImpl(nn.Module):
    """Root-mean-square normalization over the last axis; the scale is an argument.

    Args:
        eps: Added to the mean square.
    """

    def __init__(self, eps: float = 1e-5) -> None:
        """Store the attributes of the composite ``rms_norm``."""
        super().__init__()
        self.axes = -1
        self.eps = eps
        self.version = Version.v1

    @computes("rms_norm")
    def forward(self, input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Normalize ``input`` ``[..., dim]`` and multiply by ``scale``, broadcastable to it."""
        torch._check(input.ndim >= 1, lambda: "rms_norm: input must have at least one axis")
        return rms_norm(input, scale, axes=(self.axes,), eps=self.eps)


class RMSNorm(nn.Module):
    """Root-mean-square normalization that owns its scale.

    Args:
        dim: Size of the normalized axis.
        eps: Added to the mean square.
        n_heads: If given, the scale is ``[n_heads, 1, dim]`` instead of ``[dim]``.
    """

    def __init__(self, dim: int, eps: float = 1e-5, n_heads: int | None = None) -> None:
        """Create a scale of ones."""
        super().__init__()
        # The scale of a head broadcasts over its tokens.
        shape = (dim,) if n_heads is None else (n_heads, 1, dim)
        self.weight = nn.Parameter(torch.ones(shape))
        self.rmsnorm_impl = RMSNormImpl(eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``x`` ``[..., dim]``."""
        result: torch.Tensor = self.rmsnorm_impl(x, self.weight)
        return result


class SDPA(nn.Module):
    """Scaled dot-product attention; an explicit mask replaces ``is_causal`` and ``window_size``.

    Args:
        scale: Factor on the scores, ``head_dim ** -0.5`` by default.
        is_causal: Whether the queries, as the trailing tokens, attend only to previous tokens.
        window_size: If positive: attend only to keys nearer than this, the token included.
        softcap: If positive: bound of the scores, ``softcap * tanh(scores / softcap)``.
    """

    def __init__(
        self,
        scale: float | None = None,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - coreai-torch's signature
        window_size: int = 0,
        softcap: float = 0.0,
    ) -> None:
        """Store the attributes of the composite ``scaled_dot_product_attention``."""
        super().__init__()
        self.scale = None if scale is None else float(scale)
        self.is_causal = is_causal
        self.window_size = window_size
        self.softcap = softcap
        self.version = Version.v1

    @computes("scaled_dot_product_attention")
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute attention; shapes as in ``coreai_onnx.composites.attention``."""
        _check_attention(query, key, value, sinks)
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            sinks,
            scale=self.scale,
            is_causal=int(self.is_causal),
            window_size=self.window_size,
            softcap=self.softcap,
        )


def _check_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> None:
    """Check ranks, heads, lanes and lengths; each message names the mismatch."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        _check_shape(
            x.ndim >= 3, f"{name} must be [..., heads, tokens, lanes], has shape {tuple(x.shape)}"
        )
    heads = query.shape[-3]
    for name, x in list(named.items())[1:]:
        groups = x.shape[-3]
        _check_shape(
            heads % groups == 0,
            f"query has {heads} heads, not a multiple of the {groups} heads of {name}",
        )
    lanes = query.shape[-1], key.shape[-1]
    _check_shape(lanes[0] == lanes[1], f"query has {lanes[0]} lanes, key {lanes[1]}")
    tokens = key.shape[-2], value.shape[-2]
    _check_shape(tokens[0] == tokens[1], f"key has {tokens[0]} tokens, value {tokens[1]}")
    if sinks is not None:
        fits = sinks.ndim == 1 and sinks.shape[0] == heads
        _check_shape(fits, f"sinks must have shape ({heads},), has {tuple(sinks.shape)}")


def _check_shape(condition: bool | torch.SymBool, message: str) -> None:  # noqa: FBT001 - one condition
    # An `if` on unbacked sizes would fail in an export; torch._check records the condition.
    torch._check(condition, lambda: f"scaled_dot_product_attention: {message}")


class RoPE(nn.Module):
    """Rotary position embedding.

    Args:
        scale: Factor on the frequencies.
        base: Base of the default frequencies.
        dims: Number of leading lanes that are rotated; all by default.
        interleaved: Whether pairs are neighboring lanes instead of halves.
    """

    def __init__(
        self,
        scale: float = 1.0,
        base: float = 10000.0,
        dims: int | None = None,
        interleaved: bool = False,  # noqa: FBT001, FBT002 - coreai-torch's signature
    ) -> None:
        """Store the attributes of the composite ``rope``."""
        super().__init__()
        self.scale = float(scale)
        self.base = float(base)
        self.dims = dims
        self.interleaved = interleaved
        self.version = Version.v1

    @computes("rope")
    def forward(
        self,
        input: torch.Tensor,
        cos: torch.Tensor | None = None,
        sin: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        freqs: torch.Tensor | None = None,
        offset: int | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Rotate ``input``; shapes as in :func:`coreai_onnx.composites.rotary.rope`."""
        torch._check(
            input.ndim in (3, 4),
            lambda: f"rope: input must have rank 3 or 4, has shape {tuple(input.shape)}",
        )
        rotated = input.shape[-1] if self.dims is None else min(self.dims, input.shape[-1])
        torch._check(
            rotated >= 2 and rotated % 2 == 0,
            lambda: f"rope: the number of rotated lanes must be even and positive, is {rotated}",
        )
        # The reference expects a tensor, since each entry of a batch may have its own offset.
        if isinstance(offset, int | torch.SymInt):
            offset = torch.full((), offset, dtype=torch.int64, device=input.device)
        return rope(
            input,
            cos,
            sin,
            position_ids,
            freqs,
            offset,
            scale=self.scale,
            base=self.base,
            # The composite writes all lanes as 0.
            dims=self.dims or 0,
            interleaved=int(self.interleaved),
        )


class GatherMM(nn.Module):
    """Gathered matrix products: an index selects the matrix.

    Args:
        num_batch_axes: Number of leading axes before the axis that the indices select from.
        transpose_rhs: Whether the matrices of ``rhs`` are ``[N, K]``, as in linear layers.
    """

    def __init__(
        self,
        num_batch_axes: int = 0,
        transpose_rhs: bool = False,  # noqa: FBT001, FBT002 - coreai-torch's positional argument
    ) -> None:
        """Store the attributes of the composite ``gather_mm``."""
        super().__init__()
        self.num_batch_axes = num_batch_axes
        self.transpose_rhs = transpose_rhs
        self.version = Version.v1

    @computes("gather_mm")
    def forward(
        self,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        lhs_indices: torch.Tensor | None = None,
        rhs_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; shapes as in :mod:`coreai_onnx.composites.products`.

        In an exported program this is one op, which becomes the composite.

        Raises:
            ValueError: If ranks or sizes do not match, indices are not integers, or an index whose
                value is known is out of range.
        """
        axis, transposed = self.num_batch_axes, int(self.transpose_rhs)
        inputs = {"lhs": lhs, "rhs": rhs, "lhs_indices": lhs_indices, "rhs_indices": rhs_indices}
        _require_valid(GATHER_MM, inputs, num_batch_axes=axis, transpose_rhs=transposed)
        _check_indices("lhs", lhs, lhs_indices, axis)
        _check_indices("rhs", rhs, rhs_indices, axis)
        # Only there, because the op has no gradients and eager models may be trained.
        if torch.compiler.is_exporting():
            indices = [_as_index(i) for i in (lhs_indices, rhs_indices)]
            product: torch.Tensor = torch_ops.gather_mm(lhs, rhs, *indices, axis, transposed)
            return product
        return gather_mm(
            lhs,
            rhs,
            lhs_indices,
            rhs_indices,
            num_batch_axes=axis,
            transpose_rhs=transposed,
        )


def _check_indices(name: str, x: torch.Tensor, indices: torch.Tensor | None, axis: int) -> None:
    """Check the dtype of indices and, if their values can be read, their range."""
    if indices is None:
        return
    whole = not indices.dtype.is_floating_point and indices.dtype != torch.bool
    require(whole, "gather_mm", f"{name}_indices must be integers, got {indices.dtype}")
    # Fake tensors are a subclass; they have no values.
    readable = type(indices) is torch.Tensor and indices.device.type != "meta"
    if readable and not torch.compiler.is_compiling() and indices.numel():
        wide = indices.to(torch.int64)
        low, high = int(wide.min()), int(wide.max())
        size = x.shape[axis]
        message = (
            f"{name}_indices reach from {low} to {high}, axis {axis} of {name} has size {size}"
        )
        require(low >= 0 and high < size, "gather_mm", message)


def _as_index(indices: torch.Tensor | None) -> torch.Tensor | None:
    """Return indices in a dtype that the composite accepts."""
    if indices is None or indices.dtype in (torch.int32, torch.int64):
        return indices
    return indices.to(torch.int64)


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
        """Process the tokens; shapes as in :mod:`coreai_onnx.composites.gated_delta`.

        In an exported program this is one op, which becomes the composite.

        Raises:
            ValueError: If ranks, heads, lengths or lanes do not fit.
        """
        tensors = (query, key, value, g, beta, initial_state)
        names = (declared.name for declared in GATED_DELTA_UPDATE.inputs)
        _require_valid(GATED_DELTA_UPDATE, dict(zip(names, tensors, strict=True)))
        if torch.compiler.is_exporting():
            # As for GatherMM, eager models keep their gradients.
            output, state = torch_ops.gated_delta_update(
                query, key, value, g, beta, initial_state, self.use_qk_l2_norm
            )
            return output, state
        return gated_delta_update(
            query, key, value, g, beta, initial_state, use_qk_l2_norm=int(self.use_qk_l2_norm)
        )


def _require_valid(
    composite: Composite, inputs: Mapping[str, torch.Tensor | None], **attributes: int
) -> None:
    dims = {name: tuple(x.shape) for name, x in inputs.items() if x is not None}
    refuse(composite.size_fault(dims) or composite.check(dims, attributes), composite.name)
