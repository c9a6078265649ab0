"""The PTX that the device loop needs, one short function per instruction.

Shared-memory addresses are Int32 (the shared window), global addresses Int64. Every function is called inside traced
code; none has control flow of its own except the waits, whose loops are PTX so that a wait is one opaque
statement to the compiler. Section names are those of the PTX ISA manual.
"""

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Numeric, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from machete.megakernel.plan.shared import ALARM_STATUS, STATUS_BYTES, WARPS

_ptx = cute.arch.inline_ptx


def _inline(text: str, constraints: str, *operands: Numeric) -> Int32:
    """PTX that names special registers, which `inline_ptx` takes for operands; `$0` is an Int32 result."""
    return Int32(_asm(T.i32(), text, constraints, operands))


def _inline_many(count: int, text: str, constraints: str, *operands: Numeric) -> tuple[Int32, ...]:
    """The same with several results, `$0`, `$1`, …"""
    results = _asm(llvm.StructType.get_literal([T.i32()] * count), text, constraints, operands)
    return tuple(Int32(llvm.extractvalue(T.i32(), results, [index])) for index in range(count))


def _asm(result, text: str, constraints: str, operands: Sequence[Numeric]):
    """One statement, whose result is of this type (None: it has none)."""
    values = [operand.ir_value() for operand in operands]
    options = {"has_side_effects": True, "is_align_stack": False, "asm_dialect": llvm.AsmDialect.AD_ATT}
    return llvm.inline_asm(result, values, text, constraints, **options)


def mbarrier_init(barrier, count) -> None:
    """mbarrier.init: `count` arrivals complete a phase."""
    _ptx("mbarrier.init.shared::cta.b64 [{$r0}], {$r1};", read_only_args=[barrier, Int32(count)])


def mbarrier_init_fence() -> None:
    """fence.mbarrier_init: initialised barriers become visible to the asynchronous proxy."""
    _ptx("fence.mbarrier_init.release.cluster;")


def mbarrier_arrive(barrier) -> None:
    """mbarrier.arrive with one arrival, release at CTA scope."""
    _ptx("mbarrier.arrive.shared::cta.b64 _, [{$r0}];", read_only_args=[barrier])


def mbarrier_arrive_many(barrier, count: int) -> None:
    """mbarrier.arrive that stands for `count` arrivals."""
    _ptx("mbarrier.arrive.shared::cta.b64 _, [{$r0}], {$r1};", read_only_args=[barrier, Int32(count)])


def mbarrier_expect(barrier, nbytes) -> None:
    """mbarrier.expect_tx: the current phase also waits for `nbytes` of asynchronous copies."""
    _ptx("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{$r0}], {$r1};", read_only_args=[barrier, nbytes])


#: Tries of a wait between two looks at what others say.
_QUIET_TRIES = 64

# Offsets in the head of the alarm, and in what a warp says of itself: `device.waiting`.
_ALARM, _REPORT, _CTA, _PATIENCE, _GIVEN_UP = 0, 8, 16, 20, 24
_ID, _WHERE, _EXPECTED, _REASON, _OP, _TILE, _SEEN = range(0, 28, 4)


def _attempt(barrier: str, parity: str) -> str:
    return f"mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity};"


def _attempts(attempt: str, head: str) -> str:
    """Try until it is `done`, or until the head of the alarm says to give up: then `$0` is 1."""
    return f"""LAB_RETRY:
{attempt}
@done bra LAB_END;
ld.volatile.shared.u32 word, [{head}+{_GIVEN_UP}];
setp.eq.u32 done, word, 0;
@done bra LAB_RETRY;
mov.u32 $0, 1;
LAB_END:"""


