"""Run exported folders of many tasks in transformers.js, and compare the results with torch.

``COREAI_TRANSFORMERS_JS`` names a folder with ``node_modules/@huggingface/transformers``;
``docs/language_models.md`` has the last result. Arguments are names of models to run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import transformers
from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

from coreai_onnx.errors import CoreaiError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.heads.inputs import inputs_of
from coreai_onnx.huggingface.heads.tasks import task_of
from tests.huggingface.heads import test_masks
from tests.huggingface.sound.models import music, speech
from tests.models.test_heads import CASES as HEADS
from tests.models.transformers_pipelines import PIPELINES, Pipeline, picture

NODE = "COREAI_TRANSFORMERS_JS"
SCRIPT = """
import * as t from '@huggingface/transformers';
import fs from 'fs';
const file = process.argv.at(-1);
const { cls, folder, name, inputs, call, options } = JSON.parse(fs.readFileSync(file));
t.env.allowRemoteModels = false;
t.env.localModelPath = folder;
if (!t[cls]) { console.log(JSON.stringify(null)); process.exit(); }
const how = { dtype: 'fp32', subfolder: '' };
const model = await t[cls].from_pretrained(name, how);
const x = {};
for (const [key, dims, values, isInteger] of inputs) {
  const data = isInteger ? BigInt64Array.from(values.map(BigInt)) : Float32Array.from(values);
  x[key] = new t.Tensor(isInteger ? 'int64' : 'float32', data, dims);
}
let y;
if (call === 'speech') {
  const sound = { ...how, model_file_name: 'decoder_postnet_and_vocoder' };
  const vocoder = await t.SpeechT5HifiGan.from_pretrained(name, sound);
  y = await model.generate_speech(x.input_ids, x.speaker_embeddings, { vocoder, ...options });
} else {
  y = call === 'forward' ? await model(x) : await model.generate({ ...x, ...options });
}
if (y instanceof t.Tensor) y = { result: y };
const results = Object.entries(y).filter(([, value]) => value instanceof t.Tensor);
console.log(JSON.stringify(Object.fromEntries(
  results.map(([key, value]) => [key, [value.dims, Array.from(value.data, Number)]])
)));
"""


@dataclass(frozen=True)
class Case:
    """A model to run in Node.

    Attributes:
        name: The name of the class.
        model: The model, or the pipeline that writes its folder.
        inputs: The inputs, given the model.
        call: ``"forward"``, ``"generate"`` or ``"speech"``.
        options: Options of the call.
        wanted: The results by name, given the model and the inputs.
        include: As for `export_model`.
    """

    name: str
    model: Callable[[], Any] | Pipeline
    inputs: Callable[[Any], Mapping[str, torch.Tensor]]
    call: str = "forward"
    options: Mapping[str, Any] = field(default_factory=dict)
    wanted: Callable[[Any, Mapping[str, torch.Tensor]], Mapping[str, Any]] = lambda model, inputs: (
        model(**inputs)
    )
    include: tuple[str, ...] = ()


def drawn(model: Any, task: str) -> dict[str, torch.Tensor]:
    """Return random inputs of a model."""
    torch.manual_seed(1)
    inputs = {}
    for one in inputs_of(model, task_of(model.config, task)):
        if one.value is None:
            inputs[one.name] = torch.randn(one.shape)
        elif one.name == "input_ids":
            inputs[one.name] = torch.randint(3, 30, one.shape)
        else:
            inputs[one.name] = torch.full(one.shape, one.value)
    return inputs


def worst(result: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return the largest difference of results, relative to the largest value of each."""
    names = [name for name in result if name in wanted]
    assert names, f"results {list(result)}, and {list(wanted)} in transformers"
    differences = []
    for name in names:
        dims, values = result[name]
        expected = np.asarray(wanted[name], np.float64)
        actual = np.asarray(values, np.float64).reshape(dims)
        if expected.ndim == 2 and actual.ndim == 2:
            # transformers.js returns the tokens that Whisper starts from, too.
            actual = actual[:, -expected.shape[1] :]
        assert actual.size == expected.size, f"{name}: {actual.shape}, and {expected.shape}"
        scale = max(np.abs(expected).max(), 1e-12)
        differences.append(np.abs(actual.ravel() - expected.ravel()).max() / scale)
    return float(max(differences))


