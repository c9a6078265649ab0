"""Op packages: found, judged by their metadata, loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from machete.megakernel.abi.errors import AbiMismatchError, OpLoadError, OpNotFoundError
from machete.megakernel.abi.version import ABI
from machete.megakernel.registry import GROUP, InstalledOp, installed_ops, load, needed_abi

Install = Callable[..., object]

MAJOR, MINOR = ABI
FITTING = f"machete-runtime>={MAJOR}.{MINOR},<{MAJOR + 1}"

OP = """
    from machete.megakernel import Op

    class Scale(Op):
        reads = {"x": (None, ("N",))}
        writes = {"y": (None, ("N",))}

        def compute(self, x, y):
            pass
"""


@pytest.fixture(autouse=True)
def forget_fake_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test writes its own module `fake_ops`."""
    monkeypatch.delitem(sys.modules, "fake_ops", raising=False)


def announce(
    install: Install, name: str = "fake-ops", *, op: str = "fake-scale", requires: str = FITTING, **more: object
) -> None:
    target = more.pop("target", "fake_ops:Scale")
    install(name, requires=[requires], entry_points={GROUP: {op: target}}, **more)


def rows(*, load: bool = False) -> list[InstalledOp]:
    """The rows of this file's distributions; others may be installed too."""
    return [row for row in installed_ops(load=load) if row.distribution.startswith(("fake", "other"))]


def row(*, load: bool = False) -> InstalledOp:
    [only] = rows(load=load)
    return only


def test_a_fitting_package_is_available_and_not_imported(install: Install) -> None:
    announce(install, version="2.5", modules={"fake_ops": "raise AssertionError('imported')"})
    found = row()
    assert (found.name, found.source) == ("fake-scale", "fake_ops:Scale")
    assert (found.distribution, found.version) == ("fake-ops", "2.5")
    assert (found.abi, found.status, found.reason) == (ABI, "available", "")
    assert found.op is None
    assert "fake_ops" not in sys.modules


@pytest.mark.parametrize(
    ("requires", "abi", "reason"),
    [
        pytest.param(f"machete-runtime>={MAJOR}.0,<{MAJOR + 1}", (MAJOR, 0), "", id="older minor"),
        pytest.param(f"machete-runtime>={MAJOR}.{MINOR}.0", ABI, "", id="a patch release is the same ABI"),
        pytest.param(f"Machete_Runtime[sim] ~= {MAJOR}.{MINOR}.0", ABI, "", id="spelt otherwise"),
        pytest.param(
            f"machete-runtime>={MAJOR}.{MINOR + 1},<{MAJOR + 1}",
            (MAJOR, MINOR + 1),
            f"fake-ops needs Op ABI {MAJOR}.{MINOR + 1}; this runtime provides {MAJOR}.{MINOR}",
            id="newer minor",
        ),
        pytest.param(
            f"machete-runtime>={MAJOR + 1}.0,<{MAJOR + 2}",
            (MAJOR + 1, 0),
            f"fake-ops needs Op ABI {MAJOR + 1}.0; this runtime provides {MAJOR}.{MINOR}",
            id="other major",
        ),
        pytest.param("machete-runtime", None, "fake-ops does not declare the Op ABI that it needs", id="no range"),
        pytest.param("machete-runtime<9", None, "fake-ops does not declare the Op ABI that it needs", id="no floor"),
        pytest.param("numpy>=1", None, "fake-ops does not declare the Op ABI that it needs", id="no requirement"),
        pytest.param("(:", None, "fake-ops does not declare the Op ABI that it needs", id="no requirement at all"),
    ],
)
def test_the_abi_is_negotiated_from_metadata(
    install: Install, requires: str, abi: tuple[int, int] | None, reason: str
) -> None:
    announce(install, requires=requires)
    found = row()
    assert (found.abi, found.reason) == (abi, reason)
    assert found.status == ("rejected" if reason else "available")
    if reason:
        assert row(load=True).reason == reason
        with pytest.raises(AbiMismatchError, match="fake-ops"):
            load("fake-scale")


def test_the_packages_own_upper_bound_counts(install: Install) -> None:
    install("machete-runtime", version=f"{MAJOR}.{MINOR + 1}")
    announce(install, requires=f"machete-runtime>={MAJOR}.{MINOR},<{MAJOR}.{MINOR + 1}")
    assert row().reason.startswith("fake-ops asks for machete-runtime")
    assert row().reason.endswith(f"{MAJOR}.{MINOR + 1} is installed")


