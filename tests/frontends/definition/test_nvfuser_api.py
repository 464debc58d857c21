"""nvFuser's names, in scripts as its users write them."""

from __future__ import annotations

import copy
import logging
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder_fuser
from thunder_fuser import nvfuser
from thunder_fuser.config import options
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.ir.printer import equal
from thunder_fuser.nvfuser import (
    DataType,
    FusionCache,
    FusionDefinition,
    LRUCache,
    LruFusionCache,
    PythonProfiler,
    TensorView,
    Val,
    compute_contiguity,
)
from thunder_fuser.nvfuser.pytorch_utils import (
    nvfuser_dtype_to_torch_dtype,
    python_scalar_to_nvfuser_dtype,
    torch_dtype_to_nvfuser_dtype,
)

X = torch.arange(12.0).reshape(3, 4)


def scaled_sums(fd: FusionDefinition) -> None:
    """Sums of rows of 3 x; one kernel, which every test of this file shares."""
    x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
    fd.add_output(fd.ops.sum(fd.ops.mul(x, fd.define_scalar(3.0)), [1]))


def defined() -> FusionDefinition:
    with FusionDefinition() as fd:
        scaled_sums(fd)
    return fd


@pytest.fixture(autouse=True)
def no_shared_cache() -> Any:
    """Programs that ask for the cache of the process, one after the other."""
    yield
    FusionCache.reset()


def run_script(text: str) -> str:
    """What a script prints that runs by itself."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---- imports


def test_one_line_makes_scripts_import_this_compiler() -> None:
    printed = run_script("""
        import thunder_fuser
        thunder_fuser.install_as_nvfuser()
        thunder_fuser.install_as_nvfuser()  # again changes nothing

        import nvfuser_direct
        import nvfuser.pytorch_utils
        import nvfuser_direct as nvfuser
        from nvfuser import DataType, FusionCache
        from nvfuser_direct import FusionDefinition, LRUCache, PythonProfiler, TensorView, ops
        from nvfuser_direct.pytorch_utils import DEVICE_PROPERTIES, torch_dtype_to_nvfuser_dtype
        from nvfuser_direct.nvfuser_direct_version import Version
        from nvfuser.nvfuser_version import __version__
        import importlib.util, thunder, torch

        assert nvfuser.version() > "0.0.0" and nvfuser.version() > Version("0.2.8")
        assert Version("0.2.100") > nvfuser_direct.version() == __version__
        assert importlib.util.find_spec("nvfuser_direct") is not None
        assert thunder.executors.nvfuserex.nvfuserex is None  # Thunder does not take it for its own
        assert (DEVICE_PROPERTIES is None) == (not torch.cuda.is_available())
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], dtype=torch_dtype_to_nvfuser_dtype(torch.bfloat16))
            assert isinstance(x, TensorView)
            fd.add_output(ops.cast(ops.relu(x), DataType.Float))
        print(type(fd).__module__, fd.plan().kernels)
    """)
    assert printed == "thunder_fuser.frontends.definition.fusion_definition 1\n"


def test_an_installed_nvfuser_is_not_hidden_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "nvfuser_direct.py").write_text("marker = 'the real one'\n")
    printed = run_script(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import thunder_fuser
        try:
            thunder_fuser.install_as_nvfuser()
        except thunder_fuser.FuserError as error:
            print(error)
        import nvfuser_direct
        print(nvfuser_direct.marker)
        try:
            thunder_fuser.install_as_nvfuser()
        except thunder_fuser.FuserError as error:
            print("still")
        thunder_fuser.install_as_nvfuser(shadow=True)
        import nvfuser_direct
        print(nvfuser_direct.__name__)
    """)
    first, *others = printed.splitlines()
    assert first.startswith("install_as_nvfuser: nvfuser_direct is installed here and stays")
    assert others == ["the real one", "still", "thunder_fuser.nvfuser"]


def test_names_are_in_both_places() -> None:
    assert all(getattr(nvfuser, name) is not None for name in nvfuser.__all__)
    for name in ("FusionDefinition", "DataType", "LRUCache", "PythonProfiler", "TensorView", "Val"):
        assert getattr(thunder_fuser, name) is getattr(nvfuser, name)


