"""Every opcode of the computing forms assembles, in every combination of its modifiers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from machete.sim import Image
from machete.sim.isa import all_forms, lookup
from machete.sim.isa.form import Form
from machete.sim.isa.types import WIDTHS

TOKEN = re.compile(r"\{\w+:([^}]*)\}|(\[)|(\])|([^{\[\]]+)")
COMPUTING = [form for form in all_forms() if form.operands]
REGISTERS = {16: "%h", 32: "%r", 64: "%d"}


def expand(pattern: str) -> Iterator[str]:
    """All opcodes of a pattern."""
    parts: list[list[str]] = []
    optional: list[list[str]] | None = None
    for choices, opening, closing, literal in TOKEN.findall(pattern):
        if opening:
            optional = []
        elif closing:
            assert optional is not None
            parts.append(["", *map("".join, itertools.product(*optional))])
            optional = None
        else:
            (parts if optional is None else optional).append(choices.split("|") if choices else [literal])
    yield from map("".join, itertools.product(*parts))


def test_expansion() -> None:
    assert list(expand("a[.{x:b|c}].d")) == ["a.d", "a.b.d", "a.c.d"]


@pytest.mark.parametrize("form", COMPUTING, ids=[form.pattern for form in COMPUTING])
def test_computing_forms(module: Callable[..., str], form: Form) -> None:
    lines = []
    for opcode in expand(form.pattern):
        found = lookup(opcode)
        assert found is not None, opcode
        kinds = [found[1].get(kind, kind) for kind in found[0].operands]
        operands = [f"{REGISTERS[max(WIDTHS[kind], 16)]}{i}" for i, kind in enumerate(kinds)]
        lines.append(f"    {opcode} {', '.join(operands)};")
    image = Image.from_ptx(module("\n".join(lines)))
    assert image.code.records == len(lines) + 2


INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def register(kind: str) -> str:
    return REGISTERS[max(WIDTHS[kind], 16)]


def test_conversions(module: Callable[..., str]) -> None:
    opcodes = [f"cvt{sat}.{d}.{s}" for sat in ("", ".sat") for d in INTEGERS for s in INTEGERS]
    opcodes += [f"cvt.{r}.{d}.{s}" for r in ("rn", "rz", "rm", "rp") for d in FLOATS for s in INTEGERS]
    opcodes += [f"cvt.{r}.{d}.{s}" for r in ("rni", "rzi", "rmi", "rpi") for d in INTEGERS for s in FLOATS]
    opcodes += [f"cvt.{r}.{d}.f64" for r in ("rn", "rz", "rm", "rp") for d in ("f16", "bf16", "f32")]
    opcodes += [f"cvt.{d}.{s}" for d, s in (("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"))]
    lines = []
    for opcode in opcodes:
        d, s = opcode.split(".")[-2:]
        lines.append(f"    {opcode} {register(d)}1, {register(s)}2;")
    assert Image.from_ptx(module("\n".join(lines))).code.records == len(lines) + 2


ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def test_comparisons(module: Callable[..., str]) -> None:
    lines = []
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64", *FLOATS):
        for compare in ORDERED if kind[0] in "us" else ORDERED + UNORDERED:
            a = f"{register(kind)}1, {register(kind)}2"
            lines.append(f"setp.{compare}.{kind} %p1, {a};")
            lines.append(f"setp.{compare}.and.{kind} %p1|%p2, {a}, !%p3;")
            if kind not in ("f16", "bf16"):
                lines.append(f"set.{compare}.u32.{kind} %r5, {a};")
    for kind in ("f16x2", "bf16x2"):
        lines += [f"setp.{compare}.{kind} %p1|%p2, %r1, %r2;" for compare in ORDERED + UNORDERED]
    assert Image.from_ptx(module("\n".join(lines))).code.records == len(lines) + 2


def test_accesses(module: Callable[..., str]) -> None:
    """Spaces, orders, scopes, caching and vectors of loads and stores; operations and types of atomics."""
    kinds = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
    lines = []
    for kind in kinds:
        r = register(kind)
        for space in ("", ".global", ".shared", ".shared::cta", ".shared::cluster", ".local"):
            lines.append(f"ld{space}.{kind} {r}1, [%d1+8];")
            lines.append(f"st{space}.{kind} [%d1+8], {r}1;")
            lines.append(f"ld.volatile{space}.{kind} {r}1, [%d1];")
            for scope in ("cta", "cluster", "gpu", "sys"):
                lines.append(f"ld.acquire.{scope}{space}.{kind} {r}1, [%d1];")
                lines.append(f"st.release.{scope}{space}.{kind} [%d1], {r}1;")
        for hint in ("L1::no_allocate", "L1::evict_last", "L1::evict_first.L2::128B", "L2::evict_first", "L2::256B"):
            lines.append(f"ld.global.{hint}.{kind} {r}1, [%d1];")
        for cop in ("ca", "cg", "cs", "lu", "cv"):
            lines.append(f"ld.global.{cop}.{kind} {r}1, [%d1];")
        lines.append(f"ld.global.nc.L1::no_allocate.L2::cache_hint.{kind} {r}1, [%d1], %d2;")
        lines.append(f"ld.param.{kind} {r}1, [p0];")
    for space in ("", ".global", ".shared"):
        for kind, ops in {
            "u32": ("add", "min", "max", "inc", "dec"), "s32": ("add", "min", "max"), "u64": ("add", "min", "max"),
            "b32": ("and", "or", "xor", "exch"), "b64": ("and", "or", "xor", "exch"), "f32": ("add",), "f64": ("add",),
        }.items():  # fmt: skip
            r = register(kind)
            lines += [f"atom.acq_rel.gpu{space}.{op}.{kind} {r}1, [%d1], {r}2;" for op in ops]
            lines += [f"red.release.gpu{space}.{op}.{kind} [%d1], {r}2;" for op in ops if op != "exch"]
        lines += [
            f"atom{space}.cas.b{w} {register(f'b{w}')}1, [%d1], {register(f'b{w}')}2, {register(f'b{w}')}3;"
            for w in (16, 32, 64)
        ]
        lines += [f"atom.release.gpu{space}.cas.b128 %q1, [%d1], %q2, %q3;", f"atom{space}.exch.b128 %q1, [%d1], %q2;"]
        lines += [
            f"red{space}.add.noftz.{kind} [%d1], {register(kind)}2;" for kind in ("f16", "bf16", "f16x2", "bf16x2")
        ]
    assert Image.from_ptx(module("\n".join(lines), parameters=1)).code.records == len(lines) + 3


FENCES = """
fence.sc.gpu; fence.acq_rel.cta; fence.acquire.sys; fence.release.cluster; fence.gpu; membar.gl; membar.cta; membar.sys;
fence.mbarrier_init.release.cluster; fence.proxy.alias; fence.proxy.async; fence.proxy.async.global;
fence.proxy.async.shared::cta; fence.proxy.async.shared::cluster; fence.proxy.tensormap::generic.release.gpu;
fence.proxy.tensormap::generic.acquire.gpu [%d1], 128; griddepcontrol.wait; griddepcontrol.launch_dependents;
setmaxnreg.inc.sync.aligned.u32 232; setmaxnreg.dec.sync.aligned.u32 40; nanosleep.u32 20; nanosleep.u32 %r1;
prefetch.global.L2 [%d1]; prefetch.L1 [%d1]; prefetch.global.L2::evict_last [%d1]; wgmma.fence.sync.aligned;
cp.async.bulk.prefetch.L2.global [%d1], 64; cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%d1, {%r1, %r2, %r3}];
barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
barrier.cluster.arrive; barrier.cluster.wait;
"""


def test_fences_and_hints(module: Callable[..., str]) -> None:
    Image.from_ptx(module(FENCES))
