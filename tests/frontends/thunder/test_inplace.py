"""Updates in place: memory must end up as eager code leaves it, whatever was fused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder_fuser
from tests.frontends.thunder.aliasing import differences, faults, interpreted, ran
from tests.frontends.thunder.aliasing_programs import random_aliasing_program
from tests.frontends.thunder.programs import flat, jit
from thunder_fuser.frontends.thunder import fusions


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


def add_then_a_slice(a: Any) -> Any:
    a.add_(1)
    a[:2].mul_(2)
    return a


def zero_the_diagonal(a: Any) -> Any:
    a.diagonal().zero_()
    return a * 1


def a_slice_of_a_pad(a: Any) -> Any:
    y = torch.nn.functional.pad(a, [1, 1])
    y[..., 1:].add_(1)
    return y


def a_view_then_its_base(a: Any) -> Any:
    b = torch.zeros_like(a)
    a[0].add_(1)
    b.add_(a)
    a.t().add_(1)
    b.add_(a)
    return b


def views_in_turns(a: Any) -> Any:
    row, column = a[0], a[:, 0]
    a.mul_(2)
    row.add_(1)
    column.add_(row.sum())
    z = torch.sin(a)
    a.t().mul_(2)
    return row, column, z, a


def a_ring_buffer(a: Any) -> Any:
    seen = []
    for k in range(3):
        a[k % 2].copy_(a.sum(0) * 0.5)
        seen.append(a.mean(0) + k)
    return seen, a[None]


def one_tensor_under_two_names(a: Any) -> Any:
    b, c = a.transpose(0, 0), a.reshape(-1)
    c.relu_()
    a.add_(1)
    b.add_(b)
    a.mul_(2)
    return b, c


def pieces(a: Any) -> Any:
    y = torch.sin(a) * 2
    first, second = y.split(2)
    return first, second, y.diagonal(), torch.relu(y)


def new_memory(a: Any) -> Any:
    y, z = a.repeat(1, 1), (a * 2).repeat(2, 1)
    w = (a[0] * 2).expand(3, -1).clone()
    a.sub_(1)
    z.mul_(3)
    w[0].add_(1)
    return y, z, w, a[None]


def whole_numbers(a: Any) -> Any:
    whole = a.to(torch.int32)
    y = torch.floor(whole)
    y.add_(1)
    return whole * 1, y, torch.abs(whole)


def copies_that_broadcast(a: Any) -> Any:
    b = torch.ones(a.shape)
    b.copy_(a.sum())
    a.copy_(a[0].sum())
    return b * 1


def contiguous_or_not(a: Any) -> Any:
    y = a.contiguous()
    y.add_(1)
    z = a.t().contiguous()
    z.mul_(2)
    return z, a * 1


@pytest.mark.parametrize(
    "program",
    [
        add_then_a_slice,
        zero_the_diagonal,
        a_slice_of_a_pad,
        a_view_then_its_base,
        views_in_turns,
        a_ring_buffer,
        one_tensor_under_two_names,
        pieces,
        new_memory,
        whole_numbers,
        copies_that_broadcast,
        contiguous_or_not,
    ],
)
def test_memory_is_as_in_eager(program: Callable[..., Any]) -> None:
    x = torch.randn(4, 4)
    with interpreted():
        compiled = jit(program)
        for given in (x, x.t(), torch.randn(8, 8)[::2, 1:5]):
            found = list(differences(ran(compiled, [given]), ran(program, [given])))
            assert not found, found


@pytest.mark.parametrize(
    ("first", "fuel"),
    [
        # A plain run has some programs fused, and others not.
        *(
            pytest.param(
                first,
                fuel,
                id=f"{first}-{'fused' if fuel is None else 'not fused'}",
                marks=() if (first, fuel) in ((0, None), (20, 0)) else pytest.mark.campaign,
            )
            for fuel in (None, 0)
            for first in (0, 20, 40)
        ),
    ],
)
def test_memory_of_random_programs(first: int, fuel: int | None) -> None:
    for seed in range(first, first + 20):
        program = random_aliasing_program(seed)
        with thunder_fuser.options(fuel=fuel):
            found = faults(program.function, program.inputs())
        assert not found, f"{found}\n{program.source}"


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


def test_an_update_of_a_leaf_that_requires_grad_raises() -> None:
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


# ---- order between regions: matrix products lie between what is fused


KINDS = pytest.mark.parametrize("kind", ["consecutive", "dataflow"])


def read_after_write(x: Any, w: Any) -> Any:
    x.add_(1)
    y = x @ w
    z = torch.sin(x)
    x.mul_(2)
    return y, z, torch.cos(x) @ w


def write_after_read(x: Any, w: Any) -> Any:
    before = torch.sin(x)
    y = before @ w
    x.copy_(y)
    return before * 2, torch.cos(x), torch.exp(y)


def chain_of_updates(x: Any, w: Any) -> Any:
    for k in range(3):
        x.add_(x @ w, alpha=0.1)
        x.mul_(0.5 + k)
    return x + 1


def two_tensors_cross(x: Any, w: Any) -> Any:
    old = x * 1
    x.copy_(w)
    y = x @ old
    w.copy_(old)
    return y, torch.sin(x) + torch.cos(w), y @ w


def views_between(x: Any, w: Any) -> Any:
    top = x[:2] * 2
    y = top @ w
    x[:2].add_(y)
    z = x @ w
    x.t().mul_(2)
    return top, z, torch.sin(x)


def moving_average(x: Any, w: Any) -> Any:
    y = torch.relu(w @ x)
    x.mul_(0.9).add_(y.mean(0), alpha=0.1)
    z = torch.relu(w @ (y - x))
    x.mul_(0.9).add_(z.mean(0), alpha=0.1)
    return z * 2, x - y


@KINDS
@pytest.mark.parametrize(
    "program",
    [
        read_after_write,
        write_after_read,
        chain_of_updates,
        two_tensors_cross,
        views_between,
        moving_average,
    ],
)
def test_reads_and_updates_keep_their_order(program: Callable[..., Any], kind: str) -> None:
    compiled = check(program, torch.randn(4, 4), torch.randn(4, 4) / 4, fusion_type=kind)
    assert fusions(compiled)


@KINDS
def test_a_step_of_an_optimiser(kind: str) -> None:
    def program(*tensors: Any) -> Any:
        norm = sum([(g * g).sum() for g in tensors[1::4]]).sqrt()
        for p, g, m, v in (tensors[:4], tensors[4:]):
            g = g / torch.clamp(norm, min=1.0)
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            p.addcdiv_(m, v.sqrt() + 1e-8, value=-0.1)
        return norm

    tensors = [torch.rand(s) for s in ((4, 3), (5,)) for _ in range(4)]
    check(program, *tensors, fusion_type=kind)


class Averaging(torch.nn.Module):
    """Statistics of two layers, each updated before the next layer reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)
        self.norm = torch.nn.BatchNorm1d(6, momentum=0.3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.first(x)))
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.steps.add_(1)
        y = self.second(h * torch.sigmoid(h)) * self.steps
        return y.sin() + self.mean[:4]


