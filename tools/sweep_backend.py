"""Optimize the models of onnx's own backend tests and run them before and after.

python tools/sweep_backend.py                   continue where build/backend.jsonl ends
python tools/sweep_backend.py --failed          repeat the failures
python tools/sweep_backend.py --fresh           start again: takes some minutes
python tools/sweep_backend.py --only 'loop'     models whose name matches an expression
python tools/sweep_backend.py --record          write the totals for docs/foreign_models.md

Each model goes through ``OnnxProgram.load`` and ``optimize``; a model passes if onnxruntime gives
the same results as before. ``make test-onnx`` runs this tool.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout's package and tests, whether or not it is installed

from tools.backend.models import backend_models  # noqa: E402
from tools.backend.records import RECORD, Job, Records  # noqa: E402
from tools.operators.crew import Found, measure_with_bar  # noqa: E402
from tools.operators.journal import Journal, sweep_parser  # noqa: E402
from tools.operators.measuring import REFUSED  # noqa: E402

WORKER = (sys.executable, "-m", "tools.backend.worker")


def main() -> int:
    """Run the chosen models and print the totals; 1 after a failure other than a refusal."""
    options = _parser().parse_args()
    if options.fresh:
        options.out.unlink(missing_ok=True)
    journal = Journal(options.out)
    names = [name for name in backend_models() if re.search(options.only, name)]
    if options.failed:
        bad = {model for model, *_ in Records(journal.found).failures()}
        names = [name for name in names if name in bad]
    else:
        names = [name for name in names if (name,) not in journal.found]
    _run([Job(name) for name in names], journal, options.workers)
    records = Records(journal.found)
    print(json.dumps(records.totals(), indent=1))
    untyped = [row for row in records.failures() if row[2] != REFUSED]
    for model, target, status, detail in untyped:
        print(f"{status:18} {model} [{target}] {detail}")
    if options.record:
        summary = {"models": len(backend_models()), **records.summary()}
        RECORD.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 1 if untyped else 0


def _run(jobs: list[Job], journal: Journal, workers: int) -> None:
    def tell(job: Job, found: Found) -> None:
        journal.add(job.key, found)

    measure_with_bar(jobs, tell, workers=workers, command=WORKER, batch=len(jobs))


def _parser() -> argparse.ArgumentParser:
    return sweep_parser(__doc__ or "", "backend", "models whose name matches")


if __name__ == "__main__":
    sys.exit(main())
