"""The disassembly reader, on kernels whose machine code is known from their source."""

from __future__ import annotations

import pytest

from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON),
]

ARCHS = ("sm_80", "sm_90", "sm_100")


def disassemble(arch: str, **bodies: str) -> dict[str, sass.Sass]:
    """Machine code of kernels with parameters `x` and `y` (arrays) and `n` and `m` (numbers)."""
    kernels = []
    for name, body in bodies.items():
        element = {"wide": "float4", "narrow": "unsigned char"}.get(name, "int")
        number = "long long" if name.startswith("long") else "int"
        params = tuple(
            Param(parameter, ctype)
            for parameter, ctype in zip(
                "xynm", (f"const {element}*", f"{element}*", number, number), strict=True
            )
        )
        signature = ", ".join(f"{param.ctype} {param.name}" for param in params)
        source = f'extern "C" __global__ void {name}({signature}) {{ {body} }}'
        kernels.append(Kernel(name, source, (), params, (1, 1, 1), (32, 1, 1)))
    return sass.disassemble(compile_cubin(kernels, arch).image)


@pytest.mark.parametrize("arch", ARCHS)
def test_widths_of_global_accesses(arch: str) -> None:
    copy = "y[threadIdx.x] = x[threadIdx.x];"
    found = disassemble(arch, wide=copy, word=copy, narrow=copy)
    widths = {name: (code.load_bits, code.store_bits) for name, code in found.items()}
    assert widths == {
        "wide": ({128: 1}, {128: 1}),
        "word": ({32: 1}, {32: 1}),
        "narrow": ({8: 1}, {8: 1}),
    }


@pytest.mark.parametrize("arch", ARCHS)
def test_integer_divisions_are_found_and_nothing_else_is_taken_for_one(arch: str) -> None:
    found = disassemble(
        arch,
        quotient="y[0] = n / m;",
        modulo="y[0] = (unsigned)n % (unsigned)m;",
        long_quotient="y[0] = n / m;",
        constant="y[0] = n / 7 + n % 24 + n / 8;",
        of_floats="y[0] = (float)n / (float)m;",
        of_doubles="y[0] = (double)n / (double)m;",
    )
    divides = {name for name, code in found.items() if code.integer_divisions}
    assert divides == {"quotient", "modulo", "long_quotient"}


@pytest.mark.parametrize("arch", ARCHS)
def test_arrays_indexed_at_run_time_show_as_local_memory(arch: str) -> None:
    found = disassemble(
        arch,
        dynamic="int a[64] = {}; for (int i = 0; i < n; ++i) ++a[x[i] & 63]; y[0] = a[m & 63];",
        fixed="int a[4]; for (int& v : a) v = *x++; y[0] = a[0] * a[1] + a[2] * a[3];",
    )
    assert found["dynamic"].local_accesses > 0
    assert found["fixed"].local_accesses == 0
    assert found["fixed"].count("LDG") == 4


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_are_under_way_until_one_of_them_is_used(arch: str) -> None:
    found = disassemble(
        arch,
        together="int a = x[n], b = x[m]; y[0] = a + b;",
        chained="y[0] = x[x[n]];",
        wide="y[0] = x[n]; y[1] = x[m];",
    )
    awaited = {name: code.bytes_awaited for name, code in found.items()}
    # What is stored may be what is loaded next.
    assert awaited == {"together": [8], "chained": [4, 4], "wide": [16, 16]}
