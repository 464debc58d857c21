"""The text of pointwise kernels: index types, names, and golden files of small ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.codegen.kernels import kernel_of, kernels_of
from tests.support.building import op
from tests.support.hash_seeds import printed_under_any
from tests.zoo.workloads import BY_NAME
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType

Float, BFloat16, Int8 = DataType.Float, DataType.BFloat16, DataType.Int8
ROOT = Path(__file__).resolve().parents[2]


# ---- int or long long


def is_wide(text: str) -> bool:
    wide = "long long u" in text
    # One type for all indices: only lanes and copies of a vector are counted in ints.
    assert not wide or set(re.findall(r"\bint (\w+)", text)) <= {"k", "v"}
    return wide


@pytest.mark.parametrize(
    ("count", "wide"),
    [(2**31 - 512, False), (2**31 - 1, False), (2**31, False), (2**31 + 1, True), (2**34, True)],
)
@pytest.mark.parametrize("dtype", [Int8, Float], ids=lambda d: d.name)
def test_dense_tensors_are_indexed_by_int_up_to_2_31_elements(
    b: FusionBuilder, count: int, wide: bool, dtype: DataType
) -> None:
    b.output(op(b, "neg", b.tensor([count], dtype)))
    assert is_wide(kernel_of(b).source) == wide


@pytest.mark.parametrize(
    ("stride", "wide"), [(2**31 - 4, False), (2**31 - 3, True), (2**31, True), (2**40, True)]
)
def test_addresses_count_and_sizes_do_not(b: FusionBuilder, stride: int, wide: bool) -> None:
    """Two rows of 4; where nothing is aligned, lane 3 of the second is at stride + 3."""
    x = b.tensor([2, 4], Float, contiguity=[False, True])
    b.output(op(b, "neg", x))
    assert is_wide(kernel_of(b, [Layout((stride, 1))]).source) == wide


def test_what_a_product_reaches_before_it_is_reduced_counts(b: FusionBuilder) -> None:
    """Few elements are read, but far apart, and of a view that starts late."""
    x = b.tensor([2**20, 2**12], Float)
    b.output(op(b, "neg", b.slice(x, [2**19, 0], [2**20, 4])))
    assert is_wide(kernel_of(b).source)
    b = FusionBuilder()
    x = b.tensor([2**20, 2**12], Float)
    b.output(op(b, "neg", b.slice(x, [0, 0], [2**19, 4])))
    assert not is_wide(kernel_of(b).source)


def test_one_large_part_makes_all_indices_long(b: FusionBuilder) -> None:
    b.output(op(b, "neg", b.tensor([2**32], Float)))
    b.output(op(b, "neg", b.tensor([8], Float)))
    text = kernel_of(b).source
    assert is_wide(text)
    assert text.count("const long long block") == 2


# ---- names


def test_names_carry_content(b: FusionBuilder) -> None:
    x = b.tensor([64], Float)
    y = op(b, "mul", op(b, "rsqrt", op(b, "add", op(b, "mul", x, x), 1.0)), x)
    b.output(op(b, "where", op(b, "gt", y, 0.0), op(b, "exp", y), op(b, "sin", y)))
    kernel = kernel_of(b)
    assert re.fullmatch(r"tf_pointwise_mul_add_rsqrt_exp_[0-9a-f]{8}", kernel.name)
    assert kernel.source.count(kernel.name) == 1


def test_a_copy_is_called_one(b: FusionBuilder) -> None:
    b.output(b.set(b.tensor([64], Float)))
    assert re.fullmatch(r"tf_pointwise_copy_[0-9a-f]{8}", kernel_of(b).name)


def test_the_same_program_has_the_same_name_and_another_has_another() -> None:
    def name(scale: float, size: int) -> str:
        b = FusionBuilder()
        b.output(op(b, "mul", b.tensor([size], Float), scale))
        return kernel_of(b).name

    assert name(2.0, 64) == name(2.0, 64)
    assert len({name(2.0, 64), name(3.0, 64), name(2.0, 128)}) == 3


SCRIPT = """
from tests.codegen.kernels import kernels_of
from tests.support.generator import random_case
from tests.zoo.workloads import WORKLOADS
from thunder_fuser.device_table import H200
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.compile import generate_kernels
for workload in WORKLOADS:
    print(CompiledFusion(workload.fusion(workload.small)).plan())
    print(*(k.source for k in kernels_of(workload, workload.small)))
