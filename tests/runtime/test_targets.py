"""What a target promises, on every target that is present: the same kernels, the same numbers."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.runtime.hand_written import F32_IN, F32_OUT, kernel, scale
from thunder_fuser.codegen.kernel import Param
from thunder_fuser.config import options
from thunder_fuser.device_table import A100, H200
from thunder_fuser.errors import CompileError, KernelError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.target import Target, planned_for

COUNT = Param("n", "int")


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.randn(1000, device=device, generator=torch.Generator(device).manual_seed(0))


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (4, 256), (13, 96), (8, 1024)])
def test_every_element_is_computed_once(
    target: Target, x: torch.Tensor, grid: int, block: int
) -> None:
    (launch,) = target.compile([scale(grid=(grid, 1, 1), block=(block, 1, 1))])
    y = torch.full_like(x, torch.nan)
    launch(x.data_ptr(), y.data_ptr(), 0.3, len(x))
    # One multiplication in fp32, of 0.3 rounded to fp32.
    truth = x.double() * torch.tensor(0.3).double().item()
    assert torch.equal(y, truth.float())


def test_kernels_of_one_program_keep_their_order(target: Target, x: torch.Tensor) -> None:
    names = [f"scale_{n}" for n in range(5)]
    launches = target.compile([scale(name) for name in names])
    assert [launch.kernel.name for launch in launches] == names
    y, z = torch.empty_like(x), torch.empty_like(x)
    launches[3](x.data_ptr(), y.data_ptr(), 2.0, len(x))
    launches[0](y.data_ptr(), z.data_ptr(), 4.0, len(x))
    assert torch.equal(z, 8 * x)


def test_every_kind_of_parameter_arrives(target: Target, device: torch.device) -> None:
    kinds = {
        "bool": True,
        "int": -(2**31),
        "unsigned": 2**32 - 1,
        "long long": -(2**40),
        "float": 1.5,
        "double": 1e-300,
    }
    params = [Param(f"p{n}", ctype) for n, ctype in enumerate(kinds)]
    stores = "\n".join(f"  y[{n}] = (double)p{n};" for n in range(len(kinds)))
    everything = kernel("everything", stores, (*params, Param("y", "double*")), block=(1, 1, 1))
    (launch,) = target.compile([everything])
    y = torch.zeros(len(kinds), dtype=torch.float64, device=device)
    launch(*kinds.values(), y.data_ptr())
    assert y.tolist() == [float(value) for value in kinds.values()]


def test_threads_of_a_block_exchange_values(target: Target, x: torch.Tensor) -> None:
    body = (
        "  TF_SHARED(bytes);\n  float* s = (float*)bytes;\n"
        "  s[threadIdx.x] = x[threadIdx.x];\n  __syncthreads();\n"
        "  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];"
    )
    reverse = kernel(
        "reverse", body, (F32_IN, F32_OUT), block=(1000, 1, 1), shared_bytes=4000, collectives=True
    )
    (launch,) = target.compile([reverse])
    y = torch.empty_like(x)
    launch(x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x.flip(0))


def test_more_than_48_kib_of_shared_memory(target: Target, x: torch.Tensor) -> None:
    bytes_ = 200 << 10
    body = (
        "  TF_SHARED(bytes);\n  float* s = (float*)bytes;\n"
        f"  const int last = {bytes_ // 4} - 1;\n"
        "  s[last - threadIdx.x] = x[threadIdx.x];\n  __syncthreads();\n"
        "  y[threadIdx.x] = s[last - (999 - threadIdx.x)];"
    )
    reverse = kernel(
        "big", body, (F32_IN, F32_OUT), block=(1000, 1, 1), shared_bytes=bytes_, collectives=True
    )
    (launch,) = target.compile([reverse])
    y = torch.empty_like(x)
    launch(x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x.flip(0))


def test_blocks_of_a_cooperative_launch_wait_for_each_other(
    target: Target, device: torch.device
) -> None:
    # Each block writes its number, and after the barrier reads that of the opposite block.
    body = (
        "  if (threadIdx.x == 0) y[blockIdx.x] = (float)blockIdx.x;\n"
        "  tf::grid_barrier(gridDim.x);\n"
        "  if (threadIdx.x == 0) y[gridDim.x + blockIdx.x] = y[gridDim.x - 1 - blockIdx.x];"
    )
    params = (Param("y", "volatile float*"),)
    meet = kernel(
        "meet", body, params, grid=(24, 1, 1), block=(64, 1, 1), collectives=True, cooperative=True
    )
    (launch,) = target.compile([meet])
    y = torch.zeros(48, device=device)
    for _ in range(3):
        launch(y.zero_().data_ptr())
    assert y[24:].tolist() == [float(n) for n in reversed(range(24))]


def test_a_grid_without_blocks_does_nothing(target: Target, x: torch.Tensor) -> None:
    (launch,) = target.compile([scale(grid=(0, 1, 1))])
    y = torch.zeros_like(x)
    launch(x.data_ptr(), y.data_ptr(), 2.0, len(x))
    assert not y.any()


def test_threads_launch_the_same_kernel_at_the_same_time(target: Target, x: torch.Tensor) -> None:
    (launch,) = target.compile([scale(grid=(4, 1, 1), block=(128, 1, 1))])
    results: dict[int, torch.Tensor] = {}

    def work(a: int) -> None:
        for _ in range(20):
            y = torch.empty_like(x)
            launch(x.data_ptr(), y.data_ptr(), float(a), len(x))
        results[a] = y

    threads = [threading.Thread(target=work, args=(a,)) for a in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, a * x) for a, y in results.items())
    assert len(results) == 4


def test_a_launch_beyond_the_limits_is_refused_when_it_is_compiled(target: Target) -> None:
    with pytest.raises(KernelError, match="1025 threads in a block, the limit is 1024"):
        target.compile([scale(block=(1025, 1, 1))])


def test_a_kernel_that_does_not_compile_is_reported_with_its_source(target: Target) -> None:
    with pytest.raises(CompileError, match="undeclared") as caught:
        target.compile([kernel("bad", "  y[0] = undeclared;", (F32_IN, F32_OUT, COUNT))])
    assert caught.value.source is not None
    assert "y[0] = undeclared;" in caught.value.source.read_text()
    assert "undeclared" in caught.value.log


@pytest.mark.gpu
def test_launches_follow_the_current_stream() -> None:
    from thunder_fuser.runtime.cuda.target import CUDA

    (launch,) = CUDA.compile([scale(grid=(512, 1, 1), block=(256, 1, 1))])
    x = torch.ones(1 << 24, device="cuda")
    y = torch.empty_like(x)
    launch(x.data_ptr(), y.data_ptr(), 1.0, len(x))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # Slow enough for a launch on another stream to overtake it.
        for _ in range(50):
            x += 1
        launch(x.data_ptr(), y.data_ptr(), 2.0, len(x))
    stream.synchronize()
    assert y.unique().tolist() == [102.0]


def test_plans_of_tests_are_for_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An A100 in the machine would be another one, with other plans and other figures."""
    monkeypatch.setattr(cuda_driver, "driver_problem", lambda: "")
    monkeypatch.setattr(cuda_driver, "describe", lambda _: A100)
    with FakeTensorMode():
        device = torch.empty(1, device="cuda").device
    assert planned_for(device) is H200
    monkeypatch.setattr(cuda_driver, "driver_available", lambda: True)
    monkeypatch.setattr(cuda_driver, "has_clusters", lambda _: False)
    assert planned_for(torch.device("cuda", 0)) == A100


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("arch", [None, "sm_90", "sm_100"])
def test_clusters_can_be_done_without(device: str, arch: str | None) -> None:
    if device == "cuda" and cuda_driver.driver_available():
        pytest.skip("what this GPU has")
    with options(cuda_arch=arch):
        assert planned_for(torch.device(device)).largest_cluster == 8
    with options(cuda_arch=arch, clusters=False):
        found = planned_for(torch.device(device))
    assert (found.clusters, found.sms_of_clusters(1)) == ((), found.sm_count)


@pytest.mark.gpu
def test_launches_are_captured_in_cuda_graphs() -> None:
    from thunder_fuser.runtime.cuda.target import CUDA

    (launch,) = CUDA.compile([scale()])
    x, y = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    launch(x.data_ptr(), y.data_ptr(), 1.0, 100)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x.data_ptr(), y.data_ptr(), 3.0, 100)
    y.zero_()
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [15.0] * 100


@pytest.mark.gpu
def test_backward_threads_of_autograd_can_launch() -> None:
    from thunder_fuser.runtime.cuda.target import CUDA

    (launch,) = CUDA.compile([scale()])

    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            result = torch.empty_like(grad)
            launch(grad.data_ptr(), result.data_ptr(), 3.0, grad.numel())
            return result

    x = torch.ones(100, device="cuda", requires_grad=True)
    Triple.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 100
