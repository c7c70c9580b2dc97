"""Compare exported models of pictures and sound with transformers; print a table by model.

``make test-media``; ``docs/language_models.md`` has the last result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import transformers

from coreai_onnx.errors import CoreaiError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.media.encoders import RENAMED
from tests.models.media import MEDIA_MODELS, PICTURE_READERS, MediaModel

LENGTH = 32
NODE = "COREAI_TRANSFORMERS_JS"
"""A folder with ``node_modules/@huggingface/transformers``; else its column is empty."""
IN_JAVASCRIPT = """
import * as transformers from '@huggingface/transformers';
import fs from 'fs';
const [folder, cls, length] = process.argv.slice(-3);
transformers.env.allowRemoteModels = false;
transformers.env.localModelPath = folder.slice(0, folder.lastIndexOf('/') + 1);
const name = folder.slice(folder.lastIndexOf('/') + 1);
const model = await transformers[cls].from_pretrained(name, { dtype: 'fp32', subfolder: '' });
const inputs = {};
for (const [input, type, dims, data] of JSON.parse(fs.readFileSync(0))) {
  const values = type === 'int64' ? BigInt64Array.from(data.map(BigInt)) : Float32Array.from(data);
  inputs[input] = new transformers.Tensor(type, values, dims);
}
const count = Number(length);
const tokens = await model.generate({
  ...inputs, max_new_tokens: count, min_new_tokens: count, do_sample: false,
  repetition_penalty: 1.3, decoder_start_token_id: 2,
});
console.log(JSON.stringify(tokens.tolist().map((row) => row.map(Number))));
"""


GENAI = "COREAI_GENAI_PYTHON"
"""The interpreter of an environment with onnxruntime-genai; else its column is empty."""
IN_GENAI = """
import json, sys
import numpy as np
import onnxruntime_genai as og
folder, length, wanted = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
given = dict(np.load(sys.argv[4]))
model = og.Model(folder)
inputs = og.NamedTensors()
for name in given:
    inputs[name] = given[name]
end = given['input_ids'].shape[1] + length
parameters = og.GeneratorParams(model)
parameters.set_search_options(
    max_length=end, min_length=end, do_sample=False, repetition_penalty=1.3
)
generator = og.Generator(model, parameters)
generator.set_inputs(inputs)
while not generator.is_done():
    generator.generate_next_token()
tokens = np.array(generator.get_sequence(0))[-length:]
print(int((tokens == np.array(wanted)).cumprod().sum()))
"""


def equal_in_genai(
    model: Any, inputs: dict[str, torch.Tensor], folder: Path, wanted: torch.Tensor
) -> str:
    """Return how many tokens are equal in onnxruntime-genai; nothing if it has no such model."""
    if GENAI not in os.environ or not (folder / "genai_config.json").is_file():
        return ""
    taken = ("input_ids", "pixel_values", "image_grid_thw")
    arrays = {name: inputs[name].numpy() for name in taken if name in inputs}
    arrays["input_ids"] = arrays["input_ids"].astype(np.int32)
    places = int((inputs["input_ids"] == model.config.image_token_id).sum())
    # Of one picture where all have the same size.
    count = len(arrays["pixel_values"]) if "image_grid_thw" not in arrays else 1
    arrays["num_image_tokens"] = np.array([places // count])
    np.savez(folder / "inputs.npz", allow_pickle=False, **arrays)
    command = [os.environ[GENAI], "-c", IN_GENAI, str(folder), str(LENGTH)]
    command += [json.dumps(wanted[0].tolist()), str(folder / "inputs.npz")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (result.stdout if result.returncode == 0 else result.stderr).splitlines()[-1]


def equal_in_javascript(
    model: Any, inputs: dict[str, torch.Tensor], folder: Path, wanted: torch.Tensor
) -> str:
    """Return how many tokens are equal in transformers.js, or why it does not run."""
    if NODE not in os.environ:
        return ""
    if model.config.model_type == "florence2":
        # It puts the features before the prompt, which has no placeholders.
        ids = inputs["input_ids"]
        ids = ids[ids != model.config.image_token_id][None]
        inputs = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # Its models rename the grids of pictures themselves.
    renamed = {} if "image_grid_thw" in inputs else RENAMED.get(model.config.model_type, {})
    rows = [
        (renamed.get(name, name), str(x.dtype)[6:], x.shape, x.flatten().tolist())  # "torch."
        for name, x in inputs.items()
    ]
    name = type(model).__name__
    cls = {"VisionEncoderDecoderModel": "AutoModelForVision2Seq"}.get(name, name)
    command = ["node", "--input-type=module", "-e", IN_JAVASCRIPT, "--", str(folder), cls]
    result = subprocess.run(
        [*command, str(LENGTH)], cwd=os.environ[NODE], input=json.dumps(rows), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "Error" in line]
        return lines[-1] if lines else "fails"
    actual = torch.tensor(json.loads(result.stdout.splitlines()[-1]))[:, -LENGTH:]
    return str(int((actual == wanted).cumprod(1).sum(1).min()))


def equal_tokens(one: MediaModel, folder: Path) -> list[str]:
    """Return how many tokens are equal without and with kernels, and in other runtimes."""
    model = one.make()
    inputs = one.inputs(model)
    if "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    # A penalty keeps random models from repeating one token, and a least number from ending: in
    # place of ``eos_token_id=None``, transformers takes that of the model.
    settings = transformers.GenerationConfig(
        max_new_tokens=LENGTH, do_sample=False, repetition_penalty=1.3, pad_token_id=0,
        min_new_tokens=LENGTH, decoder_start_token_id=2,
    )  # fmt: skip
    export_model(model, folder, task=one.task)
    wanted = model.generate(**inputs, generation_config=settings)[:, -LENGTH:]
    counts = []
    for kernels in (False, True):
        opened = LanguageModel.open(folder, kernels=kernels).as_transformers()
        actual = opened.generate(**inputs, generation_config=settings)[:, -LENGTH:]
        counts.append(str(int((actual == wanted).cumprod(1).sum(1).min())))
    others = (equal_in_javascript, equal_in_genai)
    return [*counts, *(run(model, inputs, folder, wanted) for run in others)]


def main() -> int:
    """Print a row for each model; return 1 if a token differs."""
    transformers.logging.set_verbosity_error()
    print("| model | equal tokens on bodies | on kernels | transformers.js | genai |")
    print("|---|---:|---:|---:|---:|")
    failures = 0
    for one in (*MEDIA_MODELS, *PICTURE_READERS):
        if sys.argv[1:] and one.name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts = equal_tokens(one, Path(folder) / "folder")
            except CoreaiError as error:
                counts = ["0", "0", "", ""]
                print(error, file=sys.stderr)
        failures += counts[:2] != [str(LENGTH)] * 2
        print("|", " | ".join([one.name, *counts]), "|", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
