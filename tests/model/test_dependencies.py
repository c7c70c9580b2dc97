"""The installed libraries write the messages, and have the names, that this package relies on."""

from __future__ import annotations

import enum
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch
from torch._higher_order_ops.utils import reenter_make_fx
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import DynamicCache

from coreai_onnx.errors import LibraryVersionError
from coreai_onnx.export.compat.dynamo import uncompiled
from coreai_onnx.export.compat.traces import transforms_restored
from coreai_onnx.export.guards import shape_env
from coreai_onnx.model import dependencies
from coreai_onnx.model.dependencies import MessageText, imported_from, require
from coreai_onnx.model.python.builder import checking

TEXTS = {name: x for name, x in vars(dependencies).items() if isinstance(x, MessageText)}
X = torch.randn(2, 4)


class Calls(torch.nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class ReadsData(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.data


class Remembers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LAST["shape"] = x.shape
        return -x


LAST: dict[str, Any] = {}


class Kind(enum.Enum):
    ONE = 1


# ---------------------------------------------------------------------- torch
def exported(function: Any, *args: Any, dims: Any = None, **options: Any) -> Any:
    model = function if isinstance(function, torch.nn.Module) else Calls(function)
    shapes = dims and (dims,)
    with transforms_restored():
        return torch.export.export(model, args or (X,), dynamic_shapes=shapes, **options)


def export_failure(function: Any, *args: Any, dims: Any = None, **options: Any) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the text is what is tested
        exported(function, *args, dims=dims, **options)
    files = (frame.filename for frame in traceback.extract_tb(raised.value.__traceback__))
    return "\n".join([str(raised.value), *files])


def compile_failure(function: Callable[..., Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        torch.compile(function, fullgraph=True, backend="eager")(X)
    return str(raised.value)


def torch_logs(name: str, export: Callable[[], Any]) -> Iterator[str]:
    records: list[logging.LogRecord] = []
    logger = logging.getLogger(name)
    logger.addFilter(records.append)
    try:
        export()
    finally:
        logger.removeFilter(records.append)
    for record in records:
        yield record.getMessage()
        yield str(record.msg)


def torch_warnings(export: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export()
    return [str(one.message) for one in caught]


def assertions() -> Iterator[str]:
    """The messages of the runtime assertions of a program."""
    dims, options = ({0: Dim("n")},), {"prefer_deferred_runtime_asserts_over_guards": True}
    env = shape_env(exported(lambda x: x.view(-1, 2), torch.randn(6), dims=dims, **options))
    assert env is not None
    for checks in env.deferred_runtime_asserts.values():
        yield from (check.msg for check in checks)


def fixed(dim: Any, size: int = 2) -> str:
    function = (lambda x: x.view(size, 4)) if size > 1 else (lambda x: x * 2)
    return export_failure(function, X[:size], dims=({0: dim},))


def missing_name() -> str:
    with pytest.raises(ImportError) as caught:
        from torch.export import NoSuchName  # noqa: F401 - its failure is the result
    return str(caught.value)


def reasons(message: str) -> list[str]:
    return dependencies.REASON.pattern.findall(message)


def equal_sizes() -> str:
    return export_failure(lambda x, y: x + y, X, X + 1, dims=({0: Dim("a")}, {0: Dim("b")}))


def with_a_float() -> str:
    return export_failure(lambda x: x[: int(x.shape[0] * 0.25)], X, dims=({0: Dim("n")},))


def in_place_branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.add_(1), torch.neg, (x,))


def functionalized_branch() -> str:
    branch = make_fx(lambda x: (x.add_(1).clone(),))(X.clone())
    with pytest.raises(RuntimeError) as raised:
        torch.func.functionalize(
            lambda x: torch.ops.higher_order.cond(x.sum() > 0, branch, branch, (x,))
        )(X)
    return str(raised.value)


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.count.add_(1)
        return x + self.count


def mutated_constant() -> str:
    program = exported(Counts())
    with pytest.raises(RuntimeError) as raised:
        program.run_decompositions()
    return str(raised.value)


def squares_derivative(x: torch.Tensor) -> torch.Tensor:
    derivative: torch.Tensor = torch.func.jacfwd(lambda y: (y**2).sum())(x)
    return derivative


EXPORT_LOG, SIZE_LOG = "torch._export.non_strict_utils", "torch.fx.experimental.symbolic_shapes"

# ---------------------------------------------------------------------- onnx, onnxruntime
HEADER = '<ir_version: 10, opset_import: ["": 23]> g '


def inference_failure(graph: str) -> str:
    model = onnx.parser.parse_model(HEADER + graph)
    for number, node in enumerate(model.graph.node):
        node.name = str(number)
    with pytest.raises(onnx.shape_inference.InferenceError) as raised:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    return str(raised.value)


def after_the_node(message: str) -> str:
    return dependencies.NODE_OF_FAULT.pattern.split(message)[-1]


def check_failure(node: str) -> str:
    (proto,) = onnx.parser.parse_graph(f"g (float x) => (float y) {{ {node} }}").node
    proto.name = "7"
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 10, {"": 23}
    with pytest.raises(onnx.checker.ValidationError) as raised:
        onnx.checker.check_node(proto, context)
    return str(raised.value)


def session_failure(graph: str, header: str = HEADER) -> str:
    model = onnx.parser.parse_model(header + graph)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception) as raised:  # noqa: PT011 - they share no base class
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return str(raised.value)


MISMATCH = "(float[2] x, int64[2] i) => (y) { y = Add (x, i) }"
PRODUCT = "(float[2, 3] x, float[4, 5] w) => (y) { y = MatMul (x, w) }"
COPY = "(float[2] x) => (float[2] y) { y = Identity (x) }"

PROVOKED: dict[str, Callable[[], str | list[str] | Iterator[str]]] = {
    "FAKE_CONSTANT": lambda: export_failure(ReadsData()),
    "MISSING_IN_TORCH": missing_name,
    "DERIVATIVE": lambda: export_failure(squares_derivative),
    "OPAQUE_CACHE": lambda: export_failure(lambda x, _: x, X, DynamicCache()),
    "OPAQUE_TYPE": lambda: export_failure(lambda x: (x, torch.float32)),
    "OPAQUE_OUTPUT": lambda: export_failure(lambda x: (x, Kind.ONE)).partition("\n")[0],
    "LOOPS_OF_TORCH": lambda: compile_failure(lambda x: -reenter_make_fx(torch.sin)(x)),
    "TRACED_WRITE": lambda: export_failure(in_place_branch),
    "FUNCTIONALIZED_WRITE": functionalized_branch,
    "MUTATED_CONSTANT": mutated_constant,
    "BOOLEAN_CONDITION": lambda: export_failure(lambda x: x if (x > 0).all() else -x),
    "FIXED_SIZE": lambda: fixed(Dim("n")),
    "FIXED_BY_EXAMPLE": lambda: fixed(Dim.DYNAMIC, 1),
    "MARKED_DYNAMIC": lambda: reasons(fixed(Dim("n"))),
    "HINT_OF_ZERO_OR_ONE": lambda: reasons(fixed(Dim.DYNAMIC, 1)),
    "LOG_OF_ZERO_OR_ONE": lambda: torch_logs(
        EXPORT_LOG, lambda: exported(torch.neg, X[:1], dims=({0: Dim.AUTO},))
    ),
    "RANGE_CONFLICT": lambda: fixed(Dim.DYNAMIC, 1),
    "REASON": equal_sizes,
    "FIXES": equal_sizes,
    "FIX": equal_sizes,
    "INPUT": lambda: reasons(fixed(Dim.DYNAMIC, 1)),
    "INFINITY": lambda: export_failure(
        lambda x: x[:6] * torch.ones(6, 4), torch.randn(8, 4), dims=({0: Dim("n")},)
    ),
    "FLOAT_GUARD": with_a_float,
    "OPERATORS_CONDITION": assertions,
    "NO_USER_CODE": lambda: torch_logs(
        SIZE_LOG, lambda: export_failure(lambda x: x if x.sum() > 0 else -x)
    ),
    "SIDE_EFFECTS": lambda: torch_warnings(lambda: exported(Remembers(), strict=True)),
    "FLAT_WEIGHTS": lambda: torch_warnings(
        lambda: exported(torch.nn.LSTM(4, 4), torch.randn(3, 2, 4))
    ),
    "NODE_OF_FAULT": lambda: inference_failure(MISMATCH),
    "ERROR_LIST": lambda: inference_failure(PRODUCT),
    "ERROR_KIND": lambda: after_the_node(inference_failure(PRODUCT)),
    "ELEMENT_TYPES": lambda: inference_failure(
        "(float[2] x) => (y) <int64[2] a> { a = Neg (x)  y = Neg (a) }"
    ),
    "UNKNOWN_TYPE": lambda: inference_failure("(float[2] x) => (y) { y = Neg (unknown) }"),
    "NODE_PREFIX": lambda: check_failure("y = Conv (x)"),
    "SOURCE_LOCATION": lambda: session_failure(COPY, '<ir_version: 99, opset_import: ["": 23]> g '),
    "UNKNOWN_OP": lambda: session_failure(
        "(float[2] x) => (float[2] y) { y = custom.Op (x) }",
        '<ir_version: 10, opset_import: ["": 23, "custom": 1]> g ',
    ),
    "NEWER_MODEL": lambda: session_failure(COPY, '<ir_version: 99, opset_import: ["": 23]> g '),
}
"""What makes the installed library write each text."""


@pytest.mark.parametrize("name", TEXTS)
def test_the_installed_library_writes_the_text(name: str) -> None:
    written = PROVOKED[name]()
    messages = [written] if isinstance(written, str) else list(written)
    assert any(map(TEXTS[name].is_in, messages)), messages


OPAQUE = {
    "input": lambda: export_failure(lambda x, _: x, X, object()),
    "output under strict": lambda: export_failure(lambda x: (x, torch.float32), strict=True),
    "output": lambda: export_failure(lambda x: (x, object())),
}


@pytest.mark.parametrize("case", OPAQUE)
def test_a_type_that_torch_does_not_take_is_read_from_its_message(case: str) -> None:
    found = dependencies.OPAQUE_TYPE.pattern.search(OPAQUE[case]())
    assert found is not None
    assert found["type"] in ("object", "torch.float32", "torch.dtype")


def test_a_newer_opset_is_a_newer_model() -> None:
    header = '<ir_version: 10, opset_import: ["": 99]> g '
    assert dependencies.NEWER_MODEL.is_in(session_failure(COPY, header))


def test_the_texts_that_written_packages_read() -> None:
    """They have a copy of the builder, which cannot import the table."""
    assert checking._NODE.findall(inference_failure(MISMATCH)) == ["0"]
    model = onnx.parser.parse_model(
        HEADER + "(float[4] x) => (y) <int64[1] w = {4}> { y = Reshape (x, w) }"
    )
    (weight,) = model.graph.initializer
    weight.ClearField("int64_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    with pytest.raises(onnx.shape_inference.InferenceError, match=checking._WITHOUT_DATA):
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


# ---------------------------------------------------------------------- names
def test_what_torch_compile_leaves_in_its_results() -> None:
    module, function = torch.nn.ReLU(), squares_derivative
    assert uncompiled(torch.compile(module, backend="eager")) is module
    assert uncompiled(torch.compile(function, backend="eager")) is function
    assert uncompiled(function) is function


def test_a_missing_attribute_is_named_with_the_version() -> None:
    require("numpy", [(np.ndarray, ("shape", "dtype")), (np.zeros(1), ("nbytes",))])
    for example in (np.ndarray, np.zeros(1)):
        with pytest.raises(LibraryVersionError, match=r"lacks .*: ndarray\._nothing") as raised:
            require("numpy", [(example, ("shape", "_nothing"))])
        assert str(raised.value).startswith(f"numpy {np.__version__} ")


def test_a_missing_import_is_named_with_the_version() -> None:
    text = rf"onnx {onnx.__version__} lacks .*'_nothing' from 'onnx\.helper'"
    with pytest.raises(LibraryVersionError, match=text), imported_from("onnx"):
        from onnx.helper import _nothing  # noqa: F401
