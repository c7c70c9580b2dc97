"""Group, instance and batch normalization as composites."""

from __future__ import annotations

from coreai_onnx.lower.aten.composite.calls import is_covered
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Dim, Value, dims_of, rank_of
from coreai_onnx.lower.walk.registry import composes


# ---------------------------------------------------------------------- groups
@composes("aten.group_norm.default", whole=True)
def group_norm(
    op: OpBuilder,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value | None:
    """The composite ``group_norm``."""
    del cudnn_enabled
    if not is_covered(input, weight, bias) or rank_of(input) < 2:
        return None
    return op.composite("group_norm", [input, weight, bias], num_groups=num_groups, eps=eps)


@composes("aten.native_group_norm.default")
def native_group_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> list[Value | None] | None:
    """The composite ``group_norm``, if mean and rstd are unused."""
    result = group_norm(op, input, group, weight, bias, eps)
    return None if result is None else [result, None, None]


# ---------------------------------------------------------------------- instances
@composes("aten.instance_norm.default", whole=True)
def instance_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value | None:
    """The composite ``instance_norm``; with running statistics it is a batch norm."""
    del cudnn_enabled
    if not use_input_stats and running_mean is not None and running_var is not None:
        return batch_norm(
            op, input, weight, bias, running_mean, running_var, False, momentum, eps, False
        )
    if not is_covered(input, weight, bias) or rank_of(input) < 3 or running_mean is not None:
        return None
    return op.composite("instance_norm", [input, weight, bias], eps=eps)


# ---------------------------------------------------------------------- batches
@composes("aten.batch_norm.default")
def batch_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value | None:
    """The composite ``batch_norm``, with running statistics only."""
    del momentum, cudnn_enabled
    if training or running_mean is None or running_var is None:
        return None
    if not is_covered(input, weight, bias, running_mean, running_var) or rank_of(input) < 2:
        return None
    channels = [dims_of(input)[1]]
    scale = op.expand(op.like(running_mean, 1), channels) if weight is None else weight
    shift = op.expand(op.like(running_mean, 0), channels) if bias is None else bias
    return op.composite("batch_norm", [input, scale, shift, running_mean, running_var], eps=eps)


@composes("aten._native_batch_norm_legit_no_training.default")
def no_training(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> list[Value | None] | None:
    """The same; its other results are empty."""
    result = batch_norm(
        op, input, weight, bias, running_mean, running_var, False, momentum, eps, False
    )
    return None if result is None else [result, None, None]


@composes("aten._batch_norm_no_update.default")
def no_update(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> list[Value | None] | None:
    """The same; its other results are empty."""
    result = batch_norm(
        op, input, weight, bias, running_mean, running_var, False, momentum, eps, False
    )
    return None if result is None else [result, None, None, None]


@composes("aten.native_batch_norm.default")
def native_batch_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value | None] | None:
    """The composite ``batch_norm`` in inference mode."""
    result = batch_norm(
        op, input, weight, bias, running_mean, running_var, training, momentum, eps, False
    )
    return None if result is None else [result, None, None]
