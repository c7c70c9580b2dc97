"""Calls in a process of their own, which loads another kernel library than the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from coreai_onnx.runtime.libraries.library import ENVIRONMENT_VARIABLE

_Result = TypeVar("_Result")


def with_library(library: Path, call: Callable[[], _Result]) -> _Result:
    """Call a function of a module in a new process that has only this kernel library.

    Its ops and its allocator would otherwise stay in the process of the tests.
    """
    context = get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_use, initargs=(str(library),)
    ) as pool:
        return pool.submit(call).result()


def _use(library: str) -> None:
    os.environ[ENVIRONMENT_VARIABLE] = library