@pytest.mark.parametrize(
    ("requires", "abi"),
    [
        (["machete-runtime>=0.1; extra == 'gpu'", "machete-runtime>=7.0; extra == 'none'"], (0, 1)),
        (["machete-runtime>=0.1", "machete-runtime>=7.0; python_version < '3'"], (0, 1)),
        (["machete-runtime>=0.1", "machete-runtime>=0.3,<1"], (0, 3)),
        (["machete-runtime==0.2.*"], (0, 2)),
    ],
)
def test_several_requirements_on_the_runtime(requires: list[str], abi: tuple[int, int]) -> None:
    assert needed_abi(requires, ["gpu"])[0] == abi


def test_load_returns_the_class(install: Install) -> None:
    announce(install, modules={"fake_ops": OP})
    op = load("fake-scale")
    assert op.__name__ == "Scale"
    assert row(load=True).op is op
    assert row().op is None


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError: "),
        ("other = 1", "AttributeError: module 'fake_ops' has no attribute 'Scale'"),
        ("Scale = 3", "fake_ops:Scale is no Op subclass, but 3"),
        ("class Scale: pass", "fake_ops:Scale is no Op subclass, but <class 'fake_ops.Scale'>"),
        ("from machete.megakernel import Op\nclass Scale(Op, abstract=True): pass", "fake_ops:Scale is abstract"),
        ("from machete.megakernel import Op\nclass Scale(Op): pass", "OpDefinitionError: op Scale: writes is empty"),
    ],
)
def test_a_broken_op_is_a_row_when_listed_and_an_error_when_loaded(install: Install, module: str, reason: str) -> None:
    announce(install, modules={"fake_ops": module})
    assert row().status == "available", "metadata alone does not tell"
    found = row(load=True)
    assert found.status == "rejected"
    assert reason in found.reason
    assert "\n" not in found.reason
    with pytest.raises(OpLoadError) as caught:
        load("fake-scale")
    assert reason in caught.value.what
    assert isinstance(caught.value, ImportError)


def test_a_class_that_needs_more_than_its_package_declares(install: Install) -> None:
    newer = OP.replace("reads =", f"abi = ({MAJOR}, {MINOR + 1}); reads =", 1)
    announce(install, modules={"fake_ops": newer})
    assert row().status == "available"
    assert f"needs Op ABI {MAJOR}.{MINOR + 1}" in row(load=True).reason
    with pytest.raises(AbiMismatchError):
        load("fake-scale")


def test_one_name_for_two_ops_rejects_both(install: Install) -> None:
    announce(install, "fake-ops", modules={"fake_ops": OP})
    announce(install, "other-ops", target="other_ops:Scale")
    assert [found.status for found in rows()] == ["rejected", "rejected"]
    for found in rows():
        assert "fake-ops (fake_ops:Scale), other-ops (other_ops:Scale)" in found.reason
    with pytest.raises(OpNotFoundError, match="announced more than once"):
        load("fake-scale")


def test_a_package_that_does_not_fit_takes_no_name(install: Install) -> None:
    announce(install, "other-ops", requires=f"machete-runtime>={MAJOR + 1}.0")
    announce(install, "fake-ops", modules={"fake_ops": OP})
    assert [found.status for found in rows()] == ["available", "rejected"]
    assert load("fake-scale").__module__ == "fake_ops"


def test_an_unknown_name(install: Install) -> None:
    announce(install)
    with pytest.raises(OpNotFoundError, match="did you mean `fake-scale`") as caught:
        load("fake-scal")
    assert isinstance(caught.value, LookupError)


def test_broken_metadata_is_a_row_and_hides_no_other_package(install: Install) -> None:
    install("other-ops", entry_points=f"[{GROUP}]\nno equals sign\n")
    announce(install)
    broken, good = sorted(rows(), key=lambda found: found.status, reverse=True)
    assert good.status == "available"
    assert broken.status == "rejected"
    assert broken.reason.startswith("the metadata of other_ops-1.0.dist-info cannot be read")


def test_of_one_distribution_on_the_path_twice_the_first_counts(
    install: Install, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(install, version="2.0")
    shadowed = tmp_path_factory.mktemp("shadowed") / "fake_ops-1.0.dist-info"
    shadowed.mkdir()
    (shadowed / "METADATA").write_text("Metadata-Version: 2.1\nName: Fake_Ops\nVersion: 1.0\n")
    (shadowed / "entry_points.txt").write_text(f"[{GROUP}]\nfake-scale = fake_ops:Scale\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(shadowed.parent)])
    assert row().version == "2.0"
