"""The ways in which Thunder's users ask for a fuser, and what they hold afterwards."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import thunder.examine
import torch
import torch.nn.functional as F
from thunder.dynamo import ThunderCompiler, thunderfx
from thunder.recipes import BaseRecipe
from thunder.transforms.prune_prologue_checks import PrunePrologueChecks

import thunder_fuser
from tests.frontends.thunder.programs import jit
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.thunder import fusions, refusals, segments

pytestmark = pytest.mark.filterwarnings("ignore:.*distutils Version", "ignore:.*pynvml")


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + x


def same(compiled: Callable[..., Any]) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), program(x))


def test_thunder_knows_the_name_when_it_is_imported_later() -> None:
    script = (
        "import sys, thunder_fuser, thunder\n"
        "from thunder.extend import get_executor\n"
        "assert get_executor('thunder_fuser') is thunder_fuser.executor\n"
        "assert 'thunder-fuser' in thunder.plugins.get_plugin_names()\n"
        "finders = [type(f).__module__ for f in sys.meta_path]\n"
        "assert 'thunder_fuser._registration' not in finders\n"
        "assert type(thunder.__spec__.loader).__module__.startswith('_frozen')\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "executors",
    [["thunder_fuser"], [thunder_fuser.executor], thunder_fuser.executor],
    ids=["name", "list", "alone"],
)
def test_lists_of_executors(executors: Any) -> None:
    compiled = thunder.jit(program, executors=executors)
    same(compiled)
    assert len(fusions(compiled)) == 1


@pytest.mark.parametrize(
    "how",
    [
        lambda m: thunder.compile(m, plugins="thunder-fuser"),
        lambda m: thunder.compile(m, recipe="thunder-fuser"),
        lambda m: thunder.compile(m, recipe=BaseRecipe(fuser="thunder_fuser")),
    ],
    ids=["plugin", "recipe", "fuser"],
)
def test_recipes(how: Callable[..., Any]) -> None:
    compiled = how(program)
    same(compiled)
    assert len(fusions(compiled)) == 1


class Scaled(torch.nn.Module):
    """A module that reads dictionaries by keys of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, 4), torch.nn.Dropout(0.9)
        self.scales = {0.5: 2.0}

    def forward(self, x: torch.Tensor, held: dict[Any, Any]) -> torch.Tensor:
        return self.dropout(self.layer(x) * self.scales[0.5] * held[None])


@pytest.mark.parametrize(
    "how", [{"plugins": "thunder-fuser"}, {"recipe": "thunder-fuser"}], ids=["plugin", "recipe"]
)
def test_recipes_keep_the_checks_of_modules(how: dict[str, str]) -> None:
    module = Scaled()
    compiled = thunder.compile(module, **how)
    x, held = torch.randn(3, 4), {None: 3.0}
    assert (compiled(x, held) == 0).any()
    compiled.eval()
    changes: list[Callable[[], Any]] = [
        lambda: held.update({None: 2.0}),
        lambda: module.scales.update({0.5: 5.0}),
        lambda: module.layer.weight.requires_grad_(False),
        lambda: module.layer.weight.data.mul_(2),
    ]
    for change in changes:
        change()
        found, expected = compiled(x, held), module.eval()(x, held)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
    assert module.layer.weight.grad is not None
    before = module.layer.weight.grad.clone()
    compiled(x, held).sum().backward()
    assert torch.equal(module.layer.weight.grad, before)


def test_all_checks_are_pruned_where_a_program_asks_for_it() -> None:
    compiled = jit(program, transforms=[PrunePrologueChecks(prune_all_checks=True)])
    same(compiled)
    assert "check_tensor" not in str(thunder.last_prologue_traces(compiled)[-1])


def test_recipes_without_us_are_what_they_were() -> None:
    assert BaseRecipe().executor_names == ["nvfuser"]
    assert BaseRecipe(fuser="torch.compile").executor_names == ["torchcompile"]
    with pytest.raises(NotImplementedError, match="Unknown fuser 'nvfuzer'"):
        BaseRecipe(fuser="nvfuzer")


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
def test_graphs_of_dynamo() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.gelu(self.linear(x)) * 2
            if x.sum() > 1000:
                x = x * 3
            return torch.sin(x) + x

    module, x = Module(), torch.randn(3, 4, requires_grad=True)
    compiled = thunderfx(module, executors=["thunder_fuser"])
    with pytest.raises(FuserValueError, match="has not been called yet"):
        fusions(compiled)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(found, expected)
    # Two graphs, each with a forward and a backward.
    assert [r.name for r in fusions(compiled)].count("fuser0") >= 2
    planned = [region.name for trace in segments(compiled) for region in trace.regions]
    assert planned == [report.name for report in fusions(compiled)]
    assert "linear" in {refusal.subject for refusal in refusals(compiled)}


@pytest.mark.usefixtures("dynamo")
def test_a_backend_of_torch_compile() -> None:
    backend = ThunderCompiler(executors=["thunder_fuser"])
    compiled = torch.compile(program, backend=backend)
    same(compiled)
    (report,) = fusions(backend)
    assert report.plan.kernels == 1
    with pytest.raises(FuserTypeError, match=r"torch\.compile\(f, backend=b\)"):
        fusions(compiled)


def test_a_function_without_a_fuser_says_so() -> None:
    compiled = thunder.jit(program, executors=[])
    same(compiled)
    assert fusions(compiled) == ()
    ((refusal, count),) = refusals(compiled).items()
    assert count == 1
    assert "was compiled without thunder_fuser" in refusal.text
    assert "executors=[thunder_fuser.executor]" in refusal.text


def test_options_of_nvfuser_are_told_to_have_no_effect_once() -> None:
    with pytest.warns(UserWarning, match="nv_store_fusion_inputs, nv_test_only: an option of"):
        same(jit(program, nv_store_fusion_inputs=True, nv_test_only=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        same(jit(program, nv_store_fusion_inputs=True))


def test_tools_for_nvfuser_are_told_where_things_are() -> None:
    compiled = jit(program)
    same(compiled)
    trace = thunder.last_traces(compiled)[-1]
    ((name, call),) = thunder.examine.get_fusions(trace, warn_if_fusions_unavailable=False)
    assert name == "fuser0"
    for attribute in ("last_used", "last_inputs"):
        with pytest.raises(AttributeError, match=r"fusions\(fn\) has, .*repro\(\)"):
            getattr(call, attribute)
    assert not hasattr(call, "anything_else")
