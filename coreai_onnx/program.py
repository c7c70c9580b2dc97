"""The result of a conversion: one ONNX model per entrypoint, to optimize, save and run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from coreai_onnx.errors import StagingError
from coreai_onnx.messages import begin_stage, printable
from coreai_onnx.model.checks.violations import Verifier, check_of
from coreai_onnx.model.extraction import extracted
from coreai_onnx.model.files.bundles import save_bundle
from coreai_onnx.model.files.program_files import load_models, save_program
from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.inventory import composite_calls
from coreai_onnx.model.provenance.debug_info import DebugInfo
from coreai_onnx.quantization.quantizable import Quantizable
from coreai_onnx.targets.contrib import summary

if TYPE_CHECKING:
    from coreai_onnx.export.recognize.blocks import Recognition
    from coreai_onnx.export.record import ExportRecord
    from coreai_onnx.passes import Pass, PassReport, Target
    from coreai_onnx.quantization.weights.rewriting import BodiesOf
    from coreai_onnx.runtime.memory.plan import Inputs
    from coreai_onnx.runtime.memory.stages import Pipeline


class OnnxProgram(Quantizable):
    """A converted program.

    ```python
    program = coreai_onnx.convert(module, (x,))
    print(program)  # interface, composites, operators, sizes
    program.save("model.onnx")
    (y,) = program.run(x)
    ```

    Attributes:
        models: Entrypoint to ``onnx_ir.Model``.
        debug_info: How `save` and `to_proto` store debug information by default.
        pass_reports: Entrypoint to the report of the last `optimize`; empty before.
        recognized: Which blocks of the model were replaced by composites automatically, which were
            refused and why; prints as a table. None unless ``externalize_modules`` had ``"auto"``.
        records: Entrypoint to the exported program; empty for a program from a file.
        pass_verifier: Makes what verifies passes from a record and inputs; set by the converter.
    """

    def __init__(
        self, models: Mapping[str, ir.Model], *, debug_info: DebugInfo = "compact"
    ) -> None:
        """Hold one model per entrypoint.

        Args:
            models: Entrypoint name to model, at least one.
            debug_info: ``"full"``, ``"compact"`` or ``"none"``, see `save`.

        Raises:
            ValueError: If there is no model.
        """
        if not models:
            raise ValueError("a program needs at least one entrypoint")
        super().__init__(dict(models))
        self.debug_info = debug_info
        self.pass_reports: dict[str, PassReport] = {}
        self.recognized: Recognition | None = None
        self.records: dict[str, ExportRecord] = {}
        self.pass_verifier: Callable[[ExportRecord, Any], Verifier] | None = None

    @property
    def recognised(self) -> Recognition | None:
        """Deprecated name of `recognized`."""
        warnings.warn("use OnnxProgram.recognized", DeprecationWarning, stacklevel=2)
        return self.recognized

    @classmethod
    def load(cls, path: str | PathLike[str], *, data: bool = True) -> OnnxProgram:
        """Read a program that `save` or `save_bundle` wrote, or any ``.onnx`` file.

        Weights in a data file are read when they are used, and only from the folder of the model,
        whatever location the file names.

        Args:
            path: The path given to `save`, also for several entrypoints, or to `save_bundle`.
            data: Whether a data file must be complete; inspecting the graph does not need it.

        Raises:
            LoadError: If there is no such file, it is not an ONNX model or is newer than the
                installed onnx supports, its graph is broken, weights are missing, or a file of
                another entrypoint is missing.
        """
        return cls(load_models(Path(path), data=data))

    @property
    def entrypoints(self) -> tuple[str, ...]:
        """Names of the entrypoints, in the order they were staged."""
        return tuple(self.models)

    @property
    def model(self) -> ir.Model:
        """The model of the only entrypoint, or of ``main``."""
        return self.models[self._choose(None)]

    @property
    def pass_report(self) -> PassReport | None:
        """The pass report of the only entrypoint, or of ``main``; None before `optimize`."""
        return self.pass_reports.get(self._choose(None))

    def record(self, entrypoint: str | None = None) -> ExportRecord:
        """Return the exported program and the example inputs that an entrypoint was made from.

        ``coreai_onnx.blame`` compares the model with it. Its `save` writes a file that
        ``ExportRecord.load`` reads on another machine.

        Raises:
            StagingError: If there is no such entrypoint, or the program was read from a file.
        """
        if (name := self._choose(entrypoint)) not in self.records:
            raise StagingError(
                f"there is no record of {name}: a .onnx file does not hold the exported program\n"
                "  write it with program.save(path, record=...), and read it with ExportRecord.load"
            )
        return self.records[name]

    def to_proto(self, entrypoint: str | None = None) -> onnx.ModelProto:
        """Return an entrypoint as one protobuf message, with its weights.

        Raises:
            StagingError: If there is no such entrypoint.
            SaveError: If they exceed protobuf's 2 GiB.
        """
        return to_proto(self.models[self._choose(entrypoint)], self.debug_info)

    def optimize(
        self,
        passes: Sequence[Pass] | None = None,
        *,
        target: Target = "onnxruntime",
        minimum_onnxruntime: str | None = None,
        verify: object = None,
        deterministic: bool = False,
        float32_tiles: bool = False,
    ) -> OnnxProgram:
        """Run the graph passes on every entrypoint, in place; a second call changes nothing.

        Args:
            passes: Passes to run instead of the target's (``coreai_onnx.passes.ORDER`` and the
                lists beside it), in this order.
            target: What will run the program: ``"onnxruntime"`` (a stock session on a CPU),
                ``"kernels"`` (the native kernels), ``"contrib"`` (onnxruntime's contrib ops instead
                of composites), ``"portable"`` (opset 18, no functions), or ``"webgpu"`` or
                ``"cuda"`` (opset 18, what these execution providers have kernels for).
            minimum_onnxruntime: The oldest onnxruntime that must be able to run the file,
                ``"1.24"``: target ``"contrib"`` then creates no op that it lacks. None selects the
                value of the conversion, or else the newest.
            verify: Inputs, as for ``coreai_onnx.compare``: after each pass that changed the model,
                every part of it is compared with torch. True for the example inputs of the export.
                For a program from a file, a ``coreai_onnx.debugging.PassVerifier``.
            deterministic: Whether the file is for ``session(deterministic=True)``: its products are
                calls of our kernels, and its metadata says what it promises. Needs the target
                ``"kernels"``.
            float32_tiles: Whether products of float32 with constant matrices are calls, which
                ``session(float32_tiles=True)`` multiplies by tiles (AMX) and other sessions
                compute as before. Needs the target ``"kernels"``.

        Returns:
            The program itself. ``pass_report`` lists what the passes did.

        Raises:
            PassError: If a pass fails; its entrypoint is the result of the passes before it.
            WrongPassError: If a pass changed what the model computes: a pass error with the nodes,
                their lines, and a folder that reproduces it.
            ComparisonError: If there is no record of the conversion to verify with.
            TargetError: If there is no such target, or the program cannot be optimized for it.
        """
        from coreai_onnx.passes import optimize_for  # graph-surgeon is slow to import

        begin_stage("optimize")
        # Sessions that are open run the models as they were before the passes.
        self._close_sessions()
        for name, model in self.models.items():
            record = self.records.get(name)
            make = partial(self.pass_verifier, record) if self.pass_verifier and record else None
            check = check_of(verify, model, make)
            report = optimize_for(
                *(model, target, passes, minimum_onnxruntime, check, _write_body),
                deterministic=deterministic,
                float32_tiles=float32_tiles,
            )
            self.pass_reports[name] = report
        return self

    def save(
        self,
        path: str | PathLike[str],
        *,
        external_data: bool | None = None,
        entrypoint: str | None = None,
        debug_info: DebugInfo | None = None,
        record: str | PathLike[str] | None = None,
    ) -> tuple[Path, ...]:
        """Write the program; a failure leaves existing files unchanged.

        A single entrypoint is written to ``path``. Several entrypoints are written to one
        ``stem.<entrypoint>.onnx`` each, and `load` finds them by ``path``. The data file for
        weights is ``<name>.onnx.data``, shared by all entrypoints.

        A replaced file keeps its permissions; links are followed, and pipes are written to.

        Args:
            path: Target, usually ending in ``.onnx``; its folder must exist.
            external_data: Whether weights go to a data file; None uses one above 1.5 GiB.
            entrypoint: Write only this entrypoint, to ``path`` itself.
            debug_info: Where to store the origin of nodes (module path, class, source line):
                ``"full"`` on each node, where Netron shows it; ``"compact"`` in one table of the
                model's metadata, from which `load` restores it; ``"none"`` keeps node names only.
                None uses the program's own setting.
            record: Where to write the `record` of the entrypoint, usually ending in ``.pt2``; None
                writes none.

        Returns:
            The paths written, without the record.

        Raises:
            StagingError: If there is no such entrypoint, or no record of it.
            SaveError: If a file cannot be written.
        """
        begin_stage("save")
        # Before the model: without a record of the entrypoint, nothing is written.
        if record is not None:
            self.record(entrypoint).save(record)
        together = entrypoint is None and len(self.models) > 1
        name = "" if together else self._choose(entrypoint)
        return save_program(
            self.models if together else {name: self.models[name]},
            Path(path),
            external_data=external_data,
            debug_info=self.debug_info if debug_info is None else debug_info,
        )

    save_asset = save

    def save_bundle(
        self,
        folder: str | PathLike[str],
        *,
        overwrite: bool = False,
        debug_info: DebugInfo | None = None,
    ) -> tuple[Path, ...]:
        """Write all entrypoints to a folder, with a manifest and one data file for weights.

        Args:
            folder: The folder; it appears complete or not at all.
            overwrite: Whether to replace an earlier bundle; otherwise the folder is new or empty.
            debug_info: As for `save`.

        Returns:
            The paths written.

        Raises:
            SaveError: If the folder cannot be written or replaced, an entrypoint's name cannot be
                that of a file, or a state of one name differs between entrypoints.
        """
        begin_stage("save")
        level = self.debug_info if debug_info is None else debug_info
        return save_bundle(self.models, Path(folder), overwrite=overwrite, debug_info=level)

    def to_python(self, folder: str | PathLike[str]) -> Path:
        """Write the program as a Python package, to read, edit and build again.

        ``python -m <folder> build model.onnx`` builds the model; `coreai_onnx.from_python` reads
        it. The package needs onnxscript, onnx and numpy, not this package. See
        ``docs/python_source.md``.

        Args:
            folder: The package. Its name is a Python name. An earlier package is replaced.

        Raises:
            SaveError: If it cannot be written, or a model has what Python source cannot express.
        """
        from coreai_onnx.model.python.package import write_package  # onnxscript is slow to import

        begin_stage("save")
        write_package(self.models, Path(folder))
        return Path(folder)

    def to_text(self, entrypoint: str | None = None) -> str:
        """Return an entrypoint as text for reviews: its Python source and the names of its nodes.

        The text has no weights, and is the same for the same model. `coreai_onnx.from_text` reads
        it.

        Raises:
            StagingError: If there is no such entrypoint.
            SaveError: If the model has what Python source cannot express.
        """
        from coreai_onnx.model.python.single_file import to_text

        return to_text(self.models[self._choose(entrypoint)])

    def extract(self, module: str, entrypoint: str | None = None) -> OnnxProgram:
        """Return the nodes of a module, ``encoder.layer.0``, with the values around them as ends.

        Raises:
            StagingError: If there is no such entrypoint, or no node comes from such a module.
        """
        name = self._choose(entrypoint)
        part = OnnxProgram({name: extracted(self.models[name], module)}, debug_info=self.debug_info)
        part.records = {key: record for key, record in self.records.items() if key == name}
        return part

    def split(
        self,
        stages: int,
        inputs: Inputs = None,
        *,
        sizes: Mapping[str, int] | None = None,
        entrypoint: str | None = None,
        kernels: bool | None = None,
    ) -> Pipeline[OnnxProgram]:
        """Return an entrypoint as stages for machines with less memory; see ``docs/memory.md``.

        Stages are cut between modules. Each has the weights and states that its nodes read. The
        largest takes as little as possible, by the memory plan of one run.

        Args:
            stages: Their number, at least 2.
            inputs: The inputs of that run, and states by name, as for `coreai_onnx.memory_plan`.
            sizes: As for `coreai_onnx.memory_plan`.
            entrypoint: The entrypoint; None for the only one or ``main``.
            kernels: As for `coreai_onnx.memory_plan`.

        Raises:
            StagingError: If there is no such entrypoint, or not enough places between modules.
            SessionError: If the model cannot be run.
            InputError: If an input is wrong or missing, or there is no such dim.
        """
        # Few programs are split, and the plan takes a twentieth of the import of this file.
        from coreai_onnx.runtime.memory.plan import memory_plan
        from coreai_onnx.runtime.memory.stages import Pipeline, split

        name = self._choose(entrypoint)
        plan = memory_plan(self, inputs, sizes=sizes, entrypoint=name, kernels=kernels)
        arrays = inputs if isinstance(inputs, Mapping) else {}
        models, costs = split(self.models[name], stages, plan, arrays)
        parts = [OnnxProgram({name: one}, debug_info=self.debug_info) for one in models]
        return Pipeline(tuple(parts), costs, self.models[name])

    def composites(self, entrypoint: str | None = None) -> dict[str, int]:
        """Count the calls of composites and externalized modules, through every function body.

        Args:
            entrypoint: The entrypoint to count in; None adds up all of them.

        Returns:
            Name, such as ``ai.coreai::rms_norm``, to number of calls, most frequent first.
        """
        names = self.entrypoints if entrypoint is None else (self._choose(entrypoint),)
        totals: dict[str, int] = {}
        for name in names:
            for composite, count in composite_calls(self.models[name]).items():
                totals[composite] = totals.get(composite, 0) + count
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Return the interface, composites, functions, operators and sizes as text."""
        return summary(self.models)

    def __str__(self) -> str:
        """Return `summary`."""
        return self.summary()

    def __repr__(self) -> str:
        """Return the entrypoints."""
        return printable(f"OnnxProgram({', '.join(self.entrypoints)})")

    def _few_bit_bodies(self) -> BodiesOf:
        from coreai_onnx.bodies.quantized import FewBitBodies  # imports torch

        return FewBitBodies


def _write_body(name: str, dtype: str, opset: int) -> ir.Function | None:
    from coreai_onnx.bodies.pass_bodies import write_pass_body  # torch: 3.8 s that few files need

    return write_pass_body(name, dtype, opset)
