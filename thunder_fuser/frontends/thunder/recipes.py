"""Thunder recipes and plugins that use this executor instead of nvFuser.

Any of these, once both packages are imported:

    thunder.compile(model, plugins="thunder-fuser")
    thunder.compile(model, recipe="thunder-fuser")
    thunder.compile(model, recipe=BaseRecipe(fuser="thunder_fuser"))

Thunder 0.2.6 has a registry of plugins and of recipes, but not of fusers: its recipes know two, and
without nvFuser they pass None as an executor. So `BaseRecipe` is patched to know a third one.
"""

from __future__ import annotations

from typing import Any

from thunder.core.recipe import Plugin
from thunder.extend import Executor
from thunder.plugins import register_plugin
from thunder.recipes import BaseRecipe, register_recipe

from thunder_fuser.frontends.thunder.fuser import executor

_NAMES = ("thunder_fuser", "thunder-fuser")


class ThunderFuser(Plugin):  # type: ignore[misc]
    """Plugin that makes this executor the fuser of any recipe, in nvFuser's place."""

    def setup_executors(self) -> list[Executor]:
        """Return the executors that the recipe puts in front of its own."""
        return [executor]


class ThunderFuserRecipe(BaseRecipe):  # type: ignore[misc]
    """Thunder's default recipe with this fuser."""

    def __init__(self, show_progress: bool = False, fuser: str = _NAMES[0], **rest: Any) -> None:
        super().__init__(show_progress=show_progress, fuser=fuser, **rest)


_setup_fuser, _setup_executors = BaseRecipe.setup_fuser, BaseRecipe.setup_executors


def _fuser_by_name(recipe: BaseRecipe) -> None:
    if recipe.fuser in _NAMES:
        recipe.executor_names.append(executor.name)
    else:
        _setup_fuser(recipe)


def _executors(recipe: BaseRecipe) -> list[Executor]:
    if any(isinstance(plugin, ThunderFuser) for plugin in recipe.plugins):
        recipe.executor_names = [name for name in recipe.executor_names if name != "nvfuser"]
    found: list[Executor] = _setup_executors(recipe)
    return found


def register() -> None:
    """Register the plugin and the recipe with Thunder, and patch `BaseRecipe`."""
    register_plugin("thunder-fuser", ThunderFuser)
    register_recipe("thunder-fuser", ThunderFuserRecipe)
    BaseRecipe.setup_fuser = _fuser_by_name
    BaseRecipe.setup_executors = _executors
