"""What `Megakernel` and `run` are given by mistake is refused by an error that says what to pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from machete.megakernel import Megakernel
from machete.megakernel.abi.target import Throttle
from machete.megakernel.errors import PlanError, TargetError, TensorTypeError, UnknownArgumentError
from machete.megakernel.launch import tensormap
from machete.megakernel.launch.binding import Binding
from machete.megakernel.launch.extents import Extents
from machete.megakernel.launch.image import Image

N = 1000


@pytest.fixture
def ops(op_classes: SimpleNamespace) -> list:
    return op_classes.Scale.schedule(x=torch.ones(N), y=torch.zeros(N))


@pytest.fixture
def binding(ops: list) -> Binding:
    return Binding(ops, Image(Megakernel(ops).plan, ops, tensormap.encode, 0))


def test_ops_are_a_list(ops: list) -> None:
    for wrong in (None, ops[0], 3):
        with pytest.raises(PlanError, match="pass the list that"):
            Megakernel(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["4", 2.0, True, torch.tensor(4)])
def test_num_sms_is_an_int(ops: list, wrong: Any) -> None:
    with pytest.raises(PlanError, match="is no int"):
        Megakernel(ops, num_sms=wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": "x"}, "seed='x'"),
        ({"seed": 2**70}, "from 0 to"),
        ({"arch": ["sm_90a"]}, "unknown architecture"),
        ({"arch": ""}, "unknown architecture"),
        ({"throttle": "x"}, "throttle is of type str"),
        ({"profile": "x"}, "profile is of type str"),
        ({"profile": {0: "a"}}, r"profile\[0\] = 'a'"),
        ({"profile": {None: 1.0}}, "profile has the key None"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"timeout": -1}, "timeout=-1"),
    ],
)
def test_arguments_of_a_kernel(ops: list, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((PlanError, TargetError), match=message):
        Megakernel(ops, **arguments)


@pytest.mark.parametrize("wrong", [(-1, 1, 1), (1.5, 1, 1), ("a", 1, 1), (True, 1, 1)])
def test_a_throttle_is_in_bytes(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(PlanError, match="first="):
        Throttle(*wrong)


def test_the_shortest_timeout_is_not_none_at_all(ops: list) -> None:
    assert Megakernel(ops, timeout=1e-12)._patience == 1


def test_a_number_for_a_tensor(binding: Binding) -> None:
    with pytest.raises(UnknownArgumentError, match="`x` is a tensor, and was given a number"):
        binding.rebind({"x": 1.0})


def test_num_sms_of_the_simulator(ops: list) -> None:
    assert Megakernel(ops, num_sms=1024).plan.num_sms == 1024
    with pytest.raises(PlanError, match="one simulated CTA"):
        Megakernel(ops, num_sms=1025)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 2), torch.zeros(1), [1], [(1, 2, 3)], 7, None, {1: 2}])
def test_replace_is_a_list_of_pairs(binding: Binding, wrong: Any) -> None:
    with pytest.raises(UnknownArgumentError, match=r"replace=\[\(old, new\)\]"):
        binding.rebind({}, wrong)


@pytest.mark.parametrize("wrong", [None, [1], "x"])
def test_a_tensor_is_a_tensor(binding: Binding, wrong: Any) -> None:
    with pytest.raises(TensorTypeError, match="neither a tensor nor a number"):
        binding.rebind({"x": wrong})


@pytest.mark.parametrize("wrong", [[3], 3, torch.zeros(2)])
def test_extents_are_a_mapping(ops: list, binding: Binding, wrong: Any) -> None:
    with pytest.raises(UnknownArgumentError, match="extents is no mapping"):
        Extents(binding.ops, binding.views, binding.image).checked(wrong)


def test_run_says_it_too(ops: list) -> None:
    """Whether something is to change is decided without asking for the truth of what was passed."""
    pytest.importorskip("machete.sim")
    kernel = Megakernel(ops)
    wrong: dict[str, Any]
    for wrong in ({"replace": torch.zeros(2)}, {"replace": torch.zeros(1)}, {"extents": torch.zeros(2)}):
        with pytest.raises(UnknownArgumentError):
            kernel.run(**wrong)
    with pytest.raises(TensorTypeError):
        kernel.run(x=None)  # type: ignore[arg-type]
