"""Programs by method, in their order."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation.methods import FORWARD, Methods
from coreai_onnx.errors import StagingError


def test_methods_keep_their_order() -> None:
    x = torch.randn(2)
    programs = {name: export(torch.nn.ReLU(), (x,)) for name in ("z", FORWARD, "a")}
    methods = Methods(programs)
    assert methods.methods == ("z", "forward", "a")
    assert methods.exported_program() is programs["forward"]
    assert methods.exported_program("a") is programs["a"]
    assert repr(methods) == "Methods(z, forward, a)"
    with pytest.raises(StagingError, match="no method 'b'; there are z, forward, a"):
        methods.exported_program("b")
