"""What the cache believes: nobody's programs but this user's are run, whatever lies there.

Each test plants a library with a valid seal under the name that a kernel is looked up by. It leaves
a mark when it is loaded. Only root gives files away; others see foreign ones where they take
themselves for somebody else.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.runtime.hand_written import scale
from thunder_fuser import cache_command
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import Options, options
from thunder_fuser.errors import Refusal
from thunder_fuser.runtime.compilation import cache, private
from thunder_fuser.runtime.compilation.cache import Folder, folders
from thunder_fuser.runtime.host import build as host_build
from thunder_fuser.runtime.host import compiler
from thunder_fuser.runtime.host.library import Library, Unit, load
from thunder_fuser.runtime.host.target import HOST

NOBODY = 65534
Plant = Callable[[Path, Kernel], None]


def works(kernel: Kernel) -> bool:
    (launch,) = HOST.compile([kernel])
    x, y = torch.arange(10.0), torch.zeros(10)
    launch(x.data_ptr(), y.data_ptr(), 3.0, 10)
    return torch.equal(y, 3 * x)


@pytest.fixture(scope="module", autouse=True)
def runtime() -> None:
    assert works(scale())  # a process has one, which is loaded from the cache of the suite


@pytest.fixture(autouse=True)
def untold() -> None:
    """Every test is the first to be warned."""
    cache._warn.cache_clear()


@pytest.fixture(scope="module")
def evil_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    folder = tmp_path_factory.mktemp("evil")
    marker = folder / "it ran"
    source, library = folder / "evil.cpp", folder / "evil.so"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void run() {{ creat("{marker}", 0600); }}\n'
    )
    command = compiler.find_compiler().command
    subprocess.run([*command, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library.read_bytes(), marker


@pytest.fixture
def evil(evil_library: tuple[bytes, Path]) -> tuple[bytes, Path]:
    """A library, and the file that it makes when it is loaded."""
    evil_library[1].unlink(missing_ok=True)
    return evil_library


@pytest.fixture
def plant(evil: tuple[bytes, Path], monkeypatch: pytest.MonkeyPatch) -> Plant:
    """plant(folder, kernel): the library, where a process looks for the kernel."""

    def planted(folder: Path, kernel: Kernel) -> None:
        units: list[Unit] = []

        def noted(unit: Unit) -> Library:
            units.append(unit)
            if unit.needs is None:
                return load(unit)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(host_build, "load", noted)
            with pytest.raises(KeyboardInterrupt):
                HOST.compile([kernel])
        key = units[-1].key
        path = folder / units[-1].file_name(key)
        path.write_bytes(evil[0] + cache._seal(key, evil[0]))
        path.chmod(0o600)

    return planted


def owned_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `path` to another user; who may not is another user himself from now on."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(private, "_trusted_users", lambda: (0, os.geteuid() + 1))


def host_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "host"
    folder.mkdir(parents=True)
    return folder


def test_a_planted_library_does_run_where_nobody_else_writes(
    tmp_path: Path, plant: Plant, evil: tuple[bytes, Path]
) -> None:
    # So the other tests can fail: what this user has put there is loaded.
    folder = host_folder(tmp_path)
    plant(folder, scale("scale_planted"))
    with options(cache_dir=str(tmp_path / "cache")), pytest.raises(ValueError, match="scale_plan"):
        works(scale("scale_planted"))
    assert evil[1].exists()


@pytest.mark.parametrize(("mode", "above"), [(0o777, 0), (0o770, 1), (0o702, 2)])
def test_folders_that_others_can_write_are_refused(
    tmp_path: Path,
    plant: Plant,
    evil: tuple[bytes, Path],
    mode: int,
    above: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private, "_is_own_group", lambda number: False)
    folder = host_folder(tmp_path / "above")
    kernel = scale("scale_open")
    plant(folder, kernel)
    (folder, *folder.parents)[above].chmod(mode)
    with (
        options(cache_dir=str(folder.parent)),
        pytest.warns(RuntimeWarning, match=rf"can write it \(mode {mode:04o}\).*chmod go-w"),
    ):
        assert works(kernel)
    assert not evil[1].exists()
    with options(cache_dir=str(folder.parent)), warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert works(kernel)


@pytest.mark.parametrize("above", [0, 1, 2])
def test_folders_of_others_are_refused(
    tmp_path: Path,
    plant: Plant,
    evil: tuple[bytes, Path],
    above: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = host_folder(tmp_path / "above")
    kernel = scale("scale_foreign")
    plant(folder, kernel)
    owned_by_another((folder, *folder.parents)[above], monkeypatch)
    with options(cache_dir=str(folder.parent)):
        with pytest.warns(RuntimeWarning, match="belongs to user"):
            assert folder not in [place.path for place in folders("host")]
        if os.geteuid() == 0 and not above:  # for others nothing at all is their own now
            assert works(kernel)
    assert not evil[1].exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_others_are_not_read(
    tmp_path: Path, plant: Plant, evil: tuple[bytes, Path]
) -> None:
    folder = host_folder(tmp_path)
    kernel = scale("scale_given")
    plant(folder, kernel)
    (planted,) = folder.iterdir()
    os.chown(planted, NOBODY, NOBODY)
    with options(cache_dir=str(tmp_path / "cache")):
        assert works(kernel)
    assert not evil[1].exists()
    assert planted.stat().st_uid == 0  # ours is there now


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_files_that_others_can_write_are_not_read(
    tmp_path: Path, plant: Plant, evil: tuple[bytes, Path], mode: int
) -> None:
    folder = host_folder(tmp_path)
    kernel = scale(f"scale_file_{mode}")
    plant(folder, kernel)
    (planted,) = folder.iterdir()
    planted.chmod(mode)
    with options(cache_dir=str(tmp_path / "cache")):
        assert works(kernel)
    assert not evil[1].exists()


def test_links_are_not_followed(tmp_path: Path, plant: Plant, evil: tuple[bytes, Path]) -> None:
    folder = host_folder(tmp_path)
    kernel = scale("scale_linked")
    plant(folder, kernel)
    (planted,) = folder.iterdir()
    planted.symlink_to(planted.rename(tmp_path / "elsewhere.so"))
    with options(cache_dir=str(tmp_path / "cache")):
        assert works(kernel)
    assert not evil[1].exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_predictable_folder_that_another_user_made_first(
    tmp_path: Path, plant: Plant, evil: tuple[bytes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without a home: its cache is in the temporary folder of all users."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raise_no_home)
    own = Options().cache_folder
    assert own.parent == shared
    kernel = scale("scale_homeless")
    (own / "host").mkdir(parents=True)
    plant(own / "host", kernel)
    for path in (own, own / "host"):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o777)
    with (
        options(cache_dir=None),
        pytest.warns(RuntimeWarning, match=f"belongs to user {NOBODY}, not to user 0"),
    ):
        assert works(kernel)
    assert not evil[1].exists()


def raise_no_home() -> Path:
    raise RuntimeError


def test_in_a_shared_temporary_folder_nothing_else_is_trusted(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    for mode, trusted in ((0o1777, True), (0o777, False)):
        shared.chmod(mode)
        assert (private.problem_of(shared / "mine") is None) == trusted
        # Others may put what they like into the shared one itself.
        assert private.problem_of(shared) is not None
    assert (shared / "mine").stat().st_mode & 0o777 == 0o700


def test_folders_are_made_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with options(cache_dir=str(tmp_path / "a" / "b")):
            folder = next(folders("host"))
            folder.keep(b"content", "name", "key")
            assert works(scale("scale_umask"))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (folder.path, folder.path.parent)}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in folder.path.iterdir()} == {0o600}
    assert folder.find("name", "key") == b"content"


def test_the_users_own_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o775)
    monkeypatch.setattr(private, "_is_own_group", lambda number: number == os.getegid())
    assert private.problem_of(folder) is None
    folder.chmod(0o777)
    assert isinstance(private.problem_of(folder), Refusal)


def test_a_seal_belongs_to_its_key(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    tmp_path.chmod(0o700)
    folder.keep(b"content", "name", "key")
    assert folder.find("name", "key") == b"content"
    assert folder.find("name", "another key") is None


def test_cache_info_says_that_a_folder_is_refused(tmp_path: Path) -> None:
    folder = host_folder(tmp_path)
    folder.chmod(0o777)
    with options(cache_dir=str(tmp_path / "cache")):
        assert "  host  not used: other users can write it (mode 0777)" in cache_command.info()
