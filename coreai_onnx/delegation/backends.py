"""Backends, and what they make of programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import DelegationError
from coreai_onnx.export.externalize.delegate_call import Delegate
from coreai_onnx.export.functionalize.replaced_graph import isolated
from coreai_onnx.lower.walk.location import where_of

HANDLE = "debug_handle"
"""Key of a node's ``meta``: its number in the program, which a backend may write into its bytes."""


@dataclass(frozen=True)
class CompileSpec:
    """A setting for a backend.

    Attributes:
        key: Its name.
        value: Its value.
    """

    key: str
    value: bytes

    def __post_init__(self) -> None:
        """Check the types.

        Raises:
            DelegationError: If the key is not text, or the value is not bytes.
        """
        if not isinstance(self.key, str) or not isinstance(self.value, bytes):
            raise DelegationError(
                f"a CompileSpec is a string and bytes, got {self.key!r:.40} and "
                f"{self.value!r:.40}\n"
                '  encode text: CompileSpec("key", "value".encode())'
            )


@dataclass(frozen=True)
class PreprocessResult:
    """What a backend made of a program.

    Attributes:
        processed_bytes: What the backend's op reads when the model is loaded.
        holds_weights: Whether the bytes contain values of the weights. Where the weights of the
            model are changed afterwards, such a part runs on its body.
        debug_handle_map: The backend's own numbers to the debug handles of operators,
            ``node.meta["debug_handle"]``; it is kept in ``LoweredModule.meta``.
    """

    processed_bytes: bytes
    holds_weights: bool = True
    debug_handle_map: Mapping[Any, Sequence[int]] = field(default_factory=dict)


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
            edge_program: A copy of the part; its weights are in ``state_dict`` and ``constants``.
            compile_specs: Settings.
        """


_BACKENDS: dict[str, type[BackendDetails]] = {}


def backend(backend_id: str) -> Callable[[type[BackendDetails]], type[BackendDetails]]:
    """Return a decorator that registers a backend; a second one of the same id replaces the first.

    Args:
        backend_id: Its id, which is also the domain of the functions of its parts.

    Raises:
        DelegationError: If the id is not text, or what is registered is not a subclass of
            `BackendDetails`.
    """
    check_id(backend_id)

    def register(details: type[BackendDetails]) -> type[BackendDetails]:
        if not isinstance(details, type) or not issubclass(details, BackendDetails):
            raise DelegationError(
                f"the backend {backend_id} must be a subclass of BackendDetails, got "
                f"{details!r:.60}\n"
                "  derive it: class Backend(BackendDetails)"
            )
        # The last one wins, so that the cell of a notebook can run again.
        _BACKENDS[backend_id] = details
        return details

    return register


def check_id(backend_id: Any) -> None:
    """Raise DelegationError for anything but the id of a backend."""
    if not isinstance(backend_id, str) or not backend_id:
        raise DelegationError(f"backend_id must be a non-empty string, got {backend_id!r:.40}")


def settings_of(compile_specs: Any) -> tuple[tuple[str, bytes], ...]:
    """Return compile specs as pairs.

    Raises:
        DelegationError: If one is not a `CompileSpec`.
    """
    if not isinstance(compile_specs, Sequence) or not all(
        isinstance(spec, CompileSpec) for spec in compile_specs
    ):
        raise DelegationError(
            f"compile_specs must be a list of CompileSpec, got {compile_specs!r:.80}\n"
            '  such as [CompileSpec("key", b"value")]'
        )
    return tuple((spec.key, spec.value) for spec in compile_specs)


def processed(
    backend_id: str, program: ExportedProgram, compile_specs: Sequence[CompileSpec]
) -> Delegate:
    """Return a program with what a backend made of it.

    Raises:
        DelegationError: As for `lowered_module`.
    """
    details = _BACKENDS.get(backend_id)
    if details is None:
        registered = ", ".join(sorted(_BACKENDS)) or "none"
        raise DelegationError(f"no backend {backend_id!r} is registered (registered: {registered})")
    # Outside of the ``try``: a wrong setting is the caller's mistake, not the backend's.
    settings = settings_of(compile_specs)
    try:
        # A copy with weights of its own: a backend may fold or pack them in place.
        result: Any = details.preprocess(isolated(program), list(compile_specs))
    except Exception as error:  # a backend may raise anything
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        raise DelegationError(
            f"the backend {backend_id} raised {type(error).__name__}: {error}\n"
            f"{described(calls)}\n  the program is unchanged"
        ) from error
    # A backend may return anything, None included.
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
        settings,
        details.version,
        result.holds_weights,
        result.debug_handle_map or {},
    )


def described(nodes: Sequence[fx.Node]) -> str:
    """Return nodes with the user's lines, one per line."""
    return "\n".join(f"  {node.name} = {node.target}   {where_of(node).line}" for node in nodes)
