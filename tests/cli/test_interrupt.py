"""Ctrl-C, and what libraries make of it."""

from __future__ import annotations

import itertools

from coreai_onnx.cli.interrupt import interrupted


def raised(*errors: BaseException) -> BaseException:
    """Return the last error, each the cause of the next."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_a_ctrl_c_is_found_behind_other_errors() -> None:
    assert interrupted(KeyboardInterrupt())
    assert interrupted(raised(KeyboardInterrupt(), ImportError(), RuntimeError()))
    assert not interrupted(raised(ValueError(), ImportError()))
    assert not interrupted(None)


def test_an_error_that_was_raised_while_a_ctrl_c_was_handled() -> None:
    error = ImportError()
    error.__context__ = KeyboardInterrupt()
    assert interrupted(error)


def test_errors_that_name_each_other() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not interrupted(first)
