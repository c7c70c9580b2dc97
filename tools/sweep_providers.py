"""Run the models of the documentation on WebGPU or CUDA, in processes that may crash.

python tools/sweep_providers.py                  continue where build/providers.jsonl ends
python tools/sweep_providers.py --failed         repeat the runs that differ or failed
python tools/sweep_providers.py --fresh          start again
python tools/sweep_providers.py --only 'folder llama' --places native
python tools/sweep_providers.py --record         write the results for docs/models_on_providers.md

It runs in the environment of tools/make_provider_environment: ``make test-webgpu`` does both. Every
architecture of docs/models.md and every decoder of docs/language_models.md, exported with random
weights, runs in onnxruntime-webgpu and in headless Chromium, both on SwiftShader, the software
device of Debian's chromium; with ``--target cuda``, in onnxruntime-gpu. A run passes if its
outputs or tokens equal those of the CPU on the same file. Nodes are counted in the profile of the
native run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from coreai_onnx.passes import Target  # noqa: E402
from tools.operators.crew import Found, measure_with_bar  # noqa: E402
from tools.operators.journal import Journal, Key, sweep_parser  # noqa: E402
from tools.operators.measuring import PASS  # noqa: E402
from tools.providers.cases import CASES, CUDA_CASES, NATIVE, PLACES, Job  # noqa: E402

WORKER = (sys.executable, "-m", "tools.providers.worker")
PATIENCE = 900
"""Seconds without a line after which a worker counts as stuck: a loaded machine takes minutes."""
BATCH = 12
"""Jobs after which a worker is replaced, because shaders stay in memory."""
RECORD = ROOT / "tools" / "providers" / "results.json"


def main() -> int:
    """Run the chosen cases and print what failed; 1 if a run differs from the CPU or failed."""
    options = _parser().parse_args()
    if options.fresh:
        options.out.unlink(missing_ok=True)
    journal = Journal(options.out)
    every = _jobs(options.target, options.places)
    chosen = [job for job in every if re.search(options.only, " ".join(job.key))]
    if options.failed:
        chosen = [job for job in chosen if _failures(journal.found.get(job.key, []))]
    elif not options.again:
        chosen = [job for job in chosen if job.key not in journal.found]

    def tell(job: Job, found: Found) -> None:
        journal.add(job.key, found)

    workers = options.workers
    measure_with_bar(chosen, tell, workers=workers, command=WORKER, patience=PATIENCE, batch=BATCH)
    known = {job.key: journal.found[job.key] for job in every if job.key in journal.found}
    for key, found in known.items():
        for run in _failures(found):
            print(f"{run['status']:18} {' '.join(key)}: {run.get('detail', '')[:300]}")
    if options.record:
        results = {"cases": len(CASES), "rows": _recorded(journal.found)}
        RECORD.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if any(map(_failures, known.values())) else 0


def _jobs(targets: Iterable[Target], places: Iterable[str]) -> list[Job]:
    """Return the runs of each target, case by case; CUDA has no browser."""
    return [
        Job(*case, target, place)
        for target in targets
        for case in (CUDA_CASES if target == "cuda" else CASES)
        for place in ([NATIVE] if target == "cuda" else places)
    ]


def _failures(found: Found) -> Found:
    return [run for run in found if run["status"] != PASS]


def _recorded(found: dict[Key, Found]) -> list[dict[str, Any]]:
    """Return the results of cases that exist today, in their order."""
    keys = [job.key for job in _jobs(get_args(Target), PLACES)]
    fields = ("kind", "name", "target", "place")
    return [
        {**dict(zip(fields, key, strict=True)), **_without_time(found[key][0])}
        for key in keys
        if key in found
    ]


def _without_time(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key != "seconds"}


def _parser() -> argparse.ArgumentParser:
    parser = sweep_parser(__doc__ or "", "providers", "cases that match: 'model bert'")
    parser.add_argument("--target", nargs="+", choices=get_args(Target), default=["onnxruntime"])
    parser.add_argument("--again", action="store_true", help="also repeat finished runs")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    return parser


if __name__ == "__main__":
    sys.exit(main())
