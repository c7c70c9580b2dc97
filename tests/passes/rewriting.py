"""ONNX text in, a pass, ONNX text out; numbers before = after."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx import passes
from coreai_onnx.bodies.pass_bodies import write_pass_body
from coreai_onnx.passes import Pass, PassReport
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from tests.support.tolerances import assert_close

run_passes = functools.partial(passes.run_passes, write_body=write_pass_body)
optimize_for = functools.partial(passes.optimize_for, write_body=write_pass_body)
HEAD = '<ir_version: 10, opset_import: ["": {opset}, "ai.coreai": 1]>\n'


def parse(text: str, opset: int = 23) -> ir.Model:
    """The model of an ONNX text; the head may be left out."""
    if not text.lstrip().startswith("<"):
        text = HEAD.format(opset=opset) + text
    return ir.from_proto(onnx.parser.parse_model(hoisted(text)))


_TYPED = re.compile(
    r"\b((?:float|float16|double|bfloat16|int64|int32|int8|uint8|bool)\[[^\]]*\]) (\w+)(?=\s*[,=])"
)


def hoisted(text: str) -> str:
    """Move types of inner values, ``float[n] a = Neg (x)``, to where ONNX's text form wants them."""
    arrow = text.index("=>")
    opening = re.compile(r"[>)]\s*(\{)").search(text, arrow + 2)
    assert opening is not None
    start = opening.start(1)
    end = text.find("\n<domain", start) if "\n<domain" in text[start:] else len(text)
    head, body = text[:start].rstrip(), text[start:end]
    types = [f"{kind} {name}" for kind, name in _TYPED.findall(body)]
    if not types or "=>" in body:  # graphs inside of nodes declare their own
        return text
    body = _TYPED.sub(r"\2", body)
    declared = ", ".join(types)
    head = f"{head[:-1]}, {declared}>" if head.endswith(">") else f"{head} <{declared}>"
    return f"{head} {body}{text[end:]}"


def shown(model: ir.Model) -> str:
    """The text of a model without the types of its inner values."""
    proto = onnx.ModelProto.FromString(ir.to_proto(model).SerializeToString())
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        del graph.value_info[:]
        graphs += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        for node in graph.node:
            node.name = ""
    for function in proto.functions:
        del function.value_info[:]
        for node in function.node:
            node.name = ""
            for attribute in node.attribute:
                attribute.t.name = ""
    return onnx.printer.to_text(proto)


def same_bytes(a: ir.Model, b: ir.Model) -> bool:
    first, second = (ir.to_proto(m).SerializeToString(deterministic=True) for m in (a, b))
    return first == second


def rewrite(text: str, one: Pass, count: int, expected: str, *, opset: int = 23) -> PassReport:
    """Run one pass to its end; assert the number of rewrites and the resulting text."""
    model = parse(text, opset)
    report = run_passes(model, [one])
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert shown(model) == shown(parse(expected, opset))
    assert report.total == count
    assert run_passes(model, [one]).total == 0
    return report


def leaves(text: str, one: Pass, reason: str | None = None, *, opset: int = 23) -> None:
    """Assert that a pass does not fire, and the reason it gives (None: it says nothing)."""
    model = parse(text, opset)
    report = run_passes(model, [one])
    assert report.total == 0
    assert same_bytes(model, parse(text, opset))
    assert [m.miss.reason for m in report.near_misses] == ([] if reason is None else [reason])


def run(
    model: ir.Model, feeds: Mapping[str, np.ndarray], *, stock: bool = False
) -> list[np.ndarray]:
    """Run a model in onnxruntime without its own optimizer; ``stock``: with its default options."""
    options = ort.SessionOptions()
    if not stock:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return session.run(None, dict(feeds))


def same_numbers(text: str, one: Pass, feeds: Mapping[str, np.ndarray], *, opset: int = 23) -> None:
    """Assert that a pass fires and that the results stay the same to the bit."""
    before, after = parse(text, opset), parse(text, opset)
    assert run_passes(after, [one]).total > 0
    for expected, actual in zip(run(before, feeds), run(after, feeds), strict=True):
        assert_close(actual, expected)
        assert actual.tobytes() == expected.tobytes()


def main_text(model: ir.Model) -> str:
    """The text of the main graph alone, without the domains it imports."""
    text = shown(model).partition("\n<\n  domain")[0]
    return re.sub(r"opset_import: .*\n", "", text)


def fuses(
    text: str,
    one: Pass,
    count: int,
    expected: str,
    feeds: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 23,
) -> ir.Model:
    """Run one pass that rounds differently; assert count, main graph and, within bounds, numbers.

    What the pass leaves unused is removed before the graph is compared.
    """
    model = parse(text, opset)
    report = run_passes(model, [one, remove_dead_code])
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert main_text(model) == main_text(parse(expected, opset))
    assert report.counts[one.__name__] == count
    assert run_passes(model, [one, remove_dead_code]).total == 0
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [one, remove_dead_code]).total == 0
    if feeds is not None:
        for wanted, actual in zip(run(parse(text, opset), feeds), run(model, feeds), strict=True):
            assert_close(actual, wanted)
    return model
