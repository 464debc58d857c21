"""fd.ops.uniform and normal: which numbers they are, and that they are the same anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.frontends.definition.rebuilding import executed, rebuilt
from tests.support.batch import Batch, executable
from tests.support.shares import each_pair, each_value
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.frontends.definition.recording.values import Tensor
from thunder_fuser.ir.dtypes import compute_dtype
from thunder_fuser.ir.printer import equal, structural_hash
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables.random import DTYPES

CPU = torch.device("cpu")
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def drawn(
    op: str,
    shape: list[int],
    *,
    dtype: DataType = DataType.Float,
    parameters: tuple[float, float] = (0.0, 1.0),
    seed: int = 42,
    offset: int = 3,
) -> FusionDefinition:
    with FusionDefinition() as fd:
        draw = getattr(fd.ops, op)
        fd.add_output(draw(*parameters, shape, rng_seed=seed, rng_offset=offset, dtype=dtype))
    return fd


def numbers(op: str, shape: list[int], **options: object) -> torch.Tensor:
    """On the host."""
    (found,) = drawn(op, shape, **options).execute([], device=CPU)  # type: ignore[arg-type]
    return found


# ---- which numbers


@EACH_DTYPE
@each_value(
    parameters=[(0.0, 1.0), (-0.1, 0.7), (3.0, 3.0), (-1e4, 1e4)],
    shape=[[0], [1], [7], [3, 5, 11], [64, 96]],
)
def test_uniform_has_the_bits_of_the_reference(
    device: torch.device, dtype: DataType, parameters: tuple[float, float], shape: list[int]
) -> None:
    """And so a CPU and a GPU draw the same."""
    fd = drawn("uniform", shape, dtype=dtype, parameters=parameters, seed=-5, offset=2**40)
    (expected,) = evaluate(fd.fusion, []).outputs
    (found,) = fd.execute([], device=device)
    assert torch.equal(found.cpu(), expected)


@EACH_DTYPE
def test_normal_is_the_reference_up_to_logarithm_and_sine(
    device: torch.device, dtype: DataType
) -> None:
    fd = drawn("normal", [64, 97], dtype=dtype, parameters=(-2.0, 3.0))
    (truth,) = evaluate(fd.fusion, [], double=True).outputs
    found = fd.execute([], device=device)[0].cpu()
    error = (found.double() - truth).abs()
    wide = torch.finfo(torch.float64 if dtype is DataType.Double else torch.float32).eps
    own = wide * (16 * (truth + 2).abs() + truth.abs())
    assert (error <= own + torch.finfo(dtype.torch).eps / 2 * (truth.abs() + own)).all()
    if dtype is not DataType.Double:
        fd.validate([], device=device)


@pytest.mark.parametrize("words", [(0, 0), (7, 2**31), (2**32 - 9, 2**32 - 1)], ids=str)
@pytest.mark.parametrize("shape", [[7], [3, 5, 11]], ids=str)
def test_bernoulli_has_the_bits_of_the_reference(
    device: torch.device, words: tuple[int, int], shape: list[int]
) -> None:
    fd = drawn("bernoulli", shape, dtype=DataType.Bool, parameters=words)
    (expected,) = evaluate(fd.fusion, []).outputs
    (found,) = fd.execute([], device=device)
    assert torch.equal(found.cpu(), expected)
    fd.validate([], device=device)


def test_bernoulli_is_true_as_often_as_it_says() -> None:
    found = numbers("bernoulli", [COUNT], dtype=DataType.Bool, parameters=(2**31, 3 << 30))
    assert within(found.float().mean(), 0.75, 0.75 * 0.25)


def test_an_element_has_its_number_whatever_the_shape_is() -> None:
    for op, dtype in [("uniform", DataType.Double), ("normal", DataType.Float)]:
        flat = numbers(op, [1000], dtype=dtype)
        assert torch.allclose(numbers(op, [50], dtype=dtype), flat[:50], rtol=1e-6, atol=0)
        square = numbers(op, [8, 25], dtype=dtype)
        assert torch.allclose(square, flat[:200].view(8, 25), rtol=1e-6, atol=0)


def test_the_first_numbers_are_those_of_the_published_words() -> None:
    """Random123's vector for a zero key and counter, each word in the middle of its interval."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    exact = torch.tensor([(word + 0.5) / 2**32 for word in words], dtype=torch.float64)
    assert torch.equal(numbers("uniform", [4], seed=0, offset=0), exact.float())


