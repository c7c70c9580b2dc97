"""linear_nbits through onnxruntime against its declared reference."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.few_bits import LINEAR_NBITS as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.lower.checking import open_model, run_session
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close
from tools.bench.composite_model import composite_model

NAME = "linear_nbits"
F32 = torch.float32


def make(rows, groups, group, columns, bits=4, rounding=0, dtype=F32, zeros=None):
    """Return inputs whose products are of about 1, and attributes."""
    codes = torch.randint(0, 256, (columns, groups, group * bits // 8), dtype=torch.uint8)
    scales = (torch.rand(columns, groups) * max(groups * group, 1) ** -0.5 / (1 << bits)).half()
    inputs = [torch.randn(*rows, groups * group).to(dtype), codes, scales]
    if zeros is not None:
        inputs.append(torch.randint(0, 1 << bits, (columns, groups)).to(zeros))
    return inputs, {"bits": bits, "group_size": group, "activation_bits": rounding}


def expected(inputs, dtype, **attributes):
    """Return the reference, in double if it does not round activations."""
    if attributes["activation_bits"]:
        return COMPOSITE.reference(*inputs, **attributes).to(dtype)
    wide = [inputs[0].double(), inputs[1], *(double(x) for x in inputs[2:])]
    return COMPOSITE.reference(*wide, **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_agrees_with_the_reference(kernels, bits, rounding, dtype):
    for rows in ((), (1,), (2, 3), (4,), (70,)):
        inputs, attributes = make(rows, 3, 40, 130, bits, rounding, dtype, torch.uint8)
        actual = run_op(kernels, NAME, inputs, threads=2, **attributes)
        assert_close(actual, expected(inputs, dtype, **attributes))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("rows", [*range(1, 20), 63, 191, 192, 193, 255, 256, 257, 400])
def test_every_number_of_rows(kernels, rows, rounding):
    inputs, attributes = make((rows,), 2, 16, 33, 4, rounding)
    actual = run_op(kernels, NAME, inputs, **attributes)
    assert_close(actual, expected(inputs, F32, **attributes))


@pytest.mark.parametrize("group", [2, 6, 8, 10, 32, 512])
@pytest.mark.parametrize("rounding", [0, 8])
def test_every_size_of_a_group(kernels, group, rounding):
    for rows in (1, 9, 40):
        inputs, attributes = make((rows,), 3, group, 49, 4, rounding, zeros=torch.float32)
        actual = run_op(kernels, NAME, inputs, **attributes)
        assert_close(actual, expected(inputs, F32, **attributes))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_constant_weight_is_packed_once(kernels, rows, rounding):
    inputs, attributes = make((rows,), 4, 32, 100, 4, rounding, zeros=torch.uint8)
    proto = composite_model(NAME, inputs, attributes, constants=(1, 2, 3))
    session = open_model(ir.from_proto(proto), library=kernels)
    actual = run_session(session, inputs[:1])[0]
    assert torch.from_numpy(actual).equal(run_op(kernels, NAME, inputs, **attributes))
    assert run_session(session, inputs[:1])[0].tobytes() == actual.tobytes()


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("rows", [1, 130])
def test_threads_do_not_change_the_result(kernels, rows, rounding):
    inputs, attributes = make((rows,), 4, 32, 300, 4, rounding)
    one = run_op(kernels, NAME, inputs, threads=1, **attributes)
    assert run_op(kernels, NAME, inputs, threads=3, **attributes).equal(one)


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("exact", [True, False])
def test_a_palette(kernels, exact, rows, dtype):
    inputs, attributes = make((rows,), 3, 32, 70, 4, 0, dtype)
    palette = torch.randn(16)
    palette = palette.bfloat16().float() if exact else palette
    inputs += [None, palette]
    actual = run_op(kernels, NAME, inputs, **attributes)
    wide = [inputs[0].double(), *inputs[1:3], None, palette.double()]
    assert_close(actual, COMPOSITE.reference(*wide, **attributes).to(dtype))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("rows", [6, 40])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(kernels, wrong, rows, rounding):
    inputs, attributes = make((rows,), 2, 32, 20, 4, rounding)
    inputs[0][2, 5] = wrong
    actual = run_op(kernels, NAME, inputs, **attributes)
    assert not actual[2].isfinite().any()
    others = [row for row in range(rows) if row != 2]
    assert_close(actual[others], expected(inputs, F32, **attributes)[others])


@pytest.mark.parametrize("rounding", [0, 8])
def test_a_group_of_zeros_is_zero(kernels, rounding):
    inputs, attributes = make((3,), 2, 32, 20, 4, rounding)
    inputs[0][1] = 0
    assert_close(run_op(kernels, NAME, inputs, **attributes)[1], torch.zeros(20))


@pytest.mark.parametrize("rounding", [0, 8])
def test_empty(kernels, rounding):
    for rows, groups, columns in (((0,), 2, 5), ((2, 0), 2, 5), ((3,), 0, 5), ((3,), 2, 0)):
        inputs, attributes = make(rows, groups, 32, columns, 4, rounding)
        actual = run_op(kernels, NAME, inputs, **attributes)
        assert_close(actual, torch.zeros(*rows, columns))


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({}, {"bits": 7}, "attribute bits is 7, expected 8, 6, 5, 4, 3 or 2"),
        ({}, {"activation_bits": 4}, "attribute activation_bits is 4, expected 0 or 8"),
        ({}, {"group_size": 31, "bits": 3}, "attribute group_size is 31, expected whole bytes"),
        ({}, {"group_size": 0}, "attribute group_size is 0"),
        ({0: torch.randn(3, 65)}, {}, r"\[3, 65\], expected a last size of 2 groups of 32"),
        ({0: torch.randn(())}, {}, "expected a last size of 2 groups"),
        ({1: torch.zeros(5, 2, 15, dtype=torch.uint8)}, {}, r"expected \[N, groups, 16\]"),
        ({1: torch.zeros(5, 2, 16)}, {}, "input codes is float, expected uint8"),
        ({2: torch.zeros(5, 3)}, {}, r"input scales has shape \[5, 3\], expected \[5, 2\]"),
        ({2: torch.zeros(5, 2, dtype=torch.int32)}, {}, "input scales is int32"),
        ({3: torch.zeros(5, 1)}, {}, r"input zero_points has shape \[5, 1\]"),
        ({4: torch.zeros(15)}, {}, r"input palette has shape \[15\], expected \[16\]"),
        ({3: torch.zeros(5, 2), 4: torch.zeros(16)}, {}, "excludes input zero_points"),
        ({5: torch.zeros(4)}, {}, r"input bias has shape \[4\], expected \[5\]"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_an_error(kernels, change, attributes, message):
    inputs, right = make((3,), 2, 32, 5)
    given = [*inputs, None, None, None]
    for place, tensor in change.items():
        given[place] = tensor
    with pytest.raises(Exception, match=f"linear_nbits: .*{message}"):
        run_op(kernels, NAME, given, **(right | attributes))


def blocks(rows, bits=4, rounding=0, columns=70):
    """Return inputs with a weight in blocks, and attributes."""
    table = ((130, 4), (256 // 32 + 128, 7))
    shapes = ((rows, 512), (columns, 2, 11), (columns, 2), None, (1 << bits,), None, None, None)
    attributes = {"bits": bits, "group_size": 32, "activation_bits": rounding}
    dtypes = {1: torch.uint8, 2: torch.float16, 8: torch.uint8, 9: torch.int32}
    return Case(NAME, (*shapes, *table), attributes, dtypes, "", 256).inputs(F32), attributes


PARTS_OF_BLOCKS = (1, 2, 4, 8, 9)


@pytest.mark.parametrize("constants", [PARTS_OF_BLOCKS, (1, 2, 4), (8, 9)], ids=str)
@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize(("rows", "bits"), [(1, 3), (9, 4), (300, 2)])
def test_blocks_give_the_same_wherever_they_are(kernels, rows, bits, rounding, constants):
    inputs, attributes = blocks(rows, bits, rounding)
    proto = composite_model(NAME, inputs, attributes, constants=constants)
    session = open_model(ir.from_proto(proto), library=kernels)
    fed = [x for i, x in enumerate(inputs) if x is not None and i not in constants]
    actual = torch.from_numpy(run_session(session, fed)[0])
    assert actual.equal(run_op(kernels, NAME, inputs, **attributes))
    assert_close(actual, expected(inputs, F32, **attributes))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("part", "at", "value", "message"),
    [
        (8, (129, 3), 16, "table has the code 16"),
        (9, (0, 1), -1, "layout has a field of 5 bits at -1 of 88"),
        (9, (-1, 4), 88, "layout has a field of 1|2 bits at 88 of 88"),
        (9, (0, 2), 0, "layout has a field of 0 bits"),
        (9, (-1, 2), 1 << 20, "layout has a field of 1048576 bits"),
        (9, (0, 0), 1 << 30, "layout has numbers from .*, expected -16777216 to 16777215"),
        (9, (8, 0), 3, "layout has numbers from 3 to 130, expected 0 to 129"),
        (9, (-1, 0), -1, "layout has numbers from -1 to 126, expected 0 to 129"),
        (9, (-1, 3), -(1 << 31), "layout has numbers from -6657199308"),
    ],
)
def test_numbers_that_leave_a_block_or_a_table_are_an_error(
    kernels, part, at, value, message, constant
):
    inputs, attributes = blocks(3)
    inputs[part][at] = value
    proto = composite_model(NAME, inputs, attributes, constants=PARTS_OF_BLOCKS if constant else ())
    fed = [x for i, x in enumerate(inputs) if x is not None]
    with pytest.raises(Exception, match=rf"linear_nbits.*: inputs table of shape .*: {message}"):
        run_session(open_model(ir.from_proto(proto), library=kernels), fed[:1] if constant else fed)


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({9: None}, {}, "input layout is missing"),
        ({8: None}, {}, "input table is missing"),
        ({4: None}, {}, r"input table of shape \[130, 4\] needs input palette and excludes"),
        ({6: torch.zeros(70, 2)}, {}, "input minimums of shape .* excludes|excludes zero_points"),
        ({8: torch.zeros(130, 3, dtype=torch.uint8)}, {}, r"table has shape \[130, 3\], expected"),
        ({8: torch.zeros(130, 0, dtype=torch.uint8)}, {}, r"table has shape \[130, 0\], expected"),
        ({8: torch.zeros(130, dtype=torch.uint8)}, {}, r"table has shape \[130\], expected"),
        ({8: torch.zeros(130, 4)}, {}, "inputs table and layout are float and int32, expected"),
        ({9: torch.zeros(136, 7).long()}, {}, "table and layout are uint8 and int64, expected"),
        ({9: torch.zeros(136, 3).int()}, {}, r"layout has shape \[136, 3\], expected \[136, 1"),
        ({9: torch.zeros(135, 7).int()}, {}, r"layout has shape \[135, 7\], expected \[136, 1"),
        ({9: torch.zeros(136).int()}, {}, r"layout has shape \[136\], expected \[136, 1"),
        ({2: torch.zeros(70, 16)}, {}, r"scales has shape \[70, 16\], expected \[70, 2\]"),
        ({0: torch.zeros(3, 256)}, {}, "expected a last size of 16 groups of 32"),
        ({1: torch.zeros(70, 11, dtype=torch.uint8)}, {}, r"expected \[N, blocks, bytes\]"),
        ({1: torch.zeros(70, 2, 0, dtype=torch.uint8)}, {}, "bits at .* of 0"),
        ({}, {"group_size": 24}, "and group_size, 24, must divide 256"),
    ],
)  # fmt: skip
def test_a_wrong_call_with_blocks_is_an_error(kernels, change, attributes, message):
    given, right = blocks(3)
    for place, tensor in change.items():
        given[place] = tensor
    with pytest.raises(Exception, match=f"linear_nbits: .*{message}"):
        run_op(kernels, NAME, given, **(right | attributes))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_weight_that_is_not_constant_is_packed_in_parts(kernels, rows, rounding):
    """The results are those of a constant weight; 18 MB of codes are more than one part."""
    inputs, attributes = make((rows,), 128, 32, 9000, 4, rounding, zeros=torch.uint8)
    inputs.append(None)
    inputs.append(torch.randn(9000))
    proto = composite_model(NAME, inputs, attributes, constants=(1, 2, 3, 5))
    constant = run_session(open_model(ir.from_proto(proto), library=kernels), inputs[:1])[0]
    assert run_op(kernels, NAME, inputs, **attributes).equal(torch.from_numpy(constant))
