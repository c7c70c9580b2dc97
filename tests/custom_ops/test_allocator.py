"""Weights in huge pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from coreai_onnx import ops_library_path

SIZE = 1024
ENTRY, USED = "coreai.huge_pages", "session.use_env_allocators"
LINUX = sys.platform == "linux"


def product():
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIZE])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def options_with(value, library=None, **entries):
    options = ort.SessionOptions()
    if value is not None:
        options.add_session_config_entry(ENTRY, value)
    for name, entry in entries.items():
        options.add_session_config_entry(name, entry)
    # No kernels, of which onnxruntime takes a second to register all.
    options.add_session_config_entry("coreai.op_types", ",")
    options.register_custom_ops_library(str(library or ops_library_path()))
    return options


def bytes_that_may_be_huge():
    """Bytes of memory for which the process has asked for huge pages (the flag ``hg``)."""
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    sizes = [re.search(r"(?ms)^Rss: +(\d+) kB.*^VmFlags:[^\n]* hg\b", one) for one in mappings]
    return sum(int(size[1]) for size in sizes if size) * 1024


@pytest.mark.parametrize("value", [None, "0"])
def test_the_allocator_of_onnxruntime_is_used_unless_it_is_asked_for(value):
    with pytest.raises(Exception, match=USED):
        options_with(value).get_session_config_entry(USED)


def run_in_new_process(program):
    """Run statements where no session has memory that another one could reuse."""
    lines = "from tests.custom_ops.test_allocator import *\n" + textwrap.dedent(program)
    subprocess.run([sys.executable, "-c", lines], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.skipif(not LINUX, reason="huge pages of Linux")
def test_weights_are_in_huge_pages_and_results_are_the_same():
    run_in_new_process("""
        x = np.random.default_rng(1).standard_normal((1, SIZE)).astype(np.float32)
        model = product().SerializeToString()
        expected = ort.InferenceSession(model).run(None, {"x": x})[0]
        before = bytes_that_may_be_huge()
        options = options_with("1")
        assert options.get_session_config_entry(USED) == "1"
        opened = ort.InferenceSession(model, options)
        assert bytes_that_may_be_huge() - before >= SIZE * SIZE * 4
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], expected)
    """)


@pytest.mark.skipif(not LINUX, reason="huge pages of Linux")
def test_a_session_with_kernels_asks_for_them():
    run_in_new_process("""
        from coreai_onnx import session

        before = bytes_that_may_be_huge()
        opened = session(product(), kernels=True)
        assert bytes_that_may_be_huge() - before >= SIZE * SIZE * 4
        assert opened.run(np.ones((1, SIZE), np.float32))[0].shape == (1, SIZE)
    """)


def test_memory_is_reused_by_the_next_session():
    """Sessions in turn do not need more memory than one; all of them end cleanly."""
    run_in_new_process("""
        model = product().SerializeToString()
        opened = ort.InferenceSession(model, options_with("1"))
        first = bytes_that_may_be_huge() if LINUX else 0
        for _ in range(20):
            opened = ort.InferenceSession(model, options_with("1"))
        last = bytes_that_may_be_huge() if LINUX else 0
        assert last <= 3 * first, (first, last)
        opened.run(None, {"x": np.ones((1, SIZE), np.float32)})
    """)


def test_an_allocator_that_is_registered_already_stays():
    run_in_new_process("""
        kind, memory = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
        ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, memory), None)
        opened = ort.InferenceSession(product().SerializeToString(), options_with("1"))
        opened.run(None, {"x": np.ones((1, SIZE), np.float32)})
    """)


@pytest.mark.skipif(not LINUX, reason="huge pages of Linux")
@pytest.mark.parametrize("value", ["0", "1"])
def test_an_application_with_its_own_allocators_keeps_them(value):
    run_in_new_process(f"""
        before = bytes_that_may_be_huge()
        options = options_with("1", **{{USED: "{value}"}})
        assert options.get_session_config_entry(USED) == "{value}"
        opened = ort.InferenceSession(product().SerializeToString(), options)
        assert bytes_that_may_be_huge() == before
    """)


@pytest.mark.parametrize("first", ["copy", "library"])
def test_the_allocator_outlives_the_sessions_of_its_library(first, kernels, tmp_path):
    """onnxruntime unloads a library, and keeps its allocator for the sessions of another copy."""
    copy = shutil.copy(kernels, tmp_path)
    libraries = [copy, str(kernels)] if first == "copy" else [str(kernels), copy]
    run_in_new_process(f"""
        model = product().SerializeToString()
        for library in 2 * {libraries}:
            opened = ort.InferenceSession(model, options_with("1", library))
            opened.run(None, {{"x": np.ones((1, SIZE), np.float32)}})
            del opened  # and with it the last user of the library
        kept = ort.InferenceSession(model, options_with("1", {libraries}[0]))
        for library in {libraries}:
            opened = ort.InferenceSession(model, options_with("1", library))
            for each in (opened, kept):
                each.run(None, {{"x": np.ones((1, SIZE), np.float32)}})
    """)


@pytest.mark.skipif(not LINUX, reason="huge pages of Linux")
def test_a_result_that_no_memory_holds_is_an_error():
    run_in_new_process("""
        rows = numpy_helper.from_array(np.array([1 << 44, 4]), "rows")
        graph = helper.make_graph(
            [helper.make_node("Expand", ["x", "rows"], ["y"])],
            "large",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
            [rows],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        opened = ort.InferenceSession(model.SerializeToString(), options_with("1"))
        with pytest.raises(Exception, match="cannot allocate 281474976710656 bytes"):
            opened.run(None, {"x": np.ones(4, np.float32)})
    """)
