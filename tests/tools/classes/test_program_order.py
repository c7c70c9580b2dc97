"""Arguments in the order of the exported program, and results that are numbers in torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers.exporters.auto")

from tools.classes.measuring import ClassSubject
from tools.foreign.case import FIRST


def test_arguments_follow_the_signature_and_not_the_order_in_which_they_were_prepared() -> None:
    subject = ClassSubject("glm4v_vision", "Glm4vVisionModel")
    subject.exported()
    program = subject.exported()
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    taken = [values[name] for name in program.graph_signature.user_inputs if name in values]
    wanted = [(x.dtype, x.ndim) for x in taken if isinstance(x, torch.Tensor)]
    assert [(x.dtype, x.ndim) for x in subject.flat(FIRST)] == wanted
    assert len(set(wanted)) > 1


def test_lengths_in_a_cache_are_left_out_of_the_results() -> None:
    subject = ClassSubject("deepseek_v4", "DeepseekV4ForCausalLM")
    leaves = subject.exported().graph_signature.user_outputs
    kept = subject.tensors_of(list(range(len(leaves))))
    assert len(kept) == len(subject.expected[FIRST]) < len(leaves)
