"""Settings of the steps of the flow, with the fields of ExecuTorch's configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coreai_onnx.errors import StagingError
from coreai_onnx.export.compat.torch_names import OpOverload
from coreai_onnx.runtime.memory.placement import ALIGNMENT, Algorithm, greedy

if TYPE_CHECKING:
    from coreai_onnx.passes import Target


@dataclass(frozen=True)
class EdgeCompileConfig:
    """Settings of `to_edge`.

    The other fields of ExecuTorch's class select checks, which always run here after a pass, and
    the order of dims, which has no operators here. They have no effect.

    Attributes:
        preserve_ops: Operators that are not decomposed, overloads of ``torch.ops``.

    Raises:
        StagingError: If an operator is not an overload.
    """

    preserve_ops: Collection[OpOverload] = ()
    # Named as in ExecuTorch, so that its scripts run unchanged.
    _check_ir_validity: bool = True
    _skip_dim_order: bool = False
    _core_aten_ops_exception_list: Collection[Any] = ()
    _use_edge_ops: bool = True

    def __post_init__(self) -> None:
        """Check the operators."""
        ops: Any = self.preserve_ops
        if not isinstance(ops, Collection) or not all(isinstance(op, OpOverload) for op in ops):
            raise StagingError(
                f"preserve_ops must be a list of operators, got {ops!r:.60}\n"
                "  name overloads: [torch.ops.aten.softplus.default]"
            )


@dataclass(frozen=True)
class MemoryPlanningPass:
    """Which memory `FinishedProgram.memory_plan` includes, and how it places buffers.

    onnxruntime places the values itself. The plan is for runtimes that allocate ahead of time.

    Attributes:
        memory_planning_algo: As ``algorithm`` of `coreai_onnx.memory_plan`.
        alloc_graph_input: Whether the plan includes the inputs. If not, they are memory of the
            caller, as for every `Session.run`.
        alloc_graph_output: Whether the plan includes the outputs. If not, they are written to
            memory of the caller, as by `Session.run_into`.
        alloc_mutable_buffers: Whether the plan includes the states. If not, they are memory of the
            session. Their new values are outputs.
        alignment: What offsets are multiples of, in bytes.
        allow_lifetime_and_storage_overlap: Whether the algorithm may give the same memory to
            buffers that are used at once.
        share_mutable_buffers: Refused if true: each method has a plan of its own.

    Raises:
        StagingError: If the algorithm is not a function, the alignment is not positive, or a field
            is refused.
    """

    memory_planning_algo: Algorithm = greedy
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alignment: int = ALIGNMENT
    alloc_mutable_buffers: bool = field(default=True, kw_only=True)
    allow_lifetime_and_storage_overlap: bool = field(default=False, kw_only=True)
    share_mutable_buffers: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        if not callable(self.memory_planning_algo):
            raise StagingError(
                f"memory_planning_algo must be a function, got {self.memory_planning_algo!r:.60}\n"
                "  use coreai_onnx.runtime.memory.greedy, or a function of buffers and alignment"
            )
        if self.share_mutable_buffers:
            raise StagingError(
                "share_mutable_buffers has no counterpart: each method has a plan of its own\n"
                "  leave it out"
            )
        # bool is a subclass of int.
        if type(self.alignment) is not int or self.alignment < 1:
            raise StagingError(f"alignment must be a positive integer, got {self.alignment!r:.60}")


_REFUSED = {
    "to_out_var_pass": "onnxruntime allocates the results of operators",
    "sym_shape_eval_pass": "sizes stay symbolic in the file",
    "propagate_device_config": "onnxruntime assigns operators to devices by execution providers",
    "dynamic_memory_planning_mode": "onnxruntime allocates memory for the sizes of a run",
    "skip_h2d_for_method_inputs": "onnxruntime's IOBinding keeps tensors on a device",
    "skip_d2h_for_method_outputs": "onnxruntime's IOBinding keeps tensors on a device",
    "external_mutable_weights": "weights are constants of the file; states are its inputs",
}
"""Fields of ExecuTorch's configuration that have no counterpart, and why."""


