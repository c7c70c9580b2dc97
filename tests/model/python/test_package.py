"""Written packages: what builds again, what is refused, what they need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx import OnnxProgram, from_python
from coreai_onnx.cli import main
from coreai_onnx.errors import LoadError, SaveError
from coreai_onnx.model.provenance.source_lines import CODE, code_entry
from coreai_onnx.model.python.package import imported, skeleton
from coreai_onnx.model.python.single_file import write_file
from tests.model.python.packages import rebuilt, source
from tests.support.small_models import (
    add_model,
    cache_model,
    counter_model,
    echo_model,
    layers_model,
    linear_model,
    parse,
    phase_model,
)

BRANCHES = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[n] x, bool c, int64 trips) => (float[n] y, float[k, n] zs)
<float[1] one = {1.0}> {
  y = If (c) <then_branch = yes () => (float[n] a) { a = Add(x, one) },
              else_branch = no () => (float[n] b) <float[1] two = {2.0}> { b = Mul(x, two) }>
  start = Identity(x)
  last, zs = Loop (trips, c, start) <body = step (int64 i, bool go, float[n] v)
    => (bool again, float[n] next, float[n] seen)
    { again = Identity(go)
      next = If (go) <then_branch = t () => (float[n] u) { u = Add(v, x) },
                      else_branch = e () => (float[n] w) { w = Neg(v) }>
      seen = Mul(next, one) }>
}"""


@pytest.mark.parametrize(
    "model",
    [add_model({"seq": {"max": 8}}), cache_model(), counter_model(), layers_model(),
     counter_model(initial=False), linear_model(), phase_model(), echo_model("bfloat16"),
     echo_model("string"), echo_model("float8e4m3fn"), echo_model("int4")],
    ids=lambda model: model.graph.outputs[0].name,
)  # fmt: skip
def test_small_models_are_built_again(model: ir.Model, tmp_path: Path) -> None:
    rebuilt(model, tmp_path)


def test_branches_and_loops_are_nested_functions(tmp_path: Path) -> None:
    text = source(parse(BRANCHES), tmp_path)
    assert "    def then_branch():\n" in text
    assert 'def body(i: INT64, go: BOOL, v: FLOAT["n"]):' in text
    assert "        def then_branch" in text


