"""Kernels with a parameter in place of every constant that can be one: the least that compilers
know of any kernel that `DynamicSizes` makes.
"""

from __future__ import annotations

from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.kernel_ir.generalize import Generalization, Varying, pattern_of, with_parameters


def all_vary(kernel: KernelIR) -> KernelIR:
    """The kernel with each of its distinct constants as a parameter."""
    _, own = pattern_of(kernel)
    numbers = {constant: k for k, constant in enumerate(dict.fromkeys(own.constants))}
    return with_parameters(
        kernel, Generalization(tuple(Varying(numbers[c]) for c in own.constants))
    )