def test_dtypes_there_and_back() -> None:
    for dtype in DataType:
        if dtype is not DataType.Null:
            assert torch_dtype_to_nvfuser_dtype(nvfuser_dtype_to_torch_dtype(dtype)) is dtype
    assert torch_dtype_to_nvfuser_dtype(float) is DataType.Double
    assert torch_dtype_to_nvfuser_dtype(bool) is DataType.Bool
    assert [python_scalar_to_nvfuser_dtype(x) for x in (True, 1, 1.0, 1j)] == [
        DataType.Bool, DataType.Int, DataType.Double, DataType.ComplexDouble,
    ]  # fmt: skip
    for wrong in ("float", None, DataType.Float):
        with pytest.raises(FuserTypeError, match=re.escape("expected a torch.dtype")):
            torch_dtype_to_nvfuser_dtype(wrong)  # type: ignore[arg-type]
    with pytest.raises(FuserTypeError, match="expected a DataType"):
        nvfuser_dtype_to_torch_dtype(torch.float)  # type: ignore[arg-type]


def test_a_test_that_runs_out_of_memory_runs_again() -> None:
    attempts: list[int] = []

    @nvfuser.pytorch_utils.retry_on_oom_or_skip_test
    def hungry(failures: int) -> int:
        attempts.append(1)
        if len(attempts) <= failures:
            raise torch.OutOfMemoryError
        return len(attempts)

    assert hungry(1) == 2
    attempts.clear()
    with pytest.raises(pytest.skip.Exception, match="out of memory"):
        hungry(2)


def test_contiguity_of_a_tensor() -> None:
    for shape, strides, expected in (
        ((2, 3, 4), (12, 4, 1), [True, True, True]),
        ((2, 3, 4), (24, 4, 1), [False, True, True]),
        ((2, 1, 4), (4, 99, 1), [True, None, True]),
        ((2, 3, 4), (4, 0, 1), [True, None, True]),
        ((2, 3, 4), (12, 4, 2), [True, False, False]),
        ((3, 4), (1, 3), [False, False]),
        ((), (), []),
    ):
        assert compute_contiguity(shape, strides) == expected
        x = torch.zeros(100).as_strided(shape, strides)
        with FusionDefinition() as fd:
            t = fd.define_tensor(list(shape), expected)
            fd.add_output(fd.ops.neg(t))
        fd.plan([x])
    with pytest.raises(FuserValueError, match="2 sizes but 1 strides"):
        compute_contiguity([2, 3], [1])


# ---- definitions


def test_older_spellings_of_inputs_and_constants() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(symbolic_sizes=[-1, 1, -1], contiguous=[True, True, True])
        t1 = fd.define_tensor(3)
        c0 = fd.define_constant(3.0)
        t2 = fd.ops.mul(fd.ops.add(t0, t1), c0)
        fd.add_output(fd.ops.sum(t2, [-1], False, DataType.Float))
    one, other = torch.randn(2, 1, 8), torch.randn(2, 4, 8)
    torch.testing.assert_close(fd.execute([one, other])[0], ((one + other) * 3).sum(-1))
    with FusionDefinition() as fd, pytest.raises(FuserTypeError, match="is an input"):
        fd.define_constant(DataType.Float)


def test_values_say_what_they_are() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], True)
        y = fd.ops.reshape(fd.ops.exp(x), [-1])
        assert isinstance(y, TensorView)
        assert isinstance(x.size(0), Val)
        assert not isinstance(x.size(0), TensorView)
        assert (x.ndim, x.num_dims(), len(x.shape()), y.ndim) == (2, 2, 2, 1)
        assert x.definition() is None
        assert y.definition().op == "reshape"
        assert [e.op for e in x.uses()] == ["exp"]
        assert (x.has_root(), y.has_root()) == (False, True)
        assert [str(d) for d in x.get_logical_domain()] == [str(d) for d in y.get_root_domain()]
        assert len(y.get_logical_domain()) == 1
        assert x.domain().rank == 2


def test_schedules_by_hand_say_why_they_are_not_there() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 8], True)
        with pytest.raises(FuserError, match="thunder_fuser makes every schedule itself"):
            x.split(0, 4)
        with pytest.raises(AttributeError, match=r"fd\.sched\.inline_most is not available"):
            fd.sched.inline_most()
        with pytest.raises(FuserError, match=r"expected multidevice\.DeviceMesh"):
            x.set_device_mesh(None)  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="Tensor has no attribute 'spilt'"):
            x.spilt(0, 4)
        assert not hasattr(x, "parallelize")
        assert not hasattr(fd.sched, "nothing")


