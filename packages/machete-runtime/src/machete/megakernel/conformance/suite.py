"""The tests of the conformance suite. A test class of an op package derives from `Conformance`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from machete.megakernel.abi.errors import TargetError
from machete.megakernel.conformance.case import Case

if TYPE_CHECKING:
    import torch

    from machete.megakernel.abi.scheduled import ScheduledOp
    from machete.megakernel.conformance.workload import Workload
    from machete.megakernel.launch.megakernel import Megakernel

#: The user property of a test report that says which target ran, and where.
RAN_ON = "machete-ran-on"

RecordProperty = Callable[[str, object], None]


class Conformance:
    """Runs each case for each target that its op claims: on the card if it is of that target, else simulated.

    A subclass whose name pytest collects sets `cases`, and inherits the tests.
    """

    cases: ClassVar[Sequence[Case]] = ()
    pytestmark: ClassVar[list[pytest.MarkDecorator]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        rows = [pytest.param(case, arch, id=f"{case}-{arch}") for case in cls.cases for arch in case.op.targets]
        if not rows:
            raise TypeError(f"{cls.__name__}: no case of an op that claims a target, so nothing would be tested")
        cls.pytestmark = [pytest.mark.parametrize(("case", "arch"), rows)]

    def test_definition(self, case: Case, arch: str) -> None:
        """The class can be scheduled as every op is: by keyword."""
        from machete.megakernel.abi.op import Op

        assert issubclass(case.op, Op), f"{case.op!r} is no Op subclass"
        assert "declaration" in vars(case.op), f"{case.op.__name__} is abstract"
        for parameter in inspect.signature(case.op.schedule).parameters.values():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, (
                f"`{parameter}` of {case.op.__name__}.schedule is not keyword-only: def schedule(cls, *, …)"
            )

    def test_is_announced(self, case: Case, arch: str) -> None:
        """An installed distribution announces the op, and declares the ABI that it needs."""
        from machete.megakernel.registry import GROUP, installed_ops

        rows = installed_ops(load=True)
        mine = [row for row in rows if row.op is case.op]
        package = case.op.__module__.partition(".")[0]
        rejected = [f"{row.name}: {row.reason}" for row in rows if row.refusal and row.source.startswith(package)]
        assert mine, (
            f"no installed distribution announces {case.op.__module__}.{case.op.__qualname__} in the entry-point "
            f"group {GROUP!r}; rejected: {rejected or 'none'}"
        )
        for row in mine:
            # An available row has an ABI: what does not say which it needs is rejected.
            assert (row.abi or ()) >= case.op.abi, (
                f"{case.op.__name__} needs ABI {case.op.abi}, but {row.distribution} asks for {row.abi} only"
            )

    def test_plans(self, case: Case, arch: str) -> None:
        """The ops schedule, lower to the targets that are claimed and to no other, and their plan holds."""
        from machete.megakernel.abi.target import TARGETS

        work = _workload(case, arch)
        _kernel(work.ops, arch).plan.verify()
        for op in work.ops:
            for target in TARGETS.values():
                if target.name not in op.op.targets:
                    with pytest.raises(TargetError):
                        op.op.lower(target, op)

    def test_matches_the_reference(self, case: Case, arch: str, record_property: RecordProperty) -> None:
        """The outputs are right, and right again when the same kernel runs a second time."""
        work = _workload(case, arch)
        kernel = _kernel(work.ops, arch)
        for when in ("after the first run", "after the second run of the same kernel"):
            work.reset()
            expected = work.expected()
            _run(kernel, record_property)
            work.check(expected, case.tolerance, when)

    def test_twice_in_one_kernel(self, case: Case, arch: str, record_property: RecordProperty) -> None:
        """The second instance waits for the first: where both write, and where it reads what the first wrote."""
        work = _workload(case, arch)
        kernel = _kernel([*work.ops, *work.ops], arch, seed=1)
        work.reset()
        expected = work.expected(times=2)
        _run(kernel, record_property)
        work.check(expected, 2 * case.tolerance, "after running twice in one kernel")

    def test_between_other_ops(self, case: Case, arch: str, record_property: RecordProperty) -> None:
        """In one kernel with ops that produce its inputs, spoil its memory before and after, and save its outputs."""
        import torch

        from machete.megakernel.abi.tensor import TensorInfo
        from machete.megakernel.conformance.copy_op import CopyOp
        from machete.megakernel.conformance.workload import memory, poison

        work = _workload(case, arch)
        work.reset()
        expected = work.expected()

        inputs = _distinct(memory(tensor) for tensor in work.inputs if tensor.numel())
        results = _distinct(memory(tensor) for tensor in work.results if tensor.numel())
        outputs = _distinct(memory(work.tensors[name]) for name in work.outputs if work.tensors[name].numel())
        written = [TensorInfo.of("output", place) for place in outputs]
        read_only = [place for place in inputs if not any(map(TensorInfo.of("input", place).overlaps, written))]

        def copies(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> list[ScheduledOp]:
            pairs = zip(sources, targets, strict=True)
            return [op for source, target in pairs for op in CopyOp.schedule(source=source, target=target)]

        def spoil(places: Sequence[torch.Tensor]) -> list[ScheduledOp]:
            return copies(places, [poison(place.clone()) for place in places])

        saved = [torch.zeros_like(place) for place in outputs]
        ops = [
            *spoil(results),
            *copies(inputs, [place.clone() for place in inputs]),
            *work.ops,
            # Before anything waits for the outputs: only the order between ops keeps this from coming too early.
            *spoil(read_only),
            *copies(saved, outputs),
            *spoil(outputs),
        ]
        kernel = _kernel(ops, arch, seed=2)
        for place in inputs:
            poison(place)
        _run(kernel, record_property)
        for place, copy in zip(outputs, saved, strict=True):
            place.copy_(copy)
        work.check(expected, case.tolerance, "between other ops")


def _workload(case: Case, arch: str) -> Workload:
    """The case's ops on the card if it is of that architecture, else on the CPU, which means the simulator."""
    import torch

    from machete.megakernel.abi.target import Target
    from machete.megakernel.conformance.workload import Workload

    capability = Target.named(arch).compute_capability
    on_card = torch.cuda.is_available() and torch.cuda.get_device_capability() == capability
    return Workload(case, "cuda" if on_card else "cpu")


def _kernel(ops: Sequence[ScheduledOp], arch: str, seed: int = 0) -> Megakernel:
    from machete.megakernel.launch.megakernel import Megakernel

    return Megakernel(ops, arch=arch, seed=seed)


def _run(kernel: Megakernel, record_property: RecordProperty) -> None:
    report = kernel.run()
    record_property(RAN_ON, f"{report.target} on {'the simulator' if kernel.simulated else report.where}")


def _distinct(places: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Without those that are the same memory again."""
    return list({(place.data_ptr(), place.numel(), place.dtype): place for place in places}.values())
