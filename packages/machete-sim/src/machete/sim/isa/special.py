"""Special registers (PTX ISA chapter 10) and their numbers in native/control.cpp."""

_ORDER = [
    "tid.x",
    "tid.y",
    "tid.z",
    "ntid.x",
    "ntid.y",
    "ntid.z",
    "ctaid.x",
    "ctaid.y",
    "ctaid.z",
    "nctaid.x",
    "nctaid.y",
    "nctaid.z",
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "gridid",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "clock",
    "clock_hi",
    "globaltimer",
    "globaltimer_hi",
    "dynamic_smem_size",
    "total_smem_size",
]
_ZERO, _ONE = len(_ORDER), len(_ORDER) + 1

SPECIAL = {f"%{name}": index for index, name in enumerate(_ORDER)}
SPECIAL |= {"%clock64": SPECIAL["%clock"], "%globaltimer_lo": SPECIAL["%globaltimer"]}
# A cluster is one CTA.
SPECIAL |= {f"%cluster_ctaid.{axis}": _ZERO for axis in "xyz"}
SPECIAL |= {f"%cluster_nctaid.{axis}": _ONE for axis in "xyz"}
SPECIAL |= {f"%clusterid.{axis}": SPECIAL[f"%ctaid.{axis}"] for axis in "xyz"}
SPECIAL |= {f"%nclusterid.{axis}": SPECIAL[f"%nctaid.{axis}"] for axis in "xyz"}
SPECIAL |= {"%cluster_ctarank": _ZERO, "%cluster_nctarank": _ONE}
