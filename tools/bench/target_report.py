"""The table of the kernels by instruction set, and what runs beside them on tiles."""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench.kernel_report import (
    ONE_THREAD,
    OURS,
    PEERS,
    TARGET,
    Kept,
    fused_names,
    insert,
    is_narrow,
    load,
    markdown,
    named,
    processors,
    ratio,
    share,
    torch_names,
)

BEGIN, END = "<!-- targets: begin -->", "<!-- targets: end -->"
NOTE = """Milliseconds of our kernels on each instruction set (`COREAI_OPS_TARGET`), minima; in
brackets, how many times as long as on the last set, which the library chooses. *Limit* is what the
same run measured as possible in the unit that the case needs: products of tiles of bfloat16 or of
bytes, or multiply-adds, all from registers; or reading or copying. *gemm* is torch's float32
product."""
PEERS_NOTE = """Other implementations in the same run, times as long as ours: ratio of minima / of
medians. *torch* is its eager function, which calls oneDNN for bfloat16, and with few bits the
float32 product with the dequantized weight. *packed* is oneDNN with a weight that it packed before;
*int8, dynamic* has one scale for a column of the weight and one for all activations. OpenVINO
computes in the dtype of the case, with few bits in bfloat16. *wrong* is a result that is off by a
tenth of the largest output."""
ERRORS_NOTE = """Largest difference from the float64 reference on the same inputs; of few bits, from
the product of activations that are not rounded with the dequantized weight:"""


def write(names: Sequence[str]) -> None:
    """Write the tables of named cases that were measured by target into the performance log."""
    kept = load(1)
    cases = [kept[n] for n in names if n in kept and _targets(kept[n])]
    if not cases:
        return
    narrow = [c for c in cases if is_narrow(c["name"])]
    text = [*processors(cases), NOTE, _by_target(cases), PEERS_NOTE, _peers(narrow)]
    text += [ERRORS_NOTE, _errors(narrow)]
    insert(BEGIN, "\n\n".join(text), END)


def _targets(case: Kept) -> list[str]:
    return [name for name in case["seconds"] if name.startswith(TARGET)]


def _by_target(cases: list[Kept]) -> str:
    targets = max((_targets(case) for case in cases), key=len)
    header = ("case", *(t.removeprefix(TARGET) for t in targets), "limit")
    return markdown(header, [(c["name"], *(_cell(c, t) for t in targets), share(c)) for c in cases])


def _cell(case: Kept, target: str) -> str:
    if target not in case["seconds"]:
        return "–"
    least = case["seconds"][target]
    best = case["seconds"][_targets(case)[-1]]
    return f"{least * 1e3:.3g} ({least / best:.2f})"


def _peers(cases: list[Kept]) -> str:
    header = (
        "case",
        "ms",
        "torch",
        "oneDNN through torch, packed or int8",
        "onnxruntime",
        "OpenVINO",
    )
    rows = [
        (
            case["name"],
            f"{case['seconds'][OURS] * 1e3:.3g}",
            ratio(case, "torch"),
            named(case, torch_names(case)),
            named(case, [*fused_names(case), "onnxruntime body"]),
            ratio(case, "OpenVINO"),
        )
        for case in cases
    ]
    return markdown(header, rows)


def _errors(cases: list[Kept]) -> str:
    rows = []
    for case in cases:
        errors = case["errors"]
        others = [n for n in errors if not n.startswith(TARGET) and n not in (OURS, ONE_THREAD)]
        ours = {f"{errors[n]:.1e}" for n in (OURS, *_targets(case))}
        text = ", ".join(f"{PEERS.get(n, n)} {errors[n]:.1e}" for n in others)
        rows.append((case["name"], " – ".join(sorted(ours)), text))
    return markdown(("case", "ours, all targets", "others"), rows)
