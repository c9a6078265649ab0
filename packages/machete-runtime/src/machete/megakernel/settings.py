"""Every environment variable that the runtime reads: typed, documented, and listed by `machete doctor`.

Other packages announce theirs as entry points of the group `machete.settings`: the variable, and what reads it.

Standard library only: `machete doctor` imports this module when nothing else can be imported. A variable is read when
its value is asked for, not when this module is imported; an empty one counts as not set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .abi.errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes:
        variable: its name.
        default: what counts without it.
        help: what it does, in one sentence.
        parse: from the variable's text to its value; raises ValueError, whose message says what would be right.
        values: what can be set, in words.
    """

    variable: str
    default: T
    help: str
    parse: Callable[[str], T]
    values: str

    @property
    def text(self) -> str:
        """The variable as it is set, "" if it is not."""
        return os.environ.get(self.variable, "").strip()

    def get(self) -> T:
        """The value. Raises `SettingError` if the variable is set to something that it cannot be."""
        if not self.text:
            return self.default
        try:
            return self.parse(self.text)
        except ValueError as error:
            raise SettingError(
                what=f"{self.variable}={self.text!r}",
                where="the environment",
                why=str(error),
                fix=f"{self.variable}={self.values}, or unset {self.variable}",
            ) from None


def _switch(text: str) -> bool:
    known = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError("it is on or off")
    return known[text.lower()]


def _folder(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~somebody who is not there
        raise ValueError(str(error)) from None
    if not path.is_absolute():
        raise ValueError("it is an absolute path: programs start in different folders")
    return path


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in _UNITS:
        raise ValueError("it is a number of bytes, with K, M or G behind it for powers of 1024")
    return int(number) * _UNITS[unit]


CACHE = Setting(
    "MACHETE_CACHE",
    True,
    "Whether compiled kernels are kept on disk and found there again.",
    _switch,
    "on or off",
)
CACHE_DIR: Setting[Path | None] = Setting(
    "MACHETE_CACHE_DIR",
    None,
    "Where they are kept; else in the user's cache folder.",
    _folder,
    "an absolute path",
)
CACHE_BYTES = Setting(
    "MACHETE_CACHE_BYTES",
    2 << 30,
    "How large the folder may become; then what has not been used for longest is removed.",
    _bytes,
    "a number of bytes, such as 512M",
)

SETTINGS: tuple[Setting[Any], ...] = (CACHE, CACHE_DIR, CACHE_BYTES)


def unknown(announced: Iterable[str] = ()) -> Iterator[str]:
    """Variables that look like settings and are none, nor `announced` by a package: misspelt, or of another version."""
    names = {setting.variable for setting in SETTINGS} | set(announced)
    return (name for name in sorted(os.environ) if name.startswith("MACHETE_") and name not in names)
