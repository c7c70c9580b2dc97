"""The folders of ``custom_ops`` include only those below them."""

from __future__ import annotations

import re

import pytest

from tests.rules.tree import files, text

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
LAYERS: dict[str, tuple[str, ...]] = {
    "simd": ("simd/",),
    "memory": ("memory/",),
    "kernels": ("kernels/", "simd/"),
    "ort": ("ort/", "memory/", "kernels/dtype.h", "simd/target.h", "onnxruntime_c_api.h"),
    "kit": ("kit/", "ort/", "declaration.h"),
    "ops": (
        *("ops/", "ort/", "kernels/", "memory/", "simd/"),
        *("onnxruntime_c_api.h", "selected_ops.h"),
    ),
}
"""By folder: the beginnings of what its files may include; Highway's headers aside."""
BUILT_ON = {("few_bits", "gather_mm"), ("convolution", "gather_mm")}
"""A group and the group that it uses: dequantized panels and windows enter the same product."""


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_includes_only_those_below_it(folder: str) -> None:
    sources = [name for name in files() if name.startswith(f"custom_ops/{folder}/")]
    included = {(name, path) for name in sources for path in INCLUDE.findall(text(name))}
    assert included
    allowed = (*LAYERS[folder], "hwy/")
    wrong = sorted(
        f"{name} includes {path}" for name, path in included if not path.startswith(allowed)
    )
    assert not wrong, "\n".join(wrong)


def test_files_of_a_group_include_no_other_group() -> None:
    """Attention reads neither norms nor products; what they share is beside the groups."""
    pattern = re.compile(r"custom_ops/(ops|kernels)/(\w+)/")
    wrong = []
    for name in files():
        found = pattern.match(name)
        if found is None:
            continue
        for path in INCLUDE.findall(text(name)):
            group = re.match(r"(?:ops|kernels)/(\w+)/", path)
            if group is None or (found[2], group[1]) in BUILT_ON:
                continue
            if group[1] != found[2]:
                wrong.append(f"{name} includes {path}")
    assert not wrong, "\n".join(wrong)
