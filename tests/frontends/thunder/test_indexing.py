"""Indexed reads through thunder.jit: embeddings, gathers, and cross-entropy with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch.nn import functional

from tests.frontends.thunder.programs import check, fake, jit, primitives, traced
from tests.support.shares import each_pair, each_value
from thunder_fuser import options
from thunder_fuser.errors import FuserIndexError
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.frontends.thunder.claims.indexing import CLAIMS

Program = Callable[..., Any]
ROWS, COLUMNS = 12, 8


def table(dtype: torch.dtype = torch.float32, *, grad: bool = False) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS).to(dtype).requires_grad_(grad)


def along(length: int) -> torch.Tensor:
    return torch.randint(ROWS, (length, COLUMNS))


PROGRAMS: dict[str, tuple[Program, Callable[[], torch.Tensor], str]] = {
    "embedding": (
        lambda i, w: functional.embedding(i, w) * 2,
        lambda: torch.randint(ROWS, (3, 5)),
        "index_select",
    ),
    "embedding with padding_idx": (
        lambda i, w: functional.embedding(i, w, padding_idx=3) * 2,
        lambda: torch.randint(ROWS, (3, 5)),
        "embedding_fwd",
    ),
    "index_select": (
        lambda i, w: torch.index_select(w, 1, i) + 1,
        lambda: torch.randint(COLUMNS, (9,)),
        "index_select",
    ),
    "gather": (lambda i, w: torch.gather(w, 0, i).exp(), lambda: along(5)[:, :3], "gather"),
    "take_along_dim": (
        lambda i, w: torch.take_along_dim(w, i, 0).exp(),
        lambda: along(20),
        "take_along_axis",
    ),
    "brackets": (lambda i, w: w[i] - 1, lambda: torch.randint(-ROWS, ROWS, (7,)), "index_select"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reads_are_fused_and_right_with_their_gradients(name: str, dtype: torch.dtype) -> None:
    program, index, op = PROGRAMS[name]
    compiled = check(program, index(), table(dtype))
    (report,) = fusions(compiled)
    assert op in [expr.op for expr in report.fusion.exprs]
    assert report.plan.kernels == 1
    assert refusals(compiled) == {}
    if dtype is torch.float32:
        compiled = check(program, index(), table(dtype, grad=True))
        assert op in [e.op for report in fusions(compiled) for e in report.fusion.exprs]


def test_every_claim_is_used_by_a_program() -> None:
    ops = {op for _, _, op in PROGRAMS.values()}
    assert len(ops) == len(CLAIMS)


def test_what_writes_at_an_index_says_why_it_stays() -> None:
    w = table(grad=True)
    compiled = jit(lambda i, w: functional.embedding(i, w) * 2)
    compiled(torch.tensor([1, 1, 3]), w).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad[:, 0], torch.tensor([0, 4, 0, 2] + [0] * 8).float())
    (refusal,) = refusals(compiled)
    assert refusal.subject == "embedding_backward"
    assert "writes where data say" in refusal.text


def test_an_index_out_of_bounds_is_an_index_error() -> None:
    compiled = jit(PROGRAMS["embedding"][0])
    with pytest.raises(FuserIndexError, match=f"index {ROWS} is out of bounds for size {ROWS}"):
        compiled(torch.tensor([0, ROWS]), table())
    with pytest.raises(IndexError):
        compiled(torch.tensor([0, -1]), table())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_the_error_names_the_index_that_the_user_gave(dtype: torch.dtype) -> None:
    compiled = jit(lambda i, w: w[i] * 2), jit(lambda i, w: w[:, i] * 2)
    for fn, wrong in zip(compiled, (-ROWS - 2, -COLUMNS - 2), strict=True):
        with pytest.raises(FuserIndexError, match=rf"index {wrong} is out of bounds.*test_ind"):
            fn(torch.tensor([0, wrong], dtype=dtype), table())
        with pytest.raises(IndexError):
            fn(torch.tensor(wrong, dtype=dtype), table())


def test_so_does_that_of_a_list() -> None:
    with pytest.raises(IndexError, match=f"index {-COLUMNS - 1} is out of bounds for dimension 1"):
        jit(lambda w: w[:, [0, -COLUMNS - 1]] * 2)(table())


WRONG_PAIRS = [(0, COLUMNS), (1, -COLUMNS - 1), (-ROWS - 1, COLUMNS), (ROWS, -1)]


@pytest.mark.parametrize(("row", "column"), WRONG_PAIRS)
def test_each_of_two_indices_is_in_its_own_range(row: int, column: int) -> None:
    """Both are one index of the flattened dimensions, which may be in range."""
    for i, k in (([row], [column]), (row, column)):
        with pytest.raises(FuserIndexError):
            jit(lambda i, k, w: w[i, k] * 2)(torch.tensor(i), torch.tensor(k), table())


def test_a_composite_has_the_line_of_its_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[:2]
        return functional.kl_div(y, y, reduction="sum")

    compiled = jit(program)
    compiled(table().abs() + 1)
    lines = {e.origin.line for e in fusions(compiled)[0].fusion.exprs if e.origin.symbol == "log"}
    assert lines == {program.__code__.co_firstlineno + 2}


def test_take_along_dim_wraps_its_index_as_in_torch() -> None:
    i = torch.tensor([[5, -1, 99, -40, 12, -12, 0, 11]])
    check(PROGRAMS["take_along_dim"][0], i.expand(3, -1), table(), fusion_count=1)
    check(PROGRAMS["take_along_dim"][0], i.expand(3, -1), table().requires_grad_())


def test_odd_shapes_of_indices() -> None:
    for sizes in ((), (0,), (1,), (2, 0, 3)):
        check(PROGRAMS["embedding"][0], torch.randint(ROWS, sizes), table())
    check(PROGRAMS["index_select"][0], torch.tensor(3), table())
    check(PROGRAMS["gather"][0], torch.zeros(0, 3, dtype=torch.int64), table())


@pytest.mark.parametrize(
    "read",
    [
        lambda x, k, index: x[k, ..., index],
        lambda x, k, index: x[k - 3, :, index],
        lambda x, k, index: x[index, :, k],
        lambda x, k, index: x[:, None, k, index],
        lambda x, k, index: x[k, :, [1, 0]],
        lambda x, k, index: x[k, 1:, torch.stack((index, index))] * 2,
    ],
)
def test_a_tensor_without_dimensions_selects_before_other_indices(read: Any) -> None:
    x, y = (torch.arange(24.0).reshape(3, 2, 4).requires_grad_() for _ in range(2))
    for k, index in ((1, [1]), (0, [0, 1, 1])):
        indices = torch.tensor(k), torch.tensor(index)
        found, expected = jit(read)(x, *indices), read(y, *indices)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        weights = torch.rand_like(expected)
        (found * weights).sum().backward()
        (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_an_index_of_another_dtype_stays_with_torch() -> None:
    compiled = jit(lambda i, w: w[i] * 2)
    w = table()
    assert torch.equal(compiled(torch.tensor([3, 1], dtype=torch.int32), w), w[[3, 1]] * 2)
    compiled = jit(lambda x, i: thunder.core.prims.take_along_axis(x, i, 0) * 2)
    with pytest.raises(RuntimeError, match="Short"):
        compiled(w, torch.zeros(2, COLUMNS, dtype=torch.int16))
    assert [r.code for r in refusals(compiled)] == ["dtype"]


def test_a_gpu_gets_one_kernel_for_an_embedding_and_what_follows() -> None:
    (weight,) = fake((128256, 4096), dtype=torch.bfloat16)
    (index,) = fake((8, 1024), dtype=torch.int64)
    (report,) = traced(lambda i, w: functional.embedding(i, w) * 0.5, index, weight)
    assert "take" in primitives(report)
    assert report.plan.kernels == 1
    assert report.plan.bytes == report.plan.bytes_ideal == 8192 * (2 * 2 * 4096 + 8)


# ---- cross-entropy


def weights(classes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(0.5, 2.0, classes).to(dtype)


@each_pair(
    reduction=["mean", "none"],
    weighted=[False, True],
    ignored=[-100, 2],
    dtype=[torch.float32, torch.float64],
)
def test_cross_entropy(reduction: str, weighted: bool, ignored: int, dtype: torch.dtype) -> None:
    classes = 37
    target = torch.randint(classes, (19,))
    target[3::4] = ignored

    def program(x: Any, target: Any, weight: Any) -> Any:
        return functional.cross_entropy(
            x, target, weight, ignore_index=ignored, reduction=reduction
        )

    logits = torch.randn(19, classes, dtype=dtype).mul_(3).requires_grad_()
    compiled = check(program, logits, target, weights(classes, dtype) if weighted else None)
    assert any("gather" in [e.op for e in f.fusion.exprs] for f in fusions(compiled))


@each_value(
    reduction=["mean", "sum", "none"], given=[{}, {"label_smoothing": 0.1}, {"weighted": True}]
)
def test_cross_entropy_of_planes(reduction: str, given: dict[str, Any]) -> None:
    """Rows that are ignored are not among those that a mean is of, smoothed or not."""
    target = torch.randint(7, (4, 5))
    target[1, 3] = -100

    def program(x: Any, target: Any, weight: Any) -> Any:
        smoothing = given.get("label_smoothing", 0.0)
        return functional.cross_entropy(
            x, target, weight, reduction=reduction, label_smoothing=smoothing
        )

    for dtype in (torch.float32, torch.bfloat16):
        weight = weights(7, dtype) if "weighted" in given else None
        inputs = torch.randn(4, 7, 5).to(dtype), target, weight
        torch.testing.assert_close(jit(program)(*inputs), program(*inputs))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("sizes", [(), (5,), (3, 2), (2, 3, 2), (0,)], ids=str)
def test_torchs_gradient_of_planes(reduction: str, sizes: tuple[int, ...]) -> None:
    """Where no region has it, it has the shape of the input."""
    target = torch.randint(7, (4, *sizes))
    logits = torch.randn(4, 7, *sizes, requires_grad=True)

    def program(x: Any) -> Any:
        return functional.nll_loss(x, target, reduction=reduction)

    with options(fuel=0):
        ours = jit(program)(logits)
    eager = program(logits)
    seed = torch.randn(eager.shape)
    found, expected = (torch.autograd.grad(loss, logits, seed)[0] for loss in (ours, eager))
    torch.testing.assert_close(found, expected)


def test_a_language_model_of_two_matrices_learns() -> None:
    """Embedding, a matrix product and the loss: gradients of both matrices, step after step."""

    def loss(tokens: Any, target: Any, embedding: Any, head: Any) -> Any:
        hidden = torch.tanh(functional.embedding(tokens, embedding))
        return functional.cross_entropy(hidden @ head, target, ignore_index=-1)

    compiled = jit(loss)
    ours, theirs = ([table(grad=True), table(grad=True)] for _ in range(2))
    for mine, other in zip(ours, theirs, strict=True):
        mine.data.copy_(other.data)
    ours[1].data, theirs[1].data = (x[1].data.t().contiguous() for x in (ours, theirs))
    for step in range(3):
        tokens, target = torch.randint(ROWS, (2, 40))
        target[step::7] = -1
        values = [run(tokens, target, *w) for run, w in ((compiled, ours), (loss, theirs))]
        torch.testing.assert_close(values[0], values[1])
        for value, parameters in zip(values, (ours, theirs), strict=True):
            gradients = torch.autograd.grad(value, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.data -= gradient
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("wrong", [-1, COLUMNS])
def test_one_hot_and_a_class_that_does_not_exist(wrong: int) -> None:
    index = torch.randint(COLUMNS, (3, 5))
    compiled = check(lambda i: functional.one_hot(i, COLUMNS) * 2, index, fusion_count=1)
    assert not refusals(compiled)
    with pytest.raises(FuserIndexError, match=f"index {wrong} .* size {COLUMNS}"):
        compiled(torch.full((3, 5), wrong))


def test_lists_of_bools_are_masks() -> None:
    """They were taken for the indices 0 and 1, and True for the index 1."""
    kept = [True, False, True, True]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x[kept] * 2,
            x[..., kept],
            x[kept, 0],
            x[None, kept] * 3,
            x[True],
            x[1:, True],
        ]

    check(program, torch.randn(4, 4, dtype=torch.float64, requires_grad=True))
    with pytest.raises(IndexError, match="shape of the mask"):
        jit(lambda x: x[[True, False]])(torch.ones(4, 4))
    with pytest.raises(NotImplementedError, match="for False"):
        jit(lambda x: x[False])(torch.ones(4, 4))
    with pytest.raises(NotImplementedError, match="for False"):
        jit(lambda x: x[1:, True, kept])(torch.ones(4, 4))


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_lists_of_several_indices_are_tuples() -> None:
    """A list of slices raised an AttributeError; one of numbers is a list of indices."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        places = torch.tensor([0, 2])
        return [
            x[[slice(None), slice(0, 1)]],
            x[[..., 0]] * 2,
            x[[None, 1]],
            x[[[0, 1], [1, 0]]] * 2,
            x[[places, places]],
            x[[0, 1]],
        ]

    check(program, torch.randn(4, 4, dtype=torch.float64, requires_grad=True))


