"""Lowering of one part of a transpose kernel: tiles staged in shared memory, a barrier, arithmetic,
stores.

Names beyond those of `lanes_to_ir`: p numbers the vectors of a tile, of which a thread has every
256th (the k-th of its own is p = 256 * k + t); m0, m1, .. are tiles in shared memory. While a tile
is filled, a is the vector along J, c the group of points along I that are read at once, r one of
these, w a point of a partial vector; later j and q are the place of a vector along I, s that of a
point of a partial one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.frame import Frame
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits
from thunder_fuser.lower.scalar_graph import Load, forms
from thunder_fuser.lower.vectors.lane_loads import ALWAYS_TRUE, EACH, ONE, Copy
from thunder_fuser.lower.vectors.lanes_to_ir import LaneLowering
from thunder_fuser.templates.pointwise import lower as pointwise
from thunder_fuser.templates.pointwise.parts import lower_parts
from thunder_fuser.templates.pointwise.schedule import PointwisePart
from thunder_fuser.templates.template import Lowered, Template
from thunder_fuser.templates.transpose.schedule import (
    TransposePart,
    TransposeSchedule,
    schedule_transpose,
)

_SMEM, _P, _K, _N, _T = (ir.Var(name) for name in ("smem", "p", "k", "n", "t"))
_A, _C, _J, _Q, _S, _V = (ir.Var(name) for name in ("a", "c", "j", "q", "s", "v"))
_W, _X = ir.Var("w"), ir.Var("x")
_INT = DataType.Int32


def fits_int32(part: TransposePart) -> bool:
    """True if every index of the kernel, and all steps towards it, fit into an Int32."""
    mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
    mentioned += [part.lanes(s.address) for s in part.stores]
    mentioned += [tile.address for tile in part.tiles]
    mentioned += [address for _, address in part.prefetches]
    narrow = part.narrow is None or fits_int32(part.narrow)
    return part.blocks < 2**31 and all(fits(form) for form in mentioned) and narrow


class TransposeLowering(LaneLowering):
    """Lowers one part of a transpose kernel."""

    def __init__(
        self, part: TransposePart, frame: Frame, around: TransposeLowering | None = None
    ) -> None:
        """`around`: what fills the tiles, where the part takes single points of its vectors."""
        super().__init__(part.graph, part.accesses, part.lanes, part.stores, frame)
        self.part = part
        self._names = {"tile": ir.Var("block")}
        self._tiles = {self._access[tile.load]: tile for tile in part.tiles}
        self._memories = {tile.load: f"m{k}" for k, tile in self._tiles.items()}
        self._q = _Q
        if around is not None:
            self._memories, self._q = around._memories, _S
            self._names = {**self._names, "q": _S}

    def body(self) -> list[ir.Stmt]:
        """Lower the statements of a thread; `block` counts from the first block of the part."""
        direct, turned = self._direct, self._turned
        head = self._section("transpose", self.part.stores)
        found: list[ir.Stmt] = [head, ir.Shared("smem"), *(self._declared(k) for k in turned)]
        fills = [self._filled(k) for k in turned]
        if self.part.threads == 1:
            found += fills
            found.append(self._each_vector(lambda i: self._computed(direct, turned, ONE, i)))
        else:
            # All loads from memory are issued before any thread waits.
            found.append(ir.Let("t", _INT, ir.LaunchIndex.THREAD))
            found += [self._array(k, self._steps(self.lanes.vectors)) for k in direct]
            if direct:
                found.append(self._each_vector(lambda i: self._loads(direct, EACH, i, set())))
            names = ", ".join(self._tiles[k].load.tensor.name for k in turned)
            found.append(ir.Comment(f"tiles of {names}, staged in shared memory"))
            found += [*fills, ir.Barrier()]
            found.append(self._each_vector(lambda i: self._computed([], turned, EACH, i)))
        return found

    @property
    def _live_accesses(self) -> list[int]:
        return [k for k, a in enumerate(self.accesses) if self._is_live(a)]

    @property
    def _direct(self) -> list[int]:
        """Accesses that vectors along I read from memory."""
        return [k for k in self._live_accesses if k not in self._tiles]

    @property
    def _turned(self) -> list[int]:
        """Accesses that pass through tiles."""
        return [k for k in self._live_accesses if k in self._tiles]

    def _computed(
        self, direct: Sequence[int], turned: Sequence[int], copy: Copy, indices: IndexArithmetic
    ) -> list[ir.Stmt]:
        """Lower one vector along I: its remaining loads, values, stores."""
        found = self._prefetched(self.part.prefetches, indices)
        found += [self._array(k) for k in direct]
        found += self._loads(direct, ONE, indices, set())
        found += [statement for k in turned for statement in self._read(k)]
        return found + self._results(self.part.stores, copy, indices, set())

    # ---- the loops of a thread

    def _steps(self, count: int) -> int:
        return -(-count // self.part.threads)

    def _loop(self, count: int, body: Sequence[ir.Stmt]) -> ir.Loop:
        """Loop `body` over every p of this thread below `count`."""
        threads = self.part.threads
        if threads == 1:
            return ir.Loop("p", ir.Int(count), tuple(body))
        place = ir.Let("p", _INT, ir.add(ir.times(_K, ir.Int(threads)), _T))
        if count % threads:
            body = [ir.If((ir.less(_P, count),), tuple(body))]
        return ir.Loop("k", ir.Int(self._steps(count)), (place, *body), ir.LoopKind.UNROLLED)

    def _each_vector(self, body: Callable[[IndexArithmetic], list[ir.Stmt]]) -> ir.Loop:
        """Loop over the vectors along I of the tile that have points."""
        across = ir.Int(self.part.sides[1] // self.lanes.vector)
        indices = self._arithmetic()
        narrow = self.part.narrow
        # Where the last point of a vector exists, all do.
        wanted = [self.lanes.at(c)[-1] for c in self.part.inside] if narrow else self.part.inside
        guard = self._disjunction((tuple(wanted),), indices)
        place = [
            ir.Let("j", _INT, ir.Binary("/", _P, across)),
            ir.Let("q", _INT, ir.Binary("%", _P, across)),
            *indices.taken(),
        ]
        inside = body(indices.child())
        if guard != ALWAYS_TRUE:
            others = self._point_by_point(narrow) if narrow else ()
            inside = [ir.If((guard,), tuple(inside), others)]
        return self._loop(self.lanes.vectors, [*place, *inside])

    def _point_by_point(self, narrow: TransposePart) -> ir.Body:
        """Lower the points of a partial vector along I that exist, one after the other."""
        vector = ir.Int(self.lanes.vector)
        each = TransposeLowering(narrow, self._frame, self)
        indices = each._arithmetic()
        guard = each._disjunction((narrow.inside,), indices)
        number = ir.Let("s", _INT, ir.add(ir.times(_Q, vector), _W))
        point = each._computed(each._direct, each._turned, ONE, indices.child())
        inside: ir.Body = (number, *indices.taken(), ir.If((guard,), tuple(point)))
        return (ir.Loop("w", vector, inside),)

    # ---- tiles

    def _declared(self, k: int) -> ir.TransposeTile:
        tile = self._tiles[k]
        place = ir.add(_SMEM, ir.Int(tile.offset))
        dtype, columns = tile.load.dtype, tile.sides[1]
        name = self._memories[tile.load]
        return ir.TransposeTile(name, dtype, columns, tile.width, tile.spread, tile.ways, place)

    def _filled(self, k: int) -> ir.Loop:
        """Fill the tile with squares, read along J and written along I."""
        tile = self._tiles[k]
        indices = self._arithmetic()
        guard = self._disjunction((tile.whole,), indices)
        address = indices.value(tile.address, self._names)
        pointer, row = ir.Var(tile.load.tensor.name), ir.Element(_X, _N)
        place = ir.Address(pointer, address)
        load: ir.Stmt = ir.VectorLoad(tile.width, place, row, tile.is_aligned)
        if tile.width == 1:
            load = ir.Assign(ir.Element(row, ir.Int(0)), ir.Element(pointer, address))
        across = ir.Int(tile.sides[0] // tile.width)
        depth = ir.Int(tile.depth)
        is_whole = guard == ALWAYS_TRUE
        before = indices.taken()
        others: ir.Body = ()
        if tile.has_partial_vectors:
            of_lane = indices.child()
            test = self._disjunction((tile.inside,), of_lane)
            one = ir.Assign(ir.Element(row, _W), ir.Element(pointer, ir.add(address, _W)))
            each: ir.Body = (*of_lane.taken(), ir.If((test,), (one,)))
            others = (ir.Loop("w", ir.Int(tile.width), each),)
        body = (
            ir.Let("r", _INT, ir.add(ir.times(depth, _C), _N)),
            *before,
            load if is_whole else ir.If((guard,), (load,), others),
        )
        return self._loop(
            tile.blocks,
            [
                ir.Let("a", _INT, ir.Binary("%", _P, across)),
                ir.Let("c", _INT, ir.Binary("/", _P, across)),
                ir.Registers("x", tile.load.dtype, (tile.depth, tile.width), not is_whole),
                ir.Loop("n", depth, body, ir.LoopKind.UNROLLED_SHORT),
                ir.TileStore(
                    self._memories[tile.load],
                    tile.depth,
                    ir.times(ir.Int(tile.width), _A),
                    ir.times(depth, _C),
                    _X,
                ),
            ],
        )

    def _read(self, k: int) -> list[ir.Stmt]:
        vector = self.lanes.vector
        target, memory = ir.Var(f"x{k}"), self._memories[self._tiles[k].load]
        return [
            ir.Registers(f"x{k}", self._tiles[k].load.dtype, (vector,)),
            ir.TileLoad(memory, vector, _J, ir.times(ir.Int(vector), self._q), target),
        ]

    def _loaded(self, load: Load, copy: Copy) -> ir.Expr:
        k = self._access[load]
        if k not in self._tiles:
            return super()._loaded(load, copy)
        # One that all lanes share is read before the loop over them.
        is_uniform = self.lanes.vector == 1 or self.accesses[k].is_uniform
        return ir.Element(ir.Var(f"x{k}"), ir.Int(0) if is_uniform else _V)


def _fits_int32(schedule: TransposeSchedule) -> bool:
    return all(
        fits_int32(part) if isinstance(part, TransposePart) else pointwise.fits_int32(part)
        for part in schedule.parts
    )


def _lower(schedule: TransposeSchedule, frame: Frame) -> Lowered:
    def body(part: PointwisePart | TransposePart) -> list[ir.Stmt]:
        if isinstance(part, TransposePart):
            return TransposeLowering(part, frame).body()
        return pointwise.PointwiseLowering(part, frame).body()

    return Lowered(lower_parts(schedule.parts, frame, body), schedule.shared_bytes)


TRANSPOSE = Template("transpose", "pointwise", schedule_transpose, _fits_int32, _lower)
