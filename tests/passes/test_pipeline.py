from __future__ import annotations

import logging
import textwrap
from pathlib import Path

import pytest

from tests.passes.patterns import check_on_random_fusions, ops_of, random_fusions
from tests.support.hash_seeds import printed_under_any
from tests.zoo.rope import define_split, define_turned
from thunder_fuser import passes
from thunder_fuser.analysis.footprint import footprint
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView, ViewOp
from thunder_fuser.passes.rewrite import Rewrite

ROOT = Path(__file__).resolve().parents[2]


def test_results_stay_the_same() -> None:
    check_on_random_fusions(lambda fusion: passes.run(fusion, verify=True))


def test_a_second_run_finds_nothing() -> None:
    for fusion, _ in random_fusions(150):
        settled = passes.run(fusion)
        assert passes.run(settled) is settled
        fast = passes.run(fusion, precision="fast", verify=True)
        assert passes.run(fast, precision="fast") is fast


def test_no_pass_makes_a_fusion_read_more() -> None:
    less = 0
    for before, _ in random_fusions(150):
        after = passes.run(before)
        old, new = (footprint(f, f.results, set()) for f in (before, after))
        for x, y in zip(before.tensor_inputs, after.tensor_inputs, strict=True):
            was = old[x].elements if x in old else 0
            now = new[y].elements if y in new else 0
            assert now <= was
            less += now < was
    assert less > 0


def test_rope_is_arithmetic_between_loads_and_cats() -> None:
    """Every view reads an input, or a value computed for the rotation; the values are one view."""
    b = FusionBuilder()
    x = b.tensor([2, 1024, 768], DataType.BFloat16)
    cos, sin = (b.tensor([1024, 8], DataType.BFloat16) for _ in range(2))
    q, k, v = define_split(b, x, groups=4)
    for result in (define_turned(b, q, cos, sin), define_turned(b, k, cos, sin), v):
        b.output(result)
    before = b.build()
    after = passes.run(before, verify=True)
    views = [e for e in after.exprs if isinstance(e, ViewOp)]
    assert {e.input for e in views} == {after.inputs[0]}
    assert len(after.exprs) < len(before.exprs)
    old, new = (footprint(f, f.results, set()) for f in (before, after))
    assert list(new.values()) == list(old.values())


def test_the_users_cuts_stay_where_they_are() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 6], DataType.Float)
    y = b.pointwise("mul", b.segment_set(b.full([4, 6], 1.0, DataType.Float)), x)
    assert isinstance(y, TensorView)
    z = b.permute(b.segment_set(b.permute(y, [1, 0])), [1, 0])
    b.output(b.pointwise("neg", b.segment_set(b.pointwise("neg", z))))
    fusion = b.build()
    assert ops_of(passes.run(fusion, verify=True)) == ops_of(fusion)


def test_passes_enable_each_other() -> None:
    """A cast pair hides views that cancel, which hide slices that join, which hide x * 1."""
    b = FusionBuilder()
    x = b.tensor([4, 8], DataType.BFloat16)
    y = b.cast(b.pointwise("mul", b.permute(x, [1, 0]), 1.0), DataType.BFloat16)
    assert isinstance(y, TensorView)
    y = b.permute(y, [1, 0])
    y = b.cat([b.slice(y, [0, 0], [4, 3]), b.slice(y, [0, 3], [4, 8])], 1)
    b.output(b.pointwise("exp", y))
    assert ops_of(passes.run(b.build(), verify=True)) == ["exp"]


def long_chain(n: int) -> Fusion:
    """Arithmetic, casts, views, rotated halves and repetitions, n of each."""
    b = FusionBuilder()
    x = b.tensor([16, 64], DataType.BFloat16)
    y = x
    for k in range(n):
        for op, number in (("mul", 1.0), ("add", k + 0.5)):
            value = b.cast(b.pointwise(op, y, number), DataType.BFloat16)
            assert isinstance(value, TensorView)
            y = value
        halves = [b.slice(y, [0, begin], [16, begin + 32]) for begin in (32, 0)]
        y = b.permute(b.permute(b.cat(halves, 1), [1, 0]), [1, 0])
    b.output(y)
    return b.build()


def test_work_grows_with_the_number_of_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often expressions are copied or replaced, whatever else the machine does."""
    settled = Rewrite._settle
    visits = 0

    def counting(self: Rewrite, *args: object) -> None:
        nonlocal visits
        visits += 1
        settled(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Rewrite, "_settle", counting)
    counts = []
    for n in (25, 125):
        visits = 0
        fusion = long_chain(n)
        passes.run(fusion)
        counts.append(visits)
        assert visits <= 3 * len(passes.PIPELINE) * len(fusion.exprs)
    assert counts[1] <= 5.5 * counts[0]


def test_a_pass_that_breaks_a_fusion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(fusion: Fusion, _: object) -> Fusion:
        return Fusion(fusion.inputs, fusion.exprs[1:], fusion.outputs)

    monkeypatch.setattr(passes, "PIPELINE", (forgetful,))
    with pytest.raises(InternalError, match="before it is defined"):
        passes.run(long_chain(1), verify=True)


def test_a_pass_that_changes_its_argument_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it returns the very fusion that it got, which was checked behind the first pass."""
    calls = 0

    def idle(fusion: Fusion, _: object) -> Fusion:
        return fusion

    def forgetful(fusion: Fusion, _: object) -> Fusion:
        nonlocal calls
        calls += 1
        object.__setattr__(fusion, "exprs", fusion.exprs[1:])
        return fusion

    monkeypatch.setattr(passes, "PIPELINE", (idle, forgetful))
    with pytest.raises(InternalError, match="before it is defined"):
        passes.run(long_chain(1), verify=True)
    assert calls == 1


def test_a_fusion_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the pass that made it, and the last one at the end as well."""
    checked: list[Fusion] = []
    made: list[Fusion] = []
    monkeypatch.setattr(passes, "check", lambda fusion, _: checked.append(fusion) or fusion)

    def seen(_: str, fusion: Fusion, changed: bool) -> None:
        if changed or not made:
            made.append(fusion)

    left = passes.run(long_chain(2), verify=True, watch=seen)
    assert list(map(id, checked)) == list(map(id, [*made, left]))


def test_each_pass_logs_on_its_own_channel(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="thunder_fuser.passes"):
        CompiledFusion(long_chain(2)).plan()
    names = {record.name for record in caplog.records} - {"thunder_fuser.passes"}
    assert names == {f"thunder_fuser.passes.{apply.__name__}" for apply in passes.PIPELINE}
    loud = {r.name.rpartition(".")[2] for r in caplog.records if r.levelno == logging.INFO}
    assert {"view_chains", "cast_chains", "fold_constants"} <= loud


def test_the_order_of_hashes_does_not_matter() -> None:
    """The same text in two processes that hash differently."""
    program = textwrap.dedent("""
        from tests.passes.patterns import pattern_case
        from thunder_fuser import passes
        from thunder_fuser.ir.printer import to_python
        for seed in range(40):
            print(to_python(passes.run(pattern_case(seed, steps=25)[0])))
    """)
    assert printed_under_any(program).count("add_output") > 40
