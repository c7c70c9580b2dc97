"""Lowers higher-order ops to If, Loop and Scan, and inlines wrappers.

Importing this package registers the lowerings.
"""

from coreai_onnx.lower.control_flow import attention, calls, conditions, inline, scan

__all__ = ["attention", "calls", "conditions", "inline", "scan"]
