"""Numbers of ``tests.bench.kernels``, kept between runs, and what the documentation shows."""

from __future__ import annotations

import json
from typing import Any

from coreai_onnx.table import render
from tests.bench.limits import REPO

KEPT = REPO / "build" / "kernel_bench"
PAGE = REPO / "docs" / "internals" / "performance_log.md"
PLOT = REPO / "docs" / "internals" / "roofline.svg"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
OURS = "coreai_onnx"
ONE_THREAD = "coreai_onnx, one thread"
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
        _share(case),
        _fused(case),
        *(_ratio(case, name) for name in PEERS),
        _target(case),
    )


def _milliseconds(case: Kept) -> str:
    """Least and median time of a call."""
    return f"{case['seconds'][OURS] * 1e3:.3g} / {case['medians'][OURS] * 1e3:.3g}"


def _ratio(case: Kept, name: str) -> str:
    """How many times as long this takes, by minima and by medians."""
    if name not in case["seconds"]:
        return "–"
    least, median = (case[key][name] / case[key][OURS] for key in ("seconds", "medians"))
    return f"{least:.2f} / {median:.2f}×"


def _fused(case: Kept) -> str:
    others = [n for n in case["seconds"] if n not in (OURS, ONE_THREAD, *PEERS)]
    return ", ".join(f"{name} {_ratio(case, name)}" for name in others) or "–"


def _share(case: Kept) -> str:
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
        if case["bound"] in ("fma", "bf16")
        else f"{rate:.1f} GB/s {case['bound']}"
    )


HEADER = ("case", "ms, min / median", "limit", "onnxruntime fused", *PEERS.values(), "aim")


def lines(cases: list[Kept]) -> str:
    """A plain table of cases and of their errors."""
    errors = [(c["name"], *(f"{n} {e:.1e}" for n, e in c["errors"].items())) for c in cases]
    width = max(len(row) for row in errors)
    padded = [row + ("",) * (width - len(row)) for row in errors]
    table = render(HEADER, [_row(c) for c in cases])
    return table + "\n" + render(("error", *[""] * (width - 1)), padded)


def _markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(out)


def _error_table(cases: list[Kept]) -> str:
    rows = []
    for case in cases:
        errors = dict(case["errors"])
        ours = errors.pop(OURS)
        peers = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        rows.append((case["name"], f"{ours:.1e}", peers))
    return _markdown(("case", "coreai_onnx", "others"), rows)


def _scaling_table(cases: list[Kept]) -> str:
    rows = [
        (
            case["name"],
            _milliseconds(case),
            _ratio(case, ONE_THREAD),
            _share(case),
            _fused(case),
            _ratio(case, "onnxruntime body"),
            _ratio(case, "torch"),
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
    return _markdown(header, rows)


def write() -> None:
    """Write the tables into docs/internals/performance_log.md and the roofline beside it."""
    cases, two = list(load(1).values()), list(load(2).values())
    roofline(cases)
    parts = [
        NOTE,
        _markdown(HEADER, [_row(c) for c in cases]),
        f"![roofline]({PLOT.name})",
        *(["Two threads, wall time:", _scaling_table(two)] if two else []),
        "Largest difference from the float64 reference on the same inputs:",
        _error_table(cases),
    ]
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after, "utf-8")


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
