"""Attention through Thunder: one call forward and one backward, whichever kernel torch picks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.core.transforms import grad
from thunder.extend import OperatorExecutor
from thunder.torch import scaled_dot_product_attention
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import thunder_fuser
from tests.frontends.thunder.programs import as_double, assert_as_good_as_eager, fake, jit, traced
from tests.support.shares import each_value
from thunder_fuser.errors import FuserValueError

FORWARD, BACKWARD = "fuser_attention_forward", "fuser_attention_backward"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "kept": {"attn_mask": torch.arange(60).reshape(6, 10) % 3 > 0},
    "added": {"attn_mask": torch.arange(120.0).reshape(2, 1, 6, 10).sin()},
    "scaled": {"scale": 0.3},
    "dropped": {"dropout_p": 0.5},
}


def attended(**options: Any) -> Callable[..., torch.Tensor]:
    """Attention with something to fuse before and behind it."""

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q * 1.5, k, v.sin(), **options) * 2

    return program


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(2, 3, n, 8, generator=generator) for n in (6, 10, 10)]
    return [x.to(dtype).requires_grad_() for x in made]


def calls(compiled: Any) -> list[str]:
    traces = [thunder.last_traces(compiled)[-1], *thunder.last_backward_traces(compiled)[-1:]]
    names = [b.sym.name for t in traces for b in t.bound_symbols if b.sym.executor is not None]
    return [n for n in names if n.startswith(("fuser", "sdp")) or "matmul" in n]


@each_value(name=list(OPTIONS), dtype=[torch.float64, torch.bfloat16])
def test_it_is_one_call_each_way_and_torchs(name: str, dtype: torch.dtype) -> None:
    options = dict(OPTIONS[name])
    if name == "added":
        options["attn_mask"] = options["attn_mask"].to(dtype)
    program = attended(**options)
    compiled = jit(program)
    g = torch.linspace(-1, 1, 2 * 3 * 6 * 8).reshape(2, 3, 6, 8).to(dtype)
    found = []
    for function in (compiled, program):
        inputs = operands(dtype)
        torch.manual_seed(7)  # of what is dropped
        output = function(*inputs)
        found.append([output, *torch.autograd.grad(output, inputs, g)])
    loose = 1e-12 if dtype is torch.float64 else 2e-2
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=loose, atol=loose)
    assert calls(compiled) == ["fuser0", FORWARD, "fuser1", "fuser2", BACKWARD, "fuser3"]


def test_without_gradients_nothing_is_saved() -> None:
    program = attended(is_causal=True)
    compiled = jit(program)
    with torch.no_grad():
        inputs = operands(torch.float32)
        torch.testing.assert_close(compiled(*inputs), program(*inputs))
    assert calls(compiled) == ["fuser0", "fuser_attention", "fuser1"]


def test_the_backward_is_of_the_kernel_that_ran_forward() -> None:
    """Whatever torch's switches say by then."""
    inputs = operands(torch.float64)
    expected = torch.autograd.grad(attended()(*inputs).sum(), inputs)
    for first, then in (
        (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION),
        (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
    ):
        with sdpa_kernel(first):
            output = jit(attended())(*inputs)
        with sdpa_kernel(then):
            found = torch.autograd.grad(output.sum(), inputs)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", OPTIONS)
def test_groups_of_queries_share_the_heads_of_keys(name: str) -> None:
    options = {"enable_gqa": True} | OPTIONS[name]
    if name == "added":
        options["attn_mask"] = options["attn_mask"].double()
    compiled, found = jit(attended(**options)), []
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 4, 6, 8), (2, 2, 10, 8), (2, 2, 10, 8))
    inputs = [torch.randn(s, generator=generator).double().requires_grad_() for s in sizes]
    for function in (compiled, attended(**options)):
        torch.manual_seed(7)  # of what is dropped
        output = function(*inputs)
        found.append([output, *torch.autograd.grad(output.sin().sum(), inputs)])
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)
    assert [n for n in calls(compiled) if "fuser_" in n] == [FORWARD, BACKWARD]
    with torch.no_grad():
        torch.manual_seed(7)
        torch.testing.assert_close(compiled(*inputs), found[1][0].detach())
    assert [n for n in calls(compiled) if "fuser_" in n] == ["fuser_attention"]