@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Half], ids=str)
def test_a_number_that_rounds_to_the_upper_bound_is_the_lower_one(dtype: DataType) -> None:
    precise = numbers("uniform", [2**16])
    found = numbers("uniform", [2**16], dtype=dtype)
    rounded = precise.to(dtype.torch)
    assert (rounded == 1).sum() > 5
    assert torch.equal(found, torch.where(rounded == 1, 0, rounded))


@pytest.mark.parametrize(
    ("call", "place", "expected"),
    [
        # Word 0 is 0xffffff87, which is 1 as a float: a radius of zero.
        (17_367_479, 0, [0.0, 0.0]),
        # Word 1 is 0xffffffc3: an angle of a whole turn, or none.
        (1_528_018, 1, [0.0, None]),
    ],
)
def test_words_that_are_one_as_a_float(call: int, place: int, expected: list[float | None]) -> None:
    def drawn_there(op: str) -> list[float]:
        with FusionDefinition() as fd:
            r = getattr(fd.ops, op)(0.0, 1.0, [4 * call + 4], rng_seed=42, rng_offset=0)
            fd.add_output(fd.ops.mul(fd.ops.slice(r, [4 * call], [4 * call + 4]), 1.0))
        (found,) = fd.execute([], device=CPU)
        return [float(x) for x in found]

    assert drawn_there("uniform")[place] == 0
    found = drawn_there("normal")
    assert all(map(math.isfinite, found))
    for number, wanted in zip(found, expected, strict=False):
        assert number != 0 if wanted is None else number == wanted


COUNT = 2**18


def within(found: torch.Tensor, expected: float, variance: float) -> bool:
    """Whether a mean of COUNT numbers is within five standard errors."""
    return bool(abs(found.double().mean() - expected) < 5 * (variance / COUNT) ** 0.5)


