"""Hand-written kernels for the tests of the runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from thunder_fuser.codegen.kernel import Kernel, Param


def make_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process, even of root, may do with a folder of a file system that is read-only."""
    access = os.access

    def may(path: Any, mode: int, *, dir_fd: int | None = None, **how: Any) -> bool:
        place = Path(path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink())
        return access(path, mode, dir_fd=dir_fd, **how) and not (mode & os.W_OK and place == folder)

    monkeypatch.setattr(os, "access", may)


F32_IN = Param("x", "const float*")
F32_OUT = Param("y", "float*")


def kernel(
    name: str,
    body: str,
    params: tuple[Param, ...] = (F32_IN, F32_OUT, Param("a", "float"), Param("n", "int")),
    *,
    headers: tuple[str, ...] = ("prelude.cuh",),
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_bytes: int = 0,
    collectives: bool = False,
    cooperative: bool = False,
    bounds: str = "",
) -> Kernel:
    """The kernel `name`, whose statements are `body`."""
    signature = ", ".join(f"{param.ctype} {param.name}" for param in params)
    return Kernel(
        name=name,
        source=f'extern "C" __global__ void {bounds} {name}({signature}) {{\n{body}\n}}',
        headers=headers,
        params=params,
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
        collectives=collectives,
        cooperative=cooperative,
    )


def scale(name: str = "scale", **changes: object) -> Kernel:
    """y[i] = a * x[i] for i < n, whatever the grid and the block."""
    body = (
        "  const int step = gridDim.x * blockDim.x;\n"
        "  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) y[i] = a * x[i];"
    )
    return kernel(name, body, **changes)  # type: ignore[arg-type]