for seed in range(40):
    case = random_case(seed, max_numel=200)
    plan = CompiledFusion(case.fusion).plan(case.inputs)
    print(plan, *(k.kernel.source for k in generate_kernels(plan, H200).values()))
"""


def test_plans_and_kernels_do_not_depend_on_the_order_of_hashes() -> None:
    assert "tf_pointwise_" in printed_under_any(SCRIPT)


# ---- golden files


def halves(b: FusionBuilder) -> None:
    """Halves of rows exchanged, two vectors apart: one load at a selected address."""
    x = b.tensor([32, 32], BFloat16)
    first, second = (b.slice(x, [0, k], [32, k + 16]) for k in (0, 16))
    b.output(op(b, "mul", b.cat([op(b, "neg", second), b.cast(first, Float)], -1), 0.5))  # type: ignore[list-item]


def pad(b: FusionBuilder) -> None:
    """A predicate that holds for whole vectors, before which nothing is loaded."""
    x = b.tensor([32, 20], Float)
    b.output(op(b, "exp", b.pad(x, [8, 4], 1.0)))


def edge(b: FusionBuilder) -> None:
    """A pad that ends within a vector: windows that lie in memory are read, wanted or not."""
    x = b.tensor([32, 22], Float)
    b.output(op(b, "exp", b.pad(x, [8, 2], 1.0)))


def transpose(b: FusionBuilder) -> None:
    """Lane by lane on one side; points that no vector divides."""
    x, y = b.tensor([33, 5], Float), b.tensor([5, 33], Float)
    b.output(op(b, "add", y, b.permute(x, [1, 0])))


def step(b: FusionBuilder) -> None:
    """Two parameters updated in place, by a rate that the host passes."""
    rate = b.scalar(None, DataType.Double)
    for size in (64, 48):
        p, g = b.tensor([size], BFloat16), b.tensor([size], BFloat16)
        value = b.cast(op(b, "sub", p, op(b, "mul", g, rate)), BFloat16)
        b.output(value, p)  # type: ignore[arg-type]


def row_scale(b: FusionBuilder) -> None:
    """Large enough to unroll; one number for a row, in a register of its own."""
    x, scale = b.tensor([8192, 8192], BFloat16), b.tensor([8192, 1], Float)
    b.output(b.cast(op(b, "mul", x, op(b, "rsqrt", scale)), BFloat16))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "define", [halves, pad, edge, transpose, step, row_scale], ids=lambda f: f.__name__
)
def test_golden_kernels(
    golden: Callable[[str, str], None], define: Callable[[FusionBuilder], None]
) -> None:
    b = FusionBuilder()
    define(b)
    golden(f"{define.__name__}.cu", f"// {define.__doc__}\n{kernel_of(b).source}")


def test_a_cast_that_changes_no_bits_has_no_variable() -> None:
    """The fp32 value of a sum that was rounded to bf16 is the rounded sum."""
    b = FusionBuilder()
    x = b.tensor([64], BFloat16)
    for _ in range(3):
        wide = b.cast_tensor(x, Float)
        x = b.cast_tensor(op(b, "add", wide, wide), BFloat16)
    b.output(x)
    source = kernel_of(b).source
    assert source.count("tf::rounded<bf16>") == 2
    assert not re.search(r"const \w+ t\d+ = t\d+;", source)


def test_golden_rotary_embedding(golden: Callable[[str, str], None]) -> None:
    """A quarter of each head turns: loads behind a predicate, halves exchanged in registers."""
    (kernel,) = kernels_of(BY_NAME["rope_2577"], 16)
    golden("rope.cu", kernel.source)
