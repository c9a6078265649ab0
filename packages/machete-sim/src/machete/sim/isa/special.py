"""Special registers (PTX ISA chapter 10) and their numbers in native/control.cpp."""

_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
_SINGLES = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "lanemask_eq", "lanemask_le", "lanemask_lt",
    "lanemask_ge", "lanemask_gt", "clock", "clock_hi", "globaltimer", "globaltimer_hi",
    "dynamic_smem_size", "total_smem_size",
)  # fmt: skip
_ORDER = [f"{name}.{axis}" for name in _TRIPLES for axis in "xyz"] + list(_SINGLES)
_ZERO, _ONE = len(_ORDER), len(_ORDER) + 1

SPECIAL = {f"%{name}": index for index, name in enumerate(_ORDER)}
SPECIAL |= {"%clock64": SPECIAL["%clock"], "%globaltimer_lo": SPECIAL["%globaltimer"]}
# A cluster is one CTA.
SPECIAL |= {f"%cluster_ctaid.{axis}": _ZERO for axis in "xyz"}
SPECIAL |= {f"%cluster_nctaid.{axis}": _ONE for axis in "xyz"}
SPECIAL |= {f"%clusterid.{axis}": SPECIAL[f"%ctaid.{axis}"] for axis in "xyz"}
SPECIAL |= {f"%nclusterid.{axis}": SPECIAL[f"%nctaid.{axis}"] for axis in "xyz"}
SPECIAL |= {"%cluster_ctarank": _ZERO, "%cluster_nctarank": _ONE}
