"""What a call takes from torch's generators, beside what Thunder's own primitive takes."""

from __future__ import annotations

import pytest
import torch
from thunder.executors.torchex import _get_and_update_rng_state_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.runtime.generator import draw

CUDA = torch.device("cuda", 0)


class CudaGenerator:
    """torch's generator of a GPU as far as a machine without one can have it."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed = seed
        self.offset = offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def state(self, _device: torch.device) -> torch.Tensor:
        """16 bytes: the seed, then the offset."""
        signed = self.seed - (self.seed >> 63 << 64)
        return torch.tensor([signed, self.offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor, _device: torch.device) -> None:
        seed, self.offset = state.view(torch.int64).tolist()
        self.seed = seed & (2**64 - 1)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> CudaGenerator:
    made = CudaGenerator(2**64 - 5, 4 * 1000)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (made,))
    monkeypatch.setattr(torch.cuda, "get_rng_state", made.state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", made.set_state)
    return made


def test_a_gpus_generator_gives_what_it_gives_thunder(generator: CudaGenerator) -> None:
    """One draw of three offsets is three of Thunder's, and leaves the same state."""
    start = generator.offset
    theirs = [_get_and_update_rng_state_impl(None, None, CUDA) for _ in range(3)]
    after, generator.offset = generator.offset, start
    seed, first = draw(CUDA, 3)
    assert theirs == [(seed, first + k) for k in range(3)]
    assert generator.offset == after
    assert generator.seed == 2**64 - 5
    assert seed == -5


def test_a_cpus_generator_gives_a_seed_and_advances_once() -> None:
    torch.manual_seed(1)
    found = [draw(torch.device("cpu"), count) for count in (1, 7)]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    expected = [(int(torch.empty((), dtype=torch.int64).random_()), 0) for _ in range(2)]
    assert found == expected
    assert found[0] != found[1]
    assert torch.equal(torch.get_rng_state(), after)


def test_nothing_is_drawn_for_shapes(generator: CudaGenerator) -> None:
    state = torch.get_rng_state()
    with FakeTensorMode():
        assert [draw(d, 2) for d in (CUDA, torch.device("cpu"))] == [(0, 0), (0, 0)]
    assert torch.equal(torch.get_rng_state(), state)
    assert generator.offset == 4000
