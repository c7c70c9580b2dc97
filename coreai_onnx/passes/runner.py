"""Runs the passes on a model: all of its graphs, until nothing changes."""

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
from coreai_onnx.passes.engine.integrity import BrokenGraphError, check, interface_of, too_new
from coreai_onnx.passes.engine.report import PassMiss, PassReport
from coreai_onnx.passes.engine.scope import adopt_constants, scope_of, with_subgraphs
from coreai_onnx.passes.engine.surgeon import close_model, open_model
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.order import ORDER, Pass

MAX_ROUNDS = 32
"""Rounds after which a set of passes is said to undo its own work."""

Progress = Callable[[str, str, int], None]
"""Called before each pass with the graph's name, the pass's name and the round, from 1."""


class _BadPassError(Exception):
    """A pass raised or broke a graph; the message says which and where.

    Args:
        message: What happened.
        kind: The error that a user gets.
    """

    def __init__(self, message: str, kind: type[PassError] = PassError) -> None:
        super().__init__(message)
        self.kind = kind


class _TooNewError(Exception):
    """A pass wrote what the opset of the graph does not have."""

    def __init__(self, one: Pass) -> None:
        """Remember the pass."""
        super().__init__(name_of(one))
        self.one = one


class _Enough(Exception):  # noqa: N818 - no error: as many steps as were asked for
    """The run has made all its steps."""


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass] | None = None,
    *,
    progress: Progress | None = None,
) -> PassReport:
    """Optimise ``model`` in place.

    Every pass runs on the main graph, on its subgraphs and on every function body. A graph is done
    when a round of all passes changes nothing in it. A model that no pass changes is left as it is,
    down to its objects. A pass that writes what the opset of an old model does not have is left
    out.

    Args:
        model: The model; on an error it is as the passes before the bad one left it.
        passes: The passes in their order; None for ``coreai_onnx.passes.order.ORDER``.
        progress: Called before each pass.

    Returns:
        Counts per pass and the near misses.

    Raises:
        PassError: A pass raised or left a broken graph (the message names it), or the passes go
            round in circles; then the model is unchanged.
        SpecViolationError: A pass left a node that breaks a rule of ONNX, in a model that had no
            such node before.
    """
    chosen = tuple(ORDER if passes is None else passes)
    run = _Run(model, chosen, progress)
    try:
        run.all()
        result = _closed(run, model)
        if result is None:
            return run.report
        _check_result(model, result)
    except _TooNewError as late:  # an old model; nothing has touched it yet
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
    """Return a model as a run left it; None if it changed nothing."""
    if not run.report.total:
        return None
    result = ir.Model(model.graph, ir_version=model.ir_version)
    close_model(run.main, result)
    return result


def _check_result(model: ir.Model, result: ir.Model) -> None:
    if found := new_violations(model, result):
        raise _BadPassError(f"a pass left an invalid node: {found[0]}", SpecViolationError)


def _adopt(result: ir.Model | None, model: ir.Model) -> None:
    """Put the graph and the functions of a result into a model."""
    if result is None:
        return
    model.graph = result.graph
    model.functions.clear()
    model.functions.update(result.functions)


def _first_bad(
    model: ir.Model, passes: Sequence[Pass], found: _BadPassError, steps: int
) -> tuple[_BadPassError, int]:
    """Return which pass was the first to break a graph, and the number of steps before it.

    A run looks at graphs after passes that say they changed something, and after each round. The
    steps are repeated with a look after each.
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
    """Repeat the steps before a bad one: a pass works in place, so its graph is of no use.

    A step that left an invalid node is worse than one that raised on that node later; it is found
    by bisection, with all steps repeated for each try.

    Returns:
        The model after the last good step, None if that is the model itself; and what is wrong with
        the step after it, None if nothing was found but what stopped the run.
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
    """Return the name under which a pass is reported."""
    return str(getattr(one, "__name__", type(one).__name__))


class _Run:
    """One run over a model that is not touched.

    Attributes:
        main: The main graph.
        report: What was done.
        steps: How many times a pass ran over a root graph and left it whole.
        last: The last of these passes, and the graph.
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
                scope_of(graph).pure_calls, scope_of(graph).bodies = pure, bodies
        # The main graph comes first, since functions that it stops calling need no work, and again
        # if function bodies changed, since they may have stopped calling others. Functions that
        # passes add are at the end of the list.
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
        label = "main" if scope_of(root).kind == "main" else f"{root.domain}::{root.name}"
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
    except Exception as error:  # a pass may be the user's own: whatever it raises is reported
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
