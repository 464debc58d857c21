"""Options: the environment, overrides, and what both say to a mistake."""

from __future__ import annotations

import dataclasses
import logging
import threading
import warnings
from pathlib import Path

import pytest

from thunder_fuser import log
from thunder_fuser.config import TABLE, Options, current, from_environment, options
from thunder_fuser.errors import FuserTypeError, FuserValueError


def test_every_field_is_a_documented_variable() -> None:
    fields = [field.name for field in dataclasses.fields(Options)]
    assert [option.name for option in TABLE] == fields
    assert [option.variable for option in TABLE] == [f"THUNDER_FUSER_{f.upper()}" for f in fields]
    assert all(option.doc and option.expects for option in TABLE)
    assert [option.default for option in TABLE] == [getattr(Options(), field) for field in fields]


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("STRICT", "1", True),
        ("STRICT", "Yes", True),
        ("STRICT", "off", False),
        ("FUEL", "0", 0),
        ("FUEL", " 17 ", 17),
        ("TARGET", "host", "host"),
        ("PRECISION", "fast", "fast"),
        ("CUDA_ARCH", "sm_100a", "sm_100a"),
        ("CXX", "clang++ -stdlib=libc++", "clang++ -stdlib=libc++"),
        ("LOGS", "passes,+codegen", "passes,+codegen"),
    ],
)
def test_variables_are_parsed_by_the_type_of_their_field(
    variable: str, text: str, value: object
) -> None:
    parsed = from_environment({f"THUNDER_FUSER_{variable}": text, "PATH": "unrelated"})
    assert dataclasses.replace(Options(), **{variable.lower(): value}) == parsed


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.name)
def test_an_empty_variable_is_unset(option: object) -> None:
    assert from_environment({option.variable: ""}) == Options()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("STRICT", "maybe", "1 or 0"),
        ("FUEL", "many", "an integer of at least 0"),
        ("FUEL", "-1", "an integer of at least 0"),
        ("HOST_THREADS", "0", "an integer of at least 1"),
        ("HOST_THREADS", "1.5", "an integer of at least 1"),
        ("TARGET", "gpu", "auto or host"),
        ("CUDA_ARCH", "9.0", "text like sm_90"),
    ],
)
def test_a_bad_value_names_variable_expectation_and_value(
    variable: str, text: str, expected: str
) -> None:
    with pytest.raises(FuserValueError) as caught:
        from_environment({f"THUNDER_FUSER_{variable}": text})
    message = str(caught.value)
    assert f"THUNDER_FUSER_{variable}" in message
    assert expected in message
    assert f"got {text}" in message.replace("'", "")


def test_an_unknown_variable_warns_with_a_hint() -> None:
    with pytest.warns(UserWarning, match="did you mean THUNDER_FUSER_CACHE_DIR"):
        assert from_environment({"THUNDER_FUSER_CACHEDIR": "x"}) == Options()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_environment({"THUNDER_FUSION_CACHE_DIR": "not ours"})


def test_overrides_nest_and_end() -> None:
    before = current()
    with options(fuel=3, precision="fast") as outer:
        assert (outer.fuel, outer.precision) == (3, "fast")
        with options(fuel=1):
            assert (current().fuel, current().precision) == (1, "fast")
        assert current() is outer
    assert current() is before


def test_an_override_ends_with_an_exception() -> None:
    before = current()
    with pytest.raises(ZeroDivisionError), options(fuel=3):
        raise ZeroDivisionError
    assert current() is before


def test_an_override_stays_in_its_thread() -> None:
    seen = []
    with options(fuel=3):
        thread = threading.Thread(target=lambda: seen.append(current().fuel))
        thread.start()
        thread.join()
        assert (current().fuel, seen) == (3, [None])


@pytest.mark.parametrize(
    ("override", "error", "text"),
    [
        ({"stict": True}, FuserTypeError, "did you mean strict"),
        ({"strict": 2}, FuserTypeError, "strict: expected 1 or 0"),
        ({"fuel": True}, FuserTypeError, "fuel: expected an integer"),
        ({"fuel": "3"}, FuserTypeError, "fuel: expected an integer"),
        ({"fuel": -3}, FuserValueError, "fuel: expected an integer of at least 0, got -3"),
        ({"precision": "exact"}, FuserValueError, "strict or fast"),
        ({"logs": "pases"}, FuserValueError, "did you mean passes"),
        ({"cache_dir": 5}, FuserTypeError, "cache_dir: expected text"),
        ({"cache_dir": "~nobody-of-this-name/x"}, FuserValueError, "cache_dir: .*no home folder"),
        ({"dump_dir": "~nobody-of-this-name"}, FuserValueError, "dump_dir: .*no home folder"),
    ],
)
def test_a_bad_override_changes_nothing(
    override: dict[str, object], error: type[Exception], text: str
) -> None:
    before = current()
    with pytest.raises(error, match=text), options(**override):
        pass
    assert current() is before


def test_the_cache_folder_follows_option_xdg_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Options().cache_folder == Path("/nowhere/.cache/thunder_fuser")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert Options().cache_folder == Path("/elsewhere/thunder_fuser")
    assert Options(cache_dir="~/mine").cache_folder == Path("/nowhere/mine")


def test_a_folder_may_have_any_name() -> None:
    folder = "a folder\nwith two lines"
    assert from_environment({"THUNDER_FUSER_CACHE_DIR": folder}).cache_folder == Path(folder)


def test_options_that_cannot_be_put_into_force_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure = log.configure

    def fail(channels: str) -> None:
        configure(channels)
        if "segment" in channels:
            raise OSError("planted")

    monkeypatch.setattr(log, "configure", fail)
    with options(logs="passes", fuel=3) as outer:
        with pytest.raises(OSError, match="planted"), options(logs="segment", fuel=5):
            raise AssertionError("the block is not entered")
        assert current() is outer
        for stage in ("passes", "segment"):
            logging.getLogger(f"thunder_fuser.{stage}").info(stage)
    assert capsys.readouterr().err == "[thunder_fuser.passes] passes\n"
    assert current() is not outer


def test_logs_select_channels_and_levels(capsys: pytest.CaptureFixture[str]) -> None:
    one = logging.getLogger("thunder_fuser.passes.dead_code")
    other = logging.getLogger("thunder_fuser.passes.cast_chains")
    with options(logs="passes,+passes.dead_code"):
        one.debug("one in detail")
        other.info("other")
        other.debug("other in detail")
        with options(logs=""):
            one.info("inside nothing is selected")
    one.info("and outside neither")
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        "[thunder_fuser.passes.dead_code] one in detail",
        "[thunder_fuser.passes.cast_chains] other",
    ]
