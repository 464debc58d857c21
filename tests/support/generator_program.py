"""A random program under construction: its builder, its inputs, and the values to build on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.support import oracle
from tests.support.inputs import QUARTERS, Layout, laid_out, random_tensor
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.fusion import Scalar, TensorView, Val

SIZES = (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 64)
LARGEST = 1e4
"""Values beyond this are not built upon: their powers and exponentials overflow."""


class Program:
    """A fusion being written. `pool` holds the tensors that the next operation may use."""

    def __init__(
        self,
        seed: int,
        max_numel: int,
        dtypes: tuple[DataType, ...],
        operations: tuple[str, ...],
        *,
        sizes: tuple[int, ...] = SIZES,
        special: bool = False,
    ) -> None:
        """`special`: inputs have extreme numbers, and what overflows is built upon, too."""
        self.rng = random.Random(seed)
        self.max_numel = max_numel
        self.dtypes = dtypes
        self.operations = operations
        self.sizes = sizes
        self.special = special
        self.builder = FusionBuilder()
        self.oracle = oracle.Oracle()
        self.inputs: list[torch.Tensor | Number] = []
        self.input_views: list[TensorView] = []
        self.pool: list[TensorView] = []
        self.scalars: list[Scalar] = []
        self.ran = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def recent(self, among: Sequence[TensorView] = ()) -> TensorView:
        """A value, rather a young one: programs are deeper than they are wide."""
        pool = among or self.pool
        return self.rng.choice(pool[-4:] if self.chance(0.6) else pool)

    def keep(self, made: Val | None) -> None:
        """Lets the oracle catch up, and pools the value if it is worth building on."""
        exprs = self.builder.build().exprs
        for expr in exprs[self.ran :]:
            self.oracle.run(expr)
        self.ran = len(exprs)
        if isinstance(made, Scalar):
            self.scalars.append(made)
        elif made is not None and self._worth_keeping(made):
            self.pool.append(made)

    def _worth_keeping(self, view: TensorView) -> bool:
        value = self.oracle.value(view)
        if view.numel > 4 * self.max_numel or view.rank > 6:
            return False
        if view.dtype.category >= Category.FLOAT and value.numel() and not self.special:
            size = value.abs()
            is_finite = size.isfinite()
            if not bool(((size < LARGEST) | ~is_finite).all()):
                return False
            if 2 * int(is_finite.sum()) < value.numel():
                return False
        return oracle.tightness(self.oracle, view) > 0.9

    def pooled(self, value: Val) -> TensorView:
        assert isinstance(value, TensorView)
        self.keep(value)
        return value

    # ---- inputs

    def shape(self) -> list[int]:
        if self.chance(0.04):
            return []
        sizes = [self.rng.choice(self.sizes) for _ in range(self.rng.randint(1, 5))]
        limit = min(self.max_numel, self.rng.choice((100, 1000, 4000, 20_000)))
        while math.prod(sizes) > limit:
            sizes.pop(self.rng.randrange(len(sizes)))
        if sizes and self.chance(0.05):
            sizes[self.rng.randrange(len(sizes))] = 0
        return sizes

    def tensor(
        self, sizes: Sequence[int], dtype: DataType | None = None, repeats: float = 0.08
    ) -> TensorView:
        """An input; `repeats`: how often a dimension of it is expanded."""
        dtype = dtype or self.rng.choice(self.dtypes)
        numbers = random_tensor(self.rng, sizes, dtype, special=self.special)
        data, layout = laid_out(self.rng, numbers, repeats)
        # Less may be promised than holds.
        promised = [flag and not self.chance(0.05) if flag else flag for flag in layout.contiguity]
        return self.adopt(data, replace(layout, contiguity=tuple(promised)), dtype)

    def counter(self) -> TensorView:
        """An input that is one number in a tensor on the CPU, wherever the others are."""
        dtype = self.rng.choice(self.dtypes)
        view = self.builder.tensor([], dtype, is_cpu=True)
        self.inputs.append(random_tensor(self.rng, [], dtype, special=self.special))
        self.oracle.bind([view], [self.inputs[-1]])
        self.pool.append(view)
        return view

    def adopt(self, data: torch.Tensor, layout: Layout, dtype: DataType) -> TensorView:
        """An input of which so much is promised."""
        view = self.builder.tensor(
            list(data.shape),
            dtype,
            expanded=layout.expanded,
            allocation=layout.allocation,
            contiguity=layout.contiguity,
        )
        self.inputs.append(data)
        self.input_views.append(view)
        self.oracle.bind([view], [data])
        self.pool.append(view)
        return view

    def number(self, dtype: DataType | None = None) -> Scalar:
        dtype = dtype or self.rng.choice((DataType.Double, DataType.Int, DataType.Bool))
        scalar = self.builder.scalar(None, dtype)
        self.inputs.append(self.constant(dtype))
        self.oracle.bind([scalar], [self.inputs[-1]])
        self.scalars.append(scalar)
        return scalar

    def constant(self, dtype: DataType) -> Number:
        if dtype is DataType.Bool:
            return self.chance(0.5)
        if dtype.is_integral:
            return self.rng.randint(1, 5)
        if dtype.is_complex:
            return complex(self.rng.choice(QUARTERS), self.rng.choice(QUARTERS))
        return self.rng.choice((0.1, 0.25, 0.5, -0.75, 1.5, 2.0, 1 / 3))

    # ---- conversion

    def cast(self, x: TensorView, dtype: DataType) -> TensorView | None:
        """`x` as `dtype`, or None where that has no defined result."""
        if dtype.is_integral and x.dtype.category >= Category.FLOAT:
            if not bool(self.oracle.value(x).isfinite().all()):
                return None
            if x.dtype.is_complex:
                x = self.pooled(self.builder.pointwise("real", x))
            low = 0.0 if dtype.is_unsigned else -100.0
            x = self.pooled(self.builder.pointwise("clamp", x, low, 100.0))
        return self.pooled(self.builder.cast(x, dtype))
