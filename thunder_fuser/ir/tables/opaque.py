"""The table of opaque calls, which torch executes: matrix products, attention, convolutions, sorts,
and writes at data-dependent indices.

A row is a torch call and its properties for planning. The call is a Python function: its tensor
parameters are the operands, the others are attributes, which are constants of the program.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.dtypes import Category, DataType
from thunder_fuser.ir.tables import collectives, torch_calls
from thunder_fuser.ir.tables.indexing import INDEX_DTYPES

Attribute = int | float | bool | None | DataType | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shaped:
    """Shape, dtype and memory order of an operand or result.

    order  dimensions in memory order, outermost first; row-major if empty
    """

    shape: tuple[Extent, ...]
    dtype: DataType
    order: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)


Operands = Mapping[str, Shaped]
Attributes = Mapping[str, Any]
Results = tuple[Shaped, ...]
Place = tuple[str, int]
"""(operand, dimension); the dimension counts from the end if negative."""


class Answer(enum.Enum):
    """Error propagation: how a result's error follows from those of the operands."""

    LINEAR = "linear in each operand: sums of products, or of elements"
    CHOICE = "operands' elements or their places, chosen by comparing them"
    OTHER = "nothing is said"


class Order(enum.Enum):
    """Calls that run in program order, and are never one call though they are equal."""

    COLLECTIVES = "all devices must start them in one order, or wait for each other for ever"
    DRAWS = "each takes the next numbers of torch's generator"


def _nothing(_o: Operands, _a: Attributes) -> int:
    return 0


def _never(_a: Attributes) -> bool:
    return False


def _no_equations(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    return ()


@dataclass(frozen=True, slots=True)
class Call:
    """One opaque call.

    run         the torch call, of tensors on one device, and attributes
    results     sizes, dtypes and memory orders of the results; FuserError for invalid operands
    names       names of the results, where a call has several
    equal       pairs of operand dimensions that have equal sizes
    flops       FLOPs of a call of known sizes: a multiply-add counts as two
    terms       products or elements that are summed per element of the result; 0 if each is one
                element of an operand
    is_random   True if it draws from torch's generator: equal calls have different results then
    reference   equivalent of `run` in float64, where `run` does not take that
    start       non-blocking version of a collective, which is waited for later
    """

    run: Callable[..., Any]
    results: Callable[[Operands, Attributes], Results]
    names: tuple[str, ...] = ("output",)
    equal: Callable[[Operands, Attributes], Iterable[tuple[Place, Place]]] = _no_equations
    flops: Callable[[Operands, Attributes], int] = _nothing
    answer: Answer = Answer.OTHER
    terms: Callable[[Operands, Attributes], int] = _nothing
    is_random: Callable[[Attributes], bool] = _never
    reference: Callable[..., Any] | None = None
    start: Callable[..., collectives.Arriving] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def is_collective(self) -> bool:
        """True if other devices wait for this one in the call: it runs as often as the program says
        so, even if nothing reads its result.
        """
        return self.start is not None

    def order(self, a: Attributes) -> Order | None:
        """The calls that it runs in program order with; None if it runs when its operands are
        there.
        """
        if self.is_collective:
            return Order.COLLECTIVES
        return Order.DRAWS if self.is_random(a) else None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.run).parameters

    @property
    def operands(self) -> tuple[str, ...]:
        """The tensor parameters, in the order of the call."""
        found = self.parameters.items()
        return tuple(name for name, p in found if str(p.annotation).startswith("Tensor"))

    def check(self, o: Operands, a: Attributes) -> Results:
        """The results' shapes; FuserError for operands that do not match each other."""
        for (left, i), (right, j) in self.equal(o, a):
            sizes = o[left].shape[i], o[right].shape[j]
            if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
                ours, theirs = i % o[left].rank, j % o[right].rank
                raise FuserValueError(
                    f"{self.name}: dimension {ours} of {left} has size {sizes[0]} and dimension "
                    f"{theirs} of {right} has {sizes[1]}; they must be one size"
                )
        return self.results(o, a)

    def evaluate(
        self, tensors: Mapping[str, Any], a: Attributes, *, double: bool
    ) -> tuple[Any, ...]:
        """All results for tensors of the operands' dtypes, or of float64 in their place."""
        run = self.reference if double and self.reference is not None else self.run
        found = run(**tensors, **a)
        return found if isinstance(found, tuple) else (found,)


