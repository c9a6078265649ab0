"""Whatever is not in the table is an error with the instruction and its line, never a guess."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from machete.sim import Image, UnknownInstruction
from machete.sim._core import opcode_names
from machete.sim.isa import all_forms, lookup
from machete.sim.isa.form import compile_pattern

WRONG = [
    ("frobnicate.b32 %r1, %r2", "unknown instruction"),
    ("add.u8 %r1, %r2, %r3", "unknown instruction"),
    ("add.s32.sat %r1, %r2, %r3", "unknown instruction"),
    ("add.rn.s32 %r1, %r2, %r3", "unknown instruction"),
    ("fma.f32 %r1, %r2, %r3, %r4", "unknown instruction"),
    ("ld.global.L1::never.b32 %r1, [%d1]", "unknown instruction"),
    ("ld.relaxed.global.b32 %r1, [%d1]", "unknown instruction"),
    ("ld.acquire.galaxy.global.b32 %r1, [%d1]", "unknown instruction"),
    ("st.global.v3.b32 [%d1], {%r1, %r2, %r3}", "unknown instruction"),
    ("mbarrier.try_wait.parity.shared.b32 %p1, [%r1], 0", "unknown instruction"),
    ("cp.async.bulk.tensor.6d.global.shared::cta.tile.bulk_group [%d1, {%r1}], [%r2]", "unknown instruction"),
    ("mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32 {%r1}, {%r1}, {%r3}, {%r1}", "unknown instruction"),
    ("call foo, ()", "only calls of vprintf"),
    ("tcgen05.wait::ld.sync.aligned", "exists on sm_100a"),
    ("add.s32 %r1, %r2", "operands are expected"),
    ("add.s32 %r1, %r2, %r3, %r4", "operands are expected"),
    ("add.s32 %r1, %d2, %r3", "has 64 bits"),
    ("add.s64 %r1, %d2, %d3", "has 32 bits"),
    ("add.f32 %r1, %r2, 1", "integer literal"),
    ("add.f32 %r1, %r2, 0d3FF0000000000000", None),
    ("add.s32 %r1, %r2, %nothing", "not declared"),
    ("setp.lt.s32 %r1, %r2, %r3", "not a predicate"),
    ("selp.b32 %r1, %r2, %r3, !%p1", "cannot be negated"),
    ("ld.global.v2.b32 %r1, [%d1]", "vector in braces"),
    ("ld.global.v2.b32 {%r1, %r2, %r3}, [%d1]", "2 elements"),
    ("ld.global.b32 {%r1, %r2}, [%d1]", "needs .v2"),
    ("ld.global.v4.b64 {%d1, %d2, %d3, %d4}, [%d1]", None),
    ("ld.global.v8.b64 {%d1,%d2,%d3,%d4,%d5,%d6,%d7,%d8}, [%d1]", "does not exist"),
    ("lop3.b32 %r1, %r2, %r3, %r4, 256", "literal from 0 to 255"),
    ("lop3.b32 %r1, %r2, %r3, %r4, %r5", "literal from 0 to 255"),
    ("bra nowhere", "is not defined"),
    ("bar.sync 16", "barriers 0 to 15"),
    ("setmaxnreg.inc.sync.aligned.u32 30", "multiple of 8"),
    ("cp.async.cg.shared.global [%r1], [%d1], 8", "cannot copy 8 bytes"),
    ("ld.shared.b32 %r1, [%h1]", "an address has 32 or 64"),
    ("mov.b32 %r1, {%h1, %h2, %h3}", "no vector of 3 elements"),
    ("multimem.ld_reduce.relaxed.gpu.global.add.v4.f32 {%r1, %r2, %r3, %r4}, [%d1]", "memory of several GPUs"),
    ("multimem.st.global.f32 [%d1], %r1", "memory of several GPUs"),
    ("multimem.red.release.sys.global.add.noftz.bf16x2 [%d1], %r1", "unknown instruction"),
    ("multimem.red.release.sys.global.add.bf16x2 [%d1], %r1", "memory of several GPUs"),
    ("multimem.cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16", "memory of several GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "message"), WRONG)
def test_wrong_instructions(module: Callable[..., str], instruction: str, message: str | None) -> None:
    text = module(f"    {instruction};")
    if message is None:
        Image.from_ptx(text)
        return
    with pytest.raises(UnknownInstruction, match=message) as caught:
        Image.from_ptx(text)
    line = next(i for i, source in enumerate(text.splitlines(), 1) if instruction in source)
    assert caught.value.line == line
    assert f"PTX line {line}" in str(caught.value)
    assert instruction.split()[0] in caught.value.text


def test_the_source_line_is_named(module: Callable[..., str]) -> None:
    text = module("    .loc 1 42 7\n    frob.b32 %r1;", before='.file 1 "kernels/scale.py"')
    with pytest.raises(UnknownInstruction, match=r"kernels/scale\.py:42"):
        Image.from_ptx(text)


def test_wgmma_is_hoppers(module: Callable[..., str]) -> None:
    registers = ", ".join(f"%r{i}" for i in range(4))
    text = module(f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{registers}}}, %d1, %d2, 1, 1, 1, 0, 0;")
    Image.from_ptx(text)
    with pytest.raises(UnknownInstruction, match="wgmma exists on sm_90a, the module is for sm_100a"):
        Image.from_ptx(text.replace("sm_90a", "sm_100a"), arch="sm_100a")


def test_every_pattern_has_a_section_and_compiles() -> None:
    forms = list(all_forms())
    assert len(forms) > 200
    for form in forms:
        assert form.section.startswith("9.7"), form.pattern
        assert compile_pattern(form.pattern).pattern


def test_modifiers_of_a_known_opcode() -> None:
    found = lookup("ld.acquire.gpu.global.L1::evict_last.v2.b32")
    assert found is not None
    assert found[1] == {
        "order": "acquire", "scope": "gpu", "space": "global", "l1": "L1::evict_last", "vec": "v2", "t": "b32",
    }  # fmt: skip
    assert lookup("ld.acquire.gpu.global.v2.b32.b32") is None


def test_handler_names_are_unique() -> None:
    names = opcode_names()
    assert len(names) == len(set(names))
