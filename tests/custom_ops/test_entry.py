"""Registration: names, dtypes, targets, functions of the same name, and the exported symbols."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import helper

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import DOMAIN, FLOAT_DTYPES
from tests.custom_ops.single_op import DTYPES, ORT_SILENT, open_session, run_op, single_op_model
from tests.support.tolerances import assert_close

OPS = ["layer_norm", "rms_norm", "scaled_dot_product_attention"]
EVERY_OP = sorted(name for name, composite in COMPOSITES.items() if composite.kernel)


_TWO_ROWS = dict.fromkeys(("geglu", "skip_layer_norm", "skip_rms_norm", "swiglu"), ((2, 8),) * 2)
_ATTENTION = ("scaled_dot_product_attention", "scaled_dot_product_attention_bshd")
SHAPES = {
    **_TWO_ROWS,
    **dict.fromkeys(_ATTENTION, ((1, 2, 3, 4),) * 3),
    "add_bias": ((2, 8), (8,)),
    "add_low_rank": ((2, 8), (2, 6), (6, 3), (3, 8)),
    "convolution": ((1, 2, 5, 6), (3, 2, 2, 2)),
    "gather_mm": ((2, 8), (8, 3)),
    "rope": ((2, 3, 8),),
}
"""The inputs of ops that take any numbers; all others take one tensor [2, 8]."""


def inputs_of(op, dtype=torch.float32):
    if op == "gated_delta_update":
        return [torch.rand(1, 3, 2, *n).to(dtype) for n in ((4,), (4,), (4,), (), ())]
    if op == "gather_mm_nbits":
        codes = torch.randint(0, 256, (2, 3, 1, 16), dtype=torch.uint8)
        return [torch.randn(2, 32).to(dtype), codes, torch.rand(2, 3, 1).to(dtype), torch.tensor(1)]
    if op == "kv_cache_update":
        return [torch.randn(1, 2, s, 4).to(dtype) for s in (3, 1)] + [torch.tensor(1)]
    if op == "linear_nbits":
        codes = torch.randint(0, 256, (3, 1, 16), dtype=torch.uint8)
        return [torch.randn(2, 32).to(dtype), codes, torch.rand(3, 1).to(dtype)]
    if op == "attention_nbits":
        codes = torch.randint(0, 256, (1, 2, 3, 4), dtype=torch.uint8)
        scales = torch.rand(1, 2, 3, 1).to(dtype)
        return [torch.randn(1, 2, 3, 4).to(dtype), codes, scales, codes, scales]
    if op == "paged_attention_nbits":
        codes = torch.randint(0, 256, (3, 4, 2, 4), dtype=torch.uint8)
        scales, table = torch.rand(3, 4, 2, 1).to(dtype), torch.tensor([[2, 0]])
        return [torch.randn(1, 2, 3, 4).to(dtype), codes, scales, codes, scales, table]
    if op == "paged_attention":
        pools = [torch.randn(3, 4, 2, 4).to(dtype) for _ in range(2)]
        return [torch.randn(1, 2, 3, 4).to(dtype), *pools, torch.tensor([[2, 0]])]
    return [torch.randn(shape).to(dtype) for shape in SHAPES.get(op, ((2, 8),))]


def info(library):
    query = ctypes.CDLL(str(library)).CoreaiOnnxOpsInfo
    query.restype = ctypes.c_char_p
    return query().decode()


@pytest.mark.parametrize("op", EVERY_OP)
def test_every_op_type_of_the_declaration_is_registered(kernels, op):
    inputs = {dtype: inputs_of(op, getattr(torch, dtype)) for dtype in FLOAT_DTYPES}
    plain = {dtype: run_op(kernels, op, inputs[dtype]) for dtype in FLOAT_DTYPES}
    # Sessions that multiply by tiles register these, see test_tiles.py.
    for op_type in (name for name in COMPOSITES[op].op_types() if "tiles" not in name):
        last = re.split(r"[._]", op_type)[-1]
        dtype = last if last in FLOAT_DTYPES else "float32"
        assert run_op(kernels, op_type, inputs[dtype]).equal(plain[dtype]), op_type


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_kernel_runs_in_place_of_the_function_of_its_name(kernels, op, dtype):
    # The body answers something else than the composite, so that one can tell who answered.
    names = [i.name for i in COMPOSITES[op].inputs]
    body = helper.make_function(
        DOMAIN,
        f"{op}.unscaled" if op != OPS[2] else f"{op}.causal",
        names,
        ["output"],
        [helper.make_node("Identity", [names[0]], ["output"])],
        [helper.make_opsetid("", 18)],
    )
    inputs = inputs_of(op, dtype)
    model = single_op_model(body.name, inputs, {}, [body])
    fed = [x.float() if dtype == torch.bfloat16 else x for x in inputs]
    feeds = {f"in{i}": x.numpy() for i, x in enumerate(fed)}
    from_body = open_session(model, None).run(None, feeds)[0]
    from_kernel = open_session(model, kernels, op_types=body.name).run(None, feeds)[0]
    assert np.array_equal(from_body, feeds["in0"])
    assert not np.array_equal(from_kernel, feeds["in0"])
    assert from_kernel.dtype == feeds["in0"].dtype


def test_a_model_may_mix_dtypes_and_variants(kernels):
    for dtype in DTYPES:
        x = torch.randn(2, 8).to(dtype)
        plain = run_op(kernels, "rms_norm", [x])
        assert plain.dtype == dtype
        assert plain.equal(run_op(kernels, "rms_norm.unscaled", [x]))


def test_output_type_and_shape_are_inferred_at_load(kernels):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    model = single_op_model(OPS[2], [q, k, torch.randn(2, 1, 5, 6)], {})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    output = open_session(model, kernels).get_outputs()[0]
    # Earlier releases crash where they are told a shape, so they are told the type alone.
    told = tuple(int(part) for part in ort.__version__.split(".")[:2]) >= (1, 24)
    assert output.shape == (["d0_0", "d0_1", "d0_2", "d2_3"] if told else [])
    assert output.type == "tensor(float)"


def test_absent_inputs_in_the_middle_load_and_run(kernels):
    x, bias = torch.randn(2, 8), torch.randn(8)
    shifted = run_op(kernels, "layer_norm", [x, None, bias])
    assert_close(shifted, run_op(kernels, "layer_norm", [x]) + bias)


def test_a_session_may_ask_for_its_op_types_only(kernels):
    x = torch.randn(2, 8)
    options = ort.SessionOptions()
    options.log_severity_level = ORT_SILENT
    options.add_session_config_entry("coreai.op_types", "layer_norm,rms_norm.unscaled")
    options.register_custom_ops_library(str(kernels))

    def run(op_type):
        model = single_op_model(op_type, [x], {}).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {"in0": x.numpy()})[0])

    assert run("layer_norm").equal(run_op(kernels, "layer_norm", [x]))
    assert run("rms_norm.unscaled").equal(run_op(kernels, "rms_norm", [x]))
    with pytest.raises(Exception, match="rms_norm"):
        run("rms_norm")


@pytest.mark.parametrize(
    "target", ["scalar_fma", "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"]
)
def test_the_target_can_be_chosen(kernels, monkeypatch, target):
    best = info(kernels)
    monkeypatch.setenv("COREAI_OPS_TARGET", target)
    x = torch.randn(3, 50)
    if "unsupported" in info(kernels):
        with pytest.raises(Exception, match=f"COREAI_OPS_TARGET={target} is not supported by this"):
            run_op(kernels, "rms_norm", [x])
        return
    assert f"target={target} " in info(kernels)
    here = run_op(kernels, "rms_norm", [x])
    monkeypatch.delenv("COREAI_OPS_TARGET")
    assert info(kernels) == best
    assert_close(here, run_op(kernels, "rms_norm", [x]))


def test_an_unknown_target_is_refused_with_the_known_ones(kernels, monkeypatch):
    monkeypatch.setenv("COREAI_OPS_TARGET", "avx1024")
    with pytest.raises(Exception, match="=avx1024 is not a known target; supported here: scalar"):
        run_op(kernels, "rms_norm", [torch.ones(2, 3)])


def test_info_says_version_target_and_api(kernels):
    name, version, target, api = info(kernels).split()
    assert name == "coreai_onnx_ops"
    assert version[0].isdigit()
    assert target.startswith("target=")
    assert api == "ort_api=21"


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_only_two_symbols_are_exported(kernels):
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(kernels)], capture_output=True, text=True, check=True
    )
    symbols = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert symbols == {"CoreaiOnnxOpsInfo", "RegisterCustomOps"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_the_library_needs_the_libraries_of_the_compiler_only(kernels):
    listing = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(kernels)], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", listing))
    assert "libc" in needed
    assert needed <= {  # the libraries of a wheel contain the C++ runtime and need those of glibc
        "libc",
        "libdl",
        "libpthread",
        "librt",
        "libstdc++",
        "libm",
        "libgcc_s",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


def test_the_library_is_small(kernels):
    assert kernels.stat().st_size < 17 << 19


def test_one_session_serves_many_threads(kernels):
    inputs = [torch.randn(1, 4, 40, 16) for _ in range(3)]
    session = open_session(single_op_model(OPS[2], inputs, {"is_causal": 1}), kernels, threads=2)
    feeds = {f"in{i}": x.numpy() for i, x in enumerate(inputs)}
    first = session.run(None, feeds)[0]
    same = []

    def work():
        same.extend(np.array_equal(session.run(None, feeds)[0], first) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(same) == 80
    assert all(same)


def test_results_do_not_depend_on_the_number_of_threads(kernels):
    inputs = [torch.randn(2, 6, 150, 16) for _ in range(3)]
    one = run_op(kernels, OPS[2], inputs, threads=1)
    assert one.equal(run_op(kernels, OPS[2], inputs, threads=2))
    x = torch.randn(300, 1000)
    assert run_op(kernels, "rms_norm", [x], threads=1).equal(
        run_op(kernels, "rms_norm", [x], threads=2)
    )


class OldApiBase(ctypes.Structure):
    """An ``OrtApiBase`` of an onnxruntime that only knows the first version of the API."""

    _fields_ = [("get_api", ctypes.c_void_p), ("get_version", ctypes.c_void_p)]


def test_an_onnxruntime_that_is_too_old_is_a_status(kernels):
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    said = []

    @create
    def create_status(code, message):
        said.append((code, message.decode()))
        return 0x1000

    api = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))
    first = ctypes.addressof(api)
    old = get_api(lambda version: first if version < 21 else None)
    base = OldApiBase(ctypes.cast(old, ctypes.c_void_p), None)
    register = ctypes.CDLL(str(kernels)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    register.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    assert register(None, ctypes.byref(base)) == 0x1000
    assert said == [(1, "coreai ops need onnxruntime 1.21 or later")]


def test_this_onnxruntime_is_new_enough():
    assert tuple(int(part) for part in ort.__version__.split(".")[:2]) >= (1, 21)
