"""Binding of a call's inputs to a Fusion: validation, and the properties that kernels are
specialised on.

`key_of` runs at every call and only reads the properties that may change between calls. `bind` runs
once for each new key, before anything is compiled, and validates the inputs completely: each error
names the input, the dimension, the expected and the actual value, and the remedy. If nvFuser has a
message for the same mistake, the text starts with it.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_fuser.analysis.torch_strides import over_single_elements
from thunder_fuser.config import current
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType, Number, from_torch, of_number
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView, Val
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.size_equations import line_of
from thunder_fuser.runtime.binding.memory_overlap import overlaps_itself, pairs_near, share_memory
from thunder_fuser.runtime.binding.sizes import bind_sizes, named_line, size_inputs

__all__ = ["Binding", "Inputs", "Key", "bind", "check_updates", "key_of", "size_inputs"]

Inputs = Sequence[Any]
"""Tensors and Python numbers in the fusion's order, as the caller gave them."""
Key = tuple[Hashable, ...]

_ALIGNMENT = tuple(64 if low == 0 else low & -low for low in range(64))
"""Alignment in bytes, at most 64, by the six lowest bits of an address."""
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter


@dataclass(frozen=True, slots=True)
class Binding:
    """Properties of a call's inputs that kernels are specialised on.

    sizes    value of each symbolic size, in order of first use; argument of `specialise`
    layouts  one per tensor input, in order
    device   device that the fusion runs on, regardless of CPU scalars among CUDA tensors
    """

    sizes: Mapping[Form, int]
    layouts: tuple[Layout, ...]
    device: torch.device

    @property
    def key(self) -> Key:
        """Key that is equal for two calls of one fusion iff they can share compiled kernels."""
        return (tuple(self.sizes.values()), self.layouts, self.device)


def key_of(inputs: Inputs, positions: Sequence[int] = ()) -> Key:
    """Return the lookup key of a call: inputs with equal keys bind equally.

    It has shape, strides, dtype, alignment and device of a tensor; the type of a scalar, and its
    value if its position is in `positions` (from `size_inputs`), because it is a size.
    """
    key: list[Hashable] = []
    for x in inputs:
        kind: Any = type(x)
        if kind is _Tensor or kind is _Parameter:
            try:
                if not (x.is_neg() or x.is_conj()):
                    alignment = _ALIGNMENT[x.data_ptr() & 63]
                    key += (x.shape, x.stride(), x.dtype, alignment, x.device)
                    continue
            except RuntimeError:  # sparse and other tensors without strides: `bind` says so
                pass
        elif kind is FakeTensor:
            key += (x.shape, x.stride(), x.dtype, kind, x.device)
            continue
        key.append(kind)
    for k in positions:
        key.append(inputs[k])
    return tuple(key)


def bind(fusion: Fusion, inputs: Inputs, device: torch.device | None = None) -> Binding:
    """Check a call's inputs against the fusion, whose sizes may be symbolic.

    `device` is where a fusion without tensor inputs runs (default: the GPU if there is one); with
    tensor inputs it must agree with theirs. Raises FuserTypeError or FuserValueError at the first
    mistake.
    """
    formals = fusion.inputs
    if len(inputs) != len(formals):
        names = ", ".join(v.name for v in formals)
        lines = ", ".join(f"{v.name}{line_of(v.origin)}" for v in formals if v.origin.file)
        raise FuserValueError(
            f"Inputs were not set up correctly: the fusion takes {len(formals)} inputs ({names}), "
            f"but {len(inputs)} were given; pass one for each, in the order of their definition"
            + f" ({lines})"
            * bool(lines)
        )
    for k, (formal, actual) in enumerate(zip(formals, inputs, strict=True)):
        with named_line(formal):
            if isinstance(formal, TensorView):
                _check_tensor(k, formal, actual)
            else:
                _check_number(k, formal, actual)
    where = _device(fusion, inputs, device)
    sizes = bind_sizes(fusion, inputs)
    layouts = []
    for k, formal in enumerate(formals):
        if isinstance(formal, TensorView):
            with named_line(formal):
                _check_strides(k, formal, inputs[k])
            layouts.append(_layout(inputs[k]))
    check_updates(fusion, inputs)
    return Binding(sizes, tuple(layouts), where)


def bind_dense(fusion: Fusion, device: torch.device) -> Binding:
    """Return the binding of a call with row-major tensors in separate memory, to a fusion without
    symbolic sizes.
    """
    dense = (torch.empty(t.sizes, dtype=t.dtype.torch, device="meta") for t in fusion.tensor_inputs)
    return Binding({}, tuple(map(_layout, dense)), device)


