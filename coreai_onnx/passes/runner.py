"""Runs the passes on all graphs of a model until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from coreai_onnx.errors import PassError, SpecViolationError, WrongPassError
from coreai_onnx.model.checks.fixed_attributes import fixed_attributes_fault
from coreai_onnx.model.checks.violations import new_violations
from coreai_onnx.model.contract import read_contract
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME, adopt
from coreai_onnx.passes.cleanup.merge_duplicates import pure_functions
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, BodyWriter
from coreai_onnx.passes.engine.body_types import BodyTypes, forget_types, untyped
from coreai_onnx.passes.engine.graphs import adopt_objects, context_of, with_subgraphs
from coreai_onnx.passes.engine.integrity import BrokenGraphError, check, interface_of, too_new
from coreai_onnx.passes.engine.report import PassMiss, PassReport
from coreai_onnx.passes.engine.surgeon import close_model, open_model
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.order import ORDER, Pass
from coreai_onnx.targets.releases import release_of

MAX_ROUNDS = 32
"""Number of rounds after which the passes are reported as not converging.

A bound for passes that undo each other.
"""

Progress = Callable[[str, str, int], None]
"""Called before each pass with the graph's name, the pass's name and the round, from 1."""
Verify = Callable[[ir.Model], str]
"""Called with the model after each pass that changed it; returns what is wrong with its results."""


class _BadPassError(Exception):
    """A pass raised or broke a graph; the message names the pass and the graph.

    Args:
        message: What happened.
        kind: The error that a user gets.
    """

    def __init__(self, message: str, kind: type[PassError] = PassError) -> None:
        super().__init__(message)
        self.kind = kind


class _TooNewError(Exception):
    """A pass created a node that the opset, or the oldest onnxruntime, does not have."""

    def __init__(self, one: Pass) -> None:
        super().__init__(name_of(one))
        self.one = one


class _LimitReached(Exception):  # noqa: N818 - control flow, not an error
    """The replay has repeated every step of the failed run."""


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass] | None = None,
    *,
    progress: Progress | None = None,
    verify: Verify | None = None,
    write_body: BodyWriter | None = None,
) -> PassReport:
    """Optimize ``model`` in place.

    Every pass runs on the main graph, on its subgraphs and on every function body. A graph is done
    when a round of all passes changes nothing in it. A model that no pass changes keeps its
    objects. A pass is skipped if it creates nodes that the opset of an old model, or the oldest
    onnxruntime that must run it, does not have.

    Args:
        model: The model; after an error it has the changes of the passes before the bad one.
        passes: The passes in order; None for ``coreai_onnx.passes.order.ORDER``.
        progress: Called before each pass.
        verify: Called after each pass that changed the model.
        write_body: Writes the bodies of the composites that passes create, as
            `coreai_onnx.bodies.pass_bodies.write_pass_body` does; None to create none.

    Returns:
        Counts per pass and the near misses.

    Raises:
        PassError: A pass raised or broke a graph (the message names the pass), or the passes do
            not converge; in the latter case the model is unchanged.
        WrongPassError: ``verify`` found a result of a pass to be wrong.
        SpecViolationError: A pass created a node that breaks a rule of ONNX, in a model that had
            no such node before.
    """
    chosen = tuple(ORDER if passes is None else passes)
    run = _Run(model, chosen, write_body, progress)
    if verify is not None:
        run = _Replay(model, chosen, write_body, None, verify, progress)
    try:
        run.all()
        result = run.valid if isinstance(run, _Replay) else _closed(run, model)
        if result is not None and verify is None:
            _check_result(model, result, "a pass")
    except _TooNewError as late:  # an old model, which is still unchanged
        # A pass works in place and cannot be undone, so the others start again from the model.
        fitting = tuple(one for one in chosen if one is not late.one)
        return run_passes(model, fitting, progress=progress, verify=verify, write_body=write_body)
    except _BadPassError as first:
        replay = (
            run if isinstance(run, _Replay) else _Replay(model, chosen, write_body, run.steps + 1)
        )
        error = first if replay is run else replay.first_error() or first
        if replay.valid is not None:
            adopt(replay.valid, model)
        raise error.kind(f"{error}\n  the model is as the passes before left it") from error
    if result is not None:
        adopt(result, model)
    return run.report


def _closed(run: _Run, model: ir.Model) -> ir.Model | None:
    """Return the model after a run; None if the run changed nothing."""
    if not run.report.total:
        return None
    result = ir.Model(model.graph, ir_version=model.ir_version)
    close_model(run.main, result)
    return result


def _check_result(
    model: ir.Model, result: ir.Model, who: str, verify: Verify | None = None
) -> None:
    """Raise an error if a result has an invalid node, or computes something else.

    Args:
        model: The model before; what is invalid there is not reported.
        result: The result.
        who: The pass, for the message.
        verify: Returns what the result computes wrongly.
    """
    if violations := new_violations(model, result):
        place = f"\n  at {violations[0].where}" if violations[0].where else ""
        what = f"{who} left an invalid node\n  {violations[0]}{place}"
        raise _BadPassError(what, SpecViolationError)
    # A call that was at fault before the pass is not reported as the fault of the pass.
    wrong = fixed_attributes_fault(result)
    if wrong and not fixed_attributes_fault(model):
        raise _BadPassError(f"{who} left an invalid node\n  {wrong}")
    if verify is not None:
        result.metadata_props.update(model.metadata_props)
        if wrong := verify(result):
            raise _BadPassError(f"{who} made results wrong\n{wrong}", WrongPassError)


def _is_ours(one: Pass) -> bool:
    return str(getattr(one, "__module__", "")).startswith("coreai_onnx.")


def name_of(one: Pass) -> str:
    """Return the name of a pass in reports."""
    return str(getattr(one, "__name__", type(one).__name__))


@dataclass(frozen=True)
class _Root:
    """A root graph, and what of it the passes must keep."""

    graph: gs.Graph
    label: str
    interface: tuple[tuple[str, ...], tuple[str, ...]]
    opset: int


class _Run:
    """One run over a model; the model itself is not changed.

    Attributes:
        main: The main graph.
        oldest: The oldest onnxruntime that must run the model; None for any.
        report: The report of the run.
        steps: The number of runs of one pass over one root graph that left it valid.
    """

    def __init__(
        self,
        model: ir.Model,
        passes: Sequence[Pass],
        write_body: BodyWriter | None,
        progress: Progress | None = None,
    ) -> None:
        self.main = open_model(model)
        self.oldest = release_of(model.metadata_props.get(MINIMUM_ONNXRUNTIME))
        # Of the main graph only: a function does not know which inputs its arguments are.
        self.main.contract, self.main.oldest = read_contract(model.metadata_props), self.oldest
        self.report = PassReport(
            counts={name_of(p): 0 for p in passes}, nodes_before=self._node_count()
        )
        self.steps = 0
        self._passes, self._progress = passes, progress
        self._bodies = Bodies(self.main, write_body)

    def all(self) -> None:
        main = self.main
        pure, bodies = pure_functions(main.functions), self._bodies
        for root in (main, *main.functions):
            for graph in with_subgraphs(root):
                graph.pure_calls, graph.bodies = pure, bodies
        # The main graph comes first, since functions that it no longer calls can be skipped. It is
        # processed again if function bodies changed, since they may no longer call others.
        # Functions that passes add are at the end of the list.
        misses = self._root(main)
        before = self.report.total
        inner: list[PassMiss] = []
        types = BodyTypes(main, bodies)
        # The types of a body follow from its calls, whose arguments must be final by then.
        for function in bodies.callers_first():
            types.learn(function)
            inner += self._root(function)
        for function in main.functions:
            forget_types(function)
        if self.report.total != before:
            misses = self._root(main)
        self.report.near_misses = (*misses, *inner)
        self.report.nodes_after = self._node_count()

    def _root(self, graph: gs.Graph) -> list[PassMiss]:
        """Run rounds over one root graph until one changes nothing; return the last near misses."""
        graph = context_of(graph)  # a user's pass may have added a function of graph-surgeon
        label = f"{graph.domain}::{graph.name}" if isinstance(graph, gs.Function) else "main"
        root = _Root(graph, label, interface_of(graph), int(graph.opset or self.main.opset))
        for number in range(1, MAX_ROUNDS + 1):
            changed, misses = 0, []
            for one in self._passes:
                if self._progress is not None:
                    self._progress(label, name_of(one), number)
                why = Why()
                changed += self._step(one, root, why)
                misses += [PassMiss(name_of(one), label, replace(miss)) for miss in why.misses]
            if self._passes:
                # `_step` does not check a pass that reports no rewrite. If such a pass broke the
                # graph, this check fails, and the replay then finds out which pass it was.
                self._check(self._passes[-1], root)
            self.report.rounds = max(self.report.rounds, number)
            if not changed:
                return list({(m.pass_name, m.miss.reason, m.miss.op): m for m in misses}.values())
        raise PassError(
            f"passes still change {label} after {MAX_ROUNDS} rounds: two undo each other\n"
            "  the model is unchanged"
        )

    def _step(self, one: Pass, root: _Root, why: Why) -> int:
        """Run one pass over a root graph and its subgraphs, outer before inner."""
        count = 0
        try:
            for graph in with_subgraphs(root.graph):
                count += int(one(graph, why))
        except Exception as error:  # a user's pass may raise anything; report it
            raise _BadPassError(
                f"pass {name_of(one)} raised on {root.label}: {type(error).__name__}: {error}"
            ) from error
        if count:
            self._check(one, root)
        elif not _is_ours(one):  # a user's pass may not report what it changes
            adopt_objects(root.graph)
        # A pass of a user is never skipped silently: `_check_result` reports its invalid nodes.
        if count and _is_ours(one) and too_new(root.graph, root.opset, self.oldest):
            raise _TooNewError(one)
        self.steps += 1
        self.report.counts[name_of(one)] += count
        return count

    def _check(self, one: Pass, root: _Root) -> None:
        self._bodies.changed(root.graph)
        try:
            check(root.graph, root.interface)
        except BrokenGraphError as error:
            raise _BadPassError(f"pass {name_of(one)} broke {root.label}: {error}") from error
        adopt_objects(root.graph)

    def _node_count(self) -> int:
        roots = [self.main, *self.main.functions]
        return sum(len(graph.nodes) for root in roots for graph in with_subgraphs(root))


class _Replay(_Run):
    """A run that checks the model after each step, and keeps a valid one: after a failed run.

    Only this run pays for the checks. It never repeats a step: passes work in place, so the model
    after the last valid step is exported before the next step.

    Args:
        model: The model before the run.
        passes: The passes.
        write_body: Writes the bodies of the composites that passes create.
        limit: The number of steps that the failed run began; None for all.
        verify: Called after each pass that changed the model.
        progress: Called before each pass.

    Attributes:
        valid: The model after the last step that left it valid; None while it is unchanged.
    """

    def __init__(
        self,
        model: ir.Model,
        passes: Sequence[Pass],
        write_body: BodyWriter | None,
        limit: int | None,
        verify: Verify | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(model, passes, write_body, progress)
        self.valid: ir.Model | None = None
        self._model, self._limit, self._verify = model, limit, verify

    def first_error(self) -> _BadPassError | None:
        """Run the passes; return the first error, or None if they succeed this time."""
        try:
            self.all()
        except _BadPassError as error:
            return error
        except _LimitReached:
            pass
        return None

    def _step(self, one: Pass, root: _Root, why: Why) -> int:
        if self.steps == self._limit:
            raise _LimitReached
        count = super()._step(one, root, why)
        # Here even a pass that reports no rewrite is checked, so that the error names it.
        if not count:
            self._check(one, root)
        if count or not _is_ours(one):
            self._export(one, root)
        return count

    def _export(self, one: Pass, root: _Root) -> None:
        with untyped(self.main.functions):
            result = _closed(self, self._model)
        if result is not None:
            who = f"pass {name_of(one)} on {root.label}"
            _check_result(self._model, result, who, self._verify)
        self.valid = result