def mbarrier_wait(barrier, parity, head, status, reason: int) -> Int32:
    """Wait until the phase of parity `parity` is complete (mbarrier.try_wait.parity, acquire at CTA scope).

    Returns 0; or 1 if the wait was given up: `device.waiting` says what `head`, `status` and `reason` are. It is
    inlined where accumulators live, so what it does beside trying is short and takes one register; and how long it
    loops depends on nothing that differs in a warp, so that the code around can use uniform registers.
    """
    attempt = _attempt("$1", "$2")
    begin = end = ""
    if reason:
        begin = (
            f"mov.u32 word, %clock; or.b32 word, word, 1; st.volatile.shared.v4.u32 [$4], {{word, $1, $2, {reason}}};"
        )
        end = f"st.volatile.shared.u32 [$4+{_ID}], 0;"
    text = f"""{{
.reg .pred done;
.reg .u32 word;
mov.u32 $0, 0;
{attempt}
@done bra LAB_DONE;
{begin}
{_attempts(attempt, "$3")}
{end}
LAB_DONE:
}}"""
    return _inline(text, "=&r,r,r,r,r", Int32(barrier), Int32(parity), Int32(head), Int32(status))


def mbarrier_wait_timed(barrier, parity, head, status, reason: int, timing, longest: int) -> tuple[Int32, Int32, Int32]:
    """The same, and the SM's clock when the wait began, and for how many cycles it lasted (`longest` at most).

    Cycles are 0 where it was none, and in threads in which `timing` (Int32) is negative. The clock is odd, by one cycle
    if need be. It is one statement, so that a wait which is none costs no branch, and no more than without the clocks.
    The first look is a test: an attempt may itself wait for a while, before the clock is read.
    """
    test = "mbarrier.test_wait.parity.shared::cta.b64 done, [$3], $4;"
    text = f"""{{
.reg .pred done, times;
.reg .u32 word;
mov.u32 $0, 0;
mov.u32 $2, 0;
{test}
@done bra LAB_DONE;
setp.ge.s32 times, $7, 0;
mov.u32 $1, %clock;
or.b32 $1, $1, 1;
st.volatile.shared.v4.u32 [$6], {{$1, $3, $4, {reason}}};
{_attempts(_attempt("$3", "$4"), "$5")}
mov.u32 word, %clock;
sub.u32 word, word, $1;
@times min.u32 $2, word, {longest};
st.volatile.shared.u32 [$6+{_ID}], 0;
LAB_DONE:
}}"""
    operands = Int32(barrier), Int32(parity), Int32(head), Int32(status), Int32(timing)
    return _inline_many(3, text, "=&r,=&r,=&r,r,r,r,r,r", *operands)


def mbarrier_arrive_after(barrier, words: Sequence[Numeric]) -> None:
    """mbarrier.arrive once the registers `words`, of 32 bits each, have their values.

    An arrival alone overtakes loads from shared memory that are on their way (seen on an H200). So it has a predicate
    that depends on them; it always holds, which only a launch knows: grids have one layer.
    """
    places = range(1, 1 + len(words))
    text = f"""{{
.reg .b32 nothing, all;
.reg .pred known;
mov.u32 nothing, %nctaid.z;
sub.u32 nothing, nothing, 1;
mov.b32 all, 0;
{" ".join(f"or.b32 all, all, ${place};" for place in places)}
and.b32 all, all, nothing;
setp.eq.u32 known, all, 0;
@known mbarrier.arrive.shared::cta.b64 _, [$0];
}}"""
    _asm(None, text, ",".join(["r"] * (1 + len(words))), [Int32(barrier), *words])


def mbarrier_wait_surely(barrier, parity) -> None:
    """Wait for a phase that completes whatever happens: nothing is looked at meanwhile."""
    _ptx(
        """{
.reg .pred done;
LAB_RETRY:
mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};
@!done bra LAB_RETRY;
}""",
        read_only_args=[Int32(barrier), Int32(parity)],
    )


