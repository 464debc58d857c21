"""Kernel IR as plain C that one thread runs: a second printer, of another language, for tests.

Blocks and threads are loops. A barrier ends the loop over the threads and begins another; names
that live on become arrays with an element a thread. Blocks that fold rows together are one loop
over all of their threads. Numbers are those of C and no header of
csrc_templates is used, so that what it computes is what the statements mean, and no more. Registers
that nothing has been written to are full of ones (NaNs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support import sequential_c_reducers as reducers
from tests.support.sequential_c_expressions import ExpressionsC
from tests.support.sequential_c_tables import PRELUDE, Unprintable, ctype
from thunder_fuser import kernel_ir as ir


class SequentialC(ExpressionsC):
    """The C text of one kernel, as a function of its parameters."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        body = kernel.body
        folds = any(isinstance(e, ir.BlockReduce) and e.blocks > 1 for e in _reduces(body))
        stays = kernel.cluster > 1 or any(isinstance(p, ir.GridBarrier) for p in _parts(body))
        super().__init__(kernel, kernel.cluster if folds else 1, stays)
        self._threads = kernel.threads * self._together
        self._tiles: dict[str, int] = {}
        self._arrays: dict[str, ir.Registers] = {}
        self._guards = 0

    def text(self, name: str) -> tuple[str, tuple[ir.Reducer, ...]]:
        """The function, and the reductions that it needs the functions of."""
        kernel = self._kernel
        names = ", ".join(
            f"{ctype(p.dtype) if p.dtype else 'unsigned char'} {'*' * p.is_pointer}{p.name}"
            for p in kernel.parameters
        )
        shared = self._shared_bytes * (kernel.blocks if self._own_shared else 1)
        head = f"for (int block_ = 0; block_ < {kernel.blocks}; block_ += {self._together}) {{"
        lines = [f"void {name}({names}) {{", f"const int blocks_ = {kernel.blocks};"]
        lines.append(f"static _Alignas(16) unsigned char smem[{shared}];")
        waits = (ir.GridBarrier,) if self._together > 1 else (ir.GridBarrier, ir.ClusterWait)
        for section in _between(waits, _flat(kernel.body)):
            lines += [head, *self._phases(section, ()), "}"]
        return "\n".join([*lines, "}", ""]), tuple(self._reducers)

    # ---- threads

    def _phases(self, body: ir.Body, guards: tuple[str, ...]) -> list[str]:
        """Statements that all threads do, some of which wait for all of them."""
        lines: list[str] = []
        phase: list[ir.Stmt] = []

        def end() -> None:
            if phase:
                lines.extend(self._loop_over_threads(self._lines(tuple(phase), True), guards))
                phase.clear()

        for s in body:
            if not _waits(s):
                lines += self._declared(s)
                phase.append(s)
                continue
            end()
            lines += self._waiting(s, guards)
        end()
        return lines

    def _waiting(self, s: ir.Stmt, guards: tuple[str, ...]) -> list[str]:
        match s:
            case ir.If():
                return self._waiting_if(s, guards)
            case ir.Let():
                return self._reduction(s, guards)
            case ir.GroupedReduce():
                return [line for let in s.lets for line in self._reduction(let, guards)]
            case ir.Scope():
                return ["{", *self._phases(s.body, guards), "}"]
            case ir.Loop():
                return self._waiting_loop(s, guards)
            case ir.OuterBlockReduce():
                return self._stacked(s, guards)
            case ir.BlockScan():
                return self._scan(s, guards)
            case ir.Barrier() | ir.ClusterWait():
                return []
        raise Unprintable(f"no C for a {type(s).__name__} that waits")

    def _loop_over_threads(self, lines: Sequence[str], guards: Sequence[str]) -> list[str]:
        tests = "".join(f"if ({g}) " for g in guards)
        head = f"for (int thread_ = 0; thread_ < {self._threads}; ++thread_) {tests}{{"
        return [head, *lines, "}"]

    def _guard(self, test: str, guards: tuple[str, ...]) -> tuple[list[str], str]:
        """A test that is made once by each thread, whatever becomes of its operands."""
        self._guards += 1
        name = f"guard{self._guards}_"
        made = self._loop_over_threads([f"{name}[thread_] = {test};"], guards)
        return [f"static _Bool {name}[{self._threads}];", *made], f"{name}[thread_]"

    def _waiting_if(self, s: ir.If, guards: tuple[str, ...]) -> list[str]:
        tests = " && ".join(map(self._of, s.tests))
        if "thread_" not in tests:
            lines = [f"if ({tests}) {{", *self._phases(s.body, guards), "} else {"]
            return [*lines, *self._phases(s.otherwise, guards), "}"]
        made, guard = self._guard(tests, guards)
        lines = ["{", *made, *self._phases(s.body, (*guards, guard)), "}"]
        if s.otherwise:
            lines[-1:] = [*self._phases(s.otherwise, (*guards, f"!{guard}")), "}"]
        return lines

    def _waiting_loop(self, s: ir.Loop, guards: tuple[str, ...]) -> list[str]:
        """As often for all threads, or as often as some thread wants."""
        if "thread_" not in self._loop_head(s):
            return [self._loop_head(s), *self._phases(s.body, guards), "}"]
        self._each_thread.add(s.axis)
        axis = self._of(ir.Var(s.axis))
        lines = ["{", f"static {ctype(s.type)} {s.axis}[{self._threads}];"]
        lines += self._loop_over_threads([f"{axis} = {self._of(s.begin)};"], guards)
        made, guard = self._guard(f"{axis} < {self._of(s.end)}", guards)
        go_on = self._loop_over_threads(["any_ = 1;"], (*guards, guard))
        lines += ["for (;;) {", "int any_ = 0;", *made, *go_on, "if (!any_) break;"]
        lines += self._phases(s.body, (*guards, guard))
        step = [f"{axis} += {self._step(s)};"]
        return [*lines, *self._loop_over_threads(step, (*guards, guard)), "}", "}"]

    def _declared(self, s: ir.Stmt) -> list[str]:
        """Names that outlive the loop over the threads, one element for each of them."""
        threads = self._threads
        match s:
            case ir.Let():
                self._each_thread.add(s.name)
                return [f"static {self._type(s.type)} {s.name}[{threads}];"]
            case ir.GroupedReduce():
                return [line for let in s.lets for line in self._declared(let)]
            case ir.Registers():
                self._each_thread.add(s.name)
                self._arrays[s.name] = s
                return [f"static {self._type(s.type)} {s.name}[{threads}]{_sizes(s)};"]
            case ir.Pack():
                self._each_thread.add(s.name)
                return [f"static {ctype(s.type)} {s.name}[{threads}][{len(s.values)}];"]
            case ir.LetPointer():
                self._each_thread.add(s.name)
                return [f"static {self._pointer(s, f'{s.name}[{threads}]')};"]
            case ir.TransposeTile():
                self._tiles[s.name] = s.columns
                return [f"{ctype(s.dtype)} *{s.name} = (void *)({self._of(s.place)});"]
        return []

    def _pointer(self, s: ir.LetPointer, name: str) -> str:
        """The declaration of a pointer to elements, or to rows of so many."""
        row = "" if s.row is None else f"[{s.row}]"
        return f"{self._type(s.type)} (*{name}){row}"

    # ---- what threads do together

    def _reduction(self, s: ir.Let, guards: tuple[str, ...]) -> list[str]:
        """A value that threads have together: what they give, their sum, what they make of it."""
        given = next(iter(_reduces(s.value)), None)
        if given is None:
            lines = self._declared(s)
            return lines + self._loop_over_threads(self._statement(s, True), guards)
        kind, threads = self._type(given.reducer), self._threads
        together = given.threads * (given.blocks if isinstance(given, ir.BlockReduce) else 1)
        name = f"{s.name}_given"
        both = f"combine_{self._name(given.reducer)}({name}[first_], {name}[first_ + i_])"
        lines = ["", f"static {kind} {name}[{threads}];", *self._declared(s)]
        give = f"{name}[thread_] = {self._of(given.value)};"
        lines += self._loop_over_threads([give], guards)
        lines += [
            f"for (int first_ = 0; first_ < {threads}; first_ += {together})",
            f"for (int i_ = 1; i_ < {together}; ++i_) {name}[first_] = {both};",
        ]
        self._given = (given, f"{name}[thread_ / {together} * {together}]")
        lines += self._loop_over_threads([f"{s.name}[thread_] = {self._of(s.value)};"], guards)
        return lines

    def _stacked(self, s: ir.OuterBlockReduce, guards: tuple[str, ...]) -> list[str]:
        """Threads of a block with one number modulo `groups` have rows in common."""
        held = self._arrays[s.accumulators]
        many = bool(held.sizes)
        at = ".at[v_]" if isinstance(held.type, ir.ReducerLanes) else "[v_]" if many else ""
        own, other = (f"{s.accumulators}[{t}]{at}" for t in ("thread_", "thread_ + i_"))
        first = f"{s.accumulators}[thread_ / {s.threads} * {s.threads} + thread_ % {s.groups}]{at}"
        both = f"combine_{self._name(s.reducer)}({own}, {other})"
        is_first = f"thread_ % {s.threads} < {s.groups}"
        rest = f"i_ = {s.groups}; i_ < {s.threads}; i_ += {s.groups}"
        each = f"for (int v_ = 0; v_ < {s.vector}; ++v_)"
        add = f"{each} for (int {rest}) {own} = {both};"
        lines = self._loop_over_threads([add], (*guards, is_first))
        return lines + self._loop_over_threads([f"{each} {own} = {first};"], guards)

    def _scan(self, s: ir.BlockScan, guards: tuple[str, ...]) -> list[str]:
        """What comes before each thread of a row, one after the other."""
        self._each_thread.add(s.name)
        running, kind = self._of(ir.Var(s.running)), self._type(s.reducer)
        whole = running.replace("[thread_]", "[first_ + i_]")
        name, both = f"{s.name}_given", f"combine_{self._name(s.reducer)}"
        lines = [f"static {kind} {name}[{self._threads}], {s.name}[{self._threads}];"]
        give = f"{name}[thread_] = {self._of(s.value)};"
        lines += self._loop_over_threads([give], guards)
        return [
            *lines,
            f"for (int first_ = 0; first_ < {self._threads}; first_ += {s.threads}) {{",
            f"{kind} all_ = {running.replace('[thread_]', '[first_]')};",
            f"for (int i_ = 0; i_ < {s.threads}; ++i_) {{ {s.name}[first_ + i_] = all_;",
            f"all_ = {both}(all_, {name}[first_ + i_]); }}",
            f"for (int i_ = 0; i_ < {s.threads}; ++i_) {whole} = all_;",
            "}",
        ]

    # ---- statements

    def _lines(self, body: ir.Body, outer: bool = False) -> list[str]:
        """`outer`: names are declared already."""
        return [line for s in body for line in self._statement(s, outer)]

    def _block(self, head: str, body: ir.Body) -> list[str]:
        with self._names():
            return [head, *self._lines(body), "}"]

    @contextmanager
    def _names(self) -> Iterator[None]:
        """A scope, at whose end names mean what they meant before."""
        each_thread, arrays = set(self._each_thread), dict(self._arrays)
        try:
            yield
        finally:
            self._each_thread, self._arrays = each_thread, arrays

    def _statement(self, s: ir.Stmt, outer: bool) -> list[str]:
        match s:
            case ir.Comment() | ir.Shared() | ir.TransposeTile() | ir.Prefetch() | ir.LoadFence():
                return []
            case ir.ClusterArrive() | ir.AsyncCopies() | ir.AwaitCopies():
                return []
            case ir.CopyAsync():
                place, source = self._of(s.place), self._of(s.source)
                shared = self._of(ir.Var("smem"))
                size = f"{s.width} * sizeof(*({source}))"
                return [f"memcpy({shared} + {place}, {source}, {size});"]
            case ir.Flip():
                return [f"{self._of(ir.Var(s.name))} ^= 1;"]
            case ir.Let():
                value = self._of(s.value)
                if outer:
                    return [f"{s.name}[thread_] = {value};"]
                self._each_thread.discard(s.name)
                return [f"{self._type(s.type)} {s.name} = {value};"]
            case ir.GroupedReduce():
                return self._lines(s.lets, outer)
            case ir.Registers():
                declared = []
                if not outer:
                    self._each_thread.discard(s.name)
                    self._arrays[s.name] = s
                    declared = [f"{self._type(s.type)} {s.name}{_sizes(s)};"]
                place, fill = self._of(ir.Var(s.name)), 0 if s.zeroed else 255
                return [*declared, f"memset(&{place}, {fill}, sizeof {place});"]
            case ir.Pack():
                values = ", ".join(map(self._of, s.values))
                made = f"({ctype(s.type)}[]){{{values}}}"
                if outer:
                    place = f"{s.name}[thread_]"
                    return [f"memcpy({place}, {made}, sizeof {place});"]
                self._each_thread.discard(s.name)
                return [f"{ctype(s.type)} {s.name}[] = {{{values}}};"]
            case ir.LetPointer():
                place = self._of(s.place)
                if outer:
                    return [f"{s.name}[thread_] = (void *)({place});"]
                self._each_thread.discard(s.name)
                return [f"{self._pointer(s, s.name)} = (void *)({place});"]
            case ir.SetLane():
                lanes, lane = self._of(s.lanes), self._of(s.lane)
                return [f"{lanes}.at[{lane}] = {self._of(s.value)};"]
            case ir.Assign():
                return [f"{self._of(s.target)} = {self._of(s.value)};"]
            case ir.VectorLoad():
                target, place = self._of(s.target), self._of(s.address)
                return [f"for (int i_ = 0; i_ < {s.width}; ++i_) {target}[i_] = ({place})[i_];"]
            case ir.Unpack():
                target = self._of(s.target)
                return [f"memcpy({target}, &{self._of(s.words)}, sizeof({target}));"]
            case ir.PickLanes():
                source, target = self._of(s.source), self._of(s.target)
                return [
                    f"{target}[{lane}] = {source}[{pick}];"
                    for lane, pick in enumerate(s.picks)
                    if pick is not None
                ]
            case ir.VectorStore():
                source, place = self._of(s.source), self._of(s.address)
                return [f"for (int i_ = 0; i_ < {s.width}; ++i_) ({place})[i_] = {source}[i_];"]
            case ir.If():
                tests = " && ".join(map(self._of, s.tests))
                lines = self._block(f"if ({tests}) {{", s.body)
                return lines + (self._block("else {", s.otherwise) if s.otherwise else [])
            case ir.Loop():
                with self._names():
                    return [self._loop_head(s), *self._lines(s.body), "}"]
            case ir.Scope():
                return self._block("{", s.body)
            case ir.TileStore():
                row, column, source = map(self._of, (s.row, s.column, s.source))
                inner = f"sizeof *{source} / sizeof **{source}"
                place = f"({row} + w_) * {self._tiles[s.tile]} + {column} + n_"
                return [
                    f"for (int n_ = 0; n_ < {s.depth}; ++n_)",
                    f"for (int w_ = 0; w_ < (int)({inner}); ++w_)",
                    f"{s.tile}[{place}] = {source}[n_][w_];",
                ]
            case ir.TileLoad():
                row, column, target = map(self._of, (s.row, s.column, s.target))
                place = f"({row}) * {self._tiles[s.tile]} + {column} + v_"
                return [
                    f"for (int v_ = 0; v_ < {s.vector}; ++v_) {target}[v_] = {s.tile}[{place}];"
                ]
        raise Unprintable(f"no C for {type(s).__name__}")

    def _loop_head(self, s: ir.Loop) -> str:
        first, end = self._of(s.begin), self._of(s.end)
        self._each_thread.discard(s.axis)
        axis = s.axis
        return (
            f"for ({ctype(s.type)} {axis} = {first}; {axis} < {end}; {axis} += {self._step(s)}) {{"
        )

    def _step(self, s: ir.Loop) -> int:
        return s.step if isinstance(s.step, int) else self._kernel.blocks


