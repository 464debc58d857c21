"""Do a compiled program and eager torch leave the same memory behind?

Values of results and arguments, strides, and which tensors share memory, at which distance.
`interpreted` runs the kernels of fusions by the reference evaluator, in the memory that their plans
allocate: everything but the kernels is real, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import thunder
import torch

import thunder_fuser
from tests.frontends.thunder.programs import flat
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.reference import evaluate


def differences(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> Iterator[str]:
    """What tells the results and arguments of one run from those of another one."""
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            yield f"tensor {k}: {a.dtype} {list(a.shape)}, eager {b.dtype} {list(b.shape)}"
        elif not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            yield f"tensor {k} holds {a.flatten().tolist()}, eager {b.flatten().tolist()}"
        elif not _same_strides(a, b):
            yield f"tensor {k} {list(a.shape)}: strides {a.stride()}, eager {b.stride()}"
    memories = [[t.untyped_storage().data_ptr() for t in side] for side in (ours, theirs)]
    for j in range(len(ours)):
        for k in range(j):
            if not ours[j].numel() or not ours[k].numel():
                continue
            mine, eager = (m[j] == m[k] for m in memories)
            if mine != eager:
                yield f"tensors {k} and {j} {'share' if mine else 'do not share'} memory"
            elif mine:
                apart = [t[j].storage_offset() - t[k].storage_offset() for t in (ours, theirs)]
                if apart[0] != apart[1]:
                    yield f"tensors {k} and {j} lie {apart[0]} apart, eager {apart[1]}"


def _same_strides(ours: torch.Tensor, eager: torch.Tensor) -> bool:
    """Of dimensions that have several elements. A window on memory that nobody else has may be
    dense.
    """
    steps = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (ours, eager)]
    if steps[0] == steps[1] or not ours.numel():
        return True
    is_window = eager.untyped_storage().nbytes() != eager.numel() * eager.element_size()
    return is_window and ours.is_contiguous()


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Tensors of the same values and strides in memory of their own."""
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    _fill(new, tensor)
    return new


def ran(program: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Results, then arguments, after a run on copies of the inputs."""
    given = copies(inputs)
    return [*flat(program(*given)), *flat(tuple(given))]


def faults(program: Any, inputs: Sequence[Any]) -> list[str]:
    """What our executor changes about a program, unless Thunder alone does not run it as eager
    torch does.
    """
    eager = ran(program, inputs)
    found: list[list[str]] = []
    for executors in ([thunder_fuser.executor], []):
        try:
            with interpreted():
                compiled = thunder.jit(program, executors=executors)
                found.append(list(differences(ran(compiled, inputs), eager)))
        except Exception as error:
            found.append([f"{type(error).__name__}: {error}"])
        if not found[-1]:
            break
    ours, *others = found
    return ours if others in ([], [[]]) else []


ARGUMENTS: dict[str, Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]] = {
    "results": lambda leaves: [x * 1 for x in leaves],
    "views": lambda leaves: [(x * 1)[None][0] for x in leaves],
    "one without gradients": lambda leaves: [leaves[0].detach() * 1, *(x * 1 for x in leaves[1:])],
}
"""What a program is given, made of leaves."""


def gradients(
    program: Callable[..., Any],
    *inputs: torch.Tensor,
    reads_arguments: bool = False,
    arguments: str = "results",
) -> list[torch.Tensor]:
    """Values of results and arguments, then the gradients of leaves that arguments are made of."""
    leaves = [x.double().requires_grad_() for x in inputs]
    given = ARGUMENTS[arguments](leaves)
    results = [x for x in flat(program(*given)) if isinstance(x, torch.Tensor)]
    read = [x for x in (*results, *(given if reads_arguments else ())) if x.requires_grad]
    values = [x.detach().clone() for x in (*results, *given)]
    if read:
        weights = [torch.arange(1, x.numel() + 1).reshape(x.shape) for x in read]
        sum((x * w).sum() for x, w in zip(read, weights, strict=True)).backward()  # type: ignore[union-attr]
    return [*values, *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


@contextmanager
def interpreted() -> Iterator[None]:
    """Fusions whose kernels are the reference evaluator."""
    call = CompiledFusion.__call__

    def run(self: CompiledFusion, inputs: Any, device: Any = None) -> list[torch.Tensor]:
        found = evaluate(self.fusion, copies(inputs), device=device)
        held = copies(inputs)
        outputs = call(self, inputs, device)
        for x, value in zip(inputs, held, strict=True):
            if isinstance(x, torch.Tensor):
                _fill(x, value)
        for update, value in zip(self.fusion.updates, found.updates, strict=True):
            _fill(inputs[self.fusion.inputs.index(update.target)], value)
        for value, output in zip(found.outputs, outputs, strict=True):
            _fill(output, value)
        return outputs

    def compiled(kernels: Mapping[int, Any], *_: Any) -> dict[int, Any]:
        return dict.fromkeys(kernels, lambda *pointers: None)

    with (
        mock.patch.object(CompiledFusion, "__call__", run),
        mock.patch("thunder_fuser.compile.compile_kernels", compiled),
        mock.patch("thunder_fuser.frontends.thunder.first_calls.compile_ahead"),
    ):
        yield


def _fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write values, each place once."""
    for k, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[k] > 1:
            tensor, value = tensor.narrow(k, 0, 1), value.narrow(k, 0, 1)
    tensor.detach().copy_(value)
