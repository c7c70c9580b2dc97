"""Stages programs and converts them: exported program, lowering, functions, ONNX program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from coreai_onnx.bodies import ModuleCalls, composite_functions
from coreai_onnx.composites import TORCH_OPS
from coreai_onnx.errors import (
    InvalidModelError,
    NothingToConvertError,
    RegistrationError,
    StagingError,
)
from coreai_onnx.export.capture.explain import warn_about_fixed_dims
from coreai_onnx.export.capture.exported import check_program
from coreai_onnx.export.capture.run import capture, check_calls
from coreai_onnx.export.capture.subjects import as_module
from coreai_onnx.export.compat.torch_names import OpOverload
from coreai_onnx.export.compat.turns import turn
from coreai_onnx.export.externalize.modules import ExternalizeSpec, ModuleCall
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.recognize.blocks import Recognition
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.export.versions import warn_if_untested
from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.walk.lost_composites import (
    warn_about_lost_composites,
    warn_about_unused_lowerings,
)
from coreai_onnx.lower.walk.registry import Lowering, builtin_lowering
from coreai_onnx.lower.walk.training import warn_about_training
from coreai_onnx.lower.walk.user_lowerings import check_form, registered_name
from coreai_onnx.messages import begin_stage, progress_bar
from coreai_onnx.model.checks.violations import violations
from coreai_onnx.model.metadata import MAIN, MINIMUM_ONNXRUNTIME
from coreai_onnx.model.provenance.debug_info import DebugInfo
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.oldest import check_oldest
from coreai_onnx.targets.opsets import chosen_opset
from coreai_onnx.targets.releases import Release, release_of
from coreai_onnx.version import __version__

if TYPE_CHECKING:
    from coreai_onnx.debugging.blaming.pass_verification import PassVerifier

# At import, before an export fails for a reason that the version explains.
warn_if_untested(torch.__version__)
Targets = Sequence[ExternalizeSpec | type | Literal["auto"]] | Literal["auto"] | None
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Staged:
    """A program waiting for conversion."""

    program: ExportedProgram
    io_names: IONames
    module_calls: Mapping[str, ModuleCall] = field(default_factory=dict)
    recognized: Recognition | None = None

    def record(self) -> ExportRecord:
        return ExportRecord(self.program, tuple(self.module_calls.values()))


def pass_verifier(record: ExportRecord, inputs: Any) -> PassVerifier:
    """Return what verifies passes; most conversions need none, and it imports onnxruntime."""
    from coreai_onnx.debugging.blaming.pass_verification import PassVerifier

    return PassVerifier(record, inputs)


class TorchConverter:
    """Converts PyTorch programs to ONNX; keeps registered lowerings and staged programs.

    ```python
    program = TorchConverter().add_exported_program(exported).to_onnx()
    ```

    Args:
        mode: How much debug information the result keeps.
    """

    class Mode(Enum):
        """How much debug information about the origin of nodes a saved program keeps."""

        DEBUG = "debug"
        RELEASE = "release"

    def __init__(self, *, mode: Mode | None = None) -> None:
        """Start with nothing staged and nothing registered.

        Args:
            mode: DEBUG writes module path, class and source line on every node, RELEASE on none;
                None keeps them in a compact table. See `OnnxProgram.save`.

        Raises:
            StagingError: If ``mode`` is something else.
        """
        if mode is not None and not isinstance(mode, TorchConverter.Mode):
            names = " or ".join(f"TorchConverter.{each}" for each in TorchConverter.Mode)
            raise StagingError(f"mode is {names}, not {mode!r}")
        self.mode = mode
        self._staged: dict[str, _Staged] = {}
        self._lowerings: dict[str, Lowering] = {}

    # ------------------------------------------------------------------ staging
    @turn()
    def add_exported_program(
        self,
        exported_program: ExportedProgram,
        *,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        entrypoint_name: str = MAIN,
        externalized: Sequence[ModuleCall] | None = None,
        _externalized_exported_programs: Sequence[ModuleCall] | None = None,
    ) -> TorchConverter:
        """Stage an exported program, decomposed or not.

        Args:
            exported_program: The program; it is not changed.
            input_names: One name per input that is neither a weight nor a state.
            output_names: One name per output of the user's forward.
            state_names: One name per mutated buffer; the new value of the state ``cache`` is the
                output ``cache_out``. With one more name per mutated input, after those of the
                buffers, these inputs are states too; otherwise they are inputs, and what is
                written to the input ``x`` is the additional output ``x_out``.
            entrypoint_name: Name of the program in the result.
            externalized: The result of ``subexport_and_restore`` for the program. (coreai-torch
                calls it ``_externalized_exported_programs``.)

        Returns:
            The converter.

        Raises:
            StagingError: If the entrypoint name is taken, or the program calls externalized
                modules that ``externalized`` does not contain.

        Warns:
            SpecializationWarning: If a dim that was requested as dynamic is fixed in the program.
        """
        self._check_free(entrypoint_name)
        check_program(exported_program)
        names = IONames(input_names, output_names, state_names)
        programs = externalized if externalized is not None else _externalized_exported_programs
        calls = {call.tag: call for call in programs or ()}
        check_calls(exported_program, calls)
        warn_about_fixed_dims(exported_program)
        self._staged[entrypoint_name] = _Staged(functional(exported_program), names, calls)
        return self

    @turn()
    def add_pytorch_module(
        self,
        model: torch.nn.Module | Callable[..., Any],
        *,
        export_fn: Callable[[torch.nn.Module], ExportedProgram],
        externalize_modules: Targets = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        entrypoint_name: str = MAIN,
    ) -> TorchConverter:
        """Export a module and stage it; submodules may be externalized as functions.

        Args:
            model: The module. It is restored when this returns or raises. Functions are accepted
                as in :func:`convert`.
            export_fn: Exports the module. It is called once; with ``"auto"`` it may be called
                again.
            externalize_modules: Module classes that become separate functions, or
                :class:`ExternalizeSpec` for composites. ``"auto"``, alone or in the list, replaces
                known blocks by composites if a check on the example inputs confirms them (see
                ``OnnxProgram.recognized``).
            input_names: As for :meth:`add_exported_program`.
            output_names: As for :meth:`add_exported_program`.
            state_names: As for :meth:`add_exported_program`.
            entrypoint_name: Name of the program in the result.

        Returns:
            The converter.

        Raises:
            StagingError: If the entrypoint name is taken.
            DynamicShapesError: If a dim that was requested as dynamic cannot be dynamic.
            ExportError: If the module cannot be exported.
            ExternalizationError: If an externalized module cannot be exported separately.

        Warns:
            SpecializationWarning: If torch fixed a dim that may be dynamic (``Dim.AUTO``).
        """
        self._check_free(entrypoint_name)
        names = IONames(input_names, output_names, state_names)
        begin_stage("export")
        captured = capture(as_module(model), export_fn, externalize_modules)
        self._staged[entrypoint_name] = _Staged(
            captured.program, names, captured.calls, captured.recognized
        )
        return self

    def clear(self, *, entrypoints: Sequence[str] | None = None) -> TorchConverter:
        """Remove staged programs, all by default; registered lowerings are kept."""
        for name in list(self._staged) if entrypoints is None else entrypoints:
            self._staged.pop(name, None)
        return self

    def register_torch_lowering(
        self,
        qualified_name: str | OpOverload,
        allow_override: bool = False,  # noqa: FBT001, FBT002 - coreai-torch's API
    ) -> Callable[[_F], _F]:
        """Return a decorator that registers a function as the lowering of an op in this converter.

        The function is ``fn(op, *args, **kwargs)``: ``op`` creates nodes (``op.Add(x, y)``), the
        rest are exactly the parameters of the op's schema. An onnxscript function is accepted too:
        it has the schema's parameters only, and becomes a function of the model.

        Args:
            qualified_name: ``"namespace::op.overload"``, or ``torch.ops.namespace.op.overload``.
            allow_override: Whether it may replace a built-in or earlier lowering.

        Raises:
            RegistrationError: If the name is malformed, the op has a lowering already, or the
                function has the form of coreai-torch's lowerings, ``(values_map, node, loc)``.
        """
        key = registered_name(qualified_name)
        # Composites that are ops of this package have no lowering in the registry.
        taken = key in self._lowerings or builtin_lowering(key) or key in TORCH_OPS
        if taken and not allow_override:
            raise RegistrationError(
                f"{qualified_name} is already registered; set allow_override=True to replace it"
            )

        def register(function: _F) -> _F:
            self._lowerings[key] = _as_lowering(function)
            return function

        return register

    # ------------------------------------------------------------------ conversion
    @turn()
    def to_onnx(
        self,
        entrypoints: Sequence[str] | None = None,
        *,
        opset_version: int | None = None,
        minimum_onnxruntime: str | None = None,
    ) -> OnnxProgram:
        """Convert the staged programs.

        Args:
            entrypoints: The entrypoints to convert; all by default.
            opset_version: ``ai.onnx`` opset of the result, 18 to 26; None selects 23, or a lower
                one if ``minimum_onnxruntime`` requires it.
            minimum_onnxruntime: The oldest onnxruntime that must be able to run the file,
                ``"1.20"``. The program stores it: `OnnxProgram.optimize` then creates no op that
                this version lacks.

        Raises:
            NothingToConvertError: If nothing is staged.
            StagingError: If an entrypoint is unknown, the opset is out of range, or
                ``minimum_onnxruntime`` does not support it.
            TargetError: If that onnxruntime lacks an op; the error lists all of them.
            UnsupportedOpsError: If ops have no lowering; the error lists all of them.
            ConversionError: If a program cannot be expressed in ONNX.
            InvalidModelError: If a lowering created a node that violates the ONNX specification.

        Warns:
            RandomnessWarning: If the model draws random numbers.
            TrainingModeWarning: If the model computes as in training mode.
            LostCompositesWarning: If a program was decomposed without ``get_decomp_table``, and
                has lost composites.
            UnusedLoweringWarning: If a registered lowering is not called, because its operator was
                decomposed before.
        """
        opset = chosen_opset(opset_version, minimum_onnxruntime)
        oldest = release_of(minimum_onnxruntime, StagingError)
        names = list(self._staged) if entrypoints is None else list(entrypoints)
        unknown = [n for n in names if n not in self._staged]
        if unknown:
            staged = ", ".join(self._staged) or "none"
            raise StagingError(f"no program is staged as {', '.join(unknown)} (staged: {staged})")
        if not names:
            raise NothingToConvertError("No programs to convert: add one first")
        program = OnnxProgram(
            {name: self._convert(name, self._staged[name], opset, oldest) for name in names},
            debug_info=_DEBUG_INFO[self.mode],
        )
        program.records = {name: self._staged[name].record() for name in names}
        program.pass_verifier = pass_verifier
        if minimum_onnxruntime is not None:
            # In the file, since another process may optimize it.
            for model in program.models.values():
                check_oldest(model, minimum_onnxruntime)
                model.metadata_props[MINIMUM_ONNXRUNTIME] = minimum_onnxruntime
        reports = [r for name in names if (r := self._staged[name].recognized) is not None]
        if reports:
            program.recognized = Recognition([block for r in reports for block in r.blocks])
        return program

    def to_coreai(self, *, entrypoints: Sequence[str] | None = None) -> OnnxProgram:
        """Convert the staged programs; coreai-torch's name for :meth:`to_onnx`."""
        return self.to_onnx(entrypoints)

    def _convert(self, name: str, staged: _Staged, opset: int, oldest: Release | None) -> ir.Model:
        begin_stage("lower")
        bodies = (call.body for call in staged.module_calls.values() if call.body is not None)
        warn_about_training([staged.program, *bodies])
        warn_about_lost_composites(staged.program)
        warn_about_unused_lowerings(staged.program, self._lowerings)
        # The walk reports a step for every other node.
        ends = ("placeholder", "output")
        total = sum(node.op not in ends for node in staged.program.graph.nodes)
        with progress_bar(f"lowering {name}", total=total) as bar:
            module_calls = ModuleCalls(staged.module_calls)
            composites = CompositeCalls()
            context = Context(
                opset=opset,
                oldest=oldest,
                composites=composites,
                user_lowerings=self._lowerings,
                module_calls=module_calls,
                step=bar.update,
            )
            lowered = ProgramLowering(staged.program, context, staged.io_names).run()
        # Only now are all calls known, those in the bodies of externalized modules included.
        functions = composite_functions(composites.calls, opset)
        functions += module_calls.functions(functions) + context.functions
        model = lowered.model(functions, name)
        model.producer_version = __version__
        self._check(model)
        return model

    def _check(self, model: ir.Model) -> None:
        """Raise for a model that no runtime would load, while the lowered op of a node is known."""
        # onnxruntime would report the node without the op or the line of the user's model.
        faults = violations(model)
        if not faults:
            return
        first = faults[0]
        advice = "this is a defect of its lowering: please report it with these lines"
        if first.torch_op in self._lowerings:
            advice = "the lowering that is registered for it makes this node: correct it there"
        op = first.torch_op or "the model"
        raise InvalidModelError(
            f"{op}: a node of its lowering breaks the rules of ONNX\n  {first}",
            first.where,
            advice,
        )

    def _check_free(self, entrypoint: str) -> None:
        if entrypoint in self._staged:
            raise StagingError(
                f"an entrypoint {entrypoint!r} is already staged; "
                "choose another entrypoint_name or call clear()"
            )

    def __repr__(self) -> str:
        """Return a text with the staged programs and registered lowerings."""
        lines = [f"    {n}: ExportedProgram" for n in self._staged] or ["    (none)"]
        lowerings = ", ".join(self._lowerings) or "(none)"
        return "\n".join(
            ["TorchConverter(", "  programs:", *lines, f"  custom_lowerings: {lowerings}", ")"]
        )


_DEBUG_INFO: dict[TorchConverter.Mode | None, DebugInfo] = {
    None: "compact",
    TorchConverter.Mode.DEBUG: "full",
    TorchConverter.Mode.RELEASE: "none",
}


def _as_lowering(function: Any) -> Lowering:
    """Return a function as a lowering; an onnxscript function takes no builder."""
    # By name, since isinstance would import onnxscript for every registration.
    if type(function).__module__.partition(".")[0] != "onnxscript":
        check_form(function)
        return function  # type: ignore[no-any-return]  # the user guarantees it
    from coreai_onnx.lower.walk.script import as_lowering

    return as_lowering(function)
