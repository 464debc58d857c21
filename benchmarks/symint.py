"""What a canonical integer form costs: microseconds per expression, with nothing interned before.

    python -m benchmarks.symint

Every expression is built in a new `Context`, as the first one of a compilation would be ("cold"),
and once more in the same context ("warm").  Each figure is the median of many rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.table import Column, Table
from thunder_fuser.ir.integer.symint import Context, Form


def linear(index: Sequence[Form], shape: Sequence[int]) -> Form:
    """The position of a point in row-major order."""
    position = index[0]
    for coordinate, extent in zip(index[1:], shape[1:], strict=True):
        position = position * extent + coordinate
    return position


def delinearised(position: Form, shape: Sequence[int]) -> list[Form]:
    """The point at that position."""
    index: list[Form] = []
    for extent in reversed(shape[1:]):
        position, coordinate = divmod(position, extent)
        index.insert(0, coordinate)
    return [position, *index]


def linear_4d_linear(context: Context) -> Form:
    shape = (2, 32, 128, 128)
    return linear(delinearised(context.var("u", 0, 2 * 32 * 128 * 128 - 1), shape), shape)


def permute_0213(context: Context) -> Form:
    b, h, s, d = delinearised(context.var("u", 0, 2 * 32 * 128 * 128 - 1), (2, 32, 128, 128))
    return linear((b, s, h, d), (2, 128, 32, 128))


def reshape_chain(context: Context) -> Form:
    position = context.var("u", 0, 4096 * 4096 - 1)
    for shape in ((4096, 4096), (64, 64, 32, 128), (4096, 32, 128), (1024, 4, 4096)):
        position = linear(delinearised(position, shape), shape)
    return position


def qkv_slice_split(context: Context) -> Form:
    row, head, d = delinearised(context.var("u", 0, 512 * 1024 - 1), (512, 8, 128))
    column = head * 128 + d + 4096
    outer, inner = divmod(column, 128)
    return linear((row, outer, inner), (512, 48, 128))


EXPRESSIONS: dict[str, Callable[[Context], Form]] = {
    "linear -> 4d -> linear": linear_4d_linear,
    "permute(0, 2, 1, 3)": permute_0213,
    "reshape chain": reshape_chain,
    "qkv slice + split": qkv_slice_split,
}


def measured(
    build: Callable[[Context], Form], rounds: int = 50, repeat: int = 10
) -> tuple[float, float]:
    """(cold, warm) seconds per expression."""
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(rounds):
        contexts = [Context() for _ in range(repeat)]
        for seconds in times.values():  # the second pass finds what the first one interned
            start = time.perf_counter()
            for context in contexts:
                build(context)
            seconds.append((time.perf_counter() - start) / repeat)
    return median(times["cold"]), median(times["warm"])


def table() -> Table:
    """A row for each expression."""
    rows = []
    for name, build in EXPRESSIONS.items():
        cold, warm = measured(build)
        rows.append(
            {"expression": name, "cold": cold, "warm": warm, "form": f"`{build(Context())}`"}
        )
    columns = (
        Column("expression", "expression"),
        Column("cold, us", "cold", 1e6),
        Column("warm, us", "warm", 1e6),
        Column("form", "form"),
    )
    note = "Building one index expression in canonical form; warm: once more in the same context."
    return Table("Integer algebra", note, columns, tuple(rows))


if __name__ == "__main__":
    print(table().markdown())
