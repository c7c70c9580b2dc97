"""All cases, in the order of the sweep, library by library."""

from __future__ import annotations

from tests.foreign.case import Case
from tests.foreign.diffusers_cases import DIFFUSERS
from tests.foreign.geometric_cases import GEOMETRIC
from tests.foreign.peft_cases import PEFT
from tests.foreign.timm_cases import TIMM
from tests.foreign.torchao_cases import TORCHAO
from tests.foreign.torchvision_cases import TORCHVISION
from tests.foreign.transformers_cases import TRANSFORMERS

CASES: tuple[Case, ...] = (
    *TRANSFORMERS,
    *TIMM,
    *DIFFUSERS,
    *GEOMETRIC,
    *PEFT,
    *TORCHAO,
    *TORCHVISION,
)
DTYPES = ("float32", "float16", "bfloat16")
LIBRARY = {case.name: case.library for case in CASES}
"""Name of a case to its library."""
BESIDE = frozenset(
    name
    for library in set(LIBRARY.values())
    for name in [case.name for case in CASES if case.library == library][::3]
)
"""Every third case of each library, for ``torch.onnx.export``, which takes most of the time."""


def named(name: str) -> Case:
    """Return the case of this name."""
    return next(case for case in CASES if case.name == name)
