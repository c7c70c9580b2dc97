"""Quantizes the programs of an export together, and makes calibration data from texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.errors import QuantizationError
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.generation.configuration import Configuration
from coreai_onnx.huggingface.generation.decoding import Decoding
from coreai_onnx.huggingface.generation.prompts import read_features, read_prompt, read_tokenizer
from coreai_onnx.model.files.program_files import EMBEDDING_FILE, ENCODER_FILE, MERGED_FILE
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.options import rules_of
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.targets.opsets import DEFAULT_TARGET, Target

Arguments = Mapping[str, Any]
"""The arguments of `OnnxProgram.quantize`."""
Data = str | Iterable[Any]
"""A text, or the inputs of calls of a model of transformers."""
WINDOW = 512
"""Tokens of a text in one call, at most: the inputs of a layer are in memory as float32."""


def check_arguments(arguments: Arguments | None) -> None:
    """Check the arguments of a quantization without a program.

    Raises:
        QuantizationError: One is unknown or out of range.
    """
    if arguments is not None:
        # As the default of ``quantize``, which is not called here.
        rules_of(**{"bits": 4, **arguments})


def refuse_runs(arguments: Arguments | None) -> None:
    """Refuse a quantization that runs a model which exceeds the memory.

    Raises:
        QuantizationError: It has data or metrics.
    """
    for name in ("calibration", "evaluation", "metrics"):
        if (arguments or {}).get(name) is not None:
            raise QuantizationError(
                f"{name} runs the model, whose weights exceed the memory\n"
                '  choose method="rtn" or "hqq" without it'
            )


def round_inputs(model: torch.nn.Module, arguments: Arguments | None) -> Arguments | None:
    """Let the layers of a checkpoint of few bits round their inputs, if nothing else is asked for.

    Returns:
        The arguments of the quantization that remains to be done, or None.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    if not layers or arguments is None or set(arguments) != {"activation_bits"}:
        return arguments
    for layer in layers:
        layer.sizes = {**layer.sizes, **arguments}
    return None


def first_target(target: Target, arguments: Arguments | None) -> Target:
    """Return the target to optimize for before a quantization.

    Passes for a target may merge layers that the rules of a quantization name.
    """
    return target if arguments is None else DEFAULT_TARGET


def quantize_programs(
    programs: Mapping[str, OnnxProgram],
    arguments: Arguments | None,
    target: Target,
    folder: Path | None = None,
) -> None:
    """Quantize programs in place, and optimize them for a target.

    A pattern of a rule matches a weight of any program. A weight that programs share is quantized
    once.

    Args:
        programs: Programs of one entrypoint, by the names of their files.
        arguments: The arguments of the quantization; None does not quantize.
        target: What will run the files.
        folder: The folder with the tokenizer and the configuration of the model, for texts.

    Raises:
        QuantizationError: The programs cannot be quantized so; they are unchanged.
    """
    if arguments is None:
        return
    # One program of several entrypoints: rules may match in any of them, and weights are shared.
    whole = OnnxProgram({name: program.model for name, program in programs.items()})
    data = {
        name: _calls_by_file({file: Session(p) for file, p in programs.items()}, calls, folder)
        for name in ("calibration", "evaluation")
        # A mapping names the files, and has the calls of each of them.
        if (calls := arguments.get(name)) is not None and not isinstance(calls, Mapping)
    }
    whole.quantize(**{**arguments, **data})
    for name, program in programs.items():
        entrypoint = program.entrypoints[0]
        program.quantization_reports = {entrypoint: whole.quantization_reports[name]}
        # Only now: products must be plain until the rules have chosen.
        program.optimize(target=target)


def calls_of_file(path: str | PathLike[str], data: Data) -> Iterator[Any]:
    """Return calibration data for a file of a folder that `export_model` wrote.

    ```python
    program = coreai_onnx.OnnxProgram.load("my_llama_onnx/model.onnx")
    calls = calls_of_file("my_llama_onnx/model.onnx", Path("text.txt").read_text())
    program.quantize(4, method="gptq", calibration=calls)
    ```

    Args:
        path: The file: that of a decoder, an encoder, or a model that reads tokens once.
        data: A text, which is read in windows of 512 tokens or the context of the model, or the
            inputs of calls of the model in torch: mappings with ``input_ids``, or, for Whisper,
            ``input_features``, and perhaps ``attention_mask`` and ``decoder_input_ids``.

    Raises:
        QuantizationError: The data is a text and the folder has no tokenizer, or a call does not
            fit the model.
        SessionError: A file cannot be opened.
    """
    file = Path(path)
    parts = (ENCODER_FILE, MERGED_FILE)
    names = parts if file.name in parts else (file.name,)
    sessions = {name: Session(file.parent / name) for name in names}
    return iter(_calls_by_file(sessions, data, file.parent)[file.name])


