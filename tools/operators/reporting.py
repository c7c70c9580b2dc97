"""What every worker begins with: one channel for its lines of JSON, and silence elsewhere."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any


def reporter() -> Callable[..., None]:
    """Silence libraries, which print where they like, and return what writes a line of JSON."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def say(**fields: Any) -> None:
        lines.write(json.dumps(fields) + "\n")

    return say
