"""The flow of ExecuTorch on ONNX: to the edge dialect, transform, delegate, finish, save."""

from coreai_onnx.delegation.backends import (
    BackendDetails,
    CompileSpec,
    PreprocessResult,
    backend,
)
from coreai_onnx.delegation.capability import CapabilityPartitioner
from coreai_onnx.delegation.configs import EdgeCompileConfig, FinishConfig, MemoryPlanningPass
from coreai_onnx.delegation.edge import (
    EdgeProgramManager,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from coreai_onnx.delegation.export_pass import ExportPass, ProxyValue, edge_ops
from coreai_onnx.delegation.finished import FinishedProgram
from coreai_onnx.delegation.kernels import KernelPartitioner
from coreai_onnx.delegation.lowered_modules import LoweredModule
from coreai_onnx.delegation.onnx_module import OnnxModule
from coreai_onnx.delegation.partitioning import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    delegates_of,
)
from coreai_onnx.delegation.providers import ProviderPartitioner

# The names of ExecuTorch, for scripts that only exchange their imports.
ExecutorchBackendConfig = FinishConfig
ExecutorchProgramManager = FinishedProgram
LoweredBackendModule = LoweredModule

__all__ = [
    "BackendDetails",
    "CapabilityPartitioner",
    "CompileSpec",
    "DelegationSpec",
    "EdgeCompileConfig",
    "EdgeProgramManager",
    "ExecutorchBackendConfig",
    "ExecutorchProgramManager",
    "ExportPass",
    "FinishConfig",
    "FinishedProgram",
    "KernelPartitioner",
    "LoweredBackendModule",
    "LoweredModule",
    "MemoryPlanningPass",
    "OnnxModule",
    "PartitionResult",
    "Partitioner",
    "PreprocessResult",
    "ProviderPartitioner",
    "ProxyValue",
    "backend",
    "delegates_of",
    "edge_ops",
    "to_backend",
    "to_edge",
    "to_edge_transform_and_lower",
]
