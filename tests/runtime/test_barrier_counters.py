"""Words of grid barriers: shared by the launches of a stream, and never by two CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser.runtime import steps

CUDA = torch.device("cuda")


class Device:
    """What a step asks torch: which stream is current, and whether it is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.captures = 1, False
        ask = {
            "_cuda_getDevice": lambda: 0,
            "_cuda_getCurrentRawStream": lambda device: self.stream,
            "_cuda_isCurrentStreamCapturing": lambda: self.captures,
        }
        for name, answer in ask.items():
            monkeypatch.setattr(torch._C, name, answer, raising=False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def words_of(step: steps.Step) -> torch.Tensor:
    values: list[object] = [None]
    step(values)
    (found,) = values
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [0, 0]
    return found


def dirty(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory that was used before."""
    return torch.full(sizes, 7, dtype=dtype)


def test_launches_of_a_stream_share_words_and_streams_do_not(device: Device) -> None:
    step = steps.counter(0, CUDA, dirty)
    first = words_of(step)
    assert words_of(step) is first
    device.stream = 2
    assert words_of(step) is not first


def test_what_is_captured_has_words_of_its_own(device: Device) -> None:
    """torch captures all graphs on one stream: a counter that was remembered from the first graph
    would be zeroed by that graph alone, and two replays side by side would share it.
    """
    step = steps.counter(0, CUDA, dirty)
    eager = words_of(step)
    device.captures = True
    graphs = [words_of(step) for _ in range(2)]
    assert len({id(words) for words in (eager, *graphs)}) == 3
    device.captures = False
    assert words_of(step) is eager


def test_a_capture_before_any_call_leaves_nothing_behind(device: Device) -> None:
    step = steps.counter(0, CUDA, dirty)
    device.captures = True
    captured = words_of(step)
    device.captures = False
    assert words_of(step) is not captured
