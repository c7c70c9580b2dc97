"""Optimization targets: the passes of each target, and the steps after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir

from coreai_onnx.errors import PassError, TargetError, failures_as
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME, TARGET
from coreai_onnx.passes.contrib.attention_calls import contrib_open_attention
from coreai_onnx.passes.contrib.few_bits import contrib_embedding_nbits
from coreai_onnx.passes.contrib.linear_attention import contrib_linear_attention
from coreai_onnx.passes.contrib.moe import contrib_moe
from coreai_onnx.passes.contrib.qmoe import contrib_qmoe
from coreai_onnx.passes.contrib.skip_norms import contrib_skip_norms
from coreai_onnx.passes.engine.bodies import WriteBody, can_make_functions
from coreai_onnx.passes.engine.report import PassReport
from coreai_onnx.passes.order import CONTRIB, FINISH, KERNELS, ORDER, Pass
from coreai_onnx.passes.portable import check_portable, make_portable
from coreai_onnx.passes.runner import Verify, run_passes
from coreai_onnx.targets.contrib import contrib_since, is_faster
from coreai_onnx.targets.opsets import TARGETS, Target
from coreai_onnx.targets.releases import Release, release_of

_MAKES: dict[Pass, tuple[str, Mapping[str, int]]] = {
    contrib_open_attention: ("GroupQueryAttention", {"causal": 0}),
    contrib_linear_attention: ("LinearAttention", {}),
    contrib_moe: ("MoE", {}),
    contrib_qmoe: ("QMoE", {}),
    contrib_embedding_nbits: ("GatherBlockQuantized", {}),
    contrib_skip_norms: ("SkipLayerNormalization", {}),
}
"""The op that a pass creates, in its oldest form; the others create ops that all releases have."""


def passes_for(target: Target, minimum_onnxruntime: str | None = None) -> tuple[Pass, ...]:
    """Return the passes of a target, in order.

    ``"onnxruntime"``
        Composites remain functions, with bodies that a stock CPU session runs fast.
    ``"kernels"``
        The same passes, since no composite that they make was measured to slow down a stock
        session, and those that make composites which only our kernels run fast.
    ``"contrib"``
        Composites become onnxruntime's contrib ops if these are equivalent, and if the oldest
        onnxruntime that must run the file (``minimum_onnxruntime``, such as ``"1.24"``) has them
        and runs them faster than the bodies.
    ``"portable"``
        No function is created; afterwards all functions are inlined, at opset 18.

    Raises:
        TargetError: There is no such target, or ``minimum_onnxruntime`` is not a version from 1.18
            on.
    """
    oldest = release_of(minimum_onnxruntime)
    # The passes of a target precede FINISH, which decomposes the quantized weights that they match.
    common = ORDER[: -len(FINISH)]
    if target == "onnxruntime":
        return ORDER
    if target == "kernels":
        return (*common, *KERNELS, *FINISH)
    if target == "portable":
        return tuple(one for one in ORDER if not can_make_functions(one))
    if target == "contrib":
        return (*common, *(one for one in CONTRIB if _pays_off(one, oldest)), *FINISH)
    raise TargetError(f"no target {target!r}; there are {', '.join(TARGETS)}")


def _pays_off(one: Pass, oldest: Release | None) -> bool:
    """Return whether the oldest release has the op that a pass creates, and runs it fast."""
    op, attributes = _MAKES.get(one, ("", {}))
    return (oldest is None or contrib_since(op, attributes) <= oldest) and is_faster(op, oldest)


def optimize_for(
    model: ir.Model,
    target: Target = "onnxruntime",
    passes: Sequence[Pass] | None = None,
    minimum_onnxruntime: str | None = None,
    verify: Verify | None = None,
    write_body: WriteBody | None = None,
) -> PassReport:
    """Optimize a model for a target, in place; a second call changes nothing.

    Args:
        model: The model; the target is recorded in its metadata.
        target: The runtime that will run the model.
        passes: Passes to run instead of those of the target.
        minimum_onnxruntime: The oldest onnxruntime that must run the file; None for the version in
            the model's metadata, which a conversion writes, or else the newest.
        verify: Called after each pass that changed the model.
        write_body: Writes the bodies of the composites that passes create, as for `run_passes`.

    Returns:
        The report of the passes.

    Raises:
        TargetError: There is no such target, or the model cannot be converted to it.
        PassError: A pass failed.
    """
    with failures_as(PassError, f"the model cannot be optimized for {target}"):
        return _optimize_for(model, target, passes, minimum_onnxruntime, verify, write_body)


def _optimize_for(
    model: ir.Model,
    target: Target,
    passes: Sequence[Pass] | None,
    minimum_onnxruntime: str | None,
    verify: Verify | None,
    write_body: WriteBody | None,
) -> PassReport:
    minimum = minimum_onnxruntime
    if minimum is None:
        minimum = model.metadata_props.get(MINIMUM_ONNXRUNTIME)
    usual = passes_for(target, minimum)  # also checks both, where passes are given
    is_portable = target == "portable"
    if is_portable:
        # Before the passes, since an error must leave the model unchanged.
        check_portable(model)
    if minimum is not None:  # passes read it
        model.metadata_props[MINIMUM_ONNXRUNTIME] = minimum
    run = partial(
        run_passes,
        model,
        usual if passes is None else passes,
        verify=verify,
        write_body=write_body,
    )
    report = run()
    if is_portable and make_portable(model):
        # Inlined bodies have the shapes of their calls, and composites are plain ops now: passes
        # match what they could not before.
        again = run()
        for name, count in again.counts.items():
            report.counts[name] += count
        # The near misses of the first run are of nodes that no longer exist.
        report.nodes_after, report.near_misses = again.nodes_after, again.near_misses
        report.rounds = max(report.rounds, again.rounds)
    if model.metadata_props.get(TARGET) != target:
        model.metadata_props[TARGET] = target
    return report
