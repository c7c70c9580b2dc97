"""The versions of torch that are tested, and which source files are whose."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
import warnings
from pathlib import Path

import torch

from coreai_onnx.errors import CoreaiError, TorchVersionError
from coreai_onnx.model.dependencies import MISSING_IN_TORCH

TESTED = ("2.12", "2.13", "2.15")
"""Minor releases of torch that the tests of docs/torch_versions.md have passed with."""


def is_tested(version: str) -> bool:
    """Whether a version of torch, ``"2.13.0+cpu"``, belongs to a tested minor release."""
    # With the dot, because 2.1 is also the beginning of 2.12.
    return version.startswith(tuple(f"{minor}." for minor in TESTED))


def warn_if_untested(version: str) -> None:
    """Warn once per process about a version of torch that the package is not tested with.

    Args:
        version: ``torch.__version__``, ``"2.13.0+cpu"``.
    """
    if not is_tested(version):
        warnings.warn(
            f"coreai_onnx is tested with torch {_tested('and')}, this is torch {version}; "
            "compare the result with torch (coreai_onnx.compare) before you rely on it",
            UserWarning,
            stacklevel=2,
        )


def lacks(what: str) -> TorchVersionError:
    """Return the error for a torch that lacks a name that this package needs.

    Args:
        what: Python's message about what is missing.
    """
    match = MISSING_IN_TORCH.pattern.search(what)
    reason = match["what"] if match else what
    return TorchVersionError(
        f"coreai_onnx needs torch {_tested('or')}, this is torch {torch.__version__}: {reason}"
    )


def refusal_after(error: Exception) -> TorchVersionError | None:
    """Return the error that explains a failed import; None if torch is not the reason.

    Args:
        error: What the import of a module of this package raised.
    """
    if not isinstance(error, AttributeError | ImportError) or isinstance(error, CoreaiError):
        return None
    is_explained = MISSING_IN_TORCH.is_in(error) and not is_tested(torch.__version__)
    return lacks(str(error)) if is_explained else None


def _tested(conjunction: str) -> str:
    return f"{', '.join(TESTED[:-1])} {conjunction} {TESTED[-1]}"


_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent.parent) + os.sep


def is_torch(file: str) -> bool:
    """Whether a file is part of torch, or code that torch generated."""
    return file.startswith((_TORCH, "<eval_with_key", "<frozen "))


def is_ours(file: str) -> bool:
    """Whether a file is part of this package."""
    return file.startswith(_OURS)


def is_users(file: str) -> bool:
    """Whether a file belongs to the user's model: neither to torch nor to this package.

    The source line of a recognized block is the line of the model that calls it, not a line of its
    replacement.
    """
    return not is_torch(file) and not is_ours(file)


@functools.lru_cache(maxsize=1024)
def relative_path(file: str) -> str:
    """Return a path without the part that is specific to this machine."""
    folders = [*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())]
    # The longest first, since an environment may lie in the working directory.
    for folder in sorted(set(folders), key=len, reverse=True):
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return Path(file).name