MASKS = {
    "bools": lambda x: x[x[:, 0] > 0] * 2,
    "bools beside a number": lambda x: x[x[:, 0] > 0, 1],
    "bytes": lambda x: x[(x[:, 0] > 0).byte()] * 2,
    "a bool without dimensions": lambda x: x[x.sum() > 0],
    "a bool, both without dimensions": lambda x: x.sum()[x.sum() > 0] * 2,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_masks_are_refused(name: str, requires_grad: bool) -> None:
    """Masks of bytes were taken for indices: what was computed of them had their size."""
    with pytest.raises(NotImplementedError, match=r"x\[mask\]: the size of its result depends"):
        jit(MASKS[name])(torch.randn(4, 4, requires_grad=requires_grad))


def test_slices_that_begin_or_end_before_the_first_element() -> None:
    """As where the last 512 words are read of 19; Thunder refused them."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y, z = x * 1, x * 1
        y[-9:2] = 0
        z[:, -5:-1] += x[:, -9:3]
        return [
            y,
            z,
            x[-512:] * 2,
            x[..., :-512],
            x[None, :, -9:-1],
            x[True, -9::2],
            x[-9:, [0, 1]],
        ]

    check(program, torch.randn(4, 4, dtype=torch.float64, requires_grad=True))


UPDATES: dict[str, Program] = {
    "sum": lambda x, i, y: (x * 2).scatter_(0, i, y, reduce="add") + 1,
    "product": lambda x, i, y: (x * 2).scatter_(0, i, y, reduce="multiply") + 1,
    "a number": lambda x, i, y: (x * 2).scatter_(0, i, 2.0, reduce="add") + 1,
}


@pytest.mark.parametrize("name", UPDATES)
def test_scatter_with_reduction(name: str) -> None:
    check(UPDATES[name], torch.randn(3, 4), torch.randint(3, (2, 4)), torch.randn(2, 4))


def test_index_copy_into_no_dimensions() -> None:
    x, y = (torch.randn((), requires_grad=True) for _ in range(2))
    check(lambda x, i, y: (x * 2).index_copy_(0, i, y) * y, x, torch.tensor(0), y)
