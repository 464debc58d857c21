"""Kernels for the tests of the host: those of tests/runtime/kernels, and pointwise ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.runtime.host.target import HOST, HostLaunch

FOLDER = Path(__file__).with_name("kernels")
_SIGNATURE = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
_HEADERS = ("types.cuh", "vector.cuh", "reduce.cuh", "cluster.cuh")


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


CTYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.uint16: "unsigned short",
    torch.uint32: "unsigned",
    torch.uint64: "unsigned long long",
    torch.bool: "bool",
    torch.complex64: "tf::complex64",
    torch.complex128: "tf::complex128",
}


@dataclass(frozen=True)
class Pointwise:
    """A kernel out[i] = expression(a[i], b[i], c[i]) over vectors of `width` elements."""

    name: str
    expression: str
    inputs: tuple[torch.dtype, ...]
    output: torch.dtype
    width: int = 16

    @property
    def kernel(self) -> Kernel:
        """Takes the inputs, the output and their length, a multiple of `width`."""
        names = "abc"[: len(self.inputs)]
        types = [CTYPES[dtype] for dtype in self.inputs]
        out = CTYPES[self.output]
        params = [Param(f"{n}s", f"const {t}*") for n, t in zip(names, types, strict=True)]
        params += [Param("outs", f"{out}*"), Param("n", "int")]
        w = self.width
        loads = "".join(
            f"  {t} v{n}[{w}];\n  tf::load<{w}>({n}s + i, v{n});\n"
            for n, t in zip(names, types, strict=True)
        )
        picks = "".join(
            f"    const {t} {n} = v{n}[j];\n" for n, t in zip(names, types, strict=True)
        )
        source = (
            f'extern "C" __global__ void {self.name}('
            f"{', '.join(f'{p.ctype} {p.name}' for p in params)}) {{\n"
            f"  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * {w};\n"
            f"  if (i >= n) return;\n{loads}  {out} r[{w}];\n"
            f"  TF_VEC\n  for (int j = 0; j < {w}; ++j) {{\n{picks}"
            f"    r[j] = {self.expression};\n  }}\n  tf::store<{w}>(outs + i, r);\n}}\n"
        )
        headers = ("vector.cuh", "fp8.cuh", "complex.cuh")
        return Kernel(self.name, source, headers, tuple(params), (1024, 1, 1), (64, 1, 1))


def compile_all(rows: Sequence[Pointwise]) -> dict[str, Callable[..., torch.Tensor]]:
    """Functions on 1-d tensors by name, compiled as one program."""
    launches = HOST.compile([row.kernel for row in rows])
    return {row.name: _callable(row, launch) for row, launch in zip(rows, launches, strict=True)}


def _callable(row: Pointwise, launch: HostLaunch) -> Callable[..., torch.Tensor]:
    def call(*inputs: torch.Tensor) -> torch.Tensor:
        count = len(inputs[0])
        assert count <= 1024 * 64 * 16
        padded = [torch.cat([x, x[:1].expand(-count % 16)]) for x in inputs]
        assert tuple(x.dtype for x in inputs) == row.inputs
        out = torch.empty(len(padded[0]), dtype=row.output)
        launch(*(x.data_ptr() for x in padded), out.data_ptr(), len(out))
        return out[:count]

    return call
