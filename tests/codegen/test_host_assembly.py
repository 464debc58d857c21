"""Host kernels as assembly, for CPUs that this machine need not have: register arrays stay in
registers, or are read from the stack as they were written there.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Sequence

import pytest
import thunder
import torch

import thunder_fuser
from tests.codegen.kernels import kernels_of
from tests.support.shares import each_value
from tests.tools.x86 import stalls
from tests.zoo.channels_last import column_statistics, normalized
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from tests.zoo.workloads import WORKLOADS
from thunder_fuser.codegen.headers import template_dir
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.runtime.host.build import host_text
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.runtime.host.target import HOST

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="x86 assembly, on another machine"
)

# The longest registers and a cautious `-mtune`, and the shorter ones; others are of their kinds.
CPUS = [
    "skylake-avx512",
    "haswell",
    *(pytest.param(c, marks=pytest.mark.campaign) for c in ("rocketlake", "znver3", "x86-64-v3")),
]


def assembly(text: str, cpu: str) -> str:
    """What the host's compiler makes of a program for some CPU."""
    compiler = find_compiler()
    flags = [f for f in compiler.flags if not f.startswith(("-march", "-shared"))]
    flags += [f"-march={cpu}", "-O2", "-S", "-masm=intel", f"-I{template_dir()}"]
    ended = compiler.run([*flags, "-x", "c++", "-o", "-", "-"], given=text)
    if "-march" in ended.stderr:
        pytest.skip(f"{' '.join(compiler.command)} knows no {cpu}")
    assert ended.returncode == 0, ended.stderr[:2000]
    return ended.stdout


@functools.cache
def kernels() -> Sequence[Kernel]:
    """Of workloads, norms and reductions, and with bf16 in pairs of all widths, each once."""
    device = HOST.device_info(torch.device("cpu"))
    found = [k for w in WORKLOADS for k in kernels_of(w, w.full, device)]
    for program in (*NORMS, *REDUCTIONS):
        for dtype in (DataType.BFloat16, DataType.Float):
            plan = program.definition(1024, 4096, dtype).plan()
            found += [k.kernel for k in generate_kernels(plan, device).values()]
    fusions = [column_statistics(25088, columns) for columns in (16, 48, 256, 1056)]
    fusions += [normalized(4096, channels).fusion for channels in (16, 48, 256)]
    fusions.append(short_rows())
    fusions += [with_noise(dtype) for dtype in (DataType.BFloat16, DataType.Float)]
    for fusion in fusions:
        plan = CompiledFusion(fusion).plan()
        found += [k.kernel for k in generate_kernels(plan, device).values()]
    return [*{kernel.name: kernel for kernel in found}.values()]


def short_rows() -> Fusion:
    """Pairs of fewer lanes than registers have."""
    b = FusionBuilder()
    x, y = (b.tensor([1000, 8], DataType.BFloat16) for _ in range(2))
    b.output(b.cast_tensor(b.pointwise("add", x, y), DataType.BFloat16))  # type: ignore[arg-type]
    b.output(b.reduce("sum", x, [0]))
    return b.build()


def with_noise(dtype: DataType) -> Fusion:
    """Random numbers of whole vectors, of four and of eight Philox calls."""
    b = FusionBuilder()
    x = b.tensor([1000, 512], dtype)
    state = b.scalar(None, DataType.Int), b.scalar(None, DataType.Int)
    drawn = b.random("uniform", [1000, 512], (0.0, 1.0), state, dtype)
    b.output(b.cast_tensor(b.pointwise("mul", x, drawn), dtype))  # type: ignore[arg-type]
    return b.build()


@pytest.mark.parametrize("cpu", CPUS)
def test_no_load_waits_for_narrower_stores(cpu: str) -> None:
    if find_compiler().family != "gcc":
        pytest.skip("clang copies arrays as they are read; it puts lanes together once a row")
    found = stalls(assembly(host_text(kernels()), cpu))
    assert not found, f"{len(found)}: {found[:5]}"


@pytest.mark.parametrize("cpu", CPUS)
def test_maxima_of_windows_are_compared_in_simd_registers(cpu: str) -> None:
    """Their borders are selects before comparisons, which partial redundancy elimination makes
    selects among truth values, and the loop over lanes scalar.
    """
    x = torch.randn(4, 64, 32, 32)
    fn = thunder.jit(
        lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        executors=[thunder_fuser.executor],
    )
    fn(x)
    (fusion,) = thunder_fuser.fusions(fn)
    found = generate_kernels(fusion.plan, HOST.device_info(torch.device("cpu"))).values()
    text = assembly(host_text([k.kernel for k in found]), cpu)
    assert re.search(r"vcmp\w*ps", text)
    assert not re.search(r"vu?comiss", text)


