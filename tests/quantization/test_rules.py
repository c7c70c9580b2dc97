"""Rules for mixed precision."""

from __future__ import annotations

import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.rules import MINIMUM_SIZE, Rules
from coreai_onnx.quantization.weights.products import Products
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import heavy_tailed, linear, weight_of
from tests.support.small_models import parse


def rules_of(rules=None, skip=(), *, embeddings=True, minimum_size=MINIMUM_SIZE) -> Rules:
    return Rules.of(Scheme(), rules, skip, embeddings=embeddings, minimum_size=minimum_size)


def test_the_first_pattern_that_matches_counts() -> None:
    weight = weight_of(heavy_tailed(64, 64))
    assert rules_of().choose(weight) == Scheme()
    assert rules_of({"lay*": 8, "layer": 2}).choose(weight) == Scheme(bits=8)
    assert rules_of({"layer.weight": {"bits": 3, "method": "rtn"}}).choose(weight) == Scheme(
        bits=3, method="rtn"
    )
    assert rules_of({"layer": Scheme(2)}).choose(weight) == Scheme(2)
    assert rules_of({"layer": None}).choose(weight) == "skipped by a pattern"
    assert rules_of({"layer": 8}, ["*"]).choose(weight) == "skipped by a pattern"


def test_small_weights_keep_their_dtype_unless_named() -> None:
    weight = weight_of(heavy_tailed(32, 32))
    assert rules_of().choose(weight) == "fewer than 4096 elements"
    assert rules_of({"layer": 4}).choose(weight) == Scheme()
    assert rules_of(minimum_size=0).choose(weight) == Scheme()


def test_groups_of_the_default_scheme_become_smaller() -> None:
    assert rules_of().choose(weight_of(heavy_tailed(64, 100))) == Scheme(group_size=20)
    kept = rules_of().choose(weight_of(heavy_tailed(64, 75)))
    assert kept == "groups of 32 or less do not divide its 75 inputs into whole bytes"


def test_groups_of_a_rule_that_do_not_divide_are_an_error() -> None:
    weight = weight_of(heavy_tailed(64, 100))
    rules = rules_of({"layer": 4})
    with pytest.raises(QuantizationError, match="layer: groups of 32 do not divide its 100 inputs"):
        rules.choose(weight)
    with pytest.raises(
        QuantizationError, match=r'size of 20, 50, 100, or leave .* skip=\["layer"]'
    ):
        rules.choose(weight)
    with pytest.raises(QuantizationError, match=r"'layer.weight': leave it out"):
        rules_of({"*": {"bits": 3, "group_size": 0}}).choose(weight)
    assert rules_of({"layer": {"group_size": 20}}).choose(weight) == Scheme(group_size=20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": {"layer": "8"}}, "the rule of 'layer' is '8'; give bits"),
        ({"rules": {"layer": {"bit": 8}}}, "the rule of 'layer' is {'bit': 8}"),
        ({"rules": {"layer": 7}}, "bits=7"),
        ({"rules": {"": 8}}, "an empty pattern matches no module"),
        ({"skip": "layer"}, "skip='layer'; give a list of patterns"),
    ],
)
def test_bad_rules_are_errors(given, message) -> None:
    with pytest.raises(QuantizationError, match=message):
        rules_of(**given)


def test_a_pattern_without_a_match_is_an_error() -> None:
    weights = Products(linear(heavy_tailed(8, 8))).weights()
    rules_of({"*er": 8}).check_used(weights)
    with pytest.raises(QuantizationError, match="'lm_head' matches no weight\n  there are layer"):
        rules_of({"lm_head": 8}).check_used(weights)


def test_lookups_are_quantized_if_they_are_embeddings() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[n] i) => (float[n, 2] y)
    <float[2, 2] table = {1.0, 2.0, 3.0, 4.0}> { y = Gather(table, i) }""")

    def choose(rules: Rules) -> Scheme | str:
        (weight,) = Products(model).weights()
        return rules.choose(weight)

    rules = rules_of({}, minimum_size=0)
    assert choose(rules) == "a lookup that is not known to be an embedding"
    assert choose(rules_of({"table": {"group_size": 2}})) == Scheme(group_size=2)
    model.graph.node(0).metadata_props["coreai.class"] = "Embedding"
    assert choose(rules_of({}, embeddings=False, minimum_size=0)) == "an embedding"
    assert choose(rules) == "groups of 32 or less do not divide its 2 inputs into whole bytes"