@EACH_DTYPE
def test_moments(dtype: DataType) -> None:
    u = numbers("uniform", [COUNT], dtype=dtype).double()
    # Rounding to few bits moves what is near 1 to 0, and spreads the rest a little.
    slack = 0.0 if dtype.itemsize > 2 else 2.0 * torch.finfo(dtype.torch).eps
    assert abs(u.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5 + slack
    assert abs((u - 0.5).square().mean() - 1 / 12) < 5 * (1 / 180 / COUNT) ** 0.5 + slack
    z = numbers("normal", [COUNT], dtype=dtype).double()
    assert within(z, 0, 1)
    assert abs(z.square().mean() - 1) < 5 * (2 / COUNT) ** 0.5 + slack
    assert within(z**3, 0, 15)
    assert abs((z**4).mean() - 3) < 5 * (96 / COUNT) ** 0.5 + 10 * slack


@pytest.mark.parametrize("op", ["uniform", "normal"])
def test_neighbours_seeds_and_offsets_do_not_depend_on_each_other(op: str) -> None:
    mean, variance = {"uniform": (0.5, 1 / 12), "normal": (0.0, 1.0)}[op]
    first = numbers(op, [COUNT], dtype=DataType.Double) - mean
    others = [
        *(first.roll(k) for k in (1, 2, 3, 4)),
        numbers(op, [COUNT], dtype=DataType.Double, seed=43) - mean,
        numbers(op, [COUNT], dtype=DataType.Double, offset=4) - mean,
        numbers(op, [COUNT], dtype=DataType.Double, seed=42 + 2**32) - mean,
        numbers(op, [COUNT], dtype=DataType.Double, offset=3 + 2**32) - mean,
    ]
    for other in others:
        assert within(first * other, 0, variance**2)


def test_buckets_are_equally_full() -> None:
    counts = torch.histc(numbers("uniform", [COUNT]), bins=256, min=0, max=1).double()
    expected = COUNT / 256
    chi2 = ((counts - expected).square() / expected).sum()
    # 255 degrees of freedom: mean 255, variance 510.
    assert abs(chi2 - 255) < 5 * 510**0.5


# ---- the same number anywhere


Read = Callable[[FusionDefinition, Tensor], Tensor]

READS: dict[str, tuple[Read, Callable[[torch.Tensor], torch.Tensor]]] = {
    "permuted": (lambda fd, r: fd.ops.permute(r, [2, 0, 1]), lambda r: r.permute(2, 0, 1)),
    "sliced": (
        lambda fd, r: fd.ops.slice(r, [1, 3, 5], [5, 20, 45]),
        lambda r: r[1:5, 3:20, 5:45],
    ),
    "strided": (
        lambda fd, r: fd.ops.slice(r, [0, 1, 2], [6, 24, 48], [1, 3, 2]),
        lambda r: r[:, 1::3, 2::2],
    ),
    "flattened": (lambda fd, r: fd.ops.reshape(r, [6 * 24 * 48]), lambda r: r.flatten()),
    "padded": (
        lambda fd, r: fd.ops.pad(r, [3, 2, 1, 0]),
        lambda r: torch.nn.functional.pad(r, [3, 2, 1, 0]),
    ),
    "beside itself": (lambda fd, r: fd.ops.cat([r, r], dim=1), lambda r: torch.cat([r, r], 1)),
    "broadcast": (
        lambda fd, r: fd.ops.broadcast_in_dim(r, [6, 24, 5, 48], [0, 1, 3]),
        lambda r: r.unsqueeze(2).expand(6, 24, 5, 48),
    ),
    "plus its transpose": (
        lambda fd, r: fd.ops.add(r, fd.ops.reshape(fd.ops.permute(r, [0, 2, 1]), [6, 24, 48])),
        lambda r: r + r.permute(0, 2, 1).reshape(6, 24, 48),
    ),
    "at indices": (
        lambda fd, r: fd.ops.index_select(
            r, fd.ops.remainder(fd.ops.mul(fd.ops.iota(48), 7), 24), dim=1
        ),
        lambda r: r[:, torch.arange(48) * 7 % 24],
    ),
    "less its mean": (
        lambda fd, r: fd.ops.sub(r, fd.ops.max(r, [2], keepdim=True)),
        lambda r: r - r.amax(2, keepdim=True),
    ),
}


@each_pair(
    name=list(READS),
    dtype=[DataType.Float, DataType.Double, DataType.Half],
    schedule=["own", "H200"],
)
def test_a_number_is_the_same_wherever_it_is_computed(
    device: torch.device, name: str, dtype: DataType, schedule: str
) -> None:
    """No number is in memory: each is computed at the index that the reader asks for."""
    if schedule == "H200" and device.type == "cuda":
        pytest.skip("a GPU's schedule is its own")
    shape = [6, 24, 48]
    ours, theirs = READS[name]
    with FusionDefinition() as fd:
        r = fd.ops.uniform(0.0, 1.0, shape, rng_seed=42, rng_offset=3, dtype=dtype)
        read = ours(fd, r)
        fd.add_output(fd.ops.mul(read, 2.0))
    plan = fd.plan()
    assert sum(segment.bytes_read for segment in plan.segments) == 0
    batch = Batch(device, H200 if schedule == "H200" else None)
    (found,) = executable(CompiledFusion(fd.fusion), [], batch, device)([])
    plain = numbers("uniform", shape, dtype=dtype).to(compute_dtype(dtype).torch)
    assert torch.equal(found.cpu(), 2 * theirs(plain))


@pytest.mark.parametrize("op", ["uniform", "normal"])
def test_threads_do_not_matter(op: str) -> None:
    found = []
    for threads in (1, 2, 5):
        with options(host_threads=threads):
            found.append(numbers(op, [513, 257]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


# ---- seeds and offsets


def test_seed_and_offset_may_be_inputs_and_nothing_is_compiled_again() -> None:
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(None, dtype=DataType.Int) for _ in range(2))
        fd.add_output(fd.ops.uniform(0.0, 1.0, [100], rng_seed=seed, rng_offset=offset))
    for state in [(42, 3), (-1, 0), (2**63 - 1, 2**63 - 1), (-(2**63), 7)]:
        (found,) = fd.execute([*state], device=CPU)
        assert torch.equal(found, numbers("uniform", [100], seed=state[0], offset=state[1]))
    assert len(fd.compiled.executables) == 1


def test_bounds_may_be_inputs() -> None:
    with FusionDefinition() as fd:
        low, high = (fd.define_scalar(None, dtype=DataType.Double) for _ in range(2))
        fd.add_output(fd.ops.uniform(low, high, [100], rng_seed=42, rng_offset=3))
    (found,) = fd.execute([-0.1, 0.7], device=CPU)
    assert torch.equal(found, numbers("uniform", [100], parameters=(-0.1, 0.7)))


def stateful() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.uniform(0.0, 1.0, [64]))
        x = fd.define_tensor([8, 8], True, DataType.Double)
        fd.add_output(fd.ops.rand_like(x))
        fd.add_output(fd.ops.randn_like(x))
        fd.add_output(fd.ops.normal(0.0, 1.0, [64], dtype=DataType.Double))
    return fd


def test_without_a_seed_a_call_draws_once_from_torch() -> None:
    fd, x = stateful(), torch.zeros(8, 8, dtype=torch.float64)
    torch.manual_seed(5)
    first, second = fd.execute([x]), fd.execute([x])
    after = torch.get_rng_state()
    torch.manual_seed(5)
    again = fd.validate([x])
    seed = int(torch.get_rng_state().sum())
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, second))
    assert not torch.equal(first[2].flatten(), first[3])
    fd.plan([x]), fd.kernels([x])
    assert int(torch.get_rng_state().sum()) == seed
    torch.manual_seed(5)
    seeds = [int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), after)
    for outputs, drawn_seed in zip((first, second), seeds, strict=True):
        assert torch.equal(outputs[0], numbers("uniform", [64], seed=drawn_seed, offset=0))
        explicit = numbers("uniform", [64], seed=drawn_seed, offset=1, dtype=DataType.Double)
        assert torch.equal(outputs[1].flatten(), explicit)


