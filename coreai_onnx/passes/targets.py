"""Optimization targets: the passes of each target, and the steps after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from coreai_onnx.errors import PassError, TargetError, failures_as
from coreai_onnx.model.checks.violations import new_violations
from coreai_onnx.model.contract import read_contract
from coreai_onnx.model.inventory import CONTRIB_DOMAIN, all_nodes, roots
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME, TARGET, adopt
from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.passes.contrib.activations import contrib_activations
from coreai_onnx.passes.contrib.attention import contrib_attention
from coreai_onnx.passes.contrib.attention_calls import (
    contrib_cached_attention,
    contrib_open_attention,
)
from coreai_onnx.passes.contrib.decoder_attention import (
    contrib_decoder_attention,
    cuda_decoder_attention,
    webgpu_decoder_attention,
)
from coreai_onnx.passes.contrib.embedding_nbits import contrib_embedding_nbits
from coreai_onnx.passes.contrib.few_bits import contrib_linear_nbits, device_linear_nbits
from coreai_onnx.passes.contrib.linear_attention import contrib_linear_attention
from coreai_onnx.passes.contrib.linear_recurrences import contrib_linear_recurrences
from coreai_onnx.passes.contrib.moe import contrib_moe
from coreai_onnx.passes.contrib.packed_projections import contrib_packed_projections
from coreai_onnx.passes.contrib.qmoe import contrib_qmoe
from coreai_onnx.passes.contrib.quantized_products import contrib_matmul_nbits
from coreai_onnx.passes.contrib.rope import contrib_rope
from coreai_onnx.passes.contrib.skip_norms import contrib_skip_norms
from coreai_onnx.passes.engine.bodies import BodyWriter, can_make_functions
from coreai_onnx.passes.engine.report import PassReport
from coreai_onnx.passes.fuse.fuse_cache_updates import fuse_cache_updates
from coreai_onnx.passes.fuse.fuse_resizes import fuse_resizes
from coreai_onnx.passes.fuse.fuse_rope import fuse_rope
from coreai_onnx.passes.layout.admitted_keys import admitted_keys
from coreai_onnx.passes.layout.attention_of_rows import attention_of_rows
from coreai_onnx.passes.order import (
    COMMON,
    CONTRIB,
    CUDA,
    DETERMINISTIC,
    DEVICE,
    EXACT,
    FINISH,
    KERNELS,
    ORDER,
    TILES,
    WEBGPU,
    WITHOUT_INLINING,
    Pass,
)
from coreai_onnx.passes.runner import Verify, run_passes
from coreai_onnx.targets.composed_forms import COMPOSED, compose
from coreai_onnx.targets.contrib import contrib_since, is_faster
from coreai_onnx.targets.determinism import write_promise
from coreai_onnx.targets.expert_forms import replace_experts
from coreai_onnx.targets.older_forms import OLDER_FORMS, call_older_form, obstacle
from coreai_onnx.targets.oldest import check_oldest
from coreai_onnx.targets.opsets import (
    PORTABLE_IR_VERSION,
    PORTABLE_OPSET,
    PROVIDER_TARGETS,
    TARGETS,
    Target,
)
from coreai_onnx.targets.releases import Release, release_of


def make_portable(model: ir.Model, target: Target = "portable") -> int:
    """Inline every function and convert the model to opset 18, in place.

    Args:
        target: ``"portable"``, or an execution provider: its files may have onnxruntime's own
            operators, and newer ones are replaced by older ones.
        model: A model whose ops all exist with the same meaning at opset 18, or can be written with
            such ops: a program lowered at opset 18, or at a newer opset without ops that changed
            since.

    Returns:
        The number of inlined calls and of nodes that were written with older ops; 0 if the model
        was already portable.

    Raises:
        TargetError: An op, one of its attributes or dtypes was added after opset 18, or an op is
            of another domain and has no body; the model is unchanged.
    """
    result, count = _portable(model, target)
    if result is not model:
        adopt(result, model)
    model.ir_version = min(model.ir_version, PORTABLE_IR_VERSION)
    return count


def check_portable(model: ir.Model, target: Target = "portable") -> None:
    """Check that the model can be written with opset 18; the error lists all that it does not have.

    Raises:
        TargetError: As for :func:`make_portable`.
    """
    _portable(model, target)


def _portable(model: ir.Model, target: Target) -> tuple[ir.Model, int]:
    """Return a portable copy, or the model itself if it is portable, and the number of changes."""
    _check_ops(model, target)
    opset = model.graph.opset_imports.get("", PORTABLE_OPSET)
    domains = {"", CONTRIB_DOMAIN} if target in PROVIDER_TARGETS else {""}
    if (
        not model.functions
        and opset <= PORTABLE_OPSET
        and model.graph.opset_imports.keys() <= domains
    ):
        return model, 0
    # A copy, so that an error leaves the model as it is: whether it fits shows only at the end.
    result = model.clone()
    if target == "webgpu":
        replace_experts(result)
    count = _inline(result)
    if opset > PORTABLE_OPSET:
        _call_older_forms(result, opset, composed=target in PROVIDER_TARGETS)
    # Before the calls of older forms are inlined: InlinePass refuses a body of another opset than
    # the model's, and theirs is 18.
    _lower_opset(result)
    count += _inline(result)
    if target in PROVIDER_TARGETS:
        _declare_dtypes(result)
    # `_check_ops` skips ops that have an older form; one of them in a dtype without such a form
    # shows up here.
    if violations := new_violations(model, result):
        raise _not_portable(map(str, violations), target)
    return result, count


def _inline(model: ir.Model) -> int:
    """Inline every call; return the number of call nodes, of those in function bodies too."""
    calls = sum(node.op_identifier() in model.functions for node in all_nodes(model))
    if calls:
        InlinePass()(model)
    model.functions.clear()
    return calls


def _call_older_forms(model: ir.Model, opset: int, *, composed: bool) -> None:
    """Make calls of the nodes that have another form at opset 18.

    Functions are inlined before: the dtypes of a body depend on the call.
    """
    ops = {*OLDER_FORMS, *(COMPOSED if composed else ())}
    newer = [node for node in model.graph.all_nodes() if node.domain == "" and node.op_type in ops]
    if not newer:
        return
    types = ModelTypes(lambda _: None, model.ir_version, bodies=True).of_graph(model.graph)
    for node in newer:
        value = node.inputs[0] if node.inputs else None
        if node.op_type in COMPOSED:
            compose(model, node, types)
        elif value is not None and value in types:
            dtype = ir.DataType(types[value].tensor_type.elem_type)
            call_older_form(model, node, dtype, opset, PORTABLE_OPSET)


def _declare_dtypes(model: ir.Model) -> None:
    """Declare the dtypes of inlined values, on which the kernels of a provider depend.

    Those of integers and booleans depend on the rank as well: vectors stay on the CPU.
    """
    types = ModelTypes(lambda _: None, model.ir_version, bodies=True).of_graph(model.graph)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.dtype is None and value in types and types[value].HasField("tensor_type"):
                dtype = value.dtype = ir.DataType(types[value].tensor_type.elem_type)
                if dtype.is_floating_point() or value.shape is not None:
                    continue
                if types[value].tensor_type.HasField("shape"):
                    value.shape = ir.serde.deserialize_type_proto_for_shape(types[value])


def _lower_opset(model: ir.Model) -> None:
    model.graph.opset_imports.setdefault("", PORTABLE_OPSET)
    # No node of these domains is left, and a runtime may refuse a file for an import that it does
    # not know.
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in [d for d in model.graph.opset_imports if d != "" and d not in used]:
        del model.graph.opset_imports[domain]
    for graph in (model.graph, *model.graph.subgraphs()):
        if "" in graph.opset_imports:
            graph.opset_imports[""] = min(PORTABLE_OPSET, graph.opset_imports[""])
    for node in model.graph.all_nodes():
        # None follows the opset of the graph; a version of its own would still be the newer one.
        node.version = None


def _check_ops(model: ir.Model, target: Target) -> None:
    provided = PROVIDER_TARGETS.get(target)
    replaceable = {*OLDER_FORMS, *(COMPOSED if provided else ())}
    obstacles: Counter[str] = Counter()
    for root in roots(model):
        opset = root.opset_imports.get("", PORTABLE_OPSET)
        for node in root.all_nodes():
            reason = ""
            if provided and node.domain == CONTRIB_DOMAIN:
                continue
            if node.domain not in ("", "ai.onnx"):
                reason = "" if node.op_identifier() in model.functions else "has no body"
            # Whether an older form is needed depends on the dtype, which is inferred later.
            elif opset > PORTABLE_OPSET and node.op_type not in replaceable:
                reason = obstacle(node, opset, PORTABLE_OPSET)
            if reason:
                domain = f"{node.domain}::" if node.domain else ""
                obstacles[f"{domain}{node.op_type} {reason}"] += 1
    if obstacles:
        reasons = (f"{count}x {reason}" for reason, count in sorted(obstacles.items()))
        raise _not_portable(reasons, target)


def _not_portable(reasons: Iterable[str], target: Target) -> TargetError:
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return TargetError(
        f"the target {target} needs opset {PORTABLE_OPSET}, and this program has{lines}\n"
        f"  convert it with opset_version={PORTABLE_OPSET}; the model is unchanged"
    )


_FOR_DECODERS: tuple[Pass, ...] = (fuse_rope, fuse_cache_updates)
"""Makers of composites that become a part of an attention; what is left of them is inlined."""
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
CONTRIB_OPS: dict[Pass, tuple[tuple[str, Mapping[str, int]], ...]] = {
    **{
        one: (("GroupQueryAttention", {}),)
        for one in (contrib_decoder_attention, webgpu_decoder_attention, cuda_decoder_attention)
    },
    contrib_cached_attention: (("GroupQueryAttention", {}),),
    contrib_open_attention: (("GroupQueryAttention", {"causal": 0}),),
    contrib_attention: (("GroupQueryAttention", {}), ("MultiHeadAttention", {})),
    contrib_rope: (("RotaryEmbedding", {}),),
    contrib_linear_attention: (("LinearAttention", {}),),
    contrib_linear_recurrences: (("LinearAttention", {}),),
    contrib_linear_nbits: (("MatMulNBits", {}),),
    device_linear_nbits: (("MatMulNBits", {}),),
    contrib_embedding_nbits: (("GatherBlockQuantized", {}),),
    contrib_matmul_nbits: (("MatMulNBits", {}),),
    contrib_moe: (("MoE", {}),),
    contrib_qmoe: (("QMoE", {}),),
    contrib_packed_projections: (("GroupQueryAttention", {}), ("MatMulNBits", {})),
    contrib_skip_norms: tuple((op, {}) for op in _SKIPS),
    contrib_activations: tuple((op, {}) for op in ("Gelu", "FastGelu", "QuickGelu", "BiasGelu")),
}
"""The ops of onnxruntime that a pass creates, in their oldest forms; others create none."""


def passes_for(
    target: Target,
    minimum_onnxruntime: str | None = None,
    *,
    deterministic: bool = False,
    float32_tiles: bool = False,
) -> tuple[Pass, ...]:
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
    ``"webgpu"``, ``"cuda"``
        As for ``"portable"``, and composites become the contrib ops that the execution provider has
        kernels for. WebGPU gets operators that it computes inexactly in an exact form.

    The options add passes for products of float32.

    Raises:
        TargetError: There is no such target, an option is not for ``"kernels"``, or
            ``minimum_onnxruntime`` is not a version from 1.18 on.
    """
    if not deterministic and not float32_tiles:
        return _passes_for(target, minimum_onnxruntime, makers=())
    if target != "kernels":
        option = "deterministic" * deterministic or "float32_tiles"
        raise TargetError(f"{option}=True needs the target kernels, not {target}")
    further = TILES * float32_tiles + DETERMINISTIC * deterministic
    return (*WITHOUT_INLINING, *KERNELS, *further, *FINISH)


