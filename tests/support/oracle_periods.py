"""Bounds of functions that come back to the same results, of operands that may be off by a period.

The corners of an interval say nothing of what is between them there: frac(x +- 1) is frac(x), and
the remainder of a large number by a divisor with an error is anything below the divisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

_AMPLITUDES = {"sin": 2.0, "cos": 2.0, "tan": torch.inf}
_WITH_POLES = ("lgamma", "digamma")
_REMAINDERS = ("mod", "fmod", "remainder")
_EIGHTH_OF_A_TURN = torch.pi / 4


def between_corners(
    op: str, operands: Sequence[torch.Tensor], errors: Sequence[torch.Tensor]
) -> torch.Tensor:
    """How far a result may be from that of the operands as they are, where their bounds leave open
    in which period they are; 0 elsewhere, and for all other functions.
    """
    x = operands[0]
    if not x.is_floating_point() and op not in _REMAINDERS:
        return torch.zeros((), dtype=torch.float64)
    if op == "frac":
        return torch.where(errors[0] >= 0.5, 1.0, 0.0).double()
    if op in _AMPLITUDES:
        return torch.where(errors[0] >= _EIGHTH_OF_A_TURN, _AMPLITUDES[op], 0.0).double()
    if op in _WITH_POLES:
        return torch.where((x - errors[0] < 0) & (errors[0] >= 0.5), torch.inf, 0.0).double()
    if op in _REMAINDERS:
        return _of_remainder(operands, errors)
    return torch.zeros((), dtype=torch.float64)


def _of_remainder(operands: Sequence[torch.Tensor], errors: Sequence[torch.Tensor]) -> torch.Tensor:
    x, divisor = (t.double() for t in operands)
    signs = (1, -1)
    quotients = torch.stack(
        torch.broadcast_tensors(
            *((x + s * errors[0]) / (divisor + t * errors[1]) for s, t in product(signs, signs))
        )
    )
    is_open = quotients.amax(0) - quotients.amin(0) >= 1
    worst = torch.where(is_open, divisor.abs() + errors[1], 0.0)
    return torch.where((errors[1] > 0) & (errors[1] >= divisor.abs()), torch.inf, worst)