def check_updates(fusion: Fusion, inputs: Inputs) -> None:
    """Raise FuserValueError if an input updated in place overlaps itself or another input, and
    FuserError if it is an inference tensor outside of inference mode, as torch does.

    Depends on addresses and modes, so that a fusion with updates needs it at every call, unless a
    guard has found all address ranges apart (`guard_of`).
    """
    if not fusion.updates:
        return
    positions = {value: k for k, value in enumerate(fusion.inputs)}
    updated = {positions[u.target]: u.target for u in fusion.updates}
    is_inference = torch.is_inference_mode_enabled()
    for k, view in updated.items():
        target = inputs[k]
        if target.is_inference() and not (is_inference or _is_fake(target)):
            raise FuserError(
                "Inplace update to inference tensor outside InferenceMode is not allowed: "
                f"input {k}, {view.name}, is updated in place; pass x.clone(), or call it under "
                "torch.inference_mode()"
            )
        if overlaps_itself(target.shape, target.stride()):
            raise FuserValueError(
                f"overlapping output: input {k}, {view.name}, is updated in place but "
                f"several of its elements share memory (sizes {list(target.shape)}, strides "
                f"{list(target.stride())}); pass x.contiguous()"
            )
    real = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not _is_fake(x)]
    for pair in pairs_near([inputs[k] for k in real]):
        one, other = (real[n] for n in pair)
        k, j = (one, other) if one in updated else (other, one)
        if k in updated and share_memory(inputs[k], inputs[j]):
            raise FuserValueError(
                f"overlapping output: input {k}, {updated[k].name}, is updated in place and "
                f"shares memory with input {j}, {fusion.inputs[j].name}; pass a clone of one"
            )


# ---- one input


def _place(k: int, formal: Val) -> str:
    return f"input {k}, {formal.name}"


def _check_tensor(k: int, view: TensorView, x: object) -> None:
    """Check type, memory format, dtype and rank. Sizes and strides are checked later."""
    place = _place(k, view)
    if not isinstance(x, torch.Tensor):
        got = f"scalar {x}" if isinstance(x, (int, float, complex)) else f"a {type(x).__name__}"
        raise FuserTypeError(
            f"Expected {place}, to be an at::Tensor but got {got}; pass a tensor, or define the "
            "input with define_scalar"
        )
    _check_plain(place, x)
    if x.dtype != view.dtype.torch:
        raise FuserTypeError(
            f"Expected {place}, to be bound to a tensor of dtype {view.dtype.name}, but got a "
            f"tensor of dtype {_dtype_name(x.dtype)}; pass x.to({view.dtype.torch}), or define "
            "the input with the dtype that it has"
        )
    rank = len(view.domain.root)
    if x.dim() != rank:
        made = f"; the input is {view.domain}" if view.domain.transforms else ""
        raise FuserValueError(
            f"Expected {place}, to be bound to a tensor of rank {rank}, but got a tensor of rank "
            f"{x.dim()} (sizes {list(x.shape)}){made}; reshape the tensor, or define the input "
            "with from_pytorch(x)"
        )


def _check_plain(place: str, x: torch.Tensor) -> None:
    """Check that the tensor is a plain strided one, whose memory holds its elements."""
    kind, advice = "", ""
    if not (_is_fake(x) or type(x) in (_Tensor, _Parameter)):
        name = type(x).__name__
        kind = f"a {name}, a subclass of torch.Tensor"
        advice = "x.to_local()" if name == "DTensor" else "the plain tensor that it wraps"
    elif x.is_nested:
        kind, advice = "a nested tensor", "its components or x.to_padded_tensor(...)"
    elif x.is_quantized:
        kind, advice = "a quantized tensor", "x.dequantize()"
    elif x.layout is not torch.strided:
        kind, advice = f"a tensor of layout {x.layout}", "x.to_dense()"
    elif x.device.type == "meta":
        kind, advice = "a meta tensor, which has no elements", "a tensor on a device, or plan only"
    elif x.is_conj():
        kind, advice = "a lazily conjugated tensor", "x.resolve_conj()"
    elif x.is_neg():
        kind, advice = "a lazily negated tensor", "x.resolve_neg()"
    if kind:
        raise FuserTypeError(f"{place}, is {kind}; only plain tensors can be read: pass {advice}")


def _is_fake(x: torch.Tensor) -> bool:
    return isinstance(x, FakeTensor)


def _dtype_name(dtype: torch.dtype) -> str:
    try:
        return from_torch(dtype).name
    except FuserTypeError:
        return str(dtype)