def _passes_for(
    target: Target, minimum_onnxruntime: str | None, makers: Sequence[Pass]
) -> tuple[Pass, ...]:
    """Return the passes of a target; of those that make functions, *makers* if all are inlined."""
    oldest = release_of(minimum_onnxruntime)
    if target == "onnxruntime":
        return ORDER
    if target == "kernels":
        return (*COMMON, *KERNELS, *FINISH)
    plain = [one for one in COMMON if not can_make_functions(one) or one in makers]
    if target == "portable":
        return (*plain, *FINISH)
    if target in PROVIDER_TARGETS:
        device = (*DEVICE, *((*WEBGPU, *EXACT) if target == "webgpu" else CUDA))
        # ONNX's Attention of rows has no kernel there; sizes that depend on values stop a device.
        plain = [x for x in plain if x not in (attention_of_rows, admitted_keys, fuse_resizes)]
        return (*plain, *(one for one in device if _pays_off(one, oldest)), *FINISH)
    if target == "contrib":
        return (*COMMON, *(one for one in CONTRIB if _pays_off(one, oldest)), *FINISH)
    raise TargetError(f"no target {target!r}; there are {', '.join(TARGETS)}")


def _pays_off(one: Pass, oldest: Release | None) -> bool:
    """Return whether the oldest release has the ops that a pass creates, and runs them fast."""
    operators = CONTRIB_OPS.get(one, ())
    has = oldest is None or all(contrib_since(op, forms) <= oldest for op, forms in operators)
    return has and all(is_faster(op, oldest) for op, _ in operators)