@dataclass(frozen=True)
class FinishConfig:
    """Settings of `EdgeProgramManager.finish`.

    The remaining fields are those of ExecuTorch's ``ExecutorchBackendConfig``. Those that place
    bytes in a ``.pte`` file, select its optimizations, or add names that an ONNX file always has,
    have no effect. Those that would change what a program does are refused unless they are unset.

    Attributes:
        passes: Passes to run first, as for `EdgeProgramManager.transform`.
        optimize: Whether to run the graph passes of the target.
        target: As for `OnnxProgram.optimize`.
        memory_planning_pass: What `FinishedProgram.memory_plan` includes and how it places
            buffers, for all methods or by method.
        opset_version: As for `TorchConverter.to_onnx`.
        minimum_onnxruntime: As for `TorchConverter.to_onnx`.
        external_constants: Whether `FinishedProgram.save` writes weights to a data file.

    Raises:
        StagingError: If a field is refused, or a memory planning pass is something else.
    """

    passes: Sequence[Any] | Mapping[str, Sequence[Any]] = ()
    optimize: bool = True
    target: Target = "onnxruntime"
    memory_planning_pass: MemoryPlanningPass | Mapping[str, MemoryPlanningPass] = field(
        default_factory=MemoryPlanningPass
    )
    opset_version: int | None = None
    minimum_onnxruntime: str | None = None
    external_constants: bool = False
    to_out_var_pass: Any = None
    sym_shape_eval_pass: Any = None
    propagate_device_config: Any = None
    dynamic_memory_planning_mode: Any = None
    skip_h2d_for_method_inputs: bool | Mapping[str, bool] = False
    skip_d2h_for_method_outputs: bool | Mapping[str, bool] = False
    external_mutable_weights: bool = False
    emit_stacktrace: bool = True
    emit_mutable_buffer_names: bool = True
    extract_delegate_segments: bool = True
    segment_alignment: int = 128
    constant_tensor_alignment: int | None = None
    delegate_alignment: int | None = None
    remove_view_copy: bool = True
    do_quant_fusion_and_const_prop: bool = True
    run_reinplace_pass: bool = True
    reinplace_extra_ops: Collection[Any] | None = None
    enable_non_cpu_memory_planning: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, reason in _REFUSED.items():
            # Scripts of ExecuTorch often pass the defaults explicitly.
            if getattr(self, name) not in (None, False, {}):
                raise StagingError(f"{name} has no counterpart: {reason}\n  leave it out")
        if not isinstance(self.external_constants, bool):
            raise StagingError(
                "external_constants is True or False: all weights are in one data file, or none"
            )
        chosen = self.memory_planning_pass
        for one in chosen.values() if isinstance(chosen, Mapping) else [chosen]:
            _check_planning(one)

    def planning(self, method_name: str) -> MemoryPlanningPass:
        """Return the memory planning pass of a method."""
        chosen = self.memory_planning_pass
        if isinstance(chosen, Mapping):
            return chosen.get(method_name) or MemoryPlanningPass()
        return chosen


def check_configuration(config: Any, kind: type, setting: str) -> None:
    """Raise StagingError for anything but a configuration of one class.

    Args:
        config: The configuration.
        kind: Its class.
        setting: A field, for the message.
    """
    if not isinstance(config, kind):
        raise StagingError(
            f"the configuration must be of type {kind.__name__}, got {config!r:.60}\n"
            f"  name the settings: {kind.__name__}({setting}=...)"
        )


def _check_planning(one: Any) -> None:
    if not isinstance(one, MemoryPlanningPass):
        raise StagingError(
            f"memory_planning_pass must be a MemoryPlanningPass, got {one!r:.60}\n"
            "  use MemoryPlanningPass(memory_planning_algo=...) for a plan of your own"
        )
    # A subclass that overrides one of them expects ExecuTorch to call it.
    methods = [
        name for name in ("run", "run_multimethod", "call", "__call__") if hasattr(one, name)
    ]
    if methods:
        raise StagingError(
            f"{type(one).__name__}.{methods[0]} would never be called: exported programs have no "
            "allocations\n  place buffers in a function: "
            "MemoryPlanningPass(memory_planning_algo=...)"
        )
