"""Strides of results: what eager code may `view`, compiled code may, too."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.thunder.aliasing import differences, interpreted, ran
from tests.frontends.thunder.programs import flat, jit


def norms(x: Any) -> Any:
    normal = F.layer_norm(x, (x.shape[-1],))
    return F.softmax(x, -1), F.log_softmax(x, 0), normal, F.batch_norm(x, None, None, training=True)


def after_norms(x: Any) -> Any:
    soft = F.softmax(x, -1)
    return soft * 2, x * soft, torch.relu(F.group_norm(x, 2)), F.softmax(x, 0).unsqueeze(0) + 1


def moved(x: Any) -> Any:
    padded, columns = F.pad(x, [1, 1]), torch.arange(x.shape[-1])
    return padded + 1, columns * x, x.unsqueeze(0) * 2, torch.cat((x, x), -1), x.repeat(2, 1, 1)


def embedded(x: Any) -> Any:
    return torch.diag_embed(x, 1, 0, 2), torch.diag_embed(x, -1, 2, 1) + 1, torch.diag_embed(x)


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


def views_then_pads(x: Any) -> Any:
    """A pad is row-major whatever it pads; a view of one is a view."""
    turned = x.transpose(0, 2)
    padded = F.pad(turned, [1, 1])
    twice = F.pad(F.pad(turned, [1, 0]), [0, 0, 0, 2]) * 2
    return padded, F.pad(turned * 2, [0, 0, 1, 0]) + 1, F.pad(x, [1, 1]).transpose(0, 2) + 1, twice


def cats_of_one(x: Any) -> Any:
    return torch.cat([x], 1), torch.cat([x], 0) * 2, torch.stack([x], 1)


def like_others(x: Any) -> Any:
    doubled = x * 2
    made = torch.zeros_like(x) * 3, torch.full_like(doubled, 2.0) + 1, torch.ones_like(doubled)
    return *made, torch.zeros_like(x).transpose(0, 1) + 1, torch.isinf(x > 0).transpose(0, 1)


def constants_fold(x: Any) -> Any:
    """What passes leave out of an expression says where its result lies all the same."""
    row = torch.zeros(x.shape)
    return row + x, torch.logical_xor(row, x), torch.where(row > 0, row, x), x.transpose(0, 1) * 1


def norms_of_four_dimensions(x: Any) -> Any:
    image = x.unsqueeze(1)
    grouped = F.group_norm(image, 1)
    return grouped.squeeze(1) * 2, grouped[0], F.batch_norm(image, None, None, training=True)


def updated_where_they_are(x: Any) -> Any:
    first, second = x * 2, x + 1
    first.copy_(torch.where(x.contiguous() > 0, 1.0, 0.0))
    second.mul_(x.contiguous())
    return first, second.transpose(0, 2)


def of_a_diagonal(x: Any) -> Any:
    return torch.acosh(torch.diagonal(x.long() + 2, 0)), torch.diagonal(x * 2, 1, 0, 2)


def parts_in_another_order(x: Any) -> Any:
    row = x.abs().contiguous() + 1
    other = torch.copysign(row, x), row // x, torch.logical_or(x[:1].expand_as(x), x.relu())
    divided = torch.div(row, x, rounding_mode="floor"), torch.div(row, x[:1], rounding_mode="trunc")
    return *other, *divided, torch.copysign(x, row), torch.clamp(x[:1].expand_as(x), row, x)


def powers_of_a_number(x: Any) -> Any:
    """Torch allocates these by sizes alone, and others as their operands lie."""
    return 2**x, torch.pow(1, x) * 2, torch.pow(2, x).transpose(0, 1), torch.tensor(2.0) ** x, x**2


def repeated_and_alike(x: Any) -> Any:
    """What lies as a kernel of torch's chooses, seen through a view, or taken as a model."""
    lower = torch.tril(x, -2)
    soft = F.softmax(x, -1)
    alike = torch.full_like(F.logsigmoid(x), 2), torch.zeros_like(x.masked_fill(x > 0, 1.0)) + x
    return lower.expand(2, -1, -1, -1), soft.transpose(0, 2).unsqueeze(1).expand(-1, 2, 4, 3), alike


