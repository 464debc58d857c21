"""Updates of windows: kernels write what `x[index] = value` selects, and read no more of `x`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.support.shares import each_value
from thunder_fuser import fusions, options
from thunder_fuser.segment.plan import SegmentedFusion

CACHE = [2, 4, 256, 16]
CACHE_BYTES = 4 * 2 * 4 * 256 * 16


def _check(program: Callable[..., Any], *inputs: torch.Tensor) -> list[SegmentedFusion]:
    """Run a program twice, compare results and what it leaves in its inputs with torch's; return
    its plans.
    """
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    ours, theirs = ([_same_memory(x) for x in inputs] for _ in range(2))
    for _ in range(2):
        with options(strict=True, host_debug=True):
            found = compiled(*ours)
        torch.testing.assert_close(found, program(*theirs))
        for x, y in zip(ours, theirs, strict=True):
            torch.testing.assert_close(x, y)
    return [fusion.plan for fusion in fusions(compiled)]


def _same_memory(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides and the offset of a tensor."""
    memory = torch.empty(x.untyped_storage().nbytes(), dtype=torch.uint8)
    memory = memory.view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())
    return memory.copy_(x)


def _cache() -> torch.Tensor:
    return torch.randn(CACHE)


ALL = slice(None)


@each_value(
    kind=["tensor", "number", "broadcast"],
    **{
        "index,shape": [
            ((ALL, ALL, slice(7, 8)), [2, 4, 1, 16]),
            ((ALL, ALL, 7), [2, 4, 16]),
            ((ALL, ALL, [7]), [2, 4, 1, 16]),
            ((ALL, ALL, slice(3, None, 64)), [2, 4, 4, 16]),
            ((ALL, ALL, slice(-16, None)), [2, 4, 16, 16]),
            ((ALL, ALL, slice(255, None, 3), 1), [2, 4, 1]),
            ((1, slice(1, 3), [2, 5, 9, 13, 200], slice(1, 4)), [2, 5, 3]),
            (([0, 1], ALL, [17, 3]), [2, 4, 16]),
            ((0, 3, 255, 15), []),
            ((None, 1, ALL, slice(0, 9)), [1, 4, 9, 16]),
        ]
    },
)
def test_a_window_of_an_argument_moves_its_own_bytes(
    index: Any, shape: list[int], kind: str
) -> None:
    def program(cache: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        cache[index] = 1.5 if kind == "number" else value * 2
        return value + 1

    value = torch.randn(shape if kind == "tensor" else shape[-1:])
    (plan,) = _check(program, _cache(), value)
    elements = torch.zeros(CACHE)[index].numel()
    assert plan.kernels == 1
    assert plan.copies == 0
    assert plan.bytes == plan.bytes_ideal == 4 * (elements + 2 * value.numel())


@each_value(
    dtype=[torch.bfloat16, torch.float64, torch.int64, torch.bool],
    view=[
        lambda x: x,
        lambda x: x.transpose(1, 2),
        lambda x: x[1:, ::2, 1:, 1:],
        lambda x: x.flatten(0, 1).unflatten(0, (2, 4)).permute(3, 1, 0, 2),
    ],
)
def test_windows_in_memory_with_any_strides(
    dtype: torch.dtype, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    cache = view((_cache() * 3).to(dtype))

    def program(cache: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        cache[:, 1:2, 1::3, 1:6] = value
        return ~value if dtype is torch.bool else value + 1

    (plan,) = _check(program, cache, cache[:, :1, 1::3, 1:6].clone())
    assert 2 * plan.bytes < 2 * cache.numel() * cache.element_size()
    assert plan.copies == 0


def test_what_was_updated_is_read_later() -> None:
    """The sum reads the window from the memory in which the first kernel has written it."""

    def program(cache: torch.Tensor, key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        cache[:, :, 7:8] = key * 2
        return (cache[:, :, :8] * query).sum(-1)

    plans = _check(program, _cache(), torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1, 16))
    assert sum(plan.kernels for plan in plans) == 2
    assert sum(plan.bytes for plan in plans) < CACHE_BYTES // 8


def test_an_updated_argument_is_returned_itself() -> None:
    def program(cache: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        cache[:, :, 7:8] = key * 2
        return cache

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    cache, key = _cache(), torch.randn(2, 4, 1, 16)
    version = cache._version
    found = compiled(cache, key)
    assert found.data_ptr() == cache.data_ptr()
    assert torch.equal(found[:, :, 7:8], key * 2)
    assert cache._version > version
    (fusion,) = fusions(compiled)
    assert fusion.plan.bytes == fusion.plan.bytes_ideal == 2 * key.nbytes


def test_results_of_reductions_are_written_into_the_window() -> None:
    """A normalised key goes from its kernel to the cache."""

    def program(cache: torch.Tensor, key: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.rms_norm(key, (16,), weight)
        cache[:, :, 7:8] = normed
        return normed

    key = torch.randn(2, 4, 1, 16)
    (plan,) = _check(program, _cache(), key, torch.randn(16))
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal == 3 * key.nbytes + 64


def test_keys_and_values_of_two_caches_in_one_kernel() -> None:
    def program(
        keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        keys[:, :, 3:4] = key + 1
        values[:, :, 3:4] = value + 1
        return key * value

    new = torch.randn(2, 4, 1, 16)
    (plan,) = _check(program, _cache(), _cache(), new, new.clone())
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal == 5 * new.nbytes


def test_several_windows_of_one_argument() -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x[0] = value
        x[2, 1:3] = 0.5
        x[1::2, 5:] = value[5:] * 2
        return value + 1

    (plan,) = _check(program, torch.randn(4096, 64), torch.randn(64))
    assert plan.copies == 0
    assert plan.kernels >= 1


@pytest.mark.parametrize("size", [8, 4096])
def test_windows_that_meet_are_written_in_order(size: int) -> None:
    """What is overwritten is written once, in one kernel with all else."""

    def program(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x[1] = value
        x[:, 2] = 3.0
        x[0:3, 1:4] = 4.0
        return value + 1

    (plan,) = _check(program, torch.randn(size, 64), torch.randn(64))
    assert plan.kernels == 1
    if size > 64:
        written = (64 - 3) + (size - 3) + 9
        assert plan.bytes == plan.bytes_ideal == 4 * (written + 2 * 64)


def test_windows_within_later_ones_are_not_written() -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> None:
        x[10:12, 3:5] = value[3:5]
        x[10:20] = value

    (plan,) = _check(program, torch.randn(4096, 64), torch.randn(64))
    assert plan.bytes == 4 * (10 * 64 + 64)


def test_stripes_that_meet_otherwise_are_written_as_a_whole() -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> None:
        x[::3] = value
        x[::2] = 1.0

    (plan,) = _check(program, torch.randn(512, 64), torch.randn(64))
    assert plan.bytes >= 2 * 512 * 64 * 4


def _scaled(x: torch.Tensor, value: torch.Tensor) -> None:
    x[1] = x[1] * 0.9 + value
    x[5:7] = value


def _shown(x: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x[1] * 2
    x[1] = value
    return y, x[1:3].sum(0)


def _folded(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = x[:4].sum(0)
    x[0] = y * value
    return y


def _moved(x: torch.Tensor, value: torch.Tensor) -> None:
    x[1:9] = x[0:8] * 1
    x[0] = value


@pytest.mark.parametrize("program", [_scaled, _shown, _folded, _moved], ids=lambda f: f.__name__)
def test_old_elements_of_a_window_are_read_before_it_is_written(
    program: Callable[..., Any],
) -> None:
    (plan,) = _check(program, torch.randn(4096, 64), torch.randn(64))
    assert plan.copies == 0
    assert plan.bytes < 40 * 64 * 4


def test_rows_of_two_tensors_are_swapped() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x[0] * 1
        x[0] = y[1]
        y[1] = old

    (plan,) = _check(program, torch.randn(4096, 64), torch.randn(4096, 64))
    assert plan.copies == 0
    assert plan.bytes < 16 * 64 * 4


def test_a_tensor_that_is_read_as_a_whole_may_be_written_as_a_whole() -> None:
    """The plan is that with the lower price: of a small tensor, one kernel."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x[0] = 1.0
        return x + 1

    (small,) = _check(program, torch.randn(4, 64))
    assert small.kernels == 1
    (large,) = _check(program, torch.randn(4096, 4096))
    assert large.bytes < 2.1 * 4096 * 4096 * 4


@pytest.mark.parametrize("size", [8, 4096])
def test_old_elements_that_are_read_elsewhere(size: int) -> None:
    """What a window's value reads of the updated tensor is read before it is overwritten."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        x[1:3] = x[:2] * 2
        return x[:1] + 1

    def kept(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        x[1:3] = 0.5
        return y, x.sum(-1)

    def repeated(x: torch.Tensor) -> torch.Tensor:
        x[3] = 1.0
        y = x[2:5].sum(0)
        x[4] = y
        return x[4] * y

    for program in (shifted, kept, repeated):
        _check(program, torch.randn(size, 32))


def test_positions_that_a_table_gives_and_windows() -> None:
    """An embedding can fail, so that inputs are updated when it has not."""

    def program(
        cache: torch.Tensor, table: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.nn.functional.embedding(index, table)
        cache[2:4] = found * 2
        return found + 1, cache[:3] + 1

    _check(program, torch.randn(1024, 16), torch.randn(9, 16), torch.tensor([3, 8]))
    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    cache = torch.randn(1024, 16)
    before = cache.clone()
    with pytest.raises((IndexError, thunder_fuser.FuserIndexError)):
        compiled(cache, torch.randn(9, 16), torch.tensor([3, 9]))
    assert torch.equal(cache, before)


def test_gradients_through_an_updated_window() -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 3] = value
        return (y * y).sum()

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    gradients = []
    for function in (compiled, program):
        torch.manual_seed(0)
        x, value = (torch.randn(s, requires_grad=True) for s in ([64, 8], [64]))
        function(x, value).backward()
        gradients.append((x.grad, value.grad))
    torch.testing.assert_close(*gradients)
