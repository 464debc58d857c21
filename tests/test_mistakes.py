"""The most common mistakes: each is one message with the operation or the input, the user's line,
what was expected, what came, and the way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.sharding import DeviceMesh

Float, Int = DataType.Float, DataType.Int
X, Y = torch.zeros(4, 8), torch.zeros(8)
HERE = r"test_mistakes\.py:\d+"
"""A line of this file, which stands for the user's."""


def message_of(mistake: Callable[[], object]) -> str:
    with pytest.raises((FuserError, AttributeError, NotImplementedError)) as caught:
        mistake()
    return str(caught.value)


def summed() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([4, 8], True, Float), fd.define_tensor([8], True, Float)
        fd.add_output(fd.ops.add(x, y))
    return fd


def selected() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([4, 8], True, Float), fd.define_tensor([2], True, Int)
        fd.add_output(fd.ops.index_select(x, index, 0))
    return fd


def without_output() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.ops.neg(fd.define_tensor([4], True, Float))
    return fd


# The parts that a message must have, in this order.
CALLS: dict[str, tuple[Callable[[], FusionDefinition], list[Any], list[str]]] = {
    "shape": (summed, [torch.zeros(4, 9), Y],
        ["8 as 9 in dimension 1 of input 0, T0", "define the dimension as -1", HERE]),
    "rank": (summed, [torch.zeros(4, 8, 1), Y],
        ["input 0, T0", "rank 2", "rank 3", "reshape the tensor", HERE]),
    "dtype": (summed, [X, Y.double()],
        ["input 1, T1", "dtype Float", "dtype Double", r"pass x.to\(torch.float32\)", HERE]),
    "device": (summed, [X.to("meta"), Y],
        ["input 0, T0", "meta tensor", "pass a tensor on a device", HERE]),
    "no output": (without_output, [Y],
        ["Give it an output: fd.add_output", f"last operation is neg at .*{HERE}"]),
    "too few": (summed, [X],
        ["takes 2 inputs", "1 were given", "in the order of", f"T0 at .*{HERE}, T1 at .*{HERE}"]),
    "too many": (summed, [X, Y, Y], ["takes 2 inputs", "3 were given", "in the order of", HERE]),
    "not contiguous": (summed, [torch.zeros(8, 4).t(), Y],
        ["input 0, T0", "dimension 1 is not contiguous as the definition promised",
         r"strides \[1, 4\], expected stride 1", r"pass x.contiguous\(\), or", HERE]),
    "a number": (summed, [1.0, Y],
        ["input 0, T0", "an at::Tensor but got scalar 1.0", "define_scalar", HERE]),
    "None": (summed, [None, Y], ["input 0, T0", "but got a NoneType", "pass a tensor", HERE]),
    "index": (selected, [X, torch.tensor([1, -5])],
        [r"index_select\(T0, T1, 0\)", "index -5 is out of bounds for size 4; expected 0 to 3",
         HERE]),
}  # fmt: skip

