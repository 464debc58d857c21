"""Inputs that a definition updates: as outputs, and as numbers on the CPU."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser import FusionDefinition


@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_updated_input_that_is_an_output_is_that_input(shape: tuple[int, ...]) -> None:
    """As in nvFuser. A tensor without dimensions on the CPU is read as a number, and written."""
    x = torch.full(shape, 0.5)
    with FusionDefinition() as fd:
        held = fd.from_pytorch(x)
        new = fd.ops.neg(held)
        fd.add_output(new, held)
        fd.add_output(held)
        fd.add_output(fd.ops.mul(new, 3.0))
    first, second = fd.execute([x])
    assert first is x
    torch.testing.assert_close(x, torch.full(shape, -0.5))
    torch.testing.assert_close(second, torch.full(shape, -1.5))


def test_a_counter_on_the_cpu() -> None:
    steps, x = torch.tensor(3), torch.randn(4)
    with FusionDefinition() as fd:
        count, tensor = fd.from_pytorch(steps), fd.from_pytorch(x)
        more = fd.ops.add(count, 1)
        fd.add_output(more, count)
        fd.add_output(fd.ops.mul(tensor, more))
    (found,) = fd.execute([steps, x])
    assert int(steps) == 4
    torch.testing.assert_close(found, x * 4)
