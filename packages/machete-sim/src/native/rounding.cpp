// Compiled with -frounding-math: the compiler must not move or fold these operations.
#include "rounding.hpp"

#include <cfenv>
#include <cmath>

namespace machete::sim {
namespace {

class Rounding {
public:
    explicit Rounding(int mode) : saved_(std::fegetround()) {
        static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
        std::fesetround(modes[mode & 3]);
    }
    ~Rounding() { std::fesetround(saved_); }
    Rounding(const Rounding&) = delete;
    Rounding& operator=(const Rounding&) = delete;

private:
    int saved_;
};

template <class T>
T compute(FloatOp op, int mode, T a, T b, T c) {
    const Rounding scope(mode);
    volatile T x = a, y = b, z = c, r;
    switch (op) {
        case FloatOp::add: r = x + y; break;
        case FloatOp::sub: r = x - y; break;
        case FloatOp::mul: r = x * y; break;
        case FloatOp::fma: r = std::fma(T(x), T(y), T(z)); break;
        case FloatOp::div: r = x / y; break;
        case FloatOp::sqrt: r = std::sqrt(T(x)); break;
    }
    return r;
}

template <class To, class From>
To convert(int mode, From a) {
    const Rounding scope(mode);
    volatile From x = a;
    volatile To r = static_cast<To>(x);
    return r;
}

}  // namespace

float rounded(FloatOp op, int mode, float a, float b, float c) { return compute<float>(op, mode, a, b, c); }
double rounded(FloatOp op, int mode, double a, double b, double c) { return compute<double>(op, mode, a, b, c); }
float round_to_float(int mode, double a) { return convert<float>(mode, a); }
float round_to_float(int mode, long long a) { return convert<float>(mode, a); }
float round_to_float(int mode, unsigned long long a) { return convert<float>(mode, a); }
double round_to_double(int mode, long long a) { return convert<double>(mode, a); }
double round_to_double(int mode, unsigned long long a) { return convert<double>(mode, a); }

}  // namespace machete::sim
