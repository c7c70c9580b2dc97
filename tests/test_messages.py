"""What is printed: escaped text, tables, stages of a conversion, and warnings of other packages."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.cli import main
from coreai_onnx.conversion import convert
from coreai_onnx.messages import (
    LINE_LIMIT,
    TEXT_LIMIT,
    begin_stage,
    printable,
    printable_lines,
    render,
    reported_to,
    size_text,
    without_warnings,
)
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.support.small_models import layers_model


# ------------------------------------------------------------------------- What reaches a terminal
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é → 日本", "plain é → 日本"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),  # an escape sequence in one character
        ("a\nb\r", r"a\nb\r"),
        ("\u202eevil", r"\u202eevil"),
        ("\udcff", r"\udcff"),
        ("\x00", r"\x00"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_a_long_text_keeps_its_ends() -> None:
    text = printable("a" * 10**6 + "b")
    assert text.startswith("aaa")
    assert text.endswith("ab")
    assert "999001 characters" in text
    assert len(text) < LINE_LIMIT + 40
    assert len(printable("\x1b" * 10**6)) < LINE_LIMIT + 40


def test_lines_and_tabs_of_a_message_stay() -> None:
    assert printable_lines("one\n\ttwo\x1b\n") == "one\n\ttwo\\x1b\n"


def test_a_long_message_keeps_its_first_and_last_lines() -> None:
    text = printable_lines("\n".join(f"line {i}" for i in range(5000)))
    lines = text.split("\n")
    assert lines[0] == "line 0"
    assert lines[-1] == "line 4999"
    assert any("lines are left out" in line for line in lines)
    assert len(text) < TEXT_LIMIT
    assert len(printable_lines("\n" * 10**6)) < TEXT_LIMIT


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def evil_model() -> ir.Model:
    """A model whose every name and text holds escape sequences."""
    proto = ir.to_proto(layers_model())
    nodes = [*proto.graph.node, *(n for f in proto.functions for n in f.node)]
    for index, node in enumerate(nodes):
        node.name = f"{EVIL}{index}"
    for function in proto.functions:
        for call in (n for g in (proto.graph, *proto.functions) for n in g.node):
            if call.op_type == function.name:
                call.op_type = f"{EVIL}{function.name}"
        function.name = f"{EVIL}{function.name}"
    for node in proto.graph.node:
        names = [*node.input, *node.output]
        del node.input[:], node.output[:]
        node.input.extend(f"{EVIL}{name}" for name in names[:-1])
        node.output.append(f"{EVIL}{names[-1]}")
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = f"{EVIL}{value.name}"
        value.type.tensor_type.shape.dim[0].dim_param = f"{EVIL}n"
    for key in ("coreai.target", "coreai.entrypoint", EVIL):
        proto.metadata_props.add(key=key, value=f"{EVIL}\n" + "x" * 10_000)
    return ir.from_proto(proto)


def test_nothing_of_a_file_controls_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evil, plain, broken = (str(tmp_path / f"{name}.onnx") for name in ("evil", "plain", "broken"))
    model = evil_model()
    save_models({Path(evil): model}, tmp_path / "data")
    save_models({Path(plain): layers_model()}, tmp_path / "data")
    model.graph.outputs[0].name = f"{EVIL}lost"
    proto = ir.to_proto(model)
    proto.graph.node[0].input[0] = f"{EVIL}nothing" + "x" * 10**6
    Path(broken).write_bytes(proto.SerializeToString())
    optimized = str(tmp_path / "out.onnx")
    commands = [
        ["inspect", evil],
        ["inspect", evil, "--histogram", plain],
        ["diff", plain, evil],
        ["optimize", evil, "-o", optimized, "--near-misses"],
        ["run", evil],
        ["run", evil, "--input", "nobody=float32[2]"],
        ["inspect", broken],
        ["run", broken],
    ]
    for command in commands:
        main(command)
        shown = "".join(capfd.readouterr())
        assert shown
        assert shown.replace("\n", "").isprintable(), command
        assert len(shown) < 2 * TEXT_LIMIT, command
    for text in (repr(session(evil, kernels=False)), repr(OnnxProgram.load(evil))):
        assert text.replace("\n", "").isprintable()


# -------------------------------------------------------------------------------- Tables and sizes
def test_numbers_are_right_aligned_and_text_is_left_aligned() -> None:
    lines = render(("op", "n"), [("Add", 3), ("MatMul", 12)]).splitlines()
    assert lines == ["op       n", "------  --", "Add      3", "MatMul  12"]


def test_a_table_without_rows_is_its_header() -> None:
    assert render(("a", "bb"), []) == "a  bb\n-  --"


def test_indent_stands_before_every_line() -> None:
    assert all(line.startswith("  ") for line in render(("a",), [("b",)], indent="  ").splitlines())


def test_one_long_cell_does_not_widen_the_others() -> None:
    rows = [("x" * 100_000, 1), *(("y", 2) for _ in range(1000))]
    assert len(render(("name", "n"), rows)) < 400_000


def test_rows_of_another_length_are_an_error() -> None:
    with pytest.raises((ValueError, IndexError)):
        render(("a", "b"), [("only one",)])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


# ----------------------------------------------------------- Reports of the stages of a conversion
def test_the_stages_of_a_conversion_in_their_order(tmp_path: Path) -> None:
    stages: list[str] = []
    with reported_to(stages.append):
        convert(torch.nn.ReLU(), (torch.ones(2),)).save(tmp_path / "m.onnx")
    assert stages == ["export", "lower", "optimize", "save"]
    begin_stage("export")
    assert len(stages) == 4, "the block is over"


def test_another_thread_is_not_reported() -> None:
    stages: list[str] = []
    with reported_to(stages.append):
        thread = threading.Thread(target=begin_stage, args=("export",))
        thread.start()
        thread.join()
    assert stages == []


# ---------------------------------------------- Warnings of other packages do not reach a terminal
def test_warnings_are_dropped_for_the_time_of_a_block(log_records: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("onnx_ir.serde")
    with without_warnings():
        logger.warning("named \x1b[2J")
        logger.error("told")
    logger.warning("afterwards")
    assert [record.getMessage() for record in log_records] == ["told", "afterwards"]
