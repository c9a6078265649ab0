"""float32, float64, float16 and bfloat16 arithmetic (PTX ISA 9.7.3 to 9.7.5)."""

from .table import compute

RND = "{rnd:rn|rz|rm|rp}"
HALF = "{t:f16|bf16|f16x2|bf16x2}"

for _op in ("add", "sub", "mul"):
    compute(f"{_op}[.{RND}][.{{ftz:ftz}}][.{{sat:sat}}].{{t:f32}}", f"{_op}.f32", "t t t", "9.7.3")
    compute(f"{_op}[.{RND}].{{t:f64}}", f"{_op}.f64", "t t t", "9.7.3")
    compute(f"{_op}[.{RND}][.{{ftz:ftz}}].{{t:f32x2}}", f"{_op}.f32x2", "t t t", "9.7.3")
    compute(f"{_op}[.rn][.{{ftz:ftz}}][.{{sat:sat}}].{{t:f16|f16x2}}", f"{_op}.{{t}}", "t t t", "9.7.4")
    compute(f"{_op}[.rn].{{t:bf16|bf16x2}}", f"{_op}.{{t}}", "t t t", "9.7.4")
compute(f"fma.{RND}[.{{ftz:ftz}}][.{{sat:sat}}].{{t:f32}}", "fma.f32", "t t t t", "9.7.3.6")
compute(f"mad.{RND}[.{{ftz:ftz}}][.{{sat:sat}}].{{t:f32}}", "fma.f32", "t t t t", "9.7.3.7")
compute(f"fma.{RND}.{{t:f64}}", "fma.f64", "t t t t", "9.7.3.6")
compute(f"mad.{RND}.{{t:f64}}", "fma.f64", "t t t t", "9.7.3.7")
compute(f"fma.{RND}[.{{ftz:ftz}}].{{t:f32x2}}", "fma.f32x2", "t t t t", "9.7.3.6")
compute("fma.rn[.{ftz:ftz}][.{sat:sat}].{t:f16|f16x2}", "fma.{t}", "t t t t", "9.7.4.4")
compute("fma.rn[.{ftz:ftz}].{relu:relu}.{t:f16|f16x2}", "fma.{t}", "t t t t", "9.7.4.4")
compute("fma.rn[.{relu:relu}].{t:bf16|bf16x2}", "fma.{t}", "t t t t", "9.7.4.4")

# Mixed precision: d and c are float32
for _op in ("add", "sub"):
    compute(f"{_op}[.{RND}][.{{sat:sat}}].f32.{{t:f16|bf16}}", f"{_op}.f32.{{t}}", "f32 t f32", "9.7.5")
compute(f"fma.{RND}[.{{sat:sat}}].f32.{{t:f16|bf16}}", "fma.f32.{t}", "f32 t t f32", "9.7.5.3")

compute(f"div.{RND}[.{{ftz:ftz}}].{{t:f32}}", "div.f32", "t t t", "9.7.3.8")
compute("div.{how:approx|full}[.{ftz:ftz}].{t:f32}", "div.f32", "t t t", "9.7.3.8")
compute(f"div.{RND}.{{t:f64}}", "div.f64", "t t t", "9.7.3.8")
for _op in ("abs", "neg"):
    compute(f"{_op}[.{{ftz:ftz}}].{{t:f32}}", f"{_op}.f32", "t t", "9.7.3.9")
    compute(f"{_op}.{{t:f64}}", f"{_op}.f64", "t t", "9.7.3.9")
    compute(f"{_op}[.{{ftz:ftz}}].{{t:f16|f16x2}}", f"{_op}.{{t}}", "t t", "9.7.4.5")
    compute(f"{_op}.{{t:bf16|bf16x2}}", f"{_op}.{{t}}", "t t", "9.7.4.5")
for _op in ("min", "max"):
    compute(f"{_op}[.{{ftz:ftz}}][.{{nan:NaN}}].{{t:f32}}", f"{_op}.f32", "t t t t", "9.7.3.11", optional=1)
    compute(f"{_op}[.{{ftz:ftz}}][.{{nan:NaN}}].{{xorsign:xorsign}}.abs.{{t:f32}}", f"{_op}.f32", "t t t", "9.7.3.11")
    compute(f"{_op}.{{t:f64}}", f"{_op}.f64", "t t t", "9.7.3.11")
    compute(
        f"{_op}[.{{ftz:ftz}}][.{{nan:NaN}}][.{{xorsign:xorsign}}.abs].{{t:f16|f16x2}}",
        f"{_op}.{{t}}",
        "t t t",
        "9.7.4.7",
    )
    compute(f"{_op}[.{{nan:NaN}}][.{{xorsign:xorsign}}.abs].{{t:bf16|bf16x2}}", f"{_op}.{{t}}", "t t t", "9.7.4.7")
compute(f"rcp.{RND}[.{{ftz:ftz}}].{{t:f32}}", "rcp.f32", "t t", "9.7.3.13")
compute("rcp.approx[.{ftz:ftz}].{t:f32}", "rcp.f32", "t t", "9.7.3.13")
compute(f"rcp.{RND}.{{t:f64}}", "rcp.f64", "t t", "9.7.3.13")
compute(f"sqrt.{RND}[.{{ftz:ftz}}].{{t:f32}}", "sqrt.f32", "t t", "9.7.3.15")
compute("sqrt.approx[.{ftz:ftz}].{t:f32}", "sqrt.f32", "t t", "9.7.3.15")
compute(f"sqrt.{RND}.{{t:f64}}", "sqrt.f64", "t t", "9.7.3.15")
compute("rsqrt.approx[.{ftz:ftz}].{t:f32}", "rsqrt.f32", "t t", "9.7.3.16")
compute("rsqrt.approx.{t:f64}", "rsqrt.f64", "t t", "9.7.3.16")
for _op in ("sin", "cos", "lg2", "ex2"):
    compute(f"{_op}.approx[.{{ftz:ftz}}].{{t:f32}}", f"{_op}.f32", "t t", "9.7.3.18")
compute("tanh.approx.{t:f32}", "tanh.f32", "t t", "9.7.3.22")
compute("ex2.approx.{t:f16|f16x2}", "ex2.{t}", "t t", "9.7.4.10")
compute("ex2.approx.{ftz:ftz}.{t:bf16|bf16x2}", "ex2.{t}", "t t", "9.7.4.10")
compute(f"tanh.approx.{HALF}", "tanh.{t}", "t t", "9.7.4.9")
compute("copysign.{t:f32|f64}", "copysign.{t}", "t t t", "9.7.3.2")
