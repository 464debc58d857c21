"""The grid barrier: an exhaustive model of its word, and what NVRTC makes of it."""

from __future__ import annotations

import pytest

from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin

HIGH, WORDS = 0x80000000, 1 << 32


@pytest.mark.parametrize("word", [0, HIGH])
@pytest.mark.parametrize(("blocks", "rounds"), [(1, 3), (2, 4), (3, 3), (4, 2)])
def test_no_block_goes_on_before_the_others_have_come(word: int, blocks: int, rounds: int) -> None:
    """Every order in which blocks add to the word and look at it, from either word that an earlier
    kernel leaves. A block is (rounds that it has begun, what it found there, or None where it
    computes).
    """
    begin = (word, ((0, None),) * blocks)
    states: list[tuple[int, tuple[tuple[int, int | None], ...]]] = [begin]
    known, ends = {begin}, []
    while states:
        now, given = states.pop()
        following = []
        for b, (begun, before) in enumerate(given):
            if before is None and begun < rounds:
                added = HIGH - (blocks - 1) if b == 0 else 1
                after = ((now + added) % WORDS, (begun + 1, now))
            elif before is not None and (before ^ now) & HIGH:
                assert all(other >= begun for other, _ in given)
                after = (now, (begun, None))
            else:
                continue
            following.append((after[0], (*given[:b], after[1], *given[b + 1 :])))
        if not following:
            ends.append((now, given))
        states += [state for state in following if state not in known]
        known.update(following)
    left = (word + rounds * HIGH) % WORDS
    assert ends == [(left, ((rounds, None),) * blocks)], (
        "a deadlock, or a word that is not as it was"
    )


@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@pytest.mark.parametrize("arch", DATASHEETS)
def test_one_atomic_addition_after_a_fence(arch: str) -> None:
    """Of a word that no parameter names, and which is then read without a cache in between."""
    source = 'extern "C" __global__ void meet() { tf::grid_barrier(gridDim.x); }'
    headers, grid, block = ("prelude.cuh",), (4, 1, 1), (64, 1, 1)
    kernel = Kernel("meet", source, headers, (), grid, block, cooperative=True)
    found = sass.disassemble(compile_cubin([kernel], arch).image)["meet"].opcodes
    bases = [sass.base(op) for op in found]
    (atomic,) = (n for n, op in enumerate(bases) if op in ("ATOM", "ATOMG"))
    assert "ADD" in found[atomic]
    assert "MEMBAR" in bases[:atomic]
    assert any(op.startswith(("LD.E.STRONG.GPU", "LDG.E.STRONG.GPU")) for op in found)
    assert bases.count("BAR") == 2
