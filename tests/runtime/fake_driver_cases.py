"""The launch path against a driver that records and obeys: run by test_cuda_launch.py.

In a process of its own, because a process loads one libcuda.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch

from thunder_fuser import doctor
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, PIPES
from thunder_fuser.errors import (
    InternalError,
    KernelError,
    LimitError,
    LoadError,
    ResourceError,
    TargetError,
)
from thunder_fuser.runtime.cuda import clusters
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda import target as cuda_target
from thunder_fuser.runtime.cuda.target import CUDA, CudaLaunch
from thunder_fuser.runtime.fallback import is_replaceable
from thunder_fuser.runtime.scarcity import is_passing
from thunder_fuser.runtime.target import on_device

STREAM = 0x57EA
SCALE = Kernel(
    name="scale",
    source=(
        'extern "C" __global__ void scale(const float* x, float* y, float a, int n) {\n'
        "  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = a * x[i];\n}"
    ),
    headers=(),
    params=(
        Param("x", "const float*"),
        Param("y", "float*"),
        Param("a", "float"),
        Param("n", "int"),
    ),
    grid=(4, 3, 2),
    block=(128, 2, 1),
)


class LastLaunch(ctypes.Structure):
    """The record that the fake driver keeps."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("cooperative", ctypes.c_uint),
        ("stream", ctypes.c_ulonglong),
        ("launches", ctypes.c_uint),
        ("libraries", ctypes.c_uint),
    )


@pytest.fixture(autouse=True)
def torch_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "driver_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM + device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda device: (3, device, 1))
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def compiled(**changes: object) -> CudaLaunch:
    (launch,) = CUDA.compile([replace(SCALE, **changes)])
    return launch


def scale(launch: CudaLaunch, a: float, count: int = 100) -> torch.Tensor:
    """What the kernel makes of 0, 1, 2, ..."""
    x = torch.arange(count, dtype=torch.float32)
    y = torch.full_like(x, -1)
    launch(x.data_ptr(), y.data_ptr(), a, count)
    return y


def last() -> LastLaunch:
    return LastLaunch.in_dll(ctypes.CDLL("libcuda.so.1"), "fake_last")


@pytest.mark.parametrize(
    ("attribute", "value", "field", "expected"),
    [
        # Drivers of virtual devices report no clocks.
        ("MEMORY_CLOCK_RATE", 0, "bandwidth", A100.bandwidth),
        ("GLOBAL_MEMORY_BUS_WIDTH", 0, "bandwidth", A100.bandwidth),
        ("CLOCK_RATE", 0, "fp32_rate", A100.fp32_rate),
        ("L2_CACHE_SIZE", 0, "l2_bytes", A100.l2_bytes),
        # A slice of a device, with the memory bus of the whole.
        ("MULTIPROCESSOR_COUNT", 16, "bytes_in_flight_per_sm", 96 << 10),
    ],
)
def test_what_a_driver_reports_wrongly(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: int, field: str, expected: float
) -> None:
    ask = cuda_driver._attribute

    def answer(device: int, name: str) -> int:
        return value if name == attribute else ask(device, name)

    monkeypatch.setattr(cuda_driver, "_attribute", answer)
    assert getattr(cuda_driver.describe.__wrapped__(0), field) == expected


@pytest.mark.parametrize(
    ("capability", "like"),
    [
        ((7, 0), "sm_75"),
        ((8, 7), "sm_86"),
        ((9, 0), "sm_90"),
        ((10, 3), "sm_100"),
        ((12, 1), "sm_120"),
    ],
)
def test_an_architecture_without_a_data_sheet_has_the_pipes_of_the_closest(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], like: str
) -> None:
    ask = cuda_driver._attribute
    major, minor = capability
    reported = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
    monkeypatch.setattr(
        cuda_driver, "_attribute", lambda device, name: reported.get(name) or ask(device, name)
    )
    info = cuda_driver.describe.__wrapped__(0)
    assert info.arch == f"sm_{major}{minor}"
    assert info.lanes == PIPES[like]


