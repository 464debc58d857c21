"""CompiledFusion: which inputs share a compilation, which are right, and which are refused."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support import forked
from tests.support.building import op
from thunder_fuser import compiled_fusion
from thunder_fuser.compile import GeneratedPlan, compile_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime import executable_lru
from thunder_fuser.runtime.executable import Executable

Float = DataType.Float
ROOT = Path(__file__).resolve().parents[1]


def add_exp(sizes: tuple[int, ...] = (-1, -1)) -> CompiledFusion:
    """x + exp(y) of any two matrices."""
    b = FusionBuilder()
    x, y = (b.tensor(sizes, Float, contiguity=[False] * len(sizes)) for _ in range(2))
    b.output(op(b, "add", x, op(b, "exp", y)))
    return CompiledFusion(b.build(), "add_exp")


def assert_added(result: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """x + exp(y), to a few units in the last place of the larger operand: they may cancel."""
    x, exp = x.double(), y.double().exp()
    assert bool(((result.double() - (x + exp)).abs() <= 1e-6 * (x.abs() + exp)).all())


def scaled(factor: float) -> CompiledFusion:
    """`factor` times any vector."""
    b = FusionBuilder()
    x = b.tensor((-1,), Float, contiguity=[True])
    b.output(op(b, "mul", x, b.scalar(factor, Float)))
    return CompiledFusion(b.build(), "scaled")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are compiled from here on."""
    seen: list[str] = []
    original = compile_kernels

    def counted(kernels, *more):  # type: ignore[no-untyped-def]
        seen.extend(generated.kernel.name for generated in kernels.values())
        return original(kernels, *more)

    monkeypatch.setattr("thunder_fuser.compile.compile_kernels", counted)
    return seen


# ---- inputs of any layout

LAYOUTS: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "dense": lambda d: torch.randn(6, 8, device=d),
    "transposed": lambda d: torch.randn(8, 6, device=d).t(),
    "gaps between rows": lambda d: torch.randn(6, 11, device=d)[:, :8],
    "every other column": lambda d: torch.randn(6, 16, device=d)[:, ::2],
    "repeated rows": lambda d: torch.randn(1, 8, device=d).expand(6, 8),
    "repeated columns": lambda d: torch.randn(6, 1, device=d).expand(6, 8),
    "one number": lambda d: torch.randn((), device=d).expand(6, 8),
    "4 bytes off": lambda d: torch.randn(49, device=d)[1:].view(6, 8),
    "12 bytes off": lambda d: torch.randn(51, device=d)[3:].view(6, 8),
    "overlapping windows": lambda d: torch.randn(13, device=d).as_strided((6, 8), (1, 1)),
    "wanting gradients": lambda d: torch.randn(6, 8, device=d, requires_grad=True),
    "a parameter": lambda d: torch.nn.Parameter(torch.randn(6, 8, device=d)),
    "one row": lambda d: torch.randn(1, 8, device=d),
    "one element": lambda d: torch.randn(1, 1, device=d),
    "no row": lambda d: torch.randn(0, 8, device=d),
    "no column": lambda d: torch.randn(6, 0, device=d),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout(device: torch.device, layout: str) -> None:
    x = LAYOUTS[layout](device)
    y = torch.randn(x.shape, device=device)
    compiled = add_exp()
    for first, second in ((x, y), (y, x)):
        (result,) = compiled([first, second])
        assert_added(result, first.detach(), second.detach())
        assert not result.requires_grad


def test_a_compiled_fusion_is_specialised_for_each_kind_of_inputs(
    device: torch.device, compilations: list[str]
) -> None:
    compiled = add_exp()
    x = torch.randn(6, 8, device=device)
    misaligned = torch.randn(49, device=device)[1:].view(6, 8)
    kinds = [(x, x), (x, x.clone()), (x.t().contiguous().t(), x), (misaligned, x), (x[:3], x[:3])]
    for first, second in kinds * 2:
        (result,) = compiled([first, second])
        assert_added(result, first, second)
    # The first two kinds are one.
    assert len(compiled.executables) == len(kinds) - 1
    assert len(compilations) == len(kinds) - 1


