"""Lines: result k of a dimension reads element `(a * k + b) // c`, as interpolations do.

Reading by a line is a view: every a-th of the elements, each repeated c times. Its index is one of
integers that the compiler knows, so that vectors read it and nothing is tested, where an index that
is computed is read lane by lane.

The gradient gathers too. The results that read one element are next to each other: a window, which
begins at a line of its own and has as many taps as the largest has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import thunder.torch as ltorch
from thunder import clang
from thunder.core.proxies import TensorProxy


class Line(NamedTuple):
    """Element `(a * k + b) // c` of result k; a and c are positive."""

    a: int
    b: int
    c: int

    def elements(self, count: int) -> list[int]:
        """Return the elements of `count` results."""
        return [(self.a * k + self.b) // self.c for k in range(count)]

    def moved(self, by: int) -> Line:
        """Return the line `by` elements further."""
        return self._replace(b=self.b + by * self.c)

    def of(self, x: TensorProxy, dim: int, count: int) -> TensorProxy:
        """Return a view of the elements of x along `dim` that `count` results read, which must be
        there.
        """
        common = math.gcd(self.a, self.c)
        step, begin, times = self.a // common, self.b // common, self.c // common
        shape = [m * times if d == dim else m for d, m in enumerate(x.shape)]
        whole = ltorch.reshape(expanded(x, {dim: times}), shape)
        found: TensorProxy = clang.slice_in_dim(
            whole, begin, begin + step * (count - 1) + 1, stride=step, dim=dim
        )
        return found


@dataclass(frozen=True, slots=True)
class ReadingWindows:
    """Which results read each element: `taps` results from `line` on, some of which may read
    others. Line and taps count from `before` results before the first; `behind` follow the last.
    """

    line: Line
    taps: int
    before: int
    behind: int

    @classmethod
    def of(cls, line: Line, read: Sequence[Collection[int]], n: int) -> ReadingWindows:
        """Return the windows of n elements. `read` are the elements that each result reads, about
        where `line` has them.
        """
        first, last = [len(read)] * n, [-1] * n
        for k, elements in enumerate(read):
            for element in elements:
                first[element] = min(first[element], k)
                last[element] = max(last[element], k)
        begins = Line(line.c, -line.b, line.a)
        begins = begins.moved(min(map(int.__sub__, first, begins.elements(n))))
        starts = begins.elements(n)
        taps = max(1, *(end - start + 1 for end, start in zip(last, starts, strict=True)))
        before = max(0, -starts[0])
        behind = max(0, starts[-1] + taps - len(read))
        return cls(begins.moved(before), taps, before, behind)

    def tap(self, x: TensorProxy, dim: int, n: int, number: int, outside: float) -> TensorProxy:
        """Return for each of n elements the result with a number in its window, of the results x
        along `dim`; `outside` where there is none.
        """
        sides = [(self.before, self.behind, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
        padded = clang.pad(x, clang.maybe_convert_to_dtype(outside, x.dtype), sides)
        return self.line.moved(number).of(padded, dim, n)


def expanded(a: TensorProxy, repeated: Mapping[int, int]) -> TensorProxy:
    """Return a view with a dimension of `times` equal elements behind each key of `repeated`.

    All are expanded at once, so that the gradient is one sum, rounded once, as in torch's kernel.
    """
    if not repeated:
        return a
    sizes = [(n, repeated.get(k)) for k, n in enumerate(a.shape)]
    apart = [m for n, times in sizes for m in ((n,) if times is None else (n, 1))]
    whole = [m for n, times in sizes for m in ((n,) if times is None else (n, times))]
    return ltorch.expand(ltorch.reshape(a, apart), whole)