def test_the_device_is_described_by_its_driver() -> None:
    info = CUDA.device_info(torch.device("cuda", 0))
    assert (info.name, info.arch, info.kind) == ("Fake H200", "sm_90", "cuda")
    assert (info.sm_count, info.threads_per_sm, info.registers_per_sm) == (132, 2048, 65536)
    assert (info.shared_bytes_per_block, info.shared_bytes_per_sm) == (227 << 10, 228 << 10)
    assert (info.max_threads_per_block, info.max_grid) == (1024, (2**31 - 1, 65535, 65535))
    # 6144 bits twice a clock of 3.201 GHz.
    assert info.bandwidth == pytest.approx(768 * 2 * 3.201e9)
    assert 45_000 < info.bytes_in_flight_per_sm < 50_000
    assert info.fp32_rate == pytest.approx(33.5e12, rel=0.01)
    # Eight groups of 16 multiprocessors.
    assert info.clusters == ((2, 64), (4, 32), (8, 16))
    assert cuda_driver.driver_version() == "13.1"


@pytest.mark.parametrize(("group", "expected"), [(18, ((2, 9), (4, 4), (8, 2))), (3, ((2, 1),))])
def test_clusters_are_what_the_driver_says(
    group: int, expected: tuple[tuple[int, int], ...]
) -> None:
    fake("fake_groups").value, fake("fake_group").value = 1, group
    try:
        assert clusters._asked.__wrapped__(0) == expected
    finally:
        fake("fake_groups").value, fake("fake_group").value = 8, 16


def test_a_driver_that_does_not_know_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "has_clusters", lambda device: False)
    assert clusters._asked.__wrapped__(0) == ()
    monkeypatch.undo()

    def fails(*_: object) -> int:
        raise KernelError("asking for the occupancy failed")

    before = last().libraries
    monkeypatch.setattr(cuda_driver, "resident_clusters", fails)
    assert clusters._asked.__wrapped__(0) == ()
    assert last().libraries == before
    monkeypatch.undo()

    def lacks(*_: object) -> None:
        raise TargetError("there is no NVRTC")

    monkeypatch.setattr(clusters, "compile_cubin", lacks)
    assert clusters._asked.__wrapped__(0) == ()


def test_blocks_of_clusters_that_wait_for_each_other_must_fit() -> None:
    many = {"block": (128, 1, 1), "cluster": 4}
    compiled(grid=(128, 1, 1), cooperative=True, **many)
    with pytest.raises(
        LimitError, match=r"its 132 blocks in clusters of 4 wait .* only 128 fit .*CLUSTERS=0"
    ):
        compiled(grid=(132, 1, 1), cooperative=True, **many)
    # Those that wait for no more than their cluster run one cluster after the other.
    compiled(grid=(4096, 1, 1), **many)
    with pytest.raises(LimitError, match=r"its 32 blocks in clusters of 32 wait .* only 0 fit"):
        compiled(grid=(4096, 1, 1), block=(128, 1, 1), cluster=32)


def test_arguments_geometry_and_stream_arrive() -> None:
    y = scale(compiled(shared_bytes=512), 2.5)
    assert y.tolist() == [2.5 * i for i in range(100)]
    record = last()
    assert (list(record.grid), list(record.block)) == ([4, 3, 2], [128, 2, 1])
    assert (record.shared_bytes, record.stream, record.cooperative) == (512, STREAM, 0)


def test_a_program_is_loaded_once() -> None:
    launch = compiled(name="scale", grid=(1, 1, 1))
    loaded = last().libraries
    for a in range(3):
        assert scale(launch, a).tolist() == [a * i for i in range(100)]
    assert last().libraries == loaded


