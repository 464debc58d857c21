"""The part of FusionBuilder that adds random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.builder.values import Size, ValueBuilder
from thunder_fuser.ir.domain import iteration, tensor_domain
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import RandomOp, Scalar, TensorView, Val
from thunder_fuser.ir.integer.symint import Context
from thunder_fuser.ir.tables import random


class RandomBuilder(ValueBuilder):
    """Random tensors: `op` is a row of `random.TABLE`."""

    def __init__(self, context: Context | None = None) -> None:
        super().__init__(context)
        self._state: list[Scalar] = []

    def drawn_state(self) -> tuple[Scalar, Scalar]:
        """A seed and an offset as scalar inputs after all others, drawn by the caller of the
        fusion: one seed for all, and a new offset for each call of this method.
        """
        missing = 1 if self._state else 2
        self._state += [Scalar(self._id(), DataType.Int) for _ in range(missing)]
        return self._state[0], self._state[-1]

    @property
    def draws(self) -> int:
        """Number of offset inputs."""
        return max(len(self._state) - 1, 0)

    def random(
        self,
        op: str,
        shape: Sequence[Size],
        parameters: tuple[Val | Number, Val | Number],
        state: tuple[Val | Number, Val | Number],
        dtype: DataType,
    ) -> TensorView:
        """A random tensor of sizes `shape`; equal states (seed, offset) give equal values."""
        row = random.lookup(op)
        row.check(dtype)
        wide = random.standard_dtype(dtype)
        first, second = (self._number(op, v, wide) for v in parameters)
        _check_parameters(row, first, second)
        seed, offset = (self._number(op, v, DataType.Int) for v in state)
        ids = [iteration(size) for size in self._sizes(op, shape)]
        out = TensorView(self._id(), dtype, tensor_domain(ids))
        self._append(RandomOp(op, seed, offset, (first, second), out, self.origin))
        return out


def _check_parameters(row: random.Distribution, first: Val, second: Val) -> None:
    """Check the parameters that are constants; FuserValueError."""
    known = [v.value if isinstance(v, Scalar) else None for v in (first, second)]
    a, b = row.parameters
    match row.name, known:
        case "uniform", [float(low), float(high)] if low > high:
            raise FuserValueError(f"uniform: {a} must not be above {b}, got {low} and {high}")
        case "normal", [_, float(std)] if std < 0:
            raise FuserValueError(f"normal: {b} must not be negative, got {std}")
        case "bernoulli", _:
            for name, word in zip((a, b), known, strict=True):
                if isinstance(word, int) and not 0 <= word < random.WORDS:
                    raise FuserValueError(f"bernoulli: {name} must be in 0..2^32 - 1, got {word}")
