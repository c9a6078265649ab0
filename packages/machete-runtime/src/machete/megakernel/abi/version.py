"""The version of the Op ABI, and the test whether it serves an op package."""

from __future__ import annotations

from machete.megakernel.abi.errors import AbiMismatchError

#: (major, minor) of the Op ABI that this runtime provides. 0.x until the ABI is frozen.
ABI = (0, 1)


def check(need: tuple[int, int], package: str) -> None:
    """Raise `AbiMismatchError` unless this runtime provides the ABI that `package` needs.

    The major version must be the same, and the minor version at most the one provided.
    """
    major, minor = need
    if (major, minor) <= ABI and major == ABI[0]:
        return
    wanted = f"machete-runtime>={major}.{minor},<{major + 1}"
    raise AbiMismatchError(
        what=f"{package} needs Op ABI {major}.{minor}; this runtime provides {ABI[0]}.{ABI[1]}",
        where=package,
        why="the major version must be the same, and the needed minor version at most the provided one",
        fix=f"pip install '{wanted}'"
        if (major, minor) > ABI
        else f"install a version of {package} for ABI {ABI[0]}.{ABI[1]}",
    )