def test_a_dropped_program_is_unloaded_after_its_last_launch() -> None:
    launch = compiled()  # of what came before nothing is left
    loaded = last().libraries
    scale(launch, 1.0)
    del launch
    assert last().libraries == loaded  # it may still run
    fake("fake_is_busy").value = 1
    kept = compiled()  # it does, and nobody waits for it
    assert last().libraries == loaded + 1
    fake("fake_is_busy").value = 0
    other = compiled()
    assert last().libraries == loaded + 1
    del kept, other


def test_what_a_graph_has_captured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiled()  # of what came before nothing is left
    before = last().libraries
    captured, other = compiled(), compiled()
    scale(other, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: True)
        scale(captured, 1.0)
    del captured, other
    compiled()
    assert last().libraries == before + 2
    del kept


@pytest.mark.parametrize("stream", [STREAM, 0])
def test_a_capture_in_another_thread_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch, stream: int
) -> None:
    """Of a stream that a dropped program was launched on, or that the default stream waits for."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: stream)
    kept = compiled()  # of what came before nothing is left
    before = last().libraries
    dropped = compiled()
    scale(dropped, 1.0)
    del dropped
    with capturing(STREAM):
        compiled()
        assert last().libraries == before + 2
    compiled()
    assert last().libraries == before + 1
    del kept


def test_a_capture_of_another_stream_delays_nothing() -> None:
    kept = compiled()  # of what came before nothing is left
    before = last().libraries
    dropped = compiled()
    scale(dropped, 1.0)
    del dropped
    with capturing(STREAM + 1):
        compiled()
        assert last().libraries == before + 1
    compiled()
    assert last().libraries == before + 1
    del kept


def test_a_program_that_cannot_be_unloaded_fails_no_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = compiled()
    scale(dropped, 1.0)
    del dropped

    def fails(stream: int) -> bool:
        raise KernelError("planted")

    monkeypatch.setattr(cuda_driver, "may_be_capturing", fails)
    assert scale(compiled(), 2.0)[4] == 8


def test_a_launch_on_a_stream_that_its_owner_may_destroy_is_never_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = compiled()  # of what came before nothing is left
    before = last().libraries
    dropped = compiled()
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getCurrentStream", lambda device: (STREAM, device, 1))
        scale(dropped, 1.0)
    del dropped
    compiled()
    assert last().libraries == before + 2
    del kept


@contextmanager
def capturing(stream: int) -> Iterator[None]:
    """Capture of a stream elsewhere, which must remain valid."""
    where = ctypes.c_ulonglong.in_dll(ctypes.CDLL("libcuda.so.1"), "fake_captured_stream")
    where.value, fake("fake_captures").value = stream, 1
    try:
        yield
    finally:
        fake("fake_captures").value = 0
    assert not fake("fake_invalidated").value


def test_more_shared_memory_than_the_default_is_asked_for() -> None:
    assert scale(compiled(shared_bytes=100 << 10), 1.0)[9] == 9
    assert last().shared_bytes == 100 << 10


def test_kernels_of_one_text_have_the_shared_memory_of_the_largest() -> None:
    """Their sizes are arguments, and so may be the bytes of a row cache."""
    kernels = [replace(SCALE, shared_bytes=size << 10) for size in (100, 60)]
    for launch in CUDA.compile(kernels) * 2:
        assert scale(launch, 1.0)[9] == 9
        assert last().shared_bytes == launch.kernel.shared_bytes


def test_cooperative_launches_fit_on_the_device() -> None:
    # Two blocks on each of 132 multiprocessors.
    assert scale(compiled(cooperative=True, grid=(264, 1, 1)), 3.0)[5] == 15
    assert last().cooperative == 1
    with pytest.raises(LimitError, match="265 blocks wait for each other and only 264 fit"):
        compiled(cooperative=True, grid=(265, 1, 1))


def fake(name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), name)


def test_what_the_driver_does_not_take_is_known_before_a_launch() -> None:
    before = last().launches
    with (
        failing("cuLibraryLoadData", 200),
        pytest.raises(LoadError, match="loading a compiled program failed") as caught,
    ):
        compiled(name="scale_rejected", source=SCALE.source.replace("scale", "scale_rejected"))
    assert is_replaceable(caught.value)
    assert last().launches == before


@contextmanager
def failing(function: str, status: int = 2) -> Iterator[None]:
    """A driver whose `function` returns an error; 2 is a lack of memory."""
    library = ctypes.CDLL("libcuda.so.1")
    (ctypes.c_char * 64).in_dll(library, "fake_failing").value = function.encode()
    fake("fake_failure").value = status
    try:
        yield
    finally:
        fake("fake_failure").value = 0


@pytest.mark.parametrize(
    "function",
    [
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelGetFunction",  # where lazy loading takes the memory of the program
        "cuFuncSetAttribute",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    ],
)
def test_a_device_without_memory_for_a_program_is_tried_again(function: str) -> None:
    with (
        failing(function),
        pytest.raises(ResourceError, match=r"no memory left; free some .*empty_cache") as caught,
    ):
        compiled(cooperative=True, grid=(4, 1, 1))
    assert is_passing(caught.value)
    assert scale(compiled(), 2.0)[4] == 8


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuKernelGetFunction"])
def test_a_device_without_memory_is_asked_for_its_clusters_again(function: str) -> None:
    clusters._asked.cache_clear()
    before = last().libraries
    with failing(function):
        assert CUDA.device_info(torch.device("cuda", 0)).clusters == ()
    assert last().libraries == before
    assert CUDA.device_info(torch.device("cuda", 0)).clusters == ((2, 64), (4, 32), (8, 16))


def test_a_thread_without_memory_for_a_context_is_tried_again() -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            compiled()
        except ResourceError as error:
            errors.append(error)

    with failing("cuDevicePrimaryCtxRetain"):
        run_together([threading.Thread(target=work)])
    assert [is_passing(error) for error in errors] == [True]


def test_a_launch_without_memory_is_not_repeated_by_torch() -> None:
    """Other kernels of the call may have run."""
    launch = compiled()
    with (
        failing("cuLaunchKernel"),
        pytest.raises(
            KernelError, match=r"launching kernel scale on cuda:0 .*empty_cache"
        ) as caught,
    ):
        scale(launch, 2.0)
    assert not is_replaceable(caught.value)
    assert scale(launch, 2.0)[4] == 8


@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord"])
def test_a_program_whose_end_cannot_be_asked_for_now_is_unloaded_later(function: str) -> None:
    dropped = compiled()  # of what came before nothing is left
    before = last().libraries
    scale(dropped, 1.0)
    del dropped
    with failing(function):
        kept = compiled()
    assert last().libraries == before + 1
    other = compiled()
    assert last().libraries == before + 1  # three made, one unloaded
    del kept, other


def test_a_first_call_may_be_captured() -> None:
    """Loading is no part of the graph, in the thread that compiles and in those that launch."""
    fake("fake_captures").value = 1
    results: list[torch.Tensor] = []
    try:
        launch = compiled()
        results.append(scale(launch, 2.0))
        run_together([threading.Thread(target=lambda: results.append(scale(launch, 3.0)))])
    finally:
        fake("fake_captures").value = 0
    assert [y[4] for y in results] == [8, 12]


def test_a_second_thread_that_cannot_load_ends_the_program() -> None:
    """Kernels of the same call may have run."""
    launch, errors = compiled(), list[Exception]()

    def work() -> None:
        try:
            scale(launch, 1.0)
        except KernelError as error:
            errors.append(error)

    fake("fake_captures").value = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "beside_captures", nullcontext)
        run_together([threading.Thread(target=work)])
    fake("fake_captures").value = 0
    assert [is_replaceable(e) for e in errors] == [False]


def test_a_driver_older_than_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "driver_version", lambda: "12.8")
    monkeypatch.setattr(cuda_target, "nvrtc_version", lambda: "13.0")
    with pytest.raises(TargetError, match=r"for CUDA 12\.8 .* NVRTC 13\.0.*nvrtc-cu12") as caught:
        compiled()
    assert is_replaceable(caught.value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    works, text = doctor._try_cuda()
    assert works is None
    assert "is for CUDA 12.8" in text
    monkeypatch.setattr(cuda_target, "nvrtc_version", lambda: "12.9")
    assert cuda_target.version_problem() == ""


def test_kernels_are_for_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for the current one, which has other limits on a machine with several."""
    current = [0]

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.index, current[0] = current[0], self.index

        def __exit__(self, *_: object) -> None:
            current[0] = self.index

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", Device)
    asked: list[int] = []
    describe = cuda_driver.describe

    def described(index: int) -> DeviceInfo:
        asked.append(index)
        return replace(describe(index), shared_bytes_per_block=(99 if index else 227) << 10)

    monkeypatch.setattr(cuda_driver, "describe", described)
    limited = pytest.raises(LimitError, match="102400 bytes of shared memory")
    with on_device(torch.device("cuda", 1)), limited:
        compiled(shared_bytes=100 << 10)
    assert set(asked) == {1}
    assert current == [0]
    compiled(shared_bytes=100 << 10)


