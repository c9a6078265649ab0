"""An op list as a torch op: `torch.ops.machete.<name>`, which torch.compile can trace.

A builder is a Python function from tensors to an op list. It runs once for each combination of shapes, strides, dtypes,
devices and other arguments; the kernel is kept, and from then on other tensors are rebound to it.
"""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from machete.megakernel.abi.errors import OverlapError, UnknownArgumentError, listing
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import BULK_ALIGNMENT

from .binding import Argument
from .megakernel import Megakernel

NAMESPACE = "machete"

Builder = Callable[..., Iterable[ScheduledOp]]
Outputs = Mapping[str, Callable[..., torch.Tensor]]

_libraries: list[torch.library.Library] = []  # a registration lasts as long as its Library object


def register_op(
    name: str,
    builder: Builder,
    *,
    outputs: Outputs | None = None,
    mutates_args: Sequence[str] = (),
    scalars: Sequence[str] = (),
) -> RegisteredOp:
    """Register `torch.ops.machete.<name>` and return it as a function, which is faster to call from eager code.

    Example::

        def build(x: Tensor, w: Tensor, y: Tensor, eps: float):
            return RMSNormOp.schedule(x=x, w=w, y=y, eps=eps)

        norm = register_op("norm", build, outputs={"y": lambda x, w, eps: torch.empty_like(x)}, scalars=["eps"])
        y = norm(x, w, 1e-6)                       # or torch.ops.machete.norm(x, w, 1e-6)

    Args:
        name: unique among machete's ops in this process.
        builder: from tensors, and other arguments, to an op list. Its parameters are annotated (`Tensor`, `int`,
            `float`, `bool`, `str`, …: what `torch.library.infer_schema` knows), and become those of the op, but for
            outputs. It must use every tensor that it gets, not a copy.
        outputs: parameters of the builder that the op allocates and returns, in this order; each with a function of the
            op's own arguments that makes an empty tensor. That function also says what torch.compile needs to know.
        mutates_args: parameters that the ops write to in place.
        scalars: parameters that are runtime scalars of this name in the ops: other values need no other kernel.

    Kernels run on the current stream, on all SMs, and do not keep the tensors of a call alive, like any other torch op.
    """
    return RegisteredOp(name, builder, dict(outputs or {}), tuple(mutates_args), tuple(scalars))


class _Kernel:
    """A kernel for one combination of layouts, and the arguments that change from call to call."""

    def __init__(self, ops: Iterable[ScheduledOp], tensors: Sequence[torch.Tensor]) -> None:
        self.kernel = Megakernel(ops)
        self.arguments: list[Argument | None] = [
            self.kernel.argument(tensor) if tensor.numel() else None for tensor in tensors
        ]

    def __call__(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, Any]) -> None:
        pairs = [
            (argument, tensor) for argument, tensor in zip(self.arguments, tensors, strict=True) if argument is not None
        ]
        self.kernel.run(sync=False, replace=pairs, **scalars)