def _numbers(o: Operands, *names: str) -> DataType:
    """The common float or complex dtype of some operands; FuserTypeError if there is none."""
    found = [o[name].dtype for name in names if name in o]
    if found[0].category < Category.FLOAT or any(dtype is not found[0] for dtype in found):
        told = ", ".join(f"{n} {o[n].dtype.name}" for n in names if n in o)
        raise FuserTypeError(f"expected one floating dtype, got {told}; cast them first")
    return found[0]


def _ranks(o: Operands, **wanted: int | tuple[int, ...]) -> None:
    for name, ranks in wanted.items():
        allowed = ranks if isinstance(ranks, tuple) else (ranks,)
        if name in o and o[name].rank not in allowed:
            expected = " or ".join(map(str, allowed))
            raise FuserValueError(f"{name}: expected {expected} dimensions, got {o[name].rank}")


def _index(o: Operands, name: str) -> None:
    if o[name].dtype not in INDEX_DTYPES:
        raise FuserTypeError(
            f"{name}: expected an index of dtype Int or Int32, got {o[name].dtype.name}; "
            "cast it first"
        )


def _axis(x: Shaped, dim: int) -> int:
    rank = max(x.rank, 1)
    if not -rank <= dim < rank:
        raise FuserValueError(f"dim {dim} is out of range for {x.rank} dimensions")
    return dim % rank


def _size(extent: Extent) -> int:
    return extent if isinstance(extent, int) else 0


def _numel(shape: Iterable[Extent]) -> int:
    return math.prod(map(_size, shape))


# ---- matrix products


def _linear(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "arg1", "arg2", "bias")
    _ranks(o, arg2=(1, 2), bias=o["arg2"].rank - 1)
    if not o["arg1"].rank:
        raise FuserValueError("arg1: expected at least 1 dimension, got 0")
    return (Shaped((*o["arg1"].shape[:-1], *o["arg2"].shape[:-1]), dtype),)


def _linear_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("arg1", -1), ("arg2", -1)
    if "bias" in o and o["bias"].rank and o["arg2"].rank == 2:
        yield ("arg2", 0), ("bias", 0)


def _inner(name: str, other: str = "") -> Callable[[Operands, Attributes], int]:
    """Terms per element: the last dimension of an operand, and one for `other` if it is given."""

    def terms(o: Operands, _a: Attributes) -> int:
        return _size(o[name].shape[-1]) + (other in o)

    return terms


def _product_flops(row: Callable[[Operands, Attributes], Results], name: str) -> Any:
    def flops(o: Operands, a: Attributes) -> int:
        return 2 * _numel(row(o, a)[0].shape) * _size(o[name].shape[-1])

    return flops


def _matmul(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "arg1", "arg2")
    a, b = o["arg1"], o["arg2"]
    if not (a.rank and b.rank):
        raise FuserValueError("expected at least 1 dimension of each operand; multiply numbers")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.rank > 1 else ()
    return (Shaped((*_batch(a.shape[:-2], b.shape[:-2]), *rows, *columns), dtype),)


