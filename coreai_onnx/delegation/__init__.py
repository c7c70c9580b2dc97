"""The flow of ExecuTorch on ONNX: to the edge dialect, transform, finish, save."""

from coreai_onnx.delegation.edge import EdgeProgramManager, to_edge
from coreai_onnx.delegation.export_pass import ExportPass, ProxyValue, edge_ops
from coreai_onnx.delegation.finished import FinishConfig, FinishedProgram

__all__ = [
    "EdgeProgramManager",
    "ExportPass",
    "FinishConfig",
    "FinishedProgram",
    "ProxyValue",
    "edge_ops",
    "to_edge",
]
