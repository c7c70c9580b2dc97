"""Export of models of transformers as folders that other runtimes run."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch

from coreai_onnx.converter import TorchConverter
from coreai_onnx.errors import ExportRetryWarning, ModelSourceError
from coreai_onnx.export.torch_export import TorchExport, with_named_dims
from coreai_onnx.huggingface.caches import Slot
from coreai_onnx.huggingface.decoders import TOTAL, TOTAL_DIM, Decoder
from coreai_onnx.huggingface.diffusion.components import Component
from coreai_onnx.huggingface.diffusion.loading import PipelineModel
from coreai_onnx.huggingface.encoder_decoders import (
    ATTENTIONS,
    FIRST,
    CrossCache,
    DecoderPart,
    EncoderPart,
)
from coreai_onnx.huggingface.folders import WRITTEN, ExportedFolder, copy_companions, write_json
from coreai_onnx.huggingface.genai import CONFIG, genai_config
from coreai_onnx.huggingface.heads.head import Head
from coreai_onnx.huggingface.heads.masks import mask_parts
from coreai_onnx.huggingface.heads.sentences import SentenceHead, modules_of
from coreai_onnx.huggingface.heads.tasks import EMBEDDINGS
from coreai_onnx.huggingface.media.genai import genai_files, processed_size, write_embedding
from coreai_onnx.huggingface.media.parts import (
    MEDIA_CLASSES,
    encoder_decoder_of,
    encodes_prompts,
    media_parts,
)
from coreai_onnx.huggingface.paged.decoders import CACHES, CacheForm, checked_decoder, decoder_of
from coreai_onnx.huggingface.paged.encoder_decoders import paged_encoder
from coreai_onnx.huggingface.quantizing import (
    check_arguments,
    first_target,
    quantize_programs,
    refuse_runs,
    round_inputs,
)
from coreai_onnx.huggingface.sound.parts import sound_parts
from coreai_onnx.huggingface.sources import LoadedModel, load_source
from coreai_onnx.huggingface.surroundings.adapter_inputs import add_adapter_inputs
from coreai_onnx.huggingface.surroundings.include import surroundings, task_with
from coreai_onnx.huggingface.surroundings.merging import compute_inputs_in_first_call
from coreai_onnx.huggingface.verification import check_at_other_sizes, check_first_layers
from coreai_onnx.messages import begin_stage
from coreai_onnx.model.contract import PADDINGS
from coreai_onnx.model.files.mapped_tensors import scratch_in
from coreai_onnx.model.files.new_files import check_new, new_folder
from coreai_onnx.model.files.program_files import ENCODER_FILE, MERGED_FILE, MODEL_FILE
from coreai_onnx.model.interface import CAPACITY
from coreai_onnx.model.inventory import weights
from coreai_onnx.model.metadata import RELATIONS, STATES
from coreai_onnx.passes.stored_weights import store_weights_as
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import ops_library_path
from coreai_onnx.targets.contrib import default_padding
from coreai_onnx.targets.opsets import Target, chosen_opset

_ENCODER_DECODERS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The dtypes of the computation, and of stored weights."""
MAPPED_BYTES = 64 << 20
"""More weights for kernels are in a data file: sessions map it, and copy a model file."""


