"""A filter of warnings comes and goes alone."""

from __future__ import annotations

import warnings

import pytest

from coreai_onnx.export.compat.warning_filters import ignored


def test_only_its_message_is_ignored() -> None:
    with ignored("The tensor .* x"):
        warnings.warn("The tensor attribute x", UserWarning, stacklevel=1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn("another", UserWarning, stacklevel=1)
    with pytest.warns(UserWarning, match="The tensor"):
        warnings.warn("The tensor attribute x", UserWarning, stacklevel=1)


def test_filters_that_others_add_meanwhile_stay() -> None:
    before = list(warnings.filters)
    with ignored("ours"):
        with ignored("ours"):
            warnings.filterwarnings("ignore", "theirs")
        warnings.warn("ours", UserWarning, stacklevel=1)
    assert warnings.filters[1:] == before
    assert len(warnings.filters) == len(before) + 1
    warnings.warn("theirs", UserWarning, stacklevel=1)
