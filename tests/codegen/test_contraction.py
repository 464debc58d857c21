"""Which operations give a product to their caller, so that a difference of equal results is not 0:
`mul` and `exp` only (`ROUNDED`), on a CPU and by the machine code for GPUs.
"""

from __future__ import annotations

import re

import pytest
import torch

from tests.codegen.kernels import kernel_of
from tests.support.batch import Batch, executable
from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.tables import pointwise
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

FLOATS = (DataType.Float, DataType.Double)
NARROW = {"acos", "asin", "atanh", "erfcinv", "erfinv"}
"""Functions that are defined on a unit interval."""


def rounded_operations() -> list[str]:
    """Operations from floats to floats that no compiler contracts with what reads them."""
    real = (row for row in pointwise.TABLE.values() if Category.FLOAT in row.accepts)
    names = [row.name for row in real if row.name not in pointwise.ROUNDED]
    return [name for name in names if name not in ("cast", "complex", "where")]


def differences(names: list[str]) -> dict[tuple[str, DataType], FusionBuilder]:
    """Fusions of f(x..) - f(y..)."""
    found: dict[tuple[str, DataType], FusionBuilder] = {}
    for name in names:
        arity = pointwise.lookup(name).arity
        for dtype in FLOATS:
            b = FusionBuilder()
            operands = [b.tensor([4096], dtype) for _ in range(2 * arity)]
            parts = [b.pointwise(name, *operands[k * arity :][:arity]) for k in range(2)]
            if parts[0].dtype.category is Category.FLOAT:
                b.output(b.pointwise("sub", *parts))  # type: ignore[arg-type]
                found[name, dtype] = b
    assert len(found) > len(names)
    return found


def test_equal_results_have_no_difference(device: torch.device) -> None:
    torch.manual_seed(0)
    batch = Batch(device)
    ready = []
    for (name, dtype), b in differences(rounded_operations()).items():
        low, high = (0.05, 0.95) if name in NARROW else (-3.0, 3.0)
        operands = [
            torch.empty(4096, dtype=dtype.torch).uniform_(low, high).to(device)
            for _ in range(pointwise.lookup(name).arity)
        ]
        inputs = [*operands, *(x.clone() for x in operands)]
        run = executable(CompiledFusion(b.build()), inputs, batch, device)
        ready.append((name, inputs, run))
    for name, inputs, run in ready:
        (found,) = run(inputs)
        assert not found[~found.isnan()].count_nonzero(), name


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@pytest.mark.parametrize(
    "arch",
    ["sm_90", *(pytest.param(a, marks=pytest.mark.campaign) for a in ("sm_75", "sm_80", "sm_100"))],
)
def test_machine_code_subtracts_what_is_rounded(arch: str) -> None:
    kernels = {key: kernel_of(b) for key, b in differences(rounded_operations()).items()}
    for key, found in last_operations(list(kernels.items()), arch).items():
        assert not found & {"FFMA", "DFMA"}, key


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
def test_machine_code_contracts_products_and_exponentials() -> None:
    """The check above sees an FMA where there is one."""
    kernels = {key: kernel_of(b) for key, b in differences([*pointwise.ROUNDED]).items()}
    found = last_operations(list(kernels.items()), "sm_90")
    assert {key for key, last in found.items() if last & {"FFMA", "DFMA"}} == {
        ("mul", DataType.Float),
        ("mul", DataType.Double),
        ("exp", DataType.Float),
    }


def last_operations(
    kernels: list[tuple[tuple[str, DataType], Kernel]], arch: str
) -> dict[tuple[str, DataType], set[str]]:
    """What computes the registers that each kernel stores."""
    code = sass.disassemble(compile_cubin([kernel for _, kernel in kernels], arch).image)
    return {key: stored(code[kernel.name]) for key, kernel in kernels}


def stored(code: sass.Sass) -> set[str]:
    """The instructions that define what is stored."""
    found = set()
    for place, opcode in enumerate(code.opcodes):
        if sass.base(opcode) not in ("STG", "ST"):
            continue
        first = int(re.findall(r"\bR(\d+)\b", code.operands[place])[-1])
        for register in range(first, first + sass.width(opcode) // 32):
            makers = (k for k in range(place - 1, -1, -1) if defines(code, k, register))
            found.add(sass.base(code.opcodes[next(makers)]))
    assert found
    return found


def defines(code: sass.Sass, place: int, register: int) -> bool:
    name = sass.base(code.opcodes[place])
    to = re.match(r"\s*R(\d+)\b", code.operands[place])
    width = 2 if name.startswith("D") else 1
    return bool(to) and name not in ("STG", "ST") and 0 <= register - int(to[1]) < width
