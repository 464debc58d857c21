"""Parts that compute the same, from tensors of their own: what is known of one holds for all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.generator import random_case
from thunder_fuser.analysis.footprint import demanded, footprint
from thunder_fuser.analysis.isomorphism import Parts
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.segment.legality import Legality

F32, BF16 = DataType.Float, DataType.BFloat16


def test_footprints_of_parts_are_those_of_the_fusion() -> None:
    """Asked in any order, of parts that end anywhere: 400 questions, some of like parts."""
    for seed in range(40):
        fusion = random_case(seed, calls=seed % 2 == 0, reductions=True, steps=12).fusion
        choose = random.Random(seed)
        parts = Parts(fusion)
        made = [e.output for e in fusion.exprs if isinstance(e.output, TensorView)]
        for _ in range(10):
            outputs = choose.sample(made, min(len(made), choose.randint(1, 3)))
            ends = set(choose.sample(made, choose.randint(0, len(made) // 2)))
            for ask, known in ((footprint, parts.footprint), (demanded, parts.demanded)):
                expected = ask(fusion, outputs, ends)
                assert known(outputs, ends) == expected
                assert known(outputs, ends) == expected


def _tower(
    b: FusionBuilder, x: TensorView, dtype: DataType = F32, factor: float = 2.0
) -> TensorView:
    return b.reduce("sum", b.cast_tensor(b.apply("mul", (x, b.scalar(factor)), F32), dtype), [1])


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        ({}, True),
        ({"sizes": [8, 5]}, False),
        ({"dtype": BF16}, False),
        ({"factor": 3.0}, False),
        ({"factor": -2.0}, False),
    ],
    ids=str,
)
def test_parts_are_alike_up_to_names(other: dict[str, object], is_alike: bool) -> None:
    b = FusionBuilder()
    sizes = other.pop("sizes", [8, 4])
    x, y = b.tensor([8, 4], F32), b.tensor(sizes, F32)  # type: ignore[arg-type]
    one, two = _tower(b, x), _tower(b, y, **other)  # type: ignore[arg-type]
    b.output(one)
    b.output(two)
    parts = Parts(b.build())
    assert (parts.of([one], ()).key == parts.of([two], ()).key) == is_alike
    assert parts.of([one], ()).key != parts.of([one], {x}).key


def _layers(count: int) -> Fusion:
    """Layers that add to the values before them, which are saved, what torch computes from their
    norm.
    """
    b = FusionBuilder()
    x, w = b.tensor([4, 16, 64], F32), b.tensor([64, 64], F32)
    for _ in range(count):
        square = b.reduce("sum", b.pointwise("mul", x, x), [2], keepdim=True)
        scaled = b.pointwise("mul", x, b.pointwise("rsqrt", square))
        assert isinstance(scaled, TensorView)
        (made,) = b.call("linear", {"arg1": scaled, "arg2": w}, {})
        total = b.pointwise("add", x, made)
        assert isinstance(total, TensorView)
        b.output(total)
        x = total
    return b.build()


def _asked(layers: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How large the parts are whose legality is not known when it is asked for."""
    sizes: list[int] = []
    original = Legality._likeness

    def likeness(self: Legality, *args: Any) -> Any:
        key: Any = original(self, *args)
        if key not in self._legal:
            _, part, *_ = key
            sizes.append(len(part[1]))
        return key

    with monkeypatch.context() as patch:
        patch.setattr(Legality, "_likeness", likeness)
        assert CompiledFusion(_layers(layers)).plan().kernels == layers + 1
    return sizes


def test_deep_programs_ask_about_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is more asked where there are more layers, nor is it asked about more of them."""
    few, many = (_asked(count, monkeypatch) for count in (6, 24))
    assert len(many) <= len(few) < 24
    assert max(many) <= max(few)
