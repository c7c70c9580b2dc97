"""Adapters of an exported decoder beside peft: logits and greedy tokens.

    python -m tools.foreign.adapters

It needs peft (tools/foreign_requirements.txt). Prints the table of docs/language_models.md.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.adapters import read_adapter
from coreai_onnx.huggingface.generation.decoding import logits_of
from tests.support.adapters import of_four_bits
from tests.support.huggingface_folders import LLAMA
from tests.support.tolerances import assert_close

MODELS = {"Llama": "Llama", "Qwen3": "Qwen3", "Gemma3": "Gemma3Text"}
EXPORTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "4 bits": {
        "quantization": {"bits": 4, "group_size": 16, "minimum_size": 0, "scale_dtype": "float32"}
    },
    "static cache": {"cache": "static"},
    "contrib": {"target": "contrib"},
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "two": {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "all": {
        "r": 8,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": "all-linear",
        "rank_pattern": {"down_proj": 3, "layers.0.self_attn.k_proj": 2},
        "alpha_pattern": {"gate_proj": 5},
    },
}
NEW = 12


def adapted(model: Any, name: str, folder: Path) -> Any:
    """Return peft's model with a random adapter, and save the adapter."""
    torch.manual_seed(len(name))
    config = peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **ADAPTERS[name])
    changed = peft.get_peft_model(copy.deepcopy(model), config).eval()
    changed.save_pretrained(folder / name)
    return changed


def rows(name: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """Compare the exports of a model with peft; yield a row of the table for each."""
    torch.manual_seed(0)
    sizes = {**LLAMA, **({} if name == "Llama" else {"head_dim": 16})}
    config = getattr(transformers, f"{MODELS[name]}Config")(**sizes)
    model = of_four_bits(getattr(transformers, f"{name}ForCausalLM")(config))
    models = {None: model, **{one: adapted(model, one, folder) for one in ADAPTERS}}
    ids = torch.randint(3, 260, (3, 9))
    tokens = {one: tokens_of(each, ids) for one, each in models.items()}
    assert len({str(x) for x in tokens.values()}) == len(models), "the adapters change nothing"
    for export, options in EXPORTS.items():
        path = folder / export
        export_model(model, path, check=False, lora=True, **options)
        for kernels in (False, True):
            if export == "contrib" and kernels:
                continue
            opened = LanguageModel.open(path, kernels=kernels)
            error = 0.0
            for one, each in models.items():
                values = {} if one is None else read_adapter(folder / one, opened.session)
                with torch.no_grad():
                    expected = each(ids).logits
                session = opened.session.with_inputs(**values)
                logits = logits_of(session, ids)
                assert_close(logits, expected)
                error = max(error, float(np.abs(logits - expected.numpy()).max()))
            for one in ADAPTERS:
                opened.load_adapter(folder / one)
            mixed = opened.generate(
                ids, adapter=["two", None, "all"], max_new_tokens=NEW, stop_ids=()
            )
            equal = [tokens[n][row] for row, n in enumerate(("two", None, "all"))]
            assert mixed.tolist() == equal, (name, export, kernels)
            yield name, export, "kernels" if kernels else "bodies", f"{error:.1e}", "equal"


def tokens_of(model: Any, ids: torch.Tensor) -> Any:
    """Return the greedy tokens of a model of torch."""
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(ids)
    return model.generate(input_ids=ids, attention_mask=mask, **settings).tolist()


def main() -> None:
    """Print the table."""
    print("| model | export | run by | largest difference of logits | greedy tokens |")
    print("|---|---|---|---|---|")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            for row in rows(name, Path(folder)):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
