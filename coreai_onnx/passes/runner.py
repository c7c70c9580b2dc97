"""Runs the passes on a model: all of its graphs, until nothing changes, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.errors import PassError
from coreai_onnx.passes.bodies import Bodies
from coreai_onnx.passes.integrity import BrokenGraphError, check, interface_of
from coreai_onnx.passes.merge_common_subexpressions import pure_functions
from coreai_onnx.passes.order import ORDER, Pass
from coreai_onnx.passes.report import PassMiss, PassReport
from coreai_onnx.passes.scope import adopt_constants, scope_of, with_subgraphs
from coreai_onnx.passes.surgeon import close_model, open_model
from coreai_onnx.passes.why import Why

MAX_ROUNDS = 32
"""Rounds after which a set of passes is said to undo its own work."""

Progress = Callable[[str, str, int], None]
"""Called before each pass with the graph's name, the pass's name and the round, from 1."""


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass] | None = None,
    *,
    progress: Progress | None = None,
) -> PassReport:
    """Optimise ``model`` in place.

    Every pass runs on the main graph, on its subgraphs and on every function body. A graph is done
    when a round of all passes changes nothing in it. A model that no pass changes is left as it is,
    down to its objects.

    Args:
        model: The model; on an error it is as it was before the call.
        passes: The passes in their order; None for ``coreai_onnx.passes.order.ORDER``.
        progress: Called before each pass.

    Returns:
        Counts per pass and the near misses.

    Raises:
        PassError: A pass raised or left a broken graph (the message names it), or the passes go
            round in circles.
    """
    chosen = tuple(ORDER if passes is None else passes)
    main = open_model(model)
    report = PassReport(counts={name_of(p): 0 for p in chosen}, nodes_before=_node_count(main))
    pure, bodies = pure_functions(main.functions), Bodies(main)
    for root in (main, *main.functions):
        for graph in with_subgraphs(root):
            scope_of(graph).pure_calls, scope_of(graph).bodies = pure, bodies
    # The main graph comes first, since functions that it stops calling need no work, and again if
    # function bodies changed, since they may have stopped calling others.
    misses = _run_root(main, chosen, report, progress)
    before = report.total
    inner = [miss for f in main.functions for miss in _run_root(f, chosen, report, progress)]
    if report.total != before:
        misses = _run_root(main, chosen, report, progress)
    report.near_misses = (*misses, *inner)
    report.nodes_after = _node_count(main)
    if report.total:
        close_model(main, model)
    return report


def name_of(one: Pass) -> str:
    """Return the name under which a pass is reported."""
    return str(getattr(one, "__name__", type(one).__name__))


def _run_root(
    root: gs.Graph, passes: Sequence[Pass], report: PassReport, progress: Progress | None
) -> list[PassMiss]:
    """Run rounds over one root graph until one changes nothing; return the last near misses."""
    scope = scope_of(root)
    label = "main" if scope.kind == "main" else f"{root.domain}::{root.name}"
    interface = interface_of(root)
    for number in range(1, MAX_ROUNDS + 1):
        changed, misses = 0, []
        for one in passes:
            if progress is not None:
                progress(label, name_of(one), number)
            why = Why()
            count = _run_one(one, root, why, label)
            _check(one, root, interface, label)
            changed += count
            report.counts[name_of(one)] += count
            misses += [PassMiss(name_of(one), label, replace(miss)) for miss in why.misses]
        report.rounds = max(report.rounds, number)
        if not changed:
            return list({(m.pass_name, m.miss.reason, m.miss.op): m for m in misses}.values())
    raise PassError(f"passes still change {label} after {MAX_ROUNDS} rounds: two undo each other")


def _run_one(one: Pass, root: gs.Graph, why: Why, label: str) -> int:
    """Run one pass over a root graph and its subgraphs, outer before inner."""
    count = 0
    try:
        for graph in with_subgraphs(root):
            count += int(one(graph, why))
    except Exception as error:  # a pass may be the user's own: whatever it raises is reported
        raise PassError(
            f"pass {name_of(one)} raised on {label}: {type(error).__name__}: {error}\n"
            "  the model is unchanged"
        ) from error
    return count


def _check(
    one: Pass, root: gs.Graph, interface: tuple[tuple[str, ...], tuple[str, ...]], label: str
) -> None:
    try:
        check(root, interface)
    except BrokenGraphError as error:
        raise PassError(
            f"pass {name_of(one)} broke {label}: {error}\n  the model is unchanged"
        ) from error
    adopt_constants(root)


def _node_count(main: gs.Graph) -> int:
    roots = [main, *main.functions]
    return sum(len(graph.nodes) for root in roots for graph in with_subgraphs(root))