@KINDS
def test_buffers_of_a_module_in_training(kind: str) -> None:
    ours = Averaging()
    eager = copy.deepcopy(ours)
    compiled = jit(ours, fusion_type=kind)
    for _ in range(3):
        x = torch.randn(8, 4)
        found, wanted = compiled(x), eager(x)
        torch.testing.assert_close(found, wanted)
        found.square().sum().backward()
        wanted.square().sum().backward()
    for (name, a), (_, b) in zip(ours.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for (name, a), (_, b) in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)
    assert sum(len(report.fusion.updates) for report in fusions(compiled)) >= 3


def test_an_argument_and_a_result_that_change_before_the_backward() -> None:
    """Torch saves what it computed from them; what is computed again from them would be wrong."""

    def program(x: Any, w: Any) -> Any:
        s = x + w
        return torch.sin(s * 3) + torch.nn.functional.gelu(x * 2), s

    gradients = []
    for function in (jit(program, save_like_torch=True), program):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        given = x * 1
        y, s = function(given, torch.ones(5))
        with torch.no_grad():
            given.mul_(5)
            s.zero_()
        gradients += torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: (a.copy_(a), b * 2)[1],
        lambda a, b: a.select(0, 1).copy_(a.select(0, 1)) + b,
        lambda a, b: (torch.nn.functional.pad(b, [1, 1]), a.copy_(a))[0],
    ],
)
def test_a_copy_onto_itself(program: Any) -> None:
    """Torch does nothing then, so that the tensor may be an expanded one."""
    a = torch.randn(3, 1).expand(3, 4)
    torch.testing.assert_close(jit(program)(a, torch.ones(4)), program(a, torch.ones(4)))


