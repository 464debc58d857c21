"""Strides of results: what eager code may `view`, compiled code may, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.thunder.aliasing import differences, interpreted, ran
from tests.thunder.programs import jit


def norms(x: Any) -> Any:
    normal = F.layer_norm(x, (x.shape[-1],))
    return F.softmax(x, -1), F.log_softmax(x, 0), normal, F.batch_norm(x, None, None, training=True)


def after_norms(x: Any) -> Any:
    soft = F.softmax(x, -1)
    return soft * 2, x * soft, torch.relu(F.group_norm(x, 2)), F.softmax(x, 0).unsqueeze(0) + 1


def moved(x: Any) -> Any:
    padded, columns = F.pad(x, [1, 1]), torch.arange(x.shape[-1])
    return padded + 1, columns * x, x.unsqueeze(0) * 2, torch.cat((x, x), -1), x.repeat(2, 1, 1)


def masked(x: Any) -> Any:
    return x.masked_fill(x > 0, 1.0), torch.tril(x) * 1, x[:1] + x, x.mean(-1, keepdim=True) - x


LAYOUTS = {
    "dense": torch.randn(3, 4, 6),
    "permuted": torch.randn(4, 6, 3).permute(2, 0, 1),
    "transposed": torch.randn(3, 6, 4).transpose(1, 2),
    "a window": torch.randn(6, 4, 9)[::2, :, 1:7],
}


def views_of_norms(x: Any) -> Any:
    soft, normal = F.softmax(x, -1), F.layer_norm(x, (x.shape[-1],))
    return soft.transpose(0, 1) * 2, normal[0].t() + 1, F.log_softmax(x, 0)[:, None, 1:] * 2


def copies_in_between(x: Any) -> Any:
    row = x[..., 0].contiguous()
    flat = x.transpose(0, 2).reshape(-1)
    return row[None], row[None, 1:], flat[:4], flat[4:], x * 2


@pytest.mark.parametrize(
    "program", [norms, after_norms, moved, masked, views_of_norms, copies_in_between]
)
def test_strides_are_those_of_eager(program: Any) -> None:
    compiled = jit(program)
    with interpreted():
        for name, x in LAYOUTS.items():
            found = list(differences(ran(compiled, [x]), ran(program, [x])))
            assert not found, (name, found)


def test_channels_last_stays() -> None:
    def program(x: Any) -> Any:
        return F.batch_norm(x, None, None, training=True), F.group_norm(x, 2), torch.cat((x, x), 1)

    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)
    with interpreted():
        found = list(differences(ran(jit(program), [x]), ran(program, [x])))
    assert not found, found


def test_a_kernel_writes_such_strides() -> None:
    """`interpreted` runs no kernel; this does."""
    x = torch.randn(3, 4)
    found = jit(lambda x: F.layer_norm(x.transpose(0, 1), (3,)))(x)
    torch.testing.assert_close(found.view(-1), F.layer_norm(x.t(), (3,)).view(-1))
