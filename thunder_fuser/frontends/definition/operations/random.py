"""The operations that draw random numbers, with nvFuser's signatures.

Element n of the result is the n-th value of the Philox stream of a seed and an offset: equal seeds
and offsets give equal values, on every device and in every kernel that recomputes them. Without
them `execute` takes them from torch's generator of the device, once per call: a GPU's generator
gives its seed and the next offset for each such operation, so that operation i after
`torch.manual_seed(s)` draws what `rng_seed=s, rng_offset=i` draws; a CPU's generator, which has no
offsets, gives a new seed. They are then inputs of the fusion, after all others, which `execute`
appends.

Results of `uniform` and `normal` are Float, Double, Half or BFloat16; other dtypes are a
FuserTypeError. FuserValueError if only one of `rng_seed` and `rng_offset` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.operations.arguments import integer, sizes, storage
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView, Val


def uniform(
    b: FusionBuilder, minval: Val, maxval: Val, shape: Sequence[Any], *,
    rng_seed: Scalar | int | None = None, rng_offset: Scalar | int | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:  # fmt: skip
    """Uniform random values in [minval, maxval), of sizes `shape` and `dtype`.

    FuserValueError for constants minval > maxval.
    """
    state = _state(b, rng_seed, rng_offset)
    return b.random("uniform", sizes("shape", shape), (minval, maxval), state, _storage(dtype))


def normal(
    b: FusionBuilder, mean: Val, std: Val, shape: Sequence[Any], *,
    rng_seed: Scalar | int | None = None, rng_offset: Scalar | int | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:  # fmt: skip
    """Normally distributed random values of that mean and standard deviation, of sizes `shape` and
    `dtype`. FuserValueError for a negative constant `std`.
    """
    state = _state(b, rng_seed, rng_offset)
    return b.random("normal", sizes("shape", shape), (mean, std), state, _storage(dtype))


def bernoulli(
    b: FusionBuilder, first: Val, count: Val, shape: Sequence[Any], *,
    rng_seed: Scalar | int | None = None, rng_offset: Scalar | int | None = None,
    dtype: DataType = DataType.Bool,
) -> TensorView:  # fmt: skip
    """Bool mask of sizes `shape`, True with probability count / 2^32.

    True for elements whose 32-bit random word is in first..first + count - 1 (mod 2^32).
    `uniform(0, 1) < p` is one such mask. nvFuser has no such operation. FuserTypeError for another
    dtype than Bool, FuserValueError for constants outside 0..2^32 - 1.
    """
    state = _state(b, rng_seed, rng_offset)
    return b.random("bernoulli", sizes("shape", shape), (first, count), state, _storage(dtype))


def rand_like(b: FusionBuilder, arg: TensorView) -> TensorView:
    """Uniform random values in [0, 1) with the sizes and the dtype of `arg`."""
    return b.random("uniform", _sizes(b, arg), (0.0, 1.0), b.drawn_state(), arg.dtype)


def randn_like(b: FusionBuilder, arg: TensorView) -> TensorView:
    """Standard normal random values with the sizes and the dtype of `arg`."""
    return b.random("normal", _sizes(b, arg), (0.0, 1.0), b.drawn_state(), arg.dtype)


def _storage(dtype: object) -> DataType:
    return storage("dtype", dtype)


def _sizes(b: FusionBuilder, arg: object) -> list[Scalar]:
    if not isinstance(arg, TensorView):
        raise FuserTypeError(f"arg: expected a tensor, got {arg!r}")
    return [b.size(arg, k) for k in range(arg.rank)]


def _state(
    b: FusionBuilder, seed: Scalar | int | None, offset: Scalar | int | None
) -> tuple[Scalar | int, Scalar | int]:
    if seed is None and offset is None:
        return b.drawn_state()
    if seed is None or offset is None:
        raise FuserValueError(
            "rng_seed and rng_offset go together: give both, or neither to take them from torch"
        )
    return _integer("rng_seed", seed), _integer("rng_offset", offset)


def _integer(what: str, value: Scalar | int) -> Scalar | int:
    if not isinstance(value, Scalar):
        return integer(what, value)
    if not value.dtype.is_integral:
        raise FuserTypeError(f"{what}: expected an integer, got {value}")
    return value


RANDOM: MappingProxyType[str, Callable[..., TensorView]] = MappingProxyType(
    {
        function.__name__: function
        for function in (uniform, normal, bernoulli, rand_like, randn_like)
    }
)
"""Random operations by name; each takes the builder first."""
