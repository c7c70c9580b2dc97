"""Names that a library does not document are used in one place, which checks that they exist.

``torch._check`` is documented, by the errors that name it and by torch's own guides.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from coreai_onnx.export.compat.torch_names import _ATTRIBUTES
from tests.rules.tree import sources, text

HOMES = {
    "coreai_onnx/export/compat/": ("torch", "transformers"),
    "coreai_onnx/huggingface/transformers_backend.py": ("transformers",),
    "coreai_onnx/huggingface/transformers_names.py": ("transformers",),
    "coreai_onnx/lower/walk/torchlib.py": ("onnxscript",),
    "coreai_onnx/passes/engine/surgeon_names.py": ("onnx_graphsurgeon",),
    "coreai_onnx/runtime/deployment/hosts.py": ("torch",),
    "coreai_onnx/runtime/tensors/onnxruntime_names.py": ("onnxruntime",),
}
"""The files that may use undocumented names, and those of which libraries."""
DOCUMENTED = {
    *("onnx", "onnx.checker", "onnx.defs", "onnx.parser", "onnx.shape_inference"),
    *("onnx_ir", "onnx_ir.passes.common", "onnx_ir.tensor_adapters", "onnx_graphsurgeon"),
    *("onnxruntime", "onnxscript", "onnxscript.onnx_types"),
    *("transformers", "transformers.modeling_outputs"),
}
"""Modules of libraries whose names may be imported anywhere; those of torch have no underscore."""
LIBRARIES = {name.partition(".")[0] for name in DOCUMENTED}
PRIVATE = re.compile(r"^torch(\.\w+)*\.(_(?!check)[a-zA-Z]\w*|experimental)(\.\w+)*$")
HIDDEN = re.compile(r"_(?!_)\w*[a-zA-Z]\w*")
CHECKED = {"_can_decompose", "_schema"}
CHECKED |= {"_buffers", "_modules", "_non_persistent_buffers_set", "_parameters"}
"""Attributes of torch that are read in many places; ``torch_names`` checks them when imported."""
OF_PYTHON = {"sys._getframe", "argparse._ArgumentGroup"}
"""Python documents the first; the second has no other name, and is only an annotation."""
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
BY_NAME = {"attrgetter", "delattr", "getattr", "hasattr", "setattr"}


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the modules that a file imports from, each with the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module or "", name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)


def private_names(source: str) -> list[str]:
    """Return the undocumented names of libraries that a file imports, reads, or has as strings."""
    tree = ast.parse(source)
    named = [f"{module}.{name}".rstrip(".") for module, name in imported(tree)]
    hidden = [
        f"{module}.{name}".rstrip(".")
        for module, name in imported(tree)
        if module.partition(".")[0] in LIBRARIES
        and (module not in DOCUMENTED or HIDDEN.fullmatch(name))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            named.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.append(node.value)
    return [name for name in named if PRIVATE.match(name)] + hidden


def defined(tree: ast.AST) -> set[str]:
    """Return the names that the classes and functions of a file define."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {x.id for target in targets for x in ast.walk(target) if is_name(x)}
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def attributes(tree: ast.AST) -> Iterator[tuple[str, str, bool]]:
    """Yield attributes: the whole expression, the name, and whether it is one of ``self``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name):
                own = ast.unparse(value) in ("self", "cls", "super()")
                yield ast.unparse(node), name, own
            case ast.Call(
                func=func,
                args=[*_, ast.Constant(value=str(name))] | [_, ast.Constant(value=str(name)), _],
            ):
                if ast.unparse(func).rpartition(".")[2] in BY_NAME or is_vars_get(func):
                    yield ast.unparse(node), name, False
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
                if ast.unparse(value).startswith("vars("):
                    yield ast.unparse(node), name, False


def is_vars_get(func: ast.expr) -> bool:
    return ast.unparse(func).startswith("vars(") and ast.unparse(func).endswith(").get")


def foreign_attributes(source: str, of_the_package: set[str]) -> list[str]:
    """Return the private attributes that a file reads of objects of other libraries.

    An attribute of ``self`` is the package's own if any class of the package defines it, another
    one if the file itself does.
    """
    tree = ast.parse(source)
    of_the_file = defined(tree)
    return [
        whole
        for whole, name, is_of_self in attributes(tree)
        if HIDDEN.fullmatch(name)
        and name not in (of_the_package if is_of_self else of_the_file)
        and name not in CHECKED | OF_NAMED_TUPLES
        and whole not in OF_PYTHON
        and not whole.startswith(("torch._check", "torch.ops.", "aten."))
        and "coreai" not in name
    ]


@functools.cache
def of_the_package() -> dict[str, str]:
    return {name: text(name) for name in sources(".py") if name.startswith("coreai_onnx/")}


def test_undocumented_names_are_in_their_place() -> None:
    names = {name for source in of_the_package().values() for name in defined(ast.parse(source))}
    wrong = [
        f"{file}: {private}"
        for file, source in of_the_package().items()
        if not file.startswith(tuple(HOMES))
        for private in private_names(source) + foreign_attributes(source, names)
    ]
    assert not wrong, f"use these through one of {[*HOMES]}:\n" + "\n".join(wrong)


def test_each_place_has_the_names_of_its_libraries_only() -> None:
    for home, libraries in HOMES.items():
        files = [source for name, source in of_the_package().items() if name.startswith(home)]
        assert files, home
        hidden = [name for source in files for name in private_names(source)]
        assert {name.partition(".")[0] for name in hidden} <= set(libraries), home


def test_attributes_that_are_read_anywhere_are_checked() -> None:
    assert {name for _, names in _ATTRIBUTES for name in names} >= CHECKED


@pytest.mark.parametrize("home", [home for home in HOMES if home.endswith(".py")])
def test_each_place_checks_its_names(home: str) -> None:
    called = {
        ast.unparse(n.func) for n in ast.walk(ast.parse(text(home))) if isinstance(n, ast.Call)
    }
    assert called & {"imported_from", "require"}
    unguarded = [node for node in ast.parse(text(home)).body if isinstance(node, ast.ImportFrom)]
    assert not [n for n in unguarded if private_names(ast.unparse(n))]


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree as pytree",
        "from torch._subclasses import FakeTensor",
        "import torch._dynamo",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "isinstance(x, torch._ops.OpOverload)",
        "logger = 'torch._export.non_strict_utils'",
        "from transformers.cache_utils import DynamicLayer",
        "import onnxruntime.capi.onnxruntime_inference_collection",
        "from onnx_graphsurgeon.util.misc import convert_to_onnx_attr_type",
        "from onnx_ir import _core",
    ],
)
def test_a_private_name_is_seen(line: str) -> None:
    assert private_names(line)


@pytest.mark.parametrize(
    "line",
    [
        "torch._check(x)",
        "from torch.export import Dim",
        "'see torch._dynamo'",
        "torch.nn.Module",
        "from transformers import DynamicCache",
        "from onnx_ir.passes.common import InlinePass",
        "from .errors import _Error",
    ],
)
def test_other_names_are_left_alone(line: str) -> None:
    assert not private_names(line)


@pytest.mark.parametrize(
    "line",
    [
        "tensor.untyped_storage()._cdata",
        "weight._version",
        "chosen._model_mapping",
        "value._numpy_obj",
        "constant._values",
        "ir.DataType._value2member_map_",
        "getattr(subject, '_orig_mod', None)",
        "hasattr(experts, '_apply_gate')",
        "vars(module)['_apply_gate']",
        "vars(module).get('_apply_gate')",
        "class Own(Theirs):\n    def f(self): return self._theirs",
    ],
)
def test_a_private_attribute_of_another_library_is_seen(line: str) -> None:
    assert foreign_attributes(line, {"_cdata", "_own"})


@pytest.mark.parametrize(
    "line",
    [
        "class Own:\n    def f(self, other):\n        self._own = other._own",
        "class Own(Base):\n    def f(self): return super()._own() + self._own",
        "torch._check(x)",
        "aten._native_batch_norm_legit_functional",
        "target._schema",
        "named._fields",
        "getattr(x, f'_{name}')",
        "x.__dict__",
    ],
)
def test_own_and_documented_attributes_are_left_alone(line: str) -> None:
    assert not foreign_attributes(line, {"_own"})
