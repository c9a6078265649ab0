"""Op lists as torch ops: eager, fake and under torch.compile."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from machete.megakernel import RegisteredOp, register_op, temporary
from machete.megakernel.errors import UnknownArgumentError

_numbers = itertools.count()  # an op's name is taken for as long as the process lives


def scaled_sum(classes: SimpleNamespace, built: list[int]) -> RegisteredOp:
    """z = factor * x + y, through a temporary."""

    def build(x: Tensor, y: Tensor, z: Tensor, factor: float = 2.0):  # type: ignore[no-untyped-def]
        built.append(1)
        hidden = temporary(x.shape, x.dtype, x.device)
        return classes.Scale.schedule(x=x, y=hidden, factor=factor) + classes.Add.schedule(x=hidden, y=y, z=z)

    outputs: dict[str, Callable[..., Tensor]] = {"z": lambda x, y, factor: torch.empty_like(x)}
    return register_op(f"scaled_sum_{next(_numbers)}", build, outputs=outputs, scalars=["factor"])


@pytest.fixture
def built() -> list[int]:
    """One entry for each time that the builder was called."""
    return []


@pytest.fixture
def op(op_classes: SimpleNamespace, built: list[int]) -> RegisteredOp:
    return scaled_sum(op_classes, built)


def integers(*shape: int, device: str) -> Tensor:
    return torch.randint(-8, 9, shape).to(device=device, dtype=torch.float32)


def test_one_kernel_for_each_layout(op: RegisteredOp, built: list[int], anywhere: str) -> None:
    for _ in range(5):
        x, y = integers(500, device=anywhere), integers(500, device=anywhere)
        assert torch.equal(op(x, y), 2 * x + y)
        assert torch.equal(op(x, y, 3.0), 3 * x + y)
    assert len(built) == 1
    x, y = integers(600, device=anywhere), integers(600, device=anywhere)
    assert torch.equal(op(x, y), 2 * x + y)
    assert len(built) == 2


def test_results_of_calls_are_different_tensors(op: RegisteredOp, anywhere: str) -> None:
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    first, second = op(x, y), op(y, x)
    assert torch.equal(first, 2 * x + y)
    assert torch.equal(second, 2 * y + x)


def test_one_tensor_twice(op: RegisteredOp, built: list[int], anywhere: str) -> None:
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    op(x, y)
    assert torch.equal(op(x, x), 3 * x)
    assert torch.equal(op(y, y), 3 * y)
    assert torch.equal(op(x, y), 2 * x + y)
    assert len(built) == 2, "sharing is part of the plan, so it has a kernel of its own"


def test_nothing_is_kept_alive(op: RegisteredOp, anywhere: str) -> None:
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    op(x, y)
    watched = weakref.ref(x), weakref.ref(y)
    del x, y
    assert [ref() for ref in watched] == [None, None]


def test_through_the_dispatcher(op: RegisteredOp, anywhere: str) -> None:
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    assert torch.equal(op(x, y=y, factor=4.0), 4 * x + y)
    x.requires_grad_()
    with torch.no_grad():
        assert torch.equal(op(x, y), 2 * x + y)


def test_fake_tensors(op: RegisteredOp) -> None:
    with FakeTensorMode():
        z = op(torch.empty(500), torch.empty(500))
        assert z.shape == (500,)
        assert z.dtype == torch.float32


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_compile(op: RegisteredOp, built: list[int], anywhere: str, backend: str) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return op(x + 1, y, 3.0) * 2

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        x, y = integers(500, device=anywhere), integers(500, device=anywhere)
        assert torch.equal(compiled(x, y), (3 * (x + 1) + y) * 2)
    assert len(built) == 1


def in_place(classes: SimpleNamespace) -> RegisteredOp:
    def build(x: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return classes.Scale.schedule(x=x, y=y)

    return register_op(f"scale_into_{next(_numbers)}", build, mutates_args=["y"])


def test_arguments_that_are_written(op_classes: SimpleNamespace, anywhere: str) -> None:
    op = in_place(op_classes)
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    version = y._version
    assert op(x, y) is None
    assert torch.equal(y, 2 * x)
    assert y._version > version


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_mutation_under_compile(op_classes: SimpleNamespace, anywhere: str, backend: str) -> None:
    op = in_place(op_classes)

    def model(x: Tensor, y: Tensor) -> Tensor:
        op(x, y)
        return y + 1

    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    assert torch.equal(torch.compile(model, backend=backend, fullgraph=True)(x, y), 2 * x + 1)
    assert torch.equal(y, 2 * x)


def test_op_checks_of_torch(op: RegisteredOp, op_classes: SimpleNamespace, anywhere: str) -> None:
    """Schema, fake implementation and functionalisation, as `torch.library.opcheck` sees them."""
    x, y = integers(500, device=anywhere), integers(500, device=anywhere)
    torch.library.opcheck(op.op, (x, y, 2.0))
    torch.library.opcheck(in_place(op_classes).op, (x, y))


def test_parts_of_arguments(op_classes: SimpleNamespace, anywhere: str) -> None:
    """The builder may slice its arguments; every call moves the slices along."""

    def build(x: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return op_classes.Scale.schedule(x=x[:256], y=y[256:]) + op_classes.Scale.schedule(x=y[256:], y=y[:256])

    op = register_op(f"halves_{next(_numbers)}", build, mutates_args=["y"])
    for _ in range(3):
        x, y = integers(512, device=anywhere), integers(512, device=anywhere)
        op(x, y)
        assert torch.equal(y, torch.cat([4 * x[:256], 2 * x[:256]]))


def test_arguments_that_share_memory_otherwise(op: RegisteredOp, anywhere: str) -> None:
    base = integers(1000, device=anywhere)
    op(integers(500, device=anywhere), integers(500, device=anywhere))
    x, y = base[:500], base[100:600]
    assert torch.equal(op(x, y), 2 * x + y)


def test_a_copy_of_an_argument_is_noticed(op_classes: SimpleNamespace) -> None:
    def build(x: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return op_classes.Scale.schedule(x=x.clone(), y=y)

    op = register_op(f"copying_{next(_numbers)}", build, mutates_args=["y"])
    with pytest.raises(UnknownArgumentError, match="is not bound to any op"):
        op(torch.zeros(10), torch.zeros(10))


def test_names_that_the_builder_does_not_take(op_classes: SimpleNamespace) -> None:
    def build(x: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return op_classes.Scale.schedule(x=x, y=y)

    with pytest.raises(UnknownArgumentError, match="mutates_args names z"):
        register_op("never", build, mutates_args=["z"])