def test_a_schedule_of_a_subclass_is_not_ignored_in_silence() -> None:
    class Scheduled(FusionDefinition):
        def definition(self) -> None:
            scaled_sums(self)

        def schedule(self) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match=r"Scheduled\.schedule is not used") as caught:
        (out,) = Scheduled().execute([X])
    assert caught[0].filename == __file__
    assert torch.equal(out, 3 * X.sum(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scheduled().execute([X], override_user_schedule=True)


def test_manual_execution_is_execution() -> None:
    assert torch.equal(defined().manual_execute([X])[0], 3 * X.sum(1))
    assert torch.equal(defined().manual_validate([X], [3 * X.sum(1)])[0], 3 * X.sum(1))
    with pytest.raises(FuserError, match="heuristic_params describe a schedule"):
        defined().manual_execute([X], object())


def test_clones() -> None:
    fd = defined()
    with fd.clone() as longer:
        (total,) = longer.fusion.outputs()
        longer.add_output(longer.ops.neg(total))
    filled = FusionDefinition()
    nvfuser.clone(fd, filled)
    for same in (fd.clone(), filled, copy.deepcopy(fd), copy.copy(fd)):
        assert same.fusion == fd.fusion
        assert torch.equal(same.execute([X])[0], 3 * X.sum(1))
    assert [t.tolist() for t in longer.execute([X])] == [[18, 66, 114], [-18, -66, -114]]
    assert len(fd.fusion.outputs()) == 1
    with pytest.raises(FuserError, match="must be a new FusionDefinition"):
        nvfuser.clone(fd, filled)


def test_clones_draw_random_numbers() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.uniform(0.0, 1.0, [100]))
    torch.manual_seed(0)
    (one,) = fd.execute([])
    torch.manual_seed(0)
    (other,) = fd.clone().execute([])
    assert torch.equal(one, other)


# ---- the graph


def test_the_graph() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, 4], True), fd.define_scalar(DataType.Double)
        y = fd.ops.sum(fd.ops.mul(x, s), [1])
        fd.ops.exp(x)
        fd.add_output(y)
        assert [v.is_tensor() for v in fd.fusion.inputs()] == [True, False]
        (found,) = fd.fusion.outputs()
        fd.add_output(fd.ops.neg(found))  # what is listed can be computed with
    assert [e.op for e in fd.fusion.exprs] == ["mul", "sum", "exp", "neg"]
    assert len(fd.fusion.vals()) == 6
    assert len(fd.fusion.inputs) == len(fd.fusion.inputs()) == 2
    assert fd.fusion == fd.clone().fusion
    assert fd.fusion != defined().fusion
    assert hash(fd.fusion) == hash(fd.clone().fusion)
    assert fd.fusion != "another thing"
    assert nvfuser.translate_fusion(fd.fusion) == repr(fd) == repr(fd.fusion)
    assert equal(fd.fusion, fd.fec.fusion() if fd.plan() else fd.fusion)


def test_print_math(capsys: pytest.CaptureFixture[str]) -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, 4], True), fd.define_scalar(DataType.Double)
        half = fd.ops.cast(fd.ops.mul(x, s), DataType.Half)
        fd.ops.exp(x)
        fd.add_output(fd.ops.cat([half, half], 0))
        fd.add_output(fd.ops.add(x, 1), x)
    text = fd.fusion.print_math()
    assert text == textwrap.dedent("""\
        Inputs:
          T0: Float [T0_0, 4]
          S1: Double
        Outputs:
          T6: Half [2*T0_0, 4]

        %kernel_math {
        T2: Float [T0_0, 4] = T0 * S1
        T3: Half [T0_0, 4] = cast(T2, Half)
        T6: Half [2*T0_0, 4] = cat(T3, T3, dim=0)
        T8: Float [T0_0, 4] = T0 + 1
        T0 <- T8  (in place)
        } // %kernel_math
    """).replace("T6", "T5").replace("T8", "T7")
    assert "exp(T0)" in fd.fusion.print_math(from_outputs_only=False)
    assert fd.fusion_ir() == text
    assert capsys.readouterr().out == ""