def test_static_sizes_are_compiled_once(device: torch.device, compilations: list[str]) -> None:
    compiled = add_exp((6, 8))
    for _ in range(3):
        x, y = torch.randn(6, 8, device=device), torch.randn(6, 8, device=device)
        (result,) = compiled([x, y])
        assert_added(result, x, y)
    assert len(compilations) == 1


def test_numbers_that_are_sizes_are_part_of_the_key(
    device: torch.device, compilations: list[str]
) -> None:
    b = FusionBuilder()
    x = b.tensor([-1], Float)
    count = b.scalar(None, DataType.Int)
    b.output(op(b, "neg", b.expand(b.broadcast(x, [True, False]), [count, -1])))
    compiled = CompiledFusion(b.build())
    data = torch.randn(5, device=device)
    for n in (3, 4, 3):
        (result,) = compiled([data, n])
        assert torch.equal(result, -data.expand(n, 5))
    assert len(compilations) == 2


def test_threads_that_come_first_together_compile_once(
    device: torch.device, compilations: list[str]
) -> None:
    compiled = add_exp()
    x = torch.randn(6, 8, device=device)
    start = threading.Barrier(4)
    results: list[torch.Tensor] = []

    def call() -> None:
        start.wait()
        results.extend(compiled([x, x]))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(r, results[0]) for r in results)
    assert_added(results[0], x, x)
    assert len(compilations) == len(compiled.executables) == 1


def test_known_inputs_do_not_wait_for_a_compilation_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = add_exp()
    known, latest, new = (torch.ones(n, n) for n in (2, 3, 4))
    for x in (known, latest):
        compiled([x, x])
    link, compiling, go_on = compiled_fusion.link_plan, threading.Event(), threading.Event()

    def link_slowly(generated: GeneratedPlan) -> Executable:
        compiling.set()
        assert go_on.wait(60)
        return link(generated)

    monkeypatch.setattr(compiled_fusion, "link_plan", link_slowly)
    compiler = threading.Thread(target=compiled, args=([new, new],))
    callers = [threading.Thread(target=compiled, args=([known, known],)) for _ in range(2)]
    compiler.start()
    assert compiling.wait(60)
    for thread in callers:
        thread.start()
        thread.join(30)
    are_done = not any(thread.is_alive() for thread in callers)
    go_on.set()
    for thread in (compiler, *callers):
        thread.join()
    assert are_done


# ---- mistakes


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([torch.ones(2, 2)], FuserValueError, "takes 2 inputs"),
        ([torch.ones(2, 2), 1.0], FuserTypeError, "T1.*scalar 1.0"),
        ([torch.ones(2, 2), torch.ones(2, 2).double()], FuserTypeError, "T1.*Float.*Double"),
        ([torch.ones(2, 2), torch.ones(2)], FuserValueError, "T1.*rank 2.*rank 1"),
        ([torch.ones(2, 2), torch.ones(2, 3)], FuserValueError, r"\b2\b.*\b3\b"),
        ([torch.ones(2, 2), torch.ones(2, 2).to_sparse()], FuserTypeError, "T1.*dense"),
    ],
    ids=["number", "scalar", "dtype", "rank", "sizes", "sparse"],
)
def test_mistakes_are_found_before_anything_is_compiled(
    compilations: list[str], inputs: list[object], error: type[FuserError], message: str
) -> None:
    compiled = add_exp()
    with pytest.raises(error, match=f"(?s){message}"):
        compiled(inputs)
    assert compilations == []
    assert compiled.executables == ()


def test_options_hold_for_what_was_compiled_before_too(compilations: list[str]) -> None:
    b = FusionBuilder()
    x = b.tensor((64,), DataType.BFloat16)
    rounded = b.cast(op(b, "mul", b.cast(x, Float), 1.001), DataType.BFloat16)
    b.output(b.cast(op(b, "mul", b.cast(rounded, Float), 3.0), DataType.BFloat16))
    compiled = CompiledFusion(b.build())
    number = torch.linspace(-4, 4, 64).bfloat16()
    once = (number.double() * 1.001 * 3.0).bfloat16()
    twice = ((number.float() * 1.001).bfloat16().float() * 3.0).bfloat16()
    assert not torch.equal(once, twice)
    for _ in range(2):
        assert torch.equal(compiled([number])[0], twice)
        with options(precision="fast"):
            assert torch.equal(compiled([number])[0], once)
    assert len(compilations) == len(compiled.executables) == 2


