"""A part of the sweep of special values: each function on one dtype, and a share of the gradients.

`python -m tests.sweep [--gradients]` compares all of them on all dtypes.
"""

from __future__ import annotations

import re

import pytest
import torch

from tests.sweep.__main__ import FLOATING, INTEGRAL
from tests.sweep.compare import Difference
from tests.sweep.functions import ENTRIES
from tests.sweep.known import KNOWN, KNOWN_GRADIENTS, Known, unknown
from tests.sweep.run import Tally, sweep, sweep_gradients

DTYPES = [getattr(torch, name) for name in (*FLOATING, *INTEGRAL)]
SHARE = 9
"""One function in so many is differentiated."""


@pytest.mark.parametrize("number", range(len(DTYPES)), ids=[str(d) for d in DTYPES])
def test_results(number: int) -> None:
    """Functions go round the dtypes."""
    names = list(ENTRIES)[number :: len(DTYPES)]
    found = sweep({n: ENTRIES[n] for n in names}, DTYPES[number], Tally())
    assert [str(d) for d in unknown(found, KNOWN)] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    entries = {n: ENTRIES[n] for n in list(ENTRIES)[::SHARE]}
    found = sweep_gradients(entries, dtype, Tally())
    assert [str(d) for d in unknown(found, KNOWN_GRADIENTS)] == []


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.names)
def test_what_is_known_to_differ_still_does(row: Known) -> None:
    """On the first dtype that a row names, beside what makes a kernel read rows twice."""
    names = [n for n in ENTRIES if re.fullmatch(row.names, n) or n == "softmax (row)"]
    entries = {n: ENTRIES[n] for n in names}
    assert any(row.covers(d) for d in sweep(entries, row.dtypes[0], Tally()))


def test_thunder_does_not_conjugate() -> None:
    """Why `autograd/complex_numbers.py` adds conjugates: those of Thunder alone have none."""
    import thunder

    z = torch.tensor([1 + 2j], requires_grad=True)
    alone = thunder.jit(torch.exp, executors=[])
    seed = torch.ones_like(z)
    found, eager = (torch.autograd.grad(f(z), z, seed)[0] for f in (alone, torch.exp))
    assert torch.equal(found, eager.conj().resolve_conj())


def test_a_difference_that_no_row_covers_is_told() -> None:
    new = Difference("relu", torch.float32, "nan")
    assert list(unknown([new], KNOWN)) == [new]