@pytest.mark.gpu
def test_on_a_gpu_operation_i_after_a_seed_has_offset_i() -> None:
    fd, x = stateful(), torch.zeros(8, 8, dtype=torch.float64, device="cuda")
    torch.cuda.manual_seed(17)
    for first in (0, 4):
        outputs = [t.cpu() for t in fd.execute([x])]
        assert torch.cuda.default_generators[0].get_offset() == 4 * (first + 4)
        assert torch.equal(outputs[0], numbers("uniform", [64], seed=17, offset=first))
        beside = numbers("uniform", [64], seed=17, offset=first + 1, dtype=DataType.Double)
        assert torch.equal(outputs[1].flatten(), beside)


def test_what_is_printed_draws_again() -> None:
    fd = stateful()
    fusion = fd.fusion
    assert [v.dtype for v in fusion.inputs] == [DataType.Double] + 5 * [DataType.Int]
    assert "define_scalar" not in str(fd)
    other = rebuilt(fusion)
    assert equal(other, fusion)
    assert other.draws == fusion.draws == 4


def test_a_script_draws_the_same_numbers() -> None:
    fd = stateful()
    torch.manual_seed(1)
    fd.execute([torch.zeros(8, 8, dtype=torch.float64)], save_repro_inputs=True)
    torch.manual_seed(1)
    drawn_seed = int(torch.empty((), dtype=torch.int64).random_())
    assert f"    {drawn_seed}," in fd.last_repro_script()