def functions_model() -> ir.Model:
    text = """<ir_version: 10, opset_import: ["": 21, "f": 1, "f.g": 2]>
    agraph (float[n] x) => (float[n] y, float[n] z)
    { y = f.outer <alpha = 0.5>(x)  z = f.g.inner (x) }
    <domain: "f", opset_import: ["": 21, "f.g": 2]>
    outer <alpha, beta: float = 2.5> (x) => (y)
    { a = LeakyRelu <alpha: float = @alpha>(x)  b = Constant <value_float: float = @beta>()
      d = Constant <value_ints = [0]>()  d2 = Constant <value = int64[1] {0}>()
      e = Unsqueeze(a, d)  g = Squeeze(e, d2)  h = Mul(g, b)  y = f.g.inner (h, a) }
    <domain: "f.g", opset_import: ["": 20]>
    inner (x, bias) => (y) { y = Identity(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for name in ("inner.v2", "class", "rms norm"):
        inner = model.functions["f.g", "inner", ""]
        twin = ir.Function("f.g", name, graph=inner.graph.clone(), attributes=[])
        model.functions[twin.identifier()] = twin
    return model


def test_functions_attributes_and_variants(tmp_path: Path) -> None:
    text = source(functions_model(), tmp_path)
    assert "def outer(x, *, beta=2.5, alpha):" in text
    assert '@model.function("f.g", "inner.v2", opsets={"": 20})' in text
    assert "op.Constant(value_float=beta)" in text
    assert '"class"' in text


def test_every_element_type_keeps_its_bytes(tmp_path: Path) -> None:
    model = add_model()
    rng = np.random.default_rng(0)
    kinds = [kind for kind in ir.DataType if kind.name not in ("UNDEFINED", "STRING")]
    for kind in kinds:
        for size in (4, 36 if kind.bitwidth == 6 else 37):
            raw = rng.integers(0, 256, size * 16, dtype=np.uint8)
            proto = onnx.TensorProto(data_type=kind.value, dims=[size], name=f"{kind.name}.{size}")
            raw = raw[: -(-size * kind.bitwidth // 8)]
            raw[-1] &= (1 << (size * kind.bitwidth % 8 or 8)) - 1  # padding is zero
            proto.raw_data = raw.tobytes()
            tensor = ir.serde.TensorProtoTensor(proto)
            _add_weight(model, f"{kind.name}_{size}", tensor)
    texts = ir.StringTensor([b"a", b"\xff\x00", "é".encode()], shape=ir.Shape([3]))
    _add_weight(model, "texts", texts)
    again = rebuilt(model, tmp_path).model
    for name, value in model.graph.initializers.items():
        tensor = again.graph.initializers[name].const_value
        assert tensor is not None
        assert value.const_value is not None
        if name != "texts":
            assert tensor.tobytes() == value.const_value.tobytes(), name


def _add_weight(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> None:
    tensor.name = name
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype))
    value.shape = tensor.shape
    model.graph.register_initializer(value)
    node = ir.node("Identity", [value])
    node.outputs[0].name = f"{name}_copy"
    model.graph.append(node)


def test_quantized_weights(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[n, 64] x) => (float[n, 4] y, float[n, 4] z)
    { y = com.microsoft.MatMulNBits <K = 64, N = 4, bits = 4, block_size = 32>(x, packed, scales)
      w = DequantizeLinear <axis = 0, block_size = 32>(nibbles, steps)  z = MatMul(x, w) }""")
    rng = np.random.default_rng(0)
    weights = {
        "packed": ir.Tensor(rng.integers(0, 256, (4, 2, 16), dtype=np.uint8)),
        "scales": ir.Tensor(rng.random(8, dtype=np.float32)),
        "nibbles": ir.Tensor(rng.integers(-8, 8, (64, 4)).astype(ir.DataType.INT4.numpy())),
        "steps": ir.Tensor(rng.random((2, 4), dtype=np.float32)),
    }
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in weights:
                tensor = weights[value.name]
                weight = ir.Value(name=value.name, const_value=tensor)
                weight.type, weight.shape = ir.TensorType(tensor.dtype), tensor.shape
                model.graph.register_initializer(weight)
                node.replace_input_with(index, weight)
    program = OnnxProgram({"main": model})
    x = np.ones((2, 64), np.float32)
    for left, right in zip(program.run(x), rebuilt(program, tmp_path).run(x), strict=True):
        np.testing.assert_array_equal(left, right)


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    model = linear_model(64, 64)
    weight = model.graph.initializers["weight"]
    value = ir.Value(name="tied", const_value=weight.const_value, type=weight.type)
    value.shape = weight.shape
    model.graph.register_initializer(value)
    model.graph.node(0).replace_input_with(1, value)
    node = ir.node("Identity", [weight])
    node.outputs[0].name = "copy"
    model.graph.append(node)
    rebuilt(model, tmp_path)
    size = (tmp_path / "written" / "model.safetensors").stat().st_size
    assert size < 64 * 64 * 4 + 1024


HOSTILE = [
    'quote"\'', "line\nend", "back\\slash", "class", "import os; os.abort()", "1st", "", "\x1b[2J",
    '"""', "{x}", "é", "a" * 500, "model", "op", "weights", "w", "FLOAT", "tensor", "\u202e",
    "None",
]  # fmt: skip


