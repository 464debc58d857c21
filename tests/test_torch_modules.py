"""Torch's own samples of its modules (ModuleInfo), through Thunder: results and gradients of eager.

A share of the modules runs each time. `--campaign` runs all of them, in 16 bits, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils._pytree import tree_map

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, jit
from tests.frontends.thunder.samples import copy, strides, tensors

SHARE = 16
"""One module of so many runs each time."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RANDOM = {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"}
"""Modules that draw other numbers than torch, from the same seed."""
LOST = 32
"""Ulps of the largest number of a sample that sums of both signs may lose, which torch computes in
another order, or in float64.
"""
SAMPLES = 4
"""Most samples of a module and a mode."""


def modules() -> list[Any]:
    """Return modules, dtypes and modes; those beyond the share of each run are for campaigns."""
    found = []
    for k, info in enumerate(module_db):
        if info.name in RANDOM or info.is_lazy:
            continue
        modes = (True, False) if info.train_and_eval_differ else (True,)
        for dtype in DTYPES:
            for training in modes:
                is_further = k % SHARE or dtype is not torch.float32
                marks = [pytest.mark.campaign] if is_further else []
                mode = "train" if training else "eval"
                id = f"{info.name}-{dtype}-{mode}"
                found.append(pytest.param(info, dtype, training, id=id, marks=marks))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("info", "dtype", "training"), modules())
def test_samples(info: ModuleInfo, dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    every = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for sample in spread(list(every)):
        compare(info, sample, dtype, training)


def spread(samples: list[ModuleInput]) -> Iterator[ModuleInput]:
    """Yield `SAMPLES` samples at most, from the first to the last."""
    yield from samples[:: -(-len(samples) // SAMPLES)]


def compare(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> None:
    """Compare results, gradients of inputs and parameters, and buffers."""
    given, arguments = sample.constructor_input, sample.forward_input
    torch.manual_seed(0)
    module = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
    inputs = (arguments.args, arguments.kwargs)
    ours, eager, exact = deepcopy(module), deepcopy(module), deepcopy(module).double()
    try:
        expected = ran(eager, eager, tree_map(copy, inputs))
    except NotImplementedError:
        return  # of these dtypes
    found = ran(ours, jit(ours), tree_map(copy, inputs))
    truth = ran(exact, exact, tree_map(as_double, inputs))
    assert found.keys() == expected.keys()
    floats = [x for x in expected.values() if x is not None and x.is_floating_point()]
    noise = LOST * torch.finfo(dtype).eps * max(largest(x) for x in floats)
    for name, theirs in expected.items():
        what = f"{info.name}, {sample.desc}: {name}"
        mine, best = found[name], truth[name]
        assert (mine is None) == (theirs is None), what
        if mine is None or theirs is None or best is None:
            continue
        assert mine.requires_grad == theirs.requires_grad, what
        best = best.detach().to(as_double(theirs).dtype)
        if not theirs.is_floating_point() or largest(mine - best) > noise:
            assert_as_good_as_eager(mine, theirs, best, what)
        assert (mine.shape, mine.dtype, strides(mine)) == (
            theirs.shape,
            theirs.dtype,
            strides(theirs),
        ), what


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0


def ran(module: Module, call: Any, inputs: Any) -> dict[str, Any]:
    """Return results, gradients and buffers, by name."""
    torch.manual_seed(2)
    results = tensors(call(*inputs[0], **inputs[1]))
    roots = [x for x in results if x.requires_grad]
    torch.manual_seed(1)
    seeds = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in roots]
    if roots:
        torch.autograd.backward(roots, seeds)
    return {
        **{f"result {k}": x for k, x in enumerate(results)},
        **{f"gradient of input {k}": x.grad for k, x in enumerate(tensors(inputs)) if x.is_leaf},
        **{f"gradient of {name}": p.grad for name, p in module.named_parameters()},
        **dict(module.named_buffers()),
    }
