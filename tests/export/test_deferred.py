"""Checkpoints that exceed the memory: their weights stay in the files until they are written."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coreai_onnx.errors import (
    ModelSourceError,
    PartialCheckWarning,
    QuantizationError,
    SaveError,
)
from coreai_onnx.export.deferred import deferred_source
from coreai_onnx.huggingface.checkpoints import loading
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.huggingface.verification import check_first_layers
from coreai_onnx.messages import reported_to
from coreai_onnx.model.files import mapped_tensors
from coreai_onnx.program import OnnxProgram
from tests.support.huggingface_folders import llama, tokenizer

SETTINGS: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
FOUR_BITS: dict[str, Any] = {
    "quantization": {"bits": 4, "method": "rtn"},
    "target": "kernels",
    "external_data": True,
}
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bfloat16 of several shards."""
    path = tmp_path_factory.mktemp("shards")
    llama(**SETTINGS).bfloat16().save_pretrained(path, max_shard_size="600KB")
    tokenizer().save_pretrained(path)
    assert len(list(path.glob("model-*.safetensors"))) > 2
    return path


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model exceed the memory, and every array of a page be large."""
    monkeypatch.setattr(loading, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 12)


def exported(source: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    export_model(source, folder, check=False, **options)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def usual(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an export in 4 bits from memory."""
    return exported(source, tmp_path_factory.mktemp("usual") / "folder", **FOUR_BITS)


@pytest.mark.usefixtures("no_memory")
def test_the_files_are_those_of_an_export_from_memory(
    source: Path, usual: dict[str, bytes], tmp_path: Path
) -> None:
    assert exported(source, tmp_path / "deferred", **FOUR_BITS) == usual
    assert [file.name for file in tmp_path.iterdir()] == ["deferred"]


@pytest.mark.usefixtures("no_memory")
def test_the_program_reads_the_file_that_was_written(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"check": False, **FOUR_BITS}
    (program,) = export_model(source, tmp_path / "deferred", **options).programs.values()
    program.save(tmp_path / "again.onnx", external_data=True)
    written = tmp_path / "deferred" / "model.onnx.data"
    assert (tmp_path / "again.onnx.data").read_bytes() == written.read_bytes()


@pytest.mark.usefixtures("no_memory")
def test_a_file_of_pickles(source: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(source, pickled, ignore=shutil.ignore_patterns("model*"))
    state = {k: v for file in source.glob("*.safetensors") for k, v in load_file(file).items()}
    torch.save(state, pickled / "pytorch_model.bin")
    model = load_source(pickled).model
    sources = {name: deferred_source(weight) for name, weight in model.named_parameters()}
    deferred = {name: stored for name, stored in sources.items() if stored is not None}
    assert len(deferred) == 8
    assert all(torch.equal(stored, state[name]) for name, stored in deferred.items())
    assert str(pickled) in Path("/proc/self/maps").read_text()


@pytest.mark.usefixtures("no_memory")
def test_floating_point(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "deferred"
    export_model(source, path, check=False, dtype="float16", external_data=True)
    graph = OnnxProgram.load(path / "model.onnx").model.graph
    name = "layers.1.mlp.up_proj.weight"
    (stored,) = (v for k, v in graph.initializers.items() if k.endswith((name, f"{name}.T")))
    assert stored.const_value is not None
    expected = load_source(source, dtype=torch.float16).model.get_parameter(f"model.{name}")
    values = torch.from_numpy(stored.const_value.numpy().copy())
    plain = deferred_source(expected)
    assert plain is not None
    assert torch.equal(values.T if values.shape != plain.shape else values, plain.half())


@pytest.mark.usefixtures("no_memory")
def test_weights_stay_in_the_files(source: Path) -> None:
    model = load_source(source).model
    projection = model.model.layers[1].mlp.up_proj.weight
    stored = deferred_source(projection)
    assert stored is not None
    assert (stored.dtype, projection.dtype) == (torch.bfloat16, torch.float32)
    norm = model.model.layers[1].input_layernorm.weight
    assert deferred_source(norm) is None
    assert norm.all()


@pytest.mark.parametrize(("layers", "memory"), [(0, 1 << 10), (1, 4 << 20)])
def test_the_check_runs_what_fits(
    source: Path, monkeypatch: pytest.MonkeyPatch, layers: int, memory: int
) -> None:
    monkeypatch.setattr(loading, "memory_bytes", lambda: 2 * memory)
    model, checked = load_source(source).model, []
    text = f"compared the first {layers} of 2 layers"
    with pytest.warns(PartialCheckWarning, match=text):
        check_first_layers(model, checked.append)
    assert len(checked) == min(layers, 1)
    for part in checked:
        assert len(part.model.layers) == layers
        for name, weight in part.named_parameters():
            stored = deferred_source(model.get_parameter(name))
            assert torch.equal(weight, model.get_parameter(name) if stored is None else stored)


@pytest.mark.usefixtures("no_memory")
def test_what_is_refused(source: Path, tmp_path: Path) -> None:
    calls = [{"input_ids": [[1, 2]]}]
    with pytest.raises(QuantizationError, match="calibration runs the model, whose weights exceed"):
        exported(source, tmp_path / "x", quantization={"method": "gptq", "calibration": calls})
    with pytest.raises(ModelSourceError, match="stored as its files have them"):
        exported(source, tmp_path / "x", weights_dtype="float16")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_memory")
def test_a_broken_checkpoint(source: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(source, tmp_path / "broken")
    index = json.loads((broken / INDEX).read_text())
    name = "model.layers.1.mlp.up_proj.weight"
    lost = index["weight_map"][name]
    other = next(file for file in index["weight_map"].values() if file != lost)
    (broken / lost).rename(tmp_path / "kept")
    with pytest.raises(ModelSourceError, match=f"{lost} is missing"):
        load_source(broken)
    # The index has the tensor in a shard that lacks it.
    index["weight_map"] = {k: other if v == lost else v for k, v in index["weight_map"].items()}
    (broken / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelSourceError, match="there are no weights"):
        load_source(broken)
    (broken / other).write_bytes((broken / other).read_bytes()[:-1])
    with pytest.raises(ModelSourceError, match="its download is incomplete"):
        load_source(broken)


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_full_disk_leaves_nothing(
    source: Path, usual: dict[str, bytes], tmp_path: Path, share: float
) -> None:
    """The scratch file exceeds the limit, or only the data file, which also has the norms."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = int(share * len(usual["model.onnx.data"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        with pytest.raises(SaveError, match=r"cannot write.*: File too large"):
            exported(source, tmp_path / "folder", **FOUR_BITS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("begun", ["load", "lower", "quantize 3/", "optimize", "save"])
def test_an_interrupt_leaves_nothing(source: Path, tmp_path: Path, begun: str) -> None:
    def interrupt(stage: str) -> None:
        if stage.startswith(begun):
            raise KeyboardInterrupt

    with reported_to(interrupt), pytest.raises(KeyboardInterrupt):
        exported(source, tmp_path / "folder", **FOUR_BITS)
    assert not list(tmp_path.iterdir())