def export_model(
    source: str | PathLike[str] | torch.nn.Module,
    folder: str | PathLike[str],
    *,
    task: str | None = None,
    cache: Literal["growing", "static", "paged"] | None = None,
    cache_bits: int | None = None,
    padding: str | None = None,
    dtype: str | None = None,
    weights_dtype: str | None = None,
    target: Target = "onnxruntime",
    opset_version: int | None = None,
    minimum_onnxruntime: str | None = None,
    external_data: bool | None = None,
    include_kernels: bool = False,
    overwrite: bool = False,
    check: bool = True,
    seed: int = 0,
    quantization: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    lora: bool | Sequence[str] = False,
) -> ExportedFolder:
    """Export a model of transformers to a folder, with inputs named as by optimum.

    Args:
        source: A folder of transformers or diffusers, a GGUF file, a ``config.json``, or a model.
        folder: The folder to write. It appears complete or not at all.
        task: The task, ``"text-generation"``; None reads it from the configuration.
        cache: Of a decoder: ``"growing"``, ``"static"``, or ``"paged"``, for an engine.
        cache_bits: Of keys and values in the cache of a decoder: 8 or 4; None: as computed.
        padding: Of prompts: ``"left"``, or ``"none"``, the default with ``GroupQueryAttention``.
        dtype: Of the computation: ``"float32"`` (the default), ``"float16"`` or ``"bfloat16"``.
        weights_dtype: Of stored weights, one of the same; None: as the source.
        target: What will run the file, as for `OnnxProgram.optimize`.
        opset_version: As for `TorchConverter.to_onnx`; 18 for the target ``"portable"``.
        minimum_onnxruntime: As for `TorchConverter.to_onnx`.
        external_data: As for `OnnxProgram.save`; above 64 MiB for kernels and paged caches.
        include_kernels: Whether to add the kernel library, for onnxruntime-genai.
        overwrite: Whether to replace an earlier export in ``folder`` when the new one is complete.
        check: Whether to compare a decoder with torch at other sizes than those of the export.
        seed: Seed of random weights.
        quantization: The arguments of `OnnxProgram.quantize`, or None; data as for `calls_of_file`.
        include: What else the file computes, as ``["tokenizer"]``: ``docs/around_the_model.md``.
        lora: Whether linear layers take adapters, or the names of those that do.

    Returns:
        The folder; it prints as a table of its files.

    Raises:
        ModelSourceError: If the source is missing or unknown, or does not fit the other arguments.
        SaveError: If the folder has other files than an export to overwrite, or is not writable.
        CoreaiError: If a library is missing, or a step or the check fails.
    """
    check_arguments(quantization)
    stored = _weights_dtype(weights_dtype, dtype := _one_of(DTYPES, "dtype", dtype))
    form = CacheForm(CACHES[0] if cache is None else cache, cache_bits)
    padding = _one_of(PADDINGS, "padding", padding, default_padding(target, dtype))
    library = ops_library_path() if include_kernels else None
    check_new(path := Path(folder), replaces=(replaces := WRITTEN if overwrite else ()))
    task, opset = task_with(include, task), chosen_opset(opset_version, minimum_onnxruntime, target)
    with scratch_in(path.parent):
        loaded = load_source(source, task, dtype=DTYPES[dtype], weights_dtype=stored, seed=seed)
        how = (target, opset, minimum_onnxruntime, check, quantization, padding, include, lora)
        programs, files = _Conversion(loaded, *how).programs(form)
        with new_folder(path, replaces=replaces) as temporary:
            maps = target == "kernels" or form.kind == "paged"
            _save(programs, temporary, maps=maps, external_data=external_data)
            _write_further(temporary, loaded, files, library)
    return ExportedFolder(path, loaded.task.name, programs, _files_of(path))


def _files_of(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.rglob("*") if file.is_file()))


def _save(
    programs: Mapping[str, OnnxProgram], folder: Path, *, maps: bool, external_data: bool | None
) -> None:
    for name, program in programs.items():
        (folder / name).parent.mkdir(exist_ok=True)  # a pipeline has a folder for each file
        data = external_data
        # Sessions map a data file, and do not read which states of a large model stay in place.
        if data is None and maps:
            largest = max(weights(model)[1] for model in program.models.values())
            data = largest > MAPPED_BYTES
        program.save(folder / name, external_data=data)


def _write_further(
    folder: Path, loaded: LoadedModel, files: Mapping[str, Any], library: Path | None
) -> None:
    """Write configuration and tokenizer, JSON files, and the kernel library if there is one."""
    if isinstance(loaded.model, PipelineModel):
        loaded.model.save_companions(folder, loaded.folder)
    else:
        copy_companions(loaded.model, loaded.folder, folder)
    if library is not None:
        shutil.copyfile(library, folder / library.name)
        if CONFIG in files:
            options = files[CONFIG]["model"]["decoder"]["session_options"]
            # onnxruntime-genai passes these options to the session, which loads the kernels.
            options |= {"custom_ops_library": library.name, "coreai.huge_pages": "1"}
    for name, content in files.items():
        write_json(folder / name, content)
    if CONFIG in files:
        write_embedding(folder, files[CONFIG]["model"])


def _one_of(choices: Iterable[str], what: str, name: str | None, usual: str = "") -> str:
    """Return a name if it is one of the choices; by default the usual or the first of them."""
    names = list(choices)
    if name is None:
        return usual or names[0]
    if name not in names:
        raise ModelSourceError(f"{what} {name!r} must be one of {', '.join(names)}")
    return name


