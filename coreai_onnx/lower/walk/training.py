"""Warnings about random numbers and ops in training mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import RandomnessWarning, TrainingModeWarning
from coreai_onnx.export.capture.explain import outside
from coreai_onnx.export.compat.torch_names import OpOverload
from coreai_onnx.export.functionalize.batch_statistics import UPDATES_STATISTICS
from coreai_onnx.lower.walk.binding import bind_arguments
from coreai_onnx.lower.walk.location import where_of

_SHOWN = 5
"""Places that one warning lists; a model may have hundreds of dropouts."""
_FLAGS = ("train", "training", "use_input_stats")
"""Parameters that select the training mode of an op."""
_RATES = ("p", "dropout")
"""Parameters for the probability of a dropout."""


def warn_about_training(programs: Iterable[ExportedProgram]) -> None:
    """Warn about random numbers, dropout, and batch norms that use batch statistics.

    Args:
        programs: A program, and those of the modules that it calls.

    Warns:
        RandomnessWarning: Once, with every location.
        TrainingModeWarning: Once, with every location.
    """
    graphs = [graph for program in programs for graph in _graphs(program)]
    calls = [node for graph in graphs for node in graph.nodes if _is_op(node)]
    kinds = {node: kind for node in calls if (kind := _kind(node)) is not None}
    for kind, (title, advice) in _TEXTS.items():
        places = [
            f"{n.target} at {where_of(n)}" for n, node_kind in kinds.items() if node_kind is kind
        ]
        if places:
            shown = list(dict.fromkeys(places))
            more = [f"… and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
            lines = [title, *shown[:_SHOWN], *more, advice]
            warnings.warn("\n  ".join(lines), kind, stacklevel=outside())


_TEXTS: dict[type[UserWarning], tuple[str, str]] = {
    TrainingModeWarning: (
        "the converted model computes as in training:",
        "call model.eval() before the conversion; F.dropout needs training=self.training",
    ),
    RandomnessWarning: (
        "the converted model draws random numbers, others in every run than torch does:",
        "for reproducible results, give them to forward as an input, or keep them in a buffer",
    ),
}


def _graphs(program: ExportedProgram) -> list[fx.Graph]:
    modules = program.graph_module.modules()
    return [module.graph for module in modules if isinstance(module, fx.GraphModule)]


def _is_op(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload)


def _kind(node: fx.Node) -> type[UserWarning] | None:
    """Return the category of the warning for a call, or None."""
    target: Any = node.target
    names = {argument.name for argument in target._schema.arguments}
    if not names.isdisjoint(_FLAGS):
        # Such an op draws random numbers only in training, so it needs no second warning.
        trains = UPDATES_STATISTICS in node.meta or _trains(target, _arguments(node))
        return TrainingModeWarning if trains else None
    if "dropout_p" in names:
        return TrainingModeWarning if _arguments(node)["dropout_p"] else None
    return RandomnessWarning if torch.Tag.nondeterministic_seeded in target.tags else None


def _trains(target: OpOverload, arguments: Mapping[str, Any]) -> bool:
    """Whether an op with a training flag runs in training mode."""
    flag = next(arguments[name] for name in _FLAGS if name in arguments)
    if "_norm" in target._schema.name:  # without running statistics it always uses batch statistics
        return bool(flag) and arguments.get("running_mean") is not None
    rate = next((arguments[name] for name in _RATES if name in arguments), None)
    # native_dropout takes None for True.
    return flag is not False and rate != 0


def _arguments(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of a call by name, defaults included."""
    positional, keywords = bind_arguments(node, lambda argument: argument)
    parameters = node.target._schema.arguments  # type: ignore[union-attr]  # an op
    names = [each.name for each in parameters if not each.kwarg_only]
    return {**dict(zip(names, positional, strict=True)), **keywords}