def indexed_by_matrices(x: Any) -> Any:
    """The points of a sum are indexed in a kernel of their own, along one dimension."""
    index = x[0].abs().long() % 3
    columns, rows = x.sum((1, 2)), x.sum(2)
    return columns[index], columns[index].t() * 2, rows[:, index], rows[index]


def reshaped_and_back(x: Any) -> Any:
    """A reshape that copies gives memory of its own, whatever order the next one restores."""
    back = x.reshape(-1).view(x.shape)
    repeated = x[:1, :, :1].expand(2, 4, 3).reshape(-1)
    return back, repeated.view(2, 4, 3), repeated[:1], x.mT.reshape(-1)[:1], x.var(2)


@pytest.mark.parametrize(
    "program",
    [
        *(
            repeated_and_alike,
            norms,
            after_norms,
            moved,
            embedded,
            masked,
            views_of_norms,
            copies_in_between,
            views_then_pads,
        ),
        *(
            norms_of_four_dimensions,
            of_a_diagonal,
            updated_where_they_are,
            cats_of_one,
            like_others,
            constants_fold,
            parts_in_another_order,
            powers_of_a_number,
            indexed_by_matrices,
            reshaped_and_back,
        ),
    ],
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


def test_a_cat_of_single_elements_is_in_the_format_of_its_parts() -> None:
    """Which strides of dimensions of one element decide: torch's of the results before it."""

    def program(x: Any) -> Any:
        parts = torch.cat([-x, x.exp()], 1), torch.cat([x, x], 1), torch.cat([x.float(), x + x], 1)
        blended = torch.lerp(x, x, 0.5)
        stacked = torch.stack([-x, x + x]), torch.stack([x * 2, x * 3]), torch.stack([blended, -x])
        return *parts, *stacked

    compiled = jit(program)
    with interpreted():
        for strides in ((1, 1, 3, 1), (24, 1, 3, 3), (24, 8, 1, 1), (8, 8, 1, 8), (24, 1, 3, 24)):
            x = torch.arange(24.0).bfloat16().as_strided((1, 3, 8, 1), strides)
            found = list(differences(ran(compiled, [x]), ran(program, [x])))
            assert not found, (strides, found)


@pytest.mark.parametrize("program", [norms, lambda x: F.softmax(x, -1).mT * 2])
def test_so_are_those_of_calls_that_are_differentiated(program: Any) -> None:
    """Thunder records a call anew where the gradient has a rule of its own."""
    compiled = jit(program)
    with interpreted():
        for name, x in LAYOUTS.items():
            given = [torch.empty_strided(x.shape, x.stride()).copy_(x) for _ in range(2)]
            results = [
                fn(t.requires_grad_()) for fn, t in zip((compiled, program), given, strict=True)
            ]
            ours, eager = ([t.stride() for t in flat(r)] for r in results)
            assert ours == eager, name


def test_so_are_those_of_calls_beside_which_only_arguments_have_gradients() -> None:
    """Thunder records everything anew, although it differentiates nothing."""
    compiled = jit(lambda x, leaf: (*norms(x), leaf))
    with interpreted():
        for name, x in LAYOUTS.items():
            *ours, _ = compiled(x, torch.randn(3, requires_grad=True))
            assert [t.stride() for t in ours] == [t.stride() for t in norms(x)], name


def test_a_view_that_is_computed_lies_as_the_view() -> None:
    """Thunder gathers a diagonal."""
    x = torch.randn(3, 5, 4)
    found = jit(lambda x: torch.diagonal(x * 2, -1))(x)
    assert found.stride() == torch.diagonal(x * 2, -1).stride()


def test_channels_last_of_copies_and_pads() -> None:
    def program(x: Any) -> Any:
        made = torch.zeros_like(x) + 1, (x * 2).clone(), (x * 2).contiguous()
        return *made, F.pad(x, [1, 1]), F.pad(x.transpose(2, 3), [1, 0]) * 2, torch.cat([x], 1)

    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)
    with interpreted():
        found = list(differences(ran(jit(program), [x]), ran(program, [x])))
    assert not found, found