def _check_number(k: int, scalar: Scalar, x: object) -> None:
    place = _place(k, scalar)
    if isinstance(x, torch.Tensor):
        raise FuserTypeError(
            f"Expected {place}, to be a scalar but got {_dtype_name(x.dtype)} tensor of rank "
            f"{x.dim()}; pass x.item(), or define the input with define_tensor"
        )
    if not isinstance(x, (int, float, complex)):
        raise FuserTypeError(
            f"Expected {place}, to be a scalar but got a {type(x).__name__}; pass a Python number"
        )
    if of_number(x).category > scalar.dtype.category or not _fits(x, scalar.dtype):
        raise FuserTypeError(
            f"Scalar value {x} is not compatible with the expected data type: "
            f"{scalar.dtype.name} ({place}); convert it, or define the input with another dtype"
        )


def _fits(x: Number, dtype: DataType) -> bool:
    """False for an integer outside of the dtype's range; floats are rounded, to infinity."""
    if not isinstance(x, int):
        return True
    if not dtype.is_integral:
        return abs(x) <= sys.float_info.max
    limits = torch.iinfo(dtype.torch)
    return bool(limits.min <= x <= limits.max)


# ---- devices


def _device(fusion: Fusion, inputs: Inputs, wanted: torch.device | None) -> torch.device:
    found: tuple[str, torch.device] | None = None
    for k, (formal, x) in enumerate(zip(fusion.inputs, inputs, strict=True)):
        if not isinstance(formal, TensorView):
            continue
        place, device = _place(k, formal), x.device
        if formal.is_cpu:
            if device.type != "cpu":
                raise FuserValueError(
                    f"{place}, is defined with is_cpu=True but got a tensor on {device}; pass "
                    "x.cpu(), or define it without is_cpu"
                )
            continue
        if device.type not in ("cpu", "cuda"):
            raise FuserValueError(
                f"{place}, is on {device}; kernels run on cpu and cuda devices only: move it to "
                "one, or leave this operation to torch"
            )
        if found is None:
            found = place, device
        elif device != found[1]:
            raise FuserValueError(_mixed(found, (place, device), x.dim()))
    if found is None:
        return wanted or _default_device()
    if wanted is not None and (wanted.type, wanted.index or 0) != (
        found[1].type,
        found[1].index or 0,
    ):
        raise FuserValueError(
            f"device is {wanted} but {found[0]}, is on {found[1]}; leave device out to run where "
            "the inputs are"
        )
    return found[1]


def _default_device() -> torch.device:
    """Return the current GPU, as in nvFuser; the CPU without a GPU or with the target "host"."""
    on_gpu = current().target != "host" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _mixed(a: tuple[str, torch.device], b: tuple[str, torch.device], rank: int) -> str:
    text = f"{a[0]}, is on {a[1]} but {b[0]}, is on {b[1]}; move all tensors to one device"
    if b[1].type == "cpu" and rank == 0:
        text += ", or define CPU scalars with is_cpu=True (from_pytorch does)"
    return text


# ---- strides


def _check_strides(k: int, view: TensorView, x: torch.Tensor) -> None:
    """Check that expanded dimensions have stride 0, and that dimensions declared contiguous are.

    If the domain has transforms, contiguity is that of logical dimensions, which the tensor does
    not have, and is not checked.
    """
    sizes, strides = x.shape, x.stride()
    for d, dim in enumerate(view.domain.root):
        if dim.expanded is not None and strides[d] != 0 and sizes[d] > 1:
            raise FuserValueError(
                f"{_place(k, view)}: IterDomain {dim} has expanded extent but input tensor has "
                f"size {sizes[d]} and stride {strides[d]} in dimension {d}; pass x.expand(...) of "
                f"a tensor of size 1, or define the dimension with contiguity True or False"
            )
    if x.numel() == 0 or view.domain.transforms:
        return
    expected = 1
    order = list(zip(view.domain.allocation, view.domain.contiguity, strict=True))
    for d, dense in reversed(order):
        if dense is None or sizes[d] == 1:
            continue
        if dense and strides[d] != expected:
            raise FuserValueError(
                f"{_place(k, view)}: stride mismatch with contiguity info: dimension {d} is not "
                f"contiguous as the definition promised (contiguity="
                f"{list(view.domain.contiguity)}, sizes {list(sizes)}, strides {list(strides)}, "
                f"expected stride {expected}); pass x.contiguous(), or define the input with "
                "from_pytorch(x)"
            )
        expected = strides[d] * sizes[d]


def _layout(x: torch.Tensor) -> Layout:
    """Return the layout of a tensor. Strides of dimensions of size 1, and of empty tensors, become
    0; the original strides are kept, too, if torch's order of dimensions depends on them.
    """
    sizes, own = tuple(x.shape), x.stride()
    empty = x.numel() == 0
    strides = tuple(
        0 if empty or size == 1 else stride for size, stride in zip(sizes, own, strict=True)
    )
    decides = len(sizes) > 2 and x.numel() > 1 and own != over_single_elements(sizes, strides)
    alignment = 64 if _is_fake(x) else _ALIGNMENT[x.data_ptr() & 63]
    return Layout(strides, alignment, own if decides else ())
