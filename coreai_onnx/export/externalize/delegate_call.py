"""The op that represents a call of a delegated part in an exported program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import DelegationError
from coreai_onnx.export.externalize.module_call import unshared


@dataclass(eq=False)
class Delegate:
    """A part of a program that a backend has processed.

    Attributes:
        backend_id: The backend; also the domain of the part's function.
        program: The part itself.
        processed_bytes: What the backend made of it.
        compile_specs: The settings that the backend was given, by key.
        version: The version of the backend that made the bytes.
        holds_weights: Whether the bytes contain the values of the weights.
        tag: Unique text, by which the op finds the delegate.
    """

    backend_id: str
    program: ExportedProgram
    processed_bytes: bytes
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    version: str = ""
    holds_weights: bool = True
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        """Give the delegate a tag."""
        self.tag = f"{self.backend_id}#{next(_counter)}"
        _DELEGATES[self.tag] = self

    @property
    def placeholders(self) -> list[fx.Node]:
        """The inputs of the part, weights included."""
        return [node for node in self.program.graph.nodes if node.op == "placeholder"]

    @property
    def weights(self) -> list[torch.Tensor]:
        """The values of the weights, which are the first inputs."""
        values = {**self.program.state_dict, **self.program.constants}
        specs = self.program.graph_signature.input_specs
        return [values[spec.target] for spec in specs if spec.target is not None]


_counter: Iterator[int] = itertools.count()
_DELEGATES: WeakValueDictionary[str, Delegate] = WeakValueDictionary()
_library = torch.library.Library("coreai_onnx", "FRAGMENT")
_library.define("delegate(Tensor[] tensors, SymInt[] numbers, str tag) -> Tensor[]")
DELEGATE = torch.ops.coreai_onnx.delegate.default


def delegate_of(tag: str) -> Delegate:
    """Return the delegate of a tag.

    Raises:
        DelegationError: If it no longer exists.
    """
    found = _DELEGATES.get(tag)
    if found is None:
        raise DelegationError(
            f"the delegated part {tag} no longer exists\n"
            "  keep the LoweredModule as long as the program is used"
        )
    return found


def is_number(node: fx.Node) -> bool:
    """Whether an input of a part is a symbolic number."""
    return isinstance(node.meta.get("val"), torch.SymInt | int)


def _run_delegate(
    tensors: Sequence[torch.Tensor], numbers: Sequence[Any], tag: str
) -> list[torch.Tensor]:
    """Run the part of a tag."""
    found = delegate_of(tag)
    rest = iter(tensors), iter(numbers)
    given = [next(rest[is_number(node)]) for node in found.placeholders]
    results = fx.Interpreter(found.program.graph_module).run(*given)
    return unshared(list(results), tensors)


torch.library.impl(_library, "delegate", "CompositeExplicitAutograd")(_run_delegate)
torch.library.register_fake("coreai_onnx::delegate", _run_delegate, lib=_library)
