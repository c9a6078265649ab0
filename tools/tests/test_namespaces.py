"""The rules that keep namespaces namespaces, on small lists of files."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from namespaces import problems

GOOD = [
    "machete/megakernel/__init__.py",
    "machete/megakernel/py.typed",
    "machete/megakernel/plan/__init__.py",
    "machete/megakernel/plan/queue.py",
    "machete/kernels/gemm/__init__.py",
    "machete/kernels/gemm/op.py",
    "machete/kernels/gemm/py.typed",
]


def found(files: list[str]) -> list[str]:
    return problems(PurePosixPath(file) for file in files)


def test_a_distribution_that_keeps_the_rules_has_no_problem() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    "stray",
    ["machete/__init__.py", "machete/kernels/__init__.py", "machete/py.typed", "machete/kernels/tiles.py"],
)
def test_a_file_in_a_namespace_is_a_problem(stray: str) -> None:
    [problem] = found([*GOOD, stray])
    assert problem.startswith(f"{stray}: a namespace holds no file")


@pytest.mark.parametrize(
    "missing",
    [
        "machete/megakernel/py.typed",
        "machete/kernels/gemm/__init__.py",
        "machete/megakernel/plan/__init__.py",
    ],
)
def test_a_package_without_what_it_needs_is_a_problem(missing: str) -> None:
    package, name = missing.rsplit("/", 1)
    assert found([file for file in GOOD if file != missing]) == [f"{package}: has no {name}"]
