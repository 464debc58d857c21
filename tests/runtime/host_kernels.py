"""The kernels of tests/runtime/kernels, with their launch geometry."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from thunder_fuser.codegen.kernel import Kernel, Param

FOLDER = Path(__file__).with_name("kernels")
_SIGNATURE = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
_HEADERS = ("types.cuh", "vector.cuh", "reduce.cuh")


def load(name: str, **changes: object) -> Kernel:
    """The kernel in <name>.cu: one block of 256 threads, 1 KiB of shared memory, collectives."""
    source = (FOLDER / f"{name}.cu").read_text()
    signature = _SIGNATURE.search(source)
    assert signature is not None
    assert signature[1] == name
    params = [re.fullmatch(r"(.*[ *])(\w+)", text.strip()) for text in signature[2].split(",")]
    kernel = Kernel(
        name=name,
        source=source,
        headers=_HEADERS,
        params=tuple(Param(p[2], p[1].strip()) for p in params if p),
        grid=(1, 1, 1),
        block=(256, 1, 1),
        shared_bytes=1024,
        collectives=True,
    )
    return replace(kernel, **changes)  # type: ignore[arg-type]
