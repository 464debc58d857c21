"""The shape of the source: import direction, file sizes, what a user's installation finds."""

from __future__ import annotations

import ast
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import thunder_fuser
from thunder_fuser.codegen.headers import template_dir, template_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "thunder_fuser"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Each may import from those above it and from itself.
LAYERS = (
    *(
        "errors",
        "refusal_codes",
        "log",
        "config",
        "device",
        "device_table",
        "occupancy",
        "_registration",
    ),
    "garbage",
    *("ir", "analysis", "kernel_ir", "time_model"),
    *("lower", "passes", "segment", "templates", "codegen", "observers"),
    *("runtime", "compile", "compiled_fusion", "sharding", "frontends", "nvfuser", "inspect"),
    *("demo", "cache_command", "doctor", "explain", "__init__", "__main__"),
)
# The same of the files and folders of the Thunder frontend.
LAYERS_OF_THUNDER = (
    *("remembered", "jit_options", "fuel", "claims", "composites"),
    *("fake_arguments", "autograd"),
    *("torch_functions", "opaque_calls", "numbers", "whole_calls", "as_in_torch", "lookasides"),
    *(
        "trace",
        "patches",
        "stand_ins",
        "updates",
        "regions",
        "distributed",
        "repro",
        "dynamic_sizes",
        "call",
        "memory",
        "symbol",
        "fusion_record",
    ),
    *("first_calls", "compiled", "fuser", "recipes", "plans", "__init__"),
)
# The same of its patches.
LAYERS_OF_PATCHES = (
    *("patched", "guards", "changes", "interpreter", "torch_calls", "tensors"),
    *("gradients", "modules", "refusals", "__init__"),
)
# Reports read everything; only what a user calls by name may ask for one.
READERS_OF_INSPECT = ("inspect", "frontends", "demo", "explain", "__init__", "__main__")


def layer(path: Path, folder: Path = PACKAGE) -> str:
    """The folder or file right inside the package, or a folder of it, that `path` belongs to."""
    return path.relative_to(folder).parts[0].removesuffix(".py")


def imported_layers(
    path: Path, package: str = PACKAGE.name, layers: tuple[str, ...] = LAYERS
) -> Iterator[str]:
    """Every layer that a file imports from, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            inside, _, rest = module.partition(f"{package}.")
            # Anything else that the package itself offers comes from its __init__.
            if not inside and rest.split(".")[0] in layers:
                yield rest.split(".")[0]


def test_every_source_belongs_to_a_layer() -> None:
    assert {layer(path) for path in SOURCES} <= set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    allowed = LAYERS[: LAYERS.index(layer(path)) + 1]
    assert set(imported_layers(path)) <= set(allowed)


@pytest.mark.parametrize(
    ("package", "order"),
    [
        ("thunder_fuser.frontends.thunder", LAYERS_OF_THUNDER),
        ("thunder_fuser.frontends.thunder.patches", LAYERS_OF_PATCHES),
    ],
    ids=["thunder", "patches"],
)
def test_imports_of_the_thunder_frontend_run_one_way(package: str, order: tuple[str, ...]) -> None:
    folder = ROOT.joinpath(*package.split("."))
    for path in sorted(folder.rglob("*.py")):
        allowed = order[: order.index(layer(path, folder)) + 1]
        assert set(imported_layers(path, package, order)) <= set(allowed), path


def test_reports_are_not_read_by_what_they_report_on() -> None:
    readers = {layer(path) for path in SOURCES if "inspect" in imported_layers(path)}
    assert readers <= set(READERS_OF_INSPECT)


def test_files_can_be_read_in_one_sitting() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    long = [str(path.relative_to(ROOT)) for path, lines in lengths.items() if lines > 400]
    assert statistics.median(lengths.values()) < 200
    assert len(long) <= len(SOURCES) / 20, long


def test_register_figures_are_in_one_module() -> None:
    figure = re.compile(r"^\w*(?:REGISTERS|ACCUMULATORS|WORDS)\w*(?:, \w+)* = \d", re.MULTILINE)
    found = {
        path.name
        for folder in ("lower", "templates")
        for path in (PACKAGE / folder).rglob("*.py")
        if figure.search(path.read_text())
    }
    assert found == {"register_budget.py"}


def test_every_module_says_where_it_sits() -> None:
    silent = [str(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert [
        str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()
    ] == []


def test_tests_do_not_import_from_each_other() -> None:
    """Their programs are in zoo/, what they are held to in support/. One file compiles for GPUs
    what four others run on the host.
    """
    tests = ROOT / "tests"
    for path in set(tests.rglob("test_*.py")) - {
        tests / "runtime" / "test_host_sources_with_nvrtc.py"
    }:
        tree = ast.parse(path.read_text())
        modules = {
            f"{n.module}.{alias.name}"
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for alias in n.names
        }
        assert not [m for m in modules if re.match(r"tests\..*\btest_\w+", m)], path


def test_nothing_names_a_place_on_somebodys_machine() -> None:
    suffixes = (".py", ".md", ".toml", ".cuh", ".h", ".cpp", ".txt", ".cu", ".ipynb", ".json")
    folders = ("thunder_fuser", "csrc_templates", "tests", "benchmarks", "notebooks", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    place = re.compile(r"(?<![\w.~])/(?:tmp|work|root|home|Users|mnt)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(files)
        if path.suffix in suffixes and "__pycache__" not in path.parts
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if place.search(line)
    ]
    assert found == []


def test_templates_are_found_in_a_checkout() -> None:
    assert template_dir() == ROOT / "csrc_templates"


def test_templates_are_found_in_an_installed_wheel(tmp_path: Path) -> None:
    # What the mapping in pyproject.toml makes of the two folders.
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "thunder_fuser", ignore=ignore)
    shutil.copytree(ROOT / "csrc_templates", tmp_path / "thunder_fuser" / "csrc_templates")
    script = "from thunder_fuser.codegen.headers import *; print(template_dir(), template_names())"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    installed = tmp_path / "thunder_fuser" / "csrc_templates"
    assert result.stdout == f"{installed} {template_names()}\n", result.stderr


def test_importing_the_package_is_cheap() -> None:
    script = "import sys, thunder_fuser; print({'torch', 'thunder', 'cuda'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "set()\n", result.stderr


def test_public_names_resolve_and_are_the_ones_that_type_checkers_see() -> None:
    names = thunder_fuser.__all__
    assert all(getattr(thunder_fuser, name) is not None for name in names)
    assert set(names) <= set(dir(thunder_fuser))
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {node.names[0].asname: node.module for node in block.body}  # type: ignore[attr-defined]
    assert set(typed) == set(names)
    for name, module in typed.items():
        assert getattr(sys.modules[module], name) is getattr(thunder_fuser, name)
