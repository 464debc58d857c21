"""A program while it grows: every line is run by torch as soon as it is written.

So a line is known to work, and the next one is chosen for the tensors that are really there.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.fuzz.numbers import random_numbers
from tests.fuzz.program import NAMESPACE, Argument, Line
from tests.support.inputs import laid_out

FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.int16)
MAX_NUMEL = 6_000
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)
_INTEGER = re.compile(r"torch\.u?int\d")
_INDEXED = re.compile(
    r"\{(indices|classes|several_classes|bags|dim_and_indices|dim_and_gathered|\w+_source)\}"
)
"""Integers that say where, in rows that convert nothing to them."""
_MOMENTS = re.compile(r"torch\.(var|std)|_norm\(")


def kind_of(dtype: torch.dtype) -> str:
    """f, i, b or c: floats, integers, booleans and complex numbers."""
    if dtype is torch.bool:
        return "b"
    return "c" if dtype.is_complex else "f" if dtype.is_floating_point else "i"


def is_bad_index(error: Exception) -> bool:
    """Whether torch says that an element does not exist."""
    return isinstance(error, IndexError) or "index" in str(error)


def _reads_what_it_writes(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an update of the first tensor reads some of its elements for others: torch's result
    hangs on the order in which it goes through them.
    """
    if not tensors:
        return False
    target, *others = tensors
    memory = target.untyped_storage()
    sharing = [t for t in others if t.untyped_storage().data_ptr() == memory.data_ptr()]
    if any(t.element_size() != target.element_size() for t in sharing):
        return True
    cells = torch.arange(memory.nbytes() // target.element_size())
    written, *read = (
        cells.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (target, *sharing)
    )
    return any(not torch.equal(written, k) and bool(torch.isin(k, written).any()) for k in read)


def _has_moments(t: torch.Tensor) -> bool:
    """Whether squares of its numbers can be added up in their own precision."""
    if kind_of(t.dtype) not in "fc":
        return True
    largest = 1e150 if t.dtype in (torch.float64, torch.complex128) else 1e17
    return not bool((t.isinf() | (t.abs() > largest)).any())


class Maker:
    """Lines and arguments so far, and the tensors that they give."""

    def __init__(
        self,
        seed: int,
        gradients: bool,
        ranks: Sequence[int] = (1, 2, 2, 2, 3, 3, 4),
        sizes: Sequence[int] = (),
    ) -> None:
        """`sizes`: of which the first tensor has its own; none of its dimensions is empty then."""
        self.rng = random.Random(seed)
        self.gradients = gradients
        self.lines: list[Line] = []
        self.arguments: list[Argument] = []
        self.space: dict[str, Any] = {**NAMESPACE}
        self.pool: list[str] = []
        self.ended = False
        """Whether the last line fails, so that nothing may follow it."""
        self._bad = False
        self._memories: dict[int, torch.Tensor] = {}
        self._held: list[Argument] = []
        self._made = 0
        complexes = [torch.complex64] * (self.rng.random() < 0.06)
        floats = self.rng.sample(FLOATS, self.rng.randint(1, 2))
        integers = self.rng.sample(INTEGERS, self.rng.randint(0, 2))
        self.dtypes = [*floats, *floats, *integers, *complexes]
        self.dtypes += [torch.bool] * (self.rng.random() < 0.5)
        self._ranks = ranks
        self._emptied = 0.0 if sizes else 0.03
        self.sizes = self._drawn(sizes) if sizes else self._base()
        first = floats[0] if gradients else self.rng.choice(self.dtypes)
        self.argument(self.sizes, first)
        if not gradients and self.chance(0.04):
            self.shared_argument()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _drawn(self, sizes: Sequence[int]) -> list[int]:
        drawn = [self.rng.choice(sizes) for _ in range(self.rng.choice(self._ranks))]
        while math.prod(drawn) > MAX_NUMEL:
            drawn[self.rng.randrange(len(drawn))] = self.rng.choice((2, 3, 4, 8))
        return drawn

    def _base(self) -> list[int]:
        drawn = self.rng.random()
        if drawn < 0.06:
            return []
        if drawn < 0.12:
            long = (64, 65, 130, 256, 300, 520, 1025, 2050)
            return [*([self.rng.randint(1, 3)] * self.chance(0.5)), self.rng.choice(long)]
        rank = self.rng.choice(self._ranks)
        return [self.rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 7, 8)) for _ in range(rank)]

    # ---- tensors

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.space[name]
        return found

    def argument(
        self, sizes: Sequence[int], dtype: torch.dtype, data: Any = None, *, dense: bool = False
    ) -> str:
        """A new argument, laid out in two ways; `dense`: without gaps and repetitions."""
        name = f"a{len(self.arguments)}"
        if self.chance(self._emptied) and len(sizes) and data is None:
            sizes = list(sizes)
            sizes[self.rng.randrange(len(sizes))] = 0
        numbers = random_numbers(self.rng, sizes, dtype) if data is None else data
        plain = numbers if dense or self.chance(0.5) else laid_out(self.rng, numbers)[0]
        layouts = plain, numbers if dense else laid_out(self.rng, numbers)[0]
        differentiable = dtype.is_floating_point or dtype.is_complex
        grad = self.gradients and differentiable and self.chance(0.7)
        made = Argument(name, layouts, grad)
        self._adopt(made)
        return name

    def _adopt(self, made: Argument) -> None:
        self.arguments.append(made)
        # Kept, because memories are known by their address.
        self._held.append(made)
        self.space[made.name] = made.fresh(0, self._memories)
        self.pool.append(made.name)

    def shared_argument(self) -> None:
        """An argument in the memory of another one: all of it, a part, or turned."""
        other = self.rng.choice(self.arguments)
        views: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
            lambda t: t.as_strided(t.size(), t.stride(), t.storage_offset()),
            lambda t: t.permute(list(reversed(range(t.dim())))),
            lambda t: t[1:] if t.dim() else t.unsqueeze(0),
            lambda t: t[..., ::2] if t.dim() else t.unsqueeze(0),
        )
        view = self.rng.choice(views)
        self._adopt(Argument(f"a{len(self.arguments)}", tuple(map(view, other.layouts))))

    def one_of(self, fits: Callable[[torch.Tensor], bool]) -> str | None:
        """The name of a tensor that fits, rather one of the last ones."""
        fitting = [name for name in self.pool if fits(self.tensor(name))]
        if not fitting:
            return None
        if self.chance(0.5):
            return self.rng.choice(fitting[-3:])
        return self.rng.choice(fitting)

    def of_kind(self, kinds: str) -> str | None:
        found = self.one_of(lambda t: kind_of(t.dtype) in kinds)
        if found is None or self.chance(0.05):
            dtypes = [d for d in self.dtypes if kind_of(d) in kinds]
            if dtypes:
                return self.argument(self.related_sizes(self.sizes), self.rng.choice(dtypes))
        return found

    def related_sizes(self, sizes: Sequence[int]) -> list[int]:
        """Sizes that broadcast with `sizes`: the same, fewer, or with ones."""
        found = list(sizes)
        if self.chance(0.25):
            found = found[self.rng.randint(0, len(found)) :]
        return [1 if self.chance(0.12) else size for size in found]

    # ---- growth

    def add(self, text: str, row: str, assigns: bool) -> bool:
        """Write a line, unless torch refuses it."""
        name = f"x{self._made}" if assigns else None
        line = Line(f"{name} = {text}" if name else text, row, name)
        if not self._is_defined(line):
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line.text, self.space)
        except _REFUSALS as error:
            self.ended = self._bad and is_bad_index(error) and name is not None
            if self.ended:
                self.lines.append(line)
            return self.ended
        finally:
            self._bad = False
        if name is None:
            self.lines.append(line)
            return True
        made = self.space[name]
        if isinstance(made, (tuple, list)):
            return self._unpacked(line, len(made))
        if not isinstance(made, torch.Tensor) or made.numel() > MAX_NUMEL or made.dim() > 6:
            return False
        self._made += 1
        self.lines.append(line)
        self.pool.append(name)
        return True

    def _is_defined(self, line: Line) -> bool:
        """Whether no float is converted to an integer that cannot hold it, and no moment taken that
        hangs on the precision or the order of its sums: torch's kernels for a CPU take squares in
        double precision, those for a GPU and ours do not. Nor an update that reads what it writes.
        """
        read = [self.space[name] for name in line.reads]
        tensors = [t for t in read if isinstance(t, torch.Tensor)]
        if _MOMENTS.search(line.text) and not all(map(_has_moments, tensors)):
            return False
        is_update = line.makes is None or "_(" in line.text
        if is_update and _reads_what_it_writes(tensors):
            return False
        if _INDEXED.search(line.row):
            return True
        if not any(kind_of(t.dtype) == "i" for t in tensors) and not _INTEGER.search(line.text):
            return True
        return not any(
            kind_of(t.dtype) in "fc" and not bool(((t.real >= 0) & (t.real < 100)).all())
            for t in tensors
        )

    def _unpacked(self, line: Line, count: int) -> bool:
        """Several results, and some of them by themselves."""
        if not count:
            return False
        self._made += 1
        self.lines.append(line)
        for k in self.rng.sample(range(count), min(count, self.rng.randint(1, 3))):
            self.add(f"{line.makes}[{k}]", "unpack", True)
        return True

    # ---- what rows may ask for

    def number(self, dtype: torch.dtype) -> str:
        kind = kind_of(dtype)
        if kind == "b" or self.chance(0.05):
            return self.rng.choice(("True", "False", "1", "2", "0.5"))
        if kind == "i":
            return self.rng.choice(("0", "1", "2", "3", "-1", "-3", "2.0", "0.5", "-1.5"))
        if self.chance(0.06):
            return self.rng.choice(("inf", "-inf", "nan", "-0.0", "1e30", "1e-30"))
        return self.rng.choice(("0.5", "2.0", "-1.5", "1", "2", "3", "-1", "0", "0.1", "10"))

    def partner(self, x: torch.Tensor, into: bool) -> str:
        """A tensor that broadcasts with `x`; `into`: without changing its sizes."""

        def fits(t: torch.Tensor) -> bool:
            pairs = zip(reversed(t.shape), reversed(x.shape), strict=False)
            if into:
                return t.dim() <= x.dim() and all(a in (1, b) for a, b in pairs)
            return all(a == b or 1 in (a, b) for a, b in pairs)

        found = self.one_of(fits)
        if found is not None and self.chance(0.7):
            return found
        dtype = x.dtype if self.chance(0.6) else self.rng.choice(self.dtypes)
        return self.argument(self.related_sizes(x.shape), dtype)

    def like(self, x: torch.Tensor) -> str:
        """A tensor of the sizes and dtype of `x`."""
        found = self.one_of(lambda t: t.shape == x.shape and t.dtype == x.dtype)
        if found is not None and self.chance(0.7):
            return found
        return self.argument(x.shape, x.dtype)

    def indices(self, bound: int, sizes: Sequence[int], negative: bool = False) -> str:
        """An argument of indices below `bound`."""
        low = -bound if negative and self.chance(0.3) else 0
        drawn = [self.rng.randrange(low, max(bound, 1)) for _ in range(math.prod(sizes))]
        if drawn and self.chance(0.04):
            drawn[self.rng.randrange(len(drawn))] = self.rng.choice((bound, bound + 7, -bound - 1))
            self._bad = True
        dtype = torch.int64 if negative or self.chance(0.7) else torch.int32
        return self.argument(sizes, dtype, torch.tensor(drawn, dtype=dtype).reshape(tuple(sizes)))
