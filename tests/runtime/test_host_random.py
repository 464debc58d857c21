"""Philox against the known answers of its authors, and what distributions make of its words."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.ir import philox
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import random
from thunder_fuser.runtime.host.target import HOST

WORDS = Kernel(
    name="philox_words",
    source="""\
extern "C" __global__ void philox_words(const unsigned long long* keys, int* words, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned random[4];
  tf::philox(keys[3 * i], keys[3 * i + 1], keys[3 * i + 2], random);
  for (int k = 0; k < 4; ++k) words[4 * i + k] = (int)random[k];
}
""",
    headers=("philox.cuh",),
    params=(
        Param("keys", "const unsigned long long*"),
        Param("words", "int*"),
        Param("n", "int"),
    ),
    grid=(512, 1, 1),
    block=(128, 1, 1),
)


def words_of_vectors(count: int) -> Kernel:
    """The words of `count` subsequences at once, from each of `first` on."""
    return Kernel(
        name=f"philox_words_of_{count}",
        source=f"""\
extern "C" __global__ void philox_words_of_{count}(const unsigned long long* keys, int* words,
                                                   int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned random[4 * {count}];
  tf::words<{count}>(keys[3 * i], keys[3 * i + 1], keys[3 * i + 2], random);
  for (int k = 0; k < 4 * {count}; ++k) words[4 * {count} * i + k] = (int)random[k];
}}
""",
        headers=WORDS.headers,
        params=WORDS.params,
        grid=WORDS.grid,
        block=WORDS.block,
    )


NUMBERS = Kernel(
    name="philox_numbers",
    source="""\
extern "C" __global__ void philox_numbers(const unsigned* words, float* floats, double* doubles,
                                          float* halves, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float u = tf::unit(words + 4 * i, 0.0f);
  floats[i] = tf::uniform<float>(u, -0.7f, 1.9f);
  halves[i] = tf::uniform<f16>(u, -0.7f, 1.9f);
  doubles[i] = tf::uniform<double>(tf::unit(words + 4 * i, 0.0), -0.7, 1.9);
}
""",
    headers=("philox.cuh",),
    params=(
        Param("words", "const unsigned*"),
        Param("floats", "float*"),
        Param("doubles", "double*"),
        Param("halves", "float*"),
        Param("n", "int"),
    ),
    grid=(64, 1, 1),
    block=(128, 1, 1),
)

EXTREMES = [0, 1, 2**31 - 1, 2**31, 2**32 - 257, 2**32 - 129, 2**32 - 128, 2**32 - 1]
"""The last two are 1 as a float."""


Draw = Callable[[list[tuple[int, int, int]]], torch.Tensor]


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def kernel_words(keys: list[tuple[int, int, int]]) -> torch.Tensor:
    """Words for rows of seed, subsequence, offset."""
    (launch,) = HOST.compile([WORDS])
    x = torch.tensor([[signed(n) for n in row] for row in keys], dtype=torch.int64)
    words = torch.zeros(len(keys), 4, dtype=torch.int32)
    launch(x.data_ptr(), words.data_ptr(), len(keys))
    return words.to(torch.int64) & 0xFFFFFFFF


def reference_words(keys: list[tuple[int, int, int]]) -> torch.Tensor:
    rows = [torch.tensor([signed(n) for n in row], dtype=torch.int64) for row in keys]
    return torch.cat([philox.words(row[0], row[1:2], row[2]) for row in rows])


KNOWN = [
    # From the file kat_vectors of Random123: "philox4x32 10".
    [0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"],
    [2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"],
    [
        0x299F31D0A4093822,
        0x0370734413198A2E,
        0x85A308D3243F6A88,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ],
]


@pytest.mark.parametrize("draw", [kernel_words, reference_words])
@pytest.mark.parametrize(("seed", "subsequence", "offset", "words"), KNOWN)
def test_known_answers(draw: Draw, seed: int, subsequence: int, offset: int, words: str) -> None:
    found = draw([(seed, subsequence, offset)])
    assert " ".join(f"{word:08x}" for word in found[0].tolist()) == words


def test_kernels_and_the_reference_make_the_same_words() -> None:
    numbers = [n & (2**64 - 1) for n in (0, 1, -1, 2**31, 2**32, 2**63, 0x0123456789ABCDEF)]
    keys = [(a, b, c) for a in numbers for b in numbers for c in numbers]
    assert torch.equal(kernel_words(keys), reference_words(keys))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 16, 20])
def test_vectors_draw_the_words_of_their_subsequences(count: int) -> None:
    """In SIMD registers; the number of a subsequence carries into its high word."""
    firsts = (0, 5, 2**32 - 3, 2**40 - count + 1, 2**64 - 2, 0x0123456789ABCDEF)
    keys = [(a, b, c) for a in (0, 2**64 - 1, 2**33 + 7) for b in firsts for c in (3, 2**63 + 1)]
    (launch,) = HOST.compile([words_of_vectors(count)])
    x = torch.tensor([[signed(n) for n in row] for row in keys], dtype=torch.int64)
    words = torch.zeros(len(keys), 4 * count, dtype=torch.int32)
    launch(x.data_ptr(), words.data_ptr(), len(keys))
    each = [(a, (b + k) % 2**64, c) for a, b, c in keys for k in range(count)]
    assert torch.equal(words.view(-1, 4).to(torch.int64) & 0xFFFFFFFF, reference_words(each))


def test_words_become_numbers_as_in_the_reference() -> None:
    """Bits of uniform are the same; what rounds to the upper bound is the lower one."""
    drawn = kernel_words([(7, n, 3) for n in range(2000)])
    edges = torch.tensor([[a, b, b, a] for a in EXTREMES for b in EXTREMES], dtype=torch.int64)
    words = torch.cat([drawn, edges])
    n = len(words)
    floats, halves = torch.zeros(n), torch.zeros(n)
    doubles = torch.zeros(n, dtype=torch.float64)
    packed = words.to(torch.int32)  # wraps around
    (launch,) = HOST.compile([NUMBERS])
    pointers = (t.data_ptr() for t in (packed, floats, doubles, halves))
    launch(*pointers, n)
    row = random.lookup("uniform")
    for found, dtype, width in [
        (floats, DataType.Float, 1),
        (doubles, DataType.Double, 2),
        (halves, DataType.Half, 1),
    ]:
        low, high = (torch.tensor(x, dtype=found.dtype) for x in (-0.7, 1.9))
        expected = row.reference(words[:, :width].unsqueeze(1), low, high, dtype)
        assert torch.equal(found, expected.flatten())
        bounds = torch.stack([low, high]).to(dtype.torch).to(found.dtype)
        assert found.min() >= bounds[0]
        assert found.max() < bounds[1]
        if width == 1:
            assert found[-1] == bounds[0]


def test_one_rounding_of_a_product_and_a_sum() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(800, generator=generator) for _ in range(3))
    # Sums that are almost a tie of float32 are what a detour through float64 gets wrong.
    a[:400] = 1 + 2.0**-12
    b[:400] = (1 + torch.arange(400) * 2.0**-23) * 2.0**-24
    c[:400] = 1.0
    found = random.fused(a, b, c)
    for x, y, z, sum_ in zip(a, b, c, found, strict=True):
        truth = Fraction(x.item()) * Fraction(y.item()) + Fraction(z.item())
        beside = [torch.nextafter(sum_, torch.tensor(s)) for s in (-torch.inf, torch.inf)]
        distances = [abs(Fraction(n.item()) - truth) for n in (sum_, *beside)]
        assert distances[0] == min(distances)
