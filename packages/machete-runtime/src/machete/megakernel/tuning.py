"""Choices that were measured to be better than those that an op makes by itself.

An op package measures on a card what it would otherwise estimate, such as the size of a tile, and keeps the winner
here: in a file for each op and device, beside the kernel cache. Later processes find it. Files are replaced as a whole,
under a lock; one that cannot be read is passed over, one that cannot be written is not, and both are logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from machete.megakernel import settings
from machete.megakernel.launch.cache.store import default_folder, replace_file

logger = logging.getLogger("machete.megakernel")

FORMAT = 1
LOCK_SECONDS = 30.0

Choice = dict[str, int]


class Choices:
    """What was measured for one op on one device, by problem.

    A problem is a string that says everything that the choice depends on, such as types and extents. A choice gives
    integers by name. With `MACHETE_CACHE=off` nothing is read or written; choices are known to this object alone.

    Args:
        op: name of the op, for the file.
        device: what the measurements hold for, such as `torch.cuda.get_device_name()`.
    """

    def __init__(self, op: str, device: str) -> None:
        name = "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (op, device))
        self.op, self.device = op, device
        self.path: Path = default_folder() / "tuned" / f"{name}.json"
        self._choices: dict[str, Choice] = {}
        self._read_at: int | None = None

    def find(self, problem: str) -> Choice | None:
        """The choice for a problem, if it was measured."""
        self._refresh()
        choice = self._choices.get(problem)
        return None if choice is None else dict(choice)

    def keep(self, problem: str, choice: Mapping[str, int]) -> None:
        """Remember a choice, here and on disk, in the place of the one before."""
        with self._locked():
            self._refresh()
            self._choices[problem] = dict(choice)
            if not settings.CACHE.get():
                return
            body = {"format": FORMAT, "op": self.op, "device": self.device, "choices": self._choices}
            try:
                replace_file(self.path, json.dumps(body, indent=1, sort_keys=True).encode())
                self._read_at = self.path.stat().st_mtime_ns
            except OSError as error:
                logger.warning("tuning: %s cannot be written: %s; the choice holds for this process", self.path, error)

    def _refresh(self) -> None:
        """Read the file if it has changed; what is known of it stays known where it cannot be read."""
        if not settings.CACHE.get():
            return
        try:
            changed = self.path.stat().st_mtime_ns
            if changed == self._read_at:
                return
            self._read_at = changed
            self._choices |= _checked(json.loads(self.path.read_bytes()), self.op, self.device)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            logger.warning("tuning: %s cannot be used: %s; ops choose by themselves", self.path, error)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Held while the file is changed. Where there can be no lock, the last writer wins."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.path.with_suffix(".lock"), timeout=LOCK_SECONDS)
        held = False
        if settings.CACHE.get():
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                held = True
            except (OSError, NotImplementedError, Timeout) as error:
                logger.info("tuning: no lock for %s: %s", self.path, error)
        try:
            yield
        finally:
            if held:
                lock.release()


def _checked(body: Any, op: str, device: str) -> dict[str, Choice]:
    """The choices in a file's content. Raises ValueError where it is not what `Choices.keep` writes."""
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    if (body.get("op"), body.get("device")) != (op, device):
        raise ValueError(f"it is for {body.get('op')} on {body.get('device')}")
    choices = body.get("choices")
    if not isinstance(choices, dict) or not all(
        isinstance(choice, dict) and all(type(value) is int for value in choice.values()) for choice in choices.values()
    ):
        raise ValueError("its choices are damaged")
    return choices
