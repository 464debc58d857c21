"""Kernel IR as plain C that one thread runs: a second printer, of another language, for tests.

Blocks and threads are loops. A barrier ends the loop over the threads and begins another; names
that live on become arrays with an element a thread. Blocks that fold rows together are one loop
over all of their threads. Numbers are those of C and no header of
csrc_templates is used, so that what it computes is what the statements mean, and no more.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.lower import kernel_ir as ir

_CTYPES = {
    DataType.Float: "float",
    DataType.Double: "double",
    DataType.BFloat16: "bf16",
    DataType.Bool: "_Bool",
    DataType.Int32: "int",
    DataType.Int: "long long",
}
_OPERATIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "relu": "({0} > 0 ? {0} : 0)",
    "exp": "expf({0})",
    "sin": "sinf({0})",
    "cos": "cosf({0})",
    "tanh": "tanhf({0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "1.0f / sqrtf({0})",
    "where": "({0} ? {1} : {2})",
    "gt": "{0} > {1}",
}
_COMBINED = {"sum": "{0} + {1}", "max": "({0} > {1} ? {0} : {1})"}
_STARTS = {"sum": "0", "max": "-INFINITY"}
_PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef uint16_t bf16;
typedef struct { unsigned char bytes[16]; } fetched;
static fetched fetch(const void *place, size_t bytes) {
  fetched words;
  memcpy(&words, place, bytes);
  return words;
}
static float wide(bf16 h) {
  uint32_t w = (uint32_t)h << 16;
  float f;
  memcpy(&f, &w, 4);
  return f;
}
static bf16 narrow(float f) {
  uint32_t w;
  memcpy(&w, &f, 4);
  return (bf16)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}
"""


