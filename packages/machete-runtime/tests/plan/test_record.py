"""Records: the bytes in which device code finds an op's data."""

from __future__ import annotations

import struct

import torch

from machete.megakernel.abi import Op, Target, TmaBox
from machete.megakernel.plan import Plan


class MixOp(Op):
    reads = {"x": (None, ("B", "M", "K")), "w": (None, ("K",))}
    writes = {"y": (None, ("M", "K"))}
    tile = ("M",)
    scalars = {"scale": torch.float32, "position": torch.int32, "seed": torch.int64}

    @classmethod
    def descriptors(cls, op):
        return {"x": TmaBox((1, 8, 8))}

    def compute(self, x, w, y, scale, position, seed, tile_M): ...


def mix(**changes):
    arguments = {
        "x": torch.zeros(2, 10, 8),
        "w": torch.zeros(16)[::2],
        "y": torch.zeros(10, 8),
        "scale": 0.5,
        "position": -3,
        "seed": 2**40,
        **changes,
    }
    return MixOp._schedule_single(tile_sizes={"M": 4}, **arguments)


def record_of(op):
    return Plan.build([op], Target.named("sm_90a"), 2).kinds[0].record


def test_every_field_has_its_place():
    record = record_of(mix())
    names = [name for name, _ in record.fields]
    assert names == [
        *("extent_B", "extent_M", "extent_K", "tiles_M"),
        *("ptr_x", "stride_x_0", "stride_x_1", "tma_x"),  # innermost stride 1: a constant in code
        *("ptr_w", "stride_w_0"),
        *("ptr_y", "stride_y_0"),
        *("scalar_scale", "scalar_position", "scalar_seed"),
    ]
    assert [record.offset(name) for name in names] == [8 * i for i in range(len(names))]
    assert record.size == 128
    assert record.size % 16 == 0


def test_packed_values_are_read_back_from_their_offsets():
    op = mix()
    record = record_of(op)
    values = record.values(op, {"x": 0x7F00_0000_0040})
    packed = record.pack(values)
    assert len(packed) == record.size
    read = {name: struct.unpack_from("<" + format_, packed, record.offset(name))[0] for name, format_ in record.fields}
    assert read == values
    assert read["ptr_x"] == op.tensors["x"].data_ptr()
    assert (read["extent_B"], read["extent_M"], read["extent_K"], read["tiles_M"]) == (2, 10, 8, 3)
    assert (read["stride_x_0"], read["stride_x_1"], read["stride_w_0"], read["stride_y_0"]) == (80, 8, 2, 8)
    assert (read["scalar_scale"], read["scalar_position"], read["scalar_seed"]) == (0.5, -3, 2**40)
    assert read["tma_x"] == 0x7F00_0000_0040
