"""The shared memory of mixed kernels."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from machete.megakernel.abi import Op, PipelineError, PipelineSpec, ScheduledOp, Target
from machete.megakernel.plan import Plan, SharedLayout
from machete.megakernel.plan.kinds import kinds_of

VECTOR = (None, ("N",))


def op_with(spec: PipelineSpec | None, name: str = "PagesOp") -> ScheduledOp:
    """An op that asks for these pages; it stores where it has output stages."""
    phases = {}
    if spec is not None and spec.is_streaming:
        phases["load"] = lambda self, ring, x: None
        if spec.output_stages:
            phases["store"] = lambda self, ring, y: None
    attributes = {
        "reads": {"x": VECTOR},
        "writes": {"y": VECTOR},
        "pipeline": spec,
        "compute": lambda self, y: None,
        **phases,
    }
    op = type(name, (Op,), attributes)
    return op._schedule_single(x=torch.zeros(8), y=torch.zeros(8))


def layout(*specs: PipelineSpec | None, target: str = "sm_90a") -> SharedLayout:
    kinds, _ = kinds_of([op_with(spec) for spec in specs])
    built = SharedLayout.build(kinds, Target.named(target))
    built.check(kinds, Target.named(target))
    return built


def streaming(stages: int, pages: int = 1, out: int = 0, page_bytes: int = 16 * 1024) -> PipelineSpec:
    return PipelineSpec.streaming(input_stages=stages, output_stages=out, stage_pages=pages, page_bytes=page_bytes)


@pytest.mark.parametrize(
    ("specs", "ring_pages", "output_slots", "resident_pages"),
    [
        pytest.param([None], 0, 0, 0, id="no pages"),
        pytest.param([PipelineSpec.plain(pages=2)], 0, 0, 2, id="scratch pages"),
        pytest.param([streaming(3, 4, out=3)], 12, 3, 1, id="the README's ring"),
        pytest.param([streaming(3, 4), streaming(4, 3)], 12, 0, 1, id="stages of 4 and of 3 pages"),
        pytest.param([streaming(3, 2), streaming(2, 3)], 6, 0, 1, id="stages of 2 and of 3 pages"),
        pytest.param([streaming(2, 2), streaming(7, 1)], 8, 0, 1, id="rounded up to whole stages"),
        pytest.param([streaming(8, 1, out=8), streaming(2, 4, out=1)], 8, 2, 1, id="no more slots than large stages"),
        pytest.param([None, PipelineSpec.plain(), streaming(2, out=1)], 2, 1, 1, id="all sorts"),
    ],
)
def test_one_ring_serves_all_kinds(specs, ring_pages, output_slots, resident_pages):
    built = layout(*specs)
    assert built.ring_pages == ring_pages
    assert built.output_slots == output_slots
    assert built.resident_bytes == resident_pages * 16 * 1024


def areas(built: SharedLayout) -> list[tuple[int, int]]:
    """(offset, end) of every area."""
    eight = 8
    sizes = {
        "ring_offset": built.ring_pages * built.page_bytes,
        "resident_offset": built.resident_bytes,
        "slot_offset": built.slots * built.slot_bytes,
        "full_offset": built.ring_pages * eight,
        "empty_offset": built.ring_pages * eight,
        "out_full_offset": built.output_slots * eight,
        "out_empty_offset": built.output_slots * eight,
        "slot_full_offset": built.slots * eight,
        "slot_clear_offset": built.slots * eight,
        "slot_free_offset": built.slots * eight,
        "out_page_offset": built.output_slots * 4,
    }
    return sorted((getattr(built, name), getattr(built, name) + size) for name, size in sizes.items())


specs = st.one_of(
    st.none(),
    st.builds(PipelineSpec.plain, pages=st.integers(0, 3), page_bytes=st.sampled_from([1024, 4096])),
    st.builds(streaming, st.integers(2, 5), st.integers(1, 4), st.integers(0, 2), st.just(4096)),
)


@given(st.lists(specs, min_size=1, max_size=4))
def test_areas_are_aligned_and_do_not_overlap(some):
    built = layout(*some)
    found = areas(built)
    for (_, end), (begin, _) in pairwise(found):
        assert end <= begin
    assert found[-1][1] <= built.total_bytes
    assert built.ring_offset == 0
    assert built.resident_offset % 1024 == 0
    assert built.resident_bytes % 128 == 0
    assert built.slot_offset % 16 == built.slot_bytes % 16 == 0
    barriers = ("full", "empty", "out_full", "out_empty", "slot_full", "slot_clear", "slot_free")
    assert all(getattr(built, f"{name}_offset") % 8 == 0 for name in barriers)
    assert built.out_page_offset % 4 == 0


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        (streaming(3, 4, out=3), "sm_120a"),
        (streaming(40, 1), "sm_90a"),
        (streaming(40, 1), "sm_120a"),
        (streaming(4, 8, page_bytes=8192), "sm_100a"),
    ],
)
def test_what_a_refusal_suggests_fits_and_more_does_not(spec, target):
    with pytest.raises(PipelineError) as caught:
        layout(spec, target=target)
    message = caught.value.fix
    suggestions = dict(part.split(" with ")[0].split("=") for part in message.removeprefix("what fits: ").split(" or "))
    assert suggestions, message
    values = {name: getattr(spec, name) for name in ("input_stages", "output_stages", "stage_pages", "page_bytes")}
    for name, value in suggestions.items():
        fitting = {**values, name: int(value)}
        larger = {**values, name: 2 * int(value) if name == "page_bytes" else int(value) + 1}
        for changed in (fitting, larger):
            changed["output_stages"] = min(changed["output_stages"], changed["input_stages"])
        layout(PipelineSpec.streaming(**fitting), target=target)
        with pytest.raises(PipelineError):
            layout(PipelineSpec.streaming(**larger), target=target)


def test_resident_pages_that_do_not_fit_are_refused():
    with pytest.raises(
        PipelineError, match=r"15 pages of 16384 bytes do not fit sm_90a(.|\n)*pages=14 or page_bytes=8192"
    ):
        layout(PipelineSpec.plain(pages=15))


def test_scratch_may_be_less_than_a_page():
    spec = PipelineSpec.streaming(input_stages=2, scratch_bytes=200)
    assert layout(spec).resident_bytes == 256, "rounded up to cache lines"
    assert layout(spec, None, PipelineSpec.plain(page_bytes=1024)).resident_bytes == 1024


def test_a_plan_carries_the_layout():
    plan = Plan.build([op_with(streaming(3, 4, out=3))], Target.named("sm_100a"), 2)
    assert plan.shared == layout(streaming(3, 4, out=3))
    assert plan.shared.total_bytes > 13 * 16 * 1024
