"""Exported programs on their way to ONNX: transformed and lowered, one per method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.converter import TorchConverter
from coreai_onnx.delegation.backends import CompileSpec
from coreai_onnx.delegation.configs import EdgeCompileConfig, FinishConfig, check_configuration
from coreai_onnx.delegation.finished import FinishedProgram
from coreai_onnx.delegation.lowered_modules import (
    LoweredModule,
    lowered_module,
    with_lowered_modules,
)
from coreai_onnx.delegation.methods import FORWARD, Methods, constant_program
from coreai_onnx.delegation.partitioning import Partitioner, delegated
from coreai_onnx.delegation.verification import number_nodes, verified
from coreai_onnx.errors import (
    CoreaiError,
    DelegationError,
    ExportError,
    NothingToConvertError,
    PassError,
    StagingError,
    failures_as,
)
from coreai_onnx.export.capture.exported import check_program
from coreai_onnx.export.compat.turns import turn
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.functionalize.replaced_graph import copy_of
from coreai_onnx.lower.walk.decompose import get_decomp_table
from coreai_onnx.passes import Pass
from coreai_onnx.passes.runner import name_of
from coreai_onnx.program import OnnxProgram

ProgramPass = Callable[[fx.GraphModule], Any]
"""A pass over an exported program: returns a graph module, a ``PassResult``, or None if it changed
the graph module, which is a copy, in place."""
Passes = Sequence[ProgramPass | Pass] | Mapping[str, Sequence[ProgramPass | Pass]]
"""Passes for all methods, or by method."""
_Partitioners = Partitioner | Mapping[str, Partitioner]
_PartitionerLists = Sequence[_Partitioners] | Mapping[str, Sequence[Partitioner]]


@turn()
def to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    *,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
    converter: TorchConverter | None = None,
) -> EdgeProgramManager:
    """Decompose exported programs into functional core operators.

    Args:
        programs: One program, which becomes the method ``forward``, or programs by method. They are
            not changed.
        constant_methods: Method to what it returns: a tensor, a number, or several of them. A
            constant method is a model without inputs.
        compile_config: Operators to keep; None decomposes all of them.
        generate_etrecord: Refused if true: `OnnxProgram.record` has what an ``ETRecord`` is for.
        converter: Lowers the programs; it has the lowerings of the user's own operators. None uses
            a new one.

    Raises:
        NothingToConvertError: If there is no program.
        StagingError: If one is not an ``ExportedProgram``, a constant is something else or has the
            name of a program, an ``ETRecord`` is requested, or the configuration or the converter
            is something else.
        ExportError: If torch cannot decompose one.
    """
    named = programs if isinstance(programs, Mapping) else {FORWARD: programs}
    for name, program in named.items():
        if not isinstance(program, ExportedProgram):
            method = f" for {name!r}" if named is programs else ""
            advice = (
                'name the methods: to_edge({"encode": program, "decode": another})'
                if isinstance(program, list | tuple)
                else "export a module first: torch.export.export(model, args)"
            )
            raise StagingError(
                "to_edge takes an exported program or a dict of them by method, got "
                f"{type(program).__name__}{method}\n  {advice}"
            )
    if not named:
        raise NothingToConvertError("to_edge needs at least one program")
    if generate_etrecord:
        raise StagingError(
            "generate_etrecord has no counterpart: the finished program keeps a record of export\n"
            '  save it: finish().onnx_program.record("forward").save("forward.pt2")'
        )
    constants = {} if constant_methods is None else constant_methods
    if not isinstance(constants, Mapping):
        raise StagingError(f"constant_methods must be a dict by method, got {constants!r:.60}")
    if taken := [name for name in constants if name in named]:
        raise StagingError(f"the method {taken[0]!r} is both a program and a constant method")
    config = EdgeCompileConfig() if compile_config is None else compile_config
    check_configuration(config, EdgeCompileConfig, "preserve_ops")
    if not isinstance(converter, TorchConverter | None):
        raise StagingError(f"converter must be a TorchConverter, got {converter!r:.60}")
    named = {**named, **{name: constant_program(name, constants[name]) for name in constants}}
    edge = {str(name): _decomposed(program, name, config) for name, program in named.items()}
    return EdgeProgramManager(edge, converter or TorchConverter())


def to_edge_transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Passes | None = None,
    partitioner: _Partitioners | _PartitionerLists | None = None,
    *,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
    converter: TorchConverter | None = None,
) -> EdgeProgramManager:
    """Decompose programs, run passes, and delegate parts.

    Args:
        programs: As for `to_edge`.
        transform_passes: As for `EdgeProgramManager.transform`.
        partitioner: A partitioner or several, in order, for all methods or by method; each sees
            what those before it left.
        constant_methods: As for `to_edge`, and so are the remaining arguments.
        compile_config: Operators to keep.
        generate_etrecord: Refused if true.
        converter: Lowers the programs.

    Raises:
        CoreaiError: As for `to_edge`, `transform` and `to_backend`.
    """
    manager = to_edge(
        programs,
        constant_methods=constant_methods,
        compile_config=compile_config,
        generate_etrecord=generate_etrecord,
        converter=converter,
    )
    manager = manager.transform(transform_passes or ())
    if partitioner is None:
        return manager
    # One after the other: a partitioner must not see the nodes that an earlier one has taken.
    for partitioners in _each(partitioner):
        for name, several in manager.by_method(partitioners).items():
            for one in _each(several):
                manager = manager.to_backend({name: one})
    return manager


def _each(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else [values]


def _decomposed(program: ExportedProgram, name: str, config: EdgeCompileConfig) -> ExportedProgram:
    check_program(program)
    preserved = {*config.preserve_ops}
    table = {op: rule for op, rule in get_decomp_table().items() if op not in preserved}
    with failures_as(ExportError, f"the method {name!r} cannot be decomposed"):
        # torch.export keeps operators that write in place, which a part cannot have.
        decomposed: ExportedProgram = functional(program).run_decompositions(table)
    # After the decomposition, which makes the operators that the numbers are for.
    number_nodes(decomposed.graph_module)
    return with_lowered_modules(decomposed)


@overload
def to_backend(
    backend_id: str, edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec] = (), /
) -> LoweredModule: ...
@overload
def to_backend(edge_program: ExportedProgram, partitioner: Partitioner, /) -> ExportedProgram: ...
def to_backend(
    first: str | ExportedProgram,
    second: ExportedProgram | Partitioner,
    compile_specs: Sequence[CompileSpec] = (),
    /,
) -> LoweredModule | ExportedProgram:
    """Let a backend process a whole program, or the parts that a partitioner selects.

    ``to_backend(backend_id, edge_program, compile_specs)`` returns a module that runs the program;
    ``to_backend(edge_program, partitioner)`` returns the program with calls of its parts. The given
    program, one of `to_edge`, is not changed.

    Raises:
        DelegationError: If there is no such backend, it raises or returns no bytes, a whole program
            has states or a result that is not a tensor, or a part cannot be delegated.
        TypeError: For other arguments.
    """
    if isinstance(first, str) and isinstance(second, ExportedProgram):
        return lowered_module(first, second, compile_specs)
    if isinstance(first, ExportedProgram) and isinstance(second, Partitioner):
        return delegated(first, second)
    # As ExecuTorch, whose function dispatches on the types of its arguments.
    raise TypeError(
        "to_backend takes (backend_id, program, compile_specs) or (program, partitioner), "
        f"not ({type(first).__name__}, {type(second).__name__})"
    )


class EdgeProgramManager(Methods):
    """Programs by method, between export and ONNX; every step returns a new manager.

    Args:
        programs: Method to program.
        converter: Lowers the programs.
        graph_passes: Method to the passes that run on its ONNX model.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        converter: TorchConverter,
        graph_passes: Mapping[str, Sequence[Pass]] | None = None,
    ) -> None:
        """Hold the programs."""
        super().__init__(programs)
        self._converter = converter
        self._graph_passes = dict(graph_passes or {})

    @turn()
    def transform(self, passes: Passes) -> EdgeProgramManager:
        """Run passes, and check the result of each.

        A pass with one parameter runs on the exported program: it takes a copy of its graph module.
        A pass with two, ``(graph, why)``, is a graph pass: it runs on the ONNX model, after
        lowering; it is run and checked here, and again by `finish`.

        Args:
            passes: The passes in order, for all methods or by method.

        Returns:
            A new manager; this one is unchanged.

        Raises:
            StagingError: If there is no such method.
            SpecViolationError: If a pass leaves an invalid node; the message names pass and line.
            PassError: If a pass raises.
            ConversionError: If there are graph passes, and a program cannot be lowered to ONNX.
        """
        programs, graph_passes = dict(self._programs), dict(self._graph_passes)
        new: list[Any] = []
        for name, chosen in self.by_method(passes).items():
            _check_passes(chosen)
            on_graphs = [one for one in chosen if is_graph_pass(one)]
            for one in chosen:
                if not is_graph_pass(one):
                    programs[name] = _run(one, programs[name])
            graph_passes[name] = (*graph_passes.get(name, ()), *on_graphs)
            new += on_graphs
        manager = EdgeProgramManager(programs, self._converter, graph_passes)
        if new:
            # Run once on a model that is thrown away: a graph pass that fails must fail here, in
            # its own step.
            manager._lowered(FinishConfig())
        return manager

    @turn()
    def to_backend(self, partitioner: _Partitioners) -> EdgeProgramManager:
        """Delegate the parts of the programs that a partitioner selects.

        Args:
            partitioner: For all methods, or by method.

        Returns:
            A new manager; this one is unchanged.

        Raises:
            StagingError: If there is no such method.
            DelegationError: If a part cannot be delegated; the message names nodes and lines.
        """
        programs = dict(self._programs)
        for name, one in self.by_method(partitioner).items():
            _check_partitioner(one)
            programs[name] = delegated(programs[name], one)
        return EdgeProgramManager(programs, self._converter, self._graph_passes)

    def finish(self, config: FinishConfig | None = None) -> FinishedProgram:
        """Lower the methods to ONNX, run the graph passes, and optimize for a target.

        Args:
            config: Settings; None for the defaults.

        Raises:
            UnsupportedOpsError: If ops have no lowering.
            ConversionError: If a program cannot be expressed in ONNX.
            PassError: If a pass fails; nothing is changed.
            StagingError: If the configuration is something else, or names an unknown method.
        """
        config = FinishConfig() if config is None else config
        check_configuration(config, FinishConfig, "passes")
        # A name that is wrong must fail here, and not when the plan is asked for.
        if isinstance(config.memory_planning_pass, Mapping):
            self.by_method(config.memory_planning_pass)
        # Passes may belong to exported programs or to graphs; `transform` sorts and checks them.
        if config.passes:
            return self.transform(config.passes).finish(replace(config, passes=()))
        program = self._lowered(config)
        if config.optimize:
            program.optimize(target=config.target, minimum_onnxruntime=config.minimum_onnxruntime)
        return FinishedProgram(program, self._programs, config)

    to_executorch = finish

    def _lowered(self, config: FinishConfig) -> OnnxProgram:
        """Lower all methods and run their graph passes."""
        with _staged(self._converter, self._programs):
            program = self._converter.to_onnx(
                self.methods,
                opset_version=config.opset_version,
                minimum_onnxruntime=config.minimum_onnxruntime,
            )
        for name, passes in self._graph_passes.items():
            if passes:
                # A program of one method: passes run on all models of a program, and these are for
                # one only.
                OnnxProgram({name: program.models[name]}).optimize(passes)
        return program


