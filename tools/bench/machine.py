"""The processor of a measurement, in words."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = "avx2 avx_vnni avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_int8 amx_fp16"


def processor() -> str:
    """Return name, family, model, caches and units of vectors and tiles as the processor reports.

    A hypervisor may report another model, and fewer units than there are.
    """
    if not CPUINFO.is_file():
        return platform.processor()
    first = CPUINFO.read_text(encoding="utf-8").split("\n\n")[0]
    facts = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in first.splitlines())}
    flags = facts.get("flags", "").split()
    words = [facts.get("model name", platform.machine())]
    words += [f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    words += _caches()
    words += [", ".join(unit for unit in UNITS.split() if unit in flags)]
    words += ["behind a hypervisor"] * ("hypervisor" in flags)
    return "; ".join(word for word in words if word)


def _caches() -> list[str]:
    """Return the sizes of the second-level and third-level caches."""
    found = []
    for place in sorted(CACHES.glob("index*")):
        level, size = ((place / name).read_text().strip() for name in ("level", "size"))
        if level != "1":
            found.append(f"L{level} {size}")
    return found