def test_hostile_names_are_text_and_never_code(tmp_path: Path) -> None:
    graph_text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] y) { y = Neg(x) }"""
    model = parse(graph_text, {"a\nb\"'": 'c\n"""\'\\'})
    lines = {f"{name}:{number}": f"{name} = f(x)" for number, name in enumerate(HOSTILE)}
    model.metadata_props[CODE] = code_entry(lines)
    first = model.graph.inputs[0]
    first.shape = ir.Shape(['n"]; import os #'])
    for number, name in enumerate(HOSTILE):
        value = ir.Value(name=name or "empty", type=ir.TensorType(ir.DataType.FLOAT))
        value.shape = ir.Shape([name or None])
        model.graph.inputs.append(value)
        node = ir.node("Add", [first, value], name=name)
        node.outputs[0].name = f"{name}{number}"
        node.metadata_props["coreai.source"] = f"{name}:{number}"
        node.metadata_props["coreai.scope"] = f"{name}.{number}"
        node.doc_string = name or None
        attributes = {f"{name}_attribute": name} if name else {}
        custom = ir.node(name or "Empty", [node.outputs[0]], attributes, domain=f"d{name}")
        custom.outputs[0].name = f"{name}{number}c"
        model.opset_imports[f"d{name}"] = 1
        model.graph.extend([node, custom])
        _add_weight(model, f"{name}.weight{number}", ir.Tensor(np.ones(20, np.float32)))
        model.graph.outputs.append(custom.outputs[0])
    model.graph.name = 'graph"""\n'
    again = rebuilt(model, tmp_path).model
    assert [value.name for value in again.graph.inputs] == [v.name for v in model.graph.inputs]
    tree = ast.parse((tmp_path / "written" / "model.py").read_text())
    called = {node.func.id for node in ast.walk(tree)
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert called <= {"Model", "Opset"}


def test_thousands_of_equal_names(tmp_path: Path) -> None:
    lines = [f"v_{i} = Neg(v_{i - 1})" for i in range(1, 2000)]
    text = "\n".join(["v_0 = Neg(x)", *lines, "y = Add(v_1999, v_7)"])
    rebuilt(
        parse(
            f'<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) {{{text}}}'
        ),
        tmp_path,
    )


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_every_opset(opset: int, tmp_path: Path) -> None:
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 3, 16)
    shapes = {"src": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
    program = coreai_onnx.convert(module, (x,), dynamic_shapes=shapes, opset_version=opset)
    again = rebuilt(program, tmp_path)
    np.testing.assert_array_equal(again.run(x)[0], program.run(x)[0])


def test_inputs_after_states(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[1] a, float[1] b, float[1] c) => (float[1] y) <float[1] a = {1.0}, float[1] b = {2.0}>
    { d = Add(a, b)  y = Mul(d, c) }""")
    text = source(model, tmp_path)
    assert 'a: FLOAT[1] = weights["a"], b: FLOAT[1] = weights["b"], *, c: FLOAT[1]' in text


def test_operators_that_onnx_does_not_allow(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, m] x, float[m] s) => (float[n, m] y)
    { a = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-6>(x, s)  b = Neg <more = 1>(a)
      y = Relu(b, s) }""")
    text = source(model, tmp_path)
    assert 'op["SimplifiedLayerNormalization"](x, s, axis=-1, epsilon=1e-6)' in text


def test_several_entrypoints(tmp_path: Path) -> None:
    program = OnnxProgram({"prefill": linear_model(seed=0), "de-code": linear_model(seed=1)})
    again = rebuilt_all(program, tmp_path)
    assert again.entrypoints == program.entrypoints


def rebuilt_all(program: OnnxProgram, folder: Path) -> OnnxProgram:
    again = from_python(program.to_python(folder / "written"))
    for name, model in program.models.items():
        assert skeleton(again.models[name]) == skeleton(model)
    return again


