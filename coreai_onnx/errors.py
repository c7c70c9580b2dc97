"""The exceptions. Errors about a model name the op, the module path and the user's source line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from coreai_onnx.messages import printable_lines


class CoreaiError(Exception):
    """Base class of every error that this package raises.

    Its text is safe to print, whatever names it contains: control characters are escaped, and very
    long lines and messages are shortened. The full message is ``args[0]``.
    """

    def __str__(self) -> str:
        """Return the message in a form that is safe for a terminal."""
        return printable_lines(super().__str__())


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's root cause: libraries wrap errors in errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).partition("\n")[0]
    # Messages of Python's own errors need the type: "'x'", "list index out of range".
    bare = isinstance(error, LookupError | AttributeError | MemoryError | RecursionError)
    return f"{type(error).__name__}: {text}" if bare and text else text or type(error).__name__


@contextmanager
def failures_as(kind: type[CoreaiError], what: str) -> Iterator[None]:
    """Re-raise exceptions of the block as an error of this package, in one line.

    Files may hold anything, and the libraries that read them may raise any exception.

    Args:
        kind: The error to raise; errors of this package pass unchanged.
        what: The file, and the operation that failed.
    """
    try:
        yield
    except CoreaiError:
        raise
    except Exception as error:
        raise kind(f"{what}: {reason_of(error)}") from error


@dataclass(frozen=True)
class Where:
    """A place in the user's model.

    Attributes:
        module: Module path, ``model.layers.0.mlp``; empty for the root module.
        module_class: Class name of that module.
        source: Last user frame, ``moe.py:41``; empty if unknown.
        code: The source line itself; empty if unknown.
    """

    module: str = ""
    module_class: str = ""
    source: str = ""
    code: str = ""

    def __str__(self) -> str:
        """Return the place on one line."""
        module = f"{self.module or '(root)'}" + (
            f" ({self.module_class})" if self.module_class else ""
        )
        return "   ".join(part for part in (module, self.line) if part)

    @property
    def line(self) -> str:
        """The source position and the text of the line."""
        return "   ".join(part for part in (self.source, self.code) if part)


class ConversionError(CoreaiError, ValueError):
    """A program cannot be converted.

    Args:
        what: What went wrong, starting with the op where there is one.
        where: The place in the user's model.
        advice: What the user can do about it.
    """

    def __init__(self, what: str, where: Where | None = None, advice: str = "") -> None:
        """Build the message of three lines."""
        self.what, self.where, self.advice = what, where, advice
        lines = [what]
        if where is not None:
            lines.append(f"  at {where}")
        if advice:
            lines.append(f"  {advice}")
        super().__init__("\n".join(lines))


class LoweringError(ConversionError):
    """The lowering of an op does not support these arguments."""


class InvalidModelError(ConversionError):
    """The lowered model violates the ONNX specification: a wrong type, shape, attribute or op."""


@dataclass(frozen=True)
class UnsupportedOp:
    """An op without a lowering, and every place that uses it.

    Attributes:
        name: The op in the user's program.
        places: Where it is used.
        inner: The op without a lowering that its decomposition contains; empty if it has no
            decomposition.
    """

    name: str
    places: tuple[Where, ...]
    inner: str = ""

    @property
    def label(self) -> str:
        """The op, with the op of its decomposition that has no lowering."""
        return f"{self.name} (its decomposition uses {self.inner})" if self.inner else self.name


class UnsupportedOpsError(ConversionError):
    """The program uses ops that have no lowering; the error reports all of them.

    Attributes:
        ops: The unsupported ops, most frequent first.
    """

    def __init__(self, ops: Sequence[UnsupportedOp]) -> None:
        """Build a table: op, count, places."""
        self.ops = tuple(sorted(ops, key=lambda op: (-len(op.places), op.name)))
        width = max(len(op.label) for op in self.ops)
        lines = [f"unsupported ATen ops: {len(self.ops)} op(s) have no lowering"]
        for op in self.ops:
            first, *rest = dict.fromkeys(str(place) for place in op.places)
            more = f"   (+{len(rest)} more places)" if rest else ""
            lines.append(f"  {op.label:<{width}}  {len(op.places)}x  at {first}{more}")
        example = self.ops[0].name.replace(".", "::", 1)
        super().__init__(
            "\n".join(lines),
            advice=f'register a lowering with @converter.register_torch_lowering("{example}"), '
            "or rewrite the model without the op",
        )


class ExportError(CoreaiError, RuntimeError):
    """``torch.export`` could not capture the model."""


class LibraryVersionError(CoreaiError, ImportError):
    """The installed version of a library lacks something that this package needs."""


class TorchVersionError(LibraryVersionError):
    """The installed torch lacks something that this package needs."""


class DistributionConflictError(CoreaiError, ImportError):
    """Another distribution that is installed beside this one overwrites files of this package."""


class InternalError(ExportError):
    """This package failed on a model that ``torch.export`` may support; please report it."""


class DynamicShapesError(ExportError):
    """``dynamic_shapes`` asks for more than the model allows; the message names the lines."""


class SpecializationWarning(UserWarning):
    """A size that was requested as dynamic is fixed in the converted model."""


class ExportRetryWarning(UserWarning):
    """``torch.export`` succeeded only with other options; the message names them."""


class AliasedInputsWarning(UserWarning):
    """A program was exported with one tensor for several inputs, and reads only one of them."""


class PartialCheckWarning(UserWarning):
    """Only a part of a model that exceeds the memory was compared with torch, or nothing of it."""


class SlowQuantizationWarning(UserWarning):
    """A quantization would take long; the message says how long, and what to choose instead."""


class RandomnessWarning(UserWarning):
    """The converted model draws random numbers."""


class TrainingModeWarning(UserWarning):
    """The converted model computes as in training mode: with dropout, or with batch statistics."""


class LostCompositesWarning(UserWarning):
    """Operators that would be composites were decomposed before the conversion."""


class UnusedLoweringWarning(UserWarning):
    """The operator of a registered lowering was decomposed before the conversion."""


class DroppedStateWarning(UserWarning):
    """A module keeps state between calls that the converted model does not keep."""


class ExternalizationError(ConversionError):
    """A module cannot be externalized as a function."""


class DeclarationError(CoreaiError, ValueError):
    """The declaration of a user's composite is invalid or not supported."""


