"""What a call takes from torch's generators, beside what Thunder's own primitive takes."""

from __future__ import annotations

import threading

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.executors.torchex import _get_and_update_rng_state_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.frontends.thunder import executor
from thunder_fuser.frontends.thunder.trace import rng_state
from thunder_fuser.runtime.generator import draw

CUDA = torch.device("cuda", 0)


class CudaGenerator:
    """torch's generator of a GPU as far as a machine without one can have it."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed = seed
        self.offset = offset
        self.is_captured = False

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
    monkeypatch.setattr(
        torch._C, "_cuda_isCurrentStreamCapturing", lambda: made.is_captured, raising=False
    )
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


def test_threads_draw_different_offsets(
    generator: CudaGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one of them is interrupted between the reading of the offset and its update."""
    found = list[tuple[object, int]]()
    other = threading.Thread(target=lambda: found.append(draw(CUDA, 2)))
    get_offset = generator.get_offset

    def get_and_wait() -> int:
        monkeypatch.setattr(generator, "get_offset", get_offset)
        offset = get_offset()
        other.start()
        other.join(0.2)  # it cannot end before this draw
        return offset

    monkeypatch.setattr(generator, "get_offset", get_and_wait)
    found.append(draw(CUDA, 3))
    other.join()
    assert sorted(offset for _, offset in found) == [1000, 1003]
    assert generator.offset == 4 * 1005


def test_a_cpus_generator_gives_a_seed_and_advances_once() -> None:
    torch.manual_seed(1)
    found = [draw(torch.device("cpu"), count) for count in (1, 7)]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    expected = [(int(torch.empty((), dtype=torch.int64).random_()), 0) for _ in range(2)]
    assert found == expected
    assert found[0] != found[1]
    assert torch.equal(torch.get_rng_state(), after)


def test_a_captured_stream_draws_a_seed_in_memory(
    generator: CudaGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generator's own numbers are those of one replay, and torch does not tell them."""
    generator.is_captured = True
    monkeypatch.setattr(generator, "get_offset", lambda: pytest.fail("asked of a captured stream"))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device, **k: empty(*a, device="cpu", **k))
    seed, offset = draw(CUDA, 3)
    assert isinstance(seed, torch.Tensor)
    assert (seed.dtype, seed.shape, offset) == (torch.int64, (), 0)
    assert generator.offset == 4000


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_seeds_in_memory_are_the_same_seeds(distribution: str) -> None:
    """A kernel reads what a graph drew: one text for all replays, numbers of this replay's seed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([37, 64], True, DataType.Float)
        for _ in range(2):
            drawn = getattr(fd.ops, distribution)(0.0, 1.0, [37, 64], dtype=DataType.Float)
            fd.add_output(fd.ops.mul(x, drawn))
    compiled = CompiledFusion(fd.fusion)
    x, seed = torch.ones(37, 64), torch.tensor(0)
    kept = compiled.executable_for([x, seed, 0, 1])
    for number in (5, -(2**62), 5):
        seed.fill_(number)
        found = kept([x, seed, 0, 1])
        for ours, numbers in zip(found, compiled([x, number, 0, 1]), strict=True):
            assert torch.equal(ours, numbers)
        for ours, numbers in zip(found, compiled.in_torch([x, seed, 0, 1]), strict=True):
            torch.testing.assert_close(ours, numbers, rtol=1e-5, atol=1e-6)
    assert compiled.executable_for([x, seed, 0, 1]) is kept
    with pytest.raises(FuserTypeError, match="to be a scalar"):
        compiled([x, seed.float(), 0, 1])


def test_a_graph_of_dropout_draws_anew_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Thunder captures: the seed is a result of the forward, and the backward's argument."""
    seed = torch.tensor(0)
    monkeypatch.setattr(rng_state, "draw", lambda device, count: (seed, 0))
    compiled = thunder.jit(lambda x: F.dropout(x * 2, 0.25), executors=[executor])
    x = torch.ones(64, 64, requires_grad=True)
    seen = []
    for number in (1, 2, 1):
        seed.fill_(number)
        out = compiled(x)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(gradient, out)
        assert 0.7 < (out != 0).float().mean() < 0.8
        seen.append(out)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_nothing_is_drawn_for_shapes(generator: CudaGenerator) -> None:
    state = torch.get_rng_state()
    with FakeTensorMode():
        assert [draw(d, 2) for d in (CUDA, torch.device("cpu"))] == [(0, 0), (0, 0)]
    assert torch.equal(torch.get_rng_state(), state)
    assert generator.offset == 4000


@pytest.mark.gpu
def test_a_replayed_graph_draws_other_numbers() -> None:
    compiled = thunder.jit(lambda x: F.dropout(x, 0.5), executors=[executor])
    x = torch.ones(1 << 16, device="cuda")
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(out.clone())
    assert not torch.equal(*found)
    assert all(0.48 < (t != 0).float().mean() < 0.52 for t in found)
