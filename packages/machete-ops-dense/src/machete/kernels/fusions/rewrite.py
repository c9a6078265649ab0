"""A list of ops as fewer ops with prologues and epilogues.

Each rule looks at one value: an op writes it, exactly one op reads it, and nobody misses it if it is never stored. Both
ops become a `GemmOp` in the place of the reader. What that matters for is memory as the ops declare it, so views,
slices, buffers that are used again and updates in place are seen for what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from machete.kernels.elementwise import AddOp
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Fusion, ScheduledOp
from machete.megakernel.errors import ScheduleError

from .epilogues import ResidualAdd
from .glu import GluPair
from .liveness import Info, Temporaries, reads, same_elements, sole_reader, unchanged
from .norm import RmsNormOnLoad


def fuse(ops: Sequence[ScheduledOp], *, temporaries: Sequence[torch.Tensor] = ()) -> list[ScheduledOp]:
    """The same results from fewer ops.

    - `RMSNormOp`, then `GemmOp` on its result: a `GemmOp` with `RmsNormOnLoad`.
    - `GemmOp`, then `GluOp` on two column ranges of its result (or two products of one operand, then `GluOp` on both):
      a `GemmOp` with `GluPair`.
    - `GemmOp`, then `AddOp` on its result: a `GemmOp` with `ResidualAdd`.

    The first two need few rows, as `GemmOp` does for these fusions. Intermediate results keep float32 where they were
    rounded before.

    Args:
        ops: scheduled ops, of any kinds, in the order in which they run.
        temporaries: tensors whose contents nobody needs afterwards, or contiguous tensors that such lie in. A result
            that is no temporary, and that no later op overwrites, is still written.
    """
    ops, scratch = list(ops), Temporaries(temporaries)
    index = 0
    while index < len(ops):
        if any(rule(ops, index, scratch) for rule in (_norm_on_load, _glu_of_one, _glu_of_two, _residual_add)):
            index = 0  # the new op may be fused again
        else:
            index += 1
    return ops


def _norm_on_load(ops: list[ScheduledOp], index: int, scratch: Temporaries) -> bool:
    norm = ops[index]
    last = _reader(ops, index, RMSNormOp, "y", GemmOp, scratch)
    if last is None or _reading(ops[last], norm.infos["y"]) != ["a"]:
        return False
    if not same_elements(ops[last].infos["a"], norm.infos["y"]) or not _stays(ops, index, last):
        return False
    if _fusions(ops[last])["prologue"]:
        return False
    prologue = RmsNormOnLoad(norm.tensors["weight"], norm.config["eps"])
    return _replaced(ops, [index], last, ops[last], a=norm.tensors["x"], prologue=prologue)


def _glu_of_one(ops: list[ScheduledOp], index: int, scratch: Temporaries) -> bool:
    product = ops[index]
    last = _reader(ops, index, GemmOp, "c", GluOp, scratch)
    if last is None or _reading(ops[last], product.infos["c"]) != ["gate", "up"]:
        return False
    if not _is_plain(product) or not _stays(ops, index, last):
        return False
    result, glu = product.infos["c"], ops[last]
    columns = [_columns(result, glu.infos[name]) for name in ("gate", "up")]
    if None in columns:
        return False
    gate, up = (product.tensors["b"][0, first : first + glu.extents["F"]] for first in columns if first is not None)
    return _replaced(
        ops, [index], last, product, b=gate, c=glu.tensors["y"], combine=GluPair(up, glu.config["activation"])
    )


def _glu_of_two(ops: list[ScheduledOp], index: int, scratch: Temporaries) -> bool:
    last = _reader(ops, index, GemmOp, "c", GluOp, scratch)
    if last is None:
        return False
    glu, products = ops[last], {}
    for position in range(last):
        if _reader(ops, position, GemmOp, "c", GluOp, scratch) == last and _is_plain(ops[position]):
            for name in _reading(glu, ops[position].infos["c"]):
                if same_elements(ops[position].infos["c"], glu.infos[name]) and _stays(ops, position, last):
                    products[name] = position
    if set(products) != {"gate", "up"} or products["gate"] == products["up"]:
        return False
    gate, up = (ops[products[name]] for name in ("gate", "up"))
    if not same_elements(gate.infos["a"], up.infos["a"]) or not _same_prologue(gate, up):
        return False
    combine = GluPair(up.tensors["b"], glu.config["activation"])
    return _replaced(ops, list(products.values()), last, gate, c=glu.tensors["y"], combine=combine)


def _residual_add(ops: list[ScheduledOp], index: int, scratch: Temporaries) -> bool:
    product = ops[index]
    last = _reader(ops, index, GemmOp, "c", AddOp, scratch)
    if last is None or product.extents["B"] != 1 or not _stays(ops, index, last):
        return False
    addition, names = ops[last], _reading(ops[last], product.infos["c"])
    if len(names) != 1 or not same_elements(addition.infos[names[0]], product.infos["c"]):
        return False
    (residual,) = {"a", "b"} - set(names)
    epilogue = ResidualAdd(addition.tensors[residual])
    return _replaced(ops, [index], last, product, c=addition.tensors["y"], epilogue=epilogue)


def _reader(
    ops: list[ScheduledOp],
    index: int,
    writer: type,
    name: str,
    reader: type,
    scratch: Temporaries,
) -> int | None:
    """Position of the op that alone needs result `name` of op `index`, if the two are of these classes."""
    if not issubclass(ops[index].op, writer):
        return None
    last = sole_reader(ops, index, name, scratch)
    return last if last is not None and issubclass(ops[last].op, reader) else None


def _reading(op: ScheduledOp, value: Info) -> list[str]:
    """Names of the tensors through which the op reads some of the value."""
    return [name for name, info in reads(op) if info.overlaps(value)]


def _stays(ops: list[ScheduledOp], index: int, last: int) -> bool:
    """Whether op `index` would read the same in the place of op `last`."""
    return unchanged(ops, index, last, (info for _, info in reads(ops[index])))


def _is_plain(product: ScheduledOp) -> bool:
    """Whether the product has no fusions but prologues."""
    return all(slot == "prologue" for slot, _, _ in product.op.fusion_types)


def _same_prologue(one: ScheduledOp, other: ScheduledOp) -> bool:
    names = [name for name in one.infos if name.startswith("prologue")]
    return (
        one.op.fusion_types == other.op.fusion_types
        and dict(one.config) == dict(other.config)
        and all(same_elements(one.infos[name], other.infos[name]) for name in names)
    )


def _columns(whole: Info, part: Info) -> int | None:
    """The first of the columns of `whole` (1, M, N) that `part` (M, F) is, or None if it is no such range."""
    offset, rest = divmod(part.address - whole.address, whole.itemsize)
    step, extent = whole.strides[-1], part.shape[-1]
    if rest or part.dtype != whole.dtype or whole.shape[0] != 1 or part.shape[0] != whole.shape[1]:
        return None
    if (extent > 1 and part.strides[-1] != step) or (part.shape[0] > 1 and part.strides[0] != whole.strides[1]):
        return None
    first, rest = divmod(offset, step) if step else (0, 1)
    return first if not rest and 0 <= first <= whole.shape[-1] - extent else None


def _fusions(op: ScheduledOp) -> dict[str, list[Fusion]]:
    """The fusions that the op was scheduled with."""
    found: dict[str, list[Fusion]] = {slot: [] for slot in GemmOp.fusions}
    for slot, position, kind in op.op.fusion_types:
        name = f"{slot}{position}"
        fusion = object.__new__(kind)
        config = {key.removeprefix(f"{name}."): value for key, value in op.config.items() if key.startswith(f"{name}.")}
        tensors = {tensor: op.tensors[f"{name}_{tensor}"] for tensor in kind.reads}
        Fusion.__init__(fusion, config=config, **tensors)
        found[slot].append(fusion)
    return found


def _replaced(
    ops: list[ScheduledOp],
    removed: Sequence[int],
    last: int,
    product: ScheduledOp,
    *,
    prologue: Fusion | None = None,
    combine: Fusion | None = None,
    epilogue: Fusion | None = None,
    **tensors: torch.Tensor,
) -> bool:
    """Put `product` with one more fusion and other tensors in the place of op `last`, if `GemmOp` takes it."""
    fusions = _fusions(product)
    for slot, fusion in (("prologue", prologue), ("combine", combine), ("epilogue", epilogue)):
        fusions[slot] += [fusion] if fusion is not None else []
    operands = {name: tensors.get(name, product.tensors[name]) for name in ("a", "b", "c")}
    operands = {name: tensor if tensor.ndim == 3 else tensor[None] for name, tensor in operands.items()}
    try:
        (candidate,) = GemmOp.schedule(
            a=operands["a"],
            b=operands["b"],
            c=operands["c"],
            prologue=next(iter(fusions["prologue"]), None),
            combine=next(iter(fusions["combine"]), None),
            epilogue=fusions["epilogue"],
            tile_n=product.tile_sizes["N"],
            slices=product.config.get("slices"),
            fast_accumulation=product.config.get("fast_accumulation", False),
        )
    except ScheduleError:  # such as a result that overlaps what the fused op would still read
        return False
    if (fusions["prologue"] or fusions["combine"]) and not GemmOp.takes_whole_rows(candidate):
        return False
    ops[last] = candidate
    for index in sorted(removed, reverse=True):
        del ops[index]
    return True
