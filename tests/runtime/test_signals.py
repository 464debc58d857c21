"""Signal handlers that call what they interrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.runtime.hand_written import scale
from thunder_fuser import DataType, FusionDefinition, compiled_fusion
from thunder_fuser.compile import GeneratedPlan
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.host.target import HOST


@contextmanager
def handling(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` at each SIGUSR1."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_launches_the_kernel_whose_launch_it_interrupts() -> None:
    """Between the packing of the arguments and the launch, which reads them."""
    (launch,) = HOST.compile([scale()])
    x = torch.arange(10.0)

    def scaled(a: float) -> torch.Tensor:
        y = torch.zeros(10)
        launch(x.data_ptr(), y.data_ptr(), a, 10)
        return y

    scaled(1.0)
    prepared = launch._threads.idle
    assert prepared is not None
    pack, handled = prepared.arguments.pack, list[torch.Tensor]()

    def pack_and_be_interrupted(*args: float) -> None:
        prepared.arguments.pack = pack
        pack(*args)
        signal.raise_signal(signal.SIGUSR1)

    prepared.arguments.pack = pack_and_be_interrupted  # type: ignore[assignment]
    with handling(lambda: handled.append(scaled(3.0))):
        y = scaled(2.0)
    assert torch.equal(y, 2 * x)
    assert len(handled) == 1
    assert torch.equal(handled[0], 3 * x)


def test_a_handler_calls_the_fusion_whose_compilation_it_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same inputs, and in the thread that holds the lock of the fusion."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([-1], dtype=DataType.Float), 3.0))
    x, handled = torch.arange(10.0), list[torch.Tensor]()
    link = compiled_fusion.link_plan

    def link_and_be_interrupted(generated: GeneratedPlan) -> Executable:
        monkeypatch.setattr(compiled_fusion, "link_plan", link)
        signal.raise_signal(signal.SIGUSR1)
        return link(generated)

    monkeypatch.setattr(compiled_fusion, "link_plan", link_and_be_interrupted)
    with handling(lambda: handled.extend(fd.execute([x]))):
        (y,) = fd.execute([x])
    assert torch.equal(y, 3 * x)
    assert torch.equal(handled[0], 3 * x)