def computed(table: torch.Tensor) -> torch.Tensor:
    """A bias of relative positions: 6 x 10 numbers of a table."""
    return table[torch.arange(60) % 7].view(6, 10) * 2


ATTENTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "call": lambda q, k, m: functional.scaled_dot_product_attention(q, k, k, m),
    "groups": lambda q, k, m: functional.scaled_dot_product_attention(
        q, k[:, :1], k[:, :1], m, enable_gqa=True
    ),
    "heads": lambda q, k, m: functional.multi_head_attention_forward(
        *(x[:, 0].transpose(0, 1) for x in (q, k, k)),
        *(8, 2, torch.eye(8).repeat(3, 1).to(q), None, None, None, False, 0.0),
        *(torch.eye(8).to(q), None),
        need_weights=False,
        attn_mask=m,
    )[0],
    "recomputed": lambda q, k, m: torch.utils.checkpoint.checkpoint(
        functional.scaled_dot_product_attention, q, k, k, m, use_reentrant=False
    ),
}


@each_value(name=list(ATTENTIONS), mask=[lambda m: m.view(6, 10), computed])
def test_a_mask_that_wants_a_gradient(name: str, mask: Callable[..., torch.Tensor]) -> None:
    def program(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return ATTENTIONS[name](q, k, mask(table))

    q, k, _ = (x.detach() for x in operands(torch.float64))
    table = torch.arange(60 if mask is not computed else 7).double().sin().requires_grad_()
    for inputs in ((q, k, table), (q.requires_grad_(), k, table)):
        trained = [x for x in inputs if x.requires_grad]
        found, expected = (
            torch.autograd.grad(f(*inputs).sin().sum(), trained) for f in (jit(program), program)
        )
        torch.testing.assert_close(found, expected)


def test_a_mask_without_gradient_in_a_program_with_gradients() -> None:
    compiled = jit(lambda q, k, v, table: attended(attn_mask=computed(table.detach()))(q, k, v))
    inputs = (*operands(torch.float64), torch.ones(7, dtype=torch.float64, requires_grad=True))
    compiled(*inputs)
    assert FORWARD in calls(compiled)
    with torch.no_grad():
        compiled = jit(lambda q, k, v, table: ATTENTIONS["call"](q, k, computed(table)))
        compiled(*inputs)
    assert "fuser_attention" in calls(compiled)


@each_value(name=["call", "groups", "heads"], trains_mask=[False, True])
def test_fp32_masks_of_16_bit_operands(name: str, trains_mask: bool) -> None:
    q, k, _ = operands(torch.bfloat16)
    mask = torch.arange(60.0).view(6, 10).sin().mul(3).requires_grad_(trains_mask)
    exact = [as_double(x) for x in (q, k, mask)]
    program = ATTENTIONS[name]
    runs = []
    for function, inputs in (
        (jit(program), (q, k, mask)),
        (program, (q, k, mask)),
        (program, exact),
    ):
        result = function(*inputs)
        trained = [x for x in inputs if x.requires_grad]
        runs.append([result, *torch.autograd.grad(result.sum(), trained)])
    for place, results in enumerate(zip(*runs, strict=True)):
        assert_as_good_as_eager(*(x.detach() for x in results), f"result {place}")


def test_groups_that_do_not_divide_the_queries() -> None:
    q, k = torch.ones(2, 4, 6, 8), torch.ones(2, 3, 10, 8)
    with pytest.raises(FuserValueError, match="4 heads of queries, 3 of keys"):
        jit(attended(enable_gqa=True))(q, k, k)


def test_what_reads_the_gradients_of_shared_heads() -> None:
    """A projection, its heads and what repeats them: one kernel in front of attention, one behind
    its backward, each ideal.
    """

    def program(x: torch.Tensor, repeats: bool) -> torch.Tensor:
        q, k, v = (
            t.view(2, 512, -1, 64).transpose(1, 2) for t in x.split((1024, 256, 256), dim=-1)
        )
        if repeats:
            k, v = (t.repeat_interleave(4, 1) for t in (k, v))
        return functional.scaled_dot_product_attention(q.sin(), k.cos(), v, enable_gqa=not repeats)

    for repeats in (False, True):
        inputs = fake((2, 512, 1536), dtype=torch.bfloat16, grad=True)
        forward, backward = traced(program, *inputs, repeats)
        assert [forward.plan.kernels, backward.plan.kernels] == [1, 1]
        assert forward.plan.bytes == forward.plan.bytes_ideal
        assert backward.plan.bytes == backward.plan.bytes_ideal


def test_of_cuda_tensors_as_well() -> None:
    inputs = fake(*[(2, 4, 64, 32)] * 3, dtype=torch.bfloat16, grad=True)
    compiled = jit(attended(is_causal=True))
    thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
    assert calls(compiled) == ["fuser0", FORWARD, "fuser1", "fuser2", BACKWARD, "fuser3"]


def test_executors_in_front_keep_what_they_claim() -> None:
    other = OperatorExecutor("attention_of_others")
    fn = functional.scaled_dot_product_attention
    theirs = other.register_operator("sdp_of_others", like=scaled_dot_product_attention, fn=fn)
    other.register_implementation(scaled_dot_product_attention, theirs)
    compiled = thunder.jit(attended(), executors=[other, thunder_fuser.executor])
    with torch.no_grad():
        compiled(*operands(torch.float32))
    assert calls(compiled) == ["fuser0", "sdp_of_others", "fuser1"]


def test_thunders_functional_gradients() -> None:
    """They find the operands by the names of the symbol's parameters."""
    program, given = attended(is_causal=True), operands(torch.float64)
    found = grad(jit(program))(*given)
    torch.testing.assert_close(found, torch.autograd.grad(program(*given).sum(), given))


def test_what_is_taken_apart() -> None:
    """A mask that wants a gradient; heads that broadcast."""
    q, k, v = operands(torch.float64)
    mask = torch.zeros(6, 10, dtype=torch.float64, requires_grad=True)

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, m)

    for program, inputs in ((masked, (q, k, v, mask)), (attended(), (q, k[:, :1], v[:, :1]))):
        compiled = jit(program)
        leaves = [x for x in inputs if x.is_leaf]
        found = torch.autograd.grad(compiled(*inputs).sum(), leaves)
        expected = torch.autograd.grad(program(*inputs).sum(), leaves)
        torch.testing.assert_close(found, expected)
        assert not {FORWARD, BACKWARD} & {*calls(compiled)}


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 4)),
        ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 6)),
        ((1, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 4)),
        ((2, 6, 5, 0), (2, 3, 6, 0), (2, 3, 6, 4)),
        ((0, 3, 5, 4), (0, 3, 6, 4), (0, 3, 6, 4)),
    ],
    ids=["of products", "of keys", "broadcast", "grouped", "of batches"],
)
@pytest.mark.parametrize("trained", [False, True])
def test_heads_of_no_elements(shapes: tuple[tuple[int, ...], ...], trained: bool) -> None:
    heads = [torch.randn(shape, requires_grad=trained) for shape in shapes]
    is_grouped = shapes[0][1] != shapes[1][1]

    def attend(*heads: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(*heads, enable_gqa=is_grouped)

    found, expected = jit(attend)(*heads), attend(*heads)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if trained:
        gradients = [torch.autograd.grad(y.sum(), heads) for y in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