@pytest.mark.parametrize("cpu", CPUS)
def test_a_loop_over_threads_stores_nothing_but_results(cpu: str) -> None:
    """Other stores take entries of the store buffer, in which those to memory wait for their lines:
    with three of them, a copy had three fifths of its bandwidth.
    """
    if find_compiler().family != "gcc":
        pytest.skip("reads labels of g++")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2048, 4096], True, DataType.Float)))
    found = generate_kernels(fd.plan(), HOST.device_info(torch.device("cpu"))).values()
    text = assembly(host_text([k.kernel for k in found]), cpu)
    stored = r"\tv?mov\w*\t(?:XMMWORD|YMMWORD|ZMMWORD|DWORD|QWORD) PTR (?!\S*\[rsp)[^,]*, (\w+)"
    blocks = [re.findall(stored, block) for block in re.split(r"\n\.L\d+:", text)]
    (inner,) = [block for block in blocks if any(name[0] in "xyz" for name in block)]
    assert all(name[0] in "xyz" for name in inner), inner


ELEMENTARY = ("sin", "cos", "tan", "acos", "log", "log1p", "expm1", "atan2", "pow")


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Half], ids=str)
def test_elementary_functions_are_called_for_whole_registers(dtype: DataType) -> None:
    if find_compiler().family != "gcc":
        pytest.skip("only g++ uses glibc's SIMD functions")
    found = []
    for name in (*ELEMENTARY, "fmod"):
        with FusionDefinition() as fd:
            x, y = (fd.define_tensor([2048, 4096], True, dtype) for _ in range(2))
            operands = (x, y) if name in ("atan2", "pow", "fmod") else (x,)
            fd.add_output(getattr(fd.ops, name)(*operands))
        device = HOST.device_info(torch.device("cpu"))
        found += [k.kernel for k in generate_kernels(fd.plan(), device).values()]
    text = assembly(host_text(found), "skylake-avx512")
    called = set(re.findall(r"call\s+(\w+)", text))
    assert "fmodf" not in called
    if not any(name.startswith("_ZGV") for name in called):
        pytest.skip("the C library has no SIMD functions")
    assert not called & {f"{name}f" for name in ELEMENTARY}


