"""Right declarations, and what scheduling makes of right arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from machete.megakernel.abi import Op, PipelineSpec, Target, TmaBox
from machete.megakernel.abi.declaration import TensorDeclaration


class ScaleOp(Op):
    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y, tile_n=256):
        return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y)]

    def compute(self, page_ptr, tile_N, x, y): ...


class MatrixOp(Op):
    """Streams x, adds a in place, scaled."""

    reads = {"x": (None, ("M", "K")), "a": (torch.float32, ("M",))}
    writes = {"a": (torch.float32, ("M",)), "y": (torch.float32, ("M", "K"))}
    tile = ("M", "K")
    scalars = {"scale": torch.float32, "step": torch.int64}
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2)

    @classmethod
    def descriptors(cls, op):
        return {"x": TmaBox((op.tile_sizes["M"], op.tile_sizes["K"]))}

    def load(self, ring, tma_x, tile_M, tile_K): ...
    def compute(self, ring, a, scale, step): ...
    def store(self, ring, y, tile_M, tile_K): ...


def matrix(m: int = 100, k: int = 64, **changes):
    arguments = {"x": torch.zeros(m, k), "a": torch.zeros(m), "y": torch.zeros(m, k), "scale": 2, "step": 7, **changes}
    return MatrixOp._schedule_single(tile_sizes={"M": 32, "K": 32}, config={"b": 1, "a": "fast"}, **arguments)


def test_the_declaration_says_what_the_class_says():
    declaration = MatrixOp.declaration
    assert declaration.name == "MatrixOp"
    assert dict(declaration.tensors) == {
        "x": TensorDeclaration("x", None, ("M", "K"), is_read=True, is_written=False),
        "a": TensorDeclaration("a", torch.float32, ("M",), is_read=True, is_written=True),
        "y": TensorDeclaration("y", torch.float32, ("M", "K"), is_read=False, is_written=True),
    }
    assert (declaration.reads, declaration.writes) == (("x", "a"), ("a", "y"))
    assert declaration.dims == ("M", "K")
    assert dict(declaration.phases) == {
        "load": ("ring", "tma_x", "tile_M", "tile_K"),
        "compute": ("ring", "a", "scale", "step"),
        "store": ("ring", "y", "tile_M", "tile_K"),
    }
    assert declaration.named_by("load") == ("x",)
    assert declaration.named_by("store") == ("y",)
    assert declaration.signals_per_range == 2
    assert ScaleOp.declaration.signals_per_range == 1


def test_a_scheduled_op_holds_its_arguments():
    op = matrix()
    assert op.extents == {"M": 100, "K": 64}
    assert op.tiles == (4, 2)
    assert op.num_tiles == 8
    assert op.scalars == {"scale": 2.0, "step": 7}
    assert list(op.config.items()) == [("a", "fast"), ("b", 1)], "config is sorted: its order means nothing"
    assert op.boxes == {"x": TmaBox((32, 32))}
    assert op.device == torch.device("cpu")
    assert str(op) == "MatrixOp(x: float32[100, 64], a: float32[100], y: float32[100, 64])"
    assert op.pipeline == MatrixOp.pipeline


@pytest.mark.parametrize(
    ("extent", "tile_n", "tiles"), [(1024, 256, 4), (1025, 256, 5), (1, 256, 1), (0, 256, 0), (7, np.int64(2), 4)]
)
def test_the_last_tile_may_be_ragged(extent, tile_n, tiles):
    (op,) = ScaleOp.schedule(x=torch.zeros(extent), y=torch.zeros(extent), tile_n=tile_n)
    assert op.num_tiles == tiles


def test_an_untiled_op_has_one_tile():
    class Fill(Op):
        writes = {"y": (None, ())}

        def compute(self, y): ...

    op = Fill._schedule_single(y=torch.zeros(()))
    assert (op.tiles, op.num_tiles, op.extents) == ((), 1, {})


def test_elementwise_updates_in_place_are_one_view():
    x = torch.zeros(8)
    (op,) = ScaleOp.schedule(x=x, y=x)
    assert op.infos["x"].same_view(op.infos["y"])


def test_inputs_may_be_strided_expanded_or_the_same_tensor():
    ScaleOp.schedule(x=torch.zeros(16)[::2], y=torch.zeros(16)[1::2])
    ScaleOp.schedule(x=torch.zeros(1).expand(8), y=torch.zeros(8))
    base = torch.zeros(4, 128)
    matrix(m=4, x=base[:, :64], y=base[:, 64:], a=torch.zeros(4))


def test_outputs_that_autograd_knows_can_be_written_without_grad():
    leaf = torch.zeros(8, requires_grad=True)
    with torch.no_grad():
        ScaleOp.schedule(x=torch.zeros(8), y=leaf)
    ScaleOp.schedule(x=leaf, y=leaf * 1.0)


def test_a_base_declares_nothing_and_its_children_share_its_phases():
    class Base(Op, abstract=True):
        tile = ("N",)

        def compute(self, tile_N, x, y): ...

    class Child(Base):
        reads = {"x": (None, ("N",))}
        writes = {"y": (None, ("N",))}

    assert "declaration" not in vars(Base)
    assert Child.declaration.phases["compute"] == ("tile_N", "x", "y")


def test_a_public_op_is_lowered_to_an_implementation():
    class Front(Op):
        reads = {"x": (None, ("N",))}
        writes = {"y": (None, ("N",))}
        tile = ("N",)

        @classmethod
        def lower(cls, target, op):
            super().lower(target, op)
            implementation = Narrow if target.name == "sm_120a" else ScaleOp
            return implementation.schedule(**op.tensors)[0]

    class Narrow(ScaleOp):
        targets = ("sm_120a",)

    op = Front._schedule_single(tile_sizes={"N": 4}, x=torch.zeros(8), y=torch.zeros(8))
    assert Front.lower(Target.named("sm_90a"), op).op is ScaleOp
    assert Front.lower(Target.named("sm_120a"), op).op is Narrow
