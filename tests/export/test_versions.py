"""The warning about an untested torch."""

from __future__ import annotations

import warnings

import pytest
import torch

from coreai_onnx.export.versions import warn_if_untested


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "2.130.0", "3.0.0"])
def test_other_versions_warn(version: str) -> None:
    with pytest.warns(UserWarning, match="tested with torch 2.13"):
        warn_if_untested(version)


def test_the_installed_version_is_tested() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(torch.__version__)