class RegisteredOp:
    """A builder as a torch op; made by `register_op`. `op` is the one in `torch.ops`."""

    def __init__(
        self, name: str, builder: Builder, outputs: Outputs, mutates_args: tuple[str, ...], scalars: tuple[str, ...]
    ) -> None:
        parameters = inspect.signature(builder).parameters
        for kind, names in (("outputs", outputs), ("mutates_args", mutates_args), ("scalars", scalars)):
            unknown = [given for given in names if given not in parameters]
            if unknown:
                raise UnknownArgumentError(
                    what=f"{kind} names {listing(unknown)}, which the builder does not take",
                    where=f"register_op({name!r}, {builder.__qualname__})",
                    why=f"its parameters are {listing(parameters)}",
                    fix=f"add a parameter to the builder, or remove it from {kind}",
                )
        self._builder, self._outputs, self._mutated, self._scalars = builder, outputs, mutates_args, scalars
        self._parameters = tuple(given for given in parameters if given not in outputs)
        self._signature, schema = schema_of(builder, self._parameters, len(outputs), mutates_args)
        self._kernels: dict[tuple, _Kernel] = {}
        self._lock = threading.Lock()
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        _libraries.append(library)
        library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(name, self.run, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", self.allocate, lib=library)
        self.op = getattr(getattr(torch.ops, NAMESPACE), name).default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it: directly if nothing but plain tensors is involved, else through torch's dispatcher."""
        if torch.compiler.is_compiling() or kwargs or not _plain(args):
            return self.op(*args, **kwargs)
        return self.run(*args)

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """Empty outputs; all that there is to know about the op without running it."""
        named = self._named(args, kwargs)
        return as_returned([make(**named) for make in self._outputs.values()])

    def _named(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on plain tensors, without torch's dispatcher."""
        if kwargs or len(args) < len(self._parameters):
            named = self._named(args, kwargs)
        else:
            named = dict(zip(self._parameters, args, strict=True))
        outputs = {name: make(**named) for name, make in self._outputs.items()}
        scalars = {name: named[name] for name in self._scalars}
        everything = {**named, **outputs}
        tensors = [value for value in everything.values() if isinstance(value, torch.Tensor)]
        key = self._key(everything, tensors)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._build(key, everything, tensors)
        try:
            kernel(tensors, scalars)
        except OverlapError:  # these tensors share memory in another way: a kernel for them alone
            Megakernel(self._builder(**everything)).run(sync=False)
        for name in self._mutated:
            if not named[name].is_inference():
                torch.autograd.graph.increment_version(named[name])
        return as_returned(list(outputs.values()))

    def _key(self, arguments: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> tuple:
        addresses = [tensor.data_ptr() for tensor in tensors]
        layouts = [
            (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, address % BULK_ALIGNMENT)
            for tensor, address in zip(tensors, addresses, strict=True)
        ]
        others = [
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in arguments.items()
            if name not in self._scalars and not isinstance(value, torch.Tensor)
        ]
        # Which arguments are one tensor is part of the plan.
        same = [addresses.index(address) for address in addresses] if len(set(addresses)) < len(addresses) else []
        return (*layouts, *others, *same)

    def _build(self, key: tuple, arguments: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> _Kernel:
        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = _Kernel(self._builder(**arguments), tensors)
            return self._kernels[key]


def as_returned(outputs: Sequence[torch.Tensor]) -> Any:
    """Outputs as an op returns them: None, a tensor, or a tuple."""
    if not outputs:
        return None
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def schema_of(
    builder: Builder, names: Sequence[str], num_outputs: int, mutates_args: Sequence[str]
) -> tuple[inspect.Signature, str]:
    """Signature and schema of the op that takes these parameters of the builder."""
    hints = typing.get_type_hints(builder)
    parameters = inspect.signature(builder).parameters
    if num_outputs > 1:
        returns: Any = tuple.__class_getitem__((torch.Tensor,) * num_outputs)
    else:
        returns = torch.Tensor if num_outputs else None
    signature = inspect.Signature(
        [parameters[name].replace(annotation=hints.get(name, inspect.Parameter.empty)) for name in names],
        return_annotation=returns,
    )

    def prototype() -> None:
        """Stands for the op where torch wants a function; only its signature counts."""

    prototype.__signature__ = signature  # type: ignore[attr-defined]
    return signature, torch.library.infer_schema(prototype, mutates_args=tuple(mutates_args))


def _plain(args: Sequence[Any]) -> bool:
    """Whether torch's dispatcher would do nothing but call the kernel: no modes, no subclasses, no autograd."""
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.maybe_current_level() is not None:
        return False
    grad = torch.is_grad_enabled()
    for value in args:
        if isinstance(value, torch.Tensor) and (
            type(value) not in (torch.Tensor, torch.nn.Parameter) or (grad and value.requires_grad)
        ):
            return False
    return True
