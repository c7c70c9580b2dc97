"""A diff of two models as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from coreai_onnx.debugging.diff.model_diff import SECTIONS, ModelDiff
from coreai_onnx.messages import printable
from coreai_onnx.model.pages.page_frame import framed


def page(diff: ModelDiff, before: str, after: str) -> str:
    """Return the page.

    Args:
        diff: The differences.
        before: Title of the first model.
        after: Title of the second model.
    """
    counts = ", ".join(
        f'{len(diff.section(name))} in <a href="#{name}">{name}</a>'
        for name in SECTIONS
        if diff.section(name)
    )
    title = f"{before} → {after}"
    summary = "The models are the same." if diff.same else f"Changes: {counts}."
    parts = [
        f"<header><h1>{escape(printable(title))}</h1>",
        f'<ul class="facts"><li>{summary}</li></ul></header><main>',
    ]
    for name in SECTIONS:
        changes = diff.section(name)
        if not changes:
            continue
        parts.append(f'<h2 id="{name}">{name} ({len(changes)})</h2><table>')
        parts.append("<tr><th></th><th>name</th><th>before</th><th>after</th></tr>")
        for change in changes:
            cells = (change.kind, change.name, change.before, change.after)
            row = "".join(f"<td>{escape(printable(cell))}</td>" for cell in cells)
            parts.append(f'<tr class="{change.kind} mono">{row}</tr>')
        parts.append("</table>")
    return framed(title, "\n".join([*parts, "</main>"]), styles=("diff.css",))