def text_of(kernels: Sequence[ir.KernelIR], names: Sequence[str]) -> str:
    """One C program of several kernels, each a function of its name."""
    texts, needed = [], dict[ir.Reducer, None]()
    for kernel, name in zip(kernels, names, strict=True):
        text, found = SequentialC(kernel).text(name)
        texts.append(text)
        needed |= dict.fromkeys(found)
    types = dict.fromkeys(map(reducers.type_text, needed))
    functions = dict.fromkeys(map(reducers.functions, needed))
    return "".join([PRELUDE, *types, *functions, *texts])


def _sizes(s: ir.Registers) -> str:
    """Of an array: paired lanes are in the order of memory where each is widened by itself."""
    lanes = (s.type.lanes,) if isinstance(s.type, ir.PairedLanes) else ()
    return "".join(f"[{n}]" for n in (*s.sizes, *lanes))


def _parts(found: object) -> Iterator[object]:
    """A statement or an expression, and all that it is made of."""
    yield found
    if isinstance(found, tuple):
        for each in found:
            yield from _parts(each)
    else:
        for _, part in ir.fields_of(found):
            yield from _parts(part)


def _flat(body: ir.Body) -> ir.Body:
    """A body without scopes in which the blocks of a cluster wait for each other."""
    found: list[ir.Stmt] = []
    for s in body:
        waits = any(isinstance(p, ir.ClusterWait) for p in _parts(s))
        found += s.body if isinstance(s, ir.Scope) and waits else [s]
    return tuple(found)


def _between(waits: tuple[type, ...], body: ir.Body) -> Iterator[ir.Body]:
    """What blocks do before and after they wait for each other: names stay, but arrays and what was
    folded do not.
    """
    names: list[ir.Stmt] = []
    section: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, waits):
            yield tuple(section)
            section = list(names)
            continue
        section.append(s)
        if isinstance(s, (ir.Let, ir.LetPointer)) and not _reduces(s):
            names.append(s)
    yield tuple(section)


def _reduces(found: object) -> list[ir.WarpReduce | ir.BlockReduce]:
    return [p for p in _parts(found) if isinstance(p, (ir.WarpReduce, ir.BlockReduce))]


def _waits(s: ir.Stmt) -> bool:
    """Whether a thread waits for others in a statement."""
    waits = (ir.Barrier, ir.ClusterWait, ir.OuterBlockReduce, ir.BlockScan)
    return bool(_reduces(s)) or any(isinstance(p, waits) for p in _parts(s))
