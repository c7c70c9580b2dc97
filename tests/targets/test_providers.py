"""Names of execution providers, their options, and the packages that bring them."""

from __future__ import annotations

from typing import Any

import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.targets.providers import (
    COREML,
    CPU,
    CUDA,
    NAMES,
    PACKAGES,
    chosen_providers,
    unavailable,
)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ("cuda", {CUDA: {}}),
        ("CUDA", {CUDA: {}}),
        (CUDA, {CUDA: {}}),
        (("cuda", {"device_id": 1, "use_tf32": True}), {CUDA: {"device_id": "1", "use_tf32": "1"}}),
        (["cuda", "cpu"], {CUDA: {}, CPU: {}}),
        ([("cuda", {}), CPU], {CUDA: {}, CPU: {}}),
        ("MyExecutionProvider", {"MyExecutionProvider": {}}),
        ((), {}),
    ],
)
def test_choices(choices: Any, expected: dict[str, dict[str, str]]) -> None:
    chosen = chosen_providers(choices)
    assert chosen == expected
    assert list(chosen) == list(expected)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("cpu", {"use_arenas": 1}), "CPUExecutionProvider has no option use_arenas; it has use_"),
        (("cpu", {"use_arena": "yes"}), "CPUExecutionProvider: use_arena is 0 or 1, got yes"),
        (("webgpu", {"device_id": 1}), "WebGpuExecutionProvider has no option device_id; it has"),
    ],
)
def test_options_that_onnxruntime_would_ignore(choice: Any, message: str) -> None:
    with pytest.raises(SessionError, match=f"^{message}"):
        chosen_providers(choice)
    name, _ = choice
    assert chosen_providers((name, {})) == {NAMES[name]: {}}


@pytest.mark.parametrize("choices", [[3], [None], [""], [("cuda", 3)], [(3, {})]])
def test_choices_that_are_no_names(choices: Any) -> None:
    with pytest.raises(SessionError, match="a provider must be a name, or a name and its options"):
        chosen_providers(choices)


def test_every_name_has_a_package() -> None:
    assert set(NAMES.values()) == {*PACKAGES, COREML}


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        (CUDA, "pip install onnxruntime-gpu brings it, in place of this one"),
        (COREML, "that of macOS has it"),
        ("MyExecutionProvider", "onnxruntime.register_execution_provider_library"),
        ("gpu", "names are cpu, cuda, webgpu, openvino"),
    ],
)
def test_a_provider_that_is_not_available(name: str, cure: str) -> None:
    message = unavailable(name, [CPU, "BExecutionProvider", CPU], "1.30.0")
    assert message.startswith(
        f"{name} is not available in onnxruntime 1.30.0, which has BExecutionProvider, {CPU}; "
    )
    assert cure in message
    assert "\n" not in message
