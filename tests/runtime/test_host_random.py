"""Philox against the known answers of its authors, and what uniform makes of its words."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.runtime.host import HOST

WORDS = Kernel(
    name="philox_words",
    source="""\
extern "C" __global__ void philox_words(const unsigned long long* keys, int* words, float* uniforms,
                                        int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const tf::Random4 random = tf::philox(keys[3 * i], keys[3 * i + 1], keys[3 * i + 2]);
  for (int k = 0; k < 4; ++k) {
    words[4 * i + k] = (int)random.at[k];
    uniforms[4 * i + k] = tf::uniform(random.at[k]);
  }
}
""",
    headers=("philox.cuh",),
    params=(
        Param("keys", "const unsigned long long*"),
        Param("words", "int*"),
        Param("uniforms", "float*"),
        Param("n", "int"),
    ),
    grid=(512, 1, 1),
    block=(128, 1, 1),
)


def draw(keys: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Words (as unsigned numbers) and uniform floats for rows of seed, offset, index."""
    (launch,) = HOST.compile([WORDS])
    signed = [[n - (1 << 64) if n >> 63 else n for n in row] for row in keys]
    x = torch.tensor(signed, dtype=torch.int64)
    words = torch.zeros(len(keys), 4, dtype=torch.int32)
    uniforms = torch.zeros(len(keys), 4)
    launch(x.data_ptr(), words.data_ptr(), uniforms.data_ptr(), len(keys))
    return words.to(torch.int64) & 0xFFFFFFFF, uniforms


@pytest.mark.parametrize(
    ("seed", "offset", "index", "words"),
    [
        # From the file kat_vectors of Random123: "philox4x32 10".
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            0x0370734413198A2E,
            0x85A308D3243F6A88,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(seed: int, offset: int, index: int, words: str) -> None:
    found, _ = draw([(seed, offset, index)])
    assert " ".join(f"{word:08x}" for word in found[0].tolist()) == words


def test_uniform_numbers_are_multiples_of_two_to_the_minus_24_below_one() -> None:
    words, uniforms = draw([(7, 0, index) for index in range(50_000)])
    assert torch.equal(uniforms.double(), (words >> 8).double() / 2**24)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    # 200,000 numbers: mean 1/2 and variance 1/12 within five standard errors.
    assert abs(uniforms.double().mean() - 1 / 2) < 5 * (1 / 12 / 200_000) ** 0.5
    assert abs(uniforms.double().var() - 1 / 12) < 5 * (1 / 180 / 200_000) ** 0.5
