"""Runs the passes on all graphs of a model until nothing changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.errors import PassError, SpecViolationError
from coreai_onnx.model.violations import new_violations
from coreai_onnx.passes.cleanup.merge_common_subexpressions import pure_functions
from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.body_types import BodyTypes, forget_types
from coreai_onnx.passes.engine.context import adopt_constants, context_of, with_subgraphs
from coreai_onnx.passes.engine.integrity import BrokenGraphError, check, interface_of, too_new
from coreai_onnx.passes.engine.report import PassMiss, PassReport
from coreai_onnx.passes.engine.surgeon import close_model, open_model
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.order import ORDER, Pass

MAX_ROUNDS = 32
"""Number of rounds after which the passes are reported as not converging."""

Progress = Callable[[str, str, int], None]
"""Called before each pass with the graph's name, the pass's name and the round, from 1."""


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
    """A pass created a node that the opset of the graph does not have."""

    def __init__(self, one: Pass) -> None:
        """Remember the pass."""
        super().__init__(name_of(one))
        self.one = one


class _Enough(Exception):  # noqa: N818 - control flow, not an error
    """The run has reached its step limit."""


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass] | None = None,
    *,
    progress: Progress | None = None,
) -> PassReport:
    """Optimize ``model`` in place.

    Every pass runs on the main graph, on its subgraphs and on every function body. A graph is done
    when a round of all passes changes nothing in it. A model that no pass changes keeps its
    objects. A pass that creates nodes that the opset of an old model does not have is skipped.

    Args:
        model: The model; after an error it has the changes of the passes before the bad one.
        passes: The passes in order; None for ``coreai_onnx.passes.order.ORDER``.
        progress: Called before each pass.

    Returns:
        Counts per pass and the near misses.

    Raises:
        PassError: A pass raised or broke a graph (the message names the pass), or the passes do
            not converge; in the latter case the model is unchanged.
        SpecViolationError: A pass created a node that breaks a rule of ONNX, in a model that had
            no such node before.
    """
    chosen = tuple(ORDER if passes is None else passes)
    run = _Run(model, chosen, progress)
    try:
        run.all()
        result = _closed(run, model)
        if result is None:
            return run.report
        _check_result(model, result)
    except _TooNewError as late:  # an old model, which is still unchanged
        fitting = tuple(one for one in chosen if one is not late.one)
        return run_passes(model, fitting, progress=progress)
    except _BadPassError as first:
        error, steps = _first_bad(model, chosen, first, run.steps)
        last, wrong = _last_valid(model, chosen, steps)
        _adopt(last, model)
        error = wrong or error
        raise error.kind(f"{error}\n  the model is as the passes before left it") from error
    _adopt(result, model)
    return run.report


def _closed(run: _Run, model: ir.Model) -> ir.Model | None:
    """Return the model after a run; None if the run changed nothing."""
    if not run.report.total:
        return None
    result = ir.Model(model.graph, ir_version=model.ir_version)
    close_model(run.main, result)
    return result


def _check_result(model: ir.Model, result: ir.Model) -> None:
    if found := new_violations(model, result):
        raise _BadPassError(f"a pass left an invalid node: {found[0]}", SpecViolationError)


def _adopt(result: ir.Model | None, model: ir.Model) -> None:
    """Move the graph and the functions of a result into a model."""
    if result is None:
        return
    model.graph = result.graph
    model.functions.clear()
    model.functions.update(result.functions)


def _first_bad(
    model: ir.Model, passes: Sequence[Pass], found: _BadPassError, steps: int
) -> tuple[_BadPassError, int]:
    """Return the error of the first pass that broke a graph, and the number of steps before it.

    A run checks graphs after passes that report a rewrite, and after each round. This function
    repeats the steps and checks after each of them.
    """
    again = _Run(model, passes, None, limit=steps + len(passes), check_all=True)
    try:
        again.all()
    except _BadPassError as error:
        return error, again.steps
    except _Enough:
        pass
    return found, steps


def _last_valid(
    model: ir.Model, passes: Sequence[Pass], steps: int
) -> tuple[ir.Model | None, _BadPassError | None]:
    """Repeat the steps before a bad one, since passes work in place and its graph is unusable.

    An earlier step may have created an invalid node on which a later pass raised. Such a step is
    found by bisection, which repeats all steps for each attempt.

    Returns:
        The model after the last good step, None if that is the original model; and the error of the
        step after it, None if bisection found no error other than the one that stopped the run.
    """
    last, wrong = None, None
    good, bad, tried = 0, steps + 1, steps
    while good < tried < bad:
        again = _Run(model, passes, None, limit=tried)
        with contextlib.suppress(_Enough):
            again.all()
        result = _closed(again, model)
        found = new_violations(model, result) if result is not None else []
        if found:
            bad = tried
            place = f"\n  at {found[0].where}" if found[0].where else ""
            what = f"pass {again.last} left an invalid node\n  {found[0]}{place}"
            wrong = _BadPassError(what, SpecViolationError)
        else:
            last, good = result, tried
        tried = (good + bad) // 2
    return last, wrong


def _is_ours(one: Pass) -> bool:
    return str(getattr(one, "__module__", "")).startswith("coreai_onnx.")


def name_of(one: Pass) -> str:
    """Return the name of a pass in reports."""
    return str(getattr(one, "__name__", type(one).__name__))


class _Run:
    """One run over a model; the model itself is not changed.

    Attributes:
        main: The main graph.
        report: The report of the run.
        steps: The number of runs of one pass over one root graph that left it valid.
        last: The last of these passes, and its graph.
    """

    def __init__(
        self,
        model: ir.Model,
        passes: Sequence[Pass],
        progress: Progress | None,
        limit: int | None = None,
        *,
        check_all: bool = False,
    ) -> None:
        self.main = open_model(model)
        self.report = PassReport(
            counts={name_of(p): 0 for p in passes}, nodes_before=self._node_count()
        )
        self.steps, self.last = 0, ""
        self._passes, self._progress, self._limit = passes, progress, limit
        self._check_all = check_all
        self._bodies = Bodies(self.main)

    def all(self) -> None:
        """Run the passes on every graph."""
        main = self.main
        pure, bodies = pure_functions(main.functions), self._bodies
        for root in (main, *main.functions):
            for graph in with_subgraphs(root):
                context_of(graph).pure_calls, context_of(graph).bodies = pure, bodies
        # The main graph comes first, since functions that it no longer calls can be skipped. It is
        # processed again if function bodies changed, since they may no longer call others.
        # Functions that passes add are at the end of the list.
        misses = self._root(main)
        before = self.report.total
        inner: list[PassMiss] = []
        types = BodyTypes(main, bodies)
        for function in bodies.callers_first():
            types.learn(function)
            inner += self._root(function)
        for function in main.functions:
            forget_types(function)
        if self.report.total != before:
            misses = self._root(main)
        self.report.near_misses = (*misses, *inner)
        self.report.nodes_after = self._node_count()

    def _root(self, root: gs.Graph) -> list[PassMiss]:
        """Run rounds over one root graph until one changes nothing; return the last near misses."""
        label = "main" if context_of(root).kind == "main" else f"{root.domain}::{root.name}"
        interface = interface_of(root)
        opset = int(root.opset or self.main.opset)
        for number in range(1, MAX_ROUNDS + 1):
            changed, misses = 0, []
            for one in self._passes:
                if self.steps == self._limit:
                    raise _Enough
                if self._progress is not None:
                    self._progress(label, name_of(one), number)
                why = Why()
                count = _run_one(one, root, why, label)
                if count or self._check_all:
                    self._bodies.changed(root)
                    _check(one, root, interface, label)
                if count and _is_ours(one) and too_new(root, opset):
                    raise _TooNewError(one)
                self.steps += 1
                self.last = f"{name_of(one)} on {label}"
                changed += count
                self.report.counts[name_of(one)] += count
                misses += [PassMiss(name_of(one), label, replace(miss)) for miss in why.misses]
            if self._passes:
                self._bodies.changed(root)
                _check(self._passes[-1], root, interface, label)
            self.report.rounds = max(self.report.rounds, number)
            if not changed:
                return list({(m.pass_name, m.miss.reason, m.miss.op): m for m in misses}.values())
        raise PassError(
            f"passes still change {label} after {MAX_ROUNDS} rounds: two undo each other\n"
            "  the model is unchanged"
        )

    def _node_count(self) -> int:
        roots = [self.main, *self.main.functions]
        return sum(len(graph.nodes) for root in roots for graph in with_subgraphs(root))


def _run_one(one: Pass, root: gs.Graph, why: Why, label: str) -> int:
    """Run one pass over a root graph and its subgraphs, outer before inner."""
    count = 0
    try:
        for graph in with_subgraphs(root):
            count += int(one(graph, why))
    except Exception as error:  # a user's pass may raise anything; report it
        raise _BadPassError(
            f"pass {name_of(one)} raised on {label}: {type(error).__name__}: {error}"
        ) from error
    return count


def _check(
    one: Pass, root: gs.Graph, interface: tuple[tuple[str, ...], tuple[str, ...]], label: str
) -> None:
    try:
        check(root, interface)
    except BrokenGraphError as error:
        raise _BadPassError(f"pass {name_of(one)} broke {label}: {error}") from error
    adopt_constants(root)