def mbarrier_guard(barrier, parity, head, counter: int) -> Int32:
    """Wait as `mbarrier_wait` does, and meanwhile look after the warps of this CTA, one lane after each.

    If a warp has said the same for longer than allowed, its lane raises the alarm, and reports what it says. Once
    somebody has raised it, here or elsewhere, all warps of the CTA are told, and what this wait is for comes soon.
    Returns 0, or 1 if there was an alarm.
    `head` is that of `device.waiting`, and `counter` the reason of waits for counters. Lanes never branch apart: after
    code where they may, the compiler would not use uniform registers any more, in any role.
    """
    attempt = "mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2;"
    text = f"""{{
.reg .pred done, looks, stuck, first;
.reg .u32 tries, word, lane, own, now, begun, last, where, expected, reason;
.reg .u64 place;
mov.u32 $0, 0;
{attempt}
@done bra LAB_DONE;
mov.u32 tries, 0;
mov.u32 begun, 0;
mov.u32 last, 0;
mov.u32 lane, %laneid;
setp.lt.u32 looks, lane, {WARPS};
mad.lo.u32 own, lane, {STATUS_BYTES}, $3;
LAB_RETRY:
{attempt}
@done bra LAB_DONE;
add.u32 tries, tries, 1;
and.b32 word, tries, {_QUIET_TRIES - 1};
setp.ne.u32 done, word, 0;
@done bra LAB_RETRY;
ld.shared.u64 place, [$3+{_ALARM}];
ld.relaxed.gpu.global.u32 word, [place];
setp.ne.u32 done, word, 0;
@done bra LAB_ALARM;
ld.shared.u32 where, [$3+{_PATIENCE}];
setp.eq.u32 done, where, 0;
@done bra LAB_RETRY;
mov.u64 place, %globaltimer;
shr.u64 place, place, 20;
cvt.u32.u64 now, place;
mov.u32 word, 0;
@looks ld.volatile.shared.u32 word, [own+{ALARM_STATUS + _ID}];
setp.ne.u32 done, word, last;
mov.u32 last, word;
@done mov.u32 begun, now;
sub.u32 now, now, begun;
setp.gt.u32 stuck, now, where;
setp.ne.and.u32 stuck, word, 0, stuck;
vote.sync.ballot.b32 word, stuck, -1;
setp.eq.u32 done, word, 0;
@done bra LAB_RETRY;
brev.b32 word, word;
clz.b32 word, word;
setp.eq.u32 first, word, lane;
ld.shared.u64 place, [$3+{_ALARM}];
mov.u32 now, 1;
@first atom.relaxed.gpu.global.cas.b32 now, [place], 0, 1;
setp.eq.and.u32 first, now, 0, first;
ld.shared.u64 place, [$3+{_REPORT}];
ld.shared.u32 now, [$3+{_CTA}];
mov.u32 reason, 0;
@first ld.volatile.shared.u32 where, [own+{ALARM_STATUS + _WHERE}];
@first ld.volatile.shared.u32 expected, [own+{ALARM_STATUS + _EXPECTED}];
@first ld.volatile.shared.u32 reason, [own+{ALARM_STATUS + _REASON}];
setp.lt.u32 done, reason, {counter};
@done sub.u32 where, where, $3;
@first st.global.v4.u32 [place], {{reason, now, lane, where}};
@first ld.volatile.shared.u32 word, [own+{ALARM_STATUS + _OP}];
@first ld.volatile.shared.u32 now, [own+{ALARM_STATUS + _TILE}];
@first ld.volatile.shared.u32 where, [own+{ALARM_STATUS + _SEEN}];
@first st.global.v4.u32 [place+16], {{word, now, expected, where}};
LAB_ALARM:
st.volatile.shared.u32 [$3+{_GIVEN_UP}], 1;
mov.u32 $0, 1;
LAB_TOLD:
{attempt}
@!done bra LAB_TOLD;
LAB_DONE:
}}"""
    return _inline(text, "=&r,r,r,r", Int32(barrier), Int32(parity), Int32(head))


