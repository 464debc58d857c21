"""The ranks of tests/sharding/test_data_parallel.py: DDP and FSDP of Thunder with our executor.

`python -m tests.sharding.data_parallel_ranks SIZE FILE`. What is wrong is an assertion that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
from thunder.distributed import FSDPBucketingStrategy, FSDPType, ddp, fsdp
from torch import nn

import thunder_fuser
from tests.sharding.processes import become_ranks, device
from thunder_fuser.errors import FuserError

WIDTH, HIDDEN, CLASSES, ROWS = 6, 10, 3, 4
STARTS = ("all_reduce", "reduce_scatter", "all_gather")


class Model(nn.Module):
    """Two blocks that share a parameter, and a head of 3 rows, which FSDP pads for 2 processes.

    One module, since Thunder takes long to trace the calls of others.
    """

    def __init__(self) -> None:
        super().__init__()
        shapes = {
            "norm": (WIDTH,),
            "up": (HIDDEN, WIDTH),
            "down": (WIDTH, HIDDEN),
            "bias": (WIDTH,),
        }
        for block in (0, 1):
            for name, shape in shapes.items():
                self.register_parameter(f"block_{block}_{name}", nn.Parameter(torch.randn(shape)))
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x, self.block_0_norm, self.block_0_up, self.block_0_down, self.block_0_bias)
        x = self.block(x, self.block_1_norm, self.block_1_up, self.block_1_down, self.block_1_bias)
        return nn.functional.linear(x, self.head)

    def block(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        norm, up, down, bias = weights
        h = nn.functional.layer_norm(x, (WIDTH,), norm)
        h = nn.functional.relu(nn.functional.linear(h, up))
        return x + self.gain * nn.functional.linear(h, down, bias)


def model() -> Model:
    torch.manual_seed(0)
    return Model().double().to(device())


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all processes."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size * ROWS, WIDTH, generator=generator, dtype=torch.float64)
    y = torch.randn(size * ROWS, CLASSES, generator=generator, dtype=torch.float64)
    return x.to(device()), y.to(device())


def mine(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (module(x) - y).square().mean()


def stepped(module: nn.Module, size: int, is_whole: bool) -> list[float]:
    """Losses of three steps of an optimizer."""
    found = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        x, y = batch(step, size)
        value = loss(module, *((x, y) if is_whole else (mine(x), mine(y))))
        optimizer.zero_grad(set_to_none=step != 1)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def is_right(module: Any, size: int) -> None:
    """It learns as one process does from all rows."""
    whole = model()
    expected = stepped(whole, size, is_whole=True)
    losses = torch.tensor(stepped(module, size, is_whole=False), device=device())
    dist.all_reduce(losses)
    torch.testing.assert_close((losses / size).cpu(), torch.tensor(expected))
    for name, parameter in module.named_parameters():
        close(parameter, whole.get_parameter(name))


def close(found: torch.Tensor | None, whole: torch.Tensor | None) -> None:
    """What a process has of a parameter or a gradient, maybe rows, which end with padding."""
    assert found is not None
    assert whole is not None
    start = found.shape[0] * dist.get_rank() if found.shape != whole.shape else 0
    expected = whole[start : start + found.shape[0]]
    torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-9, atol=1e-10)


def jitted(module: nn.Module) -> Any:
    return thunder.jit(module, executors=[thunder_fuser.executor])


def fully_sharded(strategy: str, buckets: str) -> Any:
    return fsdp(
        jitted(model()),
        device=device(),
        sharding_strategy=FSDPType[strategy],
        bucketing_strategy=FSDPBucketingStrategy[buckets],
    )


def names(trace: Any) -> list[str]:
    """What a trace runs, in order: collectives and waits by short names, our calls as "fusion",
    matrix products.
    """
    found = []
    for bsym in trace.bound_symbols:
        name = bsym.sym.name
        short = [s for s in (*STARTS, "wait") if s in name]
        if short:
            found.append(short[0])
        elif name.startswith("fuser"):
            found.append("fusion")
        elif name in ("linear", "matmul"):
            found.append("product")
    return found


def kernels(module: Any) -> int:
    return sum(len(found.kernels) for found in thunder_fuser.fusions(module))


def traces(module: Any) -> tuple[list[str], list[str]]:
    forward, backward = thunder.last_traces(module)[-1], thunder.last_backward_traces(module)[-1]
    return names(forward), names(backward)


def alone() -> Any:
    """The same model in one process."""
    module = jitted(model())
    loss(module, *batch(0, 1)).backward()
    return module


def replicated(single: Any, size: int) -> Any:
    """Buckets of DDP: one kernel and one reduction each, which starts before what follows. The last
    model.
    """
    for megabytes, buckets in ((25.0, 1), (0.8e-3, None)):
        module = ddp(jitted(model()), bucket_size_in_mb=megabytes)
        is_right(module, size)
        _, backward = traces(module)
        reductions = backward.count("all_reduce")
        parameters = len(list(module.parameters()))
        assert reductions == buckets or 1 < reductions <= parameters / 2
        assert kernels(module) <= kernels(single) + reductions
        assert backward.count("wait") == reductions
        assert_waited_for_last(backward)
        if reductions > 1:
            # The last block's are under way while the first one's backward is computed.
            assert "product" in backward[backward.index("all_reduce") :]
    accumulated(module, size)
    assert "backward" in str(thunder_fuser.segments(module))
    return module


def assert_waited_for_last(backward: Sequence[str]) -> None:
    assert set(backward[backward.index("wait") :]) == {"wait"}


def sharded(single: Any, size: int) -> None:
    """FSDP: parameters in the order of their readers, gradients in buckets."""
    single_forward, _ = traces(single)
    for strategy, buckets in (("ZERO2", "BLOCK"), ("ZERO3", "NONE")):
        module = fully_sharded(strategy, buckets)
        is_right(module, size)
        forward, backward = traces(module)
        parameters = len(list(module.parameters()))
        gathers = forward.count("all_gather")
        assert gathers == parameters if buckets == "NONE" else gathers < parameters
        assert backward.count("reduce_scatter") == gathers
        packs = sum(name == "fusion" for name in forward[: forward.index("all_gather")])
        if buckets == "NONE":
            # A wait for the weights of a norm does not cut the norm in two.
            assert forward.count("fusion") == single_forward.count("fusion")
            assert packs == 0
        again = strategy == "ZERO3"
        assert (backward.count("all_gather") > 0) is again
        assert saves_parameters(module) is not again
        assert at_once(forward) == gathers if not again else at_once(forward) < gathers
        assert at_once(backward, "all_gather") <= (5 if again else 0)
    with module.no_sync(), pytest.warns(UserWarning, match="no_sync of FSDP"):
        loss(module, *map(mine, batch(0, size))).backward()


def saves_parameters(module: Any) -> bool:
    """Whether the forward saves matrices that it gathered. What is computed again may read vectors,
    which are smaller than what they save.
    """
    forward, backward = thunder.last_traces(module)[-1], thunder.last_backward_traces(module)[-1]
    gathered: set[str] = set()
    for bsym in forward.bound_symbols:
        read = {p.name for p in bsym.flat_proxy_args}
        if "wait" in bsym.sym.name or (read and read <= gathered):
            gathered.update(p.name for p in bsym.flat_proxy_outs)
    read_behind = (p for b in backward.bound_symbols for p in b.flat_proxy_args)
    return any(p.name in gathered and p.ndim == 2 for p in read_behind)


def at_once(trace: Sequence[str], kind: str = "all_gather") -> int:
    """How many collectives of a kind are under way at the worst moment; the first to start is the
    first that is waited for.
    """
    most = under_way = 0
    for name in trace:
        under_way += (name == kind) - (name == "wait" and under_way > 0)
        most = max(most, under_way)
    return most


def accumulated(module: Any, size: int) -> None:
    """Gradients of two batches, of which only one is reduced by the backward."""
    for first_is_reduced in (True, False):
        whole = model()
        module.zero_grad()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(whole.get_parameter(name))
        for step in range(2):
            x, y = batch(step, size)
            loss(whole, x, y).backward()
            if (step == 0) is first_is_reduced:
                loss(module, mine(x), mine(y)).backward()
            else:
                with module.no_sync():
                    loss(module, mine(x), mine(y)).backward()
        for name, parameter in module.named_parameters():
            close(parameter.grad, whole.get_parameter(name).grad)


def dies(module: Any, rank: int, size: int) -> None:
    """A rank ends before its backward: the others' errors name what they waited for."""
    value = loss(module, *map(mine, batch(0, size)))
    dist.barrier()
    if rank:
        return
    with pytest.raises(FuserError, match=r"all_reduce of \d+ gradients, .* failed"):
        value.backward()


def main(rank: int, size: int) -> None:
    single = alone()
    module = replicated(single, size)
    sharded(single, size)
    dies(module, rank, size)


if __name__ == "__main__":
    become_ranks(main)
