"""`x[index] = value`: regions and masks are fused, as updates in place; the rest is torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.programs import check
from tests.support.shares import each_value
from thunder_fuser import fusions, options, refusals

SHAPE = [6, 5, 4]
ALL = slice(None)

MASK = torch.tensor([True, False, False, True, True, False])

WINDOWS = [
    (0, 1.5),
    ((slice(1, 3),), [2, 5, 4]),
    ((..., -1), [5]),
    ((ALL, slice(2, None)), [4]),
    ((2, slice(1, 4), 3), [3]),
    (slice(4, 2), 3.0),
    (slice(-100, 100), [6, 1, 4]),
    ((ALL, 2), [1, 4]),
    ((0, 1, 2), []),
    ((slice(-3, -1), ...), [2, 1, 1]),
    (..., [6, 5, 4]),
]
REGIONS = [
    (slice(0, 6, 2), 1.0),
    (slice(None, None, 4), [2, 5, 4]),
    ((..., slice(1, -1, 3)), [6, 5, 1]),
    ((slice(1, None, 3), 2, slice(None, None, 3)), [2, 2]),
    ((slice(5, None, 9), slice(3, 1, 2)), 1.0),
    ((None, 1), [1, 5, 4]),
    ((ALL, None), 1.0),
    ((ALL, None, slice(None, None, 2), None, 3), [1, 3, 1]),
    ((..., [0, 3]), 1.0),
    ((ALL, [0, 2]), [6, 2, 4]),
    ([2, 0, 3, 4, -1], [5, 5, 4]),
    ([0, 2, 0], [3, 1, 1]),
    ([True, False, False, True, True, False], [3, 5, 4]),
    (([0, 1, 2, 4], [4, 4, 4, 0]), [4, 4]),
    (([1, 3], ALL, [0, 2]), [2, 5]),
    (([1, 3], None, [0, 2]), [2, 1, 4]),
    (([1, 3], 2, [0, 2]), [2]),
    ((1, [0, 4, 2], slice(None, None, 3)), [3, 2]),
    ((ALL, []), 1.0),
    (0, [1, 5, 4]),
    ((0, ALL, ALL), [1, 1, 5, 4]),
]
NO_REGION = "is no region of it; use ints, lists of ints and slices that lie inside"
OTHERS = [
    (
        *(torch.tensor([0, 2]), 1.0),
        "= .. of a tensor [6, 5, 4] writes where a tensor says; use ints, slices and lists of "
        "ints, or one mask of some dimensions' sizes",
    ),
    (([0, 1], [1]), 1.0, f"x[[0, 1], [1]] = .. of a tensor [6, 5, 4] {NO_REGION}"),
    (
        *((ALL, [0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 3, 1, 4, 2, 3, 2, 1]), 1.0),
        "writes 10 windows, of which a kernel selects between 8; use a mask, or positions in even "
        "steps",
    ),
    (
        *(MASK, [3, 5, 4]),
        "a value [3, 5, 4] does not broadcast to what a mask selects, which is [any number, 5, 4]; "
        "reshape the value to [1, 5, 4]",
    ),
]

MASKS = [
    (MASK, 1.5),
    (MASK, []),
    (MASK, [5, 4]),
    (MASK, [1, 5, 4]),
    ((MASK,), [4]),
    (torch.arange(30).view(SHAPE[:2]) % 3 == 0, [4]),
    (torch.arange(30).view(5, 6).t() % 3 == 0, [1]),
    (torch.arange(120).view(SHAPE) % 7 < 3, -torch.inf),
    (torch.arange(120).view(SHAPE) % 7 < 3, []),
    (torch.zeros(SHAPE, dtype=torch.bool), 3.0),
    ((MASK, 2), [4]),
    ((MASK, slice(1, None, 2)), [2, 4]),
    ((slice(1, -1, 2), MASK[:5], 1), 2.0),
    ((0, MASK[:5]), [4]),
    ((ALL, MASK[:5]), [6, 1, 1]),
    ((..., None, MASK[:4]), [5, 1, 1]),
    ((ALL, torch.arange(20).view(5, 4) % 3 == 0), [6, 1]),
    (torch.tensor(True), [5, 4]),
    ((slice(1, 3), torch.tensor(False)), [4]),
    ((0, torch.tensor(True)), [1, 5, 4]),
    ((..., torch.tensor(True), None), 2.0),
]


def _of_a_new_tensor(index: Any) -> Callable[..., torch.Tensor]:
    def program(a: torch.Tensor, value: Any) -> torch.Tensor:
        b = a * 2
        b[index] = value
        return b + 1

    return program


def _of_an_argument(index: Any) -> Callable[..., torch.Tensor]:
    def program(a: torch.Tensor, value: Any) -> torch.Tensor:
        a[index] = value
        return a * 2

    return program


def _follows_torch(program: Callable[..., torch.Tensor], dtype: torch.dtype, value: Any) -> Any:
    ours, theirs = ((torch.arange(120).view(SHAPE) % 7 - 3).to(dtype) for _ in range(2))
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    with options(strict=True):
        result, wanted = compiled(ours, value), program(theirs, value)
    assert torch.equal(result, wanted)
    assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
    assert torch.equal(ours, theirs)
    return compiled


def _value(said: float | list[int]) -> float | torch.Tensor:
    """A number, or a tensor of that shape."""
    if not isinstance(said, list):
        return said
    return torch.linspace(-2, 2, torch.Size(said).numel()).view(said)


@each_value(
    program=[_of_a_new_tensor, _of_an_argument], **{"index,value": WINDOWS + REGIONS + MASKS}
)
def test_a_region_or_a_mask_is_written_in_one_kernel(
    program: Callable[..., Any], index: Any, value: float | list[int]
) -> None:
    compiled = _follows_torch(program(index), torch.float32, _value(value))
    assert len(fusions(compiled)) == 1
    assert not refusals(compiled)


@pytest.mark.parametrize("program", [_of_a_new_tensor, _of_an_argument])
@pytest.mark.parametrize(("index", "value", "reason"), OTHERS, ids=str)
def test_what_is_no_region_stays_with_torch(
    program: Callable[..., Any], index: Any, value: float | list[int], reason: str
) -> None:
    compiled = _follows_torch(program(index), torch.float32, _value(value))
    assert "setitem_(" in str(thunder.last_traces(compiled)[-1])
    assert any(refusal.text.endswith(reason) for refusal in refusals(compiled))


@each_value(
    dtype=[torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float64],
    value=[2.7, 1, True, [5, 4]],
)
def test_a_value_becomes_what_it_is_written_into(dtype: torch.dtype, value: Any) -> None:
    _follows_torch(_of_an_argument(1), dtype, _value(value))


@pytest.mark.parametrize("value", [torch.nan, 2**40, -(2**40)])
def test_numbers_that_an_integer_cannot_hold_are_torchs_to_decide(value: float) -> None:
    program = _of_an_argument(1)
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    outcomes = [_outcome(f, value) for f in (program, compiled)]
    assert outcomes[0] == outcomes[1]
    if "[" in outcomes[1]:
        (refusal,) = refusals(compiled)
        assert "is outside of Int32, -2147483648 to 2147483647" in refusal.text
        assert refusal.text.endswith("write a number that it holds")


def _outcome(function: Callable[..., torch.Tensor], value: float) -> str:
    try:
        return str(function(torch.zeros(3, dtype=torch.int32), value))
    except RuntimeError as error:
        return str(error)


@each_value(shape=[None, [], [3], [1, 3]], dtype=[torch.float32, torch.bfloat16])
def test_gradients_of_what_a_mask_writes(shape: list[int] | None, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
        y = x.view(2, 4, 2, 3) * 2
        y[mask] = value if shape is None else value * 3
        return y.sin()

    torch.manual_seed(0)
    value = -1.5 if shape is None else torch.randn(shape).to(dtype).requires_grad_()
    x = torch.randn(2, 4, 6).to(dtype).requires_grad_()
    compiled = check(program, x, torch.tensor([[True, False] * 2, [True] * 4]), value)
    assert len(fusions(compiled)) == 2
    assert not refusals(compiled)


WITH_TENSORS = [c for c in REGIONS + MASKS if isinstance(c[1], list)]


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        # Without gradients all of them are written in a plain run, too.
        *WITH_TENSORS[::2],
        *(pytest.param(*c, marks=pytest.mark.campaign) for c in WITH_TENSORS[1::2]),
    ],
    ids=str,
)
def test_gradients_of_what_a_region_gets(index: Any, shape: list[int]) -> None:

    def program(x: torch.Tensor, value: Any) -> torch.Tensor:
        y = x * 2
        y[index] = value * 3
        return y.sin()

    torch.manual_seed(0)
    value = torch.randn(shape, requires_grad=True)
    compiled = check(program, torch.randn(SHAPE, requires_grad=True), value)
    assert not refusals(compiled)


def test_a_mask_that_does_not_fit_is_torchs_error() -> None:
    compiled = thunder.jit(_of_an_argument(MASK[:5]), executors=[thunder_fuser.executor])
    with pytest.raises(IndexError, match="mask"):
        compiled(torch.zeros(SHAPE), 1.0)
    compiled = thunder.jit(_of_an_argument(MASK), executors=[thunder_fuser.executor])
    with pytest.raises(RuntimeError, match="dtypes match"):
        compiled(torch.zeros(SHAPE), torch.ones(4, dtype=torch.float64))


def test_a_position_outside_is_torchs_error() -> None:
    compiled = thunder.jit(_of_an_argument(7), executors=[thunder_fuser.executor])
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        compiled(torch.zeros(SHAPE), 1.0)
