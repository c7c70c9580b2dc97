"""The library of onnxruntime-extensions, with operators for tokenizers and image formats."""

from __future__ import annotations

from pathlib import Path

from coreai_onnx.errors import SessionError

INSTALL = "pip install onnxruntime-extensions"


def extensions_path() -> Path:
    """Return the path of the library, for ``SessionOptions.register_custom_ops_library``.

    Raises:
        SessionError: If onnxruntime-extensions is not installed.
    """
    try:
        import onnxruntime_extensions
    except ImportError as error:
        raise SessionError(f"onnxruntime-extensions is not installed: {INSTALL}") from error
    return Path(onnxruntime_extensions.get_library_path())
