"""Every error: its parts, its builtin kin, and its trip through a process boundary."""

from __future__ import annotations

import pickle

import pytest

from machete.megakernel.abi import errors

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_prints_its_parts_and_survives_pickling(kind):
    error = kind(what="x is wrong", where="ScaleOp", why="a rule", fix="do this")
    assert str(error) == "x is wrong\n  where: ScaleOp\n  why: a rule\n  fix: do this"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", [k for k in ALL if k not in (errors.MacheteError, errors.ScheduleError)])
def test_every_error_is_also_a_builtin_exception(kind):
    assert any(base.__module__ == "builtins" and base is not Exception for base in kind.__mro__[1:-3])


def test_the_missing_simulator_comes_with_its_pip_line():
    assert "pip install 'machete-runtime[sim]'" in str(errors.SimulatorMissingError())


def test_close_names_are_suggested():
    assert errors.closest("tile_n", ["tile_N", "y"]) == " (did you mean `tile_N`?)"
    assert errors.closest("zebra", ["x", "y"]) == ""
