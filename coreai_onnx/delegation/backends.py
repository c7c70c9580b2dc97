"""Backends, and modules that a backend has processed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from coreai_onnx.errors import DelegationError
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.externalize.delegate_call import DELEGATE, Delegate, is_number
from coreai_onnx.lower.location import where_of


@dataclass(frozen=True)
class CompileSpec:
    """A setting for a backend.

    Attributes:
        key: Its name.
        value: Its value.
    """

    key: str
    value: bytes


@dataclass(frozen=True)
class PreprocessResult:
    """What a backend made of a program.

    Attributes:
        processed_bytes: What the backend's op reads when the model is loaded.
        holds_weights: Whether the bytes contain values of the weights. Where the weights of the
            model are changed afterwards, such a part runs on its body.
    """

    processed_bytes: bytes
    holds_weights: bool = True


class BackendDetails(ABC):
    """A backend: turns programs into bytes that its op runs.

    Attributes:
        version: Version of the bytes. The calls of the parts have it as the attribute
            ``backend_version``, so that the op can refuse the bytes of another version.
    """

    version: ClassVar[str] = ""

    @staticmethod
    @abstractmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec]
    ) -> PreprocessResult:
        """Process a part of a program.

        Args:
            edge_program: The part; its weights are in ``state_dict`` and ``constants``.
            compile_specs: Settings.
        """


_BACKENDS: dict[str, type[BackendDetails]] = {}


def backend(backend_id: str) -> Callable[[type[BackendDetails]], type[BackendDetails]]:
    """Return a decorator that registers a backend; a second one of the same id replaces the first.

    Args:
        backend_id: Its id, which is also the domain of the functions of its parts.
    """

    def register(details: type[BackendDetails]) -> type[BackendDetails]:
        _BACKENDS[backend_id] = details
        return details

    return register


class LoweredModule(torch.nn.Module):
    """A program that a backend has processed, as a module that larger modules may call.

    Exported and lowered to ONNX, a call of it is a call of a function in the domain of the backend.
    The body of the function is the program, so that runtimes without the backend's op run it.
    """

    def __init__(self, delegate: Delegate) -> None:
        """Hold a delegate, and its weights as buffers."""
        super().__init__()
        self._delegate = delegate
        signature = delegate.program.graph_signature
        names = [spec.arg.name for spec in signature.input_specs if spec.target is not None]
        weights = {name: f"weight_{number}" for number, name in enumerate(names)}
        for name, value in zip(names, delegate.weights, strict=True):
            self.register_buffer(weights[name], value.detach())
        # Strict exports trace ``forward``, and cannot read an exported program.
        self._inputs = [(weights.get(n.name, ""), is_number(n)) for n in delegate.placeholders]
        self._tag = delegate.tag
        self._out_spec = delegate.program.call_spec.out_spec

    @classmethod
    def from_bytes(
        cls,
        backend_id: str,
        processed_bytes: bytes,
        reference: ExportedProgram,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        version: str = "",
        holds_weights: bool = True,
    ) -> LoweredModule:
        """Return a module that runs bytes which a backend made elsewhere.

        The backend need not be registered.

        Args:
            backend_id: The domain of the backend's op.
            processed_bytes: What the backend made.
            reference: A program of `to_edge` that computes the same, for runtimes without the op;
                for a ``.onnx`` file, that of an `OnnxModule`. Its weights and inputs are the inputs
                of the op.
            compile_specs: The settings that the backend was given.
            version: The version of the backend, see `BackendDetails`.
            holds_weights: Whether the bytes contain the values of the weights of the reference.

        Raises:
            DelegationError: If the reference has states, or there are no bytes.
        """
        if not isinstance(processed_bytes, bytes):
            raise DelegationError(f"processed_bytes is not bytes, but {processed_bytes!r:.80}")
        _check_stateless(reference)
        settings = tuple((spec.key, spec.value) for spec in compile_specs)
        return cls(
            Delegate(backend_id, reference, processed_bytes, settings, version, holds_weights)
        )

    @property
    def backend_id(self) -> str:
        """The backend that processed the program."""
        return self._delegate.backend_id

    @property
    def processed_bytes(self) -> bytes:
        """What the backend made of the program."""
        return self._delegate.processed_bytes

    @property
    def compile_specs(self) -> tuple[CompileSpec, ...]:
        """The settings that the backend was given."""
        return tuple(CompileSpec(*one) for one in self._delegate.compile_specs)

    @property
    def original_module(self) -> ExportedProgram:
        """The program."""
        return self._delegate.program

    @property
    def delegate(self) -> Delegate:
        """The delegate that the op of this module's calls runs."""
        return self._delegate

    def forward(self, *args: Any) -> Any:
        """Run the program."""
        user_inputs = iter(pytree.tree_leaves(args))
        tensors: list[Any] = []
        numbers: list[Any] = []
        for weight, number in self._inputs:
            value = getattr(self, weight) if weight else next(user_inputs)
            (numbers if number else tensors).append(value)
        outputs = DELEGATE(tensors, numbers, self._tag)
        return pytree.tree_unflatten(list(outputs), self._out_spec)


def lowered_module(
    backend_id: str, edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec] = ()
) -> LoweredModule:
    """Let a backend process a whole program.

    Args:
        backend_id: The id of a registered backend.
        edge_program: A program of `to_edge` without states; it is not changed.
        compile_specs: Settings for the backend.

    Raises:
        DelegationError: If there is no such backend, the program has states or a result that is not
            a tensor, or the backend raises or returns no bytes.
    """
    _check_stateless(edge_program)
    return LoweredModule(processed(backend_id, edge_program, compile_specs))


def _check_stateless(program: ExportedProgram) -> None:
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    if kinds - {OutputKind.USER_OUTPUT}:
        raise DelegationError(
            "a program with states cannot be delegated as a whole\n"
            "  use a Partitioner: it leaves the states in the program"
        )


def processed(
    backend_id: str, program: ExportedProgram, compile_specs: Sequence[CompileSpec]
) -> Delegate:
    """Return a program with what a backend made of it.

    Raises:
        DelegationError: As for `lowered_module`.
    """
    details = _BACKENDS.get(backend_id)
    if details is None:
        known = ", ".join(sorted(_BACKENDS)) or "none"
        raise DelegationError(f"no backend {backend_id!r} is registered (registered: {known})")
    try:
        result: Any = details.preprocess(program, list(compile_specs))
    except Exception as error:  # a backend may raise anything
        raise DelegationError(
            f"the backend {backend_id} raised {type(error).__name__}: {error}\n"
            f"{places(program)}\n  the program is unchanged"
        ) from error
    content = getattr(result, "processed_bytes", None)
    if not isinstance(content, bytes):
        raise DelegationError(
            f"the backend {backend_id} returned no processed_bytes, but {result!r}\n"
            "  return PreprocessResult(processed_bytes=...)"
        )
    return Delegate(
        backend_id,
        program,
        content,
        tuple((spec.key, spec.value) for spec in compile_specs),
        details.version,
        result.holds_weights,
    )


def places(program: ExportedProgram) -> str:
    """Return the operators of a part, with the user's lines."""
    return described([n for n in program.graph.nodes if n.op == "call_function"])


def described(nodes: Sequence[torch.fx.Node]) -> str:
    """Return nodes with the user's lines, one per line."""
    return "\n".join(f"  {node.name} = {node.target}   {where_of(node).line}" for node in nodes)