RESIZED = {
    "shuffles": lambda x: (
        F.pixel_shuffle(x, 2),
        F.pixel_unshuffle(x * 2, 2) + 1,
        F.channel_shuffle(x, 2),
    ),
    "stacks": lambda x: (
        torch.stack([x, x * 2]),
        torch.stack([x, x], 1) * 2,
        torch.stack([x[:, :, 0], x[:, :, 1]], 2),
        torch.stack([x, x], -1),
    ),
    "interpolations": lambda x: (
        F.interpolate(x, scale_factor=2) * 2,
        F.interpolate(x * 2, size=(3, 5)),
        F.interpolate(x * 2, scale_factor=1.5, mode="bilinear"),
    ),
    "averages": lambda x: (F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_avg_pool2d(x, 1) * 2),
    "scatters": lambda x: (x.slice_scatter(x[:, :2] * 2, 1, 1, 3), x.select_scatter(x[:, 0], 1, 1)),
}


@pytest.mark.parametrize("name", RESIZED)
def test_channels_last_of_results_of_other_sizes(name: str) -> None:
    """These have the memory format of their operand, and else no order of it but row-major."""
    program = RESIZED[name]
    x = torch.randn(2, 8, 4, 6)
    layouts = [
        x,
        x.contiguous(memory_format=torch.channels_last),
        x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0),
        x.transpose(2, 3).contiguous().transpose(2, 3),
        torch.randn(2, 8, 1, 6).contiguous(memory_format=torch.channels_last).expand(2, 8, 4, 6),
    ]
    compiled = jit(program)
    with interpreted():
        for given in layouts:
            ours, eager = compiled(given), program(given)
            assert [t.stride() for t in ours] == [t.stride() for t in eager], given.stride()
            torch.testing.assert_close(ours, eager)


def test_channels_last_of_results_that_are_differentiated() -> None:
    def program(x: Any) -> Any:
        return F.pixel_shuffle(x * 2, 2), torch.stack([x, x * 2]), F.interpolate(x, size=(3, 5)) + 1

    x = torch.randn(2, 8, 4, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert [t.stride() for t in jit(program)(x)] == [t.stride() for t in program(x)]


@pytest.mark.parametrize("differentiated", [False, True])
def test_tensors_that_are_made_like_another_lie_as_it_does(differentiated: bool) -> None:
    def program(x: Any) -> Any:
        turned = x.transpose(0, 1)
        filled = torch.zeros_like(x) + 1, torch.ones_like(turned) * turned, torch.full_like(x, 2.0)
        noise = torch.rand_like(x) + x, torch.randn_like(turned) * turned
        quotient = torch.div(x, x.contiguous() + 1, rounding_mode="trunc")
        return *filled, *noise, quotient

    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    x.requires_grad_(differentiated)
    ours, eager = jit(program)(x), program(x)
    assert [t.stride() for t in ours] == [t.stride() for t in eager]


def test_what_is_repeated_and_converted_is_dense() -> None:
    def program(mask: Any, x: Any) -> Any:
        return torch.ge(mask, x), mask * x

    inputs = [torch.tensor([[[True]], [[False]], [[True]]]).expand(3, 4, 6), LAYOUTS["permuted"]]
    with interpreted():
        found = list(differences(ran(jit(program), inputs), ran(program, inputs)))
    assert not found, found


def test_a_view_of_what_repeats_elements_shows_all_of_them() -> None:
    """The rows of a softmax of equal rows are equal, and in memory of their own all the same."""

    def program(x: Any) -> Any:
        soft, double = F.softmin(x.repeat(2, 2, 1), 0), x.expand(3, 2, 2).clone() * 2
        return soft.expand(3, 2, -1, -1), double.transpose(0, 1), double.unsqueeze(0)

    x = torch.randn(2, 2)
    with interpreted():
        found = list(differences(ran(jit(program), [x]), ran(program, [x])))
    assert not found, found


OVERLAPPING = [
    torch.randn(6).as_strided((1, 3, 3, 2), (1, 1, 0, 3)),
    torch.randn(8).as_strided((1, 2, 8), (1, 0, 1)),
    torch.randn(4).as_strided((2, 2), (1, 2)),
    torch.randn(17).as_strided((7, 2, 3), (2, 1, 0), 3),
    torch.randn(15).as_strided((3, 1, 5), (1, 100, 3)),
    torch.randn(3).as_strided((3, 1, 1), (1, 0, 7)),
]
"""Single elements whose steps reach no memory, beside repeated ones: torch's sort reads both."""


@pytest.mark.parametrize("x", OVERLAPPING, ids=lambda x: str(x.stride()))
def test_steps_along_single_elements_order_what_repeats_others(x: torch.Tensor) -> None:
    def program(x: Any, y: Any) -> Any:
        shown = x.expand(1, 3, *[-1] * x.dim())
        return x.clone(), x.exp(), x * y, y - x, shown * 2, shown.clone(), shown.log()[0]

    dense = torch.randn(x.shape).permute(*reversed(range(x.dim()))).contiguous()
    inputs = [x, dense.permute(*reversed(range(x.dim())))]
    with interpreted():
        found = list(differences(ran(jit(program), inputs), ran(program, inputs)))
    assert not found, found


INDICES = {
    "a vector": torch.tensor([0, 1, 1]),
    "a matrix": torch.tensor([[0, 1, 1], [1, 0, 1]]),
    "a transposed one": torch.tensor([[0, 1, 1], [1, 0, 1]]).t(),
    "a repeated one": torch.tensor([[1, 0]]).expand(3, 2),
    "of another dtype": torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=torch.int32).t(),
}