def mbarrier_settle(barrier, parity, tries: int) -> None:
    """Wait until the phase is complete, or has been tried for so often: for copies that are on their way."""
    _ptx(
        """{
.reg .pred done;
.reg .u32 tries;
mov.u32 tries, 0;
LAB_RETRY:
mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};
@done bra LAB_DONE;
add.u32 tries, tries, 1;
setp.lt.u32 done, tries, %d;
@done bra LAB_RETRY;
LAB_DONE:
}"""
        % tries,
        read_only_args=[barrier, parity],
    )


def mbarrier_test(barrier, parity) -> Int32:
    """1 if the phase of parity `parity` is complete, else 0 (mbarrier.test_wait.parity, does not block)."""
    return _ptx(
        "{ .reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};"
        " selp.b32 {$w0}, 1, 0, done; }",
        write_only_types=[Int32],
        read_only_args=[barrier, parity],
    )


def any_lane(value) -> Int32:
    """vote.sync.any: 1 if the value is not 0 in some lane of the warp, else 0."""
    return _ptx(
        "{ .reg .pred p; setp.ne.u32 p, {$r0}, 0; vote.sync.any.pred p, p, -1; selp.b32 {$w0}, 1, 0, p; }",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def trap() -> None:
    """trap: end the kernel with an error."""
    _ptx("trap;")


def _looked(word: str, head: str, status: str, reason: int, more: str = "") -> str:
    """What a lane does after it has looked at global memory in vain: back to LAB_RETRY, or to LAB_GIVE_UP.

    Now and then it says what it waits for, `$1`, if no other lane of its warp has. `word` is a register to use, `head`
    and `status` are operands, and `more` is what else it says.
    """
    return f"""add.u32 tries, tries, 1;
and.b32 {word}, tries, {_QUIET_TRIES - 1};
setp.ne.u32 done, {word}, 0;
@done bra LAB_RETRY;
ld.volatile.shared.u32 {word}, [{head}+{_GIVEN_UP}];
setp.ne.u32 done, {word}, 0;
@done bra LAB_GIVE_UP;
cvt.u32.u64 {word}, $1;
st.volatile.shared.u32 [{status}+{_WHERE}], {word};
st.volatile.shared.u32 [{status}+{_REASON}], {reason};
{more}
ld.volatile.shared.u32 {word}, [{status}+{_ID}];
setp.ne.u32 done, {word}, 0;
@done bra LAB_RETRY;
mov.u32 {word}, %clock;
or.b32 {word}, {word}, 1;
st.volatile.shared.u32 [{status}+{_ID}], {word};
bra LAB_RETRY;"""


def counter_wait(address, threshold, head, status, reason: int) -> Int32:
    """Poll a global counter (ld.relaxed.gpu) until it reaches `threshold`; then fence.acquire.gpu makes it an acquire.

    An acquire in the loop would throw away the L1 cache after every poll. Returns 0; or 1 if the wait was given up:
    `device.waiting` says what `head`, `status` and `reason` are.
    """
    more = f"st.volatile.shared.u32 [$3+{_EXPECTED}], $2; st.volatile.shared.u32 [$3+{_SEEN}], seen;"
    text = f"""{{
.reg .pred done;
.reg .u32 tries, word, seen;
mov.u32 $0, 0;
mov.u32 tries, 0;
LAB_RETRY:
ld.relaxed.gpu.global.u32 seen, [$1];
setp.ge.u32 done, seen, $2;
@done bra LAB_DONE;
{_looked("word", "$4", "$3", reason, more)}
LAB_GIVE_UP:
mov.u32 $0, 1;
LAB_DONE:
fence.acquire.gpu;
}}"""
    return _inline(text, "=&r,l,r,r,r", Int64(address), Int32(threshold), Int32(status), Int32(head))


def forget(status) -> None:
    """The warp does not wait any more, after `counter_wait` or `take_tagged`."""
    _ptx("st.volatile.shared.u32 [{$r0}], 0;", read_only_args=[status])


def say(status, op, tile) -> None:
    """What the warp works on."""
    _ptx(
        "st.volatile.shared.u32 [{$r0}+%d], {$r1}; st.volatile.shared.u32 [{$r0}+%d], {$r2};" % (_OP, _TILE),
        read_only_args=[status, op, tile],
    )


def counter_signal(address) -> None:
    """red.release.gpu: everything before it is visible to whoever acquires the new value."""
    _ptx("red.release.gpu.global.add.u32 [{$r0}], 1;", read_only_args=[address])


def counter_fetch_add(address) -> Uint32:
    """atom.acq_rel.gpu add of one; returns the value before."""
    return _ptx(
        "atom.acq_rel.gpu.global.add.u32 {$w0}, [{$r0}], 1;",
        write_only_types=[Uint32],
        read_only_args=[address],
    )


def store_tagged(address, first, second) -> None:
    """Store two float32 values to global memory (16-byte aligned, 16 bytes), each in one word with a tag.

    `dependencies.take_tagged` of another SM may wait for them: there is no other synchronisation, and no fence.
    """
    _ptx(
        "{ .reg .b64 first, second; .reg .b32 tag; mov.b32 tag, 1;"
        " mov.b64 first, {{$r1}, tag}; mov.b64 second, {{$r2}, tag};"
        " st.relaxed.gpu.global.v2.b64 [{$r0}], {first, second}; }",
        read_only_args=[address, first, second],
    )


def take_tagged(address, head, status, reason: int):
    """Wait for the two float32 values that `store_tagged` stores to `address`, and put zeros in their place.

    Returns both; and 0, or 1 if the wait was given up.
    """
    words = {"quiet": _QUIET_TRIES - 1, "given_up": _GIVEN_UP, "where": _WHERE, "reason": _REASON, "why": reason}
    return _ptx(
        """{
.reg .pred done;
.reg .b64 first, second;
.reg .b32 tries, tag, other;
mov.u32 {$w2}, 0;
mov.u32 tries, 0;
LAB_RETRY:
ld.relaxed.gpu.global.v2.b64 {first, second}, [{$r0}];
mov.b64 {{$w0}, tag}, first;
mov.b64 {{$w1}, other}, second;
and.b32 tag, tag, other;
setp.ne.u32 done, tag, 0;
@done bra LAB_DONE;
add.u32 tries, tries, 1;
and.b32 tag, tries, %(quiet)d;
setp.ne.u32 done, tag, 0;
@done bra LAB_RETRY;
ld.volatile.shared.u32 tag, [{$r2}+%(given_up)d];
setp.ne.u32 done, tag, 0;
@done bra LAB_GIVE_UP;
cvt.u32.u64 tag, {$r0};
st.volatile.shared.u32 [{$r1}+%(where)d], tag;
st.volatile.shared.u32 [{$r1}+%(reason)d], %(why)d;
ld.volatile.shared.u32 other, [{$r1}];
setp.ne.u32 done, other, 0;
@done bra LAB_RETRY;
or.b32 tag, tag, 1;
st.volatile.shared.u32 [{$r1}], tag;
bra LAB_RETRY;
LAB_GIVE_UP:
mov.u32 {$w2}, 1;
LAB_DONE:
mov.b64 first, 0;
st.relaxed.gpu.global.v2.b64 [{$r0}], {first, first};
}"""
        % words,
        write_only_types=[cutlass.Float32, cutlass.Float32, Int32],
        read_only_args=[address, status, head],
    )


def words_wait(address, head, status, reason: int) -> Int32:
    """Wait until none of the four 32-bit words at a global address (16-byte aligned) is zero; no fence follows.

    Returns 0; or 1 if the wait was given up: `device.waiting` says what `head`, `status` and `reason` are.
    """
    text = f"""{{
.reg .pred done;
.reg .b32 tries, w0, w1, w2, w3;
mov.u32 $0, 0;
mov.u32 tries, 0;
LAB_RETRY:
ld.relaxed.gpu.global.v4.b32 {{w0, w1, w2, w3}}, [$1];
min.u32 w0, w0, w1;
min.u32 w2, w2, w3;
min.u32 w0, w0, w2;
setp.ne.u32 done, w0, 0;
@done bra LAB_DONE;
{_looked("w0", "$2", "$3", reason)}
LAB_GIVE_UP:
mov.u32 $0, 1;
LAB_DONE:
}}"""
    return _inline(text, "=&r,l,r,r", Int64(address), Int32(head), Int32(status))


def fence_async() -> None:
    """fence.proxy.async: orders generic and asynchronous accesses, in shared and in global memory."""
    _ptx("fence.proxy.async;")


def fence_async_shared() -> None:
    """fence.proxy.async.shared::cta: generic writes to shared memory before asynchronous reads of it."""
    _ptx("fence.proxy.async.shared::cta;")


def fence_descriptor(address) -> None:
    """fence.proxy.tensormap acquire: a descriptor at this address may have been rewritten since the last launch."""
    _ptx("fence.proxy.tensormap::generic.acquire.sys [{$r0}], 128;", read_only_args=[address])


def let_next_kernel_start() -> None:
    """griddepcontrol.launch_dependents: CTAs of a kernel that was launched for it may take SMs that become free."""
    _ptx("griddepcontrol.launch_dependents;")


def await_kernel_before() -> None:
    """griddepcontrol.wait: what the kernels before on the stream have written is there; a no-op without overlap."""
    _ptx("griddepcontrol.wait;")


def prefetch(address) -> None:
    """prefetch.global.L2: the cache line of a global address."""
    _ptx("prefetch.global.L2 [{$r0}];", read_only_args=[address])


def prefetch_descriptor(address) -> None:
    """prefetch.tensormap: a descriptor, to where copies look for it."""
    _ptx("prefetch.tensormap [{$r0}];", read_only_args=[address])


def bulk_load(shared, source, nbytes, barrier) -> None:
    """cp.async.bulk global to shared; 16-byte aligned addresses and size, bytes reported to `barrier`."""
    _ptx(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];",
        read_only_args=[shared, source, nbytes, barrier],
    )


