"""Torch's own samples of its operators (OpInfo), through Thunder: results and gradients of eager.

A share of the operators runs each time, and all of them with `--campaign`.
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
from torch.utils._pytree import tree_flatten, tree_map

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, jit

SHARE = 24
"""One operator of so many runs each time."""
SAMPLES = 2
LARGEST = 20_000
"""Elements of a sample: larger ones take long, and show no more."""
ELSEWHERE = re.compile(
    r"sparse|fft|linalg|jiterator|_refs|masked\.|cdist|svd|lu|qr|cholesky|ormqr|geqrf|empty|"
    r"histogram|pca_lowrank|triangular_solve|special\.(airy|bessel|chebyshev|hermite|laguerre|"
    r"legendre|modified|shifted|spherical|scaled)"
)
"""Operators of linear algebra and other libraries, which are torch calls."""
RANDOM = re.compile(
    r"bernoulli|cauchy|dropout|exponential|fractional|geometric|multinomial|normal|rand|rrelu|"
    r"uniform|scaled_dot_product_attention|multi_head_attention"
)
"""Operators that draw other numbers than torch, from the same seed."""
OF_ATEN = re.compile(
    r"_batch_norm|_native_batch|native_batch|_softmax_backward|_upsample|^slice$|"
    r"max_pool2d_with_indices_backward|native_dropout_backward|^as_strided|^resize_|^unfold$"
)
REFUSED: Mapping[str, str] = {
    "allclose|equal": "values of tensors",
    "argwhere|bincount|masked_select|nonzero|tensor_split|unique.*": "size of its result",
    "narrow": "index_select",
    "nn.functional.embedding": "max_norm",
    "nn.functional.one_hot": "num_classes",
    "nn.functional.triplet_margin_with_distance_loss": "PairwiseDistance",
    "linspace": "ask for floats",
    "float": "memory_format",
    "corrcoef|cov": "data",
    "gradient": "keyword argument that requires gradient",
    "take_along_dim": "out of bounds",
}
"""Operators that are refused with some samples, and what the error says."""


def operators() -> list[Any]:
    chosen = [
        op
        for op in samples.op_db
        if not any(p.search(op.full_name) for p in (ELSEWHERE, RANDOM, OF_ATEN))
    ]
    return [
        pytest.param(op, id=op.full_name, marks=[] if k % SHARE == 0 else pytest.mark.campaign)
        for k, op in enumerate(chosen)
    ]


@pytest.fixture(autouse=True)
def _with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call operators at once; torch's samples set a seed around some of them."""
    monkeypatch.setattr(
        samples, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("op", operators())
def test_samples(op: OpInfo, dtype: torch.dtype) -> None:
    if dtype not in op.dtypes:
        pytest.skip(f"torch does not have it for {dtype}")
    torch.manual_seed(0)
    has_gradients = dtype is torch.float32 and op.supports_autograd
    every = list(op.sample_inputs("cpu", dtype, requires_grad=has_gradients))
    small = [s for s in every if sum(t.numel() for t in tensors(given(s))) <= LARGEST]
    chosen = random.Random(op.full_name).sample(small, min(SAMPLES, len(small)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in chosen:
            compare(op, given(sample))


def given(sample: SampleInput) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def compare(op: OpInfo, arguments: tuple[Any, ...]) -> None:
    """Compare results, gradients, strides and what is written to arguments."""

    def program(input: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return op.op(input, *args, **kwargs)

    try:
        eager = ran(program, tree_map(copy, arguments))
    except Exception:
        return  # A sample of an error.
    refused = next((text for name, text in REFUSED.items() if re.fullmatch(name, op.name)), None)
    try:
        ours = ran(jit(program), tree_map(copy, arguments))
    except Exception as error:
        if refused is None or refused not in str(error):
            raise
        return
    try:
        truth = ran(program, tree_map(as_double, arguments))
    except Exception:
        truth = [x if x is None else as_double(x) for x in eager]
    assert len(ours) == len(eager)
    for k, (found, expected, exact) in enumerate(zip(ours, eager, truth, strict=True)):
        assert (found is None) == (expected is None), k
        if found is None or expected is None or exact is None:
            continue
        assert strides(found) == strides(expected)
        wide = as_double(expected).dtype
        assert_as_good_as_eager(found, expected, exact.detach().to(wide), f"{op.full_name}, {k}")


def copy(x: Any) -> Any:
    """Return a leaf of the same values and strides."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def strides(x: Tensor) -> list[int]:
    """Strides that count."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


def ran(program: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """Return results, gradients, and the arguments after the call."""
    results = tensors(program(*arguments))
    leaves = [x for x in tensors(arguments) if x.requires_grad and x.is_leaf]
    roots = [x for x in results if x.requires_grad]
    gradients: list[Tensor | None] = []
    if leaves and roots:
        torch.manual_seed(1)
        seeds = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in roots]
        gradients = list(torch.autograd.grad(roots, leaves, seeds, allow_unused=True))
    return [*(x.detach() for x in results), *gradients, *(x.detach() for x in tensors(arguments))]