def _weights_dtype(name: str | None, computation: str) -> torch.dtype | None:
    """Return the dtype of stored weights; None keeps that of the source.

    Raises:
        ModelSourceError: If there is no such dtype, or the computation has 16 bits itself.
    """
    if name is None:
        return None
    chosen = DTYPES[_one_of(DTYPES, "weights_dtype", name)]
    if name != computation and computation != "float32":
        raise ModelSourceError(
            f"weights_dtype={name!r} with dtype={computation!r}: a computation in {computation} "
            f"has weights in {computation}; only one in float32 converts them"
        )
    return chosen


@dataclass(frozen=True)
class _Conversion:
    """How the parts of a model are converted."""

    loaded: LoadedModel
    target: Target
    opset: int
    minimum: str | None
    check: bool
    quantization: Mapping[str, Any] | None
    padding: str
    include: Sequence[str] = ()
    lora: bool | Sequence[str] = False

    def programs(self, cache: CacheForm) -> tuple[dict[str, OnnxProgram], dict[str, Any]]:
        """Convert and quantize a model; return programs and contents of JSON files by file name."""
        if self.loaded.is_deferred:
            refuse_runs(self.quantization)
        around = surroundings(self.include, self.loaded, self.opset, check=self.check)
        how = replace(self, quantization=round_inputs(self.loaded.model, self.quantization))
        programs, files = _programs(self.loaded, how, cache)
        # All files together: a weight that encoder and decoder share is quantized once.
        quantize_programs(programs, how.quantization, self.target, self.loaded.folder)
        around.add_to(programs)
        return programs, files

    def with_model(self, model: Any) -> _Conversion:
        """Return the same for another model, which is in memory."""
        return replace(self, loaded=replace(self.loaded, model=model, is_deferred=False))

    def check_layers(self, cache: CacheForm, model: Any) -> None:
        """Convert some layers of a model, and compare them with torch."""
        self.with_model(model)(checked_decoder(model, cache))

    def __call__(self, part: Any) -> OnnxProgram:
        """Export, convert and optimize one part: a module that describes its interface."""
        export = TorchExport(
            part.example(self.loaded.model.dtype),
            None,
            with_named_dims(part.dynamic_shapes()),
            # Guards on sizes become conditions of the program, which ``check_at_other_sizes``
            # replaces.
            deferred=True,
            oblivious=True,
            # An entry costs more than the calls it saves: Llama with 2 layers took a third less
            # without, with 12 a sixth; six models that run once a sixth (torch 2.13, 2026-11).
            cached=False,
        )
        converter = TorchConverter().add_pytorch_module(
            part.eval(),
            export_fn=export,
            input_names=part.input_names,
            output_names=part.output_names,
        )
        program = converter.to_onnx(opset_version=self.opset, minimum_onnxruntime=self.minimum)
        if part.slots:
            _describe_cache(program.model, part.slots)
        if self.lora:
            add_adapter_inputs(program.model, None if self.lora is True else self.lora)
        if isinstance(part, Component):
            # Guards of the example's sizes, as for a decoder.
            program.model.metadata_props.pop(RELATIONS, None)
        if isinstance(part, Decoder) and (contract := part.contract(self.padding)):
            contract.write(program.model.metadata_props)
        program.optimize(target=first_target(self.target, self.quantization))
        if isinstance(part, Decoder):
            part.finish(program.model)
        stored = self.loaded.weights_dtype
        # A computation in 16 bits has its weights in 16 bits already.
        if self.loaded.model.dtype == torch.float32 and stored != torch.float32:
            # Stored in the dtype of the source, a Cast on loading restores the same numbers: half
            # the file.
            store_weights_as(program.model, str(stored).removeprefix("torch."))
        # Before the quantization, which changes the outputs by more than any tolerance.
        has_check = isinstance(part, Decoder | Component)
        if self.check and (part.any_size if isinstance(part, Head) else has_check):
            begin_stage("check")
            if isinstance(part, Decoder):
                check_at_other_sizes(part, program)
            else:
                part.check(program)
        return program


