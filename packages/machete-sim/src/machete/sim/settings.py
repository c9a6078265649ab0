"""Settings from the environment, read when they are needed."""

import os
from typing import Literal, get_args

from .errors import UnsupportedLaunch

Check = Literal["memory", "races", "strict"]


def default_check() -> Check:
    """MACHETE_SIM_CHECK: how closely launches are watched that do not say so themselves; "races" unless set."""
    value = os.environ.get("MACHETE_SIM_CHECK", "races")
    for choice in get_args(Check):
        if value == choice:
            return choice
    raise UnsupportedLaunch(f"MACHETE_SIM_CHECK={value!r}: it is one of {', '.join(get_args(Check))}")