def bulk_store(target, shared, nbytes) -> None:
    """cp.async.bulk shared to global, completion by bulk group; 16-byte aligned addresses and size."""
    _ptx(
        "cp.async.bulk.global.shared::cta.bulk_group [{$r0}], [{$r1}], {$r2};",
        read_only_args=[target, shared, nbytes],
    )


def _coordinates(first: int, rank: int) -> str:
    return "{" + ", ".join("{$r%d}" % (first + i) for i in range(rank)) + "}"


def tma_load(shared, descriptor, coordinates, barrier) -> None:
    """cp.async.bulk.tensor global to shared, tile mode; `coordinates` innermost first, in elements."""
    rank = len(coordinates)
    _ptx(
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [{$r0}], [{$r1}, " + _coordinates(3, rank) + "], [{$r2}];",
        read_only_args=[shared, descriptor, barrier, *coordinates],
    )


def tma_store(descriptor, coordinates, shared) -> None:
    """cp.async.bulk.tensor shared to global, tile mode, completion by bulk group; coordinates innermost first."""
    rank = len(coordinates)
    _ptx(
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [{{$r0}}, "
        + _coordinates(2, rank)
        + "], [{$r1}];",
        read_only_args=[descriptor, shared, *coordinates],
    )


def bulk_commit() -> None:
    """cp.async.bulk.commit_group."""
    _ptx("cp.async.bulk.commit_group;")


def bulk_wait_read(pending: int) -> None:
    """cp.async.bulk.wait_group.read: all but the newest `pending` groups have read their shared memory."""
    _ptx(f"cp.async.bulk.wait_group.read {pending};")


def bulk_wait(pending: int) -> None:
    """cp.async.bulk.wait_group: all but the newest `pending` groups are complete and their writes visible."""
    _ptx(f"cp.async.bulk.wait_group {pending};")


def tensor_allocate(shared, columns: int) -> None:
    """tcgen05.alloc: the address of this many columns of tensor memory goes to shared memory. A whole warp calls it."""
    _ptx(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{$r0}], %d;"
        " tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" % columns,
        read_only_args=[shared],
    )


