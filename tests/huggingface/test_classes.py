"""A fixed sample of transformers' model classes; `make test-transformers` measures every one."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.exporters.auto")

from tools.classes.listing import every_class
from tools.classes.measuring import ClassSubject, measure_ours
from tools.operators.measuring import PASS

SAMPLE = """
    ASTForAudioClassification Aimv2Model Aimv2VisionModel AlbertForMaskedLM ApertusForCausalLM
    ArceeForCausalLM AriaForConditionalGeneration AriaTextForCausalLM
    BartForConditionalGeneration BeitForImageClassification BlipForConditionalGeneration
    BloomForCausalLM CodeGenForCausalLM DPTForDepthEstimation FNetForMaskedLM FalconForCausalLM
    GPT2LMHeadModel Gemma3ForCausalLM GitForCausalLM GraniteMoeForCausalLM HubertForCTC
    IBertForMaskedLM LevitForImageClassification MixtralForCausalLM MobileBertForMaskedLM
    MptForCausalLM NllbMoeForConditionalGeneration OPTForCausalLM Olmo2ForCausalLM
    PhiForCausalLM PoolFormerForImageClassification PvtForImageClassification
    Qwen3MoeForCausalLM RegNetForImageClassification ResNetForImageClassification
    RoFormerForMaskedLM SqueezeBertForMaskedLM TimesformerForVideoClassification UniSpeechForCTC
    YolosForObjectDetection
""".split()
MODEL_TYPES = {job.name: job.model_type for job in every_class()}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_agrees_with_torch_at_two_sizes(name: str) -> None:
    outcome = measure_ours(ClassSubject(MODEL_TYPES[name], name), str)
    assert (outcome.status, outcome.detail) == (PASS, "")
    assert outcome.resized == {"second size": PASS}
