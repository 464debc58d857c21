"""Compiled definitions under nvFuser's names: `fd.fec`, and user-made caches of them."""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition.calling import Device, asked_about, called_with, device_of
from thunder_fuser.frontends.definition.graph import Fusion, graph_of
from thunder_fuser.frontends.definition.listing import scheduled_text, source_text
from thunder_fuser.frontends.definition.profile import is_profiling, profiled
from thunder_fuser.frontends.definition.recording.reading import read_definition
from thunder_fuser.frontends.definition.recording.recorder import Recorder
from thunder_fuser.ir import fusion as ir
from thunder_fuser.ir.printer import structural_hash, to_python
from thunder_fuser.runtime.executable import ExecutableInfo
from thunder_fuser.runtime.fork import Lock


class FusionExecutorCache:
    """An executable fusion: planned and compiled at the first call for each kind of inputs.

    `auto_schedule` is nvFuser's and ignored: every fusion is scheduled automatically.
    """

    def __init__(self, fusion: ir.Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        self.draws = fusion.draws
        self.fusion_id = fusion_id
        plain = fusion.plain if isinstance(fusion, Fusion) else fusion
        self.compiled = CompiledFusion(plain, name="definition")
        self.output_shardings: Sequence[Any] = ()

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        device: Device = None,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Run on tensors and numbers; return the outputs in order. Ignores nvFuser's options."""
        flat = called_with(inputs, device, self.draws)
        if is_profiling():
            return profiled(self.compiled, flat, device_of(device), self.fusion_id)[0]
        return self.compiled(flat, device_of(device))

    def fusion(self) -> Fusion:
        """The compiled fusion, for inspection."""
        return graph_of(self.compiled.fusion, Recorder.finished())

    # ---- inspection

    def completed(self, inputs: Sequence[Any]) -> list[Any]:
        """Flat inputs of a query, completed by a placeholder RNG state: nothing is drawn."""
        return asked_about(inputs, self.draws, len(self.compiled.fusion.inputs))

    def is_compiled(self, inputs: Sequence[Any], device: Device = None) -> bool:
        """True if kernels for such inputs are compiled."""
        return self.compiled.is_compiled(self.completed(inputs), device_of(device))

    def kernels(self, inputs: Sequence[Any]) -> tuple[Kernel, ...]:
        """The kernels for such inputs, as source text; compiles nothing."""
        return self.compiled.kernels(self.completed(inputs))

    def get_cuda_kernel(
        self, inputs: Sequence[Any], intrinsic_code: bool = False, device: Device = None
    ) -> str:
        """Source of these kernels; with `intrinsic_code` also the headers that they include."""
        return source_text(self.kernels(inputs), intrinsic_code)

    def get_scheduled_ir(
        self, inputs: Sequence[Any], tensor_transforms: bool = False, device: Device = None
    ) -> str:
        """The plan for such inputs, its launches and the operations after the passes, as text."""
        flat = self.completed(inputs)
        plan = self.compiled.plan(flat, device=device_of(device))
        return scheduled_text(plan, self.compiled.kernels(flat), tensor_transforms)

    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """`get_scheduled_ir` of the inputs compiled last; FuserError before the first call."""
        last = self._last()
        return scheduled_text(last.plan, last.kernels, tensor_transforms)

    def last_cuda_code(self, intrinsic_code: bool = False) -> str:
        """Source of the kernels compiled last; FuserError before the first call."""
        return source_text(self._last().kernels, intrinsic_code)

    def _last(self) -> ExecutableInfo:
        if self.compiled.latest is None:
            raise FuserError(
                "nothing is compiled yet: call execute first, or cuda_code_for(inputs)"
            )
        return self.compiled.latest

    def get_output_shardings(self) -> list[Any]:
        """`OutputSharding` of each output of the last call; empty for a call on one device."""
        return list(self.output_shardings)


# ---- caches

Definition = TypeVar("Definition", bound=Recorder)


class LRUCache:
    """LRU cache of compiled fusions, keyed by structure (names do not matter).

    Look-ups and insertions are thread-safe. FuserTypeError for a
    `max_fusions` that is no int, FuserValueError for one below 1.
    """

    def __init__(self, max_fusions: int) -> None:
        if type(max_fusions) is not int:
            raise FuserTypeError(
                f"max_fusions: expected an int, got {max_fusions!r}; as a decorator, write "
                "@LruFusionCache()"
            )
        if max_fusions < 1:
            raise FuserValueError(f"max_fusions: expected at least 1, got {max_fusions}")
        self.max_fusions = max_fusions
        self._held: OrderedDict[str, FusionExecutorCache] = OrderedDict()
        self._lock = Lock()
        self._lookups = self._hits = 0

    def cache_compile(self, fusion: ir.Fusion) -> FusionExecutorCache:
        """The cached executor of the fusion, or a new one, which is then cached."""
        with self._lock:
            found = self.get(fusion)
            if found is None:
                found = FusionExecutorCache(fusion, fusion_id=self._lookups)
                self.put(fusion, found)
            return found

    def get(self, fusion: ir.Fusion) -> FusionExecutorCache | None:
        """The cached executor of the fusion, or None."""
        key = structural_hash(fusion)
        with self._lock:
            self._lookups += 1
            if key not in self._held:
                return None
            self._hits += 1
            self._held.move_to_end(key)
            return self._held[key]

    def put(self, fusion: ir.Fusion, fusion_executor_cache: FusionExecutorCache) -> None:
        """Cache the fusion's executor; beyond `max_fusions`, evict the least recently used."""
        key = structural_hash(fusion)
        with self._lock:
            self._held[key] = fusion_executor_cache
            self._held.move_to_end(key)
            while len(self._held) > self.max_fusions:
                self._held.popitem(last=False)

    def num_fusions(self) -> int:
        """Number of cached fusions."""
        return len(self._held)

    def stats(self) -> str:
        """Number of cached fusions, look-ups and hits, as text."""
        share = 100 * self._hits / self._lookups if self._lookups else 0.0
        return (
            f"{len(self._held)} of at most {self.max_fusions} fusions, "
            f"{self._lookups} look-ups, {self._hits} hits ({share:.1f} %)"
        )

    # ---- on disk

    def serialize(self, filename: str | Path) -> None:
        """Write the cached definitions to a JSON file, least recently used first.

        Their kernels are in the disk cache of compiled kernels, where the next process finds them.
        """
        definitions = [
            {"definition": to_python(fec.compiled.fusion)} for fec in self._held.values()
        ]
        Path(filename).write_text(json.dumps({"format": 1, "fusions": definitions}, indent=1))

    def deserialize(self, filename: str | Path) -> None:
        """Cache the definitions of a file that `serialize` wrote. The file is parsed, never
        executed. FuserValueError for any other file.
        """
        try:
            stored = json.loads(Path(filename).read_text())
            definitions = [str(f["definition"]) for f in stored["fusions"]]
        except (ValueError, KeyError, TypeError) as error:
            raise FuserValueError(f"{filename} was not written by serialize: {error}") from error
        for text in definitions:
            try:
                graph = graph_of(read_definition(text), Recorder.finished())
            except FuserError as error:
                error.args = (f"{filename} was not written by serialize: {error}",)
                raise
            self.put(graph, FusionExecutorCache(graph))


class LruFusionCache:
    """Decorator for functions that return a definition: equal ones share what is compiled."""

    def __init__(self, max_fusions: int = 16384) -> None:
        self.cache = LRUCache(max_fusions)

    def __call__(self, create: Callable[..., Definition]) -> Callable[..., Definition]:
        @functools.wraps(create)
        def cached(*args: Any, **kwargs: Any) -> Definition:
            fd: Any = create(*args, **kwargs)
            if not hasattr(fd, "fusion"):
                raise FuserTypeError(
                    f"{create.__name__}: expected it to return a FusionDefinition, got {fd!r}"
                )
            if not hasattr(fd, "fec"):
                fd.fec = self.cache.cache_compile(fd.fusion)
            return fd  # type: ignore[no-any-return]

        cached.stats = self.cache.stats  # type: ignore[attr-defined]
        cached.num_fusions = self.cache.num_fusions  # type: ignore[attr-defined]
        return cached


class FusionCache:
    """The process-wide cache, opt-in: from the first `FusionCache.get()` on, executed definitions
    share compiled fusions. Not constructed directly.
    """

    _shared: FusionCache | None = None

    def __init__(self, max_fusions: int) -> None:
        self.cache = LRUCache(max_fusions)
        self.num_fusions = self.cache.num_fusions
        self.stats = self.cache.stats
        self.serialize = self.cache.serialize
        self.deserialize = self.cache.deserialize

    @classmethod
    def get(
        cls,
        max_fusions: int = 8192,
        selected_device: int | None = None,
        load_from_default_workspace: bool = False,
    ) -> FusionCache:
        """The shared cache. Only the first call's `max_fusions` counts; the rest is ignored."""
        if cls._shared is None:
            cls._shared = FusionCache(max_fusions)
        return cls._shared

    @classmethod
    def reset(cls) -> None:
        """Drop the cache; nothing is shared until the next `get`."""
        cls._shared = None

    @classmethod
    def compiled(cls, fusion: Fusion) -> FusionExecutorCache:
        """The executor of a definition: from the shared cache if there is one, else new."""
        if cls._shared is None:
            return FusionExecutorCache(fusion)
        return cls._shared.cache.cache_compile(fusion)

    def print_stats(self) -> None:
        """Print `stats()`."""
        print(self.stats())
