"""Modules in a model that a trace cannot hold, and run in torch as one call."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import thunder_fuser
from tests.frontends.thunder.programs import jit

EXPERTS, WIDTH = 4, 8


class Router(nn.Module):
    """Two of four experts for each token, as in Mixtral."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.SiLU(), nn.Linear(16, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, WIDTH)
        logits = self.gate(tokens)
        weights, chosen = logits.softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(tokens)
        is_chosen = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for expert in is_chosen.sum((1, 2)).nonzero()[:, 0].tolist():
            place, token = torch.where(is_chosen[expert])
            found = self.experts[expert](tokens[token]) * weights[token, place, None]
            result.index_add_(0, token, found.to(result.dtype))
        return result.view(x.shape), logits


class Model(nn.Module):
    """A module between a norm and a linear layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.head = nn.LayerNorm(WIDTH), inner, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, **options: Any) -> Any:
        found = self.inner(self.norm(x), **options)
        y, *others = found if isinstance(found, tuple) else (found,)
        return self.head(x + y), *others


class Function(nn.Module):
    """A function, of this module and a tensor, as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.scale, self.held = function, nn.Parameter(torch.ones(WIDTH)), None
        self.found: list[Tensor] = []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, **options: Any) -> Any:
        return self.function(self, x, **options)


def branch(self: Any, x: Tensor) -> Tensor:
    return x * self.scale if x.sum() > 0 else x.sin() * self.scale


def masked(self: Any, x: Tensor) -> Tensor:
    result = x.clone()
    result[x > 0] = (x * self.scale)[x > 0] ** 2
    return result


def item(self: Any, x: Tensor) -> Tensor:
    return x[: max(1, int((x > 0).sum().item()))].sum(0) * self.scale


def listed(self: Any, x: Tensor) -> Tensor:
    return x * self.scale * sum((x > 0).tolist()[0][0])


def with_options(self: Any, x: Tensor, *, mask: Tensor, factor: float = 1.0) -> Tensor:
    return torch.where(mask, x * self.scale, 0 * x) * factor if mask.any() else x.sin()


def beside_none(self: Any, x: Tensor) -> tuple[Tensor, None, dict[str, Tensor | None]]:
    """Return no attention weights, as SAM's mask decoder does."""
    found = branch(self, x)
    return found, None, {"a": x * self.scale if found.sum().item() else None, "b": None}


def shaped_in_place(self: Any, x: Tensor) -> Tensor:
    """Add a dimension in place, as BigBird does to its masks."""
    mask = (x.detach() > 0).sum(-1)
    mask.unsqueeze_(-1)
    return x * self.scale * mask


def of_strides(self: Any, x: Tensor) -> Tensor:
    """Ask for strides that the library decides, before a kernel of the user's."""
    y = F.conv2d(x.permute(0, 2, 1)[..., None], self.scale.diag()[:, :, None, None])
    y = y if y.is_contiguous() else y.contiguous()
    return y[..., 0].mT * 2


def set_and_back(self: Any, x: Tensor) -> Tensor:
    """Set an attribute for as long as it runs, as transformers does where outputs are collected."""
    held, self.held = self.held, [x]
    try:
        return x * self.scale if x.sum() > 0 else x * 3
    finally:
        self.held = held
        self.passing = 1
        del self.passing


COMPUTING = {
    f.__name__: f
    for f in (
        *(branch, masked, item, listed, beside_none, shaped_in_place, of_strides),
        set_and_back,
    )
}


def compared(model: nn.Module, *inputs: Tensor, **options: Any) -> Any:
    """Compare a model with its compiled copy, in fp64 and with gradients; return that copy."""
    model = model.double()
    other = copy.deepcopy(model)
    compiled = jit(other)
    for x in inputs:
        a, b = x.double().requires_grad_(), x.double().requires_grad_()
        expected, found = model(a, **options), compiled(b, **options)
        assert len(expected) == len(found)
        torch.testing.assert_close(found, expected)
        for results in (expected, found):
            tensors = [y for y in tree_leaves(results) if isinstance(y, Tensor)]
            sum((y**2).sum() for y in tensors if y.requires_grad).backward()
        torch.testing.assert_close(b.grad, a.grad)
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            given = torch.zeros_like(q) if q.grad is None else q.grad
            torch.testing.assert_close(given, gradient, msg=name)
        model.zero_grad()
        other.zero_grad()
    return compiled


def batches(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, n, WIDTH, generator=generator) for n in lengths]


def test_a_router_is_one_call_and_the_rest_is_fused() -> None:
    torch.manual_seed(0)
    compiled = compared(Model(Router()), *batches(5, 5, 7, 5))
    assert thunder_fuser.fusions(compiled)
    assert "Router" in {refusal.subject for refusal in thunder_fuser.refusals(compiled)}