def spread(rows: int, columns: int, step: int) -> FusionDefinition:
    """Each element `step` x `step` times, and a border: lanes that are loaded under tests."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], True, DataType.Float)
        each = fd.ops.broadcast_in_dim(x, [rows, step, columns, step], [0, 2])
        whole = fd.ops.reshape(each, [rows * step, columns * step])
        fd.add_output(fd.ops.mul(fd.ops.pad(whole, [0, 1, 0, 1]), 3.0))
    return fd


@pytest.mark.parametrize("cpu", [c if isinstance(c, str) else c.values[0] for c in CPUS])
def test_lanes_under_tests_are_no_gathers(cpu: str) -> None:
    """g++ 12.2 gave the lanes of such a gather the wrong elements."""
    if find_compiler().family != "gcc":
        pytest.skip("only g++ was wrong")
    plan = spread(4, 5, 3).plan()
    found = generate_kernels(plan, HOST.device_info(torch.device("cpu"))).values()
    assert "gather" not in assembly(host_text([k.kernel for k in found]), cpu)


@pytest.mark.parametrize("step", [2, 3, 5])
@pytest.mark.parametrize("sizes", [(4, 5), (7, 3), (8, 33)], ids=str)
def test_lanes_under_tests_have_their_own_elements(sizes: tuple[int, int], step: int) -> None:
    x = torch.randn(sizes)
    (found,) = spread(*sizes, step).execute([x])
    whole = x.repeat_interleave(step, 0).repeat_interleave(step, 1)
    assert torch.equal(found, 3.0 * torch.nn.functional.pad(whole, (0, 1, 0, 1)))


PLANTED = {
    "written in halves, read whole": (
        1,
        """
  typedef float Half __attribute__((vector_size(16))), Whole __attribute__((vector_size(32)));
  alignas(32) volatile float memory[8];
  *(volatile Half*)memory = Half{} + x[0];
  *(volatile Half*)(memory + 4) = Half{} + x[1];
  *(Whole*)x = *(volatile Whole*)memory;""",
    ),
    "written whole, read in halves": (
        0,
        """
  typedef float Half __attribute__((vector_size(16))), Whole __attribute__((vector_size(32)));
  alignas(32) volatile float memory[8];
  *(volatile Whole*)memory = Whole{} + x[0];
  *(Half*)x = *(volatile Half*)memory;
  *(Half*)(x + 4) = *(volatile Half*)(memory + 4);""",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_arrays_on_the_stack(name: str) -> None:
    expected, body = PLANTED[name]
    found = stalls(assembly(f"void planted(float* x) {{{body}\n}}", "haswell"))
    assert len(found) == expected
    assert all("planted" in stall.function for stall in found)


ODD_ROWS = [(name, dtype) for name in ("softmax", "layer_norm") for dtype in ("Float", "BFloat16")]
"""Lanes are columns, and a thread has one row at a time."""
ODD_COLUMNS = [("softmax of columns", "Float"), ("column sum", "Float"), ("column sum", "BFloat16")]
"""Lanes are rows of the reduction, or columns with accumulators for all rows."""


def of_odd_rows(name: str, dtype: DataType, columns: int) -> str:
    """Text of the kernel for rows whose last vector is not a whole one."""
    with FusionDefinition() as fd:
        given = fd.define_tensor([512, columns], [True, True], dtype)
        x = fd.ops.cast(given, DataType.Float)
        if name.startswith("softmax"):
            dims = [0] if name.endswith("columns") else [1]
            e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims, True)))
            y = fd.ops.div(e, fd.ops.sum(e, dims, True))
        elif name == "column sum":
            y = fd.ops.sum(fd.ops.mul(x, 2.0), [0])
        else:
            variance, mean = fd.ops.var_mean(x, [1], 0, True)
            y = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        fd.add_output(fd.ops.cast(y, dtype))
    (found,) = generate_kernels(fd.plan(), HOST.device_info(torch.device("cpu"))).values()
    return host_text([found.kernel])


@pytest.mark.parametrize("cpu", CPUS)
@each_value(columns=[257, 520, 1001, 4097], **{"name,dtype": [*ODD_ROWS, *ODD_COLUMNS]})
def test_rows_of_odd_sizes_are_loaded_in_vectors(
    name: str, dtype: str, columns: int, cpu: str
) -> None:
    """g++ put addresses of single elements in the lanes of a vector, with the tests of the last
    vector in each: rows took four times as long as those of one column less.
    """
    if find_compiler().family != "gcc":
        pytest.skip("clang was not read")
    found = assembly(of_odd_rows(name, DataType[dtype], columns), cpu)
    # Lanes of an address, and the program of a completely unrolled row with tests.
    assert not re.search("vpextr[dq]", found)
    whole = assembly(of_odd_rows(name, DataType[dtype], columns // 32 * 32), cpu)
    assert len(found.splitlines()) < 3 * len(whole.splitlines())


@pytest.mark.parametrize(("name", "dtype"), [*ODD_ROWS, *ODD_COLUMNS])
def test_only_the_last_vector_of_odd_rows_has_tests(name: str, dtype: str) -> None:
    """Each statement with a test of the lane is also there without it, for the vectors before."""
    lines = of_odd_rows(name, DataType[dtype], 1001).splitlines()
    tested = [line.split(" <= 1000) ")[1] for line in lines if " <= 1000) " in line]
    others = [line for line in lines if " <= 1000) " not in line]
    assert tested
    assert all(any(line.endswith(statement) for line in others) for statement in tested)


def test_a_row_of_several_blocks_is_loaded_in_aligned_pieces() -> None:
    """Its loop is not peeled, since its end is a block's: lanes would each have a test."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2**20 + 8], [True], DataType.BFloat16)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.cast(x, DataType.Float), 2.0), [0]))
    found = generate_kernels(fd.plan(), HOST.device_info(torch.device("cpu"))).values()
    sources = [k.kernel.source for k in found]
    assert any("tf::load<8>(T0" in source for source in sources)
    assert not any("[v]" in line and "T0" in line for s in sources for line in s.splitlines()[1:])


@pytest.mark.parametrize("cpu", [c if isinstance(c, str) else c.values[0] for c in CPUS])
def test_a_philox_round_is_two_products_of_a_register(cpu: str) -> None:
    """Of 64-bit lanes, whose halves are the words; g++ splits a loop's products into four."""
    lanes = 8 if cpu in ("skylake-avx512", "rocketlake") else 4
    source = f"""\
extern "C" __global__ void drawn(unsigned* words, long long seed, long long first) {{
  unsigned w[4 * {lanes}];
  tf::words<{lanes}>(seed, first, 7, w);
  TF_VEC
  for (int k = 0; k < 4 * {lanes}; ++k) words[k] = w[k];
}}
"""
    kinds = ("unsigned*", "long long", "long long")
    params = tuple(Param(f"a{k}", kind) for k, kind in enumerate(kinds))
    kernel = Kernel("drawn", source, ("philox.cuh",), params, (1, 1, 1), (1, 1, 1))
    text = assembly(host_text([kernel]), cpu)
    assert text.count("vpmuludq") <= 2 * 10
    assert not re.search(r"\bvpmull[dq]\b", text)
