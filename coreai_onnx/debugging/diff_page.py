"""A diff of two models as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from coreai_onnx.debugging.model_diff import SECTIONS, ModelDiff

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h2 { margin-top: 2rem } table { border-collapse: collapse; width: 100%; table-layout: fixed }
th:nth-child(1) { width: 5.5rem } th:nth-child(2) { width: 44% }
th { text-align: left; border-bottom: 2px solid #888 }
td { border-bottom: 1px solid #ddd; padding: .25rem .75rem .25rem 0; vertical-align: top;
     font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere }
.added td:first-child { color: #176f2c } .removed td:first-child { color: #b3261e }
.changed td:first-child, .renamed td:first-child { color: #7a5200 }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e4 }
  a { color: #8ab4f8 } td { border-color: #333 } .added td:first-child { color: #6fcf86 }
  .removed td:first-child { color: #ff8a80 }
  .changed td:first-child, .renamed td:first-child { color: #e6b450 } }
"""


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
    title = f"{escape(before)} → {escape(after)}"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head>{head}</head><body>',
        f"<h1>{title}</h1>",
        f"<p>{'The models are the same.' if diff.same else f'Changes: {counts}.'}</p>",
    ]
    for name in SECTIONS:
        changes = diff.section(name)
        if not changes:
            continue
        parts.append(f'<h2 id="{name}">{name} ({len(changes)})</h2><table>')
        parts.append("<tr><th></th><th>name</th><th>before</th><th>after</th></tr>")
        for change in changes:
            cells = (change.kind, change.name, change.before, change.after)
            row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            parts.append(f'<tr class="{change.kind}">{row}</tr>')
        parts.append("</table>")
    parts.append("</body></html>\n")
    return "\n".join(parts)
