"""Torch's own samples of its operators (OpInfo), through Thunder: results and gradients of eager.

A share of the operators runs each time. `--campaign` runs all of them, in further dtypes and in
other layouts, on more samples, as methods, in place and with `out=`, and the arguments that torch
refuses.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as samples
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_map

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, jit
from tests.frontends.thunder.samples import (
    LAYOUTS,
    copy,
    laid_out,
    moved,
    shared,
    strides,
    tensors,
)

SHARE = 32
"""One operator of so many runs each time."""
SAMPLES = 2
LARGEST = 20_000
"""Elements of a sample: larger ones take long, and show no more."""
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
FURTHER = (torch.float64, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.int32)
"""Dtypes of campaigns."""
ELSEWHERE = re.compile(
    r"sparse.*|to_sparse|jiterator.*|masked\..*|_refs.*|histogramdd|empty.*|new_empty.*|resize_.*|"
    r"as_strided.*|torch\.ops\.aten\.lift.*"
)
"""Operators of other layouts, of undefined numbers, and of memory beyond a tensor's own."""
RANDOM = re.compile(
    r"bernoulli|cauchy|exponential|geometric|log_normal|multinomial|native_dropout.*|normal.*|"
    r"rand.*|uniform|svd_lowrank|pca_lowrank|nn\.functional\.(.*dropout.*|fractional.*|rrelu|"
    r"scaled_dot_product_attention|multi_head_attention_forward)"
)
"""Operators that draw other numbers than torch, from the same seed."""
REFUSED: Mapping[str, str] = {
    "allclose|equal": "values of tensors",
    r"argwhere|bincount|linalg\.lstsq|masked_select|nonzero|tensor_split|unique.*": (
        "size of its result"
    ),
    "narrow": "index_select",
    "istft": "DataDependentOutputException",
    "nn.functional.embedding": "max_norm",
    "nn.functional.one_hot": "num_classes",
    "native_batch_norm": "running statistics",
    "_native_batch_norm_legit|_batch_norm_with_update": "updates its operands|not yet supported",
}
"""Operators that are refused with some samples, and what the error says."""
UPDATES_REFUSED = "another shape or memory in place"
"""What the error says of updates that no operator of the table above is refused for."""
OTHERWISE = re.compile(
    # Rows of infinities, which torch itself computes in another order.
    r"matrix_exp|"
    # Their dtype is one of those that torch hardly computes with.
    r"chalf|hash_tensor|"
    # torch forgets the conjugation of what it writes to `out`.
    r"fft\.ihfftn"
)
"""Operators whose results or gradients differ from eager's for some samples, for these reasons."""
CANCELLING = re.compile(r"corrcoef|nn\.functional\.layer_norm|native_layer_norm")
"""Operators with samples whose numbers cancel: of one row or element, where eager's are exactly 0.
They are compared with what rounding of the operands does.
"""
NEARLY = 1e-6
"""Largest error, of the largest number, that rounding of float64 operands explains."""
OWNED = re.compile(r"lu_unpack|native_(layer|batch)_norm|real|imag")
"""Operators of several results, of which torch has no gradient for some; here these require one.
And those that are views in torch, and with gradients copies here.
"""

LACKING = re.compile(r"addbmm")
"""Updates whose result torch gives another size than that of the tensor that it updates."""

WITH_GAPS = re.compile(r"(select|slice|diagonal)_scatter|real|imag")
"""Operators whose result torch lays out with the gaps of an operand, and that are dense here."""


def operators() -> list[OpInfo]:
    return [
        op
        for op in samples.op_db
        if not any(p.fullmatch(op.full_name) for p in (ELSEWHERE, RANDOM, OTHERWISE))
    ]


