"""WebGPU without a GPU: SwiftShader, the software Vulkan device that Debian's chromium brings."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CHROMIUM = Path("/usr/lib/chromium")
"""The folder of Debian's package."""


def use_swiftshader() -> None:
    """Let Dawn, which onnxruntime-webgpu contains, find SwiftShader; call it before a session.

    Raises:
        SystemExit: If the package chromium is not installed.
    """
    loader, driver = CHROMIUM / "libvulkan.so.1", CHROMIUM / "vk_swiftshader_icd.json"
    if not (loader.is_file() and driver.is_file()):
        raise SystemExit(f"{driver} is missing: as root, apt-get install chromium")
    os.environ["VK_ICD_FILENAMES"] = str(driver)
    # Dawn opens libvulkan.so.1 by this name and gets the library that is loaded already. The whole
    # folder in LD_LIBRARY_PATH would replace system libraries too.
    ctypes.CDLL(str(loader), ctypes.RTLD_GLOBAL)
