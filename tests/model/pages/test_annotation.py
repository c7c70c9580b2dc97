"""Python with numbers beside it."""

from __future__ import annotations

from pathlib import Path

from coreai_onnx.model.pages.annotation import annotated

CODE = {"net.py:2": "h = up(x)", "net.py:4": "return down(h)", "sub/act.py:1": "def f(x): return x"}
LINES = {"net.py:2": ["1.5", "75%"], "net.py:4": ["12.5", "25%"]}
TEXT = "def forward(x):\n    h = up(x)\n    # between\n    return down(h)\n\n\n\n\nlast = 1\n"


def test_without_the_files() -> None:
    assert annotated(LINES, ["ms", "share"], CODE).splitlines() == [
        "  ms  share   line  code",
        "",
        "net.py",
        " 1.5    75%      2  h = up(x)",
        "                    …",
        "12.5    25%      4  return down(h)",
        "",
        "sub/act.py",
        "                 1  def f(x): return x",
    ]


def test_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TEXT)
    lines = annotated(LINES, ["ms", "share"], CODE, tmp_path).splitlines()
    assert lines[3:9] == [
        "                 1  def forward(x):",
        " 1.5    75%      2      h = up(x)",
        "                 3      # between",
        "12.5    25%      4      return down(h)",
        "                 5",
        "                 6",
    ]
    assert not any("last" in line for line in lines)


def test_a_file_that_has_changed_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TEXT.replace("up(x)", "left(x)"))
    assert annotated(LINES, ["ms", "share"], CODE, tmp_path) == annotated(
        LINES, ["ms", "share"], CODE
    )


def test_no_file_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("a\nsecret\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link.py").symlink_to(tmp_path / "secret.py")
    for name in ("../secret.py", str(tmp_path / "secret.py"), "link.py", "\0", "x" * 5000):
        shown = annotated({f"{name}:2": ["1"]}, ["ms"], {f"{name}:2": ""}, tmp_path / "inside")
        assert "secret\n" not in shown + "\n"


def test_sources_that_are_no_lines_and_control_characters() -> None:
    text = annotated({"net.py": ["1"], "net.py:x": ["1"]}, ["ms"], {"n\x1b[1m.py:1": "a\x1b[2J"})
    assert "\x1b" not in text
    assert text.count("\n") == 3
