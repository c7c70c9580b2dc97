"""The settings of a quantized checkpoint: each is used, has no effect, or is refused by name."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from coreai_onnx.errors import ModelSourceError, failures_as

COMMON = frozenset({"quant_method", "modules_to_not_convert", "dequantize"})
"""The layers of ``modules_to_not_convert`` have no codes in the files, which is what is read."""
_OFF: tuple[object, ...] = (None, False, "", [], {}, ())


def check_settings(what: str, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Check that no setting is ignored that may change what a layer computes.

    Args:
        what: The part of the configuration, for the message.
        settings: The settings; those that are None, False or empty are off.
        known: The names of those that are read, or change nothing.

    Raises:
        ModelSourceError: If another one is set.
    """
    for name, value in settings.items():
        if name not in known and value not in _OFF:
            raise ModelSourceError(
                f"{what}: the setting {name} = {reprlib.repr(value)} is not supported\n"
                "  if it does not change what layers compute, remove it from config.json"
            )


def matches(pattern: str, path: str) -> bool:
    """Whether a regular expression matches the start of a path.

    Raises:
        ModelSourceError: If it is not valid.
    """
    with failures_as(ModelSourceError, f"the pattern {pattern!r} of layers is not valid"):
        return re.match(pattern, path) is not None
