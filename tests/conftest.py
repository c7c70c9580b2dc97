"""Fixtures and settings of the whole suite."""

from __future__ import annotations

import functools
import gc
import logging
import os
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch and transformers are imported: two workers on two cores, and no hub in sight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Compiled kernels of users' composites, which the documents and the tests share.
os.environ.setdefault("COREAI_ONNX_CACHE", str(Path(__file__).resolve().parent.parent / "build"))

import hypothesis
import onnxruntime
import torch

from tests.support import fast_lane, kernel_targets, quick_decompositions, quick_exports

REPO = Path(__file__).resolve().parent.parent
REQUIRE_KERNELS = "COREAI_REQUIRE_KERNELS"
"""Set by ``make test`` where a compiler is there: missing kernels then fail instead of skip."""

hypothesis.settings.register_profile(
    "coreai",
    deadline=None,  # first calls compile or export; a slow machine is no failure
    derandomize=True,  # one commit, one verdict
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("coreai")
torch.set_num_threads(1)
# Python 3.11 collects them again for every isinstance of a protocol, of which onnx_ir has many.
typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)


class _SleepingOptions(onnxruntime.SessionOptions):
    """Options with which idle threads sleep: spinning, they would take the other worker's core."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


onnxruntime.SessionOptions = _SleepingOptions
quick_decompositions.install()
quick_exports.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects the fast lane."""
    parser.addoption(
        "--fast", action="store_true", help="run the fast lane: tests/support/fast_lane.py"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are not in the fast lane."""
    if not config.getoption("fast"):
        return
    whole_files = fast_lane.test_files(fast_lane.changed_files(REPO))
    items[:], others = fast_lane.selected(items, whole_files)
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """Leave the modules and the tests, millions of objects, to no garbage collection.

    The collections of what is new are fewer than usual: a conversion makes a million objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the kernels ran on, so that nobody takes another target for a tested one."""
    from coreai_onnx.runtime.libraries.library import kernels_built, ops_library_path

    if kernels_built():
        targets = kernel_targets.targets_of_this_machine(ops_library_path())
        chosen = kernel_targets.chosen_target(ops_library_path())
        terminalreporter.write_line(f"targets of this machine: {' '.join(targets)}; ran: {chosen}")


@pytest.fixture(autouse=True)
def _independent() -> None:
    """Every test starts from one seed, and pays for no operator of the tests before it."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats a stack per device
    quick_exports.forget_operators()


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What is logged during a test; pytest's plugin would add handlers to all loggers of torch."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def kernels() -> Path:
    """Path of the built kernel library; without one the test is skipped, or fails in CI."""
    from coreai_onnx.errors import KernelsNotBuiltError
    from coreai_onnx.runtime import ops_library_path

    try:
        return ops_library_path()
    except KernelsNotBuiltError as error:
        if os.environ.get(REQUIRE_KERNELS):
            pytest.fail(f"{REQUIRE_KERNELS} is set, but {error}")
        pytest.skip("the kernels are not built: make build")
