"""Compare exported models of pictures and sound with transformers; print a table by model.

``make test-media``; ``docs/language_models.md`` has the last result.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers

from coreai_onnx.errors import CoreaiError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from tests.models.media import MEDIA_MODELS, PICTURE_READERS, MediaModel

LENGTH = 32


def equal_tokens(one: MediaModel, folder: Path) -> list[int]:
    """Return how many tokens are equal without and with kernels."""
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
    export_model(model, folder)
    wanted = model.generate(**inputs, generation_config=settings)[:, -LENGTH:]
    counts = []
    for kernels in (False, True):
        opened = LanguageModel.open(folder, kernels=kernels).as_transformers()
        actual = opened.generate(**inputs, generation_config=settings)[:, -LENGTH:]
        counts.append(int((actual == wanted).cumprod(1).sum(1).min()))
    return counts


def main() -> int:
    """Print a row for each model; return 1 if a token differs."""
    transformers.logging.set_verbosity_error()
    print("| model | equal tokens on bodies | on kernels |\n|---|---:|---:|")
    failures = 0
    for one in (*MEDIA_MODELS, *PICTURE_READERS):
        if sys.argv[1:] and one.name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                bodies, kernels = equal_tokens(one, Path(folder) / "folder")
            except CoreaiError as error:
                bodies = kernels = 0
                print(error, file=sys.stderr)
        failures += (bodies, kernels) != (LENGTH, LENGTH)
        print(f"| {one.name} | {bodies} of {LENGTH} | {kernels} of {LENGTH} |", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
