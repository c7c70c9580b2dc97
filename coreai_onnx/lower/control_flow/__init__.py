"""Lowers higher-order ops to If, Loop and Scan, and inlines wrappers.

Importing this package registers the lowerings.
"""

from coreai_onnx.lower.control_flow import attention, calls, cond, inline, scan, while_loop

__all__ = ["attention", "calls", "cond", "inline", "scan", "while_loop"]