def _check_passes(passes: Any) -> None:
    """Raise PassError for anything but several passes."""
    kinds = [one for one in passes if isinstance(one, type)] if isinstance(passes, Sequence) else []
    if kinds:
        name = kinds[0].__name__
        raise PassError(f"the pass {name} is a class\n  pass an instance: {name}(...)")
    if not isinstance(passes, Sequence) or not all(callable(one) for one in passes):
        raise PassError(
            f"passes are a list of functions, or such lists by method, not {passes!r:.60}\n"
            "  put a single pass into a list: transform([a_pass])"
        )


def _check_partitioner(one: Any) -> None:
    """Raise DelegationError for anything but a partitioner."""
    if isinstance(one, Partitioner):
        return
    if isinstance(one, str):
        advice = "for a whole program: to_backend(backend_id, manager.exported_program(), specs)"
    elif isinstance(one, type) and issubclass(one, Partitioner):
        advice = f"pass an instance: {one.__name__}(...)"
    elif isinstance(one, list | tuple):
        advice = "call to_backend for each partitioner"
    else:
        advice = "such as CapabilityPartitioner(DelegationSpec(backend_id), capability)"
    raise DelegationError(f"{one!r:.60} is not a Partitioner\n  {advice}")


def is_graph_pass(one: Callable[..., Any]) -> bool:
    """Whether a pass requires two arguments, ``(graph, why)``, and so runs on the ONNX graph."""
    parameters = inspect.signature(one).parameters.values()
    # Parameters with defaults do not count: passes of both kinds may have settings.
    return sum(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters) == 2


