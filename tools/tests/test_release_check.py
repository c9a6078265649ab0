"""Each check of a release finds what it is there for, on packages and wheels made for it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import release_check
from dev_environment import REPOSITORY
from distributions import Built

LICENCE = REPOSITORY / "LICENSE"
CONTENTS = {
    "machete/toy/__init__.py": "",
    "machete/toy/py.typed": "",
}

Make = Callable[..., Built]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the distribution `machete-toy`: its folder, and a wheel with what the test asks for."""

    def build(
        version: str = "0.1.0", wheel_version: str = "0.1.0", requires: str = "", extra: str | None = None
    ) -> Built:
        package = tmp_path / "machete-toy"
        (package / "changelog.d").mkdir(parents=True)
        (package / "changelog.d" / "1.added.md").write_text("A toy.\n")
        (package / "CHANGELOG.md").write_text("# Changelog\n")
        (package / "LICENSE").write_bytes(LICENCE.read_bytes())
        (package / "pyproject.toml").write_text(f'[project]\nname = "machete-toy"\nversion = "{version}"\n')
        wheel = tmp_path / f"machete_toy-{wheel_version}-py3-none-any.whl"
        info = f"machete_toy-{wheel_version}.dist-info"
        metadata = f"Metadata-Version: 2.4\nName: machete-toy\nVersion: {wheel_version}\n"
        if requires:
            metadata += f"Requires-Dist: {requires}\n"
        files = {
            **CONTENTS,
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        if extra is not None:
            files[extra] = "import pytest\n"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return Built(package, tmp_path / f"machete_toy-{wheel_version}.tar.gz", wheel)

    return build


def test_a_distribution_that_is_in_order_passes_every_check(make: Make) -> None:
    toy = make()
    assert release_check.check_versions(toy) == []
    assert release_check.check_contents(toy.wheel) == []
    assert release_check.check_ranges(toy) == []
    assert release_check.check_licence(toy) == []
    assert release_check.check_changelog(toy.package) == []
    assert release_check.check_alone(toy, {"machete-toy": toy}) == []


def test_a_built_version_other_than_the_declared_one(make: Make) -> None:
    found = release_check.check_versions(make(wheel_version="0.2.0"))
    assert found == [
        "machete_toy-0.2.0.tar.gz: pyproject.toml says 0.1.0",
        "machete_toy-0.2.0-py3-none-any.whl: pyproject.toml says 0.1.0",
    ]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("toy/__init__.py", "lies outside machete/"),
        ("machete/__init__.py", "a namespace holds no file"),
        ("machete/kernels/__init__.py", "a namespace holds no file"),
        ("machete/kernels/tiny/__init__.py", "has no py.typed"),
    ],
)
def test_a_wheel_with_a_file_too_many(make: Make, extra: str, problem: str) -> None:
    [found] = release_check.check_contents(make(extra=extra).wheel)
    assert problem in found


@pytest.mark.parametrize(
    ("requires", "wrong"),
    [
        ("machete-runtime==0.1.0", True),
        ("machete-runtime>=0.1", True),
        ("machete-runtime", True),
        ("machete-runtime<0.2,>=0.1", False),
        ("numpy>=1", False),
    ],
)
def test_our_own_distributions_are_required_by_range(make: Make, requires: str, wrong: bool) -> None:
    assert bool(release_check.check_ranges(make(requires=requires))) is wrong


def test_a_changed_licence(make: Make) -> None:
    toy = make()
    (toy.package / "LICENSE").write_text("do as you like\n")
    assert release_check.check_licence(toy) == ["machete-toy: LICENSE differs from the repository's"]


def test_a_release_that_no_fragment_and_no_section_describes(make: Make) -> None:
    toy = make()
    (toy.package / "changelog.d" / "1.added.md").unlink()
    [problem] = release_check.check_changelog(toy.package)
    assert "describes 0.1.0" in problem
    (toy.package / "CHANGELOG.md").write_text("## machete-toy 0.1.0 (2026-12-01)\n")
    assert release_check.check_changelog(toy.package) == []


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("machete-toy-v0.1.0", None),
        ("machete-toy-v0.2.0", "pyproject.toml says 0.1.0"),
        ("machete-other-v0.1.0", "there is no distribution machete-other"),
        ("machete-toy-0.1.0", "is not of the form"),
        ("v0.1.0", "is not of the form"),
    ],
)
def test_a_tag_names_a_distribution_and_its_version(make: Make, tag: str, problem: str | None) -> None:
    toy = make()
    (toy.package / "CHANGELOG.md").write_text("## machete-toy 0.1.0 (2026-12-01)\n## machete-toy 0.2.0 (later)\n")
    found = release_check.check_tag(tag, [toy.package])
    if problem is None:
        assert found == []
    else:
        assert problem in found[0]


def test_a_tag_before_towncrier_has_run(make: Make) -> None:
    [problem] = release_check.check_tag("machete-toy-v0.1.0", [make().package])
    assert "has no section for 0.1.0" in problem


def test_a_module_that_imports_what_is_not_declared(make: Make) -> None:
    toy = make(extra="machete/toy/sneaky.py")
    [problem] = release_check.check_alone(toy, {"machete-toy": toy})
    assert "No module named 'pytest'" in problem
