"""Thread mapping of a reduction kernel on a host: a core runs a block of one thread, or of a few
whose rows it reduces one after the other.
"""

from __future__ import annotations

from thunder_fuser.lower.rows.row_space import GridSplit, LaneAxis
from thunder_fuser.templates.reduction.mapping.thread_mapping import (
    RowWork,
    ThreadMapping,
    in_portions,
    splitting_rows,
)

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
_ROWS_OF_BLOCK, _MOST_ROWS_OF_BLOCK, _VECTORS_OF_BLOCK = 8, 64, 256
"""Rows of a block, one after the other; and most of them if rows are short: a block begins after
some 10 ns, in which a core adds a few vectors.
"""
_MOST_VECTORS = 16
"""Most vectors of rows of a block whose lanes are rows."""


def map_on_host(work: RowWork, axis: LaneAxis, grid_split: GridSplit) -> ThreadMapping | None:
    """Choose the mapping of some work; None where a row is not worth sharing."""
    if grid_split == "rows":
        return _sharing_rows(work)
    if grid_split == "columns":
        splits = min(HOST_PARTS // max(work.rows, 1), work.vectors)
        return splitting_rows(1, work.rows, splits, blocks_per_sm=0) if splits >= 2 else None
    if axis == "rows":
        owned = max(1, min(_MOST_VECTORS, work.vectors // HOST_PARTS))
        return ThreadMapping(1, owned, blocks=-(-work.vectors // owned))
    rows = _rows_of_block(work)
    return ThreadMapping(1, rows, blocks=-(-work.rows // rows))


def _rows_of_block(work: RowWork) -> int:
    """Return the rows of a block: more of short ones, if they divide the rows and enough blocks
    are left for the cores.
    """
    most = min(_VECTORS_OF_BLOCK // max(work.vectors, 1), work.rows // HOST_PARTS)
    rows = _MOST_ROWS_OF_BLOCK
    while rows > _ROWS_OF_BLOCK and (rows > most or work.rows % rows):
        rows //= 2
    return rows


def _sharing_rows(work: RowWork) -> ThreadMapping | None:
    """Map blocks that each walk over a part of the rows."""
    within = work.rows_of_group
    tiles, parts = (1, HOST_PARTS) if work.has_stages else _tiles(work.vectors, within)
    return None if parts == 1 else in_portions(work, 1, 1, tiles, parts, within)


def _tiles(vectors: int, rows: int) -> tuple[int, int]:
    """Return (column tiles, partial results of each): few partial results of few rows,
    and as many tiles more; as many blocks as there may be cores, if rows are enough for that.
    """
    fewest = -(-vectors // _HOST_TILE)
    most = max(fewest, vectors // _NARROWEST_TILE)
    parts = max(1, rows // _HOST_ROWS, min(2, rows // _FEWEST_HOST_ROWS))
    if parts * most < HOST_PARTS:
        parts = max(parts, min(-(-HOST_PARTS // most), rows // _FEWEST_ROWS_APART))
    parts = min(parts, HOST_PARTS)
    return max(fewest, min(-(-HOST_PARTS // parts), most)), parts
