"""Settings of the suite: both targets as a parameter, a cache of its own, what skips where."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from thunder_fuser.errors import TargetError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda import nvrtc as cuda_nvrtc
from thunder_fuser.runtime.target import Target, target_for

# No deadline: the first example of a test may compile a kernel.  No randomness from run to run.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden instead of comparing"
    )
    parser.addoption(
        "--campaign", action="store_true", help="all seeds and combinations, not a share"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Options of every test, before they are read, and one folder for all that tests leave behind.

    Workers that run in parallel and processes that tests start inherit both.
    """
    if "THUNDER_FUSER_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="thunder_fuser-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.environ["THUNDER_FUSER_CACHE_DIR"] = str(Path(folder) / "cache")
    os.environ.setdefault("THUNDER_FUSER_STRICT", "1")
    os.environ.setdefault("THUNDER_FUSER_VERIFY", "1")
    # Torch's own calls on a GPU are as exact as their dtypes say.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imported modules and collected tests are seven hundred thousand objects, hardly any of them
    garbage. The garbage collector takes a quarter of the time of the collection, and traverses them
    all again whenever tests have made a fourth as many: it is to leave them out.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave further seeds and combinations to campaigns; skip what this machine cannot run, with
    the reason; put slow tests first, so that no worker is left with one at the end.
    """
    if not config.getoption("--campaign"):
        further = [item for item in items if item.get_closest_marker("campaign")]
        left_out = set(further)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=further)
    for marker, problem in (("gpu", _gpu_problem), ("nvrtc", _nvrtc_problem)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := problem()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests that launch nothing on a GPU plan for that of the data sheets, whichever there is:
    their figures are of one device.
    """
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("gpu") is None:
            patch.setattr(cuda_driver, "driver_available", lambda: False)
        return (yield)


def _gpu_problem() -> str:
    if problem := cuda_driver.driver_problem():
        return problem
    return "" if torch.cuda.is_available() else "torch is built without CUDA, or finds no device"


def _nvrtc_problem() -> str:
    try:
        cuda_nvrtc.nvrtc()
    except TargetError as error:
        return str(error)
    return ""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["host", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A device of each target."""
    return torch.device(request.param)


@pytest.fixture
def target(device: torch.device) -> Target:
    """Each target; `device` is one of its devices."""
    return target_for(device)


@pytest.fixture
def b() -> FusionBuilder:
    """A fusion to be built by hand."""
    return FusionBuilder()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of tests/golden/`name`, or becomes it if asked to."""
    folder = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; pytest --update-golden writes it"
        assert text == path.read_text(), f"{name} changed; if that is right, pytest --update-golden"

    return check