def programs() -> list[Any]:
    """Return operators and dtypes; those beyond the share of each run are for campaigns."""
    found = []
    for k, op in enumerate(operators()):
        # Operators that have both floats take turns.
        floats = [dtype for dtype in DTYPES[:2] if dtype in op.dtypes]
        left_out = floats[k // SHARE % 2] if len(floats) == 2 else None
        for dtype in (*DTYPES, *FURTHER):
            if dtype in op.dtypes:
                is_further = k % SHARE or dtype in FURTHER or dtype is left_out
                marks = [pytest.mark.campaign] if is_further else []
                found.append(pytest.param(op, dtype, id=f"{op.full_name}-{dtype}", marks=marks))
    return found


def variants() -> list[Any]:
    """Return methods, updates and calls with `out=`."""
    found = []
    for op in operators():
        calls = {"method": op.get_method()}
        if not LACKING.fullmatch(op.full_name):
            calls["inplace"] = op.get_inplace()
        if op.supports_out and op.full_name != "arange":  # its numbers become tensors
            calls["out"] = op.op
        for name, call in calls.items():
            if call is not None and torch.float32 in op.dtypes:
                found.append(pytest.param(op, call, name == "out", id=f"{op.full_name}-{name}"))
    return found


@pytest.fixture(autouse=True)
def _with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call operators at once; torch's samples set a seed around some of them."""
    monkeypatch.setattr(
        samples, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), programs())
def test_samples(op: OpInfo, dtype: torch.dtype) -> None:
    """The first is laid out as torch does, the second otherwise."""
    first, *others = chosen(op, dtype, has_gradients(op, dtype)) or [None]
    if first is not None:
        compare(op, op.op, given(first))
    for sample in others:
        layout = random.Random(op.full_name).choice([*LAYOUTS])
        compare(op, op.op, tree_map(lambda x, how=layout: laid_out(x, how), given(sample)))


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", [pytest.param(op, id=op.full_name) for op in operators()])
def test_layouts(op: OpInfo, layout: str) -> None:
    for sample in chosen(op, torch.float32, has_gradients(op, torch.float32)):
        compare(op, op.op, tree_map(lambda x: laid_out(x, layout), given(sample)))


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [pytest.param(op, id=op.full_name) for op in operators()])
def test_reference_samples(op: OpInfo) -> None:
    """Those that torch compares with NumPy: broadcast, of extremal numbers, and many more."""
    if torch.float32 not in op.dtypes:
        return
    for sample in chosen(op, torch.float32, False, op.reference_inputs, 2 * SAMPLES):
        compare(op, op.op, given(sample))


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "call", "has_out"), variants())
def test_variants(op: OpInfo, call: Callable[..., Any], has_out: bool) -> None:
    for sample in chosen(op, torch.float32, False):
        input, args, kwargs = given(sample)
        if has_out:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(input, *args, **kwargs)
            if not isinstance(result, Tensor):
                continue
            kwargs = {**kwargs, "out": torch.zeros_like(result)}
        compare(op, call, (input, args, kwargs))


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", REFUSED)
def test_what_is_refused_is_refused(names: str) -> None:
    """For each operator some sample is, for the reason that is given."""
    for op in (op for op in samples.op_db if re.fullmatch(names, op.name)):
        dtypes = [dtype for dtype in (*DTYPES, *FURTHER) if dtype in op.dtypes]
        every = (s for dtype in dtypes for s in small(op, dtype, False))
        assert any(is_refused(op, given(s), REFUSED[names]) for s in every), op.name


def is_refused(op: OpInfo, arguments: tuple[Any, ...], text: str) -> bool:
    """True if the compiled call raises an error with such a text."""
    try:
        jit(program_of(op.op))(*tree_map(copy, arguments))
    except Exception as error:
        return re.search(text, str(error)) is not None
    return False


