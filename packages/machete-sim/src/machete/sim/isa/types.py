"""Fundamental types of PTX and the modifier bits that native handlers take (native/inst.hpp)."""

WIDTHS = {
    "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32, "s32": 32,
    "f32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "tf32": 32, "e4m3x2": 16, "e5m2x2": 16, "e2m1x2": 8,
    "e2m3x2": 16, "e3m2x2": 16,
    "ue8m0x2": 16, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64, "b128": 128,
}  # fmt: skip

ROUNDING = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}
FTZ, SAT, RELU, NAN, XORSIGNABS, SATFINITE, ROUND_AWAY = 4, 8, 16, 32, 64, 128, 256

ADDR64, REG64, REG16, SIGNED, POLL, CLUSTER = 1, 2, 4, 8, 16, 32

NO_OPERAND = 0x7FFFFFFF


def modifiers(groups: dict[str, str]) -> int:
    """Inst::mod of the usual floating-point modifiers."""
    return (
        ROUNDING.get(groups.get("rnd", "rn"), 0)
        | (FTZ if "ftz" in groups else 0)
        | (SAT if "sat" in groups else 0)
        | (RELU if "relu" in groups else 0)
        | (NAN if "nan" in groups else 0)
        | (XORSIGNABS if "xorsign" in groups else 0)
        | (SATFINITE if "satfinite" in groups else 0)
    )


def is_signed(kind: str) -> bool:
    return kind[0] == "s"
