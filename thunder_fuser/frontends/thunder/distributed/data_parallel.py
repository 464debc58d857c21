"""Data parallel training (Thunder's `ddp` and `fsdp`): gradient buckets, overlap of collectives.

Thunder divides every gradient by the number of processes and reduces it, one after the other after
the whole backward; bucket size and FSDP's strategies have no effect in its joint traces. Here

- gradients share a bucket: one kernel divides and concatenates them, one collective reduces them,
  and the returned gradients are views of its result;
- a bucket's reduction starts as soon as its last gradient is computed, and is waited for after the
  backward;
- FSDP gathers parameters in the order in which they are read. The wait is right before the first
  reader, or, if that is fused, before the run of fused symbols: a kernel is not cut in two for a
  wait. ZeRO-3 gathers them again in the backward, with a bounded prefetch distance (`_AHEAD`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Number
from typing import Any

import thunder.torch as ltorch
from thunder import clang
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace, tracectx

from thunder_fuser.frontends.thunder.distributed.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    NAMED_WAIT,
    REDUCE_SCATTER,
    Collective,
    begin_of,
    collectives,
    made_at,
    register,
    renamed,
    written,
)
from thunder_fuser.frontends.thunder.distributed.gather_again import with_gathers_again

__all__ = ["register", "scheduled"]

IsFusible = Callable[[BoundSymbol], bool]

_DIVISIONS = ("torch.true_divide", PrimIDs.DIV)
_AHEAD = 2
"""Prefetch distance of ZeRO-3's gathers: parameters, or buckets of them, ahead of the one read."""
_MOST = 32
"""Most gradients in a bucket: one kernel reads them all."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Data parallel settings of the user.

    bucket         most bytes of a bucket of gradients; 0 for one bucket per gradient
    bucket_of      maps a parameter to its bucket's name; None if buckets are formed by size
    gathers_again  True if the backward gathers parameters again (ZeRO-3)
    """

    bucket: float = 0
    bucket_of: Callable[[TensorProxy], str] | None = None
    gathers_again: bool = False


def settings() -> Settings | None:
    """Return the settings of the module that is being compiled; None if it is not data parallel."""
    data = get_compile_data()
    module: Any = None if data is None else data.fn
    if getattr(module, "use_ddp", False):
        return Settings(bucket=getattr(module, "bucket_size_in_mb", 25.0) * 2**20)
    if getattr(module, "use_fsdp", False):
        from thunder.distributed import (
            FSDPBucketingStrategy,
            FSDPType,
            get_extract_bucket_name_from_tensor_proxy,
            get_skip_data_parallel_grad_sync,
        )

        if get_skip_data_parallel_grad_sync():
            warnings.warn(
                "no_sync of FSDP: this Thunder returns no gradients under it, with any executor; "
                "leave it out, or accumulate with DDP",
                UserWarning,
                stacklevel=2,
            )

        strategy = module.bucketing_strategy
        is_none = strategy is FSDPBucketingStrategy.NONE
        return Settings(
            bucket=0 if is_none else math.inf,
            bucket_of=None if is_none else get_extract_bucket_name_from_tensor_proxy(strategy),
            gathers_again=module.sharding_strategy is FSDPType.ZERO3,
        )
    return None


def scheduled(trace: TraceCtx, is_fusible: IsFusible, operations: Mapping[str, Symbol]) -> TraceCtx:
    """Return the joint trace with bucketed collectives that start early and are waited for late;
    the same object if the module is not data parallel. `operations`: the executor's, by name.
    """
    asked = settings()
    if asked is None:
        return trace
    if asked.gathers_again:
        trace = with_gathers_again(trace)
    units = _Units(trace, asked, is_fusible, operations[NAMED_WAIT])
    units.reduce_gradients()
    units.gather_parameters()
    return units.finish()


@dataclass(frozen=True, slots=True)
class _Average:
    """A gradient that is averaged over processes.

    divided   position of the division by the number of processes
    made      position of the symbol that computes it
    """

    collective: Collective
    divide: BoundSymbol
    divided: int
    made: int

    @property
    def gradient(self) -> Any:
        return self.divide.args[0]


def _averages(trace: TraceCtx) -> Iterator[_Average]:
    """Yield the averaged gradients, in the order in which they are computed."""
    symbols = trace.bound_symbols
    made = made_at(symbols)
    readers: dict[str, int] = {}
    for bsym in symbols:
        for name in {p.name for p in bsym.flat_proxy_args}:
            readers[name] = readers.get(name, 0) + 1
    found = []
    for each in collectives(trace, ALL_REDUCE, REDUCE_SCATTER):
        divided = made.get(each.operand.name, -1)
        divide = symbols[divided]
        if (
            divided >= 0
            and divide.sym.id in _DIVISIONS
            and isinstance(divide.args[0], TensorProxy)
            and isinstance(divide.args[1], Number)
            and divide.args[0].dtype == each.operand.dtype
            and readers[each.operand.name] == 1
            and (each.start.sym.id == ALL_REDUCE or not each.start.args[4])
        ):
            found.append(_Average(each, divide, divided, made[divide.args[0].name]))
    return iter(sorted(found, key=lambda average: average.made))