def tensor_free(address, columns: int) -> None:
    """tcgen05.dealloc, by the warp that allocated."""
    _ptx("tcgen05.dealloc.cta_group::1.sync.aligned.b32 {$r0}, %d;" % columns, read_only_args=[address])


def tensor_commit(barrier) -> None:
    """tcgen05.commit: arrive at an mbarrier once the products that this thread has issued are complete."""
    _ptx("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{$r0}];", read_only_args=[barrier])


def tensor_fence_after() -> None:
    """tcgen05.fence::after_thread_sync: what others did to tensor memory before a barrier is done."""
    _ptx("tcgen05.fence::after_thread_sync;")


def tensor_fence_before() -> None:
    """tcgen05.fence::before_thread_sync: what this thread did is done for whoever it meets at a barrier."""
    _ptx("tcgen05.fence::before_thread_sync;")


def tensor_load(address, count: int):
    """tcgen05.ld.32x32b: `count` columns of this thread's lane as float32, and wait for them.

    One statement, so that nothing uses the values before they are there.
    """
    values = ", ".join("{$w%d}" % i for i in range(count))
    return _ptx(
        f"tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{values}}}, [{{$r0}}]; tcgen05.wait::ld.sync.aligned;",
        write_only_types=[cutlass.Float32] * count,
        read_only_args=[address],
    )