def test_print_kernel() -> None:
    """Without inputs: of the sizes that are stated, and else of large ones, which it names."""
    with FusionDefinition() as fd:
        scaled_sums(fd)
    text = fd.fusion.print_kernel()
    assert text.startswith("// sizes: i0 = T0.size(0) (here 2,048), i1 = T0.size(1) (here 2,304)\n")
    assert text.count("__global__") == 1
    assert "i1" not in text.split("\n", 1)[1].split("__global__")[1]
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4], True)
        fd.add_output(fd.ops.sum(x, [1]))
    (name,) = re.findall(r"void .*?(tf_reduction_sum_\w+)\(", fd.fusion.print_kernel())
    with FusionDefinition() as same:
        same.add_output(same.ops.sum(same.define_tensor([3, 4], True), [1]))
    assert name in same.fusion.print_kernel()


# ---- what runs it


def test_the_executor_cache() -> None:
    fd = defined()
    assert not hasattr(fd, "fec")
    fd.execute([X])
    assert fd.fec.is_compiled([X])
    assert not fd.fec.is_compiled([X.t().contiguous()])
    code = fd.fec.get_cuda_kernel([X])
    assert code == fd.last_cuda_code() == fd.cuda_code_for([X])
    assert fd.fec.fusion() == fd.fusion
    assert torch.equal(fd.fec.execute([X])[0], 3 * X.sum(1))
    assert fd.fec.get_output_shardings() == []
    with pytest.raises(FuserError, match="the definition is finished"):
        fd.fec.fusion().inputs()[0] + 1


def test_code_with_all_that_it_includes() -> None:
    fd = defined()
    fd.execute([X])
    for whole, part in (
        (fd.last_cuda_code(intrinsic_code=True), fd.last_cuda_code()),
        (fd.cuda_code_for([X], intrinsic_code=True), fd.cuda_code_for([X])),
        (fd.fec.get_cuda_kernel([X], intrinsic_code=True), fd.fec.get_cuda_kernel([X])),
    ):
        assert '#include "prelude.cuh"' in part
        assert not re.search(r'#include "\w+\.cuh"', whole)
        assert whole.endswith(part.split("\n\n", 1)[1])
        assert whole.count("namespace tf") > 1
    fd.last_cuda_code(override_user_schedule=True)


@pytest.mark.nvrtc
def test_code_with_all_that_it_includes_compiles_by_itself() -> None:
    from thunder_fuser.runtime.cuda import nvrtc as cuda_nvrtc

    with options(cuda_arch="sm_90"):
        fd = defined()
        text = fd.cuda_code_for([X], intrinsic_code=True)
        assert '#include "' not in text.replace('#include "host/shim.h"', "")
        nvrtc = cuda_nvrtc.nvrtc()
        failed, program = nvrtc.nvrtcCreateProgram(text.encode(), b"whole.cu", 0, [], [])
        assert not failed
        flags = [b"--gpu-architecture=sm_90", b"--std=c++17"]
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        assert not failed


def test_scheduled_ir() -> None:
    fd = defined()
    with pytest.raises(FuserError, match="nothing is compiled yet"):
        fd.last_scheduled_fusion_ir()
    fd.execute([X])
    text = fd.last_scheduled_fusion_ir()
    assert text == fd.fec.get_most_recent_scheduled_ir() == fd.fec.get_scheduled_ir([X])
    assert text == fd.scheduled_fusion_ir_for([X])
    assert text.startswith(str(fd.plan([X])))
    (name,) = (k.name for k in fd.kernels([X]))
    assert f"{name}<<<[" in text
    assert "T3: Float [3] = sum(T2, dims=[1])" in text
    longer = fd.last_scheduled_fusion_ir(tensor_transforms=True)
    assert longer.startswith(text)
    assert "Reduce" in longer


def test_a_repro_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    fd = defined()
    fd.execute([X], print_repro=True)
    assert capsys.readouterr().out.rstrip() == fd.repro_script_for([X]).rstrip()


def test_captured_debug_output(capfd: pytest.CaptureFixture[str]) -> None:
    class Talking(FusionDefinition):
        def definition(self) -> None:
            scaled_sums(self)
            logging.getLogger("thunder_fuser.frontends.definition").info("one sum")

    fd, other = Talking(), Talking()
    assert fd.debug_output() is None
    with options(logs="definition"):
        fd.execute([X], capture_debug_output=True)
        assert "[thunder_fuser.frontends.definition] one sum\n" in fd.debug_output()
        assert "one sum" not in capfd.readouterr().err
        other.execute([X])
    assert "one sum" in capfd.readouterr().err
    assert other.debug_output() is None


