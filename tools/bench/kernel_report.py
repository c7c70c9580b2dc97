"""Numbers of ``tools.bench.kernels``, kept between runs, and what the documentation shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from coreai_onnx.messages import render
from tools.bench.limits import REPO

KEPT = REPO / "build" / "kernel_bench"
PAGE = REPO / "docs" / "internals" / "performance_log.md"
PLOT = REPO / "docs" / "internals" / "roofline.svg"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
OURS = "coreai_onnx"
ONE_THREAD = "coreai_onnx, one thread"
TARGET = "target "
"""Before the name of an instruction set: our kernels on it."""
OF_TORCH = ("torch.", "oneDNN")
"""How the names of torch's other implementations begin."""
PEERS = {
    "onnxruntime body": "body",
    "torch": "torch",
    "inductor": "inductor",
    "OpenVINO": "OpenVINO",
}
NOTE = """One thread, process CPU time, float32 unless said. A number with × says how many times as
long that implementation takes: ratio of minima / of medians. *limit* is the share of what the same
run measured as possible: multiply-adds from registers, or reading or copying as many bytes. *gemm*
is the share of what torch's library reached there in a product of two 1024 × 1024 matrices."""
NARROW = ("float16", "bits")
Kept = dict[str, Any]


def keep(threads: int, case: Kept) -> None:
    """Remember the numbers of a case; a later run replaces them."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"threads{threads}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[case["name"]] = case
    path.write_text(json.dumps(kept, indent=1))


def load(threads: int) -> dict[str, Kept]:
    """What was kept, by case."""
    path = KEPT / f"threads{threads}.json"
    kept: dict[str, Kept] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def limit_seconds(case: Kept) -> float:
    """The time that the limit of the same run allows."""
    rate, work = _limit(case)
    return work / rate


def _limit(case: Kept) -> tuple[float, float]:
    rates = case["rates"]
    if case["bound"] in ("read", "copy"):
        return rates[case["bound"]], case["bytes"]
    # Without native bfloat16 products, the limit is that of float32.
    return rates.get(case["bound"], rates["fma"]), case["flops"]


def _target(case: Kept) -> str:
    """What was aimed at, each part marked as reached or not."""
    ours = case["seconds"][OURS]
    parts = []
    if case["share"] is not None:
        reached = limit_seconds(case) / ours
        parts.append((f"≥ {case['share']:.0%} of the limit", reached >= case["share"]))
    if case["milliseconds"] is not None:
        parts.append((f"≤ {case['milliseconds']} ms", ours * 1e3 <= case["milliseconds"]))
    for peer, ratio in case["ratios"].items():
        if peer in case["seconds"]:
            parts.append((f"≥ {ratio}× {peer}", case["seconds"][peer] / ours >= ratio))
    return "; ".join(f"{text} {'✓' if met else '✗'}" for text, met in parts) or "–"


def _row(case: Kept) -> tuple[str, ...]:
    return (
        case["name"],
        _milliseconds(case),
        share(case),
        named(case, fused_names(case)),
        *(_peer(case, name) for name in PEERS),
        _target(case),
    )


def _milliseconds(case: Kept) -> str:
    """Least and median time of a call."""
    return f"{case['seconds'][OURS] * 1e3:.3g} / {case['medians'][OURS] * 1e3:.3g}"


def ratio(case: Kept, name: str) -> str:
    """How many times as long this takes, by minima and by medians."""
    if name not in case["seconds"]:
        return "wrong" if name in case["errors"] else "–"
    least, median = (case[key][name] / case[key][OURS] for key in ("seconds", "medians"))
    return f"{least:.2f} / {median:.2f}×"


def named(case: Kept, names: Iterable[str]) -> str:
    """Ratios with the names of the implementations."""
    return ", ".join(f"{name} {ratio(case, name)}" for name in names) or "–"


def fused_names(case: Kept) -> list[str]:
    """onnxruntime's own ops."""
    ours = (OURS, ONE_THREAD, *PEERS)
    return [n for n in case["errors"] if n not in ours and not n.startswith((TARGET, *OF_TORCH))]


def torch_names(case: Kept) -> list[str]:
    """What torch offers besides its eager function."""
    return [n for n in case["errors"] if n.startswith(OF_TORCH)]


def _peer(case: Kept, name: str) -> str:
    """The ratio of a column; torch's has all of torch."""
    packed = torch_names(case) if name == "torch" else []
    return ", ".join([ratio(case, name), *(f"{n} {ratio(case, n)}" for n in packed)])


