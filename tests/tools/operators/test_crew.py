"""Workers: what they find arrives, and one that dies is a finding, not the end."""

from __future__ import annotations

import sys

import pytest

from tools.operators.crew import Found, Job, measure_with_bar
from tools.operators.measuring import CRASH, PASS
from tools.operators.results import Sweep, table

# Dies in its first call of "bad", as a kernel that crashes would.
SCRIPT = """
import json, os, sys
print(json.dumps({"done": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    for call in range(job["first"], 2):
        print(json.dumps({"call": call, "step": "run failed"}), flush=True)
        if job["entry"] == "bad" and call == 0:
            os.abort()
        found = {"call": call, "status": "pass", "detail": "", "resized": {"larger": "pass"}}
        print(json.dumps(found), flush=True)
    print(json.dumps({"done": True}), flush=True)
"""


def test_a_crash_is_an_entry_and_the_rest_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = Sweep()

    def tell(job: Job, found: Found) -> None:
        sweep.add(job.entry, job.dtype, found)

    jobs = [Job("good", "float32"), Job("bad", "float32"), Job("last", "float32")]
    command = (sys.executable, "-c", SCRIPT)
    measure_with_bar(jobs, tell, unit="entry", workers=1, command=command)
    assert {n: sweep.status(n) for n in sweep.found} == {"good": PASS, "bad": CRASH, "last": PASS}
    assert [c["status"] for c in sweep.found["bad"]["float32"]] == [CRASH, PASS]
    assert sweep.open() == {("bad", "float32")}
    summary = sweep.summary()
    assert summary["totals"]["float32"] == {"exported": 3, PASS: 2, CRASH: 1}
    assert summary["resized"] == {"larger: pass": 5}
    assert "float32" in table(sweep)
    bar = capsys.readouterr().err
    assert "3/3" in bar
    assert "last float32" in bar


def test_no_jobs_need_no_worker() -> None:
    measure_with_bar([], lambda job, found: None, command=("/no/such/command",))
