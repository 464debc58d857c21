"""A definition while it grows: every step is defined and evaluated as soon as it is written."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.definitions import inputs
from tests.fuzz.definitions.program import Inputs, Output, Program, Ref, Step
from tests.fuzz.definitions.truth import results
from tests.support.inputs import QUARTERS
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import Category, DataType, Number
from thunder_fuser.ir.fusion import Val
from thunder_fuser.ir.reference import Evaluator

CALLS = 4
"""Calls of one definition: of three kinds of sizes, and of the first again."""
MAX_NUMEL = 3000
MAX_RANK = 5
_SIZES = (2, 3, 3, 4, 4, 5, 7, 8, 12, 16, 17, 33)
_EDGES = (1, 1, 2, 3, 8)
_LONG = (64, 100, 128, 129, 257, 1000, 1030)
DTYPES = (
    *(DataType.Float,) * 5, *(DataType.BFloat16, DataType.Half, DataType.Double, DataType.Int) * 2,
    *(d for d in DataType if d is not DataType.Null),
)  # fmt: skip
_EVALUATOR = Evaluator(True, torch.device("cpu"))


class Maker:
    """Steps so far; what they made; and its values at each call, as carriers in float64.

    open     names of sizes that are left open, and what they are at each call
    refused  what the definition did not take, and why
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.special = self.chance(0.3)
        self.fd = FusionDefinition()
        self.fd.__enter__()
        self.steps: list[Step] = []
        self.handles: list[Any] = []
        self.numbers: list[list[Tensor]] = []
        self.given: list[list[Any]] = [[] for _ in range(CALLS)]
        self.tensors: list[Ref] = []
        self.scalars: list[Ref] = []
        self.updatable: list[Ref] = []
        self.refused = Counter[str]()
        self.dtypes = self.rng.sample(DTYPES, 4)
        self.open = [self._open_size() for _ in range(3)]
        self.base = [self._dimension() for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4)))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def close(self) -> None:
        self.fd.__exit__(None, None, None)

    # ---- sizes

    def _open_size(self) -> tuple[int, ...]:
        """What a size is at each call. The first has no ones: `from_pytorch` would keep them."""
        first = self.rng.choice(_SIZES)
        edges = (*_EDGES, 0) if self.seed % 8 == 5 else _EDGES
        found = [first, self.rng.choice(_SIZES), self.rng.choice(edges)]
        return (*found, first)

    def _dimension(self) -> tuple[int, ...]:
        """The sizes of a dimension at the calls: all the same where the definition knows it."""
        if self.chance(0.6):
            return self.rng.choice(self.open)
        drawn = self.rng.random()
        sizes = _LONG if drawn < 0.15 else (1,) if drawn < 0.3 else _SIZES
        return (self.rng.choice(sizes),) * CALLS

    def related(self, dims: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Dimensions that broadcast with those."""
        found = list(dims)
        if self.chance(0.25):
            found = found[self.rng.randint(0, len(found)) :]
        return [(1,) * CALLS if self.chance(0.12) else d for d in found]

    # ---- inputs

    def tensor(
        self,
        dims: Sequence[tuple[int, ...]],
        dtype: DataType,
        fill: Callable[[int], inputs.Fill] | None = None,
    ) -> Ref:
        """A new input; `fill` gives the numbers of each call."""
        while dims and max(self._count(dims, k) for k in range(CALLS)) > MAX_NUMEL:
            dims = list(dims)[1:]
        sizes = [-1 if len(set(d)) > 1 or (d[0] > 1 and self.chance(0.2)) else d[0] for d in dims]
        promise = inputs.random_promise(self.rng, sizes, apart=self.chance(0.4))
        args, kwargs = promise.arguments(self.rng, dtype)
        tensors = []
        for k in range(CALLS):
            numbers = inputs.numbers(self.rng, dtype, self.special) if fill is None else fill(k)
            tensors.append(promise.tensor(self.rng, [d[k] for d in dims], numbers))
        carriers = [_EVALUATOR.to_carrier(t.to(_EVALUATOR.torch_dtype(dtype))) for t in tensors]
        (made,) = self._defined("define_tensor", args, kwargs, [carriers], tensors)
        self.tensors.append(made)
        if promise.apart:
            self.updatable.append(made)
        return made

    @staticmethod
    def _count(dims: Sequence[tuple[int, ...]], k: int) -> int:
        return int(torch.Size([d[k] for d in dims]).numel())

    def scalar(self, dtype: DataType, numbers: Sequence[Number]) -> Ref:
        """A new number input."""
        carriers = [_EVALUATOR.constant(n, dtype) for n in numbers]
        (made,) = self._defined("define_scalar", [None], {"dtype": dtype}, [carriers], numbers)
        self.scalars.append(made)
        return made

    def _defined(
        self,
        op: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        carriers: list[list[Tensor]],
        given: Sequence[Any],
    ) -> list[Ref]:
        step = Step(op, tuple(args), kwargs, len(self.handles), 1)
        handles = step.call(self.fd, self.handles)
        for inputs_of_call, x in zip(self.given, given, strict=True):
            inputs_of_call.append(x)
        return self._adopt(step, handles, carriers)

    def _adopt(
        self, step: Step, handles: Sequence[Any], carriers: Sequence[list[Tensor]]
    ) -> list[Ref]:
        self.steps.append(step)
        places = range(len(self.handles), len(self.handles) + len(handles))
        self.handles += handles
        self.numbers += carriers
        return [Ref(place) for place in places]

    # ---- growth

    def do(self, op: str, *args: Any, **kwargs: Any) -> list[Ref]:
        """The step, and what it makes; nothing where the definition or torch does not take it."""
        step = Step(op, args, kwargs, len(self.handles))
        try:
            handles = step.call(self.fd, self.handles)
        except FuserError as error:
            self.refused[f"{op}: {str(error).splitlines()[0]}"] += 1
            return []
        made = [h.val for h in handles]
        try:
            calls = [self._results(step, made, k) for k in range(CALLS)]
        except (RuntimeError, IndexError, ValueError, AssertionError, ZeroDivisionError) as error:
            self.refused[f"{op} in torch: {str(error).splitlines()[:1]}"] += 1
            return []
        carriers = [list(each) for each in zip(*calls, strict=True)]
        refs = self._adopt(Step(op, args, kwargs, step.first, len(made)), handles, carriers)
        for ref in refs:
            if not self.handles[ref.place].is_tensor():
                self.scalars.append(ref)
            elif self._is_worth_keeping(ref):
                self.tensors.append(ref)
        return refs

    def _results(self, step: Step, made: Sequence[Val], k: int) -> list[Tensor]:
        return results(step, made, self.val, lambda ref: self.numbers[ref.place][k])

    def _is_worth_keeping(self, ref: Ref) -> bool:
        carriers = self.numbers[ref.place]
        if carriers[0].dim() > MAX_RANK or max(x.numel() for x in carriers) > 4 * MAX_NUMEL:
            return False
        known = [x for x in carriers if x.numel() and (x.is_floating_point() or x.is_complex())]
        finite = [float(x.isfinite().double().mean()) for x in known]
        return not finite or min(finite) > (0.05 if self.special else 0.4)

    # ---- questions

    def val(self, ref: Ref) -> Val:
        found: Val = self.handles[ref.place].val
        return found

    def dtype(self, ref: Ref) -> DataType:
        return self.val(ref).dtype

    def dims(self, ref: Ref) -> list[tuple[int, ...]]:
        """Its dimensions' sizes at each call."""
        return list(zip(*(tuple(x.shape) for x in self.numbers[ref.place]), strict=True))

    def rank(self, ref: Ref) -> int:
        return self.numbers[ref.place][0].dim()

    def known(self, ref: Ref, dim: int) -> int | None:
        """The size as the definition knows it."""
        size = self.handles[ref.place].val.domain.logical[dim].size
        return size if isinstance(size, int) else None

    def pick(self, fits: Callable[[Ref], bool] = lambda _: True) -> Ref | None:
        fitting = [ref for ref in self.tensors if fits(ref)]
        if not fitting:
            return None
        return self.rng.choice(fitting[-4:] if self.chance(0.6) else fitting)

    def of(self, *categories: Category, rank: int = 0) -> Ref | None:
        """A tensor of one of those kinds, of that rank at least."""
        return self.pick(
            lambda ref: self.dtype(ref).category in categories and self.rank(ref) >= rank
        )

    def constant(self, dtype: DataType) -> Number:
        rng = self.rng
        if dtype is DataType.Bool:
            return self.chance(0.5)
        if dtype.is_integral:
            return rng.choice((0, 1, 1, 2, 3, 5, 7, -1, -3))
        if dtype.is_complex:
            return complex(rng.choice(QUARTERS), rng.choice(QUARTERS))
        if self.special and self.chance(0.2):
            return rng.choice((float("inf"), -float("inf"), float("nan"), -0.0, 1e-45, 3e38))
        return rng.choice((0.1, 0.25, 0.5, -0.75, 1.5, 2.0, 1 / 3, 0.0, 1.0))

    def finished(self, outputs: Sequence[Output]) -> Program:
        calls: list[Inputs] = [tuple(x) for x in self.given]
        scalars = {
            k: tuple(x) for k, x in enumerate(self.numbers) if not self.handles[k].is_tensor()
        }
        return Program(self.seed, tuple(self.steps), tuple(outputs), tuple(calls), scalars)