def traced_block() -> ir.Block:
    """Where code is being traced: what is traced into one block runs together, or not at all."""
    return ir.InsertionPoint.current.block


def mark(text: str, *values) -> None:
    """Say where this warp is. A comment in the PTX: nothing on the hardware, a position to the simulator's reports."""
    operands = " ".join("{$r%d}" % i for i in range(len(values)))
    _ptx(f'// @machete.mark "{text}" {operands}', read_only_args=[Int32(v) for v in values])


def shared_pointer(dtype, address, align: int):
    """A typed pointer into shared memory from an Int32 address."""
    return cute.make_ptr(dtype, address, cute.AddressSpace.smem, assumed_align=align)


def global_pointer(dtype, address, align: int):
    """A typed pointer into global memory from an Int64 address."""
    return cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


def shared_word(dtype, address):
    """Load one value of `dtype` from shared memory (naturally aligned)."""
    size = dtype.width // 8
    return cute.make_tensor(shared_pointer(dtype, address, size), cute.make_layout(1))[0]


def alarm_cta(head) -> Int32:
    """The CTA's number in the head of the alarm (ld.volatile.shared.u32): loaded here, not sooner."""
    return _inline(f"ld.volatile.shared.u32 $0, [$1+{_CTA}];", "=r,r", Int32(head))


def store_shared_word(dtype, address, value) -> None:
    """Store one value of `dtype` to shared memory (naturally aligned)."""
    size = dtype.width // 8
    cute.make_tensor(shared_pointer(dtype, address, size), cute.make_layout(1))[0] = value


def global_word(dtype, address):
    """Load one value of `dtype` from global memory (naturally aligned)."""
    size = dtype.width // 8
    return cute.make_tensor(global_pointer(dtype, address, size), cute.make_layout(1))[0]


def lane_index():
    """Lane of the calling thread in its warp, Int32 in 0..31."""
    return cute.arch.thread_idx()[0] % 32


def registers(dtype: type[cutlass.Numeric], *initial):
    """A small register array; static indices only, so that it stays in registers."""
    array = cute.make_rmem_tensor((len(initial),), dtype)
    for index, value in enumerate(initial):
        array[index] = dtype(value)
    return array
