"""Random definitions, called several times, against float64.

Each step is compared with its meaning in torch (what the builder made of it, evaluated by the
reference), and what the kernels return with the oracle's bounds. The definition is called with
tensors of several sizes and layouts through one `execute`, as a user calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.definitions.generate import random_definition
from tests.fuzz.definitions.maker import CALLS
from tests.fuzz.definitions.program import Program, Ref, Step
from tests.fuzz.definitions.truth import results
from tests.fuzz.fusions import FusionVerdict, memory_shared_by_mistake
from tests.fuzz.kernels import compiled_together, devices
from tests.support import oracle
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.definition.calling import called_with
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.fusion import Val
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.runtime.binding.bind import bind

_ROUNDING = 1e-11
"""What float64 sums in another order differ by, of the largest number."""
_HUGE = 1e150


@dataclass(slots=True)
class _Defined:
    """A program, and its definition while it is called."""

    program: Program
    fd: FusionDefinition
    values: list[Any]
    problem: str = ""


def judge_definitions(
    seeds: Sequence[int], device: int, *, optimised: bool = False
) -> list[FusionVerdict]:
    """One verdict for each seed: "right", or what is wrong."""
    chosen = devices()[device % len(devices())]
    with compiled_together(chosen, optimised=optimised) as rehearsal:
        defined = [_defined(random_definition(seed)) for seed in seeds]
        rehearsal.is_on = True
        for each in defined:
            each.problem = each.problem or _rehearsed(each)
        rehearsal.is_on = False
        for each in defined:
            each.problem = each.problem or _called(each)
    return [_verdict(each, chosen.name) for each in defined]


def _verdict(each: _Defined, device: str) -> FusionVerdict:
    outcome = each.problem.partition(":")[0] if each.problem else "right"
    text = f"{each.problem}\n{each.program}" if each.problem else ""
    return FusionVerdict(each.program.seed, device, outcome, text)


def _defined(program: Program) -> _Defined:
    fd, values = program.define()
    return _Defined(program, fd, values)


def _rehearsed(each: _Defined) -> str:
    for k in range(CALLS):
        try:
            each.fd.execute(each.program.inputs(k))
        except Exception as error:
            return f"exception: call {k}: {type(error).__name__}: {error}"
    return ""


def _called(each: _Defined) -> str:
    for k in range(CALLS):
        inputs = each.program.inputs(k)
        torch.manual_seed(k)
        before = called_with(each.program.inputs(k), None, each.fd.fusion.draws)
        torch.manual_seed(k)
        try:
            outputs = each.fd.execute(inputs)
        except Exception as error:
            return f"exception: call {k}: {type(error).__name__}: {error}"
        problem = _wrong(each, k, before, inputs, outputs)
        if problem:
            kind, _, text = problem.partition(":")
            return f"{kind}: call {k}:{text}"
    return ""


# ---- one call


def _wrong(
    each: _Defined,
    k: int,
    before: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Tensor],
) -> str:
    fusion = each.fd.fusion.plain
    made = [v.val for v in each.values if v.is_tensor() and v.val not in fusion.inputs]
    whole = replace(fusion, outputs=(*fusion.outputs, *made))
    static = specialise(whole, bind(whole, before).sizes)
    truth = oracle.run(static, before)
    count = len(fusion.outputs)
    known: dict[Val, Val] = dict(zip(made, static.outputs[count:], strict=True))
    known |= zip(fusion.inputs, static.inputs, strict=True)
    problem = _meant_otherwise(each, k, truth, known)
    if problem:
        return problem
    updated = [inputs[fusion.inputs.index(u.target)] for u in fusion.updates]
    try:
        oracle.check(truth, replace(static, outputs=static.outputs[:count]), outputs, updated)
    except AssertionError as error:
        return f"values: {error}"
    shared = memory_shared_by_mistake(fusion, outputs)
    return f"memory: {shared}" if shared else ""


def _meant_otherwise(each: _Defined, k: int, truth: oracle.Oracle, known: Mapping[Val, Val]) -> str:
    """The first step whose result is not what its operands mean in torch, or ""."""

    def numbers(ref: Ref) -> Tensor:
        val = each.values[ref.place].val
        return truth.value(known[val]) if val in known else each.program.scalars[ref.place][k]

    for step in each.program.steps:
        made = [each.values[step.first + j].val for j in range(step.count)]
        if (
            step.op.startswith("define_")
            or step.op.endswith("_like")
            or not known.keys() & set(made)
        ):
            continue
        wanted = results(step, made, lambda ref: each.values[ref.place].val, numbers)
        size = _size_of_terms(step, numbers)
        for j, (val, want) in enumerate(zip(made, wanted, strict=True)):
            if val in known and _differ(truth.value(known[val]), want, val.dtype, size):
                got = truth.value(known[val])
                return f"meaning: result {j} of {step}: expected {want}, got {got}"
    return ""


_SQUARES = ("var", "var_mean", "welford")


def _size_of_terms(step: Step, numbers: Callable[[Ref], Tensor]) -> float:
    """The largest finite number that the step may add up."""
    found = 0.0
    for place in step.reads:
        x = numbers(Ref(place))
        if x.is_floating_point() or x.is_complex():
            sizes = x.abs()[x.isfinite()]
            found = max([found, *sizes.amax().reshape(-1).tolist()] if sizes.numel() else [found])
    return found * found if step.op in _SQUARES else found


def _differ(got: Tensor, want: Tensor, dtype: DataType, size: float) -> bool:
    if got.shape != want.shape:
        return True
    same = (got == want) | ((got != got) & (want != want))
    if dtype.category >= Category.FLOAT:
        allowed = _ROUNDING * (size + want.abs())
        if dtype.is_reduced_precision:
            info = torch.finfo(dtype.torch)
            allowed = allowed + info.eps * want.abs().clamp(min=info.smallest_normal)
        huge = max(size, _HUGE) > _HUGE  # what overflows in one order does not in another
        same |= ((got - want).abs() <= allowed) | huge
    return not bool(same.all())
