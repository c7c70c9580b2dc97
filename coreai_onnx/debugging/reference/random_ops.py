"""Which operators of torch draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import OpOverload

_SWITCHES = ("train", "training", "dropout_p", "dropout")
"""Parameters of random ops; without them, or with another value than 0, an op is random."""


def draws(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: attention without dropout does not."""
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    arguments = target._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
    return not any(name in given and not given[name] for name in _SWITCHES)
