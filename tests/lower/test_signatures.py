"""A lowering's parameters are those of its op's schema; what it leaves out has a reason."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers its ops
import torch.nn.modules.linear_cross_entropy  # likewise
import torchao.quantization.quant_primitives  # noqa: F401 - likewise

import coreai_onnx.composites.torch_ops
import coreai_onnx.lower  # noqa: F401 - it registers all lowerings
from coreai_onnx.lower.walk.binding import schema_name
from coreai_onnx.lower.walk.registry import (
    builtin_lowering,
    builtin_names,
)

MEANINGLESS = {
    "the runtime places tensors in memory": "device layout memory_format non_blocking pin_memory"
    " copy implicit stride strides physical_layout",
    "ONNX has no gradients": "requires_grad sparse sparse_grad scale_grad_by_freq"
    " allow_retain_graph compute_input_grad compute_linear_weight_grad compute_linear_bias_grad",
    "ONNX has no state of random numbers": "generator",
    "running statistics are a result of other ops": "momentum",
    "it selects a kernel, not a result": "allow_tf32 benchmark cudnn_enable cudnn_enabled"
    " deterministic driver unroll_dim batch_chunk_size acc_policy",
    "it promises or checks a property of the input": "assume_unique check_errors unsafe",
    "the tensors or the exported program tell": "C HxW out_int32 output_dtype output_size",
}
"""Parameters that no lowering needs to read, by reason."""
UNREAD = {
    "sorted, unsorted or stable: a sorted result is all of them": {
        "aten._unique.default": "sorted",
        "aten._unique2.default": "sorted",
        "aten.unique_dim.default": "sorted",
        "aten.topk.default": "sorted",
        "aten.sort.stable": "stable",
    },
    "torch does not read them either, or only to check them": {
        "quantized_decomposed.choose_qparams.tensor": "dtype",
        "quantized_decomposed.choose_qparams_per_token.default": "dtype",
        "quantized_decomposed.choose_qparams_per_token_asymmetric.default": "dtype",
        "quantized_decomposed.dequantize_per_channel.default": "quant_min quant_max",
        "quantized_decomposed.dequantize_per_channel_group.default": "quant_min quant_max dtype",
        "quantized_decomposed.dequantize_per_tensor.default": "quant_min quant_max",
        "quantized_decomposed.dequantize_per_tensor.tensor": "quant_min quant_max",
        "quantized_decomposed.dequantize_per_tensor.tensor2": "quant_min quant_max",
        "quantized_decomposed.dequantize_per_token.default": "quant_min quant_max dtype",
        "aten.hash_tensor.default": "mode",
        "aten.segment_reduce.default": "indices",
    },
    "real symmetric matrices are Hermitian": {
        "aten.linalg_ldl_factor_ex.default": "hermitian",
        "aten.linalg_ldl_solve.default": "hermitian",
    },
    "edges of bins depend on the values only": {
        "aten._histogramdd_bin_edges.default": "weight density",
    },
    "only its gradient is special": {"aten.embedding.default": "padding_idx"},
}
"""Parameters that a single lowering does not read, by reason and op."""
IGNORED = {name for names in MEANINGLESS.values() for name in names.split()}


def op_of(name: str) -> torch._ops.OpOverload | None:
    """Return the op of a qualified name; None for one of a library that is not imported here."""
    namespace, packet, overload = name.rsplit(".", 2)
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return None if found is None else getattr(found, overload)


def parameters(function: object) -> dict[str, bool] | None:
    """Return whether each parameter of a lowering is required; None if it takes anything."""
    assert callable(function)
    _builder, *declared = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in declared):
        return None
    return {schema_name(p.name): p.default is inspect.Parameter.empty for p in declared}


def left_out(name: str) -> set[str]:
    """Return the parameters that the lowering of an op may leave out."""
    return IGNORED.union(*(ops.get(name, "").split() for ops in UNREAD.values()))


def schema_of(*names: str) -> set[str]:
    """Return the parameters of ops that are imported here."""
    ops = [op for name in names if (op := op_of(name)) is not None]
    return {argument.name for op in ops for argument in op._schema.arguments}


def differences(name: str, function: object, *others: str) -> tuple[set[str], set[str]]:
    """Return the parameters that the schema lacks, and those that are missing without a reason.

    A parameter with a default may be one of other ops that the same lines lower.
    """
    declared = parameters(function)
    if op_of(name) is None or declared is None:
        return set(), set()
    schema, optional = schema_of(name), schema_of(*others)
    extra = {p for p, required in declared.items() if required or p not in optional} - schema
    return extra, schema - set(declared) - left_out(name)


ALL = [(n, "real", builtin_lowering(n)) for n in builtin_names()] + [
    (n, "complex", builtin_lowering(n, complex=True)) for n in builtin_names(complex=True)
]


def source(function: object) -> object:
    """Return what functions have in common that the same lines define."""
    assert callable(function)
    return inspect.unwrap(function).__code__  # type: ignore[attr-defined]  # a function


OPS: dict[object, list[str]] = {}
FIXED: dict[object, set[str]] = {}
for _name, _, _function in ALL:
    OPS.setdefault(source(_function), []).append(_name)
    FIXED.setdefault(source(_function), set()).update(getattr(_function, "fixed", ()))


@pytest.mark.parametrize(("name", "kind", "function"), ALL, ids=[f"{n}-{k}" for n, k, _ in ALL])
def test_parameters_are_in_the_schema(name: str, kind: str, function: object) -> None:
    extra, missing = differences(name, function, *OPS[source(function)])
    # A parameter that is fixed for some ops has a default for the others.
    assert (extra - FIXED[source(function)], missing) == (set(), set()), (name, kind)


def test_a_wrong_signature_is_found() -> None:
    nothing: tuple[set[str], set[str]] = (set(), set())
    assert differences("aten.add.Tensor", lambda op, alpha, self, other: None) == nothing
    assert differences("aten.add.Tensor", lambda op, self, other: None) == (set(), {"alpha"})
    assert differences("aten.sin.default", lambda op, x: None) == ({"x"}, {"self"})
    assert differences("aten.uniform.default", lambda op, self, from_, to: None) == nothing


def test_a_lowering_of_several_ops_has_defaults() -> None:
    def optional(op: object, self: object, dim: object = None) -> None: ...
    def required(op: object, self: object, dim: object) -> None: ...

    ops = ("aten.median.default", "aten.median.dim")
    assert differences(ops[0], optional, *ops) == (set(), set())
    assert differences(ops[0], optional) == ({"dim"}, set())
    assert differences(ops[0], required, *ops) == ({"dim"}, set())
    assert differences(ops[1], optional, *ops) == (set(), {"keepdim"})


def test_every_reason_is_needed() -> None:
    """Each parameter in the tables is left out by a lowering."""
    unread = {(n, p) for n, _, f in ALL for p in schema_of(n) - set(parameters(f) or ())}
    assert {parameter for _, parameter in unread} >= IGNORED
    single = {(n, p) for ops in UNREAD.values() for n, ps in ops.items() for p in ps.split()}
    assert single <= unread


NEW_IN_2_15 = {"aten.linalg_matrix_sqrth.default", "aten.linalg_polar.default"}
GONE_IN_2_15 = {"aten.cholesky.default"}


def test_every_namespace_is_known() -> None:
    elsewhere = ("torchvision.", "transformers.")
    unknown = {n for n, _, _ in ALL if op_of(n) is None and not n.startswith(elsewhere)}
    is_2_15 = torch.torch_version.TorchVersion(torch.__version__) >= (2, 15)
    assert unknown == (GONE_IN_2_15 if is_2_15 else NEW_IN_2_15)
