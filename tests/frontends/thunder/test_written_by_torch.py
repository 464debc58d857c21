"""Updates that torch does in place: as in eager code, and no more of the memory is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.aliasing import differences
from thunder_fuser import options, segments

POSITIONS = torch.tensor([3, 0, 5])


def _jit(program: Callable[..., Any]) -> Any:
    return thunder.jit(program, executors=[thunder_fuser.executor])


def _checked(program: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """Run a program twice, compare results and arguments with eager torch's, values, strides and
    memory; return the trace that ran.
    """
    compiled = _jit(program)
    ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
    for _ in range(2):
        with options(strict=True):
            found = compiled(*ours)
        wanted = program(*theirs)
        assert not [*differences([*_flat(found), *ours], [*_flat(wanted), *theirs])]
    return str(thunder.last_traces(compiled)[-1])


def _flat(results: Any) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else [*results]


UPDATES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "index_copy_": lambda x, index, new: x.index_copy_(1, index, new),
    "index_add_": lambda x, index, new: x.index_add_(1, index, new, alpha=2),
    "index_fill_": lambda x, index, new: x.index_fill_(1, index, 2.5),
    "index_reduce_": lambda x, index, new: x.index_reduce_(1, index, new, "amax"),
    "index_put_": lambda x, index, new: x.index_put_((index // 2, index), new[0], accumulate=True),
    "setitem_": lambda x, index, new: x.__setitem__((slice(None), index), new),
    "scatter_": lambda x, index, new: x.scatter_(1, index.view(1, 3, 1).expand(4, 3, 6), new),
    "scatter_add_": lambda x, index, new: x.scatter_add_(
        1, index.view(1, 3, 1).expand(4, 3, 6), new
    ),
    "masked_scatter_": lambda x, index, new: x.masked_scatter_(x > 1e-3, new.repeat(1, 3, 1)),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_done_by_the_method(name: str) -> None:
    update = UPDATES[name]

    def program(
        x: torch.Tensor, index: torch.Tensor, new: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        update(x, index, new * 2)
        return new + 1, x[:, 3] * 2

    trace = _checked(program, torch.randn(4, 8, 6), POSITIONS, torch.randn(4, 3, 6))
    assert f" {name}(" in trace
    assert "copy_(" not in trace.replace("index_copy_(", "")


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_a_new_tensor_and_what_reads_it(name: str) -> None:
    update = UPDATES[name]

    def program(
        x: torch.Tensor, index: torch.Tensor, new: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.exp()
        z = y.sin()
        update(y, index, new)
        return y, y.cos(), z

    assert f" {name}(" in _checked(program, torch.randn(4, 8, 6), POSITIONS, torch.randn(4, 3, 6))


@pytest.mark.parametrize("name", [k for k in UPDATES if k != "index_reduce_"])
def test_gradients_of_such_updates(name: str) -> None:
    update = UPDATES[name]

    def program(x: torch.Tensor, index: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        y = x * 2
        update(y, index, new * 3)
        return (y.sin() * y).sum()

    gradients = []
    for function in (_jit(program), program):
        torch.manual_seed(0)
        x, new = (torch.randn(s, requires_grad=True) for s in ([4, 8, 6], [4, 3, 6]))
        function(x, POSITIONS, new).backward()
        gradients.append((x.grad, new.grad))
    torch.testing.assert_close(*gradients)


def test_results_that_are_read_and_operands_that_share_memory_are_copied() -> None:
    """Then a method would write what is read: the old values, or its own operand."""

    def kept(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.index_fill(0, index, 1.5)
        z = y * 2
        x.copy_(y)
        return y, z

    def of_itself(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.copy_(x.index_copy(0, index, x[1:4]))
        return x + 1

    def by_itself(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.copy_(x.index_add(0, torch.arange(8), x))
        return x + 1

    def by_keyword(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.index_fill(input=x, dim=0, index=index, value=1.5))
        return x + 1

    def of_another(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.copy_(x.index_fill(0, index, 1.5))
        return y

    for program in (kept, of_itself, by_itself, by_keyword, of_another):
        trace = _checked(program, torch.randn(8, 6), POSITIONS)
        assert "index_copy_(" not in trace
        assert "index_fill_(" not in trace
        assert "index_add_(" not in trace


def test_an_argument_is_updated_and_its_version_is_new() -> None:
    def program(x: torch.Tensor, index: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return x.index_copy_(1, index, new)

    x = torch.zeros(4, 8, 6)
    version = x._version
    found = _jit(program)(x, POSITIONS, torch.ones(4, 3, 6))
    assert found.data_ptr() == x.data_ptr()
    assert x._version > version
    assert x.sum() == 4 * 3 * 6


def test_bytes_of_a_cache_are_those_of_its_new_positions() -> None:
    def program(cache: torch.Tensor, key: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, position, key)
        return key + 1

    key = torch.randn(2, 4, 1, 16)
    compiled = _jit(program)
    compiled(torch.zeros(2, 4, 4096, 16), key, torch.tensor([7]))
    (plan,) = segments(compiled)
    assert plan.bytes == 4 * key.nbytes + 8


class _Attention(torch.nn.Module):
    """Attention of new positions to all that its caches hold."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(1, 2, 32, 8))
        self.register_buffer("values", torch.zeros(1, 2, 32, 8))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).view(1, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        seen = torch.arange(32) <= positions[:, None]
        found = torch.nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=seen
        )
        return found.transpose(1, 2).reshape(x.shape)


def test_a_model_decodes_into_its_caches() -> None:
    """One program for the prompt, and one for all later positions."""
    torch.manual_seed(0)
    models = [_Attention(), _Attention()]
    models[1].load_state_dict(models[0].state_dict())
    ours = _jit(models[1])
    with torch.no_grad():
        for positions in (torch.arange(5), *torch.arange(5, 9).split(1)):
            x = torch.randn(1, len(positions), 16)
            torch.testing.assert_close(ours(x, positions), models[0](x, positions))
    assert thunder.cache_misses(ours) == 2
    for name, buffer in models[1].named_buffers():
        torch.testing.assert_close(buffer, models[0].get_buffer(name))
    assert str(thunder.last_traces(ours)[-1]).count(" index_copy_(") == 2
