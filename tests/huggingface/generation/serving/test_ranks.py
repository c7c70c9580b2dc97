"""Ranks generate the tokens of the whole model, and end together."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx.errors import ConversionError, GenerationError, ModelSourceError, SessionError
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.serving.ranks import Ranks
from coreai_onnx.huggingface.opened import export_ranks
from coreai_onnx.model.inventory import weights
from coreai_onnx.runtime.sessions.session import Session
from tests.models.generators import GENERATORS, tokens_of_transformers
from tests.support.huggingface_folders import llama, llama_folder
from tests.support.ranks import joined

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="groups of ranks are for Linux")
PROMPT, NEW = [5, 9, 77, 3], 10
EXPERTS = {
    "model.layers.*.mlp.experts": "ep_dispatch_experts",
    "model.layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "model.layers.*.mlp.experts.down_proj": "grouped_gemm",
}
"""What transformers names as the plan of experts."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> tuple[Any, Path]:
    """A decoder with a tokenizer, and the files of its two ranks."""
    place = tmp_path_factory.mktemp("ranks")
    model = llama_folder(place / "source")
    return model, export_ranks(place / "source", place / "folder", 2)


@pytest.fixture(scope="module")
def ranks(two: tuple[Any, Path]) -> Iterator[Ranks]:
    with Ranks(two[1]) as opened:
        yield opened


def expected_tokens(model: Any) -> list[int]:
    """Return the prompt and the tokens that transformers generates."""
    ids = torch.tensor([PROMPT])
    generated = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=NEW)
    result: list[int] = generated[0].tolist()
    return result


def tokens(folders: list[Path], groups: list[Any]) -> list[list[int]]:
    """Return the tokens of all ranks, which run in threads."""
    opened = zip(folders, groups, strict=True)
    models = [LanguageModel.open(one, threads=1, group=group) for one, group in opened]
    with ThreadPoolExecutor(len(models)) as threads:
        how = {"max_new_tokens": NEW, "stop_ids": ()}
        results = threads.map(lambda model: model.generate(PROMPT, **how), models)
        return [result.tolist() for result in results]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma3_text", "whole_experts"])
def test_tokens_are_those_of_the_whole_model(
    name: str, count: int, tmp_path: Path, kernels: Path
) -> None:
    model: Any = GENERATORS["qwen3_moe" if name == "whole_experts" else name].module()
    plan = {**model.tp_plan, **EXPERTS} if name == "whole_experts" else None
    folder = export_ranks(model, tmp_path / "folder", count, plan=plan)
    folders = [folder / f"rank_{rank}" for rank in range(count)]
    expected = expected_tokens(model)
    # The same files run in the memory of a machine, and on several.
    assert tokens(folders, [uuid.uuid4().hex] * count) == [expected] * count
    if name == "whole_experts":
        initializers = Session(folders[0] / "model.onnx", group="w").model.graph.initializers
        shapes = [tuple(weight.shape or ()) for weight in initializers.values()]
        counts = {shape[0] for shape in shapes if len(shape) == 3}
        assert counts == {model.config.num_experts // count}


@pytest.mark.parametrize("count", [2, 4])
def test_tokens_over_hosts_are_those_of_the_whole_model(
    count: int, tmp_path: Path, kernels: Path
) -> None:
    model = GENERATORS["qwen3_moe"].module()
    folder = export_ranks(model, tmp_path / "folder", count, check=False)
    hosts = joined(count)
    folders = [folder / f"rank_{rank}" for rank in range(count)]
    assert tokens(folders, hosts) == [expected_tokens(model)] * count
    with pytest.raises(SessionError, match=f"the file is that of rank 1 of {count}, the process"):
        LanguageModel.open(folders[1], group=hosts[0])
    for one in hosts:
        one.close()


def test_processes_generate_text(two: tuple[Any, Path], ranks: Ranks) -> None:
    model, _ = two
    expected = expected_tokens(model)
    assert ranks.generate(PROMPT, max_new_tokens=NEW, stop_ids=()).tolist() == expected
    assert isinstance(ranks.generate("once", max_new_tokens=NEW), str)
    sampled = [ranks.generate(PROMPT, temperature=2.0, seed=1, stop_ids=()) for _ in range(2)]
    assert np.array_equal(*sampled)


def test_a_wrong_option_is_an_error_of_one_call(ranks: Ranks) -> None:
    with pytest.raises(GenerationError, match="max_new_tokens"):
        ranks.generate(PROMPT, max_new_tokens=-1)
    assert len(ranks.generate(PROMPT, max_new_tokens=2, stop_ids=())) == len(PROMPT) + 2


def run(ranks: Ranks) -> None:
    """Generate until a rank fails."""
    while True:
        ranks.generate(PROMPT, max_new_tokens=50, stop_ids=())


def test_a_rank_that_dies_ends_all(two: tuple[Any, Path]) -> None:
    ranks = Ranks(two[1])
    died: list[float] = []

    def kill() -> None:
        time.sleep(0.5)
        os.kill(ranks.pids[1], signal.SIGKILL)
        died.append(time.monotonic())

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(GenerationError, match="rank 1 has ended"):
        run(ranks)
    assert time.monotonic() - died[0] < 10
    thread.join()
    for pid in ranks.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(GenerationError, match="the ranks have ended"):
        ranks.generate(PROMPT)
    assert not list(Path("/dev/shm").glob(f"*{ranks.group}*"))


def test_a_rank_does_not_run_alone(two: tuple[Any, Path]) -> None:
    place = two[1] / "rank_0"
    with pytest.raises(SessionError, match="rank 0 of 2, and the session is in no group"):
        LanguageModel.open(place).generate(PROMPT)
    with pytest.raises(SessionError, match="out of data bounds, idx=1"):
        LanguageModel.open(place, kernels=False).generate(PROMPT)
    late = Session(place / "model.onnx", group=uuid.uuid4().hex, timeout=2)
    with pytest.raises(SessionError, match=r"rank 1 did not come within 1\.8"):
        LanguageModel(late).generate(PROMPT)


def test_weights_are_a_share_of_those_of_the_model(two: tuple[Any, Path]) -> None:
    model, folder = two
    total = sum(weight.nbytes for weight in model.parameters())
    for rank in range(2):
        place = folder / f"rank_{rank}" / "model.onnx"
        assert weights(Session(place, group=f"w{rank}").model)[1] <= total * 0.55
        assert (place.parent / "tokenizer.json").exists()


def test_what_is_no_folder_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="not a folder of export_ranks"):
        Ranks(tmp_path)
    (tmp_path / "rank_1").mkdir()
    with pytest.raises(GenerationError, match="not a folder of export_ranks"):
        Ranks(tmp_path)
    (tmp_path / "rank_0").mkdir()
    with pytest.raises(GenerationError, match=r"rank_\d: there is no model.onnx"):
        Ranks(tmp_path)


def test_wrong_exports_write_nothing(tmp_path: Path, kernels: Path) -> None:
    cases: tuple[tuple[dict[str, Any], Any, str], ...] = (
        ({"ranks": 3}, ModelSourceError, "4 heads cannot be split over 3"),
        ({"ranks": 2, "cache": "paged"}, ModelSourceError, "is for an engine"),
        ({"ranks": 2, "dtype": "float8"}, ModelSourceError, "dtype 'float8' must be one of"),
        ({"ranks": 2, "plan": {"lm_head": "colwise"}}, ConversionError, "rank 0 of 2 differs"),
    )
    for arguments, error, said in cases:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        with pytest.raises(error, match=said):
            export_ranks(llama(), place, **arguments)
        assert not place.exists()