@torch.no_grad()
def _programs(
    loaded: LoadedModel, convert: _Conversion, cache: CacheForm
) -> tuple[dict[str, OnnxProgram], dict[str, Any]]:
    """Convert the parts of a model; return programs and contents of JSON files by file name."""
    encodes = loaded.task.auto_class in _ENCODER_DECODERS
    if encodes and cache == CacheForm("paged") and not convert.lora:
        served = paged_encoder(loaded.model, check=convert.check)
        return {ENCODER_FILE: convert(served), MERGED_FILE: convert(served.decoder)}, {}
    if (not cache.is_plain or convert.lora) and loaded.task.name != "text-generation":
        what = "inputs for adapters" if cache.is_plain else str(cache)
        raise ModelSourceError(f"a model for {loaded.task.name} has no {what}")
    if loaded.task.name == "text-generation":
        if convert.check and loaded.is_deferred:
            check_first_layers(loaded.model, partial(convert.check_layers, cache))
            convert = replace(convert, check=False)
        # Before the export, which takes longer.
        decoder = (checked_decoder if convert.check else decoder_of)(loaded.model, cache)
        # onnxruntime-genai has names for keys and values only, not for states and scales.
        has_genai = bool(decoder.slots) and all(x.kind in ("key", "value") for x in decoder.slots)
        has_genai &= cache.kind != "paged"
        files = {CONFIG: genai_config(decoder, MODEL_FILE)} if has_genai else {}
        return {MODEL_FILE: convert(decoder)}, files
    if isinstance(loaded.model, PipelineModel):
        with warnings.catch_warnings():
            # Tables of positions limit height and width of some transformers.
            warnings.simplefilter("ignore", ExportRetryWarning)
            parts = loaded.model.components()
            return {f"{part.name}/{MODEL_FILE}": convert(part) for part in parts}, {}
    if by_file := _parts_by_file(loaded):
        files = genai_files(by_file, loaded.model, loaded.folder)
        return {file: convert(part) for file, part in by_file.items()}, files
    if sound := sound_parts(loaded):
        beside = {file: convert(part) for file, part in sound.beside.items()}
        merged = _merged(sound.decoder, convert)
        programs = {sound.encoder_file: convert(sound.encoder), **beside, MERGED_FILE: merged}
        return programs, dict(sound.files)
    if not encodes and loaded.task.auto_class not in MEDIA_CLASSES:
        return {MODEL_FILE: head_of(loaded).convert_by(convert)}, {}
    model, media, files = encoder_decoder_of(loaded.model)
    encoder = EncoderPart(model)
    part = DecoderPart(model, encoder, with_attentions=ATTENTIONS in convert.include)
    beside = {file: convert(one) for file, one in media.items()}
    return {**beside, ENCODER_FILE: convert(encoder), MERGED_FILE: _merged(part, convert)}, files


def _merged(part: DecoderPart, convert: _Conversion) -> OnnxProgram:
    """Convert a decoder, which computes the cache of the encoder's result in its first call."""
    merged = convert(part)
    outputs = {slot.past: slot.present for slot in part.cross}
    compute_inputs_in_first_call(merged.model, convert(CrossCache(part)).model, FIRST, outputs)
    return merged


def _parts_by_file(loaded: LoadedModel) -> Mapping[str, Any]:
    """Return the parts of a model that is split by file; nothing for other models."""
    if loaded.task.name == "mask-generation":
        return mask_parts(loaded.model)
    if loaded.task.auto_class in MEDIA_CLASSES and not encodes_prompts(loaded.model):
        return media_parts(loaded.model)
    return {}


def head_of(loaded: LoadedModel) -> Head:
    """Return a model that runs once, with its head.

    Raises:
        ModelSourceError: If it makes sound in several steps.
    """
    if loaded.task.name == "text-to-audio" and loaded.model.can_generate():
        raise ModelSourceError(
            f"{type(loaded.model).__name__} is not exported: several models generate the sound in "
            "steps; of such models, SpeechT5 and MusicGen are, and those that run once, as VITS"
        )
    if loaded.task.name in EMBEDDINGS:
        modules = modules_of(loaded.folder, loaded.task)
        return SentenceHead(loaded.model, loaded.task, modules)
    return Head(loaded.model, loaded.task, processed_size(loaded.folder))


def _describe_cache(model: ir.Model, slots: Sequence[Slot]) -> None:
    """Mark the cache as states, and write the length of the mask as that of cache and tokens."""
    states = [{"input": slot.past, "output": slot.present} for slot in slots]
    model.metadata_props[STATES] = json.dumps(states)
    # Torch's guards of branches that it took for the sizes of the example; see verification.py.
    model.metadata_props.pop(RELATIONS, None)
    static = any(slot.is_static for slot in slots)
    if static:
        # With a fixed capacity, the only condition is that the tokens fit.
        fits = {"holds": f"{CAPACITY} >= {TOTAL_DIM}", "source": "the static cache"}
        model.metadata_props[RELATIONS] = json.dumps([fits])
    for value in model.graph.inputs:
        if value.name == "attention_mask":
            assert value.shape is not None
            value.shape = ir.Shape([value.shape[0], TOTAL_DIM if static else TOTAL])