@pytest.mark.parametrize("name", INDICES)
def test_indexing_by_a_tensor_lies_as_both(name: str) -> None:
    """By the dimensions that are left, then by the index's own; torch's other gathers are dense."""

    def program(x: Any, k: Any) -> Any:
        rows = x[k], x[:, k], x[:, :, k], x[k] * 2, x.abs()[:, k].transpose(0, 1)
        return *rows, torch.index_select(x, 1, k.reshape(-1))

    compiled = jit(program)
    with interpreted():
        for layout, x in LAYOUTS.items():
            inputs = [x, INDICES[name]]
            found = list(differences(ran(compiled, inputs), ran(program, inputs)))
            assert not found, (layout, found)


def test_indexing_that_is_differentiated_lies_as_both() -> None:
    def program(x: Any, k: Any) -> Any:
        return x[k] * 2, x[:, k].exp(), x[:, :, k]

    x, k = LAYOUTS["permuted"].clone().requires_grad_(), INDICES["a transposed one"]
    ours, eager = ([t.stride() for t in f(x, k)] for f in (jit(program), program))
    assert ours == eager


def test_a_number_in_a_tensor_selects_a_view() -> None:
    def program(x: Any, k: Any) -> Any:
        y = x[k]
        x.mul_(2)
        return y, x[k] + 1, (x + 1)[k]

    inputs = [torch.randn(3, 4), torch.tensor(1)]
    with interpreted():
        for each in (program, lambda x, k: x[k], lambda x, k: (x[k] * 2, (x * 2)[:, k])):
            found = list(differences(ran(jit(each), inputs), ran(each, inputs)))
            assert not found, found


def test_losses_of_single_elements_are_row_major() -> None:
    def program(x: Any, k: Any) -> Any:
        return F.cross_entropy(x, k, reduction="none"), F.nll_loss(x * 2, k, reduction="none")

    inputs = [LAYOUTS["permuted"], torch.tensor([0, 1, 3]).expand(6, 3).t()]
    with interpreted():
        found = list(differences(ran(jit(program), inputs), ran(program, inputs)))
    assert not found, found


def test_what_a_kernel_of_several_parts_is_laid_out_by() -> None:
    """Repeated elements leave the order to the next operand, unless torch converts them first."""

    def program(x: Any, y: Any) -> Any:
        others = torch.copysign(x, y), torch.floor_divide(x, y), torch.clamp(x, y, y)
        mixed = torch.logical_xor(x > 0, y), torch.logical_and(x, y.int()), torch.logical_or(y, x)
        return *others, *mixed, torch.logical_xor(x, y)

    x = torch.randn(17).as_strided((7, 2, 3), (2, 1, 0), 3)
    inputs = [x, torch.randn(42).as_strided((7, 2, 3), (6, 1, 2))]
    with interpreted():
        found = list(differences(ran(jit(program), inputs), ran(program, inputs)))
    assert not found, found


def test_a_kernel_writes_such_strides() -> None:
    """`interpreted` runs no kernel; this does."""
    x = torch.randn(3, 4)
    found = jit(lambda x: F.layer_norm(x.transpose(0, 1), (3,)))(x)
    torch.testing.assert_close(found.view(-1), F.layer_norm(x.t(), (3,)).view(-1))


