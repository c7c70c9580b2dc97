"""Matrix products: gathered ones, adapters, convolutions, and those spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    Tensors,
    compute_dtype,
    not_multiple,
    not_one_of,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def gather_mm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_indices: torch.Tensor | None = None,
    rhs_indices: torch.Tensor | None = None,
    *,
    num_batch_axes: int = 0,
    transpose_rhs: int = 0,
) -> torch.Tensor:
    """Return ``take(lhs, lhs_indices) @ take(rhs, rhs_indices)``, batch axes broadcast.

    ``take(x, i)`` replaces axis ``num_batch_axes`` of ``x`` by the axes of ``i``; without indices
    it is ``x``. A mixture of experts, with weights ``[experts, K, N]``, multiplies token
    ``t`` with the matrix of its expert ``e[t]``: ``gather_mm(x [T, 1, K], w, None, e [T])``, or,
    with ``k`` experts each, ``gather_mm(x [T, 1, 1, K], w, None, e [T, k])``. No matrix is copied
    per token, neither in the body nor in the kernel: rows that share a matrix are multiplied
    together.

    Args:
        lhs: ``[..., M, K]`` after its indices are taken, floating, of rank 2 at least.
        rhs: ``[..., K, N]``, or ``[..., N, K]`` if ``transpose_rhs``, after its indices are
            taken; in the dtype of ``lhs``.
        lhs_indices: Integers in ``[0, lhs.shape[num_batch_axes])``, of any rank.
        rhs_indices: Integers in ``[0, rhs.shape[num_batch_axes])``, of any rank.
        num_batch_axes: Number of leading axes before the axis that the indices select from; all
            indices apply to each of their entries.
        transpose_rhs: Nonzero: the matrices of ``rhs`` are ``[N, K]``, as in linear layers.

    Returns:
        ``[..., M, N]`` in the dtype of ``lhs``, the leading axes broadcast as in
        ``torch.matmul``; products are accumulated in float32 (float64 in float64).
    """
    wide = compute_dtype(lhs)
    left = take(lhs, lhs_indices, num_batch_axes).to(wide)
    right = take(rhs, rhs_indices, num_batch_axes).to(wide)
    if transpose_rhs:
        right = right.transpose(-2, -1)
    return torch.matmul(left, right).to(lhs.dtype)


def take(x: torch.Tensor, indices: torch.Tensor | None, axis: int) -> torch.Tensor:
    """Return ``x`` with one axis replaced by the axes of ``indices``; ``x`` without indices."""
    if indices is None:
        return x
    taken = torch.index_select(x, axis, indices.reshape(-1).to(torch.int64))
    return taken.reshape(taken_shape(x, indices, axis))


def taken_shape(x: torch.Tensor, indices: torch.Tensor | None, axis: int) -> tuple[int, ...]:
    """Return the shape of the result of :func:`take`."""
    if indices is None:
        return tuple(x.shape)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _check(dims: Dims, attributes: Attributes) -> str:
    axis, taken = int(attributes["num_batch_axes"]), {}
    for name in ("lhs", "rhs"):
        shape, indices = tuple(dims[name]), dims.get(f"{name}_indices")
        if indices is not None and not 0 <= axis < len(shape):
            return f"num_batch_axes is {axis}, {name} has rank {len(shape)}"
        if indices is not None:
            shape = (*shape[:axis], *indices, *shape[axis + 1 :])
        if len(shape) < 2:
            return f"{name} must have rank 2 or higher once its indices are taken, got {len(shape)}"
        taken[name] = shape
    columns, rows = taken["lhs"][-1], taken["rhs"][-1 if attributes["transpose_rhs"] else -2]
    if columns is None or rows is None or columns == rows:
        return ""
    return f"lhs has {columns} columns, the matrices of rhs want {rows}"


def _admissible(inputs: Tensors) -> Tensors:
    """Return inputs with indices that are in range for the axes of either operand."""
    valid = dict(inputs)
    for name in ("lhs", "rhs"):
        if f"{name}_indices" in valid:
            # The smallest size bounds the indices, because the attributes, and with them the axis,
            # are not passed.
            valid[f"{name}_indices"] = valid[f"{name}_indices"] % max(min(inputs[name].shape), 1)
    return valid


GATHER_MM = Composite(
    name="gather_mm",
    inputs=(
        Input("lhs", aliases=("x", "input", "hidden_states")),
        Input("rhs", aliases=("weight",)),
        Input("lhs_indices", optional=True, dtype="index"),
        Input("rhs_indices", optional=True, dtype="index", aliases=("expert_ids",)),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("num_batch_axes", "int", 0, structural=True),
        Attribute("transpose_rhs", "int", 0, structural=True),
    ),
    reference=gather_mm,
    kernel=True,
    formula="take(lhs, lhs_indices) @ take(rhs, rhs_indices), from axis num_batch_axes",
    variant_axes=(
        ("lhs_indices", "rhs_indices", "both_indices"),
        ("rows",),
        ("transposed",),
        ("tiles",),  # for kernels that multiply tiles; elsewhere the body is not slower
    ),
    check=_check,
    admissible=_admissible,
    aten=("coreai.gather_mm.default",),
)


def add_low_rank(
    input: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """Return ``input + x @ down @ up``: the result of a linear layer with an adapter.

    The formula is that of LoRA (E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language
    Models", 2021).
    A rank of 0 is that of an absent adapter: the result is ``input``, and the kernel neither
    copies nor multiplies.

    Args:
        input: ``[..., T, N]``, floating.
        x: ``[..., T, K]``, what the layer multiplies by its weight.
        down: ``[..., K, R]``; the leading axes are those of ``input``, or of size 1, or absent.
        up: ``[..., R, N]``, the leading axes as those of ``down``; ``[..., 0, 1]`` if ``R`` is 0.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64).
    """
    wide = compute_dtype(input)
    product = torch.matmul(torch.matmul(x.to(wide), down.to(wide)), up.to(wide))
    return (input.to(wide) + product).to(input.dtype)


def _check_low_rank(dims: Dims, attributes: Attributes) -> str:
    del attributes
    for name, shape in dims.items():
        if len(shape) < 2:
            return f"{name} must have rank 2 or higher, got {len(shape)}"
    total, x, down, up = (dims[name] for name in ("input", "x", "down", "up"))
    if len(x) != len(total) or any(map(_differ, x[:-1], total[:-1])):
        return f"x must have the sizes of input but for the last, {list(total)}, got {list(x)}"
    for name, shape in (("down", down), ("up", up)):
        lead = shape[:-2]
        is_lead = len(lead) == len(total) - 2 and not any(map(_differ, lead, total))
        if not is_lead and (len(lead) > len(total) - 2 or any(_differ(size, 1) for size in lead)):
            return f"the leading axes of {name} must be those of input or 1, got {list(shape)}"
    if _differ(down[-2], x[-1]):
        return f"x has {x[-1]} columns, down has {down[-2]} rows"
    if _differ(down[-1], up[-2]):
        return f"down has {down[-1]} columns, up has {up[-2]} rows"
    if _differ(up[-1], total[-1]) and (_differ(up[-1], 1) or _differ(down[-1], 0)):
        return f"input has {total[-1]} columns, up has {up[-1]}"
    return ""


def _differ(size: int | None, other: int | None) -> bool:
    return size is not None and other is not None and size != other


ADD_LOW_RANK = Composite(
    name="add_low_rank",
    inputs=(
        Input("input"),
        Input("x", aliases=("hidden_states",)),
        Input("down", aliases=("lora_A",)),
        Input("up", aliases=("lora_B",)),
    ),
    outputs=("output",),
    reference=add_low_rank,
    kernel=True,
    formula="input + x @ down @ up",
    check=_check_low_rank,
)


def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    activation: str = "none",
) -> torch.Tensor:
    """Return the convolution of planes, as ``torch.nn.functional.conv2d`` does.

    Args:
        input: ``[batch, channels, height, width]``, floating.
        weight: ``[filters, channels / groups, window height, window width]``, in the dtype of
            ``input``.
        bias: ``[filters]``, in the dtype of ``input``, is added to the sums.
        residual: Added to the result, whose shape and dtype it has.
        stride: Distance between windows.
        padding: Rows and columns of zeros: at the start of each axis, then at the end of each.
        dilation: Distance between the elements of a window.
        groups: Each group of filters reads a group of the channels, in order.
        activation: ``"none"``, or ``"relu"`` of the sum (``max(x, 0)``).

    Returns:
        ``[batch, filters, windows, windows]`` in the dtype of ``input``; computed in float32
        (float64 in float64), rounded once.
    """
    wide = compute_dtype(input)
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(input.to(wide), (left, right, top, bottom))
    result = torch.nn.functional.conv2d(
        padded,
        weight.to(wide),
        None if bias is None else bias.to(wide),
        tuple(stride),
        0,
        tuple(dilation),
        groups,
    )
    if residual is not None:
        result = result + residual.to(wide)
    return (result.relu() if activation == "relu" else result).to(input.dtype)


def _check_convolution(dims: Dims, attributes: Attributes) -> str:
    if wrong := not_one_of(attributes, "activation", ("none", "relu")):
        return wrong
    stride, padding, dilation = (attributes[n] for n in ("stride", "padding", "dilation"))
    groups = attributes["groups"]
    for name, values, count in (
        ("stride", stride, 2),
        ("padding", padding, 4),
        ("dilation", dilation, 2),
    ):
        if len(values) != count:
            return f"{name} must have {count} numbers, got {len(values)}"
    if min([*stride, *dilation, groups]) < 1 or min(padding) < 0:
        return (
            "stride, dilation and groups must be at least 1 and padding at least 0, got "
            f"{stride}, {dilation}, {groups} and {padding}"
        )
    filters, depth, *_ = dims["weight"]
    channels = dims["input"][1]
    wrong = not_multiple("the number of filters", filters, "groups", groups)
    if wrong or depth is None or channels in (None, depth * groups):
        return wrong
    return f"input has {channels} channels, expected {depth} in each of {groups} groups"


CONVOLUTION = Composite(
    name="convolution",
    inputs=(
        Input("input", dims="N C H W", aliases=("x", "hidden_states")),
        Input("weight", dims="O I Y X"),
        Input("bias", optional=True, dims="O"),
        Input("residual", optional=True, dims="N O V U"),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("stride", "ints", (1, 1)),
        Attribute("padding", "ints", (0, 0, 0, 0)),
        Attribute("dilation", "ints", (1, 1)),
        Attribute("groups", "int", 1),
        Attribute("activation", "string", "none", structural=True),
    ),
    reference=convolution,
    kernel=True,
    formula="activation(sum(window of input * weight) + bias + residual)",
    variant_axes=(("no_bias",), ("residual",), ("relu",)),
    check=_check_convolution,
)


MOST_RANKS = 64
"""The most ranks of a group, as of the kernel."""


def all_reduce(parts: torch.Tensor, *, ranks: int = 2, rank: int = 0) -> torch.Tensor:
    """Return the sum of the parts of all ranks, for each of them.

    It is added rank by rank, so that each rank has the same bits, as ``MPI_Allreduce`` and
    ``torch.distributed.all_reduce`` give them in no certain order.

    Args:
        parts: ``[ranks, ...]``, floating: the parts of all ranks, in one process. In a file of one
            rank it is ``[1, ...]``, the part of that rank; the kernel exchanges it with the
            processes of the others, and there is no result without them.
        ranks: The number of ranks.
        rank: The rank of the first part.

    Returns:
        The shape and dtype of ``parts``; computed in float32 (float64 in float64).

    Raises:
        RuntimeError: If parts are missing.
    """
    total = _all(parts, ranks, rank)[0].to(compute_dtype(parts))
    for part in parts[1:]:
        total = total + part.to(total.dtype)
    return total.to(parts.dtype).expand_as(parts).contiguous()


def all_gather(parts: torch.Tensor, *, ranks: int = 2, rank: int = 0) -> torch.Tensor:
    """Return the parts of all ranks side by side, for each of them.

    Args:
        parts: ``[ranks, ..., n]``, or ``[1, ..., n]`` in a file of one rank, as for `all_reduce`.
        ranks: The number of ranks.
        rank: The rank of the first part.

    Returns:
        ``[ranks or 1, ..., ranks * n]`` in the dtype of ``parts``.

    Raises:
        RuntimeError: If parts are missing.
    """
    joined = torch.cat(list(_all(parts, ranks, rank)), -1)
    return joined.expand(len(parts), *joined.shape).contiguous()


def gathered_shape(parts: torch.Tensor, ranks: int) -> tuple[int, ...]:
    """Return the shape of the result of `all_gather`."""
    return (*parts.shape[:-1], ranks * parts.shape[-1])


def _all(parts: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    if len(parts) != ranks:
        raise RuntimeError(
            f"there is the part of rank {rank} only, of {ranks}: ranks run with the kernels"
        )
    return parts


def _check_parts(dims: Dims, attributes: Attributes) -> str:
    ranks, rank, shape = attributes["ranks"], attributes["rank"], dims["parts"]
    if not 1 <= ranks <= MOST_RANKS or not 0 <= rank < ranks:
        return f"rank {rank} of {ranks}: ranks must be 1 to {MOST_RANKS}, rank less than that"
    if not shape or shape[0] not in (None, 1, ranks):
        return f"parts must have shape [1, ...] or [{ranks}, ...], got {list(shape)}"
    return ""


def _check_gather(dims: Dims, attributes: Attributes) -> str:
    if len(dims["parts"]) < 2:
        return f"parts must have rank 2 or higher, got {len(dims['parts'])}"
    return _check_parts(dims, attributes)


_PARTS = (Input("parts"),)
_RANKS = (Attribute("ranks", "int", 2, structural=True), Attribute("rank", "int", 0))

ALL_REDUCE = Composite(
    name="all_reduce",
    inputs=_PARTS,
    outputs=("output",),
    attributes=_RANKS,
    reference=all_reduce,
    kernel=True,
    formula="sum(parts), for each of them; parts are those of all ranks",
    check=_check_parts,
    aten=("coreai.all_reduce.default",),
)

ALL_GATHER = Composite(
    name="all_gather",
    inputs=_PARTS,
    outputs=("output",),
    output_dims=("?",),
    attributes=_RANKS,
    reference=all_gather,
    kernel=True,
    formula="concat(parts, -1), for each of them; parts are those of all ranks",
    check=_check_gather,
    aten=("coreai.all_gather.default",),
)