def run(kernel: ir.KernelIR, tensors: Mapping[TensorView, torch.Tensor], folder: Path) -> None:
    """Run a kernel on tensors for those that it is bound to."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "no compiler: neither $CXX, g++ nor clang++"
    source, library = folder / "kernel.c", folder / "kernel.so"
    source.write_text(SequentialC(kernel).text())
    flags = ["-x", "c", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
    command = [*compiler.split(), *flags, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    scratch: list[torch.Tensor] = []
    arguments: list[ctypes.c_void_p] = []
    for p in kernel.parameters:
        if isinstance(p.bound, ir.Scratch):
            scratch.append(torch.zeros(p.bound.bytes, dtype=torch.uint8))
            arguments.append(ctypes.c_void_p(scratch[-1].data_ptr()))
        else:
            assert isinstance(p.bound, TensorView), "numbers are not passed here"
            arguments.append(ctypes.c_void_p(tensors[p.bound].data_ptr()))
    ctypes.CDLL(str(library)).run(*arguments)


def _sizes(s: ir.Registers) -> tuple[int, ...]:
    """Of an array: paired lanes are in the order of memory where each is widened by itself."""
    return (*s.sizes, s.type.lanes) if isinstance(s.type, ir.PairedLanes) else s.sizes


class SequentialC:
    """The C text of one kernel."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self._kernel = kernel
        folds = any(isinstance(e, ir.BlockReduce) and e.blocks > 1 for e in _reduces(kernel.body))
        self._together = kernel.cluster if folds else 1
        self._threads = kernel.threads * self._together
        self._shared_bytes = -(-max(kernel.shared_bytes, 1) // 16) * 16
        self._each_thread: set[str] = set()
        self._tiles: dict[str, int] = {}

    def text(self) -> str:
        kernel = self._kernel
        names = ", ".join(
            f"{_CTYPES[p.dtype] if p.dtype else 'unsigned char'} *{p.name}"
            for p in kernel.parameters
        )
        shared = self._shared_bytes * (kernel.blocks if kernel.cluster > 1 else 1)
        head = f"for (int block_ = 0; block_ < {kernel.blocks}; block_ += {self._together}) {{"
        lines = [f"{_PRELUDE}static _Alignas(16) unsigned char smem[{shared}];"]
        lines.append(f"void run({names}) {{")
        waits = (ir.GridBarrier,) if self._together > 1 else (ir.GridBarrier, ir.ClusterWait)
        for section in _between(waits, _flat(kernel.body)):
            lines += [head, *self._phases(section, ()), "}"]
        return "\n".join([*lines, "}", ""])

    # ---- threads

    def _phases(self, body: ir.Body, guards: tuple[ir.Expr, ...]) -> list[str]:
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
            match s:
                case ir.If() if _mentions(s.tests, ir.LaunchIndex.THREAD):
                    assert not s.otherwise
                    lines += self._phases(s.body, (*guards, *s.tests))
                case ir.If():
                    tests = " && ".join(map(self._of, s.tests))
                    lines += [f"if ({tests}) {{", *self._phases(s.body, guards), "} else {"]
                    lines += [*self._phases(s.otherwise, guards), "}"]
                case ir.Let():
                    lines += self._reduction(s, guards)
                case ir.ReduceTogether():
                    for let in s.lets:
                        lines += self._reduction(let, guards)
                case ir.Scope():
                    lines += ["{", *self._phases(s.body, guards), "}"]
                case ir.Loop():
                    # As often for all threads as for the first.
                    inside = self._phases(s.body, guards)
                    lines += ["{ const int thread_ = 0;", self._loop_head(s), *inside, "}}"]
                case ir.Barrier() | ir.ClusterWait():
                    pass
                case _:
                    raise NotImplementedError(f"no C for a {type(s).__name__} that waits")
        end()
        return lines

    def _loop_over_threads(self, lines: Sequence[str], guards: Sequence[ir.Expr]) -> list[str]:
        tests = "".join(f"if ({self._of(g)}) " for g in guards)
        head = f"for (int thread_ = 0; thread_ < {self._threads}; ++thread_) {tests}{{"
        return [head, *lines, "}"]

    def _declared(self, s: ir.Stmt) -> list[str]:
        """Names that outlive the loop over the threads, one element for each of them."""
        threads = self._threads
        match s:
            case ir.Let():
                self._each_thread.add(s.name)
                return [f"static {self._type(s.type)} {s.name}[{threads}];"]
            case ir.ReduceTogether():
                return [line for let in s.lets for line in self._declared(let)]
            case ir.Registers():
                self._each_thread.add(s.name)
                sizes = "".join(f"[{n}]" for n in _sizes(s))
                return [f"static {self._type(s.type)} {s.name}[{threads}]{sizes};"]
            case ir.LetPointer():
                self._each_thread.add(s.name)
                return [f"static {self._type(s.type)} *{s.name}[{threads}];"]
            case ir.TransposeTile():
                self._tiles[s.name] = s.columns
                return [f"{_CTYPES[s.dtype]} *{s.name} = (void *)({self._of(s.place)});"]
        return []

    def _reduction(self, s: ir.Let, guards: tuple[ir.Expr, ...]) -> list[str]:
        """A value that threads have together: what they give, their sum, what they make of it."""
        (given,) = _reduces(s.value)
        ctype, threads = self._type(given.reducer), self._threads
        together = given.threads * (given.blocks if isinstance(given, ir.BlockReduce) else 1)
        name = f"{s.name}_given"
        both = _COMBINED[given.reducer.op].format(f"{name}[first_]", f"{name}[first_ + i_]")
        lines = [f"static {ctype} {name}[{threads}];", *self._declared(s)]
        give = f"{name}[thread_] = {self._of(given.value)};"
        lines += self._loop_over_threads([give], guards)
        lines += [
            f"for (int first_ = 0; first_ < {threads}; first_ += {together})",
            f"for (int i_ = 1; i_ < {together}; ++i_) {name}[first_] = {both};",
        ]
        self._given = (given, f"{name}[thread_ / {together} * {together}]")
        lines += self._loop_over_threads([f"{s.name}[thread_] = {self._of(s.value)};"], guards)
        return lines

    # ---- statements

    def _lines(self, body: ir.Body, outer: bool = False) -> list[str]:
        """`outer`: names are declared already."""
        return [line for s in body for line in self._statement(s, outer)]

    def _statement(self, s: ir.Stmt, outer: bool) -> list[str]:
        match s:
            case ir.Comment() | ir.Shared() | ir.TransposeTile() | ir.Prefetch() | ir.Issued():
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
            case ir.ReduceTogether():
                return self._lines(s.lets, outer)
            case ir.Registers():
                if outer:
                    zero = f"memset({s.name}[thread_], 0, sizeof {s.name}[thread_]);"
                    return [zero] if s.zeroed and s.sizes else []
                self._each_thread.discard(s.name)
                sizes = "".join(f"[{n}]" for n in _sizes(s))
                return [f"{self._type(s.type)} {s.name}{sizes}{' = {0}' if s.zeroed else ''};"]
            case ir.Pack():
                values = ", ".join(map(self._of, s.values))
                return [f"{_CTYPES[s.type]} {s.name}[] = {{{values}}};"]
            case ir.LetPointer():
                ctype, place = self._type(s.type), self._of(s.place)
                if outer:
                    return [f"{s.name}[thread_] = (void *)({place});"]
                self._each_thread.discard(s.name)
                return [f"{ctype} *{s.name} = (void *)({place});"]
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
                lines = [f"if ({tests}) {{", *self._lines(s.body), "}"]
                other = ["else {", *self._lines(s.otherwise), "}"] if s.otherwise else []
                return lines + other
            case ir.Loop():
                return [self._loop_head(s), *self._lines(s.body), "}"]
            case ir.Scope():
                return ["{", *self._lines(s.body), "}"]
            case ir.TilePut():
                row, column, source = map(self._of, (s.row, s.column, s.source))
                inner = f"sizeof *{source} / sizeof **{source}"
                place = f"({row} + w_) * {self._tiles[s.tile]} + {column} + n_"
                return [
                    f"for (int n_ = 0; n_ < {s.depth}; ++n_)",
                    f"for (int w_ = 0; w_ < (int)({inner}); ++w_)",
                    f"{s.tile}[{place}] = {source}[n_][w_];",
                ]
            case ir.TileGet():
                row, column, target = map(self._of, (s.row, s.column, s.target))
                place = f"({row}) * {self._tiles[s.tile]} + {column} + v_"
                return [
                    f"for (int v_ = 0; v_ < {s.vector}; ++v_) {target}[v_] = {s.tile}[{place}];"
                ]
        raise NotImplementedError(f"no C for {type(s).__name__}")

    def _loop_head(self, s: ir.Loop) -> str:
        first, end = self._of(s.begin), self._of(s.end)
        step = s.step if isinstance(s.step, int) else self._kernel.blocks
        self._each_thread.discard(s.axis)
        return (
            f"for ({_CTYPES[s.type]} {s.axis} = {first}; {s.axis} < {end}; {s.axis} += {step}) {{"
        )

    # ---- expressions

    def _type(self, found: ir.Type) -> str:
        if isinstance(found, ir.Reducer):
            return _CTYPES[found.element]
        if isinstance(found, ir.PairedLanes):
            return _CTYPES[found.dtype]
        if isinstance(found, ir.Fetch):
            return "fetched"
        assert isinstance(found, DataType), found
        return _CTYPES[found]

    def _of(self, e: ir.Expr) -> str:
        return self._TEXTS[type(e)](self, e)

    def _var(self, e: ir.Var) -> str:
        if e.name == "smem" and self._kernel.cluster > 1:
            return f"(smem + {self._of(ir.LaunchIndex.BLOCK)} * {self._shared_bytes})"
        return f"{e.name}[thread_]" if e.name in self._each_thread else e.name

    def _fetched(self, e: ir.Fetched) -> str:
        place = self._of(e.address)
        return f"fetch({place}, {e.width} * sizeof(*({place})))"

    def _literal(self, e: ir.Literal) -> str:
        if e.dtype is DataType.BFloat16:
            return f"narrow({float(e.value)!r})"  # type: ignore[arg-type]
        if e.dtype.is_floating:
            return f"({_CTYPES[e.dtype]}){float(e.value)!r}"  # type: ignore[arg-type]
        return f"({int(e.value)})"  # type: ignore[arg-type]

    def _convert(self, e: ir.Convert) -> str:
        text = self._of(e.value)
        wide = f"wide({text})" if e.source is DataType.BFloat16 else f"({text})"
        if e.dtype is DataType.Bool:
            return f"({wide} != 0)"
        if e.dtype is DataType.BFloat16:
            return f"narrow({wide})"
        return f"({_CTYPES[e.dtype]}){wide}"

    def _reduced(self, e: ir.WarpReduce | ir.BlockReduce) -> str:
        reduce, text = self._given
        assert reduce is e, "one reduction a statement"
        return text

    def _launch_index(self, e: ir.LaunchIndex) -> str:
        threads = self._kernel.threads
        if self._together == 1 or e is ir.LaunchIndex.BLOCKS:
            return f"{e.value}_"
        is_block = e is ir.LaunchIndex.BLOCK
        return f"(block_ + thread_ / {threads})" if is_block else f"(thread_ % {threads})"

    def _mapped_rank(self, e: ir.MappedRank) -> str:
        place, rank = self._of(e.address), self._of(e.rank)
        blocks = f"{rank} - {self._of(ir.LaunchIndex.BLOCK)} % {self._kernel.cluster}"
        return f"((__typeof__({place}))((char *)({place}) + ({blocks}) * {self._shared_bytes}))"

    def _binary(self, e: ir.Binary | ir.UnsignedBinary) -> str:
        return f"({self._of(e.left)} {e.op} {self._of(e.right)})"

    def _combine_parts(self, e: ir.CombineParts) -> str:
        part = f"{self._of(e.parts)}[i_ * {e.stride} + {self._of(e.point)}]"
        both, ctype = _COMBINED[e.reducer.op].format("all_", part), self._type(e.reducer)
        loop = f"for (int i_ = 0; i_ < {e.count}; ++i_) all_ = {both};"
        return f"({{ {ctype} all_ = {_STARTS[e.reducer.op]}; {loop} all_; }})"

    def _combine(self, op: str, left: ir.Expr, right: ir.Expr) -> str:
        return "(" + _COMBINED[op].format(self._of(left), self._of(right)) + ")"

    _TEXTS: ClassVar[dict[type, Callable[[SequentialC, Any], str]]] = {
        ir.LaunchIndex: _launch_index,
        ir.Var: _var,
        ir.Int: lambda s, e: f"({e.value})" if e.value < 0 else str(e.value),
        ir.HiddenZero: lambda s, e: "0",
        ir.Binary: _binary,
        ir.UnsignedBinary: _binary,
        ir.Negative: lambda s, e: f"(-{s._of(e.value)})",
        ir.Min: lambda s, e: (
            f"({s._of(e.left)} < {s._of(e.right)} ? {s._of(e.left)} : {s._of(e.right)})"
        ),
        ir.Advanced: lambda s, e: (
            f"({s._of(e.bound)} - {s._of(e.start)} > {e.step} ? {s._of(e.start)} + {e.step} : "
            f"{s._of(e.bound)})"
        ),
        ir.IntCast: lambda s, e: f"({_CTYPES[e.dtype]})({s._of(e.value)})",
        ir.IndexNumber: lambda s, e: f"(long long)({s._of(e.index)})",
        ir.All: lambda s, e: "(" + " && ".join(map(s._of, e.tests)) + ")",
        ir.Either: lambda s, e: "(" + " || ".join(map(s._of, e.tests)) + ")",
        ir.Truth: lambda s, e: str(int(e.value)),
        ir.Select: lambda s, e: f"({s._of(e.test)} ? {s._of(e.inside)} : {s._of(e.outside)})",
        ir.Element: lambda s, e: f"{s._of(e.base)}[{s._of(e.index)}]",
        ir.Address: lambda s, e: f"({s._of(e.pointer)} + {s._of(e.index)})",
        ir.Reinterpret: lambda s, e: f"(({s._type(e.type)} *)({s._of(e.address)}))",
        ir.Fetched: _fetched,
        ir.Literal: _literal,
        ir.Convert: _convert,
        ir.Round: lambda s, e: f"wide(narrow({s._of(e.value)}))",
        ir.Narrow: lambda s, e: f"narrow({s._of(e.value)})",
        ir.Apply: lambda s, e: f"({_OPERATIONS[e.op].format(*map(s._of, e.operands))})",
        ir.DivideByConstant: lambda s, e: f"({s._of(e.value)} * {e.high + e.low!r}f)",
        ir.Start: lambda s, e: _STARTS[e.reducer.op],
        ir.Take: lambda s, e: s._combine(e.reducer.op, e.accumulator, e.element),
        ir.Combine: lambda s, e: s._combine(e.reducer.op, e.left, e.right),
        ir.CombineParts: _combine_parts,
        ir.Finish: lambda s, e: s._of(e.accumulator),
        ir.WarpReduce: _reduced,
        ir.BlockReduce: _reduced,
        ir.MappedRank: _mapped_rank,
    }


def _parts(found: object) -> Iterator[object]:
    """A statement or an expression, and all that it is made of."""
    yield found
    if isinstance(found, tuple):
        for each in found:
            yield from _parts(each)
    elif hasattr(found, "__dataclass_fields__") and type(found).__module__ == ir.__name__:
        for name in found.__dataclass_fields__:
            yield from _parts(getattr(found, name))


def _flat(body: ir.Body) -> ir.Body:
    """A body without scopes in which the blocks of a cluster wait for each other."""
    found: list[ir.Stmt] = []
    for s in body:
        waits = any(isinstance(p, ir.ClusterWait) for p in _parts(s))
        found += s.body if isinstance(s, ir.Scope) and waits else [s]
    return tuple(found)


def _between(waits: tuple[type, ...], body: ir.Body) -> Iterator[ir.Body]:
    """What blocks do before and after they wait for each other: names stay, arrays do not."""
    names: list[ir.Stmt] = []
    section: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, waits):
            yield tuple(section)
            section = list(names)
            continue
        section.append(s)
        if isinstance(s, (ir.Let, ir.LetPointer)):
            names.append(s)
    yield tuple(section)


def _reduces(found: object) -> list[ir.WarpReduce | ir.BlockReduce]:
    return [p for p in _parts(found) if isinstance(p, (ir.WarpReduce, ir.BlockReduce))]


def _waits(s: ir.Stmt) -> bool:
    """Whether a thread waits for others in a statement."""
    return bool(_reduces(s)) or any(isinstance(p, (ir.Barrier, ir.ClusterWait)) for p in _parts(s))


def _mentions(tests: Sequence[ir.Expr], index: ir.LaunchIndex) -> bool:
    return any(part is index for part in _parts(tuple(tests)))
