"""Origins of a trace's symbols: the user's source line, and the symbols before executors' claims.

Thunder records the source line of calls of the user, not of their subsymbols, and drops it in
autodiff; an executor that claims a symbol renames its results.  But values that are fused keep
their names, so earlier traces can be looked up by name.  Backward values are the exception: they
have no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from thunder.core.compile_data import _compile_data
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.autograd.gradient_flags import requiring_gradients
from thunder_fuser.frontends.thunder.claims.claim import InFormatOf, LiesAs
from thunder_fuser.frontends.thunder.composites import movement, norms
from thunder_fuser.frontends.thunder.remembered import look_through, relabelled
from thunder_fuser.frontends.thunder.trace.call_facts import (
    IN_ANOTHER_ORDER,
    ROW_MAJOR,
    ROW_MAJOR_UNLESS_CHANNELS,
    gives_new_memory,
    interpolates_lines,
    keeps_format,
    may_have_rows,
    raises_number,
    rounds_each_step,
    saved_by_torch,
)
from thunder_fuser.frontends.thunder.trace.same_values import same_values
from thunder_fuser.ir.fusion import Origin

_COPY = "bw_"
"""Prefix of names that Thunder gives to forward values recomputed in the backward."""


class Line(NamedTuple):
    """A source line as Thunder records it."""

    filename: str | None
    positions: Any


class Recorded:
    """Facts from earlier traces of the function that is being compiled, by name of a value.

    symbols  bound symbols of the last trace before executors made their claims
    """

    def __init__(self, trace: TraceCtx, originals: Mapping[str, str]) -> None:
        """`trace` replaces earlier traces if there are none; `originals` maps names of values that
        were renamed since to their names in earlier traces.
        """
        _, stats = _compile_data.get()
        traces = (stats.last_traces if stats is not None else None) or [trace]
        self.symbols: list[BoundSymbol] = traces[-1].bound_symbols
        for recorded in (traces[0], traces[-1]):
            look_through(recorded.bound_symbols)
        self._originals = originals
        # Positions of the symbols that define a value, themselves or in a subsymbol. Recomputed
        # symbols of the backward may have the names of the forward's subsymbols.
        self._positions: dict[tuple[str, bool], int] = {}
        for k, bsym in enumerate(self.symbols):
            for name in _given(bsym):
                self._positions.setdefault((name, is_backward(bsym)), k)
        self._lines: dict[str, Line] = {}
        self._calls: dict[str, int] = {}
        self._in_steps: set[int | None] = set()
        self._results: set[str] = set()
        self._new: set[str] = set()
        self._row_major: set[str] = set()
        self._channels_last: set[str] = set()
        self._leaders: dict[str, LiesAs | InFormatOf] = {}
        rows = [b for b in traces[0].bound_symbols if may_have_rows(b)]
        self._differentiated = requiring_gradients(traces[0].bound_symbols) if rows else frozenset()
        for bsym in traces[0].bound_symbols:
            # Not of calls that a grad transform records again: those are parts of the user's.
            self._results.update(p.name for p in bsym.flat_proxy_outs)
            self._note_call(bsym)
            if bsym.source_filename is not None:
                line = Line(bsym.source_filename, bsym.source_positions)
                for name in _given(bsym):
                    self._lines.setdefault(name, line)
        self.saved_results: frozenset[str] = frozenset()
        """Names of results of the forward that torch's autograd would save, too."""
        self._same: dict[str, str] = {}
        self._new_names: dict[str, str] = {}
        if any(name not in self._calls for bsym in self.symbols for name in _given(bsym)):
            forward = [b for b in self.symbols if not is_backward(b)]
            self._same = same_values(traces[0].bound_symbols, forward)
            self._new_names = {old: new for new, old in self._same.items()}
            self._note_new_names(traces[0], traces[-1])
        # Also if no value was renamed: gradients may be of nothing but arguments.
        if any(bsym.sym.id is PrimIDs.GET_GRAD for bsym in self.symbols):
            saved = saved_by_torch(traces[0])
            pairs = zip(results(traces[0]), results(traces[-1]), strict=False)
            self.saved_results = frozenset(new.name for old, new in pairs if old.name in saved)

    def _note_new_names(self, first: TraceCtx, joint: TraceCtx) -> None:
        """Note calls that a grad transform recorded again. Other differentiated calls have renamed
        subsymbols, too; their results are matched by position in the trace's results.
        """
        recorded = set(self._calls)
        for bsym in joint.bound_symbols:
            is_call = bsym.subsymbols and not is_backward(bsym) and not _names_memory(bsym)
            if is_call and recorded.isdisjoint(_given(bsym)):
                self._note_call(bsym)
        for old, new in zip(results(first), results(joint), strict=False):
            for noted in (self._row_major, self._channels_last):
                noted.update({new.name} if old.name in noted else ())
            if old.name in self._leaders:
                self._leaders.setdefault(new.name, self._leaders[old.name])

    def _note_call(self, bsym: BoundSymbol) -> None:
        number = len(self._calls)
        self._calls.update(dict.fromkeys(_given(bsym), number))
        if rounds_each_step(bsym):
            self._in_steps.add(number)
        results = [p.name for p in bsym.flat_proxy_outs]
        if bsym.sym is norms.BATCH_NORM:
            results = results[:1]
        self._new.update(results if gives_new_memory(bsym) else ())
        if bsym.sym.id in ROW_MAJOR_UNLESS_CHANNELS:
            ranks = {p.ndim for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)}
            (self._row_major if ranks.isdisjoint((4, 5)) else self._channels_last).update(results)
        elif (
            bsym.sym.id in ROW_MAJOR
            or raises_number(bsym)
            or interpolates_lines(bsym)
            or self._has_rows(bsym)
        ):
            self._row_major.update(results)
        read = tuple(p.name for p in bsym.flat_proxy_args if isinstance(p, TensorProxy))
        if bsym.sym.id in IN_ANOTHER_ORDER or bsym.kwargs.get("rounding_mode") is not None:
            self._leaders.update(dict.fromkeys(results, LiesAs(read)))
        elif read and keeps_format(bsym) and not self._has_rows(bsym):
            self._leaders.update(dict.fromkeys(results, InFormatOf(read[0])))
        elif bsym.sym is movement.SLICE_SCATTER:
            self._leaders.update(dict.fromkeys(results, LiesAs(read[:1])))

    def _has_rows(self, bsym: BoundSymbol) -> bool:
        return may_have_rows(bsym) and bsym.flat_proxy_outs[0].name not in self._differentiated

    def positions(self, bsyms: Iterable[BoundSymbol]) -> Iterator[int]:
        """Yield positions in `symbols` of the definitions of these symbols' results."""
        for bsym in bsyms:
            for out in bsym.flat_proxy_outs:
                key = self._originals.get(out.name, out.name), is_backward(bsym)
                if key in self._positions:
                    yield self._positions[key]

    def first_name(self, name: str) -> str:
        """Return the original name of a value: that in the forward for a value recomputed in the
        backward, and that in the user's calls for a value renamed by autodiff.
        """
        name = self._originals.get(name, name)
        if name not in self._calls:
            name = name.removeprefix(_COPY)
        return name if name in self._calls else self._same.get(name, name)

    def _names(self, name: str) -> tuple[str, ...]:
        """Return the names of a value in calls: of those that a gradient rule recorded again, then
        of the user's, whose result it may be.
        """
        name = self.first_name(name)
        return name, self._same.get(name, name)

    def in_one_call(self, *names: str) -> bool:
        """True if one call of the user's defines all of these values, itself or in subsymbols."""
        calls = {self._calls.get(self.first_name(name)) for name in names}
        return len(calls) == 1 and None not in calls

    def round_once(self, *names: str) -> bool:
        """True if torch does not round between these values, because one kernel computes both."""
        return self.in_one_call(*names) and not any(
            self._calls.get(self.first_name(name)) in self._in_steps for name in names
        )

    def is_result(self, name: str) -> bool:
        """True if a value is the result of a call of the user's."""
        return self._names(name)[-1] in self._results

    def owns(self, name: str) -> bool:
        """True if a value is the result of a call of the user's that returns new memory."""
        return self.first_name(name) in self._new

    def is_row_major(self, name: str) -> bool:
        """True if a value is the result of a call that is row-major for any operand strides."""
        return not self._row_major.isdisjoint(self._names(name))

    def keeps_channels_last(self, name: str) -> bool:
        """True if a value is the result of a call that keeps channels last, else is row-major."""
        return not self._channels_last.isdisjoint(self._names(name))

    def leaders(self, name: str) -> LiesAs | InFormatOf | None:
        """Return the operands of the call that defines a value if torch's kernel lays its result
        out by them, or has their format, and the call's decomposition would not; else None.
        """
        tags = (self._leaders.get(known) for known in self._names(name))
        tag = next((tag for tag in tags if tag is not None), None)
        return None if tag is None else tag.renamed(self._new_names)

    def line_of(self, bsym: BoundSymbol) -> Line:
        """Return the user's source line; `Line(None, None)` if it is unknown."""
        if bsym.source_filename is not None:
            return Line(bsym.source_filename, bsym.source_positions)
        names = (self.first_name(out.name) for out in bsym.flat_proxy_outs)
        return next((self._lines[n] for n in names if n in self._lines), Line(None, None))

    def located(self, prim: BoundSymbol, whole: BoundSymbol) -> BoundSymbol:
        """Return a subsymbol with the source line and the tags of the whole symbol."""
        line = self.line_of(whole)
        if line.filename is None:
            line = self.line_of(prim)
        return relabelled(
            prim,
            source_filename=line.filename,
            source_positions=line.positions,
            tags=prim.tags | whole.tags,
        )


