"""The results of one step in float64, from what its operands are: how a program knows its values
while it grows, and what the builder and the reference are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.definitions.meanings import MEANINGS
from tests.fuzz.definitions.program import Ref, Step
from thunder_fuser.ir.dtypes import DataType, Operand, compute_dtype, of_number
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.reference import Evaluator, pointwise_function
from thunder_fuser.ir.reference_uint64 import TOP_BIT
from thunder_fuser.ir.tables import opaque, pointwise, random, reductions, scans

_RANDOM = ("uniform", "normal", "bernoulli", "rand_like", "randn_like")
_CPU = torch.device("cpu")

Vals = Callable[[Ref], Val]
Numbers = Callable[[Ref], Tensor]


def results(step: Step, made: Sequence[Val], vals: Vals, numbers: Numbers) -> list[Tensor]:
    """Carriers of what the step makes. Results of random numbers are those of one state of the
    generator, whatever the program's is.
    """
    evaluator = Evaluator(True, _CPU)
    if step.op in pointwise.TABLE:
        return [_pointwise(evaluator, step, made[0], vals, numbers)]
    args, kwargs = step.resolved(numbers)
    if step.op in _RANDOM:
        return [_random(evaluator, step, made[0], args, kwargs)]
    if step.op in opaque.TABLE:
        return _called(evaluator, step, made, vals, args, kwargs)
    args = [_folded_in(evaluator, step, k, x, vals, made[0]) for k, x in enumerate(args)]
    found = MEANINGS[step.op](*args, **kwargs)
    several = [found] if isinstance(found, Tensor) else list(found)
    if step.op in _ORDERED and made[0].dtype is DataType.UInt64:
        several = [x ^ TOP_BIT for x in several]
    return [_stored(evaluator, x, v.dtype) for x, v in zip(several, made, strict=True)]


_ORDERED = ("max", "min", "argmax", "argmin", "cummax", "cummin")


def _folded_in(evaluator: Evaluator, step: Step, place: int, x: Any, vals: Vals, made: Val) -> Any:
    """Elements and first value of a fold in the dtype that these are folded in; one of 16 bits, if
    chosen, rounds them, as in torch. Carriers of UInt64 with their top bit flipped are in the order
    of the numbers.
    """
    folded = (0, 2) if step.op in scans.TABLE else (0,) if step.op in reductions.TABLE else ()
    if place not in folded:
        return x
    given = step.args[place]
    source = vals(given).dtype if isinstance(given, Ref) else of_number(given)
    dtype = step.kwargs.get("dtype") or (made.dtype if place else source)
    value = x if isinstance(x, Tensor) else evaluator.constant(x, source)
    value = _stored(evaluator, evaluator.convert(value, source, dtype), dtype)
    return value ^ TOP_BIT if step.op in _ORDERED and dtype is DataType.UInt64 else value


def _stored(evaluator: Evaluator, value: Tensor, dtype: DataType) -> Tensor:
    """As a carrier, rounded as it is stored where that is in 16 or 8 bits."""
    if value.is_complex() and not dtype.is_complex and dtype is not DataType.Bool:
        value = value.real
    made = evaluator.to_carrier(evaluator.from_carrier(value, dtype))
    if dtype.is_reduced_precision:
        made = made.to(dtype.torch).to(torch.float64)
    return made


def _pointwise(evaluator: Evaluator, step: Step, made: Val, vals: Vals, numbers: Numbers) -> Tensor:
    if step.op == "cast":
        source, dtype = step.args
        return _stored(
            evaluator, evaluator.convert(numbers(source), vals(source).dtype, dtype), dtype
        )
    row = pointwise.lookup(step.op)
    kinds, values = [], []
    for x in step.args:
        if isinstance(x, Ref):
            val = vals(x)
            kinds.append(Operand(val.dtype, val.rank if isinstance(val, TensorView) else None))
            values.append(numbers(x))
        else:
            kinds.append(Operand(of_number(x), None))
            values.append(evaluator.constant(x, of_number(x)))
    types = row.operand_dtypes(kinds)
    operands = [
        evaluator.convert(x, kind.dtype, dtype)
        for x, kind, dtype in zip(values, kinds, types, strict=True)
    ]
    constant = [not isinstance(x, Ref) for x in step.args]
    function = pointwise_function(step.op, types, constant)
    raw = compute_dtype(made.dtype)
    return _stored(evaluator, evaluator.convert(function(*operands), raw, made.dtype), made.dtype)


def _random(
    evaluator: Evaluator, step: Step, made: Val, args: Sequence[Any], kwargs: dict[str, Any]
) -> Tensor:
    dtype, wide = made.dtype, random.standard_dtype(made.dtype)
    if step.op.endswith("_like"):
        sizes, pair = list(args[0].shape), (0.0, 1.0)
    else:
        sizes, pair = [int(n) for n in args[2]], (args[0], args[1])
    parameters = [
        x.to(evaluator.torch_dtype(wide)) if isinstance(x, Tensor) else evaluator.constant(x, wide)
        for x in pair
    ]
    name = {"rand_like": "uniform", "randn_like": "normal"}.get(step.op, step.op)
    state = [torch.as_tensor(kwargs.get(n, 0)) for n in ("rng_seed", "rng_offset")]
    count = int(torch.Size(sizes).numel())
    drawn = random.lookup(name).numbers(*state, tuple(parameters), count, dtype)
    return evaluator.convert(drawn.reshape(sizes), wide, dtype)


def _called(
    evaluator: Evaluator,
    step: Step,
    made: Sequence[Val],
    vals: Vals,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> list[Tensor]:
    row = opaque.lookup(step.op)
    given = dict(zip(row.parameters, args, strict=False)) | kwargs
    named = dict(zip(row.parameters, step.args, strict=False)) | dict(step.kwargs)
    tensors = {
        name: evaluator.from_carrier(x, vals(named[name]).dtype)
        for name, x in given.items()
        if name in row.operands and isinstance(named[name], Ref)
    }
    if "src" in given and "src" not in tensors:
        # A number for all indices.
        sizes, dtype = tensors["index"].shape, tensors["arg"].dtype
        tensors["src"] = torch.full(sizes, given["src"], dtype=dtype)
    attributes = {n: tuple(x) if isinstance(x, list) else x
                  for n, x in given.items() if n not in row.operands}  # fmt: skip
    found = row.evaluate(tensors, attributes, double=True)
    return [
        _stored(evaluator, evaluator.to_carrier(x), v.dtype)
        for x, v in zip(found, made, strict=True)
    ]
