"""Constants of kernels as parameters: what kernels of two sizes have in common."""

from __future__ import annotations

from dataclasses import replace

from tests.zoo.template_programs import kernel_of, norm_backward, rms_norm, scanned, transposed
from thunder_fuser import kernel_ir as ir
from thunder_fuser.codegen.cuda import generate
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir.generalize import pattern_of, with_parameters
from thunder_fuser.kernel_ir.verify import verify

INT = DataType.Int32


def of(*body: ir.Stmt) -> ir.KernelIR:
    return replace(kernel_of(rms_norm(128, 16384)), body=body)


def let(name: str, value: ir.Expr, dtype: DataType = INT) -> ir.Let:
    return ir.Let(name, dtype, value)


def arguments(kernel: ir.KernelIR) -> dict[str, int | float]:
    return {p.name: p.bound.value for p in kernel.parameters if isinstance(p.bound, ir.Constant)}


def joined(*kernels: ir.KernelIR) -> list[ir.KernelIR]:
    """Kernels of one pattern with parameters for all that differs."""
    patterns, constants = zip(*map(pattern_of, kernels), strict=True)
    assert len(set(patterns)) == 1
    general = constants[0]
    for each in constants[1:]:
        general = general.joined(each)
    return [with_parameters(kernel, general) for kernel in kernels]


def test_rows_of_two_lengths_are_one_text() -> None:
    lengths = (15_000, 15_008, 15_080)
    kernels = [kernel_of(rms_norm(128, columns)) for columns in lengths]
    assert len({generate(kernel).kernel.name for kernel in kernels}) == 3
    found = joined(*kernels)
    for kernel in found:
        verify(kernel)
    assert len({generate(kernel).kernel.name for kernel in found}) == 1
    values = [arguments(kernel) for kernel in found]
    assert len({tuple(v) for v in values}) == 1
    for length, given in zip(lengths, values, strict=True):
        assert {length, length // 8} <= {*given.values()}


def test_a_kernel_alone_has_no_parameters() -> None:
    for definition in (norm_backward(4096, 1024), transposed(1000, 333), scanned(8192, 16384)):
        kernel = kernel_of(definition)
        _, constants = pattern_of(kernel)
        assert with_parameters(kernel, constants) == kernel
        assert joined(kernel, kernel) == [kernel, kernel]


def test_what_varies_together_is_one_parameter() -> None:
    def body(a: int, b: int, c: int) -> ir.KernelIR:
        return of(
            let("a", ir.Int(a)), let("b", ir.Int(b)), let("c", ir.Int(c)), let("d", ir.Int(7))
        )

    assert [*map(arguments, joined(body(1, 1, 2), body(3, 3, 2)))] == [{"size0": 1}, {"size0": 3}]
    apart = joined(body(1, 1, 2), body(3, 3, 4), body(3, 5, 4))
    assert [*map(arguments, apart)] == [
        {"size0": 1, "size1": 1, "size2": 2},
        {"size0": 3, "size1": 3, "size2": 4},
        {"size0": 3, "size1": 5, "size2": 4},
    ]
    assert apart[0].body == apart[2].body
    assert apart[0].body[3] == let("d", ir.Int(7))


def test_zeros_of_two_signs_are_two_constants() -> None:
    def body(a: float, b: float) -> ir.KernelIR:
        numbers = (ir.Literal(x, DataType.Float) for x in (a, b))
        return of(*(let(f"t{k}", x, DataType.Float) for k, x in enumerate(numbers)))

    first, second = joined(body(0.0, 0.0), body(-0.0, 0.0))
    assert str(arguments(first)) == "{'number0': 0.0}"
    assert str(arguments(second)) == "{'number0': -0.0}"
    assert first.body[1] == let("t1", ir.Literal(0.0, DataType.Float), DataType.Float)


def test_what_compilers_have_to_know_stays() -> None:
    """Registers that are selected, unrolled loops, numbers that no argument carries."""

    def body(n: int, lane: ir.Expr) -> ir.KernelIR:
        x = ir.Registers("x", DataType.Float, (8,))
        loop = ir.Loop("k", ir.Int(n), (ir.Assign(ir.Element(ir.Var("x"), lane), ir.Var("f")),))
        return of(x, let("f", ir.Int(0)), replace(loop, kind=ir.LoopKind.UNROLLED))

    same = body(4, ir.Int(2))
    for other in (body(4, ir.Int(3)), body(5, ir.Int(2))):
        assert pattern_of(same)[0] != pattern_of(other)[0]
    large = [of(let("a", ir.Int(value))) for value in (1 << 31, 1 << 32)]
    assert pattern_of(large[0])[0] != pattern_of(large[1])[0]
    halves = [of(let("a", ir.Literal(v, DataType.Half), DataType.Half)) for v in (1.0, 2.0)]
    assert pattern_of(halves[0])[0] != pattern_of(halves[1])[0]


def test_nearest_of_several_families() -> None:
    _, narrow = pattern_of(of(let("a", ir.Int(64)), let("b", ir.Int(100))))
    _, wide = pattern_of(of(let("a", ir.Int(512)), let("b", ir.Int(100))))
    _, new = pattern_of(of(let("a", ir.Int(64)), let("b", ir.Int(101))))
    assert (narrow.changes(new), wide.changes(new)) == (1, 2)
    assert narrow.joined(new).changes(new) == 0
