"""Debug launches on the host: slow, with error checks.

`debug_launch` runs a kernel on guarded copies of its tensors, with collectives executed step by
step and shared memory filled with NaN. `check_orders` runs it in several orders of threads and
blocks and compares the results, so that the race of a missing barrier shows deterministically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.errors import FuserTypeError, KernelError
from thunder_fuser.runtime.fork import Lock
from thunder_fuser.runtime.host.abi import Flag, Order
from thunder_fuser.runtime.host.guard import GuardedTensors, Result
from thunder_fuser.runtime.host.target import HOST, HostLaunch, PreparedCall

OrderName = Literal["forward", "reverse", "random"]
Argument: TypeAlias = torch.Tensor | int | float | bool

# Guard pages and the signal handler for their faults are global to the process.
_one_at_a_time = Lock()


def debug_launch(
    kernel: Kernel | HostLaunch,
    args: Sequence[Argument],
    *,
    order: OrderName = "forward",
    seed: int = 0,
    threads: int = 1,
    shared_fill: int = 0xFF,
) -> None:
    """Run `kernel` once with all checks; results are written to the tensors.

    args         tensors for pointers, Python numbers for the rest
    order        order of threads and blocks between barriers; `seed` is for "random"
    threads      OS threads that the blocks are divided among
    shared_fill  byte that shared memory is filled with; 0xff makes NaN

    Raises KernelError, naming tensor, byte offset, block and thread where applicable, for accesses
    out of bounds, writes to constant tensors, divergence, deadlock, limits; and for misaligned
    vectors, unless the kernel was compiled without checks.
    """
    launch = _compiled(kernel)
    for result in _run(launch, args, _How(order, seed, threads, shared_fill)):
        result.tensor.copy_(result.values)


def check_orders(kernel: Kernel | HostLaunch, args: Sequence[Argument], *, seeds: int = 3) -> None:
    """Run `kernel` in forward, reverse and `seeds` random orders of threads and blocks; raise
    KernelError on a race or a read of uninitialised shared memory.

    The results must be equal bit for bit. The tensors in `args` are not changed.
    """
    launch = _compiled(kernel)
    first = _run(launch, args, _How())
    others = [_How("reverse"), *(_How("random", seed) for seed in range(seeds))]
    for how in others:
        problem = _difference(first, _run(launch, args, how))
        if problem:
            seed = f" (seed {how.seed})" if how.order == "random" else ""
            raise KernelError(
                f"kernel {launch.kernel.name}: race: {problem} in forward and in {how.order} order"
                f"{seed} of threads and blocks; a barrier is missing between a write and a read of "
                "the same memory, or two threads write the same element"
            )
    problem = _difference(first, _run(launch, args, _How(shared_fill=0)))
    if problem:
        raise KernelError(
            f"kernel {launch.kernel.name}: uninitialised shared memory is read: {problem} "
            "when it is full of NaN and when it is full of zeros; write each element before it is "
            "read, with a barrier between"
        )


@dataclass(frozen=True, slots=True)
class _How:
    """Parameters of `debug_launch` that do not change the results of a correct kernel."""

    order: OrderName = "forward"
    seed: int = 0
    threads: int = 1
    shared_fill: int = 0xFF


def _compiled(kernel: Kernel | HostLaunch) -> HostLaunch:
    return kernel if isinstance(kernel, HostLaunch) else HOST.compile([kernel], checks=True)[0]


def _run(launch: HostLaunch, args: Sequence[Argument], how: _How) -> list[Result]:
    """Launch once, with checks, on guarded copies of the tensors in `args`."""
    _check_arguments(launch.kernel, args)
    prepared = _prepare(launch, how)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    params = [param for param in launch.kernel.params if param.is_pointer]
    runtime = launch.program.runtime
    with _one_at_a_time, GuardedTensors(runtime, params, tensors) as guarded:
        addresses = iter(guarded.addresses)
        prepared.arguments.fill(
            [next(addresses) if isinstance(arg, torch.Tensor) else arg for arg in args]
        )
        failure = runtime.tf_launch(prepared.address)
        if failure:
            raise prepared.error(failure)
        try:
            guarded.check()
        except KernelError as error:
            raise KernelError(f"kernel {launch.kernel.name}: {error}") from None
        return guarded.results()


def _check_arguments(kernel: Kernel, args: Sequence[Argument]) -> None:
    if len(args) != len(kernel.params):
        raise FuserTypeError(
            f"kernel {kernel.name} takes {len(kernel.params)} arguments, got {len(args)}; pass "
            f"({', '.join(param.name for param in kernel.params)})"
        )
    for param, arg in zip(kernel.params, args, strict=True):
        if isinstance(arg, torch.Tensor) != param.is_pointer:
            wanted = "tensor" if param.is_pointer else "number"
            raise FuserTypeError(
                f"kernel {kernel.name}, argument '{param.name}' of type '{param.ctype}': "
                f"expected a {wanted}, got {type(arg).__name__}; pass tensors for pointers and "
                "numbers for the rest"
            )


def _prepare(launch: HostLaunch, how: _How) -> PreparedCall:
    flags = Flag.FAITHFUL | Flag.GUARD_SHARED | Flag.ALL_THREADS
    address = launch.program.kernel_address(launch.kernel)
    prepared = PreparedCall(address, launch.kernel, how.threads, flags)
    call = prepared.call
    call.order = Order[how.order.upper()]
    call.seed = how.seed
    call.shared_fill = how.shared_fill
    if how.order != "forward":
        call.flags &= ~Flag.PLAIN  # a plain loop has only one order
    return prepared


def _difference(some: Sequence[Result], others: Sequence[Result]) -> str | None:
    """Describe the first difference between two runs of a kernel; None if equal."""
    for a, b in zip(some, others, strict=True):
        left, right = a.values.contiguous(), b.values.contiguous()
        if left.numel() == 0:
            continue
        same = (_bytes(left) == _bytes(right)).all(1)
        if not same.all():
            where = torch.unravel_index((~same).nonzero()[0, 0], left.shape)
            index = tuple(int(i) for i in where)
            place = f"'{a.param.name}'{list(index)}"
            return f"{place} is {left[index].item()} and {right[index].item()}"
    return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View the elements as rows of bytes."""
    return tensor.reshape(-1, 1).view(torch.uint8)