def test_a_result_that_a_view_of_it_updates() -> None:
    """The names of one tensor are one memory, whatever the user calls the result."""

    def program(a: Any) -> Any:
        x = torch.stack([a], 0)
        turned = x.transpose(-2, -1)
        turned.sub_(1)
        y = torch.exp(a)
        y.copy_(y)
        y.diagonal().zero_()
        return x, torch.sum(a, 0), y

    check(program, torch.randn(4, 4))


def residual(x: Any, w: Any) -> Any:
    s = x + w
    return torch.sin(s * 3) + torch.nn.functional.gelu(x * 2), s


def product(x: Any, w: Any) -> Any:
    s = x * w
    return s, torch.nn.functional.gelu(s * 2)


@pytest.mark.parametrize("program", [residual, product])
def test_results_that_change_before_the_backward(program: Any) -> None:
    """Without being asked the backward reads a result only where torch would have saved it."""
    gradients = []
    for function in (jit(program), program):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        results = function(x, torch.linspace(1, 2, 5))
        with torch.no_grad():
            for t in results:
                t.zero_()
        gradients += torch.autograd.grad([t.sum() for t in results], x)
    torch.testing.assert_close(*gradients)


def clamped(x: Any, y: Any) -> Any:
    return (x * 2).clamp_(-0.5, 0.5) * y


def multiplied_twice(x: Any, y: Any) -> Any:
    product = x * 2
    product.mul_(y)
    product.mul_(y)
    return product.clamp_(-1, 1)


def activated(x: Any, y: Any) -> Any:
    first, second = x * 2, x - 1
    F.silu(first, inplace=True)
    F.elu(second, inplace=True)
    return F.hardtanh(first, -0.5, 0.5, inplace=True) + second + y


@pytest.mark.parametrize("program", [clamped, multiplied_twice, activated])
def test_the_backward_reads_what_an_update_has_overwritten(program: Any) -> None:
    """A gradient asks for the operand that the call itself replaces: autograd keeps a copy."""
    inputs = [torch.linspace(*ends, 12, requires_grad=True) for ends in ((-2, 2), (1, -3))]
    found, wanted = (
        torch.autograd.grad(fn(*inputs).sum(), inputs) for fn in (jit(program), program)
    )
    torch.testing.assert_close(found, wanted)


def test_a_view_of_what_an_update_made_is_one_where_gradients_flow() -> None:
    """Thunder's names of a result differ then from those that its calls were noted by."""

    def program(x: Any) -> Any:
        y = F.pad(x, [1, 1])
        y.exp_()
        return y, torch.split(y, 4, 1)[0].transpose(0, -2)

    y, whole = jit(program)(torch.randn(2, 2, requires_grad=True))
    assert whole.data_ptr() == y.data_ptr()


def torch_saves_the_root(x: Any) -> Any:
    return torch.sqrt(x)


def torch_saves_the_copy(x: Any) -> Any:
    return torch.sinh(x.repeat(2, 1))


def torch_saves_nothing(x: Any) -> Any:
    return torch.roll(x, -2, -2)


def torch_saves_places(x: Any) -> Any:
    return torch.sort(x, -1)[0] * torch.arange(1.0, 4)


def torch_saves_fewer_places(x: Any) -> Any:
    return torch.topk(x, 2, -1)[0] * torch.arange(1.0, 3)


@pytest.mark.parametrize(
    "program",
    [
        *(torch_saves_the_root, torch_saves_the_copy, torch_saves_nothing),
        *(torch_saves_places, torch_saves_fewer_places),
    ],
)
def test_an_argument_that_changes_where_torch_does_not_save_it(program: Any) -> None:
    gradients = []
    for function in (jit(program, save_like_torch=True), program):
        x = torch.linspace(0.5, 2, 12).reshape(4, 3).requires_grad_()
        y = function(x)
        x.detach().copy_(x.detach().flip(0, 1))
        gradients += torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(*gradients)


