"""Error messages for failed exports: the cause, the place, and advice."""

from __future__ import annotations

import traceback
from types import TracebackType

from torch.export import ExportedProgram

from coreai_onnx.errors import ExportError, InternalError, Where
from coreai_onnx.export.compat.torch_names import (
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    is_functorch_wrapped,
)
from coreai_onnx.export.functionalize.buffers import WRITES_INSIDE, is_write_inside
from coreai_onnx.export.versions import is_ours, is_torch, is_users, relative_path
from coreai_onnx.model.dependencies import (
    DERIVATIVE,
    FAKE_CONSTANT,
    MUTATED_CONSTANT,
    OPAQUE_CACHE,
    OPAQUE_OUTPUT,
    OPAQUE_TYPE,
)

DATA_ADVICE = (
    "torch.export cannot follow tensor.data: write tensor.detach(), and for an assignment "
    "tensor.detach().copy_(values)"
)
_ADVICE = {
    OPAQUE_CACHE: (
        "torch.export takes a DynamicCache once transformers.integrations.executorch."
        "register_dynamic_cache_export_support() was called"
    ),
    FAKE_CONSTANT: DATA_ADVICE,
}
DERIVATIVES = (
    "Your model failed to export: torch.export does not trace torch.func's derivatives "
    "(grad, vjp, jacrev, jacfwd, hessian)\n"
    "  trace the model first: model = torch.fx.experimental.proxy_tensor.make_fx(model)(*args)"
)
_IN_EXTERNALIZED = (
    "Your model failed to export: torch cannot trace the cond or loop of an externalized module\n"
    "  leave its class out of externalize_modules, or externalize a module inside the branch"
)
_CALLS = ("capture/run.py", "attempts.py", "torch_export.py", "subjects.py")
"""Files of this package that only call torch or the user's code."""


def export_error(error: Exception, *, after_export: bool) -> ExportError:
    """Return the error to raise to the user for an exception that ended an export.

    Args:
        error: The exception.
        after_export: Whether ``torch.export`` had returned.
    """
    if isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException):
        return ExportError(_on_data(error))
    frames = traceback.extract_tb(error.__traceback__)
    # torch.func raises errors of many types, which only share the file that raises them.
    if any(map(DERIVATIVE.is_in, (error, *(f.filename for f in frames)))):
        return ExportError(DERIVATIVES)
    if is_write_inside(error):
        return ExportError("\n  ".join(WRITES_INSIDE))
    if constant := MUTATED_CONSTANT.pattern.search(str(error)):
        name = constant["name"].rpartition(".")[2]
        return ExportError(
            f"Your model failed to export: the tensor {constant['name']} changes inside "
            "torch.autocast, which torch.export follows for buffers only\n"
            f'  register it: self.register_buffer("{name}", ..., persistent=False)'
        )
    # That function only runs what torch compiled for a cond or a loop inside a recording.
    if any(f.filename.endswith("compat/attribute_access.py") and f.name == "call" for f in frames):
        return ExportError(_IN_EXTERNALIZED)
    # Not an error of the model: advice on it would mislead the user.
    if after_export or _is_by_us(frames):
        place = next((f for f in reversed(frames) if is_ours(f.filename)), frames[-1])
        return InternalError(
            "coreai_onnx failed while it exported your model: "
            f"{type(error).__name__}: {error}\n"
            f"  at {relative_path(place.filename)}:{place.lineno}   {place.line}\n"
            "  this is a defect of coreai_onnx: please report it with the model and the traceback"
        )
    unsupported = OPAQUE_TYPE.pattern.search(str(error))
    # A cache has a form once transformers has told torch.
    if unsupported and not OPAQUE_CACHE.is_in(error):
        side = unsupported["side"] or unsupported["place"] or unsupported["argument"]
        return ExportError(_on_type(unsupported["type"], of=side))
    if unknown := OPAQUE_OUTPUT.pattern.match(str(error)):
        return ExportError(_on_type(unknown["type"], of="output"))
    advice = next((advice for text, advice in _ADVICE.items() if text.is_in(error)), "")
    return ExportError(
        f"Your model failed to export: {error}" + (f"\n  {advice}" if advice else "")
    )


def refuse_derivatives(program: ExportedProgram) -> None:
    """Reject a program of ``torch.func.grad``: it has a tensor of the trace as a constant.

    Raises:
        ExportError: If it contains such a constant.
    """
    if any(is_functorch_wrapped(x) for x in program.constants.values()):
        raise ExportError(DERIVATIVES)


def _is_by_us(frames: traceback.StackSummary) -> bool:
    """Whether the innermost frame outside torch belongs to this package."""
    inner = [frame for frame in frames if not is_torch(frame.filename)]
    return bool(inner) and is_ours(inner[-1].filename) and not inner[-1].filename.endswith(_CALLS)


def _on_data(error: Exception) -> str:
    """Return the message for a model that depends in Python on a value known only at run time."""
    where = _line_of_the_model(error.__traceback__)
    reason = next(iter(str(error).splitlines()), "")
    lines = ["Your model failed to export: forward depends in Python on values of tensors"]
    if where is not None:
        lines.append(f"  at {where.line}")
    lines += [
        f"  {reason}",
        "  a branch: torch.cond(condition, if_true, if_false, operands) keeps both sides of it",
        "  a size or an index: say what holds for it with torch._check(0 <= n)",
    ]
    return "\n".join(lines)


def _on_type(type_name: str, *, of: str | None) -> str:
    """Return the message for an input or output of a type that torch.export does not take."""
    what = "takes" if of == "input" else "returns"
    return (
        f"Your model failed to export: forward {what} a {type_name}, which has no form in ONNX\n"
        "  use tensors and numbers; for a class that holds tensors, call "
        "torch.export.register_dataclass before"
    )


def _line_of_the_model(tb: TracebackType | None) -> Where | None:
    """Return the innermost line of the model in a traceback."""
    frames = traceback.extract_tb(tb)
    users = [frame for frame in frames if is_users(frame.filename)]
    if not users:
        return None
    last = users[-1]
    return Where(source=f"{relative_path(last.filename)}:{last.lineno}", code=last.line or "")
