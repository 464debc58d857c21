"""What the time model knows of instructions: equal ones are one, loops do not repeat what they need
not, sectors are those of a warp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.support.generator import random_case
from thunder_fuser import kernel_ir as ir
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import WARP_SIZE
from thunder_fuser.device_table import H200
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.time_model.instruction_mix import instruction_regions
from thunder_fuser.time_model.instruction_values import Region, sampled_threads, sectors_touched
from thunder_fuser.time_model.pipes import Pipe

BLOCK, THREAD = ir.LaunchIndex.BLOCK, ir.LaunchIndex.THREAD
X, Y = ir.Var("x"), ir.Var("y")


def regions(*body: ir.Stmt, threads: int = 256, blocks: int = 8) -> list[Region]:
    parameters = tuple(
        ir.Parameter(name, DataType.Float, ir.Scratch(4), True, written=name == "y")
        for name in ("x", "y")
    )
    kernel = ir.KernelIR("test", (), parameters, DataType.Int32, blocks, threads, 0, 0, tuple(body))
    return instruction_regions(kernel, "sm_90")


def stored(*numbers: ir.Expr) -> list[ir.Stmt]:
    """Each to an element of its own."""
    return [
        ir.Assign(ir.Element(Y, ir.add(THREAD, ir.Int(256 * k))), number)
        for k, number in enumerate(numbers)
    ]


def of(op: str, *operands: ir.Expr) -> ir.Expr:
    return ir.Apply(op, operands)


def loaded(at: ir.Expr = THREAD) -> list[ir.Stmt]:
    return [ir.Let("t", DataType.Float, ir.Element(X, at))]


def pipes(found: Sequence[Region], pipe: Pipe) -> float:
    return sum(region.mix[pipe] for region in found)


def arithmetic(*numbers: ir.Expr) -> float:
    """What the results of `numbers` take, beside an element that is loaded and stored as it is."""
    plain = regions(*loaded(), *stored(*[ir.Var("t")] * len(numbers)))
    return sum(pipes(regions(*loaded(), *stored(*numbers)), p) - pipes(plain, p) for p in Pipe)


T = ir.Var("t")
TWO = ir.Literal(2.0, DataType.Float)
PRODUCT = of("mul", T, T)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([of("add", T, T)], 1),
        ([of("neg", T)], 0),
        ([of("add", TWO, TWO)], 0),
        # A sum takes a product along; a product that something else wants is one of its own.
        ([of("add", PRODUCT, T)], 1),
        ([of("add", PRODUCT, T), of("exp", PRODUCT)], 1 + 1 + 8),
        # Equal expressions are one, and nobody computes what nobody stores.
        ([of("exp", T), of("exp", T)], 8),
        ([of("div", T, TWO)], 1),
        ([of("div", T, ir.Literal(3.0, DataType.Float))], 10.25),
    ],
)
def test_instructions_of_expressions(numbers: list[ir.Expr], expected: float) -> None:
    assert arithmetic(*numbers) == expected


def drawn(name: str, first: int) -> list[ir.Stmt]:
    seed, offset = ir.Element(X, THREAD), ir.Int(0)
    draw = ir.DrawNumbers(name, DataType.Float, "uniform", 1, seed, ir.Int(first), offset)
    return [draw, *stored(ir.at(ir.Var(name), ir.Int(0)))]


def test_the_same_random_numbers_are_drawn_once() -> None:
    """Two passes over a row have them in registers; other numbers are drawn besides."""
    once, twice, both = (
        pipes(regions(*(s for n, k in enumerate(calls) for s in drawn(f"n{n}", k))), Pipe.ALU)
        for calls in ([0], [0, 0], [0, 1])
    )
    assert once == twice < both


def test_what_a_loop_does_not_change_is_before_it() -> None:
    at = ir.add(ir.times(ir.Int(256), ir.Var("r")), THREAD)
    body = (
        ir.Let("e", DataType.Float, of("exp", T)),
        ir.Assign(ir.Element(Y, at), of("add", ir.Var("e"), T)),
    )
    outside, loop = regions(*loaded(), ir.Loop("r", ir.Int(100), body))
    assert (outside.is_loop, loop.is_loop, loop.times) == (False, True, 100)
    assert outside.mix[Pipe.XU] == 1
    assert loop.mix[Pipe.XU] == 0
    # The store, its address and the loop's own.
    assert loop.mix[Pipe.LSU] == 1
    assert loop.bytes == 4


def test_loops_that_are_written_out_have_constants_for_their_numbers() -> None:
    """Four vectors of a thread: one address, four loads."""
    k = ir.Var("k")
    at = ir.add(ir.times(k, ir.Int(1024)), ir.times(ir.Int(4), THREAD))
    body = (
        ir.Registers("v", DataType.Float, (4,)),
        ir.VectorLoad(4, ir.Address(X, at), ir.Var("v")),
        ir.VectorStore(4, ir.Address(Y, at), ir.Var("v")),
    )
    (found,) = regions(ir.Loop("k", ir.Int(4), body, ir.LoopKind.UNROLLED))
    # Two parameters, and the addresses that belong to them.
    assert found.mix[Pipe.LSU] == 2 + 8
    assert found.mix[Pipe.FMA] == 2
    assert found.bytes == 8 * 16


@pytest.mark.parametrize(
    ("stride", "size", "share"), [(4, 4, 4), (16, 16, 16), (2, 2, 2), (64, 2, 32), (0, 4, 1)]
)
def test_sectors_are_those_of_a_warp(stride: int, size: int, share: float) -> None:
    """Neighbours share them; threads that lie apart move 32 bytes each, one address one sector."""
    addresses = tuple(stride * lane for lane in range(WARP_SIZE))
    (found,) = sectors_touched(addresses, size, 32).values()
    assert len(found) * 32 / WARP_SIZE == share


def test_accesses_say_their_sectors() -> None:
    (found,) = regions(*loaded(ir.times(ir.Int(100), THREAD)), *stored(T))
    load, store = found.accesses
    assert (load.tensor, load.is_store, load.bytes, load.sectors) == ("x", False, 4, 32)
    assert (store.tensor, store.is_store, store.bytes, store.sectors) == ("y", True, 4, 4)


def test_what_lanes_touch_one_after_the_other_comes_once() -> None:
    """Eight elements of a thread that are loaded one by one: all sectors of a warp with the first
    of them, four lines each time where one would hold what is wanted.
    """
    at = [ir.add(ir.times(ir.Int(8), THREAD), ir.Int(k)) for k in range(8)]
    names = [f"t{k}" for k in range(8)]
    lets = [ir.Let(n, DataType.Float, ir.Element(X, a)) for n, a in zip(names, at, strict=True)]
    (found,) = regions(*lets, *(s for n in names for s in stored(ir.Var(n))))
    loads = [a for a in found.accesses if not a.is_store]
    assert [a.sectors for a in loads] == [32.0, *[0.0] * 7]
    assert [a.replays for a in loads] == [7.0] * 8


def test_what_some_warps_do_counts_for_these() -> None:
    test = ir.less(THREAD, 32)
    outside, inside = regions(*loaded(), ir.If((test,), tuple(stored(T))), blocks=1)
    assert not outside.accesses[1:]
    assert inside.times == 1 / 8
    assert not inside.is_loop


def test_ranges_of_blocks_have_their_shares() -> None:
    """As the parts of a pointwise kernel: 1, 29 and 70 of 100 blocks."""
    parts = [tuple(stored(of(op, T))) for op in ("exp", "exp2", "sin")]
    inner = ir.If((ir.less(BLOCK, 30),), parts[1], parts[2])
    _, *found = regions(*loaded(), ir.If((ir.less(BLOCK, 1),), parts[0], (inner,)), blocks=100)
    shares = [region.total for region in found if region.accesses]
    assert shares == pytest.approx([0.01, 0.29, 0.7])


def test_trips_are_those_of_the_average_block() -> None:
    """500 rows of 64 blocks, 8 of them at a time: the last blocks have one less."""
    body = tuple(stored(T))
    loop = ir.Loop("r", ir.Int(500), body, begin=BLOCK, step=ir.LaunchIndex.BLOCKS)
    _, found = regions(*loaded(), loop, blocks=64)
    assert found.times == pytest.approx(500 / 64, abs=0.3)


@pytest.mark.parametrize("is_outside", [True, False], ids=["next row", "this row"])
def test_what_is_fetched_for_the_next_row_keeps_nobody_waiting(is_outside: bool) -> None:
    """It goes to a register that outlives the iteration. Its address ends with the rows, and is
    known all the same.
    """
    after = ir.add(ir.Var("r"), ir.Int(8))
    last = ir.Select(ir.less(after, 800), after, ir.Var("r"))
    at = ir.add(ir.times(ir.Int(1024), last), ir.times(ir.Int(4), THREAD))
    register = [ir.Registers("n", ir.RawVector(DataType.Float, 4), ())]
    fetch = ir.Assign(ir.Var("n"), ir.RawLoad(4, ir.Address(X, at)))
    body = (ir.Barrier(), *([] if is_outside else register), fetch, *stored(T))
    loop = ir.Loop("r", ir.Int(800), body, begin=BLOCK, step=8, unroll=1)
    _, found = regions(*loaded(), *(register if is_outside else []), loop)
    (fetched,) = (a for a in found.accesses if not a.is_store)
    assert (fetched.is_ahead, fetched.phase, fetched.sectors) == (is_outside, 1, 16)


@pytest.mark.parametrize(
    ("threads", "of_row"), [(64, 2), (320, 2), (512, 2), (512, 4), (640, 4), (1024, 4), (1024, 8)]
)
def test_sampled_warps_are_of_all_places_in_a_row(threads: int, of_row: int) -> None:
    """Each of the warps that share a row, or nobody sees what the last one has not to do."""
    found = {thread // WARP_SIZE % of_row for _, thread in sampled_threads(1000, threads)}
    assert found == set(range(of_row))


def test_words_that_a_test_guards_are_on_their_way_with_others() -> None:
    """Nothing is done with them behind the test: what is waited for is all of them, once."""
    apart = ir.Binary("<", ir.LaunchIndex.THREAD, ir.Int(64))
    register = ir.Registers("n", ir.RawVector(DataType.Float, 4), ())
    place = ir.Address(X, ir.times(ir.Int(4), THREAD))
    fetch = ir.Assign(ir.Var("n"), ir.RawLoad(4, place))
    root, guarded = regions(*loaded(), register, ir.If((apart,), (fetch,)))
    assert (guarded.waiting, [a.phase for a in guarded.accesses]) == (root, [0])
    # Elements, too: ptxas puts the test on the load.
    element = ir.Assign(ir.Var("n"), ir.Element(X, ir.times(ir.Int(4), THREAD)))
    root, guarded = regions(*loaded(), register, ir.If((apart,), (element,)))
    assert guarded.waiting is root
    _, guarded = regions(*loaded(), ir.If((apart,), (*loaded(), *stored(T))))
    assert guarded.waiting is guarded


@pytest.mark.parametrize(
    "kinds",
    [{}, {"reductions": True, "groups": True}, {"gathers": True}, {"draws": True}, {"scans": True}],
    ids=lambda kinds: " ".join(kinds) or "pointwise",
)
def test_any_kernel_has_a_mix(kinds: dict[str, bool]) -> None:
    for seed in range(8):
        case = random_case(seed, **kinds)  # type: ignore[arg-type]
        for segment in CompiledFusion(case.fusion).plan(case.inputs).segments:
            if segment.kernels:
                kernel = lower(schedule_segment(segment, H200), segment.body.updates)
                found = instruction_regions(kernel, H200.arch)
                assert all(region.times >= 0 for region in found)
                assert math.isfinite(sum(r.total * r.instructions for r in found))
                assert sum(r.bytes for r in found) > 0
