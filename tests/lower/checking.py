"""Runs a module through export and lowering and compares onnxruntime's result with torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from torch.utils import _pytree as pytree
from torch.utils.dlpack import from_dlpack

from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.runtime.libraries.library import LONGEST_SETTING
from tests.support.tolerances import assert_close


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def lower_module(
    module: Any,
    args: Sequence[Any],
    dynamic_shapes: Any = None,
    *,
    opset: int = 23,
    decompose: bool = False,
) -> ir.Model:
    """Return the model of a module (or function), without composites' bodies: ops spelled out."""
    if not isinstance(module, torch.nn.Module):
        module = Wrapped(module)
        if dynamic_shapes is not None:
            dynamic_shapes = (tuple(dynamic_shapes),)
    with torch.no_grad():
        program = torch.export.export(module, tuple(args), dynamic_shapes=dynamic_shapes)
        program = program.run_decompositions() if decompose else functional(program)
    lowered = ProgramLowering(program, Context(opset=opset), IONames()).run()
    return lowered.model([], "main")


def run_model(
    model: ir.Model, args: Sequence[Any], *, library: Path | None = None
) -> list[np.ndarray]:
    """Run a model on the flat tensors of ``args``, checked by onnx first."""
    return run_session(open_model(model, library=library), args)


def open_model(model: ir.Model, *, library: Path | None = None) -> onnxruntime.InferenceSession:
    """Return a session of a model, checked by onnx first.

    With a kernel library, composites need no functions, and onnx cannot check the model.
    """
    proto = ir.to_proto(model)
    options = onnxruntime.SessionOptions()
    if library is None:
        onnx.checker.check_model(proto, full_check=True)
    else:  # only the kernels that are called: registering all of them takes longer than a run
        called = ",".join(sorted({n.op_type for n in model.graph if n.domain == DOMAIN}))
        if len(called) <= LONGEST_SETTING:
            options.add_session_config_entry("coreai.op_types", called)
        options.register_custom_ops_library(str(library))
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_session(session: onnxruntime.InferenceSession, args: Sequence[Any]) -> list[np.ndarray]:
    """Run a session on the flat tensors of ``args``."""
    leaves = [x for x in pytree.tree_leaves(tuple(args)) if x is not None]
    initialized = {i.name for i in session.get_overridable_initializers()}
    names = [i.name for i in session.get_inputs() if i.name not in initialized]
    # onnxruntime borrows the memory: the dense copies must live until the run is over
    tensors = [_dense(x) for x in leaves if isinstance(x, torch.Tensor)]
    outputs = [o.name for o in session.get_outputs()]
    feeds = {n: _to_ort(t) for n, t in zip(names, tensors, strict=True)}
    return [_numpy(v) for v in session._sess.run_with_ort_values(feeds, outputs, None)]


def check(
    module: Any,
    *args: Any,
    dynamic_shapes: Any = None,
    others: Sequence[Sequence[Any]] = (),
    opset: int = 23,
    decompose: bool = False,
    exception: str | None = None,
) -> ir.Model:
    """Assert that a module gives in onnxruntime what it gives in torch.

    Args:
        module: A module or a function.
        *args: Example arguments, also compared.
        dynamic_shapes: As for ``torch.export.export`` (a sequence, one entry per argument, for a
            function).
        others: More argument lists to run the same model on.
        opset: ONNX opset.
        decompose: Whether to run torch's default decompositions first.
        exception: A named row of the exceptions in ``tests/support/tolerances.py``.

    Returns:
        The model, for further assertions.
    """
    model = lower_module(
        module, copy.deepcopy(args), dynamic_shapes, opset=opset, decompose=decompose
    )
    for inputs in (args, *others):
        with torch.no_grad():
            given = copy.deepcopy(tuple(inputs))
            expected = [x for x in pytree.tree_leaves(module(*given)) if x is not None]
        actual = run_model(model, copy.deepcopy(inputs))
        for got, want in zip(actual[: len(expected)], expected, strict=True):
            wanted = want if isinstance(want, torch.Tensor) else torch.tensor(want)
            if wanted.is_complex():
                wanted = torch.view_as_real(wanted.resolve_conj())
            assert_close(got, wanted, exception=exception)
    return model


def op_types(model: ir.Model) -> list[str]:
    """Return the op types of the main graph in order."""
    return [n.op_type for n in model.graph]


def _dense(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.detach().resolve_neg().contiguous()


def _to_ort(x: torch.Tensor) -> Any:
    tensor = ir.tensor(x)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        tensor.numpy(), tensor.dtype.value
    )._ortvalue


def _numpy(value: Any) -> Any:
    tensor = onnxruntime.OrtValue(value)
    kind = tensor.data_type()
    if "bfloat16" in kind:
        return from_dlpack(value.to_dlpack()).clone()
    return tensor.numpy()


__all__ = ["DOMAIN", "Wrapped", "check", "lower_module", "op_types", "run_model"]
