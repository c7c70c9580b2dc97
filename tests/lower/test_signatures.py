"""Each lowering's parameters are exactly its op's, in order and kind."""

from __future__ import annotations

import inspect
import keyword

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers its ops
import torch.nn.modules.linear_cross_entropy  # likewise

import coreai_onnx.composites.torch_ops
import coreai_onnx.lower  # noqa: F401 - it registers all lowerings
from coreai_onnx.lower.walk.registry import (
    builtin_lowering,
    builtin_names,
)

Parameter = inspect.Parameter


def op_of(name: str) -> torch._ops.OpOverload | None:
    """Return the op of a qualified name; None for one of a library that is not imported here."""
    namespace, packet, overload = name.rsplit(".", 2)
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return None if found is None else getattr(found, overload)


def differences(name: str, function: object) -> list[str]:
    """Return how a lowering's signature differs from its op's schema."""
    op = op_of(name)
    if op is None:
        return []
    assert callable(function)
    _builder, *parameters = inspect.signature(function).parameters.values()
    if [p.kind for p in parameters] == [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]:
        return ["takes anything"]
    given = [(_spelled(p.name), p.kind is Parameter.KEYWORD_ONLY) for p in parameters]
    wanted = [(a.name, bool(a.kwarg_only)) for a in op._schema.arguments]
    return [] if given == wanted else [f"has {given}, the schema has {wanted}"]


def _spelled(name: str) -> str:
    """Return a parameter's name in the schema: ``from_`` stands for ``from``."""
    return name[:-1] if keyword.iskeyword(name.removesuffix("_")) else name


ALL = [(n, "real", builtin_lowering(n)) for n in builtin_names()] + [
    (n, "complex", builtin_lowering(n, complex=True)) for n in builtin_names(complex=True)
]


@pytest.mark.parametrize(("name", "kind", "function"), ALL, ids=[f"{n}-{k}" for n, k, _ in ALL])
def test_signature_is_the_schema(name: str, kind: str, function: object) -> None:
    assert not differences(name, function), (name, kind)


def test_a_wrong_signature_is_found() -> None:
    assert differences("aten.add.Tensor", lambda op, self, other, alpha=1: None)
    assert differences("aten.add.Tensor", lambda op, self, other, *, alpha=1: None) == []
    assert differences("aten.sin.default", lambda op, x: None)


NEW_IN_2_15 = {"aten.linalg_matrix_sqrth.default", "aten.linalg_polar.default"}
GONE_IN_2_15 = {"aten.cholesky.default"}


def test_every_namespace_is_known() -> None:
    elsewhere = ("torchvision.", "transformers.")
    unknown = {n for n, _, _ in ALL if op_of(n) is None and not n.startswith(elsewhere)}
    is_2_15 = torch.torch_version.TorchVersion(torch.__version__) >= (2, 15)
    assert unknown == (GONE_IN_2_15 if is_2_15 else NEW_IN_2_15)
