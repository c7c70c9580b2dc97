"""The options that ``quantize``, ``convert`` and ``export`` share, and data from files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.cli.options.quantization import chosen, declare, feeds
from coreai_onnx.errors import CommandError, QuantizationError


def parsed(*words: str, bits: int | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    declare(parser, bits)
    return parser.parse_args(words)


def test_only_what_is_given_becomes_an_argument() -> None:
    assert chosen(parsed()) is None
    assert chosen(parsed(bits=4)) == {"bits": 4}
    words = ["--bits", "3", "--group-size", "16", "--method", "rtn", "--symmetric"]
    words += ["--no-embeddings", "--rule", "a=8:32", "--rule", "b=2", "--skip", "c"]
    assert chosen(parsed(*words)) == {
        "bits": 3,
        "group_size": 16,
        "method": "rtn",
        "symmetric": True,
        "embeddings": False,
        "rules": {"a": {"bits": 8, "group_size": 32}, "b": {"bits": 2}},
        "skip": ["c"],
    }


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--rule", "a=8"], "rule"),
        (["--minimum-size", "0"], "minimum-size"),
        (["--evaluation", "data"], "evaluation"),
        (["--layers"], "layers"),
    ],
)
def test_options_without_bits_are_an_error(words: list[str], name: str) -> None:
    with pytest.raises(CommandError, match=f"--{name} is for a quantization; give --bits"):
        chosen(parsed(*words))


def test_values_are_checked_before_the_work() -> None:
    with pytest.raises(QuantizationError, match="bits=5; choose from"):
        chosen(parsed("--bits", "5"))
    with pytest.raises(CommandError, match="--evaluation nowhere: cannot read nowhere"):
        chosen(parsed("--bits", "4", "--evaluation", "nowhere"))


def test_calls_come_in_the_order_of_the_names_of_files(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        np.savez(tmp_path / f"{number}.npz", x=np.array(number))
    assert [int(call["x"]) for call in feeds(tmp_path)] == [0, 1, 2]
    assert [int(call["x"]) for call in feeds(tmp_path / "2.npz")] == [2]
    np.save(tmp_path / "3.npy", np.zeros(2))
    with pytest.raises(CommandError, match=r"3\.npy is not an \.npz file"):
        list(feeds(tmp_path / "3.npy"))


def test_a_pipe_among_the_files_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", x=np.zeros(1))
    os.mkfifo(tmp_path / "1.npz")
    with pytest.raises(CommandError, match=r"cannot read .*1\.npz: is not a regular file"):
        feeds(tmp_path)