def _run(one: Any, program: ExportedProgram) -> ExportedProgram:
    """Run a pass on a copy of a program's graph module, and check the result."""
    name, graph_module = name_of(one), copy_of(program.graph_module)
    try:
        result = one(graph_module)
    # An error of this package names the pass and the line already.
    except CoreaiError:
        raise
    except Exception as error:  # a user's pass may raise anything
        raise PassError(
            f"pass {name} raised {type(error).__name__}: {error}\n  the program is unchanged"
        ) from error
    # A PassResult of torch has the module in this field.
    changed = graph_module if result is None else getattr(result, "graph_module", result)
    if not isinstance(changed, fx.GraphModule):
        raise PassError(
            f"pass {name} returned {type(result).__name__}\n"
            "  return a GraphModule or a PassResult, or None after a change in place"
        )
    return verified(program, changed, name)


@contextmanager
def _staged(converter: TorchConverter, programs: Mapping[str, ExportedProgram]) -> Iterator[None]:
    """Stage programs in a converter while active."""
    staged: list[str] = []
    try:
        for name, program in programs.items():
            converter.add_exported_program(program, entrypoint_name=name)
            staged.append(name)
        yield
    finally:
        # The converter belongs to the caller, whose other programs stay staged.
        converter.clear(entrypoints=staged)