def test_updates_of_memory_that_others_share_are_refused_at_every_call() -> None:
    b = FusionBuilder()
    x, y = (b.tensor([4], Float, contiguity=[False]) for _ in range(2))
    b.output(op(b, "add", x, y), x)
    compiled = CompiledFusion(b.build())
    memory = torch.zeros(16)
    left, right = memory[:4], memory[8:12].fill_(1.0)
    compiled([left, right])
    assert left.tolist() == [1.0] * 4
    with pytest.raises(FuserValueError, match="shares memory"):
        compiled([memory[8:12], right])
    with pytest.raises(FuserValueError, match="share memory"):
        compiled([memory[:1].expand(4), right])
    # A kind of inputs that has been compiled for, at an address where it has not been.
    with pytest.raises(FuserValueError, match="shares memory"):
        compiled([memory[4:8], memory[4:8]])
    assert memory.tolist() == [1.0] * 4 + [0.0] * 4 + [1.0] * 4 + [0.0] * 4


# ---- without a device


def fake(*shape: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device="cuda")


def test_plans_and_kernels_for_a_gpu_need_none() -> None:
    compiled = add_exp()
    inputs = [fake(8192, 1024), fake(8192, 1024)]
    plan = compiled.plan(inputs)
    assert (plan.kernels, plan.bytes) == (1, 3 * 8192 * 1024 * 4)
    with options(cuda_arch="sm_90"):
        (kernel,) = compiled.kernels(inputs)
    assert "tf::load<4>" in kernel.source
    assert compiled.executables == ()


def test_fake_tensors_cannot_be_computed_with() -> None:
    with pytest.raises(FuserTypeError, match="fake"):
        add_exp()([fake(4, 4), fake(4, 4)])


# ---- the cache on disk


def test_the_longest_unused_executable_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_lru.EXECUTABLES, "_known", [])
    evicted = executable_lru.EXECUTABLES.evicted
    compiled, other = scaled(3), scaled(4)
    inputs = [torch.randn(n) for n in (8, 9, 10)]
    with options(executables=3):
        for x in (*inputs[:2], inputs[0]):
            compiled([x])
        first, second = compiled.executables
        other([inputs[0]])
        assert len(compiled.executables) == 2
        other([inputs[1]])
        assert compiled.executables == (first,)  # which was used after the second
        gone = weakref.ref(second)
        del second
        assert gone() is None
        assert executable_lru.EXECUTABLES.evicted == evicted + 1
        # It is made again, and another one goes.
        torch.testing.assert_close(compiled([inputs[1]])[0], inputs[1] * 3)
        assert first not in compiled.executables
        assert compiled.latest is not None
        assert len(executable_lru.EXECUTABLES) == 3


def test_a_fusion_that_went_is_no_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_lru.EXECUTABLES, "_known", [])
    compiled = scaled(5)
    compiled([torch.randn(8)])
    assert len(executable_lru.EXECUTABLES) == 1
    del compiled
    gc.collect()
    assert len(executable_lru.EXECUTABLES) == 0


SCRIPT = """
import torch
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.compiled_fusion import CompiledFusion
b = FusionBuilder()
x = b.tensor([1000], DataType.Float)
b.output(b.pointwise("exp", x))
data = torch.linspace(-3, 3, 1000)
(result,) = CompiledFusion(b.build())([data])
print(torch.allclose(result, data.exp(), rtol=1e-6))
"""


def run_script(cache: Path) -> None:
    result = forked.run(SCRIPT, THUNDER_FUSER_CACHE_DIR=str(cache))
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


def test_damaged_cache_entries_are_compiled_again(tmp_path: Path) -> None:
    run_script(tmp_path)
    entries = {path: path.read_bytes() for path in (tmp_path / "host").glob("*.so")}
    assert any("exp" in path.name for path in entries)
    for k, (path, content) in enumerate(sorted(entries.items())):
        half = len(content) // 2
        flipped = bytes(byte ^ 0xFF for byte in content[half : half + 64])
        damaged = content[:half] if k % 2 else content[:half] + flipped + content[half + 64 :]
        assert damaged != content
        path.write_bytes(damaged)
    run_script(tmp_path)
    assert set((tmp_path / "host").glob("*.so")) == entries.keys()
    assert {path: path.read_bytes() for path in entries} == entries