def is_backward(bsym: BoundSymbol) -> bool:
    """True for a symbol of the backward, by Thunder's tag."""
    return BoundSymbolTag.BACKWARD in bsym.tags


def _names_memory(bsym: BoundSymbol) -> bool:
    """True if a symbol, or a subsymbol, is an in-place update or `update_aliases`."""
    is_one = bsym.sym.id in (PrimIDs.UPDATE_ALIASES, PrimIDs.COPY_)
    return is_one or any(map(_names_memory, bsym.subsymbols))


def results(trace: TraceCtx) -> list[Proxy]:
    """Return the results of the forward that the user gets."""
    returned = trace.bound_symbols[-1].args
    if returned and isinstance(returned[0], dict):
        returned = returned[0].get("fw_flat_out", returned[0].get("output", ()))
    flat, _ = tree_flatten_with_dataclass(returned)
    return [p for p in flat if isinstance(p, Proxy)]


def _given(bsym: BoundSymbol) -> Iterator[str]:
    """Yield names of the results of a symbol and of its subsymbols."""
    for out in bsym.flat_proxy_outs:
        yield out.name
    for part in bsym.subsymbols:
        yield from _given(part)


def origin_of(bsym: BoundSymbol) -> Origin:
    """Return the symbol's name, its source line, and the name of its (first) result."""
    number = getattr(bsym.source_positions, "lineno", None)
    names = [p.name for p in bsym.flat_proxy_outs]
    return Origin(bsym.sym.name, bsym.source_filename or "", number or 0, names[0] if names else "")
