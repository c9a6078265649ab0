"""`Megakernel`: a list of ops as one persistent kernel, on the GPU or on the simulator."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from machete.megakernel.abi.errors import DeviceError, PlanError, TargetError
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import Target
from machete.megakernel.plan.plan import Plan

from .artefact import Artefact
from .binding import Binding
from .gpu import GpuLauncher

logger = logging.getLogger("machete.megakernel")

DEFAULT_TARGET = "sm_90a"
SIMULATED_SMS = 4  # enough CTAs for real concurrency, few enough to be quick


@dataclass(frozen=True)
class RunReport:
    """What one run did. `seconds` is wall time of the run on the host, launch and wait included.

    `instructions` and `max_stages_in_flight` are known on the simulator only (else None): warp instructions executed,
    and the most ring stages that one SM had in flight at a time.
    """

    where: str
    target: str
    seconds: float
    instructions: int | None = None
    max_stages_in_flight: int | None = None


class Megakernel:
    """One persistent kernel that runs `ops` in order.

    CUDA tensors run on their own device. CPU tensors run on the simulator, for `arch` (sm_90a unless given: sm_90a,
    sm_100a or sm_120a). Ops that share memory are ordered as listed; everything else may overlap. Tensors stay alive as
    long as they are bound.

    Args:
        ops: what `SomeOp.schedule(...)` returned; lists concatenate.
        arch: the target on CPU tensors; on CUDA tensors it must be the device's own, and may be left out.
        num_sms: CTAs to launch. Default: every SM of the device; 4 on the simulator.
        seed: order in which the simulator interleaves warps and completes copies.

    Raises:
        MacheteError: one of its subclasses, before anything compiles, naming op, argument, reason and remedy.
    """

    def __init__(
        self,
        ops: Iterable[ScheduledOp],
        *,
        arch: str | None = None,
        num_sms: int | None = None,
        seed: int = 0,
    ) -> None:
        ops = list(ops)
        for op in ops:
            if not isinstance(op, ScheduledOp):
                raise PlanError(
                    what=f"ops must be scheduled ops, found {type(op).__name__}",
                    where="Megakernel(ops)",
                    why="the plan needs tensors and tile sizes",
                    fix="pass the list that SomeOp.schedule(...) returns; concatenate lists with +",
                )
        if not ops:
            raise PlanError(
                what="the list of ops is empty",
                where="Megakernel(ops)",
                why="there is nothing to run",
                fix="schedule at least one op",
            )
        devices = {op.device for op in ops}
        if len(devices) > 1:
            names = ", ".join(f"op {i} ({op.op.__name__}) on {op.device}" for i, op in enumerate(ops))
            raise DeviceError(
                what="the ops of one kernel are on different devices",
                where="Megakernel(ops)",
                why=f"one kernel runs on one device: {names}",
                fix="move the tensors to one device",
            )
        self.device = devices.pop()
        self.simulated = self.device.type == "cpu"
        self.target = self._choose_target(arch)
        if num_sms is None:
            num_sms = (
                SIMULATED_SMS if self.simulated else torch.cuda.get_device_properties(self.device).multi_processor_count
            )
        lowered = [op.op.lower(self.target, op) for op in ops]
        self.plan = Plan.build(lowered, self.target, num_sms)
        self.plan.verify()
        self.seed = seed
        self.report: RunReport | None = None
        self._ops = lowered
        self._artefact: Artefact | None = None
        self._binding: Binding | None = None
        self._launcher: GpuLauncher | None = None
        if self.simulated:
            logger.warning("no GPU: %s is simulated on the CPU, %d SMs", self.target.name, num_sms)

    def _choose_target(self, arch: str | None) -> Target:
        if self.simulated:
            return Target.named(arch or DEFAULT_TARGET)
        target = Target.of_capability(torch.cuda.get_device_capability(self.device))
        if arch is not None and Target.named(arch) != target:
            raise TargetError(
                what=f"arch={arch!r}, but {self.device} is {target.name}",
                where="Megakernel(ops, arch=…)",
                why="CUDA tensors run on their own device",
                fix=f"leave arch out, or pass CPU tensors to simulate {arch}",
            )
        return target

    def compile(self) -> Artefact:
        """Trace and compile, unless done already; needs no GPU. Returns PTX and machine code."""
        if self._artefact is None:
            from .compiler import compile_kernel

            self._artefact = compile_kernel(self.plan.kinds, self.plan.shared, self.target, self.plan.num_sms)
        return self._artefact

    def run(
        self,
        *,
        sync: bool = True,
        progress: Callable[[int, int], None] | None = None,
        replace: Iterable[tuple[torch.Tensor, torch.Tensor]] = (),
        **arguments: torch.Tensor | float,
    ) -> RunReport:
        """Run the kernel once, on the current stream of its device.

        Args:
            sync: wait for the kernel to end (the simulator always does).
            progress: called now and then by the simulator with (warp instructions, CTAs finished).
            replace: pairs of a bound tensor and one of the same layout that takes its place from now on.
            **arguments: likewise by the name that ops gave a tensor, if it stands for one tensor only; or other values
                of scalars.
        """
        artefact = self.compile()
        binding = self._bind()
        if arguments or replace:
            binding.rebind(arguments, replace)
        started = time.perf_counter()
        if self.simulated:
            from .simulator import simulate

            result = simulate(
                artefact,
                binding.parameters(),
                binding.regions(),
                self.plan.num_sms,
                self.seed,
                progress,
            )
            instructions, stages = result.instructions, result.max_stages_in_flight
        else:
            self._launch(artefact, binding)
            instructions = stages = None
            if sync:
                torch.cuda.current_stream(self.device).synchronize()
        where = "simulator" if self.simulated else str(self.device)
        self.report = RunReport(where, self.target.name, time.perf_counter() - started, instructions, stages)
        return self.report

    __call__ = run

    def _bind(self) -> Binding:
        if self._binding is None:
            self._binding = Binding(self.plan, self._ops, self.device)
        return self._binding

    def _launch(self, artefact: Artefact, binding: Binding) -> None:
        if self._launcher is None:
            self._launcher = GpuLauncher(artefact, self.device, self.plan.num_sms, binding.parameters())
        self._launcher.launch(torch.cuda.current_stream(self.device).cuda_stream)
