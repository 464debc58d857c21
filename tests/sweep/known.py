"""What differs from torch's CPU kernels and stays so: one row a cause, with what shows it.

A row holds where another kernel of torch (its CUDA kernel, or the same one for another dtype, or
for elements that lie otherwise) gives what ours gives, or where what torch gives is farther from
the truth. `test_sweep.py` finds each row that no longer differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from tests.sweep.compare import Difference

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)


@dataclass(frozen=True, slots=True)
class Known:
    """Differences of some functions.

    names   a pattern of whole names
    kinds   what differs
    dtypes  on which
    why     the cause, and why it stays
    """

    names: str
    kinds: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    why: str

    def covers(self, found: Difference) -> bool:
        return (
            found.kind in self.kinds
            and found.dtype in self.dtypes
            and re.fullmatch(self.names, found.name) is not None
        )


_OVERFLOW = ("nan", "inf", "value")
_NORMS = r"(layer_norm|group_norm|instance_norm)( affine)? \(row\)"

KNOWN = (
    Known(
        r"prod \(row\)",
        ("nan", "inf", "zero"),
        (torch.float32, torch.float64, torch.bfloat16, *COMPLEX),
        "factors meet in an order that the kernel chooses, so that what overflows before it meets "
        "a 0, and the signs of zeros of complex numbers, differ; so do torch's for longer rows",
    ),
    Known(
        r"kl_div log \(2\)",
        ("nan",),
        (torch.bfloat16,),
        "torch rounds the exponential of the target to 16 bits, 0 below a target of -93, and 0 "
        "times infinity is NaN; the product is infinite",
    ),
    Known(
        r"var_mean \(row\)",
        ("nan", "inf"),
        (torch.float32, torch.float64, torch.bfloat16),
        "the mean is a sum, which overflows, divided by the number of elements; torch's CPU kernel "
        "moves a mean along. So do differences from the first element, where one kernel has both: "
        "the variance is NaN then. Variances alone do not overflow",
    ),
    Known(
        r"(var|std)_mean's mean \(row\)",
        ("nan", "inf"),
        FLOATS,
        "that of a row with an infinity is infinite, as `mean` has it; torch's mean that is moved "
        "along is NaN behind the infinity, and does not overflow before the last division",
    ),
    Known(
        _NORMS,
        _OVERFLOW,
        (torch.float32, torch.float64, torch.bfloat16),
        "squares of elements near the largest number overflow: the row times 0 here and in torch's "
        "CUDA kernels, inf - inf in its CPU kernels. Equal rows differ in their last digits",
    ),
    Known(
        r"(layer_norm|instance_norm|batch_norm eval) \(row\)",
        ("zero",),
        FLOATS,
        "(x - mean) * rstd keeps the sign of a zero, x * scale + shift of torch's CPU kernels does "
        "not, and loses the digits of rows far from zero instead",
    ),
    Known(
        r"x \+ 2 \*\* 63",
        ("nan",),
        (torch.float16,),
        "torch's CPU kernel rounds the number to float16, which is infinity; its CUDA kernels add "
        "in fp32",
    ),
    Known(
        r"pow -?0\.5",
        ("nan", "inf", "zero"),
        (torch.float16,),
        "a root, as torch has it in all kernels but the CPU's for float16, which is pow's",
    ),
    Known(
        "log1p",
        ("nan", "zero"),
        COMPLEX,
        "torch's CPU formula divides infinity by infinity and loses the sign of a zero; ours are "
        "the results of its CUDA kernel",
    ),
    Known(
        "acos",
        ("zero", "value"),
        (torch.complex128,),
        "torch's AVX kernel for complex128 subtracts asin from pi / 2; its others are as ours",
    ),
)
"""Of results."""

KNOWN_GRADIENTS = (
    Known(
        ".*",
        ("nan", "inf", "zero"),
        COMPLEX,
        "signs of zeros, and infinities and NaN, of complex products depend on their formula",
    ),
    Known(
        "grad tanh?",
        ("value",),
        (torch.complex128,),
        "1 - tanh(x)^2 cancels where tanh is near 1, by the last bits of tanh",
    ),
    Known(
        r"grad prod \(row\)|grad prod 0 \(row\)",
        ("nan",),
        FLOATS,
        "the product is divided by a factor, which is NaN beside NaN and infinity; torch "
        "multiplies all the others, if there is a zero anywhere",
    ),
    Known(
        f"grad ({_NORMS}|(batch_norm|rms_norm|std|var_mean|normalize).*)",
        _OVERFLOW,
        (torch.float32, torch.float64, torch.bfloat16),
        "squares of elements near the largest number overflow, as in the forward",
    ),
    Known(
        "grad sinc",
        ("value", "zero"),
        FLOATS,
        "near 0 torch subtracts a sine from a cosine and has lost all digits; ours is a series",
    ),
    Known(
        r"grad normalize \(row\)",
        ("nan",),
        (torch.float16,),
        "rows of zeros: eps is 0 in float16, and what is divided by it",
    ),
    Known(
        r"grad pow (-?0\.5|1\.5)",
        ("nan", "inf", "zero"),
        (torch.float16,),
        "torch's CPU kernel for float16 is pow's, as in the forward",
    ),
    Known(
        "grad pow False",
        ("nan", "zero"),
        FLOATS,
        "the derivative of a constant; torch looks for an exponent of 0, as which a bool does not "
        "count, and multiplies 0 with 1/0",
    ),
    Known(
        "grad (square|pow 2)",
        ("inf",),
        FLOATS,
        "torch doubles the number, which overflows, before it multiplies with the gradient",
    ),
    Known(
        "grad hardsigmoid",
        ("value",),
        (torch.float64,),
        "torch has 1 / 6 as a float",
    ),
)
"""Of gradients."""


def unknown(found: Iterable[Difference], rows: Iterable[Known]) -> Iterator[Difference]:
    """Those that no row covers."""
    rows = tuple(rows)
    return (d for d in found if not any(row.covers(d) for row in rows))
