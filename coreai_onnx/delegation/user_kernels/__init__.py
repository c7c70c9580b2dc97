"""Kernels of the user's own: C++ that is compiled, and checked against a composite's reference."""

from coreai_onnx.delegation.user_kernels.kernel import Kernel, kernel

__all__ = ["Kernel", "kernel"]