def test_sizes_may_be_open() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        noise = fd.ops.uniform(0.0, 1.0, fd.ops.shape(x), rng_seed=42, rng_offset=3)
        fd.add_output(fd.ops.add(x, noise))
    assert equal(rebuilt(fd.fusion), fd.fusion)
    for shape in ([4, 6], [9, 1], [0, 3]):
        (found,) = fd.execute([torch.zeros(shape)])
        assert torch.equal(found, numbers("uniform", shape))


def test_a_definition_is_another_with_another_seed_offset_or_distribution() -> None:
    same = [drawn("uniform", [4]) for _ in range(2)]
    others = [
        drawn("uniform", [4], seed=1),
        drawn("uniform", [4], offset=1),
        drawn("uniform", [5]),
        drawn("normal", [4]),
        drawn("uniform", [4], dtype=DataType.Half),
        drawn("uniform", [4], parameters=(0.0, 2.0)),
    ]
    hashes = [structural_hash(fd.fusion) for fd in (*same, *others)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 1 + len(others)
    for fd in (*same, *others):
        assert equal(executed(repr(fd)), fd.fusion)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rng_seed": 1}, FuserValueError, "rng_seed and rng_offset go together"),
        ({"rng_offset": 1}, FuserValueError, "rng_seed and rng_offset go together"),
        ({"rng_seed": 1.5, "rng_offset": 0}, FuserTypeError, "rng_seed: expected an integer"),
        ({"rng_seed": 2**64, "rng_offset": 0}, FuserTypeError, "does not fit into 64 bits"),
        ({"dtype": DataType.Int}, FuserTypeError, "uniform: expected one of Float, Double"),
        ({"dtype": DataType.Float8_e5m2}, FuserTypeError, "uniform: expected one of Float"),
    ],
)
def test_mistakes_are_explained(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with FusionDefinition() as fd, pytest.raises(error, match=message):
        fd.ops.uniform(0.0, 1.0, [4], **arguments)


def test_bounds_and_deviations_are_checked() -> None:
    fd = FusionDefinition()
    with pytest.raises(FuserValueError, match=r"minval must not be above maxval, got 2\.0 and 1"):
        fd.ops.uniform(2.0, 1.0, [4])
    with pytest.raises(FuserValueError, match="std must not be negative"):
        fd.ops.normal(0.0, -1.0, [4])
    with pytest.raises(FuserValueError, match=r"first must be in 0\.\.2\^32 - 1, got -1"):
        fd.ops.bernoulli(-1, 5, [4])
    with pytest.raises(FuserValueError, match=r"count must be in 0\.\.2\^32 - 1, got 4294967296"):
        fd.ops.bernoulli(0, 2**32, [4])


@pytest.mark.parametrize("counts", [False, True], ids=["random", "counts"])
def test_a_reduction_writes_what_it_drew(counts: bool) -> None:
    """A result that reads nothing, as the mask of a dropout, and a norm that uses it."""
    rows, columns, kept = 6, 40, 0.5
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns])
        if counts:
            drawn = fd.ops.iota(fd.define_scalar(columns), dtype=DataType.Int)
            mask = fd.ops.broadcast_in_dim(fd.ops.lt(drawn, 24), [rows, columns], [1])
            fd.add_output(fd.ops.lt(drawn, 24))
        else:
            mask = fd.ops.lt(fd.ops.uniform(0.0, 1.0, [rows, columns], dtype=DataType.Float), kept)
            fd.add_output(mask)
        masked = fd.ops.mul(x, mask)
        fd.add_output(fd.ops.div(masked, fd.ops.sum(fd.ops.mul(masked, masked), [1], keepdim=True)))
    given = torch.randn(rows, columns)
    mask, found = fd.execute([given])
    masked = given.double() * mask
    torch.testing.assert_close(found.double(), masked / masked.square().sum(1, True))
    assert 0 < int(mask.sum()) < mask.numel()
    plan = fd.plan()
    assert plan.bytes == plan.bytes_ideal
    assert plan.kernels == 1 + counts, "each column's count is not written by each row"