Write = Callable[[FusionDefinition, Any], Any]
DEFINITIONS: dict[str, tuple[Write, list[str]]] = {
    "op": (lambda fd, x: fd.ops.sigmod(x), ["fd.ops.sigmod", "did you mean sigmoid", HERE]),
    "option": (lambda fd, x: fd.ops.sum(x, [0], keepdims=True),
        ["sum", "unexpected keyword argument 'keepdims'", r"it takes \(arg, dims, keepdim,", HERE]),
    "operands": (lambda fd, x: fd.ops.add(x), ["add takes 2 operands, got 1", HERE]),
    "dimension": (lambda fd, x: fd.ops.sum(x, [5]),
        ["sum of T0", "dimension 5 is out of range; expected -2 to 1", HERE]),
    "shapes": (lambda fd, x: fd.ops.add(x, fd.ops.full([4], 1.0, Float)),
        ["add", r"sizes \[4, 8\]", r"\[4, 8\], \[4\]", "broadcast_in_dim or reshape", HERE]),
    "elements": (lambda fd, x: fd.ops.reshape(x, [5, 7]),
        ["reshape", "32 elements become 35", HERE]),
    "None": (lambda fd, x: fd.ops.add(x, None),
        ["add: operand 1 is None; expected a tensor, a scalar or a number", HERE]),
    "text": (lambda fd, x: fd.ops.mul("2", x), ["mul: operand 0 is '2'; expected a", HERE]),
    "a torch tensor": (lambda fd, x: fd.ops.add(x, Y),
        ["got a torch.Tensor", r"fd.from_pytorch\(x\)", "fd.ops.add", HERE]),
    "a number to sum": (lambda fd, x: fd.ops.sum(2.0), ["sum: expected a tensor, got 2.0", HERE]),
    "a tensor for a list": (lambda fd, x: fd.ops.cat(x),
        ["tensors: expected a list of tensors, got T0", "fd.ops.cat", HERE]),
    "a condition": (lambda fd, x: fd.ops.where(x, x, x),
        ["where: operand 0 .* must be Bool, got Float", "compare it with something", HERE]),
    "torch's dtype": (lambda fd, x: fd.ops.cast(x, torch.float32),
        ["expected a DataType, got torch.float32", "write DataType.Float", "fd.ops.cast", HERE]),
    "another definition's": (lambda fd, x: fd.ops.add(x, summed().fusion.outputs()[0]),
        ["T2: .* belongs to another FusionDefinition; define it in this", "fd.ops.add", HERE]),
    "an output": (lambda fd, x: fd.add_output(None),
        ["an output must be a tensor, got None", "fd.add_output", HERE]),
    "an input": (lambda fd, x: fd.from_pytorch(None),
        ["from_pytorch: expected a torch.Tensor, got None", HERE]),
    "several outputs": (lambda fd, x: fd.add_output([x, x]),
        ["add_output: expected one tensor", "add each by a call", HERE]),
    "ranks of a torch call": (lambda fd, x: fd.ops.sdpfa_fwd(x, x, x),
        ["sdpfa_fwd: query: expected 4 dimensions, got 2", HERE]),
    "no operand of a torch call": (lambda fd, x: fd.ops.scatter(x, None, x, 0),
        ["index: expected a tensor, got None", "fd.ops.scatter", HERE]),
    "too many arguments": (lambda fd, x: fd.ops.reshape(x, 8, 4),
        ["reshape: too many", r"it takes \(arg, new_shape\), got \(T0: .*, 8, 4\)", HERE]),
    "65 bits": (lambda fd, x: fd.ops.add(x, 2**64), ["cannot be a .*Int.* 64 bits", HERE]),
    "a row": (lambda fd, x: x[0], ["T0: .* is not subscriptable; use fd.ops.select"]),
    "a number of it": (lambda fd, x: float(x),
        ["T0: .* has no value while the definition is written"]),
    "a call of torch": (lambda fd, x: torch.sin(x),
        ["torch.sin does not take values of a definition; use the operations of fd.ops"]),
    "sizes of a plan": (lambda fd, x: fd.plan(sizes=[8]),
        [r'sizes: expected sizes by name, such as \{"i0": 8192\}, got \[8\]']),
    "an index": (lambda fd, x: fd.ops.index_select(x, x, 0),
        ["index_select: expected an index of dtype Int or Int32, got Float; cast it", HERE]),
    "an update": (lambda fd, x: fd.add_output(fd.ops.full([4, 9], 1.0, Float), x),
        ["add_output", r"sizes \[4, 9\] cannot be written into the input T0 of sizes \[4, 8\]",
         HERE]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    define, inputs, parts = CALLS[name]
    fd = define()
    message = message_of(lambda: fd.execute(inputs))
    assert re.search(".*".join(parts), message), message


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition(name: str) -> None:
    write, parts = DEFINITIONS[name]
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8], True, Float)
        message = message_of(lambda: write(fd, x))
    assert re.search(".*".join(parts), message), message


