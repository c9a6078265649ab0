// Directed rounding, computed with the rounding mode of the processor.
// mode: 0 nearest even, 1 towards zero, 2 down, 3 up (Inst::mod & kRoundMask).
#pragma once

namespace machete::sim {

enum class FloatOp { add, sub, mul, fma, div, sqrt };

float rounded(FloatOp op, int mode, float a, float b, float c);
double rounded(FloatOp op, int mode, double a, double b, double c);
float round_to_float(int mode, double a);
float round_to_float(int mode, long long a);
float round_to_float(int mode, unsigned long long a);
double round_to_double(int mode, long long a);
double round_to_double(int mode, unsigned long long a);

}  // namespace machete::sim
