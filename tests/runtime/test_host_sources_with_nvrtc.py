"""What the host's tests run also compiles for GPUs, with no register spilled. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.runtime import test_host_complex, test_host_integers, test_host_math, test_host_types
from tests.runtime.host_kernels import FOLDER, Pointwise, load
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

pytestmark = pytest.mark.nvrtc


def pointwise(rows: list[Pointwise]) -> list[Kernel]:
    return [replace(row, width=1).kernel for row in rows]


PROGRAMS: dict[str, Callable[[], list[Kernel]]] = {
    "hand-written": lambda: [load(path.stem) for path in sorted(FOLDER.glob("*.cu"))],
    "math": lambda: pointwise(test_host_math.rows()),
    "integers": lambda: pointwise(test_host_integers.rows()),
    "complex": lambda: pointwise(test_host_complex.rows()),
    "casts": lambda: [test_host_types.casts_from(source) for source in test_host_types.ALL],
}


# Where the text depends on the architecture every one is tried, else the oldest.
ARCHS = ("sm_80", "sm_90", "sm_100")
COMBINATIONS = [
    *((program, ARCHS[0]) for program in PROGRAMS),
    ("hand-written", "sm_90"),
    ("casts", "sm_100"),
    *(
        pytest.param(program, arch, marks=pytest.mark.campaign)
        for program, arch in (("hand-written", "sm_100"), ("casts", "sm_90"))
    ),
]


@pytest.mark.parametrize(("program", "arch"), COMBINATIONS)
def test_no_register_is_spilled(program: str, arch: str) -> None:
    # Blocks reach each other's shared memory from sm_90 on.
    kernels = [k for k in PROGRAMS[program]() if arch != "sm_80" or "cluster" not in k.name]
    cubin = compile_cubin(kernels, arch)
    assert cubin.resources.keys() == {kernel.name for kernel in kernels}
    assert [name for name, found in cubin.resources.items() if found.spills] == []
