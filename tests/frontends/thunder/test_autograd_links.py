"""The link of a call's two autograd functions costs nothing."""

from __future__ import annotations

import pytest
import thunder
import torch

import thunder_fuser


def test_training_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on the meta device, where a draw takes longer than a small kernel."""
    fn = thunder.jit(lambda x: x.sin() * x, executors=[thunder_fuser.executor])
    x = torch.randn(5, requires_grad=True)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("torch.randn was called")

    monkeypatch.setattr(torch, "randn", refuse)
    before = torch.get_rng_state()
    for _ in range(2):
        x.grad = None
        fn(x).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())
    assert torch.equal(before, torch.get_rng_state())
