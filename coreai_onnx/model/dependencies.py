"""What this package needs of other libraries beyond what they document: names, and message texts.

A release of a library may change both. A missing name is an error that names it; the tests provoke
each message with the installed versions (``tests/model/test_dependencies.py``).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from coreai_onnx.errors import LibraryVersionError


# ---------------------------------------------------------------------- names
@contextmanager
def imported_from(library: str, version: str = "", feature: str = "") -> Iterator[None]:
    """Report a name that the block cannot import from a library.

    Args:
        library: The module of the library.
        version: The first version that has the names, if only a feature needs it.
        feature: What needs it; see `needs`.

    Raises:
        LibraryVersionError: If the installed version lacks one of the names.
    """
    try:
        yield
    except ImportError as error:
        if version:
            raise needs(library, version, feature) from error
        raise lacks(library, str(error)) from error


def require(library: str, attributes: Iterable[tuple[Any, tuple[str, ...]]]) -> None:
    """Check that objects of a library have attributes.

    Args:
        library: The module of the library.
        attributes: Objects or classes, each with the names of its attributes.

    Raises:
        LibraryVersionError: If an attribute is missing; the message names the first one.
    """
    for name in missing(attributes):
        raise lacks(library, name)


def missing(attributes: Iterable[tuple[Any, tuple[str, ...]]]) -> Iterator[str]:
    """Yield the attributes that objects lack, with the class; see `require`."""
    for example, names in attributes:
        owner = example if isinstance(example, type) else type(example)
        yield from (f"{owner.__name__}.{name}" for name in names if not hasattr(example, name))


def lacks(library: str, what: str) -> LibraryVersionError:
    """Return the error for a library that lacks a name.

    Args:
        library: The module of the library.
        what: The name, or Python's message about it.
    """
    version = getattr(importlib.import_module(library), "__version__", "")
    return LibraryVersionError(
        f"{library} {version} lacks something that coreai_onnx needs: {what}\n"
        "  docs/torch_versions.md lists the versions that coreai_onnx is tested with"
    )


def needs(library: str, version: str, feature: str) -> LibraryVersionError:
    """Return the error for a feature that needs a later version of a library.

    Args:
        library: The module of the library, named like its distribution.
        version: The first version that the feature works with.
        feature: The feature, as the subject of a sentence.
    """
    installed = getattr(importlib.import_module(library), "__version__", "")
    return LibraryVersionError(
        f"{feature} needs {library} {version}, and {installed} is installed; "
        f'pip install "{library}>={version}"'
    )


# ---------------------------------------------------------------------- messages
@dataclass(frozen=True)
class MessageText:
    """A text in messages of a library, by which this package decides.

    Attributes:
        library: The library that writes it.
        pattern: The text.
        meaning: What it says.
    """

    library: str
    pattern: re.Pattern[str]
    meaning: str

    def is_in(self, message: object) -> bool:
        """Whether a message, or that of an exception, has the text."""
        return self.pattern.search(str(message)) is not None


def _text(library: str, regex: str, meaning: str) -> MessageText:
    return MessageText(library, re.compile(regex, re.MULTILINE), meaning)


_torch, _onnx = partial(_text, "torch"), partial(_text, "onnx")
_onnxruntime = partial(_text, "onnxruntime")

# imports from torch
MISSING_IN_TORCH = _torch(
    r"\A(?P<what>.*(from|module|module named) 'torch[.'].*?)( \(/.*)?\Z",
    "torch has no such module or name; the file where it was looked for may follow",
)

# torch.export: why it failed
FAKE_CONSTANT = _torch(
    r"found a fake tensor in the exported program constant's list", "forward reads tensor.data"
)
DERIVATIVE = _torch(r"eager_transforms\.py", "forward computes derivatives by torch.func")
OPAQUE_CACHE = _torch(
    r"transformers\.cache_utils\.DynamicCache", "an argument is a cache, which is not a pytree"
)
OPAQUE_TYPE = _torch(
    r"(one of the (?P<side>input|output)s with type|unsupported object of type|"
    r"Unsupported (?P<argument>input) type|Found) "
    r"`?<(class|enum) '(?P<type>[^']*)'>( in (?P<place>input|output), which is not a known type)?",
    "an input or output is of a type that torch.export does not take",
)
OPAQUE_OUTPUT = _torch(
    r"\A'(?P<type>\w+)' object has no attribute 'meta'$",
    "an output is of a type that the export's pytree keeps whole, such as an enum",
)
LOOPS_OF_TORCH = _torch(
    r"torch/_higher_order_ops/", "Dynamo traced torch's code of a cond or loop, not the model's"
)
TRACED_WRITE = _torch(
    "input mutation during higher order op",
    "a branch or a loop body, which Dynamo traced, changes a tensor from outside",
)
FUNCTIONALIZED_WRITE = _torch(
    "might be modifying the input", "the same, found while in-place operators are removed"
)
MUTATED_CONSTANT = _torch(
    r"Constant (?P<name>\S+) is mutated in the forward method",
    "a tensor that is not a buffer changes in a context such as autocast",
)
BOOLEAN_CONDITION = _torch(
    r"data-dependent expression Eq\(u\d+, 1\)", "a condition is the value of a Boolean tensor"
)

# torch.export: why sizes cannot be dynamic
FIXED_SIZE = _torch(r"to be a constant \(", "the model or the example fixes a dynamic size")
FIXED_BY_EXAMPLE = _torch(
    r"to be a constant \([01]\)|0/1 specialized due to hint", "a size is 0 or 1 in the example"
)
MARKED_DYNAMIC = _torch(
    r"\AYou marked (?P<name>.*) as dynamic but .* to be a constant \((?P<value>.*?)\)",
    "a dynamic size is fixed",
)
HINT_OF_ZERO_OR_ONE = _torch(
    r"\AReceived .* 0/1 specialized due to hint of (?P<value>\d) for dimension inputs(?P<size>.*)"
    r"\.$",
    "a dynamic size is 0 or 1 in the example",
)
LOG_OF_ZERO_OR_ONE = _torch(
    r"\Adimension inputs\['(?P<first>\w+)'\](?P<rest>.*?)(\.shape\[(?P<axis>\d+)\])? "
    r"0/1 specialized;.*hint = (?P<value>[01])",
    "a size without a Dim is 0 or 1 in the example; torch only logs it",
)
RANGE_CONFLICT = _torch(
    r"conflicts between user-specified ranges", "sizes that are equal have disjoint ranges"
)
REASON = _torch(r"^\s*- (.*)$", "one reason why sizes cannot be dynamic")
FIXES = _torch(r"Suggested fixes:\n", "the dims that would work follow")
FIX = _torch(r"^  (\w.* = .*)$", "one of these dims")
INPUT = _torch(r"\binputs\['(\w+)'\]", "the name of an input in a reason")
INFINITY = _torch(r"IntInfinity\(\)", "a Dim has no maximum")
FLOAT_GUARD = _torch(
    r"\bmath\.trunc\(.*\) == -?\d", "a guard fixes an integer that is made of a float"
)
OPERATORS_CONDITION = _torch(
    r"\Aevaluate_expr", "an operator tests the condition of this runtime assertion"
)

# torch: what it reports and nobody can act on
NO_USER_CODE = _torch(r"Unable to find user code", "a guard comes from torch's own code")
SIDE_EFFECTS = _torch(
    r"While compiling, we found certain side effects happened in the model\.forward",
    "the forward of a model that is exported with strict=True sets attributes",
)
FLAT_WEIGHTS = _torch(
    r"The tensor attributes? .*_flat_weights",
    "a recurrent layer rebuilds its list of weights while it is exported",
)

# onnx: the checker and the inference
NODE_OF_FAULT = _onnx(
    r"\(op_type:[^)]*?node name: (\d+)\): ", "the innermost of these nodes has the fault"
)
ELEMENT_TYPES = _onnx(
    r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)",
    "the inferred and the declared dtype, by their numbers",
)
UNKNOWN_TYPE = _onnx(
    r"\bnull\b|[Tt]ype info", "the fault is an unknown type, and not a contradiction"
)
ERROR_KIND = _onnx(r"\A\[\w+Error\] ", "the kind of a fault")
ERROR_LIST = _onnx(
    r"(\[ShapeInferenceError\] )?Inference error\(s\): ", "the faults follow, one per line"
)
NODE_PREFIX = _onnx(r"\ANode ?\(\d+\)('s| with) ", "the checker names the node by its number")

# onnxruntime: why a model cannot be opened
SOURCE_LOCATION = _onnxruntime(
    r"/onnxruntime_src/\S+ [^\n]*?\) (?=[A-Z])", "the place in onnxruntime's own sources"
)
UNKNOWN_OP = _onnxruntime(
    r"(?P<domain>[\w.]+):(?P<op>[\w.]+)\(-?\d+\) is not a registered function/op",
    "an operator has no kernel and no body",
)
NEWER_MODEL = _onnxruntime(r"IR version|(?i:opset)", "the model is newer than onnxruntime")
