"""All cases, in the order of the sweep, library by library."""

from __future__ import annotations

from tools.foreign.case import Case
from tools.foreign.diffusers_cases import DIFFUSERS
from tools.foreign.geometric_cases import GEOMETRIC
from tools.foreign.peft_cases import PEFT
from tools.foreign.timm_cases import TIMM
from tools.foreign.torchao_cases import TORCHAO
from tools.foreign.torchvision_cases import TORCHVISION
from tools.foreign.transformers_cases import TRANSFORMERS

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


def _sample(step: int) -> frozenset[str]:
    """Return the names of the first case of each library and of every ``step``-th after it."""
    groups = ([c.name for c in CASES if c.library == name] for name in set(LIBRARY.values()))
    return frozenset(name for group in groups for name in group[::step])


IN_BFLOAT16 = _sample(2)
"""Half of the cases: the programs differ from those of float16 in their dtype only."""
BESIDE = _sample(3)
"""A third of the cases, for ``torch.onnx.export``, which takes most of the time."""


def named(name: str) -> Case:
    """Return the case of this name."""
    return next(case for case in CASES if case.name == name)
