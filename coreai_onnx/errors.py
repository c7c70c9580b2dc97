"""One error tree. Errors about a model name the op, the module path and the user's source line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from coreai_onnx.printable import printable_lines


class CoreaiError(Exception):
    """Base of every error this package raises on purpose.

    As text it is safe to print, whatever the names in it hold: control characters are escaped, and
    very long lines and messages are cut. The whole message is ``args[0]``.
    """

    def __str__(self) -> str:
        """Return the message as a terminal may show it."""
        return printable_lines(super().__str__())


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error goes back to: libraries wrap errors in errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).partition("\n")[0]
    # What Python itself raises says little without its kind: "'x'", "list index out of range".
    bare = isinstance(error, LookupError | AttributeError | MemoryError | RecursionError)
    return f"{type(error).__name__}: {text}" if bare and text else text or type(error).__name__


@contextmanager
def failures_as(kind: type[CoreaiError], what: str) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of this package.

    Files may hold anything, and libraries that read them raise anything.

    Args:
        kind: The error to raise; errors of this package pass as they are.
        what: The file, and what could not be done with it.
    """
    try:
        yield
    except CoreaiError:
        raise
    except Exception as error:
        raise kind(f"{what}\n  {reason_of(error)}") from error


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
        """The source position and the line itself."""
        return "   ".join(part for part in (self.source, self.code) if part)


class ConversionError(CoreaiError, ValueError):
    """A program cannot be converted.

    Args:
        what: What went wrong, starting with the op where there is one.
        where: The place in the user's model.
        advice: What the user can do about it.
    """

    def __init__(self, what: str, where: Where | None = None, advice: str = "") -> None:
        """Compose the three lines of the message."""
        self.what, self.where, self.advice = what, where, advice
        lines = [what]
        if where is not None:
            lines.append(f"  at {where}")
        if advice:
            lines.append(f"  {advice}")
        super().__init__("\n".join(lines))


class LoweringError(ConversionError):
    """An op is known, but not with these arguments."""


class InvalidModelError(ConversionError):
    """The lowered model breaks a rule of ONNX: a wrong type, shape, attribute or op."""


@dataclass(frozen=True)
class UnsupportedOp:
    """An op without a lowering, and every place that uses it.

    Attributes:
        name: The op in the user's program.
        places: Where it is used.
        inner: The op its decomposition ends in; empty if it has no decomposition.
    """

    name: str
    places: tuple[Where, ...]
    inner: str = ""

    @property
    def label(self) -> str:
        """The op, and what is missing of its decomposition."""
        return f"{self.name} (its decomposition uses {self.inner})" if self.inner else self.name


class UnsupportedOpsError(ConversionError):
    """The program uses ops that have no lowering; all of them are reported together.

    Attributes:
        ops: The unsupported ops, most frequent first.
    """

    def __init__(self, ops: Sequence[UnsupportedOp]) -> None:
        """Compose a table: op, count, places."""
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


class TorchVersionError(CoreaiError, ImportError):
    """The installed torch lacks something that this package needs."""


class InternalError(ExportError):
    """This package failed over a model that ``torch.export`` may well take; please report it."""


class DynamicShapesError(ExportError):
    """``dynamic_shapes`` asks for more than the model allows; the message names the lines."""


class SpecializationWarning(UserWarning):
    """A size that was to be dynamic is fixed in the converted model."""


class ExportRetryWarning(UserWarning):
    """``torch.export`` failed as asked, and succeeded in another way; the message says which."""


class AliasedInputsWarning(UserWarning):
    """A program was exported with one tensor as several inputs, and reads only one of them."""


class RandomnessWarning(UserWarning):
    """The converted model draws random numbers."""


class TrainingModeWarning(UserWarning):
    """The converted model computes as in training: with dropout, or with statistics of a batch."""


class DroppedStateWarning(UserWarning):
    """A module keeps something from call to call that the converted model does not keep."""


class ExternalizationError(ConversionError):
    """A module cannot become a function of its own."""


class StagingError(CoreaiError, ValueError):
    """A program cannot be staged: no module or program, name taken, unknown entrypoint."""


class NothingToConvertError(CoreaiError, RuntimeError):
    """``to_onnx`` was called with no staged program."""


class RegistrationError(CoreaiError, ValueError):
    """A lowering cannot be registered."""


class PassError(CoreaiError, RuntimeError):
    """A graph pass raised or left a broken graph; the model is as the passes before left it."""


class SpecViolationError(PassError):
    """A graph pass left a node that breaks a rule of ONNX; no runtime would take the model."""


class TargetError(PassError, ValueError):
    """A program cannot be optimised for a target; the message says what stands in the way."""


class SaveError(CoreaiError, OSError):
    """A program could not be written; files that were there before are whole."""


class LoadError(CoreaiError, ValueError):
    """A file is not a model this package can read."""


class SessionError(CoreaiError, RuntimeError):
    """A session cannot be made or run."""


class KernelsNotBuiltError(SessionError):
    """Kernels were asked for, but the native library is not there."""


class InputError(SessionError, ValueError):
    """An input of a run has a wrong name, dtype, rank or shape."""


class ComparisonError(CoreaiError, AssertionError):
    """Executions of a model differ, or cannot be compared."""


class CommandError(CoreaiError, ValueError):
    """The command line was given something it cannot use."""