# -------------------------------------------------------------------- what a package needs
def test_it_imports_only_what_it_says(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": linear_model()}).to_python(tmp_path / "written")
    allowed = {"onnxscript", "onnx", "numpy", "safetensors", "onnxruntime"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            tops = {name.partition(".")[0] for name in names}
            assert tops <= allowed | sys.stdlib_module_names, path


def test_it_builds_and_runs_without_torch_and_coreai_onnx(tmp_path: Path) -> None:
    program = OnnxProgram({"main": linear_model()})
    program.save(tmp_path / "before.onnx")
    program.to_python(tmp_path / "written")
    blocked = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "coreai_onnx", "transformers"):
            raise ImportError(name + " is not installed here")
sys.meta_path.insert(0, Block())
import numpy, runpy, written
print(written.call(numpy.ones((2, 8), numpy.float32)).shape)
sys.argv = ["written", "build", "after.onnx"]
runpy.run_module("written", run_name="__main__")
"""
    command = [sys.executable, "-P", "-c", "import sys; sys.path.insert(0, '.')\n" + blocked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(2, 64)\nafter.onnx\n"
    assert main(["diff", str(tmp_path / "before.onnx"), str(tmp_path / "after.onnx")]) == 0


# -------------------------------------------------------------------- folders
def test_the_same_model_gives_the_same_files(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        folder = OnnxProgram({"main": layers_model()}).to_python(tmp_path / name / "written")
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append({str(p.relative_to(folder)): p.read_bytes() for p in paths})
    assert contents[0] == contents[1]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()


def test_an_earlier_package_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": layers_model()}).to_python(tmp_path / "written")
    (folder / "notes.md").write_text("mine")
    rebuilt(linear_model(), tmp_path)
    assert (folder / "notes.md").read_text() == "mine"


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    program = OnnxProgram({"main": linear_model()})
    with pytest.raises(SaveError, match="was not written by to_python"):
        program.to_python(tmp_path / "mine")
    with pytest.raises(SaveError, match="must be a name in Python"):
        program.to_python(tmp_path / "my-model")
    with pytest.raises(SaveError, match="cannot write"):
        program.to_python(tmp_path / "missing" / "written")
    with pytest.raises(SaveError, match="File name too long"):
        program.to_python(tmp_path / ("x" * 300))


def test_a_failure_leaves_the_earlier_package(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": linear_model()}).to_python(tmp_path / "written")
    before = (folder / "model.py").read_bytes()
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) { y = Neg(x) }""")
    model.graph.node(0).attributes.add(
        ir.Attr("sparse", ir.AttributeType.SPARSE_TENSOR, onnx.SparseTensorProto())
    )
    with pytest.raises(SaveError, match="SPARSE_TENSOR cannot be written as Python"):
        OnnxProgram({"main": model}).to_python(folder)
    assert (folder / "model.py").read_bytes() == before


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="was not written by to_python"):
        from_python(tmp_path)
    with pytest.raises(LoadError, match="was not written by to_python"):
        from_python(tmp_path / ("x" * 300))


def test_the_names_file_may_be_missing(tmp_path: Path) -> None:
    program = OnnxProgram({"main": layers_model()})
    folder = program.to_python(tmp_path / "written")
    assert json.loads((folder / "model.names.json").read_text())["digest"]
    (folder / "model.names.json").unlink()
    again = from_python(folder)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(again.run(x)[0], program.run(x)[0])


def test_a_program_keeps_its_weights_when_the_package_is_replaced(tmp_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    first, second = (OnnxProgram({"main": linear_model(seed=seed)}) for seed in (0, 1))
    again = from_python(first.to_python(tmp_path / "written"))
    with imported(second.to_python(tmp_path / "written")) as package:
        np.testing.assert_array_equal(again.run(x)[0], first.run(x)[0])
        first.to_python(tmp_path / "written")
        with pytest.raises(ValueError, match=r"model\.safetensors has changed since model\.py was"):
            package.call(x)


def test_a_single_file_leaves_the_weights_of_a_package(tmp_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    program = OnnxProgram({"main": linear_model(seed=0)})
    folder = program.to_python(tmp_path / "written")
    for name in ("k", "weights", "names"):
        write_file(linear_model(seed=1), folder / f"{name}.py")
    np.testing.assert_array_equal(from_python(folder).run(x)[0], program.run(x)[0])
