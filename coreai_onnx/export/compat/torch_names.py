"""Undocumented names of torch; all other files import them from here.

The import fails for a torch that lacks one of them, or an attribute that this package reads.
``docs/torch_versions.md`` lists the versions that have all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.export.versions import lacks
from coreai_onnx.model.dependencies import missing

try:
    from torch import _int_mm as integer_product
    from torch import _mkldnn as mkldnn_layout  # type: ignore[attr-defined]
    from torch._C import _enter_dual_level as enter_dual_level
    from torch._C import _exit_dual_level as exit_dual_level
    from torch._C import _jit_resolve_packet as resolve_packet
    from torch._C._functorch import get_dynamic_layer_stack_depth as transform_depth
    from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped
    from torch._C._functorch import (
        pop_dynamic_layer_stack_and_undo_to_depth as undo_transforms_to,
    )
    from torch._decomp import core_aten_decompositions
    from torch._decomp import decomposition_table as all_decompositions
    from torch._dynamo import OptimizedModule, assume_constant_result, nonstrict_trace
    from torch._dynamo import config as tracing_config
    from torch._dynamo.exc import TorchDynamoException, UserError, UserErrorType
    from torch._dynamo.source import ConstantSource
    from torch._export.verifier import SpecViolationError
    from torch._guards import detect_fake_mode
    from torch._higher_order_ops.flex_attention import math_attention
    from torch._higher_order_ops.invoke_subgraph import invoke_subgraph as REGION
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._refs import linspace
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.export import _trace as export_trace
    from torch.fx.experimental import _config as symbolic_shapes_config
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        ConstraintViolationError,
        DimDynamic,
        GuardOnDataDependentSymNode,
        ShapeEnv,
        ShapeGuardPythonPrinter,
        free_unbacked_symbols,
        uninteresting_files,
    )
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
    from torch.utils._sympy.functions import FloorDiv, Max, Min, MinMaxBase, Mod, PythonMod
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.value_ranges import bound_sympy
except ImportError as error:
    raise lacks(str(error)) from error

EXPORT_LOGGER = "torch._export.non_strict_utils"
"""The logger that reports which sizes of the example are treated as constants."""
VMAP_MARKS = "torch._functorch.predispatch"
"""The module of the functions that mark the batch axes of ``vmap``."""
_ENVIRONMENT = (
    "backed_var_to_val",
    "create_symbol",
    "create_symintnode",
    "deferred_runtime_asserts",
    "guards",
    "pending_fresh_unbacked_symbols",
    "replace",
    "replacements",
    "replacements_slocs",
    "var_to_range",
    "var_to_range_sloc",
    "var_to_sources",
)
_REGISTRIES = ("_buffers", "_modules", "_non_persistent_buffers_set", "_parameters")
_ATTRIBUTES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (ShapeEnv(), _ENVIRONMENT),  # instances: __init__ sets most of these
    (torch.nn.Module(), _REGISTRIES),
    (tracing_config, ("fake_tensor_cache_enabled",)),
    (torch.ops.aten.add.Tensor, ("_can_decompose", "_schema", "decompose")),
    (torch.zeros(0), ("_version",)),
)
"""Attributes of torch objects that are read: an example object, and the attribute names."""


def require(attributes: tuple[tuple[Any, tuple[str, ...]], ...] = _ATTRIBUTES) -> None:
    """Check that objects have attributes.

    Args:
        attributes: Objects, each with the names of its attributes.

    Raises:
        TorchVersionError: If an attribute is missing; the message names the first one.
    """
    for name in missing(attributes):
        raise lacks(name)


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of times that a tensor's memory was changed in place."""
    version: int = tensor._version  # noqa: SLF001 - torch has no public name for it
    return version


# At import: a missing attribute would otherwise fail in the middle of a conversion.
require()
