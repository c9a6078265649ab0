"""The PTX front end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Image, PtxSyntaxError
from machete.sim.ptx import (
    Address,
    Displaced,
    Immediate,
    Name,
    Negated,
    OperandError,
    Pair,
    Vector,
    parse,
    parse_operands,
)

KERNEL = """
//
// Generated
//
.version 9.4
.target sm_100a, debug
.address_size 64
.file 1 "a \\"b\\"; // {.py"
.extern .shared .align 1024 .b8 dynamic[];
.shared .align 16 .b8 fixed[48];
.const .align 4 .u32 table[3] = {1, 0x10, -1};
.global .align 8 .b64 counter;
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
.func helper () { ret; }
.visible .entry first(
    .param .u8 small,
    .param .align 64 .b8 map[128],
    .param .u64 .ptr .global .align 16 pointer
)
.maxntid 128, 1, 1
.minnctapersm 2
{
    .reg .pred %p<3>; .reg .b32 %r<5>;  // two on a line
    .loc 1 7 3
    mov.u32 %r1, %tid.x;  /* comment ; { */
$L__BB0_1:
    { .reg .pred p; .reg .b32 %r1;
      mov.u32 %r1, 3;
      setp.ne.s32 p, %r1, 0;
      LAB: @!p bra LAB; }
    // begin inline asm
    // @machete.mark "op={0} tile={1}; {" %r1 7
    // end inline asm
    .pragma "nounroll";
    @%p1 bra $L__BB0_1;
    ret;
}
.section .debug_str
{
.b8 47 // }
}
"""


def test_structure() -> None:
    module = parse(KERNEL)
    assert module.version == (9, 4)
    assert module.target == "sm_100a"
    assert module.files[1].startswith("a ")
    kernel = module.kernels["first"]
    assert [(p.name, p.offset, p.nbytes) for p in kernel.parameters] == [
        ("small", 0, 1),
        ("map", 64, 128),
        ("pointer", 192, 8),
    ]
    assert kernel.parameter_bytes == 200
    assert kernel.limits == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    assert [i.opcode for i in kernel.instructions] == ["mov.u32", "mov.u32", "setp.ne.s32", "bra", "mark", "bra", "ret"]
    variables = {v.name: v for v in module.variables}
    assert variables["dynamic"].external
    assert variables["fixed"].nbytes == 48
    assert variables["table"].data == b"\1\0\0\0\x10\0\0\0\xff\xff\xff\xff"


def test_scopes_hide_outer_names() -> None:
    outer, inner, _, loop = parse(KERNEL).kernels["first"].instructions[:4]
    found_outer, found_inner = outer.scope.register("%r1"), inner.scope.register("%r1")
    assert found_outer is not None
    assert found_inner is not None
    assert found_outer[0] is not found_inner[0]
    assert inner.scope.register("%r4") == (found_outer[0], "b32")
    assert inner.scope.register("%r5") is None
    assert loop.scope.label("LAB") == 3
    assert loop.scope.label("$L__BB0_1") == 1
    assert outer.scope.label("LAB") is None


def test_lines_and_sources() -> None:
    module = parse(KERNEL)
    kernel = module.kernels["first"]
    for ins in kernel.instructions:
        assert ins.opcode in module.line_text(module.line(ins.offset)) or ins.opcode == "mark"
        assert (module.source(kernel, ins.offset) or "").endswith(":7")


def test_marks() -> None:
    (mark,) = parse(KERNEL).kernels["first"].marks
    assert mark.format == "op={0} tile={1}; {"
    assert mark.operands == ("%r1", "7")


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("%r1, 5, -7, 0x1F, 0b101, 017, 4U", (Name("%r1"), *(Immediate(v) for v in (5, -7, 31, 5, 15, 4)))),
        ("0f3F800000, 0d3FF0000000000000", (Immediate(0x3F800000, 32), Immediate(0x3FF0000000000000, 64))),
        ("{%r1, _, 3}, %p1|%p2, !%p3", (
            Vector((Name("%r1"), Name("_"), Immediate(3))), Pair(Name("%p1"), Name("%p2")), Negated(Name("%p3")))),
        ("[%rd1], [%rd1+16], [%rd1 + -8], [%rd1-4], [name+0x10]", (
            Address(Name("%rd1"), 0), Address(Name("%rd1"), 16), Address(Name("%rd1"), -8), Address(Name("%rd1"), -4),
            Address(Name("name"), 16))),
        ("[%rd1, {%r1, %r2}], [%r3]", (Address(Name("%rd1"), 0, (Name("%r1"), Name("%r2"))), Address(Name("%r3"), 0))),
        ("%tid.x", (Name("%tid.x"),)),
        ("tile+16, tile + -4", (Displaced(Name("tile"), 16), Displaced(Name("tile"), -4))),
        ("", ()),
    ],
)  # fmt: skip
def test_operands(text: str, operands: tuple[object, ...]) -> None:
    assert parse_operands(text) == operands


@pytest.mark.parametrize("text", ["1x", "0f12", "[1 2]", "%r1,,%r2", "a b", "[%r1, %r2]"])
def test_wrong_operands(text: str) -> None:
    with pytest.raises(OperandError):
        parse_operands(text)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (".address_size 64", ".address_size 32"),
        (".minnctapersm 2", ".noreturn"),
        (".global .align 8 .b64 counter;", ".texture .b64 counter;"),
        ("$L__BB0_1:\n", "here: here:\n"),
        (".reg .b32 %r<5>", ".reg .q32 %r<5>"),
        ("mov.u32 %r1, 3;", "?"),
        (".param .u8 small", ".param .q8 small"),
    ],
)
def test_syntax_errors_name_the_line(good: str, bad: str) -> None:
    assert good in KERNEL
    text = KERNEL.replace(good, bad)
    with pytest.raises(PtxSyntaxError) as caught:
        parse(text)
    expected = next(i for i, line in enumerate(text.splitlines(), 1) if bad.strip() in line)
    assert caught.value.line == expected


@pytest.mark.timeout(60)  # about a second, unless the time grows faster than the text
def test_twenty_thousand_lines(module: Callable[..., str]) -> None:
    lines = []
    for i in range(5000):
        a, b, c = i % 60, (i + 1) % 60, (i + 2) % 60
        lines += [
            f"    add.s32 %r{a}, %r{b}, {i};",
            f"    fma.rn.f32 %r{a}, %r{b}, %r{c}, 0f3F800000;",
            f"    ld.global.b32 %r{a}, [%d{i % 30}+{4 * i}];",
            f"    setp.lt.s32 %p{i % 30}, %r{a}, %r{b};",
        ]
    text = module("\n".join(lines))
    assert Image.from_ptx(text).code.records == 20002


def test_vector_registers(launch: Callable[..., object]) -> None:
    out = np.zeros(4, np.uint32)
    launch(
        """
        { .reg .v4 .u32 abcd; .reg .v2 .u32 pair;
          mov.u32 abcd.x, 1; mov.u32 abcd.y, 2; mov.u32 abcd.z, 3; mov.u32 abcd.w, 4;
          st.global.v4.u32 [%a0], abcd;
          ld.global.v2.u32 pair, [%a0+8];
          st.global.u32 [%a0], pair.y; }
        """,
        [out],
        threads=1,
    )
    assert list(out) == [4, 2, 3, 4]
