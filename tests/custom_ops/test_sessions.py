"""Many sessions: one after another they leave nothing behind, at once they agree bit for bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.composites.declaration import DOMAIN
from tests.custom_ops import many_sessions, single_op

REPO = Path(__file__).resolve().parent.parent.parent
MARKS = 5
SESSIONS = 200


def test_the_script_knows_the_domain_and_every_op():
    ops = (REPO / "custom_ops" / "ops" / "op_list.h").read_text()
    model = many_sessions.every_op_model()
    called = many_sessions.op_types_of(model).split(",")
    assert many_sessions.DOMAIN == DOMAIN
    assert many_sessions.ORT_SILENT == single_op.ORT_SILENT
    assert len(called) == len(re.findall(r"\bV\(k\w+Op\)", ops))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sessions_leave_no_memory_behind(kernels):
    command = [sys.executable, "-m", "tests.custom_ops.many_sessions", str(SESSIONS), str(kernels)]
    done = subprocess.run(
        [*command, f"--marks={MARKS}"], capture_output=True, text=True, cwd=REPO, check=False
    )
    assert done.returncode == 0, done.stderr
    resident = json.loads(done.stdout)
    assert len(resident) == MARKS
    # Between the first mark and the last, 160 sessions: what each keeps must be below 6.4 KiB.
    # A domain for every load of the library took 550 KiB of those with all op types, and 15 KiB of
    # the others.
    assert resident[-1] - resident[0] < 1 << 20, resident


def test_sessions_and_threads_at_once_agree_bit_for_bit(kernels):
    model = many_sessions.every_op_model()
    op_types = many_sessions.op_types_of(model)
    file, feeds = model.SerializeToString(), {"x": many_sessions.example_input()}
    wanted = many_sessions.session_of(file, kernels).run(None, feeds)
    shared = [many_sessions.session_of(file, kernels, op_types, threads) for threads in (1, 2)]

    def work(seed: int) -> list[bool]:
        same = []
        for i in range(12):
            own = many_sessions.session_of(file, kernels, op_types, 1 + (seed + i) % 2)
            for session in (own, *shared):
                found = session.run(None, feeds)
                same.append(all(map(np.array_equal, found, wanted)))
        return same

    with ThreadPoolExecutor(max_workers=6) as pool:
        same = [each for found in pool.map(work, range(6)) for each in found]
    assert len(same) == 6 * 12 * 3
    assert all(same)


def test_a_session_with_its_own_op_types_opens_in_a_fraction_of_the_time(kernels):
    every, called = many_sessions.opening_seconds(kernels, rounds=3)
    assert called < every / 3  # 0.003 and 0.14 s; every schema that is not registered saves time
