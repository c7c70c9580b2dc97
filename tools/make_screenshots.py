"""Make the pictures of docs/netron.md: small models of transformers in Netron.

    python tools/make_screenshots.py            # needs chromium, playwright and netron

The models are converted again, so that the pictures show the output of this version.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

import coreai_onnx  # noqa: E402
from tests.models.zoo import named  # noqa: E402
from tests.netron.viewer import Graph, free_port, graph_of, serving  # noqa: E402

FOLDER = REPO / "docs" / "netron"
# Fonts of servers often lack the angle brackets around dims; these look the same.
_BRACKETS = """document.querySelectorAll('text, tspan').forEach(e => e.childNodes.forEach(n => {
  if (n.nodeType === 3) n.data = n.data.replace('\\u3008', '\\u27e8').replace('\\u3009', '\\u27e9');
}))"""


def exported_by_torch(name: str, folder: Path) -> Path:
    """Export an architecture of the tests by torch.onnx.export; return the file."""
    architecture = named(name)
    path = folder / f"{name}_by_torch.onnx"
    torch.onnx.export(
        architecture.module(),
        (),
        path,
        kwargs=architecture.arguments(*architecture.sizes[0]),
        dynamic_shapes=dict(architecture.dynamic),
        dynamo=True,
        verbose=False,
    )
    return path


def converted(name: str, folder: Path) -> Path:
    """Convert an architecture of the tests with recognized composites; return the file."""
    architecture = named(name)
    program = coreai_onnx.convert(
        architecture.module(),
        (),
        architecture.arguments(*architecture.sizes[0]),
        dynamic_shapes=dict(architecture.dynamic),
        externalize_modules="auto",
    )
    path = folder / f"{name}.onnx"
    program.save(path, debug_info="full")
    return path


def whole(graph: Graph) -> None:
    """Show the graph as it opens."""
    del graph


def rotation(graph: Graph) -> None:
    """Scroll to the rotation of the first layer's queries, at a smaller scale."""
    _zoom_out(graph)
    graph.show("Neg")


def attention(graph: Graph) -> None:
    """Scroll to the first layer's attention, at a smaller scale."""
    _zoom_out(graph)
    graph.show("scaled_dot")


def _zoom_out(graph: Graph) -> None:
    for _ in range(3):
        graph.page.click("#zoom-out-button")
        graph.page.wait_for_timeout(200)


def experts(graph: Graph) -> None:
    """Scroll to the experts of the first layer."""
    graph.show("TopK")


def attention_body(graph: Graph) -> None:
    """Open the body of attention and the properties of the function."""
    graph.open_function("scaled_dot")
    graph.wait_for("Attention")
    graph.function_properties()


def norm_properties(graph: Graph) -> None:
    """Select a norm to show its attributes and its source."""
    graph.properties("rms_norm")


SCENES: tuple[tuple[str, str, str, tuple[int, int], Callable[[Graph], None]], ...] = (
    ("before", "llama by torch", "Softmax", (800, 1000), rotation),
    ("after", "llama", "skip_rms_norm", (800, 1000), attention),
    ("encoder", "bert", "skip_layer_norm", (1000, 1700), whole),
    ("decoder", "llama", "skip_rms_norm", (1200, 1700), whole),
    ("mixture", "qwen3_moe", "gather_mm", (1200, 1500), experts),
    ("function", "llama", "skip_rms_norm", (1200, 700), attention_body),
    ("properties", "llama", "skip_rms_norm", (1200, 800), norm_properties),
)
"""Picture, architecture (and exporter, if another), a word of its graph, window size, and the
preparation of the view."""


def main() -> None:
    """Make every picture."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for picture, architecture, word, size, prepare in SCENES:
            path = Path(folder) / f"{architecture}.onnx"
            if not path.exists():
                name, _, exporter = architecture.partition(" ")
                path = (exported_by_torch if exporter else converted)(name, Path(folder))
            with serving(path, free_port()) as address, graph_of(address, word, size) as graph:
                prepare(graph)
                graph.evaluate(_BRACKETS)
                graph.page.wait_for_timeout(500)
                file = FOLDER / f"{picture}.png"
                graph.page.screenshot(path=file)
                print(f"{file.relative_to(REPO)}: {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
