"""Environment variables: their values, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from machete.megakernel import settings
from machete.megakernel.errors import SettingError


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.CACHE, "", True),
        (settings.CACHE, "off", False),
        (settings.CACHE, " ON ", True),
        (settings.CACHE, "0", False),
        (settings.CACHE_DIR, "", None),
        (settings.CACHE_DIR, "/tmp/x", Path("/tmp/x")),
        (settings.CACHE_DIR, "~/x", Path("~/x").expanduser()),
        (settings.CACHE_BYTES, "", 2 << 30),
        (settings.CACHE_BYTES, "1000", 1000),
        (settings.CACHE_BYTES, "512M", 512 << 20),
        (settings.CACHE_BYTES, "3g", 3 << 30),
    ],
)
def test_values(setting: settings.Setting[Any], text: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.variable, text)
    assert setting.get() == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (settings.CACHE, "maybe"),
        (settings.CACHE_DIR, "cache"),
        (settings.CACHE_DIR, "~nobody-of-this-name/cache"),
        (settings.CACHE_BYTES, "many"),
        (settings.CACHE_BYTES, "-1"),
        (settings.CACHE_BYTES, "1T"),
    ],
)
def test_wrong_values_are_named(setting: settings.Setting[Any], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.variable, text)
    with pytest.raises(SettingError, match=f"{setting.variable}='{text}'") as caught:
        setting.get()
    assert setting.variable in caught.value.fix


def test_unknown_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CASHE", "off")
    assert "MACHETE_CASHE" in list(settings.unknown())


def test_no_two_settings_share_a_variable() -> None:
    variables = [setting.variable for setting in settings.SETTINGS]
    assert len(set(variables)) == len(variables)
    assert set(settings.SETTINGS) == {value for value in vars(settings).values() if isinstance(value, settings.Setting)}


def test_the_documentation_lists_each() -> None:
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `MACHETE_")]
    own = [setting.variable for setting in settings.SETTINGS]
    assert listed[: len(own)] == own
    assert listed[len(own) :] == ["MACHETE_SIM_CHECK"], "of other packages of this repository"
