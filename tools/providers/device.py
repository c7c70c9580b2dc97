"""WebGPU without a GPU: SwiftShader, the software Vulkan device that Debian's chromium brings."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

CHROMIUM = Path("/usr/lib/chromium")
"""The folder of Debian's package."""
WITHOUT_SUBGROUPS = Path(__file__).resolve().parents[2] / "build/webgpu-env/libvulkan.so.1"
"""A loader that hides subgroups, of ``no_subgroups.c``."""


@functools.cache
def use_swiftshader() -> None:
    """Let Dawn, which onnxruntime-webgpu contains, find SwiftShader; call it before a session.

    Its subgroups are hidden: GroupQueryAttention of onnxruntime-webgpu 1.27 is wrong for subgroups
    of less than 8 lanes, which no GPU has.

    Raises:
        SystemExit: If the package chromium is not installed.
    """
    loader, driver = CHROMIUM / "libvulkan.so.1", CHROMIUM / "vk_swiftshader_icd.json"
    if not (loader.is_file() and driver.is_file()):
        raise SystemExit(f"{driver} is missing: as root, apt-get install chromium")
    os.environ["VK_ICD_FILENAMES"], os.environ["VULKAN_LOADER"] = str(driver), str(loader)
    # Dawn opens libvulkan.so.1 by this name and gets the library that is loaded already. The whole
    # folder in LD_LIBRARY_PATH would replace system libraries too.
    ctypes.CDLL(str(WITHOUT_SUBGROUPS), ctypes.RTLD_GLOBAL)
