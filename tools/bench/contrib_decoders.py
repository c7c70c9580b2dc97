"""The decoders of the tests for the target ``contrib``: their operators, and their tokens.

    python -m tools.bench.contrib_decoders
    python -m tools.bench.contrib_decoders llama gpt_oss

Each is exported with random weights for ``onnxruntime``, for ``contrib`` with padding on the left,
and for ``contrib`` without padding. The greedy tokens of one prompt and of three of one length must
be equal. Prints the operators of onnxruntime of the last two, and why an attention stays.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.messages import render
from tests.models.generators import GENERATORS

PROMPTS = ([[5, 9, 17, 33, 8]], [[5, 9, 17, 33, 8], [4, 101, 7, 6, 12], [77, 6, 12, 9, 100]])
TOKENS = 48
FILES = (("onnxruntime", "left"), ("contrib", "left"), ("contrib", "none"))
_PASS = "contrib_decoder_attention"


def row(name: str, folder: Path) -> list[str]:
    """Export one decoder three times; return its row of the table."""
    torch.manual_seed(0)
    model = GENERATORS[name].module()
    tokens: list[Any] = []
    cells = [name]
    for target, padding in FILES:
        place = folder / f"{name}_{target}_{padding}"
        try:
            exported = export_model(model, place, target=target, padding=padding)
        except ConversionError as error:
            return [*cells, f"{target}: {error}"]
        opened = LanguageModel.open(place)
        tokens.append(
            [opened.generate(one, max_new_tokens=TOKENS, stop_ids=()).tolist() for one in PROMPTS]
        )
        if target == "contrib":
            cells.append(operators(exported.program.model))
    cells.append("equal" if tokens[0] == tokens[1] == tokens[2] else "differ")
    misses = exported.program.pass_report.near_misses
    cells.append("; ".join(sorted({x.miss.reason for x in misses if x.pass_name == _PASS})))
    return cells


def operators(model: Any) -> str:
    """Return the operators of onnxruntime and their numbers."""
    nodes = model.graph.all_nodes()
    counts = Counter(node.op_type for node in nodes if node.domain == "com.microsoft")
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "–"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(GENERATORS), metavar="NAME")
    titles = ("decoder", "padding on the left", "no padding", "tokens", "attention that stays")
    rows = []
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            cells = row(name, Path(folder))
        print(" | ".join(cells), file=sys.stderr, flush=True)
        rows.append([*cells, *[""] * (len(titles) - len(cells))])
    print(render(titles, rows))
    return int(any(cells[3] != "equal" for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