@dataclass
class _Units:
    """Builder of the scheduled trace.

    By position, the symbols inserted before it: those that compute operands of collectives, starts,
    and waits. Operands come first, so that they fuse with the symbols before.

    moved   positions of symbols that were moved or replaced
    """

    trace: TraceCtx
    asked: Settings
    is_fusible: IsFusible
    wait: Symbol
    operands: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    starts: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    waits: dict[int, list[BoundSymbol]] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.symbols: Sequence[BoundSymbol] = self.trace.bound_symbols
        self.new = from_trace(self.trace)

    def finish(self) -> TraceCtx:
        if not self.moved:
            return self.trace
        for k, bsym in enumerate(self.symbols):
            for place in (self.operands, self.starts, self.waits):
                self.new.bound_symbols += place.get(k, ())
            if k not in self.moved:
                self.new.bound_symbols.append(bsym)
        return self.new

    def reduce_gradients(self) -> None:
        buckets = list(self._buckets())
        for bucket in buckets:
            for each in bucket:
                one = each.collective
                self.moved.update((each.divided, one.started, one.awaited))
        backward = begin_of(self.symbols, backward=True)
        for bucket in buckets:
            start, wait = self._reduction(bucket)
            at = max(self._behind(max(each.made for each in bucket)), backward)
            self._start(at, start)
            self._wait(min(each.collective.read for each in bucket), wait)

    def _buckets(self) -> Iterator[list[_Average]]:
        """Return the buckets of gradients, in the order in which they are complete."""
        full: list[list[_Average]] = []
        open_: dict[Hashable, list[_Average]] = {}
        held: dict[Hashable, int] = {}
        names = self._names()
        for each in _averages(self.trace):
            start, gradient = each.collective.start, each.gradient
            key: Hashable = (
                start.sym.id,
                *start.args[1:3],
                gradient.dtype,
                gradient.device,
                each.divide.args[1],
                names.get(each.collective.result.name),
            )
            size = _count(gradient) * gradient.dtype.bytes
            bucket = open_.get(key)
            if bucket is None or held[key] + size > self.asked.bucket or len(bucket) == _MOST:
                full.append(bucket := [])
                open_[key], held[key] = bucket, 0
            bucket.append(each)
            held[key] += size
        return iter(sorted(full, key=lambda bucket: bucket[-1].made))

    def _names(self) -> dict[str, str]:
        """Map names of gradients to the bucket names of their parameters."""
        returned = self.symbols[-1].args[0] if self.symbols[-1].args else None
        if self.asked.bucket_of is None or not isinstance(returned, dict):
            return {}
        return {
            gradient.name: self.asked.bucket_of(parameter)
            for gradient, parameter in zip(returned["output"], returned["flat_args"], strict=False)
            if isinstance(gradient, TensorProxy)
        }

    def _reduction(self, bucket: Sequence[_Average]) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
        """Return the symbols that start the reduction of a bucket, and those that wait for it."""
        first = bucket[0].collective
        op, group = first.start.args[1:3]
        is_whole = first.start.sym.id == ALL_REDUCE
        # The division returns new memory without other readers, unless the divisor is 1.
        last: Any = bucket[0].divide.args[1] != 1 if is_whole else None
        if len(bucket) == 1:
            start = first.start.from_bsym(args=(first.operand, op, group, True, last))
            return [bucket[0].divide, start], [self._awaited(first, "gradient")]
        gradients = [each.gradient for each in bucket]
        rows = 1 if is_whole else group.size()

        def start_all() -> Any:
            side_by_side = _side_by_side(gradients, rows)
            divided = bucket[0].divide.sym(side_by_side, float(bucket[0].divide.args[1]))
            return first.start.sym(divided, op, group, True, last)

        backward = first.is_backward
        future, starts = written(self.new, start_all, backward=backward)
        results = [each.collective.result for each in bucket]
        return starts, self._parts(first, future, results, "gradient", 1)

    def _awaited(self, one: Collective, what: str) -> BoundSymbol:
        """Return the wait for one tensor, with an error text that describes it."""
        words = f"{_kind(one)} of a {what} {list(one.result.shape)}"
        return self.wait.bind(one.start.output, words, output=one.result).from_bsym(
            tags=one.wait.tags
        )

    def _parts(
        self, first: Collective, future: Any, results: Sequence[TensorProxy], what: str, rows: int
    ) -> list[BoundSymbol]:
        """Return the wait for a bucket of `rows` rows, and the symbols that split it into its
        tensors: views if there is one row.
        """
        count = sum(map(_count, results))
        words = f"{_kind(first)} of {len(results)} {what}s, {count:,} elements"

        def parts() -> list[Any]:
            found = _reshaped(
                self.wait(future, words), (rows, count // rows) if rows > 1 else (count,)
            )
            ends = accumulate(_count(t) // rows for t in results)
            return [
                _reshaped(
                    clang.slice_in_dim(found, end - _count(t) // rows, end, dim=int(rows > 1)),
                    t.shape,
                )
                for t, end in zip(results, ends, strict=True)
            ]

        made, waits = written(self.new, parts, backward=first.is_backward)
        names = {new.name: old for new, old in zip(made, results, strict=True)}
        return renamed(waits, names)

    def gather_parameters(self) -> None:
        for backward in (False, True):
            buckets = list(self._gather_buckets(backward=backward))
            for each in (one for bucket in buckets for one in bucket):
                self.moved.update((each.started, each.awaited))
            begin = begin_of(self.symbols, backward=backward)
            awaited = [max(min(map(self._ahead_of, bucket)), begin) for bucket in buckets]
            # Buckets that are waited for at one position are one step.
            steps = sorted(set(awaited))
            for at, bucket in sorted(zip(awaited, buckets, strict=True), key=lambda pair: pair[0]):
                step = steps.index(at) - _AHEAD
                starts, waits = self._gathered(bucket)
                is_held_back = self.asked.gathers_again and step >= 0
                self._start(steps[step] if is_held_back else begin, starts)
                self._wait(at, waits)

    def _gather_buckets(self, *, backward: bool) -> Iterator[list[Collective]]:
        """Return buckets of parameter gathers: all-gathers of arguments along dimension 0."""
        made = made_at(self.symbols)
        found: dict[Hashable, list[Collective]] = {}
        for each in collectives(self.trace, ALL_GATHER):
            operand, group, _, dim = each.start.args
            is_argument = self.symbols[made[operand.name]].sym.id is PrimIDs.UNPACK_TRIVIAL
            if each.is_backward is not backward or not is_argument or dim:
                continue
            name = operand.name if self.asked.bucket_of is None else self.asked.bucket_of(operand)
            key = name, group, operand.dtype, operand.device
            found.setdefault(key, []).append(each)
        return iter(found.values())

    def _gathered(
        self, bucket: Sequence[Collective]
    ) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
        """Return the symbols that start the gather of a bucket, and those that wait for it."""
        first = bucket[0]
        if len(bucket) == 1:
            return [first.start], [self._awaited(first, "parameter")]
        group = first.start.args[1]
        # Thunder changes the shape of a parameter's proxy, but not its number of elements.
        with tracectx(TraceCtx(None)):
            shards = [each.operand.replace(shape=each.operand.shape) for each in bucket]
        backward = first.is_backward
        future, starts = written(
            self.new,
            lambda: first.start.sym(_side_by_side(shards, 1), group, True, None),
            backward=backward,
        )
        results = [each.result for each in bucket]
        return starts, self._parts(first, future, results, "parameter", group.size())

    def _behind(self, position: int) -> int:
        """Return the first position after a symbol that does not cut a run of fusible symbols."""
        position += 1
        if self.is_fusible(self.symbols[position - 1]):
            while position in self.moved or self.is_fusible(self.symbols[position]):
                position += 1
        return position

    def _ahead_of(self, gather: Collective) -> int:
        """Return the last position before the reader that does not cut a run of fusible symbols."""
        position = gather.read
        if self.is_fusible(self.symbols[position]):
            while position - 1 in self.moved or self.is_fusible(self.symbols[position - 1]):
                position -= 1
        return position

    def _start(self, at: int, symbols: Sequence[BoundSymbol]) -> None:
        *operands, start = symbols
        self.operands.setdefault(at, []).extend(operands)
        self.starts.setdefault(at, []).append(start)

    def _wait(self, at: int, symbols: Sequence[BoundSymbol]) -> None:
        self.waits.setdefault(at, []).extend(symbols)


def _side_by_side(tensors: Sequence[TensorProxy], rows: int) -> Any:
    """Concatenate tensors into `rows` rows, each with the row's equal part of every tensor."""
    if rows == 1:
        return ltorch.cat([_reshaped(t, (_count(t),)) for t in tensors])
    return ltorch.cat([_reshaped(t, (rows, _count(t) // rows)) for t in tensors], 1)


def _kind(one: Collective) -> str:
    return str(one.start.sym.name).removeprefix("torch_").removesuffix("_prim_impl")


def _count(tensor: TensorProxy) -> int:
    return math.prod(tensor.shape)


def _reshaped(tensor: Any, shape: Sequence[int]) -> Any:
    return tensor if tuple(tensor.shape) == tuple(shape) else ltorch.reshape(tensor, tuple(shape))
