"""Tiles of a host: blocks that share columns of grid reductions, and partial results of a tile."""

from __future__ import annotations

HOST_PARTS = 16
"""Partial results on the host. Not the number of cores: results must not depend on it."""
_HOST_TILE, _NARROWEST_TILE = 256, 64
"""Most vectors of columns whose accumulators stay in a core's nearest cache; and fewest that lie in
one row as far as a core's prefetcher follows.
"""
_HOST_ROWS, _FEWEST_HOST_ROWS, _FEWEST_ROWS_APART = 64, 16, 4
"""Fewest rows of a partial result, which is written and read again; of each of two; and of as many
as there may be cores, where columns are too few for these.
"""


def host_tiles(vectors: int, rows: int) -> tuple[int, int]:
    """Return (column tiles, partial results of each) of a host: few partial results of few rows,
    and as many tiles more; as many blocks as there may be cores, if rows are enough for that.
    """
    fewest = -(-vectors // _HOST_TILE)
    most = max(fewest, vectors // _NARROWEST_TILE)
    parts = max(1, rows // _HOST_ROWS, min(2, rows // _FEWEST_HOST_ROWS))
    if parts * most < HOST_PARTS:
        parts = max(parts, min(-(-HOST_PARTS // most), rows // _FEWEST_ROWS_APART))
    parts = min(parts, HOST_PARTS)
    return max(fewest, min(-(-HOST_PARTS // parts), most)), parts