def _before_inlining(
    model: ir.Model, target: Target, minimum_onnxruntime: str | None
) -> tuple[Pass, ...]:
    """Return the passes that run before the functions of a model are inlined."""
    usual = passes_for(target, minimum_onnxruntime)
    # In a model without functions they are inlined: an optimization that repeats changes nothing.
    if target not in PROVIDER_TARGETS or not model.functions:
        return usual
    contract = read_contract(model.metadata_props)
    if contract is not None and contract.is_unpadded:
        usual = _passes_for(target, minimum_onnxruntime, _FOR_DECODERS)
    return tuple(one for one in usual if one not in EXACT)


def optimize_for(
    model: ir.Model,
    target: Target = "onnxruntime",
    passes: Sequence[Pass] | None = None,
    minimum_onnxruntime: str | None = None,
    verify: Verify | None = None,
    write_body: BodyWriter | None = None,
    *,
    deterministic: bool = False,
    float32_tiles: bool = False,
) -> PassReport:
    """Optimize a model for a target, in place; a second call changes nothing.

    Args:
        model: The model; the target is recorded in its metadata.
        target: The runtime that will run the model.
        passes: Passes to run instead of those of the target.
        minimum_onnxruntime: The oldest onnxruntime that must run the file; None for the version in
            the model's metadata, which a conversion writes, or else the newest.
        verify: Called after each pass that changed the model.
        write_body: Writes the bodies of the composites that passes create; None to create none.
        deterministic: Whether the file is for sessions with ``deterministic=True``.
        float32_tiles: The same.

    Returns:
        The report of the passes.

    Raises:
        TargetError: There is no such target, or the model cannot be converted to it.
        PassError: A pass failed.
    """
    minimum = minimum_onnxruntime
    if minimum is None:
        minimum = model.metadata_props.get(MINIMUM_ONNXRUNTIME)
    with failures_as(PassError, f"the model cannot be optimized for {target}"):
        products = {"deterministic": deterministic, "float32_tiles": float32_tiles}
        usual = passes_for(target, minimum, **products)  # checks both, where passes are given
        inlined = target == "portable" or target in PROVIDER_TARGETS
        if inlined:
            check_portable(model, target)  # before the passes: an error leaves the model unchanged
        if minimum is not None:
            check_oldest(model, minimum, opset=not inlined)
            # Passes read it.
            model.metadata_props[MINIMUM_ONNXRUNTIME] = minimum
        chosen = usual if passes is None else passes
        first = _before_inlining(model, target, minimum) if passes is None and inlined else chosen
        report = run_passes(model, first, verify=verify, write_body=write_body)
        if inlined and (make_portable(model, target) or first != chosen):
            # Inlined bodies have the shapes of their calls, and composites are plain ops now:
            # passes match what they could not before.
            again = run_passes(model, chosen, verify=verify, write_body=write_body)
            report.counts.update(Counter(report.counts) + Counter(again.counts))
            # The near misses of the first run are of nodes that no longer exist.
            report.nodes_after, report.near_misses = again.nodes_after, again.near_misses
            report.rounds = max(report.rounds, again.rounds)
    model.metadata_props[TARGET] = target
    if deterministic:
        write_promise(model)
    return report