def program_of(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda input, args, kwargs: call(input, *args, **kwargs)


def has_gradients(op: OpInfo, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def small(
    op: OpInfo, dtype: torch.dtype, has_gradients: bool, source: Callable[..., Any] | None = None
) -> list[SampleInput]:
    torch.manual_seed(0)
    source = op.sample_inputs if source is None else source
    every = source("cpu", dtype, requires_grad=has_gradients)
    return [s for s in every if sum(t.numel() for t in tensors(given(s))) <= LARGEST]


def chosen(
    op: OpInfo,
    dtype: torch.dtype,
    has_gradients: bool,
    source: Callable[..., Any] | None = None,
    most: int = SAMPLES,
) -> list[SampleInput]:
    """Return samples, others for each operator."""
    if dtype not in op.dtypes:
        return []
    found = small(op, dtype, has_gradients, source)
    return random.Random(op.full_name).sample(found, min(most, len(found)))


def given(sample: SampleInput) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def compare(op: OpInfo, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Compare results, gradients, strides, and what is written to arguments; which results require
    gradients, and which lie in an argument's memory. Where torch raises an error, one is raised.
    """
    program = program_of(call)
    try:
        eager, eager_facts = ran(program, tree_map(copy, arguments))
    except Exception:
        with pytest.raises(Exception):  # noqa: B017, PT011
            ran(jit(program), tree_map(copy, arguments))
        return
    refused = [text for name, text in REFUSED.items() if re.fullmatch(name, op.name)]
    try:
        ours, facts = ran(jit(program), tree_map(copy, arguments))
    except Exception as error:
        if not re.search("|".join((*refused, UPDATES_REFUSED)), str(error)):
            raise
        return
    try:
        truth = exactly(program, arguments)
        assert [x.shape for x in tensors(truth)] == [x.shape for x in tensors(eager)]
    except Exception:
        truth = [x if x is None else as_double(x) for x in eager]
    if not OWNED.fullmatch(op.full_name):
        assert facts == eager_facts
    assert len(ours) == len(eager)
    for k, (found, expected, exact) in enumerate(zip(ours, eager, truth, strict=True)):
        assert (found is None) == (expected is None), k
        if found is None or expected is None or exact is None:
            continue
        if not WITH_GAPS.fullmatch(op.full_name):
            assert strides(found) == strides(expected)
        exact = exact.detach().to(as_double(expected).dtype)
        if expected.is_floating_point() or expected.is_complex():
            # Eager overflows in between: compared with the truth, or lost here, too.
            is_lost = ~expected.isfinite() & exact.isfinite()
            expected = torch.where(is_lost & ~found.isnan(), exact.to(expected.dtype), expected)
            exact = torch.where(is_lost & found.isnan(), expected.to(exact.dtype), exact)
        try:
            assert_as_good_as_eager(found, expected, exact, f"{op.full_name}, {k}")
        except AssertionError:
            is_cancelling = CANCELLING.fullmatch(op.full_name) is not None
            if not is_cancelling and expected.dtype not in (torch.float64, torch.complex128):
                raise
            rounded = ran(program, tree_map(moved, arguments))[0][k]
            if rounded is None or not is_rounding(found, expected, rounded, is_cancelling):
                raise


def exactly(program: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Return what `ran` does in float64; of what is made of no tensor, such as a window, by the
    default dtype.
    """
    if tensors(arguments):
        return ran(program, tree_map(as_double, arguments))[0]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return ran(program, arguments)[0]
    finally:
        torch.set_default_dtype(default)


def is_rounding(found: Tensor, expected: Tensor, rounded: Tensor, is_cancelling: bool) -> bool:
    """True if a result is as near to eager's as eager's with operands that are an ulp off."""
    size = expected.abs().nan_to_num(0, 0).max().clamp(min=1)
    most = torch.inf if is_cancelling else NEARLY * size
    bound = torch.minimum(4 * (rounded - expected).abs().max(), torch.as_tensor(most))
    is_near = ((found - expected).abs() <= bound) | (found == expected)
    same_type = (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return same_type and bool((is_near | (found.isnan() & expected.isnan())).all())


def ran(program: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Return results, gradients, and the arguments after the call; and facts about the results."""
    results = tensors(program(*arguments))
    facts = [[x.requires_grad for x in results], shared(results, tensors(arguments))]
    leaves = [x for x in tensors(arguments) if x.requires_grad and x.is_leaf]
    torch.manual_seed(1)
    seeds = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in results]
    roots = [(x, g) for x, g in zip(results, seeds, strict=True) if x.requires_grad]
    gradients: Sequence[Tensor | None] = []
    if leaves and roots:
        outs, cotangents = zip(*roots, strict=True)
        found = torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)
        # As `x.grad` would lie.
        gradients = [g if g is None else g.contiguous() for g in found]
    after = [x.detach() for x in tensors(arguments)]
    return [*(x.detach() for x in results), *gradients, *after], facts
