"""Special registers (PTX ISA chapter 10) and their numbers in native/control.cpp."""

_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
_SINGLES = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "lanemask_eq", "lanemask_le", "lanemask_lt",
    "lanemask_ge", "lanemask_gt", "clock", "clock_hi", "globaltimer", "globaltimer_hi",
    "dynamic_smem_size", "total_smem_size",
)  # fmt: skip
_CLUSTER = ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
_ORDER = [f"{name}.{axis}" for name in _TRIPLES for axis in "xyz"] + list(_SINGLES)
_ORDER += [f"{name}.{axis}" for name in _CLUSTER for axis in "xyz"] + ["cluster_ctarank", "cluster_nctarank"]

SPECIAL = {f"%{name}": index for index, name in enumerate(_ORDER)}
SPECIAL |= {"%clock64": SPECIAL["%clock"], "%globaltimer_lo": SPECIAL["%globaltimer"]}