def test_nvfusers_options_are_accepted() -> None:
    fd = defined()
    fd.execute([X], _enable_options=["fuse_matmul"], _disable_options=["matmul_expr_eval"])
    fd.fec.execute([X], device=None, _enable_options=[], _disable_options=[])


# ---- profiles


def check_profile(profile: Any) -> None:
    assert (profile.segments, len(profile.kernel_profiles)) == (1, 1)
    (kernel,) = profile.kernel_profiles
    assert kernel.name.startswith("tf_reduction_")
    assert (kernel.scheduler, kernel.segment_id, kernel.device, kernel.stream) == (
        "reduction",
        0,
        -1,
        0,
    )
    assert 0 < kernel.time_ms <= profile.host_time_ms
    assert profile.kernel_time_ms == profile.cuda_evt_time_ms == kernel.time_ms
    assert (kernel.input_bytes, kernel.output_bytes) == (48, 12)
    assert (profile.input_bytes, profile.output_bytes, profile.bytes) == (48, 12, 60)
    assert profile.effective_bandwidth_gbs == pytest.approx(60e-6 / kernel.time_ms)
    assert profile.percentage_peak_bandwith == profile.percentage_peak_bandwidth > 0
    assert kernel.percentage_peak_bandwidth > 0
    assert re.fullmatch(r"\[\d+, \d+, \d+\]", kernel.grid_str)
    assert re.fullmatch(r"\[\d+, \d+, \d+\]", kernel.block_str)
    assert kernel.cluster_str == "[1, 1, 1]"
    assert re.fullmatch(r"\[\d+, 0\]", kernel.shared_mem_str)
    assert profile.fusion_id >= 0


def test_profile_of_a_call() -> None:
    fd = defined()
    assert torch.equal(fd.execute([X], profile=True)[0], 3 * X.sum(1))
    check_profile(fd.profile())
    assert 0 < fd.profile().compile_time_ms < fd.profile().host_time_ms
    fd.execute([X], profile=True)
    assert fd.profile().compile_time_ms == 0


def test_profiler_around_calls() -> None:
    fd = defined()
    with PythonProfiler() as prof:
        fd.execute([X])
    check_profile(prof.profile)
    assert prof.profile is nvfuser.get_fusion_profile()
    fd.execute([X])
    assert prof.profile is nvfuser.get_fusion_profile()  # that call was outside
    with PythonProfiler(auto_scheduled=False) as prof:
        fd.fec.execute([X])
    check_profile(prof.get_fusion_profile)
    prof.reset()
    with pytest.raises(FuserError, match="nothing is measured yet"):
        nvfuser.get_fusion_profile()


