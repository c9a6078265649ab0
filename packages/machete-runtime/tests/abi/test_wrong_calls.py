"""What users do wrong, and what they are told. One table; every message says what, where, why and how to fix it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from machete.megakernel.abi import (
    TARGETS,
    AbiMismatchError,
    AlignmentError,
    ConfigError,
    DeviceError,
    DtypeError,
    ExtentError,
    MacheteError,
    MissingTensorError,
    Op,
    OpDefinitionError,
    OverlapError,
    PipelineError,
    PipelineSpec,
    PlanError,
    ScalarError,
    ScheduleError,
    ShapeMismatchError,
    StrideError,
    Target,
    TargetError,
    TensorInfo,
    TensorTypeError,
    TileSizeError,
    TmaBox,
    UnknownArgumentError,
)
from machete.megakernel.plan import Plan

VECTOR = (None, ("N",))
RING = PipelineSpec.streaming(input_stages=3, output_stages=3, stage_pages=4, page_bytes=16 * 1024)


class ScaleOp(Op):
    reads = {"x": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y, tile_n=256):
        return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y)]

    def compute(self, page_ptr, tile_N, x, y): ...


class HopperOp(ScaleOp):
    targets = ("sm_90a",)


class AxpyOp(Op):
    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",)), "z": (torch.float32, ("N",))}
    scalars = {"a": torch.float32, "n": torch.int32}

    def compute(self, x, y, z, a, n): ...


class StreamingOp(Op):
    reads = {"x": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M",)
    pipeline = RING

    def load(self, ring, x, tile_M): ...
    def compute(self, ring): ...
    def store(self, ring, y, tile_M): ...


class SmallPagesOp(StreamingOp):
    pipeline = PipelineSpec.streaming(input_stages=2, output_stages=1, page_bytes=4096)


class TmaOp(Op):
    reads = {"x": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M",)
    pipeline = PipelineSpec.streaming(input_stages=2)

    def load(self, ring, tma_x, tile_M): ...
    def compute(self, ring, y, tile_M): ...


class InnerTmaOp(TmaOp):
    @classmethod
    def descriptors(cls, op):
        return {"x": TmaBox((8, op.config["columns"]), swizzle=128)}


class FillOp(Op):
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")

    def compute(self, y, tile_M, tile_N): ...


class Unscheduled(Op):
    writes = {"y": VECTOR}

    def compute(self, y): ...


class Base(Op, abstract=True):
    reads = {"x": VECTOR}


class FrontOp(Op):
    writes = {"y": VECTOR}

    @classmethod
    def lower(cls, target, op):
        return op


def f32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def fake(device: str) -> torch.Tensor:
    """A tensor that says it is on `device`, on a machine that may not have it (torch would ask the driver)."""
    with FakeTensorMode():
        tensor: Any = torch.empty(8)
    tensor.fake_device = torch.device(device)
    return tensor


def freed() -> torch.Tensor:
    tensor = f32(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def define(**attributes: Any) -> type[Op]:
    """A class that copies x to y in one tile, but for these attributes."""
    return type("BadOp", (Op,), {"reads": {"x": VECTOR}, "writes": {"y": VECTOR}, **attributes})


def product(**changes: Any) -> type[Op]:
    """A class with a `multiply` phase, but for these attributes."""
    return define(
        **{
            "targets": ("sm_100a",),
            "pipeline": PipelineSpec.streaming(input_stages=2),
            "load": lambda self, ring, x: None,
            "multiply": lambda self, ring, accumulators: None,
            "compute": lambda self, accumulators, y: None,
            **changes,
        }
    )


def axpy(**changes: Any) -> Any:
    arguments = {"x": f32(8), "y": f32(8), "z": f32(8), "a": 2.0, "n": 3, **changes}
    return AxpyOp._schedule_single(**{name: value for name, value in arguments.items() if value is not None})


def tiled(**sizes: Any) -> Any:
    return ScaleOp._schedule_single(tile_sizes=sizes, x=f32(8), y=f32(8))


def stream(x: torch.Tensor, y: torch.Tensor | None = None, op: type[Op] = StreamingOp) -> Any:
    return op._schedule_single(tile_sizes={"M": 1}, x=x, y=torch.zeros_like(x) if y is None else y)


def plan(*ops: Any, target: str = "sm_90a", num_sms: int = 4) -> Plan:
    return Plan.build(ops, Target.named(target), num_sms)


def on_device(op: Any, device: str) -> Any:
    infos = {name: dataclasses.replace(info, device=torch.device(device)) for name, info in op.infos.items()}
    return dataclasses.replace(op, infos=infos)


def scale(**changes: Any) -> Any:
    return ScaleOp.schedule(**{"x": f32(8), "y": f32(8), **changes})[0]


def odd_float32() -> torch.Tensor:
    return torch.frombuffer(bytearray(33), dtype=torch.float32, count=8, offset=1)


def requires_grad() -> torch.Tensor:
    return f32(8).requires_grad_()


# (what is wrong, how, type, what the message says)
Wrong = tuple[str, Callable[[], Any], type[MacheteError], tuple[str, ...]]

DEFINITIONS: list[Wrong] = [
    (
        "compute parameter that names nothing",
        lambda: define(compute=lambda self, xs, y: None),
        OpDefinitionError,
        (
            "BadOp: `compute` has a parameter `xs` that names nothing (did you mean `x`?)",
            "available to `compute`: x, y,",
        ),
    ),
    (
        "tile index of an untiled dim",
        lambda: define(compute=lambda self, y, tile_N: None),
        OpDefinitionError,
        ("`tile_N` that names nothing", "available to `compute`"),
    ),
    (
        "ring without a pipeline",
        lambda: define(compute=lambda self, ring, y: None),
        OpDefinitionError,
        ("`ring` that names nothing", "PipelineSpec.streaming(…) brings `ring`"),
    ),
    (
        "page_ptr in load",
        lambda: define(pipeline=RING, compute=lambda self, ring: None, load=lambda self, ring, page_ptr: None),
        OpDefinitionError,
        ("`load` has a parameter `page_ptr`", "tma_x, ring"),
    ),
    (
        "load of a tensor that is only written",
        lambda: define(pipeline=RING, compute=lambda self, ring: None, load=lambda self, ring, tma_y: None),
        OpDefinitionError,
        ("`load` has a parameter `tma_y`", "the op only writes it; declare it in reads"),
    ),
    (
        "*args in compute",
        lambda: define(compute=lambda self, *args: None),
        OpDefinitionError,
        ("`compute` takes *args", "bound by name"),
    ),
    (
        "**kwargs in compute",
        lambda: define(compute=lambda self, **kwargs: None),
        OpDefinitionError,
        ("`compute` takes **kwargs", "name what it uses"),
    ),
    (
        "default in compute",
        lambda: define(compute=lambda self, y, x=None: None),
        OpDefinitionError,
        ("a default for `x`", "binds every parameter"),
    ),
    (
        "positional-only parameter",
        lambda: define(compute=lambda self, y, /: None),
        OpDefinitionError,
        ("`y` by position only", "remove the `/`"),
    ),
    (
        "static phase",
        lambda: define(compute=staticmethod(lambda x, y: None)),
        OpDefinitionError,
        ("`compute` is no method", "def compute(self"),
    ),
    (
        "phase without self",
        lambda: define(compute=lambda: None),
        OpDefinitionError,
        ("`compute` has no `self`",),
    ),
    (
        "no compute",
        lambda: define(),
        OpDefinitionError,
        ("BadOp: no `compute` (phases: none)", "abstract=True"),
    ),
    (
        "load without a streaming pipeline",
        lambda: define(compute=lambda self, y: None, load=lambda self, x: None),
        OpDefinitionError,
        ("`load` without a streaming pipeline", "PipelineSpec.streaming(input_stages=3)"),
    ),
    (
        "store without output stages",
        lambda: define(
            pipeline=PipelineSpec.streaming(input_stages=2),
            compute=lambda self, ring: None,
            store=lambda self, ring, y: None,
        ),
        OpDefinitionError,
        ("`store` without output stages", "output_stages=2"),
    ),
    (
        "multiply without tensor memory",
        lambda: product(targets=tuple(TARGETS)),
        OpDefinitionError,
        ("`multiply` on sm_90a, sm_120a", "targets = ('sm_100a',)"),
    ),
    (
        "multiply of nothing",
        lambda: product(load=lambda self, x: None),
        OpDefinitionError,
        ("`multiply`, but `load` does not take `ring`", "the stages that `load` fills"),
    ),
    (
        "multiply into nothing",
        lambda: product(multiply=lambda self, ring: None),
        OpDefinitionError,
        ("`multiply`, but `multiply` does not take `accumulators`", "def multiply(self, accumulators, …)"),
    ),
    (
        "sums that nobody takes",
        lambda: product(compute=lambda self, y: None),
        OpDefinitionError,
        ("`compute` does not take `accumulators`", "free the accumulator"),
    ),
    (
        "two phases for one ring",
        lambda: product(compute=lambda self, ring, accumulators, y: None),
        OpDefinitionError,
        ("both `multiply` and `compute` take `ring`", "def compute(self, accumulators, …)"),
    ),
    (
        "a tensor in multiply",
        lambda: product(multiply=lambda self, ring, accumulators, x: None),
        OpDefinitionError,
        ("`multiply` has a parameter `x` that names nothing", "accumulators"),
    ),
    (
        "accumulators without multiply",
        lambda: define(compute=lambda self, accumulators, y: None),
        OpDefinitionError,
        ("`compute` has a parameter `accumulators` that names nothing",),
    ),
    ("inner dim of a box", lambda: TmaBox((8, 64), inner=2), OpDefinitionError, ("inner=2", "0 to 1")),
    (
        "inner extent of a transposed box",
        lambda: TmaBox((5, 64), inner=0).check(TensorInfo.of("x", torch.zeros(64, 8).T), "op"),
        OpDefinitionError,
        ("innermost extent 5 of float32 is 20 bytes", "inner=0"),
    ),
    (
        "pipeline that is none",
        lambda: define(compute=lambda self, y: None, pipeline=13),
        OpDefinitionError,
        ("pipeline=13", "PipelineSpec.plain()"),
    ),
    (
        "nothing written",
        lambda: define(writes={}, compute=lambda self, x: None),
        OpDefinitionError,
        ("writes is empty", "declare its outputs"),
    ),
    (
        "unknown dim tiled by the class",
        lambda: define(tile=("M",), compute=lambda self, y: None),
        OpDefinitionError,
        ("tile names dim 'M', which no tensor has", "dims of this op: N"),
    ),
    (
        "dim tiled twice",
        lambda: define(tile=("N", "N"), compute=lambda self, y: None),
        OpDefinitionError,
        ("tile names dim 'N' twice",),
    ),
    (
        "tile is a string",
        lambda: define(tile="N", compute=lambda self, y: None),
        OpDefinitionError,
        ("tile is 'N'", "tile = ('N',)"),
    ),
    (
        "dims is a string",
        lambda: define(reads={"x": (None, "N")}, compute=lambda self, y: None),
        OpDefinitionError,
        ("reads['x'] has dims 'N'", "('N',)"),
    ),
    (
        "dim that is no identifier",
        lambda: define(reads={"x": (None, ("N/2",))}, compute=lambda self, y: None),
        OpDefinitionError,
        ("reads['x'] has dim 'N/2'", "self.<dim>"),
    ),
    (
        "six dims",
        lambda: define(writes={"y": (None, tuple("ABCDEF"))}, compute=lambda self, y: None),
        OpDefinitionError,
        ("writes['y'] has 6 dims", "0 to 5"),
    ),
    (
        "dtype that device code does not know",
        lambda: define(reads={"x": (torch.complex64, ("N",))}, compute=lambda self, y: None),
        OpDefinitionError,
        ("reads['x'] has dtype torch.complex64", "torch.bfloat16"),
    ),
    (
        "entry without dtype",
        lambda: define(reads={"x": ("N",)}, compute=lambda self, y: None),
        OpDefinitionError,
        ("reads['x'] is ('N',)", "(dtype or None, dims)"),
    ),
    (
        "reads is a list",
        lambda: define(reads=["x"], compute=lambda self, y: None),
        OpDefinitionError,
        ("reads is ['x']", "maps tensor names"),
    ),
    (
        "tensor name that is a keyword",
        lambda: define(reads={"in": VECTOR}, compute=lambda self, y: None),
        OpDefinitionError,
        ("reads['in']: no identifier",),
    ),
    (
        "in-place tensor declared differently",
        lambda: define(reads={"y": (torch.float32, ("N",))}, compute=lambda self, y: None),
        OpDefinitionError,
        ("`y` is (torch.float32, ('N',)) in reads but (None, ('N',)) in writes", "in place"),
    ),
    (
        "reserved attribute: a dim",
        lambda: define(N=128, compute=lambda self, y: None),
        OpDefinitionError,
        ("attribute `N`", "self.N is the extent of dim N"),
    ),
    (
        "reserved attribute: a tile size",
        lambda: define(tile=("N",), tile_size_N=128, compute=lambda self, y: None),
        OpDefinitionError,
        ("attribute `tile_size_N`", "the tile size of dim N"),
    ),
    (
        "reserved attribute: a dtype",
        lambda: define(x_dtype=torch.float32, compute=lambda self, y: None),
        OpDefinitionError,
        ("attribute `x_dtype`", "the dtype of `x`"),
    ),
    (
        "reserved attribute: threads",
        lambda: define(threads_per_row=256, compute=lambda self, y: None),
        OpDefinitionError,
        ("attribute `threads_per_row`", "number of compute threads"),
    ),
    (
        "dim named like a phase",
        lambda: define(reads={"x": (None, ("compute",))}, compute=lambda self, y: None),
        OpDefinitionError,
        ("attribute `compute`", "rename the attribute or the dim"),
    ),
    (
        "tensor named like what the framework binds",
        lambda: define(reads={"ring": VECTOR}, compute=lambda self, y: None),
        OpDefinitionError,
        ("an argument is called `ring`", "binds this name itself"),
    ),
    (
        "scalar named like a tensor",
        lambda: define(scalars={"x": torch.float32}, compute=lambda self, y: None),
        OpDefinitionError,
        ("scalars['x']: also a tensor",),
    ),
    (
        "scalar of 64-bit float",
        lambda: define(scalars={"a": torch.float64}, compute=lambda self, y: None),
        OpDefinitionError,
        ("scalars['a'] has dtype torch.float64", "torch.float32, torch.int32, torch.int64"),
    ),
    (
        "unknown target claimed",
        lambda: define(targets=("sm_90",), compute=lambda self, y: None),
        OpDefinitionError,
        ("targets names 'sm_90' (did you mean `sm_90a`?)",),
    ),
    (
        "no target at all",
        lambda: define(targets=(), compute=lambda self, y: None),
        OpDefinitionError,
        ("targets is ()", "some of: sm_90a"),
    ),
    (
        "an argument of Megakernel.run",
        lambda: define(reads={"sync": VECTOR}, compute=lambda self, y: None),
        OpDefinitionError,
        ("an argument is called `sync`", "rename it"),
    ),
    (
        "fusions that are a list",
        lambda: define(fusions=["epilogue"], compute=lambda self, y: None),
        OpDefinitionError,
        ("fusions is ['epilogue']", "maps slots to dims"),
    ),
    (
        "a fusion of an unknown dim",
        lambda: define(fusions={"epilogue": {"rows": "Q"}}, compute=lambda self, y: None),
        OpDefinitionError,
        ("fusions['epilogue']['rows'] is dim 'Q', which no tensor has", "dims: N"),
    ),
    (
        "early names nothing",
        lambda: define(early=("w",), compute=lambda self, y: None),
        OpDefinitionError,
        ("early names 'w'", "a tensor that the op reads"),
    ),
    (
        "early names a result",
        lambda: define(early=("y",), compute=lambda self, y: None),
        OpDefinitionError,
        ("early names 'y'",),
    ),
    (
        "ABI of the future",
        lambda: define(abi=(0, 99), compute=lambda self, y: None),
        AbiMismatchError,
        ("op BadOp needs Op ABI 0.99", "machete-runtime>=0.99,<1"),
    ),
    (
        "page_bytes no power of two",
        lambda: PipelineSpec.streaming(input_stages=2, page_bytes=12 * 1024),
        PipelineError,
        ("page_bytes=12288 is no power of two", "page_bytes=8192 or page_bytes=16384"),
    ),
    (
        "page_bytes too small",
        lambda: PipelineSpec.plain(page_bytes=512),
        PipelineError,
        ("page_bytes=512", "at least 1024"),
    ),
    (
        "negative scratch",
        lambda: PipelineSpec.streaming(input_stages=2, scratch_bytes=-1),
        PipelineError,
        ("scratch_bytes=-1", "None for whole pages"),
    ),
    (
        "no input stage",
        lambda: PipelineSpec.streaming(input_stages=0),
        PipelineError,
        ("input_stages=0", "PipelineSpec.plain()"),
    ),
    (
        "more output than input stages",
        lambda: PipelineSpec.streaming(input_stages=2, output_stages=3),
        PipelineError,
        ("3 output stages, 2 input stages", "borrows"),
    ),
    (
        "stage_pages is a float",
        lambda: PipelineSpec.streaming(input_stages=2, stage_pages=1.5),
        PipelineError,
        ("stage_pages=1.5", "an integer of at least 1"),
    ),
    (
        "TMA box too large",
        lambda: TmaBox((512, 64)),
        OpDefinitionError,
        ("extent 512", "from 1 to 256"),
    ),
    (
        "TMA box of six dims",
        lambda: TmaBox((1, 1, 1, 1, 1, 8)),
        OpDefinitionError,
        ("6 dims", "1 to 5 dims"),
    ),
    (
        "TMA swizzle that does not exist",
        lambda: TmaBox((8, 8), swizzle=256),
        OpDefinitionError,
        ("swizzle 256", "(0, 32, 64, 128)"),
    ),
]

CALLS: list[Wrong] = [
    (
        "mismatched shared dim",
        lambda: scale(y=f32(9)),
        ShapeMismatchError,
        ("dim N is 8 in x.shape[0] but 9 in y.shape[0]", "x: float32[8], y: float32[9]"),
    ),
    (
        "rank mismatch",
        lambda: scale(x=f32(8, 1)),
        ShapeMismatchError,
        ("`x` has rank 2 (shape (8, 1)), not 1", "its dims are (N)"),
    ),
    (
        "unknown tile dim",
        lambda: tiled(N=4, M=4),
        TileSizeError,
        ("tile size for unknown dim 'M'", "tiled dims: N"),
    ),
    (
        "tile size for an untiled dim",
        lambda: StreamingOp._schedule_single(tile_sizes={"M": 1, "N": 4}, x=f32(2, 4), y=f32(2, 4)),
        TileSizeError,
        ("tile size for untiled dim 'N'", "the op tiles M", "StreamingOp.tile"),
    ),
    ("missing tile size", lambda: tiled(), TileSizeError, ("no tile size for dim N",)),
    ("zero tile size", lambda: tiled(N=0), TileSizeError, ("tile size 0 for dim N", "positive int")),
    ("negative tile size", lambda: tiled(N=-256), TileSizeError, ("tile size -256 for dim N",)),
    ("float tile size", lambda: tiled(N=128.0), TileSizeError, ("tile size 128.0 for dim N",)),
    ("boolean tile size", lambda: tiled(N=True), TileSizeError, ("tile size True for dim N",)),
    (
        "wrong dtype",
        lambda: axpy(x=f32(8).half()),
        DtypeError,
        ("`x` is float16, not float32", "x.to(torch.float32)"),
    ),
    (
        "dtype that device code does not know",
        lambda: scale(x=torch.zeros(8, dtype=torch.complex64)),
        DtypeError,
        ("`x` is complex64", "bfloat16"),
    ),
    ("missing tensor", lambda: axpy(z=None), MissingTensorError, ("AxpyOp: missing tensor `z`", "pass z=…")),
    (
        "None for a tensor",
        lambda: scale(x=None),
        MissingTensorError,
        ("ScaleOp: missing tensor `x`", "it reads x and writes y"),
    ),
    (
        "unknown tensor",
        lambda: axpy(zz=f32(8)),
        UnknownArgumentError,
        ("AxpyOp has no argument `zz` (did you mean `z`?)", "x, y, z, a, n"),
    ),
    ("list for a tensor", lambda: scale(x=[1.0] * 8), TensorTypeError, ("`x` is a list", "torch.as_tensor")),
    (
        "sparse tensor",
        lambda: scale(x=f32(8).to_sparse()),
        TensorTypeError,
        ("`x` is sparse (torch.sparse_coo)", "x.to_dense()"),
    ),
    (
        "conjugated view",
        lambda: scale(x=torch.zeros(8, dtype=torch.complex64).conj()),
        TensorTypeError,
        ("lazily conjugated", "x.resolve_conj()"),
    ),
    (
        "negated view",
        lambda: scale(x=torch.zeros(8, dtype=torch.complex64).conj().imag),
        TensorTypeError,
        ("lazily negated", "x.resolve_neg()"),
    ),
    (
        "quantized tensor",
        lambda: scale(x=torch.quantize_per_tensor(f32(8), 0.1, 0, torch.qint8)),
        TensorTypeError,
        ("quantized", "x.dequantize()"),
    ),
    (
        "output that requires grad",
        lambda: scale(y=requires_grad()),
        TensorTypeError,
        ("output `y` is a leaf that requires grad", "y.detach()"),
    ),
    ("tensor without memory", lambda: scale(x=freed()), TensorTypeError, ("`x` has no memory",)),
    ("missing scalar", lambda: axpy(a=None), ScalarError, ("AxpyOp needs scalar `a`", "pass a=1.0")),
    (
        "tensor for a scalar",
        lambda: axpy(a=torch.tensor(2.0)),
        ScalarError,
        ("a=tensor(2.) is a Tensor", "tensors of rank 0"),
    ),
    ("float for an int scalar", lambda: axpy(n=3.0), ScalarError, ("n=3.0 is a float", "type int32")),
    ("bool for an int scalar", lambda: axpy(n=True), ScalarError, ("n=True is a bool",)),
    ("int scalar out of range", lambda: axpy(n=2**31), ScalarError, ("n=2147483648 does not fit int32",)),
    (
        "config that is not hashable",
        lambda: ScaleOp._schedule_single(tile_sizes={"N": 4}, config={"k": [1]}, x=f32(8), y=f32(8)),
        ConfigError,
        ("config['k'] is a list", "a tuple or a frozen dataclass"),
    ),
    (
        "config named like a dim",
        lambda: ScaleOp._schedule_single(tile_sizes={"N": 4}, config={"N": 1}, x=f32(8), y=f32(8)),
        ConfigError,
        ("config has the name 'N'", "attributes of `self`"),
    ),
    (
        "CPU and CUDA mixed",
        lambda: scale(y=fake("cuda:1")),
        DeviceError,
        ("`x` is on cpu, but `y` is on cuda:1", "y.to('cpu')"),
    ),
    (
        "two CUDA devices",
        lambda: scale(x=fake("cuda:0"), y=fake("cuda:1")),
        DeviceError,
        ("`x` is on cuda:0, but `y` is on cuda:1",),
    ),
    (
        "meta tensors",
        lambda: scale(x=torch.empty(8, device="meta")),
        DeviceError,
        ("`x` is on meta", "it has no memory"),
    ),
    (
        "extent too large",
        lambda: scale(x=f32(1).expand(2**31)),
        ExtentError,
        ("x.shape[0] is 2147483648", "signed 32-bit"),
    ),
    (
        "end of the last tile too large",
        lambda: ScaleOp.schedule(x=f32(1).expand(2**31 - 1), y=f32(1).expand(2**31 - 1), tile_n=1024),
        ExtentError,
        ("extent 2147483647 of dim N with tile size 1024",),
    ),
    (
        "too many tiles",
        lambda: FillOp._schedule_single(tile_sizes={"M": 1, "N": 1}, y=f32(1, 1).expand(2**16, 2**15)),
        ExtentError,
        ("2147483648 tiles", "larger tiles"),
    ),
    (
        "output overlapping itself: expanded",
        lambda: scale(y=f32(1).expand(8)),
        OverlapError,
        ("output `y` overlaps itself (strides (0,))", "torch.empty((8,))"),
    ),
    (
        "output overlapping itself: windows",
        lambda: stream(f32(2, 3), f32(8).as_strided((2, 3), (2, 1))),
        OverlapError,
        ("output `y` overlaps itself (strides (2, 1))",),
    ),
    (
        "input partially overlapping output",
        lambda: (lambda t: scale(x=t[:8], y=t[1:9]))(f32(9)),
        OverlapError,
        ("input `x` and output `y` overlap", "x.clone()"),
    ),
    (
        "in place, but transposed",
        lambda: (lambda t: stream(t, t.T))(f32(4, 4)),
        OverlapError,
        ("input `x` and output `y` overlap, but are not one view",),
    ),
    (
        "two outputs overlapping",
        lambda: (lambda t: axpy(y=t[:8], z=t[7:]))(f32(15)),
        OverlapError,
        ("outputs `y` and `z` overlap", "who writes last"),
    ),
    (
        "address between elements",
        lambda: scale(x=odd_float32()),
        AlignmentError,
        ("no multiple of 4", "x.clone()"),
    ),
    (
        "misaligned view",
        lambda: stream(f32(9)[1:].view(1, 8)),
        AlignmentError,
        ("`x` starts 4 bytes past a multiple of 16", "slice at a multiple of 4 elements"),
    ),
    (
        "misaligned rows",
        lambda: stream(f32(4, 7)),
        AlignmentError,
        ("stride 7 of `x` (axis 0) is 28 bytes", "rows of a multiple of 4 elements"),
    ),
    (
        "misaligned output",
        lambda: stream(f32(4, 8), f32(4, 12)[:, 1:9]),
        AlignmentError,
        ("`y` starts 4 bytes past a multiple of 16",),
    ),
    (
        "non-contiguous innermost dim",
        lambda: stream(f32(8, 4).T),
        StrideError,
        ("`x` has innermost stride 4, not 1", "x.contiguous()"),
    ),
    (
        "descriptor that does not exist",
        lambda: stream(f32(4, 8), op=TmaOp),
        OpDefinitionError,
        ("a phase takes `tma_x`, but descriptors() has no 'x'",),
    ),
    (
        "inner extent of a TMA box between units",
        lambda: InnerTmaOp._schedule_single(tile_sizes={"M": 8}, config={"columns": 6}, x=f32(8, 8), y=f32(8, 8)),
        OpDefinitionError,
        ("innermost extent 6 of float32 is 24 bytes", "multiple of 16 bytes"),
    ),
    (
        "inner extent of a TMA box wider than its swizzle",
        lambda: InnerTmaOp._schedule_single(tile_sizes={"M": 8}, config={"columns": 64}, x=f32(8, 64), y=f32(8, 64)),
        OpDefinitionError,
        ("is 256 bytes, more than the swizzle of 128", "box=(…, 32)"),
    ),
    ("op without schedule", lambda: Unscheduled.schedule(), OpDefinitionError, ("does not define `schedule`",)),
    (
        "abstract op scheduled",
        lambda: Base._schedule_single(x=f32(8)),
        OpDefinitionError,
        ("op Base is abstract", "derives from it"),
    ),
    (
        "unknown architecture",
        lambda: Target.named("sm_90"),
        TargetError,
        ("unknown architecture 'sm_90' (did you mean `sm_90a`?)", "sm_90a, sm_100a, sm_120a"),
    ),
    (
        "card that no target runs on",
        lambda: Target.of_capability((8, 0)),
        TargetError,
        ("no target for compute capability 8.0", "9.0 (sm_90a)", "simulator"),
    ),
    (
        "unsupported arch",
        lambda: HopperOp.lower(Target.named("sm_100a"), HopperOp.schedule(x=f32(8), y=f32(8))[0]),
        TargetError,
        ("HopperOp does not run on sm_100a", "HopperOp(x: float32[8], y: float32[8])", "arch='sm_90a'"),
    ),
    (
        "unsupported arch in a plan",
        lambda: plan(*HopperOp.schedule(x=f32(8), y=f32(8)), target="sm_120a"),
        TargetError,
        ("HopperOp does not run on sm_120a",),
    ),
    (
        "page ring too big",
        lambda: plan(stream(f32(4, 8)), target="sm_120a"),
        PipelineError,
        (
            "13 pages of 16384 bytes do not fit sm_120a",
            "101376 available",
            "what fits: input_stages=1 with output_stages=1 or stage_pages=1 or page_bytes=4096",
            "StreamingOp on sm_120a",
        ),
    ),
    (
        "mixed page sizes",
        lambda: plan(stream(f32(4, 8)), stream(f32(4, 8), op=SmallPagesOp)),
        PipelineError,
        ("16384 bytes", "4096 bytes", "SmallPagesOp", "form one ring"),
    ),
    (
        "two ops on different devices",
        lambda: plan(on_device(scale(), "cuda:0"), on_device(scale(), "cuda:1")),
        DeviceError,
        ("ops[0] (ScaleOp) is on cuda:0, but ops[1] (ScaleOp) is on cuda:1",),
    ),
    ("no ops", lambda: plan(), PlanError, ("no ops", "pass a list of ops")),
    (
        "list of lists of ops",
        lambda: plan(ScaleOp.schedule(x=f32(8), y=f32(8))),
        PlanError,
        ("ops[0] is a list, no ScheduledOp", "First.schedule(…) + Second.schedule(…)"),
    ),
    (
        "op that is not lowered",
        lambda: plan(FrontOp._schedule_single(y=f32(8))),
        PlanError,
        ("ops[0] (FrontOp) is not lowered",),
    ),
    ("no SMs", lambda: plan(scale(), num_sms=0), PlanError, ("num_sms=0",)),
]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize(
    ("wrong", "expected", "parts"),
    [pytest.param(*row[1:], id=row[0]) for row in DEFINITIONS + CALLS],
)
def test_wrong_definitions_and_calls_say_what_where_why_and_how_to_fix_it(wrong, expected, parts):
    with pytest.raises(MacheteError) as caught:
        wrong()
    error = caught.value
    assert type(error) is expected, str(error)
    message = str(error)
    for part in parts:
        assert part in message, message
    assert all((error.what, error.where, error.why, error.fix)), message
    assert error.what.splitlines() == [error.what], "one line says what is wrong"


def test_schedule_errors_are_builtin_exceptions_too():
    assert issubclass(ShapeMismatchError, ValueError)
    assert issubclass(DtypeError, TypeError)
    assert issubclass(MissingTensorError, TypeError)
    assert issubclass(ShapeMismatchError, ScheduleError)