def _batch(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Sizes of batch dimensions broadcast to each other, aligned at the right."""
    rank = max(len(a), len(b))
    left = (*(1,) * (rank - len(a)), *a)
    right = (*(1,) * (rank - len(b)), *b)
    return tuple(n if m == 1 else m for n, m in zip(left, right, strict=True))


def _matmul_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    a, b = o["arg1"], o["arg2"]
    yield ("arg1", -1), ("arg2", -2 if b.rank > 1 else -1)
    for k in range(-min(a.rank, b.rank), -2):
        if 1 not in (a.shape[k], b.shape[k]):
            yield ("arg1", k), ("arg2", k)


def _bmm(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "batch1", "batch2")
    _ranks(o, batch1=3, batch2=3)
    return (Shaped((*o["batch1"].shape[:2], o["batch2"].shape[2]), dtype),)


def _baddbmm(o: Operands, a: Attributes) -> Results:
    _numbers(o, "input", "batch1", "batch2")
    found = _bmm(o, a)
    shape = o["input"].shape
    fits = zip(reversed(shape), reversed(found[0].shape), strict=False)
    known = [(n, m) for n, m in fits if isinstance(n, int) and isinstance(m, int)]
    if len(shape) > 3 or any(n not in (1, m) for n, m in known):
        raise FuserValueError(f"input of sizes {shape} does not broadcast to {found[0].shape}")
    return found


def _batches_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("batch1", 0), ("batch2", 0)
    yield ("batch1", 2), ("batch2", 1)


def _grouped_mm(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "mat1", "mat2")
    _index(o, "offsets")
    _ranks(o, mat1=(2, 3), mat2=(2, 3), offsets=1)
    a, b = o["mat1"], o["mat2"]
    if a.rank == b.rank == 3:
        raise FuserValueError("offsets divide a matrix; of two batches use bmm")
    groups = o["offsets"].shape[:1] if a.rank == b.rank else ()
    return (Shaped((*groups, a.shape[-2], b.shape[-1]), dtype),)


def _groups_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("mat1", -1), ("mat2", -2)
    for name in ("mat1", "mat2"):
        if o[name].rank == 3:
            yield (name, 0), ("offsets", 0)


def _scaled_mm(o: Operands, a: Attributes) -> Results:
    _numbers(o, "mat1", "mat2")
    _ranks(o, mat1=2, mat2=2, bias=1)
    return (Shaped((o["mat1"].shape[0], o["mat2"].shape[1]), a["dtype"]),)


def _matrices_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    yield ("mat1", 1), ("mat2", 0)


# ---- attention and convolutions


def _sdpfa_fwd(o: Operands, _a: Attributes) -> Results:
    dtype = _numbers(o, "query", "key", "value")
    _ranks(o, query=4, key=4, value=4)
    rows = o["query"].shape[:3]
    return (
        Shaped((*rows, o["value"].shape[3]), dtype, (0, 2, 1, 3)),
        Shaped(rows, DataType.Double if dtype is DataType.Double else DataType.Float),
        Shaped((2,), DataType.UInt64),
        Shaped((), DataType.UInt64),
    )


def _sdpfa_equal(_o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    for k in (0, 1):
        yield ("query", k), ("key", k)
        yield ("query", k), ("value", k)
    yield ("query", 3), ("key", 3)
    yield ("key", 2), ("value", 2)


def _sdpfa_bwd(o: Operands, _a: Attributes) -> Results:
    _ranks(o, query=4, key=4, value=4)
    names = ("query", "key", "value")
    return tuple(Shaped(o[name].shape, o[name].dtype, (0, 2, 1, 3)) for name in names)


def _sdpfa_flops(products: int) -> Callable[[Operands, Attributes], int]:
    """FLOPs of `products` matrix products of query and key size; half of them if causal."""

    def flops(o: Operands, a: Attributes) -> int:
        query, key = o["query"].shape, o["key"].shape
        whole = 2 * products * _numel(query) * _size(key[2])
        return whole // 2 if a["is_causal"] else whole

    return flops


def _drops(a: Attributes) -> bool:
    return bool(a["dropout_p"] > 0)


def _along(values: tuple[int, ...], dims: int) -> tuple[int, ...]:
    return values * dims if len(values) == 1 else values


def _convolution(o: Operands, a: Attributes) -> Results:
    dtype = _numbers(o, "input", "weight", "bias")
    x, weight = o["input"], o["weight"]
    _ranks(o, input=(3, 4, 5), weight=x.rank, bias=1)
    dims = x.rank - 2
    names = ("stride", "padding", "dilation", "output_padding")
    steps, pads, dilations, more = (_along(a[name], dims) for name in names)
    sizes: list[Extent] = []
    for k in range(dims):
        reach = dilations[k] * (weight.shape[2 + k] - 1)
        if a["transposed"]:
            sizes.append((x.shape[2 + k] - 1) * steps[k] - 2 * pads[k] + reach + more[k] + 1)
        else:
            sizes.append((x.shape[2 + k] + 2 * pads[k] - reach - 1) // steps[k] + 1)
    channels = weight.shape[1] * a["groups"] if a["transposed"] else weight.shape[0]
    return (Shaped((x.shape[0], channels, *sizes), dtype),)


def _convolution_terms(o: Operands, a: Attributes) -> int:
    weight = o["weight"].shape
    inner = _numel(weight[2:]) * _size(weight[0] // a["groups"] if a["transposed"] else weight[1])
    return inner + ("bias" in o)


def _convolution_flops(o: Operands, a: Attributes) -> int:
    weight = o["weight"].shape
    points = _convolution(o, a)[0].shape if not a["transposed"] else o["input"].shape
    return 2 * _numel(points) * _numel(weight[1:])


# ---- data-dependent writes, and sorts


def _written(target: str, index: str) -> Callable[[Operands, Attributes], Results]:
    def results(o: Operands, _a: Attributes) -> Results:
        _index(o, index)
        for name, other in o.items():
            if name != index and other.dtype is not o[target].dtype:
                raise FuserTypeError(
                    f"{name} is {other.dtype.name} and {target} {o[target].dtype.name}; cast one"
                )
        return (Shaped(o[target].shape, o[target].dtype),)

    return results


def _all_sums(target: str, index: str) -> Callable[[Operands, Attributes], int]:
    """Terms per element, at most: all elements of the index may name the same one."""
    return lambda o, _a: _numel(o[index].shape) + 1


def _embedding_backward(o: Operands, a: Attributes) -> Results:
    dtype = _numbers(o, "grad")
    _index(o, "index")
    if not o["grad"].rank:
        raise FuserValueError("grad: expected at least 1 dimension, got 0")
    return (Shaped((a["rows"], o["grad"].shape[-1]), dtype),)


def _embedding_equal(o: Operands, _a: Attributes) -> Iterable[tuple[Place, Place]]:
    for k in range(o["index"].rank):
        yield ("grad", k), ("index", k)


def _argsort(o: Operands, a: Attributes) -> Results:
    _axis(o["arg"], a["dim"])
    return (Shaped(o["arg"].shape, DataType.Int),)


def _sort(o: Operands, a: Attributes) -> Results:
    return (Shaped(o["arg"].shape, o["arg"].dtype), *_argsort(o, a))


def _topk(o: Operands, a: Attributes) -> Results:
    x = o["arg"]
    axis, k = _axis(x, a["dim"]), a["k"]
    shape = x.shape
    if x.rank:
        if isinstance(shape[axis], int) and not 0 <= k <= shape[axis]:
            raise FuserValueError(f"k is {k}, and dimension {axis} has {shape[axis]} elements")
        shape = (*shape[:axis], k, *shape[axis + 1 :])
    return Shaped(shape, x.dtype), Shaped(shape, DataType.Int)


def _stacked(o: Operands, a: Attributes) -> Results:
    return (Shaped((a["size"], *o["arg"].shape), o["arg"].dtype),)


def _as_given(o: Operands, _a: Attributes) -> Results:
    return (Shaped(o["arg"].shape, o["arg"].dtype),)


def _one_of_stack(o: Operands, a: Attributes) -> Results:
    x = o["arg"]
    if not x.rank or x.shape[0] != a["size"]:
        raise FuserValueError(
            f"arg: expected {a['size']} parts along dimension 0, one a device, got {list(x.shape)}"
        )
    return (Shaped(x.shape[1:], x.dtype),)


_ROWS = (
    Call(collectives.all_gather, _stacked, start=collectives.start_all_gather),
    Call(collectives.all_reduce, _as_given, start=collectives.start_all_reduce),
    Call(collectives.reduce_scatter, _one_of_stack, start=collectives.start_reduce_scatter),
    Call(collectives.all_to_all, _as_given, start=collectives.start_all_to_all),
    Call(
        torch_calls.linear, _linear, equal=_linear_equal, answer=Answer.LINEAR,
        flops=_product_flops(_linear, "arg1"), terms=_inner("arg1", "bias"),
    ),
    Call(
        torch_calls.matmul, _matmul, equal=_matmul_equal, answer=Answer.LINEAR,
        flops=_product_flops(_matmul, "arg1"), terms=_inner("arg1"),
    ),
    Call(
        torch_calls.bmm, _bmm, equal=_batches_equal, answer=Answer.LINEAR,
        flops=_product_flops(_bmm, "batch1"), terms=_inner("batch1"),
    ),
    Call(
        torch_calls.baddbmm, _baddbmm, equal=_batches_equal,
        flops=_product_flops(_bmm, "batch1"),
    ),
    Call(
        torch_calls.grouped_mm, _grouped_mm, equal=_groups_equal, answer=Answer.LINEAR,
        flops=_product_flops(_grouped_mm, "mat1"), terms=_inner("mat1"),
        reference=torch_calls.product_of_groups,
    ),
    Call(
        torch_calls.scaled_mm, _scaled_mm, equal=_matrices_equal,
        flops=_product_flops(_scaled_mm, "mat1"), reference=torch_calls.product_of_scaled,
    ),
    Call(
        torch_calls.sdpfa_fwd, _sdpfa_fwd, equal=_sdpfa_equal, is_random=_drops,
        names=("output", "logsumexp", "philox_seed", "philox_offset"), flops=_sdpfa_flops(2),
        reference=torch_calls.attention,
    ),
    Call(
        torch_calls.sdpfa_bwd, _sdpfa_bwd, equal=_sdpfa_equal,
        names=("grad_query", "grad_key", "grad_value"), flops=_sdpfa_flops(5),
        reference=torch_calls.attention_gradient,
    ),
    Call(
        torch_calls.convolution, _convolution, answer=Answer.LINEAR,
        flops=_convolution_flops, terms=_convolution_terms,
    ),
    Call(
        torch_calls.scatter, _written("arg", "index"), answer=Answer.LINEAR,
    ),
    Call(
        torch_calls.scatter_add, _written("arg", "index"), answer=Answer.LINEAR,
        terms=_all_sums("arg", "index"),
    ),
    Call(
        torch_calls.index_add, _written("arg", "index"), answer=Answer.LINEAR,
        terms=_all_sums("arg", "index"),
    ),
    Call(
        torch_calls.index_copy, _written("arg", "index"), answer=Answer.LINEAR,
    ),
    Call(
        torch_calls.index_put_accumulate, _written("acc", "index"), answer=Answer.LINEAR,
        terms=_all_sums("acc", "index"),
    ),
    Call(
        torch_calls.embedding_backward, _embedding_backward, equal=_embedding_equal,
        answer=Answer.LINEAR, terms=lambda o, _a: _numel(o["index"].shape) + 1,
    ),
    Call(torch_calls.sort, _sort, names=("values", "indices"), answer=Answer.CHOICE),
    Call(torch_calls.argsort, _argsort, answer=Answer.CHOICE),
    Call(torch_calls.topk, _topk, names=("values", "indices"), answer=Answer.CHOICE),
)  # fmt: skip

TABLE: Mapping[str, Call] = MappingProxyType({row.name: row for row in _ROWS})
"""Every opaque call by name."""


def lookup(name: str) -> Call:
    """The row of that name; FuserValueError with the nearest names if there is none."""
    found = TABLE.get(name)
    if found is None:
        near = difflib.get_close_matches(name, TABLE, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise FuserValueError(f"there is no torch call {name!r}{hint}")
    return found