class KernelError(CoreaiError, RuntimeError):
    """A kernel of the user cannot be compiled, or computes something else than its composite."""


class ToolchainError(KernelError):
    """There is no C++ compiler, or onnxruntime's headers are missing."""


class StagingError(CoreaiError, ValueError):
    """A program cannot be staged: not a module or program, name taken, unknown entrypoint."""


class NothingToConvertError(CoreaiError, RuntimeError):
    """``to_onnx`` was called with no staged program."""


class RegistrationError(CoreaiError, ValueError):
    """A lowering cannot be registered."""


class PassError(CoreaiError, RuntimeError):
    """A graph pass raised or broke the graph; the model is the result of the passes before it."""


class SpecViolationError(PassError):
    """A graph pass created a node that violates the ONNX specification, so no runtime loads it."""


class WrongPassError(PassError):
    """A graph pass changed what the model computes; the message has the nodes and their lines."""


class TargetError(PassError, ValueError):
    """A program cannot be optimized for a target; the message gives the reason."""


class DelegationError(CoreaiError, RuntimeError):
    """A part of a program cannot be delegated to a backend; the program is unchanged."""


class QuantizationError(CoreaiError, ValueError):
    """A model cannot be quantized as requested; it is unchanged."""


class ModelSourceError(CoreaiError, ValueError):
    """A model of transformers cannot be read, or has no head for the task."""


class SaveError(CoreaiError, OSError):
    """A program could not be written; existing files are unchanged."""


class LoadError(CoreaiError, ValueError):
    """A file is not a model that this package can read."""


class SessionError(CoreaiError, RuntimeError):
    """A session cannot be created or run."""


class KernelsNotBuiltError(SessionError):
    """Kernels were requested, but the native library is missing."""


class ProviderError(SessionError):
    """An execution provider is not available, or onnxruntime cannot load its library."""


class InputError(SessionError, ValueError):
    """An input of a run has the wrong name, dtype, rank or shape."""


class RowError(InputError):
    """A row of a table does not fit an input.

    Attributes:
        row: The number of the row.
        reason: What is wrong.
    """

    def __init__(self, row: int, reason: str) -> None:
        """Make the message."""
        super().__init__(f"row {row}: {reason}")
        self.row, self.reason = row, reason


class GenerationError(CoreaiError, ValueError):
    """Text cannot be generated: the model has another interface, or an argument is invalid."""


class QueueFullError(GenerationError):
    """As many requests are waiting as the queue of an engine holds: try later."""


class RequestError(GenerationError):
    """A request to an endpoint is refused.

    Attributes:
        status: The status of HTTP.
        kind: The kind of error, as OpenAI names it.
        param: The field of the request that is at fault, if it is one.
        code: What is at fault, as OpenAI names it.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        """Make the message."""
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code


class ComparisonError(CoreaiError, AssertionError):
    """Executions of a model differ, or cannot be compared."""


class CommandError(CoreaiError, ValueError):
    """A command-line argument is invalid, or the command cannot do what it asks."""
