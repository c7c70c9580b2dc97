"""A fixed sample of transformers' model classes; `make test-transformers` measures every one."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.exporters.auto")

from tools.classes.listing import every_class
from tools.classes.measuring import ClassSubject, measure_ours
from tools.operators.measuring import PASS

SAMPLE = """
    ASTForAudioClassification Aimv2VisionModel AlbertForMaskedLM ArceeForCausalLM
    AriaForConditionalGeneration BloomForCausalLM CodeGenForCausalLM FNetForMaskedLM
    FalconForCausalLM GPT2LMHeadModel GraniteMoeForCausalLM IBertForMaskedLM
    LevitForImageClassification MixtralForCausalLM MobileBertForMaskedLM MptForCausalLM
    OPTForCausalLM Olmo2ForCausalLM PhiForCausalLM Qwen3MoeForCausalLM
    RegNetForImageClassification
""".split()
MODEL_TYPES = {job.name: job.model_type for job in every_class()}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_agrees_with_torch_at_two_sizes(name: str) -> None:
    outcome = measure_ours(ClassSubject(MODEL_TYPES[name], name), str)
    assert (outcome.status, outcome.detail) == (PASS, "")
    assert outcome.resized == {"second size": PASS}
