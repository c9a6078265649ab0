"""The script `machete`. `machete doctor` works where nothing else of it can be imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; returns the exit status."""
    if sys.argv[1:2] == ["doctor"]:
        from machete.megakernel import doctor

        return doctor.main(sys.argv[2:])
    try:
        from machete.megakernel.cli import main as program
    except ImportError as error:
        print(f"machete cannot start: {error}", file=sys.stderr)
        print("`machete doctor` says what is missing", file=sys.stderr)
        return 1
    program()
    return 0
