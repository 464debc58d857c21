"""Generation of a CUDA C++ kernel from kernel IR, the last step before compilation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from thunder_fuser.codegen.cuda_statements import CudaText, header_files, indented
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.kernel_ir import Bound, Constant, KernelIR, Parameter, Scratch


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A kernel and its arguments, in the order of `kernel.params`.

    A tensor or workspace is passed as its data pointer, a scalar input, CPU scalar tensor or
    constant as its value; a complex scalar takes two parameters, the real and the imaginary part.
    """

    kernel: Kernel
    arguments: tuple[Bound, ...]

    def bound_to(self, values: Sequence[TensorView | Scalar]) -> GeneratedKernel:
        """Return the kernel with other arguments: values[id] instead of the value `id`."""
        own = Scratch | Constant
        bound = (b if isinstance(b, own) else values[b.id] for b in self.arguments)
        return GeneratedKernel(self.kernel, tuple(bound))


def generate(kernel: KernelIR) -> GeneratedKernel:
    """Generate the CUDA C++ of a kernel.

    Its name is tf_<template>_<up to four operations>_<hash of the text>, so that equal programs
    have equal names.
    """
    printer = CudaText(kernel.index)
    params = tuple(Param(p.name, _ctype(p, printer)) for p in kernel.parameters)
    signature = ", ".join(
        _declaration(param, p) for param, p in zip(params, kernel.parameters, strict=True)
    )
    least = kernel.blocks_per_sm or kernel.min_blocks_hint
    bounds = [kernel.threads, *([least] if least else [])]
    cluster = f"__cluster_dims__({kernel.cluster}, 1, 1) " if kernel.cluster > 1 else ""
    head = (
        f'extern "C" __global__ void {cluster}__launch_bounds__({", ".join(map(str, bounds))}) '
        f"NAME({signature})"
    )
    text = "\n".join([f"{head} {{", *indented(printer.body(kernel.body)), "}", ""])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    words = ["tf", kernel.template, *(kernel.operations[:4] or ["copy"]), digest]
    name = "_".join(words)
    made = Kernel(
        name=name,
        source=text.replace("NAME", name, 1),
        headers=header_files(printer.headers),
        params=params,
        grid=(kernel.blocks, 1, 1),
        block=(kernel.threads, 1, 1),
        shared_bytes=kernel.shared_bytes,
        collectives=printer.synchronises,
        cooperative=printer.cooperates,
        cluster=kernel.cluster,
        min_blocks_hint=kernel.min_blocks_hint,
        lines=tuple(printer.lines),
    )
    return GeneratedKernel(made, tuple(dict.fromkeys(p.bound for p in kernel.parameters)))


def _ctype(p: Parameter, printer: CudaText) -> str:
    if isinstance(p.bound, Scratch):
        return "unsigned char*"
    assert p.dtype is not None, f"{p.name} is a number or holds numbers"
    element = printer.ctype(p.dtype)
    if not p.is_pointer:
        return element
    return f"{element}*" if p.written else f"const {element}*"


def _declaration(param: Param, p: Parameter) -> str:
    restricted = "__restrict__ " if p.is_pointer and not p.aliased else ""
    return f"{param.ctype} {restricted}{param.name}"
