"""The four patterns of NVIDIA/Fuser #3987: what is mapped is what is equal at
every index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import Replicate, Shard
from thunder_fuser.sharding.rules import pull, push, tensors_of

DEVICES = (2, 4, 8)
MOST = 12
Pattern = Callable[[FusionBuilder, Any], TensorView]


def shards(sizes: Any, d: int) -> list[Shard]:
    return [
        Shard(dim, width, d)
        for dim, extent in enumerate(sizes)
        for width in range(1, extent // d + 1)
        if extent % (width * d) == 0
    ]


def owners(shard: Shard, sizes: Any) -> Any:
    """The coordinate of the device that has each element."""
    index = np.indices(tuple(sizes))[shard.dim]
    return index // shard.width % shard.size


def patterns() -> Iterator[tuple[str, list[int], Pattern]]:
    """Every split, merge, slice and cat of up to 12 times 12 elements."""
    for a, m in product(range(1, MOST + 1), repeat=2):
        yield "split", [a * m], lambda b, x, a=a, m=m: b.reshape(x, [a, m])
        yield "merge", [a, m], lambda b, x, a=a, m=m: b.reshape(x, [a * m])
    for h in range(2, 2 * MOST + 1):
        for begin, end in product(range(h), range(1, h + 1)):
            if begin < end and (begin % 2 == 0 or end % 4 == 0):
                yield "slice", [h], lambda b, x, o=begin, e=end: b.slice(x, [o], [e])
    for m, n in product(range(1, MOST + 1), repeat=2):
        yield "cat", [m], lambda b, x, n=n: b.cat([x, _new(b, [n])], 0)


def _new(b: FusionBuilder, sizes: list[int]) -> TensorView:
    return b.tensor(sizes, DataType.Double)


def built(sizes: list[int], pattern: Pattern) -> tuple[Expr | None, Any]:
    """The expression of a pattern, and the element of its first operand, by number, for each
    element of the result; -1 for another's.
    """
    b = FusionBuilder()
    b.output(pattern(b, _new(b, sizes)))
    fusion = b.build()
    if not fusion.exprs:
        return None, None
    given = [torch.full(tuple(t.sizes), -1.0).double() for t in fusion.tensor_inputs]
    given[0] = torch.arange(given[0].numel()).double().reshape(tuple(sizes))
    return fusion.exprs[-1], evaluate(fusion, given).outputs[0].long().numpy()


@pytest.mark.parametrize("name", ["split", "merge", "slice", "cat"])
def test_what_is_mapped_is_equal_at_every_index(name: str) -> None:
    equal = found = missed = 0
    for kind, sizes, pattern in patterns():
        if kind != name:
            continue
        expr, source = built(sizes, pattern)
        if expr is None:
            continue
        mine = source >= 0
        for d in DEVICES:
            for shard in shards(sizes, d):
                had = owners(shard, sizes).reshape(-1)[source]
                right = [
                    s
                    for s in shards(expr.output.sizes, d)
                    if np.array_equal(owners(s, expr.output.sizes)[mine], had[mine])
                    and _leaves_equal_parts(kind, expr, s)
                    and _is_one_slice(kind, shard, s, source)
                ]
                answer = push(expr, 0, shard)
                assert answer is None or answer in right, f"{kind} {sizes} {shard}: {answer}"
                equal += bool(right)
                found += answer is not None
                missed += bool(right) and answer is None
                for s in shards(expr.output.sizes, d) if answer is not None else ():
                    back = pull(expr, 0, s)
                    if isinstance(back, Shard):
                        assert s in right or back != shard
                    assert not isinstance(back, Replicate)
    assert found > 20
    assert missed <= 0.005 * equal, f"{missed} of {equal} are missed"


def _leaves_equal_parts(kind: str, expr: Expr, shard: Shard) -> bool:
    """Whether every piece of a cat is a shard by itself, without which none has its part."""
    if kind != "cat":
        return True
    ends = np.cumsum([0, *(t.sizes[0] for t in tensors_of(expr))])
    return all(end % (shard.width * shard.size) == 0 for end in ends)


def _is_one_slice(kind: str, shard: Shard, result: Shard, source: Any) -> bool:
    """Whether every device slices what it has at the same place, so that all run one program."""
    if kind != "slice":
        return True
    at = np.arange(len(source))
    places = {
        (int(_local(result, i)), int(_local(shard, j))) for i, j in zip(at, source, strict=True)
    }
    return len(places) == len(source) // result.size


def _local(shard: Shard, index: Any) -> Any:
    unit = shard.width * shard.size
    return index // unit * shard.width + index % shard.width


def test_heads_of_one_projection_sliced() -> None:
    """Queries, keys and values of [3, heads, size] as one dimension: strided shards need nothing
    from others, outer ones do.
    """
    heads, size, d = 8, 16, 4
    width = heads * size
    for k in range(3):
        expr, _ = built([3 * width], lambda b, x, k=k: b.slice(x, [k * width], [(k + 1) * width]))
        assert expr is not None
        strided, outer = Shard(0, width // d, d), Shard(0, 3 * width // d, d)
        assert push(expr, 0, strided) == strided
        assert push(expr, 0, outer) is None
    # An inner shard of a projection has cyclic columns, not heads.
    expr, _ = built([width], lambda b, x: b.reshape(x, [heads, size]))
    assert expr is not None
    assert push(expr, 0, Shard(0, width // d, d)) == Shard(0, heads // d, d)
    assert push(expr, 0, Shard(0, 1, d)) == Shard(1, 1, d)


@pytest.mark.parametrize("d", DEVICES)
def test_divisible_heads_suffice(d: int) -> None:
    """a % d == 0 suffices for a split by a; h % (a * d) == 0 is not needed, and h % d == 0 alone is
    not enough (h = 30, a = 6, d = 5 differ at index 20).
    """
    for a, m in product(range(1, MOST + 1), repeat=2):
        if a % d or a * m == 1:
            continue
        expr, _ = built([a * m], lambda b, x, a=a, m=m: b.reshape(x, [a, m]))
        if expr is not None:
            assert push(expr, 0, Shard(0, a * m // d, d)) == Shard(0, a // d, d)
    expr, _ = built([30], lambda b, x: b.reshape(x, [6, 5]))
    assert expr is not None
    assert push(expr, 0, Shard(0, 6, 5)) is None
