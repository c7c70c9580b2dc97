"""The time of each node of a model, with function bodies, with kernels, and in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coreai_onnx.debugging.reference.random_inputs import random_inputs
from coreai_onnx.errors import ComparisonError, SessionError
from coreai_onnx.runtime.profile.node_times import Profile
from coreai_onnx.runtime.profile.timing import time_interleaved
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import executions_on
from coreai_onnx.runtime.sessions.sources import Source
from coreai_onnx.targets.providers import Choice

if TYPE_CHECKING:
    from coreai_onnx.debugging.reference.torch_side import InputSet


def profile(
    model: Source,
    inputs: InputSet | None = None,
    reference: object = None,
    *,
    kernels: bool | None = None,
    threads: int | None = None,
    runs: int = 10,
    warmup: int = 3,
    provider: Choice | None = None,
) -> Profile:
    """Measure where the time of a model goes, from onnxruntime's own profile.

    The bodies, the kernels and torch run in turn, so that a change of the machine's speed affects
    all of them. States start from their initial values in every run.

    Args:
        model: A file, a model or a program.
        inputs: One call's arguments, a tuple of positional or a mapping of named ones: those of
            the model, or with a reference those of the module. None for the example inputs of the
            reference, or else random inputs of the types in the signature.
        reference: An `ExportRecord` or ``ExportedProgram`` that the model was converted from: its
            nodes are measured in torch too. For a module, the whole is measured.
        kernels: Whether the kernels run as well; None if they are built and there is no provider
            other than the CPU.
        threads: Threads per operator; None lets onnxruntime choose.
        runs: Number of measured runs of each.
        warmup: Number of runs before, which are not measured.
        provider: The execution provider, as for `coreai_onnx.session`.

    Returns:
        The profile: print it, or call ``by("line")`` or ``to_html(path)``.

    Raises:
        ComparisonError: If there are no inputs, or they are not those of the reference.
        SessionError: If the model cannot be opened or run.
        KernelsNotBuiltError: If ``kernels=True`` and there is no kernel library.
    """
    if runs < 1 or warmup < 0:
        raise ComparisonError(
            f"runs must be at least 1 and warmup at least 0, got {runs} and {warmup}"
        )
    executions = executions_on(provider, kernels=kernels, threads=threads, profile=True)
    sessions = [Session(model, **settings) for settings in executions.values()]
    calls: dict[str, Callable[[], object]] = {}
    if reference is None:
        arguments = _arguments(sessions[0], inputs)
        for session in sessions:
            calls[_name(session)] = _call(session, *arguments)
        time_interleaved(calls, repeats=runs, warmup=warmup)
        return _merged([session.profile(skip=warmup) for session in sessions])
    from coreai_onnx.debugging.profiling.torch_times import TorchTimes

    torch_side = TorchTimes(reference, inputs)
    for session in sessions:
        calls[_name(session)] = _call(session, (), torch_side.feeds(session))
    timings = time_interleaved({**calls, **torch_side.calls()}, repeats=runs, warmup=warmup)
    profile = _merged([session.profile(skip=warmup) for session in sessions])
    execution = torch_side.execution(profile.model, timings, runs)
    return Profile((*profile.executions, execution), profile.peaks, profile.model)


def _name(session: Session) -> str:
    return "kernels" if session.kernels else "bodies"


def _arguments(
    session: Session, inputs: InputSet | None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if inputs is None:
        return (), random_inputs(session)
    if isinstance(inputs, Mapping):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def _call(
    session: Session, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Callable[[], object]:
    def call() -> object:
        # Otherwise a cache would grow from run to run, and each run would do more work.
        if session.states:
            session.reset()
        return session.run(*args, **named)

    return call


def _merged(profiles: list[Profile]) -> Profile:
    executions = tuple(one for profile in profiles for one in profile.executions)
    if len({one.name for one in executions}) < len(executions):
        raise SessionError("the kernels cannot be registered, so they cannot be measured")
    return Profile(executions, profiles[-1].peaks, profiles[-1].model)
