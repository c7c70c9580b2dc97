"""Files do not tell where, when or by which process they were made."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import torch

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.rand(16)), 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = Norm(), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        heads = self.qkv(self.norm(x)).unflatten(-1, (12, 4)).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + torch.nn.functional.silu(self.out(mixed.transpose(1, 2).flatten(-2)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.table = torch.nn.Embedding(50, 16)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, ids, flag):
        x = self.table(ids)
        self.seen.add_(1)
        for layer in self.layers:
            x = layer(x)
        return torch.cond(flag, lambda x: x.relu() + 1, lambda x: x.tanh(), (x,)), self.seen + 0
"""
CONVERT = """
import sys
from pathlib import Path
import torch, coreai_onnx
from model_of_mine import Layer, Model

torch.manual_seed(0)
dims = {"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}, "flag": None}
given = torch.randint(0, 50, (2, 7)), torch.tensor(True)
for name, externalize in (("flat", None), ("layers", ["auto", Layer])):
    program = coreai_onnx.convert(
        Model().eval(), given, dynamic_shapes=dims, externalize_modules=externalize, optimize=False
    )
    program.optimize(target="contrib" if externalize else "onnxruntime")
    for level in ("full", "compact"):
        path = Path("made") / f"{name}.{level}.onnx"
        program.save(path, external_data=level == "full", debug_info=level)
"""


def made(folder: Path, repo: Path, seed: str) -> dict[str, bytes]:
    """Convert in a process of its own, in a folder of its own; return the files."""
    home = folder.with_name(f"{folder.name}-home-of-nobody")  # not in the folder it runs in
    home.mkdir()
    (folder / "made").mkdir(parents=True)
    (home / "model_of_mine.py").write_text(MODEL)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": f"{repo}{os.pathsep}{home}",
        "HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONVERT],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {file.name: file.read_bytes() for file in sorted((folder / "made").iterdir())}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> list[dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("reproducible")
    return [made(folder / name, repo, seed) for name, seed in (("a", "0"), ("elsewhere", "4321"))]


@pytest.mark.slow
def test_processes_write_the_same_bytes(twice: list[dict[str, bytes]]) -> None:
    hashes = [{n: hashlib.sha256(b).hexdigest() for n, b in files.items()} for files in twice]
    assert len(hashes[0]) == 6
    assert hashes[0] == hashes[1]


def test_no_path_of_the_machine_is_in_a_file(
    twice: list[dict[str, bytes]], repo: Path, tmp_path: Path
) -> None:
    places = (
        str(repo),
        sys.prefix,
        str(tmp_path.parent.parent),
        str(Path.home()),
        "home-of-nobody",
    )
    for name, content in twice[0].items():
        found = [place for place in places if place.encode() in content]
        assert not found, f"{name} tells {found}"
        paths = re.findall(rb"(?<![\w.\-])/(?:[\w.\-]+/)+[\w.\-]+", content)
        assert not name.endswith(".onnx") or not paths, f"{name} tells {paths[:3]}"


def test_the_lines_of_the_users_model_are_in_the_files(twice: list[dict[str, bytes]]) -> None:
    for name, content in twice[0].items():
        assert name.endswith(".data") or b"model_of_mine.py" in content, name
