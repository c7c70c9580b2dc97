"""Only ``export/compat`` reaches into what torch and transformers do not document.

``torch._check`` is documented, by the errors that name it and by torch's own guides.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.rules.tree import sources, text

HOME = "coreai_onnx/export/compat/"
PRIVATE = re.compile(r"^torch(\.\w+)*\.(_(?!check)[a-zA-Z]\w*|experimental)(\.\w+)*$")


def private_names(source: str) -> list[str]:
    """Return the private names of torch that a file imports, reads, or names in a string."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return [name for name in found if PRIVATE.match(name)]


def test_private_names_are_in_one_place() -> None:
    wrong = [
        f"{name}: {private}"
        for name in sources(".py")
        if name.startswith("coreai_onnx/") and not name.startswith(HOME)
        for private in private_names(text(name))
    ]
    assert not wrong, f"import these from {HOME}torch_names.py:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree as pytree",
        "from torch._subclasses import FakeTensor",
        "import torch._dynamo",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "isinstance(x, torch._ops.OpOverload)",
        "logger = 'torch._export.non_strict_utils'",
    ],
)
def test_a_private_name_is_seen(line: str) -> None:
    assert private_names(line)


@pytest.mark.parametrize(
    "line",
    ["torch._check(x)", "from torch.export import Dim", "'see torch._dynamo'", "torch.nn.Module"],
)
def test_other_names_are_left_alone(line: str) -> None:
    assert not private_names(line)
