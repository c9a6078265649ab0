"""What programs are told about the simulated GPU."""

import re
from dataclasses import dataclass

from ..errors import UnsupportedLaunch
from ..image import ARCHITECTURES
from ..launch import MAX_SHARED

# Compute capability (CUDA programming guide, "Compute Capabilities").
CAPABILITIES = {"sm_90a": (9, 0), "sm_100a": (10, 0), "sm_120a": (12, 0)}
# Bytes, of a H100, a B200 and a RTX PRO 6000: programs size persistent loops and working sets by it.
L2_BYTES = {"sm_90a": 50 << 20, "sm_100a": 126 << 20, "sm_120a": 128 << 20}
DEFAULT_SMS = 4


@dataclass(frozen=True)
class Device:
    """One GPU. arch: sm_90a, sm_100a or sm_120a; sms: multiprocessors, and CTAs that are resident at a time."""

    arch: str
    sms: int = DEFAULT_SMS

    @classmethod
    def named(cls, arch: str, sms: int = DEFAULT_SMS) -> "Device":
        """From `sm_100a`, `sm_100`, `sm100` or `100`. Raises UnsupportedLaunch."""
        match = re.fullmatch(r"(?:sm_?)?(\d+)[af]?", arch.strip().lower())
        full = f"sm_{match[1]}a" if match else arch
        if full not in ARCHITECTURES:
            raise UnsupportedLaunch(f"architecture {arch!r} is not simulated; {', '.join(ARCHITECTURES)} are")
        if sms < 1:
            raise UnsupportedLaunch(f"a GPU has at least one multiprocessor, not {sms}")
        return cls(full, sms)

    @property
    def capability(self) -> tuple[int, int]:
        return CAPABILITIES[self.arch]

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a CTA may have."""
        return MAX_SHARED[self.arch]

    @property
    def l2_bytes(self) -> int:
        return L2_BYTES[self.arch]

    @property
    def name(self) -> str:
        return f"machete-sim {self.arch}"