def test_a_router_in_evaluation_and_in_16_bits() -> None:
    torch.manual_seed(0)
    model = Model(Router()).bfloat16().eval()
    compiled = jit(copy.deepcopy(model))
    with torch.no_grad():
        for x in batches(5, 9):
            found, expected = compiled(x.bfloat16()), model(x.bfloat16())
            torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_a_router_under_autocast() -> None:
    torch.manual_seed(0)
    model = Model(Router())
    compiled = jit(copy.deepcopy(model))
    (x,) = batches(5)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), model(x)
    assert [y.dtype for y in found] == [y.dtype for y in expected]
    torch.testing.assert_close(found, expected, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("name", COMPUTING)
def test_modules_that_compute_with_numbers(name: str) -> None:
    torch.manual_seed(0)
    x, *others = batches(5, 5, 6)
    compared(Model(Function(COMPUTING[name])), x, -x, *others)


def test_arguments_by_keyword() -> None:
    mask = torch.arange(WIDTH) > 3
    compared(Model(Function(with_options)), *batches(5), mask=mask, factor=2.0)
    compared(Model(Function(with_options)), *batches(5), mask=mask & False)


def test_parameters_may_be_replaced() -> None:
    torch.manual_seed(0)
    model = Model(Router())
    compiled = jit(model)
    (x,) = batches(5)
    compiled(x)
    model.inner.gate.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))
    torch.testing.assert_close(compiled(x), model(x))


def unknown_size(self: Any, x: Tensor) -> Tensor:
    return x[x > 0]


def drawing(self: Any, x: Tensor) -> Tensor:
    return F.dropout(x) if x.sum() > 0 else x


def drawing_of_numpy(self: Any, x: Tensor) -> Tensor:
    """Draw a number that the backward, which runs the module once more, would draw again."""
    y = x * np.random.rand()  # noqa: NPY002
    return y if x.sum() > 0 else -y


def drawing_of_python(self: Any, x: Tensor) -> Tensor:
    y = x * random.random()
    return y if x.sum() > 0 else -y


def updating(self: Any, x: Tensor) -> Tensor:
    self.count.add_(1)
    return x * 2 if x.sum() > 0 else x


def assigning(self: Any, x: Tensor) -> Tensor:
    """Assign a buffer, as QuantAct of I-BERT does."""
    self.count = self.count + x.detach().sum()
    return x * 2 if x.sum() > 0 else x * 3


def setting(self: Any, x: Tensor) -> Tensor:
    found = x * 2 if x.sum() > 0 else x * 3
    self.held = found
    return found


def set_before(self: Any, x: Tensor) -> Tensor:
    self.held = x * 2
    return x * 2 if x.sum() > 0 else x * 3


def set_back_to_another(self: Any, x: Tensor) -> Tensor:
    self.held = 1
    try:
        return x * 2 if x.sum() > 0 else x * 3
    finally:
        self.held = 2


def returning_its_operand(self: Any, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else x * 2


def expecting_places(self: Any, x: Tensor) -> Tensor:
    """Takes numbers other than the random ones by which sizes are found."""
    if (x.abs() > 1e6).any():
        return x * 2
    raise ValueError("expected large numbers")


DOING_MORE = {
    unknown_size: "sizes of its results depend on numbers",
    drawing: "draws random numbers, or changes",
    drawing_of_numpy: "random numbers of NumPy",
    drawing_of_python: "random numbers of NumPy or random",
    updating: "changes an operand",
    assigning: "sets an attribute",
    setting: "sets an attribute",
    set_before: "sets an attribute",
    set_back_to_another: "sets an attribute",
    returning_its_operand: "returns a view",
    expecting_places: "it raises ValueError: expected large numbers",
}


@pytest.mark.parametrize("program", DOING_MORE, ids=lambda f: f.__name__)
def test_modules_that_do_more_than_compute_are_refused(program: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Function(program), nn.Identity())
    held, count = model[1].held, model[1].count.clone()
    called = (
        r"(depends on|data dependency|draws random numbers).*"
        "Function, cannot run in torch as one call: "
    )
    refused = f"{called}.*{DOING_MORE[program]}"
    with pytest.raises(NotImplementedError, match=refused):
        jit(model)(batches(5)[0])
    assert model[1].held is held
    assert torch.equal(model[1].count, count)
    assert model[1].found == []


def test_the_compiled_module_itself_is_not_one_call() -> None:
    with pytest.raises(NotImplementedError, match="depends on the numbers"):
        jit(Router())(batches(5)[0])


def rarely_wider(self: Any, x: Tensor) -> Tensor:
    return x.new_zeros(3, WIDTH) if x.sum() > 1e6 else x * 2


def test_results_of_other_sizes_raise_at_the_call() -> None:
    model = nn.Sequential(Function(rarely_wider), nn.Identity())
    compiled = jit(model)
    (x,) = batches(5)
    assert torch.equal(compiled(x), x * 2)
    with pytest.raises(RuntimeError, match="Function runs as one call of torch"):
        compiled(x + 1e6)


def test_random_numbers_are_not_used_up() -> None:
    model, (x,) = Model(Router()), batches(5)
    compiled = jit(model)
    torch.manual_seed(5)
    compiled(x)
    found = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(found, torch.rand(3))
