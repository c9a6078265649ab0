"""The shared memory of a CTA: page ring, resident pages, instruction slots and barriers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from machete.megakernel.abi.errors import PipelineError, PlanError, listing
from machete.megakernel.abi.pipeline import MIN_PAGE_BYTES, PipelineSpec
from machete.megakernel.abi.target import Target
from machete.megakernel.plan.kinds import Kind

#: Instructions that are decoded ahead of the one that runs.
INSTRUCTION_SLOTS = 4
#: The same where SMs share a queue: what one SM holds, no other can run.
FETCHED_SLOTS = 2
#: Eight int32 for each instruction (plan.program).
ROW_BYTES = 32
#: Waits (counter, value) of an instruction that travel with it; the others are read when it is their turn.
INLINE_WAITS = 8
WAIT_BYTES = 8
#: Where the op's record begins in an instruction slot.
RECORD_OFFSET = ROW_BYTES + INLINE_WAITS * WAIT_BYTES
MBARRIER_BYTES = 8
#: A counter has a cache line of its own: polling one does not slow down signalling another.
COUNTER_BYTES = 128
RESIDENT_ALIGNMENT = 128
#: Tensor memory of an SM: 512 columns of 32 bits in each of 128 lanes. While one half is emptied, the other is filled.
TENSOR_COLUMNS = 512
ACCUMULATORS = 2
ACCUMULATOR_COLUMNS = TENSOR_COLUMNS // ACCUMULATORS
#: Page and parity of the loader's next stage.
POSITION_BYTES = 8
#: Pages whose parities the multiplier keeps in one register.
MOST_PAGES = 32
#: The head of the alarm: addresses of alarm and report, CTA, patience; then what each warp says of itself
#: (`device.waiting`).
ALARM_STATUS = 32
STATUS_BYTES = 32
WARPS = 13
ALARM_BYTES = ALARM_STATUS + WARPS * STATUS_BYTES


@dataclass(frozen=True)
class SharedLayout:
    """Sizes and byte offsets; offsets count from the 1024-byte aligned base of dynamic shared memory.

    Attributes:
        ring_pages: pages of the ring, which all streaming ops share.
        page_bytes: bytes of a ring page.
        output_slots: stages that can be on their way from `compute` to `store`.
        resident_bytes: bytes behind `page_ptr`; ops use them one after another.
        slots: instruction slots; each holds an instruction row, its first waits, and the op's record.
        record_bytes: bytes of the largest record.
        one_queue: SMs fetch instructions from one queue, rather than have one each.
        accumulators: parts of tensor memory, 0 where no kind has a `multiply` phase.
    """

    ring_pages: int
    page_bytes: int
    output_slots: int
    resident_bytes: int
    record_bytes: int
    slots: int = INSTRUCTION_SLOTS
    counter_bytes: int = COUNTER_BYTES
    one_queue: bool = False
    accumulators: int = 0

    @classmethod
    def build(cls, kinds: Sequence[Kind], target: Target) -> SharedLayout:
        """The layout that serves all kinds; `PipelineError` says what would fit if it does not."""
        sizes = {k.pipeline.page_bytes: k for k in kinds if k.pipeline and k.pipeline.is_streaming}
        if len(sizes) > 1:
            raise PipelineError(
                what=f"ops with pages of {listing(f'{n} bytes ({kind.name})' for n, kind in sizes.items())}",
                where="one kernel",
                why="the pages of all streaming ops of a kernel form one ring",
                fix=f"page_bytes={max(sizes)} for all of them",
            )
        layout = _layout(kinds, target)
        if layout.accumulators and layout.ring_pages > MOST_PAGES:
            raise PipelineError(
                what=f"a ring of {layout.ring_pages} pages of {layout.page_bytes} bytes",
                where="one kernel with products in tensor memory",
                why=f"the multiplier keeps track of {MOST_PAGES} pages",
                fix="fewer and larger pages",
            )
        if layout.total_bytes > target.shared_bytes:
            raise _does_not_fit(kinds, target, layout)
        return layout

    def fetched(self) -> SharedLayout:
        """The same for SMs that share a queue."""
        return replace(self, slots=FETCHED_SLOTS, one_queue=True)

    # -- areas, in the order in which they lie in memory --

    @property
    def ring_offset(self) -> int:
        """The pages of the ring."""
        return 0

    @property
    def resident_offset(self) -> int:
        """The resident pages."""
        return self.ring_offset + self.ring_pages * self.page_bytes

    @property
    def slot_offset(self) -> int:
        """The instruction slots, `slot_bytes` apart."""
        return self.resident_offset + self.resident_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of one instruction slot."""
        return RECORD_OFFSET + self.record_bytes

    @property
    def full_offset(self) -> int:
        """mbarrier[ring_pages]: the copies into a page have landed."""
        return self.slot_offset + self.slots * self.slot_bytes

    @property
    def empty_offset(self) -> int:
        """mbarrier[ring_pages]: nobody reads a page any more."""
        return self.full_offset + self.ring_pages * MBARRIER_BYTES

    @property
    def out_full_offset(self) -> int:
        """mbarrier[output_slots]: compute has handed over a stage."""
        return self.empty_offset + self.ring_pages * MBARRIER_BYTES

    @property
    def out_empty_offset(self) -> int:
        """mbarrier[output_slots]: the storer has freed it."""
        return self.out_full_offset + self.output_slots * MBARRIER_BYTES

    @property
    def slot_full_offset(self) -> int:
        """mbarrier[slots]: row and record are there."""
        return self.out_empty_offset + self.output_slots * MBARRIER_BYTES

    @property
    def slot_clear_offset(self) -> int:
        """mbarrier[slots]: the dependencies are satisfied."""
        return self.slot_full_offset + self.slots * MBARRIER_BYTES

    @property
    def slot_free_offset(self) -> int:
        """mbarrier[slots]: every role is done with it."""
        return self.slot_clear_offset + self.slots * MBARRIER_BYTES

    @property
    def slot_begun_offset(self) -> int:
        """mbarrier[slots], with accumulators: the loader has begun the instruction, and said at which stage."""
        return self.slot_free_offset + self.slots * MBARRIER_BYTES

    @property
    def summed_offset(self) -> int:
        """mbarrier[accumulators]: its products are complete."""
        return self.slot_begun_offset + (self.slots * MBARRIER_BYTES if self.accumulators else 0)

    @property
    def taken_offset(self) -> int:
        """mbarrier[accumulators]: compute has read it."""
        return self.summed_offset + self.accumulators * MBARRIER_BYTES

    @property
    def operands_offset(self) -> int:
        """mbarrier[ring_pages], with accumulators: the copies into a page that the multiplier reads have landed."""
        return self.taken_offset + self.accumulators * MBARRIER_BYTES

    @property
    def ended_offset(self) -> int:
        """mbarrier, with accumulators: nobody uses tensor memory any more."""
        return self.operands_offset + (self.ring_pages * MBARRIER_BYTES if self.accumulators else 0)

    @property
    def position_offset(self) -> int:
        """(int32 page, int32 parity)[slots], with accumulators: where the loader begins an instruction."""
        return self.ended_offset + (MBARRIER_BYTES if self.accumulators else 0)

    @property
    def tensor_address_offset(self) -> int:
        """8 bytes, with accumulators: the address of tensor memory."""
        return self.position_offset + (self.slots * POSITION_BYTES if self.accumulators else 0)

    @property
    def out_page_offset(self) -> int:
        """int32[output_slots]: first page of the stage that was handed over."""
        return self.tensor_address_offset + (8 if self.accumulators else 0)

    @property
    def alarm_offset(self) -> int:
        """The head of the alarm, with which waits that do not end are reported (`device.waiting`)."""
        return -(-(self.out_page_offset + self.output_slots * 4) // 16) * 16

    @property
    def total_bytes(self) -> int:
        """Dynamic shared memory that the kernel asks for."""
        return self.alarm_offset + ALARM_BYTES

    def check(self, kinds: Sequence[Kind], target: Target) -> None:
        """Raise `PlanError` unless this layout serves all the kinds on the target."""
        for kind in kinds:
            problem = self._problem(kind)
            if problem:
                raise PlanError(
                    what=f"shared memory: {problem}",
                    where=f"kind {kind.index} ({kind.name}) on {target.name}",
                    why="a page would be used by two stages, or a stage by nobody",
                    fix="build the plan again",
                )
        if self.total_bytes > target.shared_bytes:
            raise PlanError(
                what=f"shared memory: {self.total_bytes} bytes, {target.name} has {target.shared_bytes}",
                where=target.name,
                why="a CTA cannot have more",
                fix="build the plan again",
            )

    def _problem(self, kind: Kind) -> str:
        spec = kind.pipeline
        if kind.multiplies and not self.accumulators:
            return "no accumulators"
        if self.accumulators and self.ring_pages > MOST_PAGES:
            return f"a ring of {self.ring_pages} pages, and a multiplier that keeps track of {MOST_PAGES}"
        if kind.record.size > self.record_bytes:
            return f"a record of {kind.record.size} bytes in slots for {self.record_bytes}"
        if spec is None:
            return ""
        if spec.resident_bytes > self.resident_bytes:
            return f"{spec.resident_bytes} resident bytes in {self.resident_bytes}"
        if not spec.is_streaming:
            return ""
        if spec.page_bytes != self.page_bytes:
            return f"pages of {spec.page_bytes} bytes in a ring of {self.page_bytes}"
        if self.ring_pages % spec.stage_pages:
            return f"a ring of {self.ring_pages} pages is no multiple of {spec.stage_pages}-page stages"
        if self.ring_pages < spec.least_pages:
            return f"{spec.input_stages} stages of {spec.stage_pages} pages in a ring of {self.ring_pages}"
        if kind.has_store and not 1 <= self.output_slots <= self.ring_pages // spec.stage_pages:
            return f"{self.output_slots} output slots for {self.ring_pages // spec.stage_pages} stages"
        return ""


def _layout(kinds: Sequence[Kind], target: Target) -> SharedLayout:
    """The layout that serves all the kinds, with as many pages as they want and the target has room for."""
    specs = [kind.pipeline for kind in kinds if kind.pipeline]
    streaming = [spec for spec in specs if spec.is_streaming]
    resident_bytes = max((spec.resident_bytes for spec in specs), default=0)
    layout = SharedLayout(
        ring_pages=0,
        page_bytes=max((spec.page_bytes for spec in streaming), default=0),
        output_slots=0,
        resident_bytes=-(-resident_bytes // RESIDENT_ALIGNMENT) * RESIDENT_ALIGNMENT,
        record_bytes=max(kind.record.size for kind in kinds),
        accumulators=ACCUMULATORS if any(kind.multiplies for kind in kinds) else 0,
    )
    group = math.lcm(*(spec.stage_pages for spec in streaming))
    least = -(-max((spec.least_pages for spec in streaming), default=0) // group) * group
    wanted = -(-max((spec.input_stages * spec.stage_pages for spec in streaming), default=0) // group) * group
    if layout.accumulators:
        wanted = max(least, min(wanted, MOST_PAGES // group * group))
    layouts = (_with_ring(layout, streaming, pages) for pages in range(wanted, least, -group))
    fitting = (layout for layout in layouts if layout.total_bytes <= target.shared_bytes)
    return next(fitting, None) or _with_ring(layout, streaming, least)


def _with_ring(layout: SharedLayout, streaming: Sequence[PipelineSpec], ring_pages: int) -> SharedLayout:
    # The storer frees a stage when all slots are taken: with more slots than stages, the ring would run dry.
    storing = [spec for spec in streaming if spec.output_stages]
    stages = min((ring_pages // spec.stage_pages for spec in storing), default=0)
    slots = min(stages, max((spec.output_stages for spec in storing), default=0))
    return replace(layout, ring_pages=ring_pages, output_slots=slots)


def _does_not_fit(kinds: Sequence[Kind], target: Target, layout: SharedLayout) -> PipelineError:
    largest = max(kinds, key=lambda kind: kind.pipeline.pages * kind.pipeline.page_bytes if kind.pipeline else 0)
    spec = largest.pipeline
    pages = f"{spec.pages} pages of {spec.page_bytes} bytes" if spec else "the records of its ops"
    ring_bytes = layout.ring_pages * layout.page_bytes
    return PipelineError(
        what=f"{pages} do not fit {target.name}: {layout.total_bytes} bytes needed, {target.shared_bytes} available",
        where=f"{largest.name} on {target.name}",
        why=f"a ring of {layout.ring_pages} pages is {ring_bytes} bytes, resident pages are "
        f"{layout.resident_bytes}, records and barriers {layout.total_bytes - ring_bytes - layout.resident_bytes}",
        fix=f"what fits: {' or '.join(_what_fits(kinds, target)) or 'fewer and smaller pages'}",
    )


def _what_fits(kinds: Sequence[Kind], target: Target) -> Iterator[str]:
    """Arguments of the pipelines that, changed one at a time, make the kernel fit; the largest of each."""
    specs = [kind.pipeline for kind in kinds if kind.pipeline]
    page_bytes = max(spec.page_bytes for spec in specs)
    candidates: dict[str, tuple[str, Iterable[int]]] = {
        "input_stages": ("input_stages", range(max(spec.input_stages for spec in specs) - 1, 0, -1)),
        "stage_pages": ("stage_pages", range(max(spec.stage_pages for spec in specs) - 1, 0, -1)),
        "pages": ("resident_pages", range(max(spec.resident_pages for spec in specs) - 1, 0, -1)),
        "page_bytes": (
            "page_bytes",
            (page_bytes >> shift for shift in range(1, (page_bytes // MIN_PAGE_BYTES).bit_length())),
        ),
    }
    for argument, (field, values) in candidates.items():
        for value in values:
            limited = [replace(kind, pipeline=_limited(kind.pipeline, field, value)) for kind in kinds]
            if _layout(limited, target).total_bytes <= target.shared_bytes:
                outputs = max(spec.output_stages for spec in specs)
                also = f" with output_stages={value}" if argument == "input_stages" and outputs > value else ""
                yield f"{argument}={value}{also}"
                break


def _limited(spec: PipelineSpec | None, field: str, value: int) -> PipelineSpec | None:
    if spec is None or getattr(spec, field) <= value:
        return spec
    if field == "input_stages":
        return replace(spec, input_stages=value, output_stages=min(value, spec.output_stages))
    changes: dict[str, Any] = {field: value}
    return replace(spec, **changes)
