"""Eight threads convert and run at once, and leave torch and transformers as they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import _VF
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import coreai_onnx
from coreai_onnx.errors import ExportError
from coreai_onnx.export.compat.turns import is_mine, turn
from tests.support.tolerances import assert_close

THREADS = 8


class Layer(torch.nn.Module):
    """A layer that becomes a function of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Model(torch.nn.Module):
    """Makes use of everything that is patched: recurrent layers, reads of modules, guards."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = torch.nn.LSTM(3, 4, batch_first=True)
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(self.recurrent(x)[0])
        return out


def experts() -> Any:
    """Return the registry of transformers that conversions patch."""
    from transformers.integrations import moe

    return moe.ALL_EXPERTS_FUNCTIONS


def names() -> list[Any]:
    """Return everything that conversions replace, as it is now."""
    return [
        vars(ShapeEnv)["_get_sloc"],
        vars(ExportedProgram)["run_decompositions"],
        *(vars(_VF).get(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
        vars(torch.nn.Module).get("__getattribute__"),
        vars(experts()).get("get_interface"),
    ]


@contextmanager
def all_as_before() -> Iterator[None]:
    before = names()
    yield
    assert all(a is b for a, b in zip(names(), before, strict=True))


def converted(model: torch.nn.Module) -> coreai_onnx.OnnxProgram:
    x = torch.randn(2, 5, 3)
    dims = {"x": {0: Dim("batch"), 1: Dim("steps", max=64)}}
    return coreai_onnx.convert(model, (x,), dynamic_shapes=dims, externalize_modules=[Layer])


@pytest.mark.slow
def test_eight_threads_convert_and_run_at_once() -> None:
    model, running = Model().eval(), Model().eval()
    x = torch.randn(3, 7, 3)
    expected = running(x).detach()
    session = coreai_onnx.session(converted(running), kernels=False)
    done = threading.Event()

    def convert(_: int) -> torch.Tensor:
        own = Model().eval()
        own.load_state_dict(model.state_dict())
        (out,) = converted(own).run(x)
        return torch.as_tensor(out)

    def run(_: int) -> int:
        runs = 0
        while not done.is_set():
            assert_close(running(x).detach(), expected)  # as torch computes it
            assert_close(list(session.run(x)), [expected])
            runs += 1
        return runs

    half = THREADS // 2
    with all_as_before(), ThreadPoolExecutor(THREADS) as pool:
        running_threads = [pool.submit(run, i) for i in range(half)]
        try:
            results = list(pool.map(convert, range(half)))
        finally:
            done.set()
        assert all(future.result() for future in running_threads)
    for result in results:
        assert_close(result, model(x).detach())


class _Ops(TorchDispatchMode):
    """Notes the namespaces of the ops that run in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.namespace)
        return func(*args, **(kwargs or {}))


def ops_of(layer: torch.nn.Module, x: torch.Tensor) -> set[str]:
    with torch.no_grad(), _Ops() as ops:
        layer(x)
    return ops.seen


def test_a_layer_in_another_thread_runs_on_torchs_own_ops_during_an_export() -> None:
    layer, x = torch.nn.LSTM(3, 4), torch.randn(2, 1, 3)
    seen: list[set[str]] = []

    def export(model: torch.nn.Module) -> ExportedProgram:
        with ThreadPoolExecutor(1) as pool:
            seen.extend([ops_of(layer, x), pool.submit(ops_of, layer, x).result()])
        return torch.export.export(model, (torch.randn(2, 5, 3),))

    with all_as_before():
        coreai_onnx.TorchConverter().add_pytorch_module(Model().eval(), export_fn=export)
    assert ["coreai_recurrent" in namespaces for namespaces in seen] == [True, False]


def test_a_conversion_inside_another() -> None:
    inner: list[coreai_onnx.OnnxProgram] = []

    def export(model: torch.nn.Module) -> ExportedProgram:
        inner.append(converted(Model().eval()))
        return torch.export.export(model, (torch.randn(2, 5, 3),))

    with all_as_before():
        converter = coreai_onnx.TorchConverter()
        outer = converter.add_pytorch_module(Model().eval(), export_fn=export).to_onnx()
    assert {n.op_type for n in inner[0].model.graph} & {"LSTM"}
    assert {n.op_type for n in outer.model.graph} & {"LSTM"}


def test_another_patcher_around_and_inside() -> None:
    calls: list[str] = []
    original = _VF.lstm

    def around(*args: Any) -> Any:
        calls.append("around")
        return original(*args)

    def export(model: torch.nn.Module) -> ExportedProgram:
        ours = _VF.lstm

        def inside(*args: Any) -> Any:
            calls.append("inside")
            return ours(*args)

        _VF.lstm = inside
        return torch.export.export(model, (torch.randn(2, 5, 3),))

    layer, x = torch.nn.LSTM(3, 4), torch.randn(2, 1, 3)
    expected = layer(x)[0]
    _VF.lstm = around
    try:
        coreai_onnx.TorchConverter().add_pytorch_module(Model().eval(), export_fn=export)
        assert calls[0] == "inside"
        calls.clear()
        assert torch.equal(layer(x)[0], expected)
        assert calls == ["inside", "around"]
    finally:
        del _VF.lstm
    assert _VF.lstm is original


def test_an_error_inside_a_conversion_gives_all_back_and_the_turn_too() -> None:
    def export(model: torch.nn.Module) -> ExportedProgram:
        raise RuntimeError("no")

    with all_as_before():
        with pytest.raises(ExportError, match="no"):
            coreai_onnx.TorchConverter().add_pytorch_module(Model().eval(), export_fn=export)
        assert not is_mine()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(converted, Model().eval()).result()


def test_a_turn_is_of_one_thread_and_nests() -> None:
    with turn(), turn():
        assert is_mine()
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(is_mine).result()
    assert not is_mine()


def test_the_child_of_a_fork_has_a_turn_of_its_own() -> None:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turn():
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        with turn():
            os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
