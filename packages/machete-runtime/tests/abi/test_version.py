"""Which op packages this runtime serves, and on which architectures."""

from __future__ import annotations

import pytest

from machete.megakernel.abi import ABI, TARGETS, AbiMismatchError, Target, version


@pytest.mark.parametrize("need", [ABI, (ABI[0], 0)])
def test_the_provided_minor_version_and_those_before_are_served(need):
    version.check(need, "machete-ops-example")


@pytest.mark.parametrize("need", [(ABI[0], ABI[1] + 1), (ABI[0] + 1, 0), (ABI[0] - 1, 0)])
def test_later_minor_versions_and_other_majors_are_not(need):
    with pytest.raises(AbiMismatchError, match=f"machete-ops-example needs Op ABI {need[0]}.{need[1]}"):
        version.check(need, "machete-ops-example")


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_found_by_name_and_by_card(name):
    target = Target.named(name)
    assert target.name == name
    assert Target.of_capability(target.compute_capability) is target
