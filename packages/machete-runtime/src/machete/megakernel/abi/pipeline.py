"""What an op asks of shared memory: pages, and the stages of the ring that they form."""

from __future__ import annotations

from dataclasses import dataclass

from machete.megakernel.abi.errors import PipelineError

#: The 128-byte swizzle of TMA repeats every 1024 bytes, so pages start at multiples of that (PTX ISA,
#: "Tensor swizzling modes").
MIN_PAGE_BYTES = 1024
#: Stages to which an elastic ring may shrink: one that is used, and one that is filled.
ELASTIC_STAGES = 2


@dataclass(frozen=True)
class PipelineSpec:
    """Shared-memory pages of an op. Use `streaming` or `plain`, not the constructor.

    Attributes:
        input_stages: stages that `load` fills ahead of `compute`; 0 means that the op has no ring.
        output_stages: stages that `store` drains behind `compute`. They borrow released input pages.
        stage_pages: pages in one stage.
        page_bytes: bytes in one page, a power of two of at least 1024.
        resident_pages: pages that stay with the op's compute threads: `page_ptr`.
        copied_bytes: bytes that `load` copies into a stage; None if it fills the stage.
        elastic: fewer input stages will do, down to two, where they do not fit.
        scratch_bytes: bytes behind `page_ptr` instead of whole pages, where little is needed.
    """

    input_stages: int
    output_stages: int
    stage_pages: int
    page_bytes: int
    resident_pages: int
    scratch_bytes: int | None = None
    elastic: bool = False
    copied_bytes: int | None = None

    @classmethod
    def streaming(
        cls,
        *,
        input_stages: int,
        output_stages: int = 0,
        stage_pages: int = 1,
        page_bytes: int = 16 * 1024,
        scratch_bytes: int | None = None,
        elastic: bool = False,
        copied_bytes: int | None = None,
    ) -> PipelineSpec:
        """A ring of `input_stages` stages, and beside it one resident page, or `scratch_bytes` in its place."""
        if isinstance(input_stages, int) and input_stages < 1:
            raise PipelineError(
                what=f"PipelineSpec.streaming(input_stages={input_stages}): a ring needs at least one stage",
                where="PipelineSpec.streaming",
                why="`load` fills input stages, and without one there is nothing to stream through",
                fix="input_stages=2 or more; PipelineSpec.plain() for an op without `load`",
            )
        pages = 1 if scratch_bytes is None else 0
        return cls(input_stages, output_stages, stage_pages, page_bytes, pages, scratch_bytes, elastic, copied_bytes)

    @classmethod
    def plain(cls, *, pages: int = 1, page_bytes: int = 16 * 1024) -> PipelineSpec:
        """Scratch pages for `compute`, and no ring."""
        return cls(0, 0, 1, page_bytes, resident_pages=pages)

    def __post_init__(self) -> None:
        for field, least in (
            ("input_stages", 0),
            ("output_stages", 0),
            ("stage_pages", 1),
            ("resident_pages", 0),
            ("page_bytes", MIN_PAGE_BYTES),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PipelineError(
                    what=f"PipelineSpec: {field}={value!r}",
                    where="PipelineSpec",
                    why=f"{field} is an integer of at least {least}",
                    fix=f"{field}={least} or more",
                )
        if self.page_bytes & (self.page_bytes - 1):
            below = 1 << (self.page_bytes.bit_length() - 1)
            raise PipelineError(
                what=f"PipelineSpec: page_bytes={self.page_bytes} is no power of two",
                where="PipelineSpec",
                why="pages are aligned to the swizzle pattern of TMA, and the pages of all ops form one ring",
                fix=f"page_bytes={below} or page_bytes={2 * below}",
            )
        copied = self.copied_bytes
        if copied is not None and not (type(copied) is int and 0 < copied <= self.stage_bytes):
            raise PipelineError(
                what=f"PipelineSpec: copied_bytes={copied!r}, a stage has {self.stage_bytes} bytes",
                where="PipelineSpec",
                why="load copies into a stage what fits there",
                fix="leave it out for a full stage",
            )
        scratch = self.scratch_bytes
        if scratch is not None and (isinstance(scratch, bool) or not isinstance(scratch, int) or scratch < 0):
            raise PipelineError(
                what=f"PipelineSpec: scratch_bytes={scratch!r}",
                where="PipelineSpec",
                why="scratch_bytes is a number of bytes, or None for whole pages",
                fix="scratch_bytes=1024",
            )
        if self.output_stages > self.input_stages:
            raise PipelineError(
                what=f"PipelineSpec: {self.output_stages} output stages, {self.input_stages} input stages",
                where="PipelineSpec",
                why="an output stage borrows the pages of an input stage that compute has released",
                fix=f"output_stages={self.input_stages} or less, or more input_stages",
            )

    @property
    def is_streaming(self) -> bool:
        """Whether there is a ring."""
        return self.input_stages > 0

    @property
    def copied_per_page(self) -> int:
        """Bytes that `load` copies for each page of a stage, on average."""
        return self.page_bytes if self.copied_bytes is None else max(1, self.copied_bytes // self.stage_pages)

    @property
    def least_pages(self) -> int:
        """Ring pages without which the op does not run."""
        stages = min(self.input_stages, ELASTIC_STAGES) if self.elastic else self.input_stages
        return stages * self.stage_pages

    @property
    def resident_bytes(self) -> int:
        """Bytes behind `page_ptr`."""
        return self.resident_pages * self.page_bytes if self.scratch_bytes is None else self.scratch_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes in one stage."""
        return self.stage_pages * self.page_bytes

    @property
    def pages(self) -> int:
        """All pages of the op: resident ones and input stages; output stages borrow from those."""
        return self.resident_pages + self.input_stages * self.stage_pages
