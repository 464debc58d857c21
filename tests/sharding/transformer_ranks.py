"""The ranks of tests/sharding/test_many_ranks.py that train a transformer block.

`python -m tests.sharding.transformer_ranks SIZE FILE BACKEND`; see many_ranks.py.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.nn import functional

from tests.sharding.many_ranks import (
    GATED,
    ROWS,
    WHOLE,
    WIDTH,
    Parameters,
    compare,
    gated,
    learns,
    leaves_of,
    normed,
    traced,
    weights_of,
)
from tests.sharding.processes import become_ranks
from thunder_fuser.sharding.rank_program import RankProgram

HEADS = 8
_SQUARE = WIDTH, WIDTH
BLOCK: Parameters = (
    ((WIDTH,), WHOLE),
    *[(_SQUARE, Shard(0))] * 3,
    (_SQUARE, Shard(1)),
    *GATED,
)


def block(x: Tensor, *weights: Tensor) -> Tensor:
    """A transformer block: attention, and a gated MLP."""
    norm, query, key, value, out, *mlp = weights
    batch, time, _ = x.shape
    y = normed(x, norm)
    heads = [
        functional.linear(y, w).reshape(batch, time, HEADS, -1).transpose(1, 2)
        for w in (query, key, value)
    ]
    found = functional.scaled_dot_product_attention(*heads, is_causal=True)
    found = found.transpose(1, 2).reshape(batch, time, -1)
    return gated(x + functional.linear(found, out), *mlp)


class Checks:
    """What each rank runs; the block is traced before there are ranks."""

    def __init__(self) -> None:
        self.compiled = traced(block, *leaves_of([ROWS, *weights_of(BLOCK)]))

    def __call__(self, rank: int, size: int) -> None:
        RankProgram.prepare = lambda program, inputs: None  # type: ignore[method-assign]
        wholes = [ROWS, *weights_of(BLOCK)]
        line = init_device_mesh("cpu", (size,))
        for rows in (WHOLE, Shard(1)):
            placements = [[rows], *([p] for _, p in BLOCK)]
            compare(self.compiled, block, wholes, line, placements)
        learns(self.compiled, block, BLOCK, size, steps=4)


if __name__ == "__main__":
    become_ranks(Checks())
