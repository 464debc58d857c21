"""Autocast: the dtypes and values that torch computes, for each call that it has a policy for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import thunder
import torch
from thunder.core import dtypes
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, flat, jit
from tests.support.shares import each_value
from thunder_fuser.frontends.thunder.patches.torch_calls.autocast_operators import POLICIES

LOW = torch.bfloat16
Call = Callable[[Tensor, Tensor], Any]


def _image(x: Tensor) -> Tensor:
    return x[None, None].expand(2, 2, *x.shape).contiguous()


def _zeros(x: Tensor, *sizes: int) -> Tensor:
    return torch.zeros(sizes or x.shape, dtype=torch.int64, device=x.device)


def _ones(x: Tensor, *sizes: int) -> Tensor:
    return torch.ones(sizes, device=x.device)


def _attend(a: Tensor, b: Tensor) -> Tensor:
    q, k = a[None, None], b[None, None]
    return F.scaled_dot_product_attention(q, k, k, a.new_zeros(6, 6).float())


PRODUCTS: Mapping[str, Call] = {
    "matmul": lambda a, b: a @ b.mT,
    "mm": lambda a, b: torch.mm(a, b.mT),
    "bmm": lambda a, b: torch.bmm(a[None], b.mT[None]),
    "addmm": lambda a, b: torch.addmm(a[0, :1], a, b.mT),
    "baddbmm": lambda a, b: torch.baddbmm(a[:1, :1, None], a[None], b.mT[None]),
    "addbmm": lambda a, b: torch.addbmm(a[:1, :1], a[None], b.mT[None]),
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[0]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "inner": torch.inner,
    "tensordot": lambda a, b: torch.tensordot(a, b, dims=2),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "einsum of rows": lambda a, b: torch.einsum("ij,ij->i", a, b),
    "einsum without sum": lambda a, b: torch.einsum("ij,ij->ij", a, b),
    "vecdot": torch.linalg.vecdot,
    "linear": lambda a, b: F.linear(a, b, b[:, 0]),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
    "conv1d": lambda a, b: F.conv1d(a[None], _ones(a, 3, 6, 3), padding="same"),
    "conv2d": lambda a, b: F.conv2d(_image(a), _ones(a, 3, 2, 2, 2)),
    "conv_transpose1d": lambda a, b: F.conv_transpose1d(a[None], _ones(a, 6, 3, 2)),
    "attention": _attend,
}
LOSSES: Mapping[str, Call] = {
    "mse_loss": F.mse_loss,
    "mse_loss of two dtypes": lambda a, b: F.mse_loss(a.to(LOW), b.float()),
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(a, b, reduction="sum"),
    "huber_loss": lambda a, b: F.huber_loss(a, b, reduction="none", delta=0.2),
    "kl_div": lambda a, b: F.kl_div(a, b, reduction="batchmean"),
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "soft_margin_loss": lambda a, b: F.soft_margin_loss(a, b),
    "poisson_nll_loss": F.poisson_nll_loss,
    "hinge_embedding_loss": lambda a, b: F.hinge_embedding_loss(a, torch.ones_like(b)),
    "margin_ranking_loss": lambda a, b: F.margin_ranking_loss(a, b, torch.ones_like(b)),
    "cosine_embedding_loss": lambda a, b: F.cosine_embedding_loss(a, b, _ones(a, 6)),
    "triplet_margin_loss": lambda a, b: F.triplet_margin_loss(a, b, a + b),
    "multi_margin_loss": lambda a, b: F.multi_margin_loss(a, _zeros(a, 6)),
    "nll_loss": lambda a, b: F.nll_loss(a, _zeros(a, 6)),
    "cross_entropy": lambda a, b: F.cross_entropy(a, _zeros(a, 6)),
    "cross_entropy of probabilities": lambda a, b: F.cross_entropy(input=a, target=b),
    "label smoothing": lambda a, b: F.cross_entropy(a, _zeros(a, 6), label_smoothing=0.1),
}
OTHERS: Mapping[str, Call] = {
    "prod": lambda a, b: a.prod(-1),
    "prod in a dtype": lambda a, b: a.prod(-1, dtype=LOW),
    "sum": lambda a, b: a.sum(-1),
    "sum in a dtype": lambda a, b: a.sum(-1, dtype=LOW),
    "mean": lambda a, b: a.mean(-1),
    "cumsum": lambda a, b: a.cumsum(-1),
    "cumprod": lambda a, b: torch.cumprod(a, -1),
    "softmax": lambda a, b: F.softmax(a, -1),
    "softmax in a dtype": lambda a, b: F.softmax(a, -1, dtype=LOW),
    "log_softmax": lambda a, b: a.log_softmax(-1),
    "logsumexp": lambda a, b: a.logsumexp(-1),
    "norm": lambda a, b: a.norm(dim=-1),
    "vector_norm": lambda a, b: torch.linalg.vector_norm(a, dim=-1),
    "normalize": lambda a, b: F.normalize(a),
    "pairwise_distance": F.pairwise_distance,
    "cdist": torch.cdist,
    "cosine_similarity": F.cosine_similarity,
    "layer_norm": lambda a, b: F.layer_norm(a, (8,)),
    "rms_norm": lambda a, b: F.rms_norm(a, (8,)),
    "group_norm": lambda a, b: F.group_norm(_image(a), 2),
    "batch_norm": lambda a, b: F.batch_norm(a, None, None, training=True),
    "local_response_norm": lambda a, b: F.local_response_norm(_image(a), 2),
    "exp": lambda a, b: a.exp(),
    "exp_": lambda a, b: (a * 1).exp_(),
    "log1p": lambda a, b: torch.special.log1p(a),
    "arccos": lambda a, b: torch.arccos(a),
    "rsqrt": lambda a, b: torch.rsqrt(a),
    "softplus": lambda a, b: F.softplus(a),
    "gelu": lambda a, b: F.gelu(a),
    "pow": lambda a, b: a**2,
    "rpow": lambda a, b: 2**a,
    "square": lambda a, b: a.square(),
    "number / tensor": lambda a, b: 2 / a,
    "tensor / tensor": lambda a, b: a / b,
    "sum of a list": lambda a, b: sum([a, b]),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "atan2": torch.atan2,
    "cat": lambda a, b: torch.cat([a, b.to(LOW)]),
    "stack": lambda a, b: torch.stack([a, b]),
    "pad": lambda a, b: F.pad(a, (1, 1)),
    "pad by reflection": lambda a, b: F.pad(_image(a), (1, 1, 1, 1), "reflect"),
    "pad by replication": lambda a, b: F.pad(a[None], (1, 1), mode="replicate"),
    "pad around": lambda a, b: F.pad(_image(a), (1, 1, 1, 1), "circular"),
    "avg_pool2d": lambda a, b: F.avg_pool2d(_image(a), 2),
    "avg_pool3d": lambda a, b: F.avg_pool3d(_image(a)[None], 2),
    "max_pool3d": lambda a, b: F.max_pool3d(_image(a)[None], 2),
    "interpolate": lambda a, b: F.interpolate(_image(a), scale_factor=2),
    "interpolate bilinear": lambda a, b: F.interpolate(_image(a), size=(3, 5), mode="bilinear"),
    "trace": lambda a, b: torch.trace(a),
    "grid_sample": lambda a, b: F.grid_sample(_image(a), _ones(a, 2, 3, 3, 2), align_corners=False),
}
CALLS = {**PRODUCTS, **LOSSES, **OTHERS}


def _index_copy(a: Tensor, b: Tensor) -> Tensor:
    return a.to(LOW).index_copy(0, torch.arange(6, device=a.device), b.float())


def _scatter_add(a: Tensor, b: Tensor) -> Tensor:
    return a.to(LOW).scatter_add(0, _zeros(a), b.float())


PROMOTES = {"cpu": _index_copy, "cuda": _scatter_add}
"""What takes two dtypes under autocast alone."""


@contextmanager
def autocast(device: str) -> Iterator[None]:
    """`torch.autocast`, which is disabled for the tensors of a GPU that is not there."""
    state = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, LOW)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, state[0])
        torch.set_autocast_dtype(device, state[1])


class Traced(Exception):
    """A trace is made."""


class Stop(thunder.Transform):
    """Compile no further than the trace."""

    def transform_traces_pre_prologue(
        self, prologue: Any, computation: Any, epilogue: Any, **_: Any
    ) -> Any:
        raise Traced(computation)


def test_the_tables_are_those_of_torch() -> None:
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")]

    def has_policy(schema: Any, key: str) -> bool:
        name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
        try:
            return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        except RuntimeError:  # of the interpreter of TorchScript alone
            return False

    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        expected = {s.name.removeprefix("aten::") for s in schemas if has_policy(s, key)}
        assert POLICIES[device].keys() == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dtypes_are_those_of_eager_code(device: str) -> None:
    """Of products of fp32 operands, and of all other calls on bf16 ones."""
    names = [*CALLS, "promotes"]

    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        low, high = (a.to(LOW), b.to(LOW)), (a, b)
        results = [call(*high) for call in PRODUCTS.values()]
        results += [call(*low) for call in (LOSSES | OTHERS).values()]
        return [*results, PROMOTES[device](a, b)]

    with FakeTensorMode():
        inputs = tuple(torch.empty(6, 8, device=device) for _ in range(2))
        try:
            inputs[0][None]
        except RuntimeError as error:
            pytest.skip(f"this version of torch needs a driver for it: {error}")
        with autocast(device):
            expected = [x.dtype for x in program(*inputs)]
    compiled = jit(program, transforms=[Stop()])
    with autocast(device), pytest.raises(Traced) as traced:
        thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    results = traced.value.args[0].bound_symbols[-1].args[0]["output"]
    found = [dtypes.to_torch_dtype(x.dtype) for x in results]
    both = dict(zip(names, zip(found, expected, strict=True), strict=True))
    assert not {name: pair for name, pair in both.items() if pair[0] != pair[1]}


FEW = ("mse_loss of two dtypes", "smooth_l1_loss", "kl_div", "cross_entropy", "addmm", "prod")
ALL = (*LOSSES, "prod", "pad by reflection", "cdist", "addmm", "baddbmm", "prelu")


@pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.campaign)],
)
def test_values_are_as_near_to_the_truth_as_in_eager(names: Sequence[str]) -> None:
    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        return [CALLS[name](a, b) for name in names]

    a, b = (torch.rand(6, 8).to(LOW) * 0.8 + 0.1 for _ in range(2))
    compiled = jit(program)
    with torch.autocast("cpu", LOW):
        ours, eager = compiled(a, b), program(a, b)
    truth = program(as_double(a), as_double(b))
    for name, *found in zip(names, ours, eager, truth, strict=True):
        assert_as_good_as_eager(*found, name)


def test_gradients_have_the_dtypes_of_the_operands() -> None:
    def program(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        hidden = torch.relu(x @ w)
        with torch.autocast("cpu", enabled=False):
            hidden = hidden.to(w.dtype) @ w
        return F.mse_loss(hidden.relu(), y) + F.huber_loss(input=hidden, target=y)

    inputs = [torch.randn(5, 5), torch.randn(5, 5, requires_grad=True), torch.randn(5, 5)]
    exact = torch.autograd.grad(program(*(x.double() for x in inputs)), inputs[1])[0].double()
    gradients = []
    for function in (jit(program), program):
        with torch.autocast("cpu", LOW):
            loss = function(*inputs)
        assert loss.dtype == torch.float32
        gradients += torch.autograd.grad(loss, inputs[1])
    assert_as_good_as_eager(*gradients, exact, "gradient")


def test_a_gradient_where_autocast_is_disabled_is_not_rounded() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return (x @ w).sin()

    x, w = torch.randn(5, 5), torch.randn(5, 5, requires_grad=True)
    seed = torch.randn(5, 5)
    with torch.autocast("cpu", LOW):
        ours = jit(program)(x, w)
    (found,) = torch.autograd.grad(ours, w, seed)
    (expected,) = torch.autograd.grad(program(x, w), w, seed)
    torch.testing.assert_close(found, expected)


def test_a_call_is_under_what_it_is_called_under() -> None:
    def program(x: Tensor) -> Tensor:
        return x @ x

    x, compiled = torch.randn(5, 5), jit(program)
    for dtype in (LOW, None, torch.float16, LOW, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            assert compiled(x).dtype == (dtype or torch.float32)
    assert thunder.cache_misses(compiled) == 3


@pytest.mark.parametrize("outside", [False, True])
def test_nested_regions_and_decorators(outside: bool) -> None:
    @torch.autocast("cpu", LOW)
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ x
        return product, F.l1_loss(product, product * 2, reduction="none")

    @torch.autocast("cpu", enabled=False)
    def wide(x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ x, F.mse_loss(x.to(LOW), x.to(LOW), reduction="none")

    def program(x: Tensor) -> list[Tensor]:
        first, second = loss(x)
        with torch.autocast("cpu", LOW):
            third = wide(x)
            fourth = F.mse_loss(first, first, reduction="none")
        return [first, second, *third, fourth, x @ x]

    x = torch.randn(5, 5)
    with torch.autocast("cpu", LOW, enabled=outside):
        ours, eager = jit(program)(x), program(x)
    assert [t.dtype for t in flat(ours)] == [t.dtype for t in flat(eager)]
    for found, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, expected)


def test_an_operator_that_promotes() -> None:
    a, b, program = torch.randn(6, 8), torch.randn(6, 8), PROMOTES["cpu"]
    with torch.autocast("cpu", LOW):
        ours, eager = jit(program)(a, b), program(a, b)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_modules(kind: type[torch.nn.Module]) -> None:
    module = kind(9, 6, batch_first=True)
    for dtype in (torch.float32, LOW):
        x = torch.randn(2, 5, 9).to(dtype)
        with torch.autocast("cpu", LOW):
            ours, eager = (f(x)[0] for f in (jit(module), module))
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_recurrent_cell(nonlinearity: str) -> None:
    cell, x, h = torch.nn.RNNCell(9, 6, nonlinearity=nonlinearity), torch.randn(2, 9), torch.ones(6)
    with torch.autocast("cpu", LOW):
        ours, eager = (f(x, h.expand(2, 6)) for f in (jit(cell), cell))
    assert ours.dtype == eager.dtype == LOW
    torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.02)


@each_value(dtype=[torch.bool, torch.float32], weights=[False, True])
def test_masks_of_multi_head_attention(dtype: torch.dtype, weights: bool) -> None:
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(8, 2), torch.randn(5, 2, 8)
    mask = torch.ones(5, 5).triu(1).bool()
    if dtype != torch.bool:
        mask = torch.zeros(5, 5).masked_fill(mask, -torch.inf)
    runs = []
    for run in (jit(module), module):
        with torch.autocast("cpu", LOW):
            results = run(x, x, x, attn_mask=mask, need_weights=weights)
        runs.append([*flat(results), *torch.autograd.grad(results[0].sum(), module.parameters())])
    for ours, eager in zip(*runs, strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=0.05, atol=0.05)


def test_results_in_given_tensors_are_not_cast() -> None:
    def program(a: Tensor, out: Tensor) -> Tensor:
        return torch.mm(a, a, out=out)

    a = torch.randn(5, 5)
    with torch.autocast("cpu", LOW):
        ours, eager = (f(a, torch.empty(5, 5)) for f in (jit(program), program))
    torch.testing.assert_close(ours, eager)
