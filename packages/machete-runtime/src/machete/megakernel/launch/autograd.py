"""Op lists that autograd can differentiate: one list for the forward pass, one for the backward pass.

Everything is bound by name. Where the forward list has an output `y`, the backward list takes its gradient as `grad_y`;
where it has an input `x`, the backward list writes that one's gradient to `grad_x`, which is allocated for it. Other
parameters of the backward list are those of the forward list, and what autograd saves.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from typing import Any

import torch

from machete.megakernel.abi.errors import MissingTensorError, UnknownArgumentError, closest, listing

from .library import NAMESPACE, Builder, Outputs, RegisteredOp, as_returned, schema_of


def differentiable(
    name: str,
    forward: Builder,
    backward: Builder,
    *,
    outputs: Outputs | None = None,
    saved: Sequence[str] = (),
    mutates_args: Sequence[str] = (),
    scalars: Sequence[str] = (),
) -> DifferentiableOp:
    """Register `torch.ops.machete.<name>` with its derivative, and return it as a function.

    Example::

        def forward(x: Tensor, w: Tensor, y: Tensor):
            return MulOp.schedule(a=x, b=w, y=y)

        def backward(grad_y: Tensor, x: Tensor, w: Tensor, grad_x: Tensor, grad_w: Tensor):
            return MulOp.schedule(a=grad_y, b=w, y=grad_x) + MulOp.schedule(a=grad_y, b=x, y=grad_w)

        mul = differentiable("mul", forward, backward, outputs={"y": lambda x, w: torch.empty_like(x)})

    Args:
        name, outputs, mutates_args, scalars: as for `register_op`, of the forward list.
        forward: from tensors, and other arguments, to an op list, as for `register_op`.
        backward: the same for gradients. Its parameters are

            - `grad_<output>`, read: the gradient of an output, or of an argument that was mutated as it is afterwards;
              contiguous, and zero if nothing depends on it,
            - `grad_<input>`, written: the gradient of an input, contiguous. Inputs without one must not require any,
            - `grad_<input>_before`, written: the gradient of a mutated argument as it was. Without this parameter it is
              that of the argument as it is afterwards,
            - parameters of `forward`: what autograd saves (a mutated tensor as it is afterwards), and other values.
        saved: outputs that only the backward list reads; they are not returned.

    Second derivatives are not known: autograd refuses them.

    Raises:
        UnknownArgumentError: a parameter of `backward`, or a name in the other arguments, is none of these.
    """
    return DifferentiableOp(
        name, forward, backward, dict(outputs or {}), tuple(saved), tuple(mutates_args), tuple(scalars)
    )


class DifferentiableOp:
    """A forward and a backward op list as one torch op; made by `differentiable`."""

    def __init__(
        self,
        name: str,
        forward: Builder,
        backward: Builder,
        outputs: Outputs,
        saved: tuple[str, ...],
        mutated: tuple[str, ...],
        scalars: tuple[str, ...],
    ) -> None:
        parameters = inspect.signature(forward).parameters
        self._inputs = tuple(given for given in parameters if given not in outputs)
        self._defaults = {
            given: parameters[given].default
            for given in self._inputs
            if parameters[given].default is not inspect.Parameter.empty
        }
        self._returns = (*mutated, *outputs)
        self._mutated = mutated
        self._visible = tuple(len(mutated) + i for i, given in enumerate(outputs) if given not in saved)
        self._saved_only = tuple(len(mutated) + i for i, given in enumerate(outputs) if given in saved)
        hints = typing.get_type_hints(forward)
        tensors = [given for given in self._inputs if hints.get(given) is torch.Tensor]
        self._check(name, backward, outputs, saved, tensors)
        taken = inspect.signature(backward).parameters
        self._incoming = {f"grad_{given}": index for index, given in enumerate(self._returns)}
        written = {f"grad_{given}": given for given in tensors if given not in mutated}
        written |= {f"grad_{given}_before": given for given in mutated}
        self._outgoing = {given: source for given, source in written.items() if given in taken}
        self._parameters = tuple(taken)
        known = {*self._outgoing.values(), *mutated}
        self._constant = tuple(self._inputs.index(given) for given in tensors if given not in known)
        self._name = name
        self._carried = tuple(given for given in taken if given in parameters)

        self._forward = RegisteredOp(name, forward, outputs, mutated, scalars)
        own = tuple(given for given in scalars if given in taken)
        self._backward = RegisteredOp(f"{name}_backward", backward, {}, tuple(self._outgoing), own)
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        qualified = f"{NAMESPACE}::{name}"
        self._functional: Any = self._forward
        if mutated:
            # Autograd formulas are for ops that mutate nothing: where torch.compile traces, a copy is mutated.
            qualified += "_functional"
            _, schema = schema_of(forward, self._inputs, len(self._returns), ())
            self._library.define(f"{name}_functional{schema}", tags=(torch.Tag.pt2_compliant_tag,))
            for key in ("CPU", "CUDA"):
                self._library.impl(f"{name}_functional", self._run_on_copies, key)
            torch.library.register_fake(qualified, self._allocate_all, lib=self._library)
            self._functional = getattr(getattr(torch.ops, NAMESPACE), f"{name}_functional").default
        torch.library.register_autograd(qualified, self._gradients, setup_context=self._remember, lib=self._library)
        self.op = self._forward.op

    def _check(
        self, name: str, backward: Builder, outputs: Outputs, saved: Sequence[str], tensors: Sequence[str]
    ) -> None:
        """Whether every parameter of `backward` means something, and it writes a gradient."""
        where = f"differentiable({name!r}, …, {backward.__qualname__})"
        missing = [given for given in saved if given not in outputs]
        if missing:
            raise UnknownArgumentError(
                what=f"saved names {listing(missing)}, which is no output",
                where=where,
                why=f"the outputs are {listing(outputs)}",
                fix="add it to outputs; inputs are saved because `backward` takes them",
            )
        read = [f"grad_{given}" for given in self._returns if given not in saved]
        written = [f"grad_{given}_before" if given in self._mutated else f"grad_{given}" for given in tensors]
        known = [*read, *written, *self._inputs, *outputs]
        taken = inspect.signature(backward).parameters
        for given in taken:
            if given not in known:
                raise UnknownArgumentError(
                    what=f"`{given}` of {backward.__qualname__} stands for nothing{closest(given, known)}",
                    where=where,
                    why=f"it may read {listing(read)}, write {listing(written)}, and take what the forward list has",
                    fix="name its parameters after those of the forward list",
                )
        if not set(written) & set(taken) and not self._mutated:
            raise UnknownArgumentError(
                what=f"{backward.__qualname__} writes no gradient",
                where=where,
                why="autograd wants the gradient of at least one input",
                fix=f"take one of: {listing(written)}",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward list; autograd records it if an input requires a gradient.

        Raises `UnknownArgumentError` or `MissingTensorError` if the arguments are not those of the forward list.
        """
        if kwargs or len(args) != len(self._inputs):
            args = self._bound(args, kwargs)
        if torch.is_grad_enabled():
            for index in self._constant:
                if isinstance(args[index], torch.Tensor) and args[index].requires_grad:
                    raise self._no_gradient(self._inputs[index])
        if not self._mutated:
            return self._shown(self._forward(*args))
        if torch.compiler.is_compiling():
            returned = _as_tuple(self._functional(*args))
            for name, fresh in zip(self._mutated, returned, strict=False):
                args[self._inputs.index(name)].copy_(fresh)
            return self._shown(returned[len(self._mutated) :])
        if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            returned = _InPlace.apply(self, *args)
            return self._shown(returned[len(self._mutated) :])
        return self._shown(self._forward(*args))

    def _bound(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        """The arguments in the order of the inputs. Written out: torch.compile traces this, and not `inspect`."""
        where, why = f"machete.{self._name}", f"its arguments are {listing(self._inputs)}"
        if len(args) > len(self._inputs):
            raise UnknownArgumentError(
                what=f"{len(args)} arguments, {len(self._inputs)} expected",
                where=where,
                why=why,
                fix="leave out the rest",
            )
        for name in kwargs:
            if name not in self._inputs:
                what = f"there is no argument `{name}`{closest(name, self._inputs)}"
                raise UnknownArgumentError(what=what, where=where, why=why, fix="use these names")
            if name in self._inputs[: len(args)]:
                what = f"`{name}` is passed twice, by position and by name"
                raise UnknownArgumentError(what=what, where=where, why=why, fix="pass it once")
        given = {**self._defaults, **dict(zip(self._inputs, args, strict=False)), **kwargs}
        missing = [name for name in self._inputs if name not in given]
        if missing:
            raise MissingTensorError(
                what=f"{listing(missing)} not passed", where=where, why=why, fix="pass all of them"
            )
        return tuple(given[name] for name in self._inputs)

    def _no_gradient(self, name: str) -> UnknownArgumentError:
        return UnknownArgumentError(
            what=f"`{name}` requires a gradient, and the backward list does not write one",
            where=f"machete.{self._name}",
            why=f"it has no parameter `grad_{name}`",
            fix=f"pass {name}.detach(), or write `grad_{name}` in the backward list",
        )

    def _shown(self, outputs: Any) -> Any:
        """The outputs that the caller gets."""
        outputs = _as_tuple(outputs)
        shown = tuple(outputs[index - len(self._mutated)] for index in self._visible)
        return None if not shown else shown[0] if len(shown) == 1 else shown

    # ------------------------------------------------------------------ ops

    def _run_on_copies(self, *args: Any) -> Any:
        named = dict(zip(self._inputs, args, strict=True))
        named |= {name: named[name].clone() for name in self._mutated}
        outputs = _as_tuple(self._forward.run(*named.values()))
        return as_returned([*(named[name] for name in self._mutated), *outputs])

    def _allocate_all(self, *args: Any) -> Any:
        named = dict(zip(self._inputs, args, strict=True))
        outputs = _as_tuple(self._forward.allocate(*args))
        return as_returned([*(torch.empty_like(named[name]) for name in self._mutated), *outputs])

    # ------------------------------------------------------------------ autograd

    def _remember(self, ctx: Any, inputs: tuple, output: Any) -> None:
        """Keep what the backward list takes, and the layouts of the gradients that it writes."""
        returned = _as_tuple(output)
        named = dict(zip(self._inputs, inputs, strict=True))
        layouts = {
            grad: (named[name].shape, named[name].dtype, named[name].device) for grad, name in self._outgoing.items()
        }
        named |= zip(self._returns, returned, strict=True)
        kept = [name for name in self._carried if isinstance(named[name], torch.Tensor)]
        ctx.save_for_backward(*(named[name] for name in kept))
        ctx.mark_non_differentiable(*(returned[index] for index in self._saved_only))
        ctx.machete = kept, {name: named[name] for name in self._carried if name not in kept}, layouts

    def _gradients(self, ctx: Any, *grads: Any) -> Any:
        """Run the backward list; a gradient, or None, for each input of the forward list."""
        kept, others, layouts = ctx.machete
        named: dict[str, Any] = {**others, **dict(zip(kept, ctx.saved_tensors, strict=True))}
        for grad, (shape, dtype, device) in layouts.items():
            named[grad] = torch.empty(shape, dtype=dtype, device=device)
        for grad, index in self._incoming.items():
            if grad in self._parameters:
                named[grad] = grads[index].contiguous()
        if self._outgoing:
            self._backward(*(named[name] for name in self._parameters))
        results: list[Any] = []
        for name in self._inputs:
            if name in self._mutated:
                unchanged = grads[self._returns.index(name)]
                results.append(named.get(f"grad_{name}_before", unchanged))
            else:
                results.append(named[f"grad_{name}"] if f"grad_{name}" in self._outgoing else None)
        return results[0] if len(results) == 1 else tuple(results)


class _InPlace(torch.autograd.Function):
    """The forward list with arguments that it mutates, for autograd outside of torch.compile: nothing is copied."""

    @staticmethod
    def forward(ctx: Any, op: DifferentiableOp, *args: Any) -> Any:
        plain = (one.detach() if isinstance(one, torch.Tensor) else one for one in args)
        outputs = _as_tuple(op._forward.run(*plain))
        changed = tuple(args[op._inputs.index(name)] for name in op._mutated)
        ctx.mark_dirty(*changed)
        ctx.op = op
        returned = (*changed, *outputs)
        op._remember(ctx, args, returned)
        return returned

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        found = ctx.op._gradients(ctx, *grads)
        return (None, *(found if isinstance(found, tuple) else (found,)))


def _as_tuple(outputs: Any) -> tuple:
    """What an op returned, as a tuple."""
    return () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)