def test_threads_do_not_disturb_each_others_arguments() -> None:
    launch = compiled()
    results: dict[int, list[float]] = {}

    def work(a: int) -> None:
        results[a] = scale(launch, a).tolist()

    run_together([threading.Thread(target=work, args=(a,)) for a in range(8)])
    assert results == {a: [a * i for i in range(100)] for a in range(8)}


def test_a_thread_without_a_context_gets_one() -> None:
    launch = compiled()
    y: list[torch.Tensor] = []
    run_together([threading.Thread(target=lambda: y.append(scale(launch, 7.0)))])
    assert y[0][3] == 21


def test_a_signal_handler_launches_the_kernel_whose_launch_it_interrupts() -> None:
    launch = compiled()
    scale(launch, 1.0)
    (arguments,) = [prepared.arguments for prepared in launch._threads.idle.values()]
    pack, handled = arguments.pack, list[torch.Tensor]()

    def pack_and_be_interrupted(*args: float) -> None:
        arguments.pack = pack
        pack(*args)
        signal.raise_signal(signal.SIGUSR1)

    arguments.pack = pack_and_be_interrupted
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(scale(launch, 3.0)))
    try:
        y = scale(launch, 2.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert y.tolist() == [2.0 * i for i in range(100)]
    assert [other.tolist() for other in handled] == [[3.0 * i for i in range(100)]]


def run_together(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_grid_without_blocks_is_not_launched() -> None:
    launch = compiled(grid=(0, 1, 1))
    before = last().launches
    assert scale(launch, 2.0).tolist() == [-1.0] * 100
    assert last().launches == before


def test_a_rejected_launch_names_the_kernel_and_the_drivers_words() -> None:
    with pytest.raises(KernelError) as caught:
        scale(compiled(), float("nan"))
    message = str(caught.value)
    assert "launching kernel scale on cuda:0 failed" in message
    assert "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, too many resources requested" in message


def test_an_error_of_the_driver_says_what_to_do() -> None:
    statuses = cuda_driver.driver().CUresult
    crashed, other = statuses.CUDA_ERROR_ILLEGAL_ADDRESS, statuses.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(KernelError, match=r"crashed before.*CUDA_LAUNCH_BLOCKING=1"):
        cuda_driver.check((crashed,), "launching")
    with pytest.raises(KernelError, match=r"launching failed: CUDA_ERROR_INV.*doctor"):
        cuda_driver.check((other,), "launching")


def test_arguments_that_do_not_fit_are_named() -> None:
    launch = compiled()
    with pytest.raises(InternalError, match=r"kernel scale: .*const float\* x, float\* y, float a"):
        launch(1, 2, 3.0)
    with pytest.raises(InternalError, match="kernel scale"):
        launch(1, 2, 3.0, 2**40)
