"""The text of one part of a map kernel: loads into register arrays, arithmetic, stores.

With several vectors a thread, k is the vector's number within the thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.analysis.lanes import wave_of
from thunder_fuser.analysis.value import Value, forms, reachable
from thunder_fuser.codegen.lane_writer import LaneWriter, braced, taken
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.symint_emit import Emitter, fits
from thunder_fuser.schedule.map import THREADS, MapPart


class PartWriter(LaneWriter):
    """Writes one part. `buffers` maps an output written in place to the input that holds it."""

    def __init__(
        self, part: MapPart, buffers: Mapping[TensorView, TensorView], index_type: str
    ) -> None:
        roots = [store.value for store in part.stores]
        super().__init__(part.graph, part.accesses, part.lanes, roots, buffers, index_type)
        self.part = part

    @staticmethod
    def fits_int32(part: MapPart) -> bool:
        """Every index that the text can mention, and all steps towards it, fit into an int."""
        mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
        mentioned += [part.lanes(s.address) for s in part.stores]
        blocks = part.blocks * THREADS * part.unroll
        return blocks < 2**31 and all(fits(form) for form in mentioned)

    def text(self) -> str:
        unroll, vectors = self.part.unroll, self.part.vectors
        exact = self.part.blocks * THREADS * unroll == vectors
        accesses = [k for k, a in enumerate(self.accesses) if self._is_live(a)]
        if unroll == 1:
            emitter = self._emitter()
            lines = [self._array(k, "") for k in accesses]
            done: set[Value] = set()
            lines += self._loads(accesses, "", emitter, done)
            lines += self._results("", emitter, done)
            body = [f"const {self._index_type} u = block * {THREADS} + threadIdx.x;"]
            return "\n".join(body + (lines if exact else braced(f"if (u < {vectors})", lines)))
        u = f"const {self._index_type} u = (block * {unroll} + k) * {THREADS} + threadIdx.x;"
        lines = [self._array(k, f"[{unroll}]") for k in accesses]
        phases = [
            self._loads(wave, "[k]", self._emitter(), set()) for wave in self._waves(accesses)
        ]
        for phase in (*phases, self._results("[k]", self._emitter(), set())):
            inside = phase if exact else braced(f"if (u < {vectors})", phase)
            lines += ["TF_UNROLL", *braced(f"for (int k = 0; k < {unroll}; ++k)", [u, *inside])]
        return "\n".join(lines)

    def _waves(self, accesses: Sequence[int]) -> list[list[int]]:
        """Accesses that wait for no other come first, so that all of them are in flight at once."""
        waves = wave_of(self.graph)
        found: dict[int, list[int]] = {}
        for k in accesses:
            found.setdefault(waves[self.accesses[k].loads[0]], []).append(k)
        return [found[wave] for wave in sorted(found)]

    def _results(self, copy: str, emitter: Emitter, done: set[Value]) -> list[str]:
        """Values the same for all lanes, then the lane loop, then the stores."""
        wanted = reachable((store.value for store in self.part.stores), loaded=True)
        nodes = [node for node in self._live_nodes() if node in wanted]
        before = self._definitions(nodes, copy, emitter, done)
        inside: list[str] = []
        lane_emitter = emitter.child()
        for node in nodes:
            text = self._define(node, copy, lane_emitter) if node.order in self._varying else None
            inside += [*taken(lane_emitter), text] if text is not None else []
        after: list[str] = []
        for n, store in enumerate(self.part.stores):
            dtype = store.tensor.dtype.ctype
            before.append(f"{dtype} y{n}[{self.lanes.vector}];")
            inside.append(f"y{n}[v] = {self._stored(store, copy)};")
            after += self._store(n, store, emitter)
        return [*before, "TF_VEC", *braced(self._lane_loop(), inside), *after]
