"""Integer forms against Python's integers: values, bounds, and never a false equality."""

from __future__ import annotations

from thunder_fuser.ir.symint import Context


def test_splitting_and_merging_an_index_gives_the_index_back() -> None:
    context = Context()
    u = context.var("u", 0, 95)
    outer, inner = divmod(u, 8)
    assert outer * 8 + inner is u
    assert (outer // 4) * 32 + (outer % 4) * 8 + inner is u
    assert (u + 8 * 5) // 8 is outer + 5
    assert u - outer * 8 is inner
