"""Text of one part of a pointwise kernel: loads into register arrays, arithmetic, stores.

With several vectors a thread, k is the vector's number within the thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder_fuser.codegen.index_text import fits
from thunder_fuser.codegen.lane_writer import LaneWriter, braced
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower.lanes import wave_of
from thunder_fuser.lower.scalar_graph import Value, forms
from thunder_fuser.templates.pointwise.schedule import THREADS, PointwisePart


class PointwiseWriter(LaneWriter):
    """Writes one part. `buffers` maps an output written in place to the input that holds it."""

    def __init__(
        self, part: PointwisePart, buffers: Mapping[TensorView, TensorView], index_type: str
    ) -> None:
        roots = [store.value for store in part.stores]
        super().__init__(part.graph, part.accesses, part.lanes, roots, buffers, index_type)
        self.part = part

    @staticmethod
    def fits_int32(part: PointwisePart) -> bool:
        """Every index that the text can mention, and all steps towards it, fit into an int."""
        mentioned = [part.lanes(f) for node in part.graph for f in forms(node)]
        mentioned += [part.lanes(s.address) for s in part.stores]
        mentioned += [address for _, address in part.prefetches]
        blocks = part.blocks * THREADS * part.unroll
        return blocks < 2**31 and all(fits(form) for form in mentioned)

    def text(self) -> str:
        unroll, vectors = self.part.unroll, self.part.vectors
        exact = self.part.blocks * THREADS * unroll == vectors
        accesses = [k for k, a in enumerate(self.accesses) if self._is_live(a)]
        if unroll == 1:
            emitter = self._emitter()
            lines = self._prefetched(self.part.prefetches, emitter)
            lines += [self._array(k, "") for k in accesses]
            done: set[Value] = set()
            lines += self._loads(accesses, "", emitter, done)
            lines += self._results(self.part.stores, "", emitter, done)
            body = [f"const {self._index_type} u = block * {THREADS} + threadIdx.x;"]
            return "\n".join(body + (lines if exact else braced(f"if (u < {vectors})", lines)))
        u = f"const {self._index_type} u = (block * {unroll} + k) * {THREADS} + threadIdx.x;"
        lines = [self._array(k, f"[{unroll}]") for k in accesses]
        phases = [
            self._loads(wave, "[k]", self._emitter(), set()) for wave in self._waves(accesses)
        ]
        results = self._results(self.part.stores, "[k]", self._emitter(), set())
        for phase in (*phases, results):
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