def run(case: Case, folder: Path) -> float | None:
    """Return the largest difference; None if transformers.js does not have the class."""
    source = case.model
    if isinstance(source, Pipeline):
        model = source.write(folder / "source")
        export_model(folder / "source", folder / "model", task=source.task)
    else:
        model = source()
        export_model(model, folder / "model", include=case.include)
    inputs = case.inputs(model)
    with torch.no_grad():
        wanted = case.wanted(model, inputs)
    rows = [
        (name, list(x.shape), x.flatten().tolist(), not x.is_floating_point())
        for name, x in inputs.items()
    ]
    content = {
        "cls": case.name, "folder": f"{folder}/", "name": "model", "inputs": rows,
        "call": case.call, "options": dict(case.options),
    }  # fmt: skip
    file = folder / "call.json"
    file.write_text(json.dumps(content))
    command = ["node", "--input-type=module", "-e", SCRIPT, "--", str(file)]
    done = subprocess.run(
        command, cwd=os.environ[NODE], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        raise RuntimeError(lines[0] if lines else done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    return None if result is None else worst(result, wanted)


def _text(_: Any = None) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 9, 17, 33, 8, 2]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _speaking(_: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"input_ids": _text()["input_ids"], "speaker_embeddings": torch.randn(1, 12)}


_SPEECH = {"threshold": 3.0, "maxlenratio": 6.0}
_MUSIC = {"max_new_tokens": 12, "do_sample": False, "guidance_scale": 3.0}
_WORDS = {
    "max_new_tokens": 12, "return_token_timestamps": True, "language": "en", "task": "transcribe",
    "repetition_penalty": 1.5,
}  # fmt: skip
# Tasks that transformers has no pipeline for.
_FURTHER = (
    "PatchTSTForPrediction",
    "Swin2SRForImageSuperResolution",
    "VitPoseForPoseEstimation",
    "Wav2Vec2ForAudioFrameClassification",
)
_WHISPER = "WhisperForConditionalGeneration"
_TOKENS = {"max_new_tokens": 12}


def _spoken(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"waveform": model.generate_speech(**inputs, vocoder=model.vocoder, **_SPEECH)}


def _words(model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    # Timestamps differ: transformers.js normalizes the attention over the tokens that the decoder
    # starts from, too.
    return {"sequences": model.generate(**inputs, **_WORDS)["sequences"]}


def _sounds(_: Any = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"input_values": torch.randn(1, 8000)}


def _spectrogram(_: Any = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"input_features": torch.randn(1, 16, 100)}


def _points(_: Any) -> dict[str, torch.Tensor]:
    return test_masks.arguments(1, 2, 3)


def _generated(options: Mapping[str, Any]) -> Callable[..., Mapping[str, Any]]:
    return lambda model, inputs: {"result": model.generate(**inputs, **options)}


def _whisper() -> Any:
    """Return a Whisper that says no timestamps, by which transformers cuts the sound."""
    case = next(one for one in PIPELINES if one.architecture == _WHISPER)
    with tempfile.TemporaryDirectory() as folder:
        model = case.write(Path(folder))
    first = model.generation_config.no_timestamps_token_id
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[first:] = 0
    return model


def cases() -> list[Case]:
    """Return the models."""
    generators = {"MoonshineForConditionalGeneration": _sounds, "LlamaForCausalLM": _text}
    found = []
    for one in PIPELINES:
        if draw := generators.get(one.architecture):
            call = (draw, "generate", _TOKENS, _generated(_TOKENS))
            found.append(Case(one.architecture, one, *call))
        elif one.architecture not in (_WHISPER, "Speech2TextForConditionalGeneration"):
            found.append(Case(one.architecture, one, partial(drawn, task=one.task)))
    for name in _FURTHER:
        task, _ = HEADS[name]
        case = Pipeline(task, name, {}, picture, ())
        found.append(Case(name, case, partial(drawn, task=task)))
    masks = [
        Case(f"{kind}Model", partial(test_masks.segmenter, kind), _points)
        for kind in ("Sam", "Sam2")
    ]
    return [
        *found,
        *masks,
        Case(_WHISPER, _whisper, _spectrogram, "generate", _WORDS, _words, ("cross_attentions",)),
        Case("SpeechT5ForTextToSpeech", speech, _speaking, "speech", _SPEECH, _spoken),
        Case(
            "MusicgenForConditionalGeneration", music, _text, "generate", _MUSIC, _generated(_MUSIC)
        ),
    ]


def main() -> int:
    """Print a row for each model; return 1 if one differs."""
    transformers.logging.set_verbosity_error()
    print("| class | largest difference |\n|---|---:|")
    failures = 0
    # SpeechT5 drops values at random when it speaks, too.
    drop = mock.patch.object(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", lambda _, x, _p: x)
    for case in cases():
        if sys.argv[1:] and case.name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder, drop:
            try:
                difference = run(case, Path(folder))
            except (CoreaiError, RuntimeError, AssertionError) as error:
                failures += 1
                text = f"fails: {str(error).splitlines()[0]:.150}"
            else:
                failures += difference is not None and difference > 1e-4
                text = "no such class" if difference is None else f"{difference:.1e}"
        print(f"| {case.name} | {text} |", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
