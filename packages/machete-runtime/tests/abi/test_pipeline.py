"""Pages and stages."""

from __future__ import annotations

import pytest

from machete.megakernel.abi import PipelineSpec, TmaBox


def test_the_ring_of_the_readme_has_thirteen_pages():
    spec = PipelineSpec.streaming(input_stages=3, output_stages=3, stage_pages=4, page_bytes=16 * 1024)
    assert spec.pages == 13
    assert spec.stage_bytes == 64 * 1024
    assert spec.is_streaming


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_plain_pages_form_no_ring(pages):
    spec = PipelineSpec.plain(pages=pages)
    assert spec.pages == spec.resident_pages == pages
    assert not spec.is_streaming


def test_a_box_knows_the_bytes_that_its_mbarrier_expects():
    assert TmaBox((128, 64), swizzle=128).num_bytes(itemsize=2) == 16 * 1024