MESH = DeviceMesh((4,), ("tp",))
ARGUMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a trace": (thunder_fuser.fusions_of_trace, "expected a trace, .* thunder_fuser.fusions"),
    "not compiled": (lambda _: thunder_fuser.fusions(torch.sin), "thunder.jit.*after a call"),
    "fusions": (lambda fn: thunder_fuser.report(thunder_fuser.fusions(fn)), "pass the function"),
    "no report": (lambda fn: thunder_fuser.report(fn).compare(fn), r"thunder_fuser.report\(fn\)"),
    "a size": (lambda fn: thunder_fuser.mesh_plans(fn, 4, {}), "sharding.DeviceMesh, got 4"),
    "no axes": (lambda fn: thunder_fuser.mesh_plans(fn, MESH, {"x": 0}), '{"x": {"tp": 0}}'),
    "no shape": (lambda _: DeviceMesh(4), r"size and the name of each axis.*got 4"),
    "one name": (lambda _: DeviceMesh((4,), "tp"), r"size and the name of each axis.*got 'tp'"),
    "no call": (thunder_fuser.LruFusionCache, r"write @LruFusionCache\(\)"),
    "one reference": (lambda _: summed().validate([X, Y], X), r"list of reference.*pass \[y\]"),
    "torch's call": (
        lambda _: thunder_fuser.ops.softmax,
        f"no operation fd.ops.softmax.*thunder.jit fuses the call .*{HERE}",
    ),
}


@pytest.fixture(scope="module")
def compiled() -> Any:
    fn = thunder.jit(lambda x: torch.sin(x) * 2, executors=[thunder_fuser.executor])
    fn(X)
    return fn


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_public_functions(name: str, compiled: Any) -> None:
    wrong, pattern = ARGUMENTS[name]
    message = message_of(lambda: wrong(compiled))
    assert re.search(pattern, message), message


def test_a_file_that_holds_no_definitions(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text('{"fusions": [{"definition": "x = 1"}]}')
    message = message_of(lambda: thunder_fuser.LRUCache(2).deserialize(tmp_path / "cache"))
    assert "cache was not written by serialize" in message


def test_paths_are_text(tmp_path: Path) -> None:
    with thunder_fuser.options(cache_dir=tmp_path, dump_dir=tmp_path) as chosen:
        assert chosen.cache_folder == tmp_path
        assert chosen.dump_dir == str(tmp_path)
    assert "got PosixPath" in message_of(lambda: thunder_fuser.Options(fuel=tmp_path))  # type: ignore[arg-type]


def test_without_a_compiler_reports_say_so(recwarn: pytest.WarningsRecorder) -> None:
    fn = thunder.jit(lambda x: torch.cos(x) * 0.875, executors=[thunder_fuser.executor])
    with thunder_fuser.options(strict=False, cxx="/no/compiler"):
        assert torch.equal(fn(X), torch.cos(X) * 0.875)
        (report,) = thunder_fuser.fusions(fn)
        (refusal,) = report.refusals
    assert refusal.code == "fallback"
    assert "/no/compiler was not found; correct" in refusal.text
    assert str(refusal) in str(report)
    assert "fuser0 runs in torch" in str(recwarn.pop(RuntimeWarning).message)


def test_inputs_are_a_list() -> None:
    message = message_of(lambda: summed().execute(X))
    assert message == "inputs: expected a list, got Tensor; pass execute([x, ...])"


def test_finished_definitions() -> None:
    message = message_of(lambda: summed().ops.neg(1.0))
    assert re.search(f"the definition is finished.*fd.ops.neg.*{HERE}", message)


def test_options() -> None:
    with thunder_fuser.options(strict=1) as chosen:
        assert chosen.strict is True
    message = message_of(lambda: thunder_fuser.options(strict="yes").__enter__())
    assert message == "strict: expected 1 or 0 (also true/false, yes/no, on/off), got 'yes'"