@pytest.mark.parametrize("strides", [(2, 1, 2), (1, 1, 2), (1, 1, 1)])
def test_row_major_is_row_major_along_single_elements(strides: tuple[int, ...]) -> None:
    """Whose steps tell a convolution what format it reads."""
    x = torch.randn(4).as_strided((1, 2, 1), strides)
    weight = torch.randn(2, 2, 2)

    def program(x: torch.Tensor) -> Any:
        soft = torch.softmax(x, 0)
        results = soft, torch.log_softmax(x, 1), F.layer_norm(x, (1,)), x.sum(0, keepdim=True)
        return *results, x.masked_fill(x > 0, 1.0), torch.tril(x), F.conv1d(soft, weight, padding=4)

    compiled = jit(program)
    assert [t.stride() for t in compiled(x)] == [t.stride() for t in program(x)]


@pytest.mark.parametrize(
    ("dtype", "some"),
    [
        # Whether it is repeated, its order and the other's: any two of these are together.
        pytest.param(torch.bfloat16, 5, id="16 bits"),
        pytest.param(torch.bfloat16, 1, id="16 bits, all layouts", marks=pytest.mark.campaign),
        # Layouts of 32 bits, of which other tests have all, are a control.
        pytest.param(torch.float32, 7, id="32 bits", marks=pytest.mark.campaign),
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x + y,
        lambda x, y: (x * 2).exp() + y,
        lambda x, y: x + y.float(),
        lambda x, y: x.float() * y.float(),
        lambda x, y: x.float(),
    ],
)
def test_16_bits_that_are_repeated_lie_as_they_stand(
    program: Any, dtype: torch.dtype, some: int
) -> None:
    """A kernel of torch computes with them in float, and reads steps of 0: the other operand says
    how the result lies. What the program converts itself is dense.
    """
    compiled = jit(program)
    sizes = (3, 4, 5)
    layouts = itertools.product(
        itertools.product((True, False), repeat=3),
        itertools.permutations(range(3)),
        itertools.permutations(range(3)),
    )
    with interpreted():
        for kept, order, other in itertools.islice(layouts, 0, None, some):
            own = [n if k else 1 for n, k in zip(sizes, kept, strict=True)]
            x = torch.randn(own, dtype=dtype).expand(sizes).permute(order)
            y = torch.randn([x.shape[k] for k in other], dtype=dtype)
            y = y.permute([other.index(k) for k in range(3)])
            assert compiled(x, y).stride() == program(x, y).stride(), (x.stride(), y.stride())


EINSUMS = {
    "ij,...jk->...ik": ((3, 4), (2, 4, 5)),  # dots in one operand
    "b...d,d->b...": ((2, 3, 4, 5), (5,)),
    "b...d,bd->...b": ((2, 3, 4, 5), (2, 5)),
    "j,...jk": ((4,), (2, 6, 4, 5)),  # no result
    "ba,c->bca": ((2, 3), (4,)),  # nothing is summed
    "ab,dca->bdca": ((2, 3), (4, 5, 2)),
    "fr,fcd->crd": ((2, 3), (2, 4, 5)),  # dimensions of the second operand on both sides
    "fr,fcd->cdr": ((2, 3), (2, 4, 5)),
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation: str) -> None:
    x, y = (torch.randn(shape) for shape in EINSUMS[equation])
    ours, eager = (
        f(x, y)
        for f in (
            jit(lambda x, y: torch.einsum(equation, x, y)),
            lambda x, y: torch.einsum(equation, x, y),
        )
    )
    torch.testing.assert_close(ours, eager, check_stride=True)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_norm_that_is_updated_is_row_major(requires_grad: bool) -> None:
    """Its decomposition ends with a view of what lies as the operand does."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = F.group_norm(x.permute(0, 2, 1), 2), F.group_norm(x.permute(0, 2, 1), 1)
        y.mul_(2)
        return y, z

    x = torch.randn(2, 5, 4, requires_grad=requires_grad)
    ours, eager = jit(program)(x), program(x)
    torch.testing.assert_close(ours, eager)
    assert [y.stride() for y in ours] == [y.stride() for y in eager]
