"""Updates in place: memory must end up as eager code leaves it, whatever was fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.thunder.programs import flat, jit
from thunder_fuser.executor import fusions


def check(program: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[..., Any]:
    """Runs the compiled program and eager torch; results and all inputs must then be equal."""
    eager = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    compiled = jit(program, **options)
    for _ in range(2):
        ours, theirs = flat(compiled(*inputs)), flat(program(*eager))
        for found, wanted in zip(
            [*ours, *flat(inputs)], [*theirs, *flat(tuple(eager))], strict=True
        ):
            torch.testing.assert_close(found, wanted)
        for k, x in enumerate(inputs):
            # Results that share memory with an input do so in both.
            for found, wanted in zip(ours, theirs, strict=True):
                assert shares(found, x) == shares(wanted, eager[k])
    return compiled


def shares(a: Any, b: Any) -> bool:
    if not isinstance(b, torch.Tensor):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_an_argument() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(y * 2)
        return torch.sin(x)

    compiled = check(program, torch.randn(3, 4), torch.randn(4))
    assert [len(report.fusion.updates) for report in fusions(compiled)].count(1) == 1


def test_an_argument_twice() -> None:
    def program(x: Any) -> Any:
        x.add_(1)
        x.mul_(2)
        return x - 3

    check(program, torch.randn(3, 4))


def test_the_source_of_a_copy_stays_apart_from_the_target() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        x.copy_(y)
        return y

    check(program, torch.randn(3, 4))


def test_a_result_that_is_updated_itself() -> None:
    def program(x: Any) -> Any:
        y = x.clone()
        y.add_(1)
        z = x * 2
        z.mul_(y)
        return y, z

    check(program, torch.randn(3, 4))


def test_a_view_of_an_argument() -> None:
    def program(x: Any) -> Any:
        x[0].add_(1.0)
        x.t()[1].mul_(3.0)
        return x * 2

    check(program, torch.randn(3, 4))


def test_a_view_of_a_fused_result() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        y[0].add_(1.0)
        return y

    check(program, torch.randn(3, 4))


def test_the_base_of_a_view() -> None:
    def program(x: Any) -> Any:
        row = x[1]
        x.mul_(2)
        return row + 1

    check(program, torch.randn(3, 4))


def test_values_read_before_the_update() -> None:
    def program(x: Any) -> Any:
        before = x.t() * 1.5
        x.add_(before)
        return before - x

    check(program, torch.randn(4, 4))


def test_arguments_in_one_memory() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    x = torch.randn(3, 4)
    compiled = jit(program)
    other = x.clone()
    torch.testing.assert_close(compiled(x, x.view(-1)), program(other, other.view(-1)))
    torch.testing.assert_close(x, other)


@pytest.mark.parametrize("kind", ["consecutive", "dataflow"])
def test_a_reduction_between_updates(kind: str) -> None:
    def program(x: Any, w: Any) -> Any:
        first = x.sum()
        x.add_(w)
        second = (x * 2).sum()
        x.mul_(w)
        return first, second, x @ w

    check(program, torch.randn(4, 4), torch.randn(4, 4), fusion_type=kind)


def test_updates_and_reductions_are_one_fusion() -> None:
    """Each reduction reads what the tensor holds at its place in the program."""

    def program(x: Any, y: Any) -> Any:
        x.sub_(x.mean(1, keepdim=True))
        columns = x.sum(0)
        x.mul_(columns)
        y.copy_(x.amax(1))
        return columns * 2, x.argmin(1), y + 1

    compiled = check(program, torch.randn(6, 5), torch.randn(6), fusion_count=1)
    (report,) = fusions(compiled)
    assert len(report.fusion.updates) == 2


def test_an_update_of_what_requires_grad_stays_with_torch() -> None:
    def program(x: Any, y: Any) -> Any:
        return x.add_(y)

    compiled = jit(program)
    with pytest.raises(RuntimeError, match="leaf"):
        compiled(torch.randn(3, requires_grad=True), torch.randn(3))


def test_without_thunders_care_for_aliases_reads_after_an_update_are_new() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        x.copy_(y * 2)
        return x * 3

    compiled = check(program, torch.randn(5), skip_inplace_alias_updates=True)
    assert [len(report.fusion.updates) for report in fusions(compiled)].count(1) == 1


def test_without_thunders_care_for_aliases_a_stale_view_ends_the_region() -> None:
    def program(x: Any) -> Any:
        turned = x.t()
        x.copy_(x * 2)
        return turned * 3

    check(program, torch.randn(3, 3), skip_inplace_alias_updates=True)


def test_batch_norm_trains_its_buffers() -> None:
    torch.manual_seed(0)
    ours, eager = (torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.ReLU()) for _ in range(2))
    compiled = jit(ours)
    for _ in range(3):
        x = torch.randn(16, 4)
        found, wanted = compiled(x), eager(x)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
    for (name, a), (_, b) in zip(ours.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert any(report.fusion.updates for report in fusions(compiled))