REPEATS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    *(lambda x, times=times: x.repeat(*times) for times in [(2, 1), (1, 3), (1, 1), (2, 1, 3)]),
    *(lambda x, times=times: x.repeat_interleave(*times) for times in [(1, 0), (2, 1), (1,)]),
    *(lambda x, times=times: x.tile(times) for times in [(1, 1), (1,)]),
]


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "with gradients"])
def test_a_repeat_that_is_returned_owns_its_elements(
    repeat: Callable[[torch.Tensor], torch.Tensor], grad: bool
) -> None:
    """Of calls that always copy Thunder makes views, which copy nothing where sizes stay."""
    x = torch.randn(7, 1, requires_grad=grad)
    found, expected = jit(repeat)(x).detach(), repeat(x)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert found.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def counted(a: Any) -> Any:
    x = torch.arange(-1, 7, 2, dtype=torch.bfloat16)
    a.diagonal().zero_()
    y = x.flatten()
    x -= y
    return y


def filled(a: Any) -> Any:
    x = torch.zeros(3)
    row = a.sort()[0][0]
    x += row
    return x + 1, x.view(3, 1)


@pytest.mark.parametrize("program", [counted, filled])
def test_what_is_updated_is_one_tensor_between_regions(program: Any) -> None:
    """It costs nothing to make again, but who reads it elsewhere reads what was written into it."""
    check(program, torch.randn(4, 3))


def reshaped_before(a: Any) -> Any:
    flat, rows, dense = a.reshape(-1), a.reshape(2, -1), a.contiguous()
    tail = flat[1:]
    a.mul_(2)
    return flat, rows, dense, tail, tail * 2


def reshaped_between(a: Any) -> Any:
    a.add_(1)
    flat = a.flatten()
    total = flat.sum()
    a.mul_(2)
    return flat, total, flat.sum()


def reshaped_and_updated(a: Any) -> Any:
    flat, shown = a.reshape(-1), a[1:]
    a[:, 1:3] = 1.0
    flat.add_(1)
    return flat, shown, a + 1


MEMORIES: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.arange(12.0).view(3, 4),
    "transposed": lambda: torch.arange(12.0).view(4, 3).t(),
    "every other column": lambda: torch.arange(24.0).view(3, 8)[:, ::2],
    "some columns": lambda: torch.arange(24.0).view(3, 8)[:, :4],
}


@pytest.mark.parametrize("layout", MEMORIES)
@pytest.mark.parametrize("program", [reshaped_before, reshaped_between, reshaped_and_updated])
def test_a_reshape_that_copies_does_so_before_the_update(program: Any, layout: str) -> None:
    """Thunder's traces do not say which it is: that depends on strides. A view shows the update."""
    with interpreted():
        ours, theirs = ran(jit(program), [MEMORIES[layout]()]), ran(program, [MEMORIES[layout]()])
    assert not list(differences(ours, theirs))


# ---- version counters


def update(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).add_(1)


def test_an_update_is_seen_by_autograd() -> None:
    """A backward that needs what a kernel has overwritten raises, as after an update by torch."""
    compiled, w = jit(update), torch.randn(8, requires_grad=True)
    for function in (update, compiled):
        buffer = torch.ones(8)
        loss = (w * buffer).sum()
        with torch.no_grad():
            function(buffer)
        assert buffer._version > 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert any(f.plan.fusion.updates for f in fusions(compiled))


def test_an_update_of_an_inference_tensor() -> None:
    with torch.inference_mode():
        x = torch.ones(8)
        jit(update)(x)
        assert torch.equal(x, torch.full((8,), 3.0))


def test_an_update_of_an_inference_tensor_outside_of_inference_mode() -> None:
    """Raises as torch does, which has overwritten both by then: nothing is here."""

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return update(x) + update(y)

    compiled, x = jit(both), torch.ones(8)
    with torch.inference_mode():
        y, other = torch.ones(8), torch.ones(8)
    for _ in range(2):
        for context in (nullcontext(), torch.no_grad()):
            for function, inputs in ((both, (x.clone(), other)), (compiled, (x, y))):
                with context, pytest.raises(RuntimeError, match="outside InferenceMode is not al"):
                    function(*inputs)
        assert torch.equal(x, torch.ones(8))
        assert torch.equal(y, torch.ones(8))
        with torch.inference_mode():
            compiled(x.clone(), y.clone())
    with torch.inference_mode():
        compiled(x, y)
    assert torch.equal(x + y, torch.full((8,), 6.0))
    assert any(f.plan.fusion.updates for f in fusions(compiled))
