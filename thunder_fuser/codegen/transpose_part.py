"""Text of one part of a transpose kernel: tiles staged in shared memory, a barrier, arithmetic,
stores.

Names beyond those of `lane_writer`: p numbers the vectors of a tile, of which a thread has every
256th (the k-th of its own is p = 256 * k + t); m0, m1, .. are tiles in shared memory. While a tile
is filled, a is the vector along J, c the group of points along I that are read at once, r one of
these; later j and q are the place of a vector along I.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder_fuser.codegen.index_text import Emitter, fits
from thunder_fuser.codegen.lane_writer import LaneWriter, braced, taken
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower.scalar_graph import Load, forms
from thunder_fuser.templates.transpose.schedule import TransposePart


class TransposeWriter(LaneWriter):
    """Writes one part, for a kernel whose blocks may have more threads than this part uses."""

    def __init__(
        self,
        part: TransposePart,
        buffers: Mapping[TensorView, TensorView],
        index_type: str,
        block_threads: int,
    ) -> None:
        roots = [store.value for store in part.stores]
        super().__init__(part.graph, part.accesses, part.lanes, roots, buffers, index_type)
        self.part = part
        self._block_threads = block_threads
        self._names |= {"tile": "block", "j": "j", "q": "q", "a": "a", "r": "r"}
        self._tiles = {self._access[tile.load]: tile for tile in part.tiles}

    @staticmethod
    def fits_int32(part: TransposePart) -> bool:
        """Every index that the text can mention, and all steps towards it, fit into an int."""
        mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
        mentioned += [part.lanes(s.address) for s in part.stores]
        mentioned += [tile.address for tile in part.tiles]
        mentioned += [address for _, address in part.prefetches]
        return part.blocks < 2**31 and all(fits(form) for form in mentioned)

    def text(self) -> str:
        live = [k for k, a in enumerate(self.accesses) if self._is_live(a)]
        direct = [k for k in live if k not in self._tiles]
        turned = [k for k in live if k in self._tiles]
        lines = ["TF_SHARED(smem);", *(self._declared(k) for k in turned)]
        fills = [line for k in turned for line in self._filled(k)]
        if self.part.threads == 1:
            lines += [*fills, *self._each_vector(lambda e: self._computed(direct, turned, "", e))]
        else:
            # All that comes from memory is asked for before anybody waits.
            lines.append("const int t = threadIdx.x;")
            lines += [self._array(k, f"[{self._steps(self.lanes.vectors)}]") for k in direct]
            if direct:
                lines += self._each_vector(lambda e: self._loads(direct, "[k]", e, set()))
            lines += [*fills, "__syncthreads();"]
            lines += self._each_vector(lambda e: self._computed([], turned, "[k]", e))
        if self.part.threads < self._block_threads:
            lines = braced(f"if (threadIdx.x < {self.part.threads}u)", lines)
        return "\n".join(lines)

    def _computed(
        self, direct: Sequence[int], turned: Sequence[int], copy: str, emitter: Emitter
    ) -> list[str]:
        """One vector along I: what it still has to load, values, stores."""
        lines = self._prefetched(self.part.prefetches, emitter)
        lines += [self._array(k, "") for k in direct]
        lines += self._loads(direct, "", emitter, set())
        lines += [line for k in turned for line in self._read(k)]
        return lines + self._results(self.part.stores, copy, emitter, set())

    # ---- the loops of a thread

    def _steps(self, count: int) -> int:
        return -(-count // self.part.threads)

    def _loop(self, count: int, lines: Sequence[str]) -> list[str]:
        """`lines` for every p of this thread below `count`."""
        threads = self.part.threads
        if threads == 1:
            return braced(f"for (int p = 0; p < {count}; ++p)", lines)
        inside = [f"const int p = k * {threads} + t;"]
        inside += lines if count % threads == 0 else braced(f"if (p < {count})", lines)
        return ["TF_UNROLL", *braced(f"for (int k = 0; k < {self._steps(count)}; ++k)", inside)]

    def _each_vector(self, body: Callable[[Emitter], list[str]]) -> list[str]:
        """What `body` writes, for every vector along I of the tile that has points."""
        across = self.part.sides[1] // self.lanes.vector
        emitter = self._emitter()
        guard = self._disjunction((self.part.inside,), emitter)
        place = [f"const int j = p / {across};", f"const int q = p % {across};", *taken(emitter)]
        inside = body(emitter.child())
        if guard != "true":
            inside = braced(f"if ({guard})", inside)
        return self._loop(self.lanes.vectors, [*place, *inside])

    # ---- tiles

    def _declared(self, k: int) -> str:
        tile = self._tiles[k]
        ctype = tile.load.dtype.ctype
        shape = f"{tile.sides[1]}, {tile.width}, {tile.spread}, {tile.ways}"
        return f"tf::Tile<{ctype}, {shape}> m{k}{{({ctype}*)(smem + {tile.offset})}};"

    def _filled(self, k: int) -> list[str]:
        """Squares of the tile, read along J and written along I."""
        tile = self._tiles[k]
        ctype = tile.load.dtype.ctype
        emitter = self._emitter()
        guard = self._disjunction((tile.inside,), emitter)
        address = emitter.emit(tile.address, self._names)
        pointer = tile.load.tensor.name
        load = f"tf::load<{tile.width}>({pointer} + {address}, x[n]);"
        if tile.width == 1:
            load = f"x[n][0] = {pointer}[{address}];"
        across = tile.sides[0] // tile.width
        body = [
            f"const int r = {tile.depth} * c + n;",
            *taken(emitter),
            load if guard == "true" else f"if ({guard}) {load}",
        ]
        return self._loop(
            tile.blocks,
            [
                f"const int a = p % {across};",
                f"const int c = p / {across};",
                f"{ctype} x[{tile.depth}][{tile.width}]{'' if guard == 'true' else ' = {}'};",
                "TF_UNROLL_SHORT",
                *braced(f"for (int n = 0; n < {tile.depth}; ++n)", body),
                f"m{k}.put({tile.width} * a, {tile.depth} * c, x);",
            ],
        )

    def _read(self, k: int) -> list[str]:
        dtype, vector = self._tiles[k].load.dtype.ctype, self.lanes.vector
        return [f"{dtype} x{k}[{vector}];", f"m{k}.get(j, {vector} * q, x{k});"]

    def _loaded(self, load: Load, copy: str) -> str:
        k = self._access[load]
        if k not in self._tiles:
            return super()._loaded(load, copy)
        return f"x{k}[{'v' if self.lanes.vector > 1 else '0'}]"