def test_every_launch_has_a_time() -> None:
    """Two kernels and a slice between them, a result written in place."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], True)
        y = fd.ops.segment_set(fd.ops.exp(x))
        total = fd.ops.sum(y, [0])
        fd.add_output(fd.ops.slice(total, [0], [10]))
        fd.add_output(fd.ops.add(x, 1.0), x)
    given = torch.randn(64, 64)
    expected = [given.exp().sum(0)[:10], given + 1]
    (out,) = fd.execute([given], profile=True)
    torch.testing.assert_close([out, given], expected)
    profile = fd.profile()
    assert len(profile.kernel_profiles) == fd.plan([given]).kernels >= 2
    assert [k.name for k in profile.kernel_profiles] == [k.name for k in fd.kernels([given])]
    assert all(k.time_ms > 0 for k in profile.kernel_profiles)


# ---- caches


def test_lru_cache() -> None:
    cache = LRUCache(max_fusions=2)
    fd, same = defined(), defined()
    fd.fec, same.fec = cache.cache_compile(fd.fusion), cache.cache_compile(same.fusion)
    assert fd.fec is same.fec
    assert cache.num_fusions() == 1
    fd.execute([X])
    assert same.fec.is_compiled([X])
    assert torch.equal(same.execute([X])[0], 3 * X.sum(1))
    for k in range(2):
        with FusionDefinition() as other:
            other.add_output(other.ops.mul(other.define_tensor([-1], True), float(k)))
        assert cache.get(other.fusion) is None
        cache.cache_compile(other.fusion)
    assert cache.num_fusions() == 2
    assert cache.get(fd.fusion) is None  # the least recently used one is gone
    assert cache.stats().startswith("2 of at most 2 fusions, 7 look-ups, 1 hits")
    cache.put(fd.fusion, fd.fec)
    assert cache.get(defined().fusion) is fd.fec
    with pytest.raises(FuserValueError, match="max_fusions: expected at least 1"):
        LRUCache(0)


def test_lru_cache_as_a_decorator() -> None:
    @LruFusionCache(max_fusions=8)
    def create(factor: float) -> FusionDefinition:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.mul(fd.define_tensor([-1], True), factor))
        return fd

    one, same, other = create(2.0), create(2.0), create(3.0)
    assert one.fec is same.fec is not other.fec
    assert create.num_fusions() == 2  # type: ignore[attr-defined]
    assert "2 of at most 8 fusions" in create.stats()  # type: ignore[attr-defined]
    assert torch.equal(same.execute([X[0]])[0], 2 * X[0])
    with pytest.raises(FuserTypeError, match="expected it to return a FusionDefinition"):
        LruFusionCache()(lambda: None)()  # type: ignore[arg-type, return-value]


def test_a_definition_with_random_numbers_is_cached() -> None:
    cache = LRUCache(4)
    outputs = []
    for _ in range(2):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.uniform(0.0, 1.0, [64]))
        fd.fec = cache.cache_compile(fd.fusion)
        torch.manual_seed(1)
        outputs += [fd.execute([])[0], fd.fec.execute([])[0]]
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
    assert cache.num_fusions() == 1


def test_the_cache_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    defined().execute([X])
    cache = FusionCache.get(max_fusions=100)
    assert FusionCache.get() is cache
    before = cache.num_fusions()
    one, same = defined(), defined()
    one.execute([X])
    assert cache.num_fusions() == before + 1
    assert same.execute([X]) is not None
    assert one.fec is same.fec
    cache.print_stats()
    assert "1 of at most 100 fusions" in capsys.readouterr().out
    FusionCache.reset()
    assert FusionCache.get().num_fusions() == 0


def test_definitions_are_written_and_read(tmp_path: Path) -> None:
    with FusionDefinition() as drawn:
        x = drawn.define_tensor([-1, 4, 1], [True, True, None], DataType.Half)
        y = drawn.ops.slice(drawn.ops.expand(x, [-1, 4, 3]), [1, 0, 0], [x.size(0), 4, 3])
        y = drawn.ops.mul(y, complex(float("inf"), -1.5))
        z = drawn.ops.uniform(-1.0, float("inf"), [x.size(0) * 2, 3], dtype=DataType.Double)
        drawn.add_output(drawn.ops.real(y))
        drawn.add_output(z)
    cache = FusionCache.get()
    for fd in (drawn, defined()):
        cache.cache.cache_compile(fd.fusion)
    nvfuser.serialize(tmp_path / "fusions.json")
    FusionCache.reset()
    nvfuser.deserialize(tmp_path / "fusions.json")
    assert FusionCache.get().num_fusions() == 2
    assert FusionCache.get().cache.get(drawn.fusion).draws == 1
    fd = defined()
    fd.execute([X])
    assert FusionCache.get().num_fusions() == 2
    assert torch.equal(fd.execute([X])[0], 3 * X.sum(1))
    nvfuser.enable_automatic_serialization()
    nvfuser.disable_automatic_serialization()


@pytest.mark.parametrize(
    "body",
    [
        "import os",
        "x = __import__('os')",
        "x = fd.__class__",
        "x = fd.ops._owner()",
        "x = fd.ops.relu.__globals__",
        "x = [k for k in (1, 2)]",
        "x = 10 ** 10",
        "fd.execute([])",
        "x = open('a')",
        "x = DataType.mro",
        "for k in (1,): pass",
        "x = float.fromhex('1')",
    ],
)
def test_a_file_of_definitions_is_not_executed(body: str, tmp_path: Path) -> None:
    path = tmp_path / "fusions.json"
    text = f"def nvfuser_fusion(fd):\\n    {body}\\n"
    path.write_text(f'{{"format": 1, "fusions": [{{"definition": "{text}", "draws": 0}}]}}')
    with pytest.raises(FuserValueError, match="not a printed definition"):
        LRUCache(4).deserialize(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fusions": [{}]}', '{"fusions": 3}', "\\0"])
def test_a_file_of_something_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fusions.json"
    path.write_text(text)
    with pytest.raises(FuserValueError, match="was not written by serialize"):
        LRUCache(4).deserialize(path)
