"""printf and trap of device code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from machete.sim import Trap, UnknownInstruction, Unsupported

Launch = Callable[..., Any]


def text_variable(name: str, text: str) -> str:
    data = [*text.encode(), 0]
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};"


CALL = """{
    .param .b64 param0; .param .b64 param1; .param .b32 retval0;
    st.param.b64 [param0], %d1; st.param.b64 [param1], %d2;
    call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r9, [retval0];
}"""
EXTERN = ".extern .func (.param .b32 func_retval0) vprintf (.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);"


def printing(launch: Launch, pattern: str, stores: str, guard: str = "", after: str = "", **config: Any) -> None:
    body = f"""
        .local .align 8 .b8 depot[64]; mov.u64 %d3, depot; cvta.local.u64 %d2, %d3;
        mov.u64 %d4, pattern; cvta.global.u64 %d1, %d4; mov.u64 %d5, word; cvta.global.u64 %d6, %d5;
        mov.u32 %r1, %tid.x; {stores} {guard} {CALL} {after}
        $end:
    """
    before = f"{EXTERN}\n{text_variable('pattern', pattern)}\n{text_variable('word', 'seven')}"
    launch(body, [], before=before, **config)


def test_all_conversions(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    stores = """mov.u32 %r2, 0xfffffff9; st.local.u32 [%d3], %r2; mov.f64 %d7, 0d3FF8000000000000;
        st.local.u64 [%d3+8], %d7; mov.u32 %r3, 65; st.local.u32 [%d3+16], %r3; mov.u64 %d8, -1;
        st.local.u64 [%d3+24], %d8; st.local.u64 [%d3+32], %d6; mov.u32 %r4, 255; st.local.u32 [%d3+40], %r4;"""
    pattern = "%d|%8.3f|%c|%lld|%s|%#06x|100%%\n"
    printing(launch, pattern, stores, "setp.ne.u32 %p1, %r1, 0; @%p1 bra $end;")
    assert capsys.readouterr().out == "-7|   1.500|A|-1|seven|0x00ff|100%\n"


def test_every_thread_prints(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    printing(launch, "thread %u\n", "st.local.u32 [%d3], %r1;", threads=64)
    assert sorted(capsys.readouterr().out.split()) == sorted(f"{i}" for i in range(64)) + ["thread"] * 64


def test_what_was_printed_before_a_trap_is_shown(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Trap):
        printing(launch, "here\n", "", after="trap;", threads=1)
    assert capsys.readouterr().out == "here\n"


def test_unknown_conversions_and_functions(launch: Launch) -> None:
    with pytest.raises(Unsupported, match="'%n'"):
        printing(launch, "%n", "")
    with pytest.raises(UnknownInstruction, match="only calls of vprintf"):
        launch("call.uni (%r1), malloc, (%d1);", [np.zeros(1, np.uint32)])