def _calls_by_file(
    sessions: Mapping[str, Session], data: Data, folder: Path | None
) -> dict[str, Iterable[Any]]:
    """Return the inputs of the calls of each file."""
    calls = _windows(data, folder) if isinstance(data, str) else data
    if EMBEDDING_FILE in sessions:
        raise QuantizationError(
            "calibration data of a model of pictures or sound names the inputs of each file: give "
            f"a mapping of the names of files to calls, as {{{MERGED_FILE!r}: [...]}}"
        )
    if ENCODER_FILE not in sessions:
        if len(sessions) > 1:
            raise QuantizationError(
                "the data of a model of several files is a mapping from their names to calls; the "
                f"files are {', '.join(sessions)}"
            )
        ((name, session),) = sessions.items()
        return {name: (_completed(session, call) for call in calls)}
    both = list(calls)
    encoder, decoder = sessions[ENCODER_FILE], sessions[MERGED_FILE]
    return {
        ENCODER_FILE: (_encoder_call(encoder, call) for call in both),
        MERGED_FILE: (_decoder_call(encoder, decoder, call) for call in both),
    }


def _windows(text: str, folder: Path | None) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tokens of a text in windows that do not overlap."""
    tokenizer = None if folder is None else read_tokenizer(folder)
    if folder is None or tokenizer is None:
        raise QuantizationError(
            "the calibration data is a text, and the model has no tokenizer\n"
            "  give the folder of the model with its tokenizer, or calls with input_ids"
        )
    ids = read_prompt(text, tokenizer).ids
    size = min(Configuration.read(folder).context or WINDOW, WINDOW)
    for window in ids.split(size, dim=1):
        yield {"input_ids": window}


def _completed(session: Session, call: Any) -> Any:
    """Return the inputs of a call of a model of one file; those that are missing are added."""
    if not isinstance(call, Mapping) or "input_ids" not in call:
        return call  # by position, or of a model that reads no tokens
    if session.states:
        return {**_first_step(session, call["input_ids"], call.get("attention_mask")), **call}
    ids = torch.as_tensor(call["input_ids"])
    usual = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    names = {info.name for info in session.inputs}
    return {**{name: value for name, value in usual.items() if name in names}, **call}


def _encoder_call(encoder: Session, call: Any) -> dict[str, Any]:
    """Return the inputs of the encoder."""
    name = encoder.inputs[0].name
    if not isinstance(call, Mapping) or name not in call:
        text = isinstance(call, Mapping) and "input_ids" in call
        raise QuantizationError(
            "a speech model is calibrated with spectrograms, not with a text: give calls with "
            f"{name} and decoder_input_ids"
            if text
            else f"give calls of the model by name: {name}, and perhaps attention_mask and "
            "decoder_input_ids"
        )
    if name != "input_ids":
        return {name: read_features(call[name]).ids}
    mask = {key: call[key] for key in ("attention_mask",) if key in call}
    inputs: dict[str, Any] = _completed(encoder, {name: call[name], **mask})
    return inputs


def _decoder_call(encoder: Session, decoder: Session, call: Any) -> dict[str, Any]:
    """Return the inputs of the decoder, which reads all of its tokens in one step."""
    inputs = _encoder_call(encoder, call)
    # A text without another one that it belongs to is read by the decoder as well.
    ids = call.get("decoder_input_ids", call.get("input_ids"))
    if ids is None:
        raise QuantizationError("calls of a speech model need decoder_input_ids as well")
    fixed = {"encoder_hidden_states": encoder.run(**inputs)[0]}
    if "input_ids" in inputs:
        fixed["encoder_attention_mask"] = inputs.get(
            "attention_mask", torch.ones_like(torch.as_tensor(inputs["input_ids"]))
        )
    return _first_step(decoder, ids, call.get("decoder_attention_mask"), fixed)


def _first_step(
    session: Session, ids: Any, mask: Any, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the inputs of the first step of a decoder, whose cache is empty."""
    prompt = read_prompt(ids, None, mask=mask)
    decoding = Decoding(session)
    decoding.fix(fixed or {})
    decoding.extend(prompt.ids, prompt.mask)
    return decoding.feeds(0)