def share(case: Kept) -> str:
    """What share of the limit was reached, and of a library's product of matrices."""
    ours = case["seconds"][OURS]
    share = f"{limit_seconds(case) / ours:.0%} of {_limit_name(case)}"
    if "gemm" not in case["rates"]:
        return share
    return f"{share}, {case['flops'] / ours / case['rates']['gemm']:.0%} of gemm"


def _limit_name(case: Kept) -> str:
    rate = _limit(case)[0] / 1e9
    return (
        f"{rate:.0f} GFLOP/s"
        if case["bound"] in ("fma", "bf16", "int8")
        else f"{rate:.1f} GB/s {case['bound']}"
    )


HEADER = ("case", "ms, min / median", "limit", "onnxruntime fused", *PEERS.values(), "aim")


def is_narrow(name: str) -> bool:
    """Whether a case has numbers of 16 bits or fewer."""
    return any(word in name for word in NARROW)


def processors(cases: list[Kept]) -> list[str]:
    """Each processor that measured some of the cases."""
    return [f"CPU: {name}." for name in sorted({case["processor"] for case in cases})]


def lines(cases: list[Kept]) -> str:
    """A plain table of cases and of their errors."""
    errors = [(c["name"], *(f"{n} {e:.1e}" for n, e in c["errors"].items())) for c in cases]
    width = max(len(row) for row in errors)
    padded = [row + ("",) * (width - len(row)) for row in errors]
    table = render(HEADER, [_row(c) for c in cases])
    return table + "\n" + render(("error", *[""] * (width - 1)), padded)


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(out)


def _error_table(cases: list[Kept]) -> str:
    rows = []
    for case in cases:
        errors = {n: e for n, e in case["errors"].items() if not n.startswith(TARGET)}
        ours = errors.pop(OURS)
        peers = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        rows.append((case["name"], f"{ours:.1e}", peers))
    return markdown(("case", "coreai_onnx", "others"), rows)


def _scaling_table(cases: list[Kept]) -> str:
    rows = [
        (
            case["name"],
            _milliseconds(case),
            ratio(case, ONE_THREAD),
            share(case),
            named(case, fused_names(case)),
            ratio(case, "onnxruntime body"),
            _peer(case, "torch"),
        )
        for case in cases
    ]
    header = (
        "case",
        "ms, min / median",
        "one thread",
        "limit",
        "onnxruntime fused",
        "body",
        "torch",
    )
    return markdown(header, rows)


def write(names: Sequence[str]) -> None:
    """Write the tables of named cases into the performance log, and the roofline beside it.

    ``target_report`` writes those of cases with narrow numbers.
    """
    wide = [name for name in names if not is_narrow(name)]
    cases, two = ([kept[n] for n in wide if n in kept] for kept in (load(1), load(2)))
    roofline(cases)
    parts = [
        NOTE,
        *processors(cases),
        markdown(HEADER, [_row(c) for c in cases]),
        f"![roofline]({PLOT.name})",
        *(["Two threads, wall time:", _scaling_table(two)] if two else []),
        "Largest difference from the float64 reference on the same inputs:",
        _error_table(cases),
    ]
    insert(BEGIN, "\n\n".join(parts), END)


def insert(begin: str, text: str, end: str) -> None:
    """Replace what the performance log has between two marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(begin)
    after = rest.split(end)[1]
    PAGE.write_text(before + begin + "\n\n" + text + "\n\n" + end + after, "utf-8")


def roofline(cases: list[Kept]) -> None:
    """Plot speed against operations per byte, under the limits of the run."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "coreai_onnx"  # the same numbers, the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5))
    peak = max(c["rates"]["fma"] for c in cases) / 1e9
    bandwidth = max(_limit(c)[0] for c in cases if c["bound"] in ("read", "copy")) / 1e9
    intensities = [0.05 * 1.2**i for i in range(60)]
    axes.plot(
        intensities, [min(peak, bandwidth * x) for x in intensities], color="black", linewidth=1.5
    )
    for case in cases:
        x = case["flops"] / case["bytes"]
        y = case["flops"] / case["seconds"][OURS] / 1e9
        axes.plot(x, y, "o", markersize=6, color="C0")
        axes.annotate(case["name"], (x, y), fontsize=6, xytext=(5, -2), textcoords="offset points")
        peers = [s for n, s in case["seconds"].items() if n != OURS]
        if peers:
            axes.plot(x, case["flops"] / min(peers) / 1e9, "x", markersize=5, color="C1")
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GFLOP/s")
    axes.set_title(
        f"One thread: {peak:.0f} GFLOP/s, {bandwidth:.0f} GB/s; dots: these kernels, "
        "crosses: the best of the others",
        fontsize=9,
    )
    axes.grid(visible=True, which="both", alpha=0.2)
    figure.savefig(PLOT, metadata={"Date": None}, bbox_inches="tight")
