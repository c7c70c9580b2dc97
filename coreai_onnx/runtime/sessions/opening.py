"""Opening of models in onnxruntime: from files, bytes, or models in memory."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import LoadError, SessionError, failures_as
from coreai_onnx.model.checks.fixed_attributes import fixed_attributes_fault
from coreai_onnx.model.checks.graph_checks import size_fault
from coreai_onnx.model.delegated_parts import PROVIDER
from coreai_onnx.model.dependencies import NEWER_MODEL, SOURCE_LOCATION
from coreai_onnx.model.files.mapped_tensors import memory_bytes
from coreai_onnx.model.files.saving import save_models, to_proto
from coreai_onnx.model.inventory import (
    all_nodes,
    initializers,
    op_histogram,
    standard_op_types,
    weights,
)
from coreai_onnx.model.metadata import MINIMUM_ONNXRUNTIME
from coreai_onnx.runtime.libraries.library import (
    HasLibrary,
    advice_for_unknown_op,
    check_kernels,
    library_paths,
    register_libraries,
)
from coreai_onnx.runtime.libraries.parts import (
    IDENTITIES,
    Parts,
    add_entries,
    opened_with,
    provider_settings,
    usable_parts,
    with_compiled_parts,
)
from coreai_onnx.runtime.libraries.platforms import mapped_blocks
from coreai_onnx.runtime.libraries.providers import add_providers, record_claims, warn_of_unused
from coreai_onnx.runtime.profile.node_times import Profile
from coreai_onnx.runtime.profile.profiling import Profiling
from coreai_onnx.runtime.sessions.prepared import DATA_FOLDER, PREPARED, OpenedModel, PreparedFile
from coreai_onnx.runtime.sessions.settings import SessionSettings, session_options
from coreai_onnx.runtime.sessions.sources import ModelSource, initial_values
from coreai_onnx.runtime.states.in_place import undo_recipe
from coreai_onnx.runtime.states.undo import Recipe, UndoLog
from coreai_onnx.runtime.tensors.signature import Signature
from coreai_onnx.targets.defects import disabled_optimizers
from coreai_onnx.targets.determinism import outside_ops
from coreai_onnx.targets.providers import CPU, chosen_providers, on_cpu
from coreai_onnx.targets.releases import release_of, text_of

_QUANTIZED = re.compile("Quantize|QLinear|Integer|NBits")
READ_BYTES = 1 << 28
"""Files of more than 256 MiB are not inspected; optimizers that may crash are disabled for them."""
TEMPORARY_FILE_BYTES = 1 << 29
"""A model in memory with more than 512 MiB of weights is passed in a temporary file, which
onnxruntime maps, instead of as bytes, of which there would briefly be three copies."""
MOST_PREPARED_BYTES = 1 << 26
"""Models of more than 64 MiB, which hold weights, are not kept as optimized graphs."""
_FOLDING = "ConstantFolding"
"""It copies a weight that a product reads transposed, for each process: 640 MiB for the tied
embeddings of Gemma 3 270M. Without it, the product reads the weight as it is."""
MEMORY_SHARE = 0.8
"""The share of the memory that weights may take in the layout of matrix products; larger ones are
read from the mapped file in each run."""


class OpenModel(OpenedModel):
    """A model of any source, which is inspected before it is opened."""

    def __init__(
        self,
        source: ModelSource,
        settings: SessionSettings,
        *,
        share: bool,
        prepared: PreparedFile | None = None,
    ) -> None:
        """Open the model; see `coreai_onnx.session`.

        Args:
            source: The model.
            settings: How to open it.
            share: Whether other models have the same weights.
            prepared: Where the optimized graph is kept, if it is.
        """
        source.check_file()
        self._settings, self._libraries = settings, library_paths(settings.custom_ops)
        # Parts are replaced in the graph and kernels are checked against it, whatever its size.
        chosen = chosen_providers(settings.providers)
        whole = chosen or any(isinstance(o, HasLibrary) for o in settings.custom_ops)
        whole = whole or settings.deterministic  # its operators are checked
        whole = whole or not settings.adapters
        graph = source.graph(most=math.inf if whole else READ_BYTES)
        without = None if settings.adapters or graph is None else source.without_adapters(graph)
        self.hides_adapters = without is not None
        source = without or source
        self._providers = provider_settings(graph, chosen)
        chooses = settings.prepack is None
        large = chooses and graph is not None and _exceeds_memory(graph)
        # Kernels that find their layout in a file hold no copy of it, either.
        packs = settings.packed_weights is not None
        self._prepacks = not large if chooses else bool(settings.prepack)
        self._reads_weights = large or not (self._prepacks or packs)
        if chooses and share:
            self._prepacks = _is_quantized(graph) and not large
        if graph is not None:
            _check(graph, settings)
        self._disabled = disabled_optimizers(graph) + [IDENTITIES] * bool(chosen)
        if graph is not None and not self._prepacks and not self._disabled and _turns(graph):
            self._disabled = [_FOLDING]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._profiling: Profiling | None = None
        backends = bool(self._libraries or chosen)
        parts = usable_parts(graph, list(chosen)) if graph and backends else {}
        needed = settings.deterministic or settings.float32_tiles or settings.group is not None
        kernels = True if needed else settings.kernels
        self._kernels = _kernels(chosen, parts, wanted=kernels)

        def opened(usable: Parts) -> ort.InferenceSession:
            compiled = graph and with_compiled_parts(graph, usable, self._providers)
            op_types = source.op_types() if graph is None else standard_op_types(graph)
            options = self._options(op_types, usable)
            return self._open_with(ModelSource(compiled) if compiled else source, options)

        self.ort = opened_with(parts, opened)
        if graph is None:
            _check_release(self.ort.get_modelmeta().custom_metadata_map)
        # Compiled parts that are stale run on their bodies, of which `opened_with` warned.
        if not any(domain.startswith(PROVIDER) for domain in parts):
            warn_of_unused(self.ort, self._providers, graph)
        self.signature = _signature(self.ort, source)
        recipe = None
        if graph is not None and self.signature.states:
            recipe, self.initial = undo_recipe(graph), initial_values(graph)
            self.undo = UndoLog(recipe)
        if prepared is not None and graph is not None and self.kernels:
            with suppress(OSError, SessionError, ValueError):
                self._prepare(prepared, source, graph, recipe)

    def finish_profile(self, skip: int) -> Profile:
        """Return the profile of the runs, once; see `Session.profile`."""
        if self._profiling is None:
            return super().finish_profile(skip)
        profiling, self._profiling = self._profiling, None
        return profiling.finish(self.ort, skip)

    def _prepare(
        self, file: PreparedFile, source: ModelSource, graph: ir.Model, recipe: Recipe | None
    ) -> None:
        """Write the optimized graph for the next session.

        Raises:
            OSError: If the folder cannot be written to.
            SessionError: If onnxruntime cannot save the graph.
            ValueError: If it is larger than 2 GiB.
        """
        # Weights in the graph would be copied by each process.
        if file.source.stat().st_size > MOST_PREPARED_BYTES:
            return
        op_types = standard_op_types(graph)
        record = file.record(
            sorted(_locations(graph)),
            op_types=op_types,
            prepacks=self._prepacks,
            reads_weights=self._reads_weights,
            hides_adapters=self.hides_adapters,
            undo=recipe and recipe.to_json(),
        )
        if record is None:
            return
        with tempfile.TemporaryDirectory(dir=file.path.parent, prefix=".coreai_onnx_") as folder:
            path = Path(folder) / "model.onnx"
            # Nothing is packed: a graph needs no weight.
            packs = {"prepacks": False, "reads_weights": True}
            options, _ = session_options(self._settings, op_types, kernels=True, **packs)
            options.optimized_model_filepath = str(path)
            self._open(source, options)
            if path.stat().st_size > MOST_PREPARED_BYTES:  # with constants that were folded
                return
            proto = onnx.load(path, load_external_data=False)
            proto.metadata_props.add(key=PREPARED, value=record)
            path.write_bytes(proto.SerializeToString())
            path.replace(file.path)

    def _open_with(self, source: ModelSource, options: ort.SessionOptions) -> ort.InferenceSession:
        if not self._settings.profile:
            return self._open(source, options)
        try:
            model = source.read()
        except LoadError as error:
            raise SessionError(f"cannot load {error}") from error
        profiling = Profiling(
            model,
            kernels=self.kernels,
            threads=self._settings.threads,
            custom_ops=bool(self._libraries or self._providers),
        )
        profiling.configure(options)
        opened = self._open(ModelSource(profiling.model), options)
        profiling.opened()
        self._profiling = profiling
        return opened

    def _options(self, op_types: list[str] | None, parts: Parts) -> ort.SessionOptions:
        """Return session options with the kernels, the libraries, and the parts these may run."""
        settings = self._settings
        options, self.kernels = session_options(
            settings,
            op_types,
            kernels=self._kernels,
            prepacks=self._prepacks,
            reads_weights=self._reads_weights,
        )
        add_entries(options, parts)
        register_libraries(options, self._libraries)
        # what a provider refused to load runs on the CPU
        used = {n: s for n, s in self._providers.items() if parts.get(PROVIDER + n) != []}
        add_providers(options, used or {CPU: {}} if self._providers else {})
        if self._providers:
            record_claims(options)
        # Last, because it may overrule what is set above.
        if settings.configure is not None:
            settings.configure(options)
        return options

    def _open(self, source: ModelSource, options: ort.SessionOptions) -> ort.InferenceSession:
        with failures_as(SessionError, f"cannot load {source.name}"):
            source.check_places()
        model = source.model
        if model is None:
            content = source.content if source.path is None else str(source.path)
            if isinstance(content, onnx.ModelProto):
                content = content.SerializeToString()
            assert content is not None
            return self._load(content, options, source)
        if source.folder is not None:
            options.add_session_config_entry(DATA_FOLDER, str(source.folder))
            return self._load(ir.to_proto(model).SerializeToString(), options, source)
        # protobuf cannot serialize more than 2 GiB, so that the limit may not be larger than that.
        if weights(model)[1] <= TEMPORARY_FILE_BYTES:
            return self._load(to_proto(model).SerializeToString(), options, source)
        # Kept with the model: onnxruntime maps the data file and reads it during runs.
        self._folder = tempfile.TemporaryDirectory(
            prefix="coreai_onnx_", ignore_cleanup_errors=True
        )
        path = Path(self._folder.name) / "model.onnx"
        save_models({path: model}, path.with_name("model.onnx.data"), external_data=True)
        return self._load(str(path), options, source)

    def _load(
        self, model: str | bytes, options: ort.SessionOptions, source: ModelSource
    ) -> ort.InferenceSession:
        try:
            with mapped_blocks():
                return ort.InferenceSession(
                    model,
                    options,
                    # None selects the providers that the options have.
                    providers=None if self._providers else [CPU],
                    disabled_optimizers=self._disabled,
                )
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            # Only after a failure, because `fault` reads the whole file a second time.
            if wrong := source.fault():
                raise SessionError(f"cannot load {wrong}") from error
            advice = _advice(str(error), kernels=self.kernels)
            what = f"onnxruntime {ort.__version__} cannot load {source.name}"
            raise SessionError(f"{what}\n  {_plain(error)}{advice}") from error


def _check(graph: ir.Model, settings: SessionSettings) -> None:
    """Check a model before onnxruntime reads it."""
    _check_release(graph.metadata_props)
    check_kernels(settings.custom_ops, graph)
    if wrong := size_fault(graph) or fixed_attributes_fault(graph):
        raise SessionError(f"cannot load the model: {wrong}")
    if settings.deterministic:
        _check_deterministic(graph)


def _check_release(metadata: Mapping[str, str]) -> None:
    """Check that this onnxruntime is not older than the oldest that the model is for."""
    minimum = metadata.get(MINIMUM_ONNXRUNTIME)
    oldest, installed = release_of(minimum, SessionError), release_of(ort.__version__)
    if oldest is not None and installed < oldest:
        raise SessionError(
            f"the model is for onnxruntime {minimum} or later, and {ort.__version__} is installed\n"
            "  update onnxruntime, or convert the model with minimum_onnxruntime="
            f'"{text_of(installed)}"'
        )


def _locations(model: ir.Model) -> set[str]:
    """Return the data files of a model, relative to its folder."""
    attributes = (a.value for node in all_nodes(model) for a in node.attributes.values())
    tensors = (*attributes, *(value.const_value for value in initializers(model)))
    return {str(x.location) for x in tensors if isinstance(x, ir.ExternalTensor)}


def _turns(model: ir.Model) -> bool:
    """Return whether products read a weight of float32 through a Transpose.

    onnxruntime makes one operator of the Transpose and a product of float32 only.
    """
    return any(
        node.op_type == "Transpose"
        and node.inputs[0] is not None
        and node.inputs[0].is_initializer()
        and node.inputs[0].dtype == ir.DataType.FLOAT
        and {reader.op_type for reader in node.outputs[0].consumers()} == {"MatMul"}
        for node in model.graph
    )


def _exceeds_memory(model: ir.Model) -> bool:
    return weights(model)[1] > MEMORY_SHARE * memory_bytes()


def _check_deterministic(model: ir.Model) -> None:
    """Check that each operator computes a row in one order.

    Raises:
        SessionError: One does not.
    """
    if outside := outside_ops(model):
        names = ", ".join(f"{count} {name}" for name, count in outside.items())
        raise SessionError(
            f"the model cannot be deterministic: the bits of {names} depend on other rows\n"
            '  products are rewritten by optimize(target="kernels", deterministic=True)'
        )


def _signature(session: ort.InferenceSession, source: ModelSource) -> Signature:
    try:
        return Signature.of(session)
    except ValueError as error:
        what = f"the metadata of coreai_onnx cannot be read\n  {error!r}"
        raise SessionError(source.fault() or what) from error


def _plain(error: Exception) -> str:
    """Return onnxruntime's message without the location in its own sources."""
    return SOURCE_LOCATION.pattern.sub("", str(error)).strip()


def _advice(message: str, *, kernels: bool) -> str:
    if advice := advice_for_unknown_op(message):
        return advice
    if NEWER_MODEL.is_in(message):
        return (
            "\n  update onnxruntime, or convert the model with minimum_onnxruntime="
            f'"{ort.__version__}"'
        )
    return "\n  kernels=False runs the function bodies instead" if kernels else ""


def _kernels(providers: Iterable[str], parts: Parts, *, wanted: bool | None) -> bool | None:
    """Return whether to register the kernels; None if they are built.

    They run on the CPU, where they would take the nodes of composites that a provider could run.
    What a provider has compiled it runs in any case.
    """
    compiled = any(domain.startswith(PROVIDER) for domain in parts)
    return False if wanted is None and not on_cpu(providers) and not compiled else wanted


def _is_quantized(model: ir.Model | None) -> bool:
    """Return whether a model may have quantized weights, whose products need prepacking."""
    return model is None or any(_QUANTIZED.search(name) for name in op_histogram(model))
