// The engines as machete.sim._core.engine, for tests and for looking at one instruction by itself. The module that owns
// _core declares `void bind_engine(nanobind::module_&)` in namespace machete::sim and calls it from NB_MODULE.
//
// Registers are uint32 arrays [register, lane] of 32 lanes; a warpgroup's are [4 * registers, lane], warp by warp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "matrix.hpp"
#include "numbers.hpp"
#include "tensormap.hpp"

namespace nb = nanobind;

namespace machete::sim {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Registers = nb::ndarray<const uint32_t, nb::shape<-1, 32>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using NumpyVector = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
NumpyVector<T> owned(std::vector<T> values) {
    auto* storage = new std::vector<T>(std::move(values));
    nb::capsule owner(storage, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return NumpyVector<T>(storage->data(), {storage->size()}, owner);
}

// Owns a copy of registers, and the row pointers that the engines take.
class RegisterFile {
public:
    explicit RegisterFile(size_t count) : lanes_(count * 32) { point(); }
    explicit RegisterFile(const Registers& source) : lanes_(source.data(), source.data() + source.size()) { point(); }

    uint32_t* const* rows() const { return rows_.data(); }
    size_t count() const { return rows_.size(); }

    nb::ndarray<nb::numpy, uint32_t, nb::shape<-1, 32>> numpy() && {
        const size_t registers = count();
        auto* storage = new std::vector<uint32_t>(std::move(lanes_));
        nb::capsule owner(storage, [](void* p) noexcept { delete static_cast<std::vector<uint32_t>*>(p); });
        return nb::ndarray<nb::numpy, uint32_t, nb::shape<-1, 32>>(storage->data(), {registers, 32}, owner);
    }

private:
    void point() {
        rows_.resize(lanes_.size() / 32);
        for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = lanes_.data() + 32 * i;
    }

    std::vector<uint32_t> lanes_;
    std::vector<uint32_t*> rows_;
};

// Sizes come from Python here, so that a wrong test does not read past an array.
void require(bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument(what);
}

TensorMap decoded(const Bytes& raw) {
    require(raw.size() == 128, "a tensor map is 128 bytes");
    TensorMap map;
    std::string error;
    require(decode_tensormap(raw.data(), map, error), error);
    return map;
}

template <class T>
std::vector<T> list_of(const T* values, int count) {
    return std::vector<T>(values, values + count);
}

nb::dict describe(const TensorMap& map) {
    nb::dict out;
    out["rank"] = map.rank;
    out["base"] = map.base;
    out["dim"] = list_of(map.dim, map.rank);
    out["stride"] = list_of(map.stride, map.rank);
    out["box"] = list_of(map.box, map.rank);
    out["elem_stride"] = list_of(map.elem_stride, map.rank);
    out["elem_bits"] = map.elem_bits;
    out["dtype"] = map.dtype;
    out["swizzle"] = map.swizzle;
    return out;
}

void bind_tensormap(nb::module_& m) {
    m.def(
        "decode_tensormap", [](const Bytes& raw) { return describe(decoded(raw)); }, nb::arg("raw"),
        "Fields of a 128-byte hardware tensor map; ValueError with the reason if it is not one that is simulated.");
    m.def(
        "encode_tensormap",
        [](uint64_t base, int dtype, const std::vector<uint64_t>& dim, const std::vector<uint64_t>& stride,
           const std::vector<uint32_t>& box, const std::vector<uint32_t>& elem_stride, int swizzle) {
            const size_t rank = dim.size();
            require(rank >= 1 && rank <= 5, "rank is 1 to 5");
            require(stride.size() == rank && box.size() == rank && elem_stride.size() == rank,
                    "one entry per dimension");
            TensorMap map;
            map.rank = static_cast<int>(rank);
            map.base = base;
            map.dtype = dtype;
            map.swizzle = swizzle;
            std::copy(dim.begin(), dim.end(), map.dim);
            std::copy(stride.begin(), stride.end(), map.stride);
            std::copy(box.begin(), box.end(), map.box);
            std::copy(elem_stride.begin(), elem_stride.end(), map.elem_stride);
            std::vector<uint8_t> raw(128);
            encode_tensormap(map, raw.data());
            return owned(std::move(raw));
        },
        nb::arg("base"), nb::arg("dtype"), nb::arg("dim"), nb::arg("stride"), nb::arg("box"), nb::arg("elem_stride"),
        nb::arg("swizzle"));
    m.def(
        "check_tma",
        [](const Bytes& raw, std::vector<int32_t> coords, uint32_t shared_base, bool store) {
            const TensorMap map = decoded(raw);
            require(coords.size() == static_cast<size_t>(map.rank), "one coordinate per dimension");
            std::string error;
            require(check_tma(map, store ? TileCopy::store : TileCopy::load, coords.data(), shared_base, error),
                    error);
        },
        nb::arg("raw"), nb::arg("coords"), nb::arg("shared_base"), nb::kw_only(), nb::arg("store") = false);
    m.def("tile_bytes", [](const Bytes& raw) { return tile_bytes(decoded(raw)); }, nb::arg("raw"));
    m.def(
        "tile_chunks",
        [](const Bytes& raw, std::vector<int32_t> coords, uint32_t shared_base, bool store) {
            const TensorMap map = decoded(raw);
            require(coords.size() == static_cast<size_t>(map.rank), "one coordinate per dimension");
            std::vector<TileChunk> chunks;
            tile_chunks(map, store ? TileCopy::store : TileCopy::load, coords.data(), shared_base, chunks);
            std::vector<std::tuple<uint64_t, uint32_t, uint32_t, bool>> out;
            for (const TileChunk& chunk : chunks)
                out.emplace_back(chunk.global, chunk.shared, chunk.bytes, chunk.oob);
            return out;
        },
        nb::arg("raw"), nb::arg("coords"), nb::arg("shared_base"), nb::kw_only(), nb::arg("store") = false,
        "The (global address, shared address, bytes, out of bounds) pieces of a tile.");
    m.def("swizzle_address", &swizzle_address, nb::arg("address"), nb::arg("swizzle"), nb::arg("atom") = 16);
}

Element element_named(const std::string& name) {
    constexpr const char* names[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f32", "s32", "b1"};
    for (size_t i = 0; i < std::size(names); ++i) {
        if (name == names[i]) return static_cast<Element>(i);
    }
    throw std::invalid_argument("no element type " + name);
}

void bind_matrix(nb::module_& m) {
    m.def(
        "mma_sync",
        [](int k, const std::string& a_type, const std::string& b_type, const std::string& d_type, const Registers& a,
           const Registers& b, const Registers& c, bool satfinite) {
            const MmaKind kind{k, element_named(a_type), element_named(b_type), element_named(d_type), satfinite};
            MmaRegisters registers;
            require(mma_registers(kind, registers), "no such mma.sync");
            const auto fits = [](const Registers& given, int wanted) {
                return given.shape(0) == static_cast<size_t>(wanted);
            };
            require(fits(a, registers.a) && fits(b, registers.b) && fits(c, registers.d),
                    "wrong number of registers");
            const RegisterFile a_file(a), b_file(b), c_file(c);
            RegisterFile d(c_file.count());
            mma_sync(kind, a_file.rows(), b_file.rows(), c_file.rows(), d.rows());
            return std::move(d).numpy();
        },
        nb::arg("k"), nb::arg("a_type"), nb::arg("b_type"), nb::arg("d_type"), nb::arg("a"), nb::arg("b"),
        nb::arg("c"), nb::arg("satfinite") = false, "mma.sync m16n8k{k}; returns d's registers.");
    m.def(
        "wgmma",
        [](int n, int k, const std::string& a_type, const std::string& b_type, const std::string& d_type,
           const Registers& d, uint64_t b_descriptor, const Bytes& shared, std::optional<uint64_t> a_descriptor,
           std::optional<Registers> a, bool scale_d, std::tuple<bool, bool> mn_major, std::tuple<bool, bool> negate,
           bool satfinite, uint32_t shared_base, std::optional<Bytes> written) {
            const WgmmaKind kind{n,
                                 k,
                                 element_named(a_type),
                                 element_named(b_type),
                                 element_named(d_type),
                                 std::get<0>(mn_major),
                                 std::get<1>(mn_major),
                                 std::get<0>(negate),
                                 std::get<1>(negate),
                                 satfinite};
            const int accumulators = wgmma_accumulators(kind);
            require(accumulators > 0, "no such wgmma");
            require(d.shape(0) == 4 * static_cast<size_t>(accumulators), "wrong number of accumulators");
            require(a.has_value() != a_descriptor.has_value(), "give a or a_descriptor");
            require(!a || a->shape(0) == 16, "a is 4 registers of 4 warps");
            require(!written || written->size() == shared.size(), "one flag per byte of shared memory");
            std::unique_ptr<RegisterFile> a_file;
            if (a) a_file = std::make_unique<RegisterFile>(*a);
            RegisterFile d_file(d);
            const SharedView view{shared.data(), shared_base, static_cast<uint32_t>(shared.size()),
                                  written ? written->data() : nullptr};
            SharedFault fault;
            std::vector<uint32_t> chunks;
            if (!wgmma(kind, d_file.rows(), a_file ? a_file->rows() : nullptr, a_descriptor.value_or(0), b_descriptor,
                       scale_d, view, chunks, fault)) {
                throw std::invalid_argument(fault.message + " (first bad byte at " + std::to_string(fault.address) +
                                            ")");
            }
            return std::move(d_file).numpy();
        },
        nb::arg("n"), nb::arg("k"), nb::arg("a_type"), nb::arg("b_type"), nb::arg("d_type"), nb::arg("d"),
        nb::arg("b_descriptor"), nb::arg("shared"), nb::kw_only(), nb::arg("a_descriptor") = nb::none(),
        nb::arg("a") = nb::none(), nb::arg("scale_d") = true, nb::arg("mn_major") = std::make_tuple(false, false),
        nb::arg("negate") = std::make_tuple(false, false), nb::arg("satfinite") = false, nb::arg("shared_base") = 0,
        nb::arg("written") = nb::none(), "wgmma m64n{n}k{k}; returns d's registers.");
    m.def(
        "ldmatrix",
        [](const Bytes& rows, bool transposed) {
            require(rows.size() % 128 == 0 && rows.size() > 0 && rows.size() <= 512,
                    "1, 2 or 4 matrices of 128 bytes");
            RegisterFile d(rows.size() / 128);
            ldmatrix_unpack(static_cast<int>(d.count()), transposed,
                            reinterpret_cast<const uint8_t (*)[16]>(rows.data()), d.rows());
            return std::move(d).numpy();
        },
        nb::arg("rows"), nb::arg("transposed") = false);
    m.def(
        "stmatrix",
        [](const Registers& s, bool transposed) {
            require(s.shape(0) >= 1 && s.shape(0) <= 4, "1, 2 or 4 registers");
            const RegisterFile file(s);
            std::vector<uint8_t> rows(128 * file.count());
            stmatrix_pack(static_cast<int>(file.count()), transposed, file.rows(),
                          reinterpret_cast<uint8_t (*)[16]>(rows.data()));
            return owned(std::move(rows));
        },
        nb::arg("s"), nb::arg("transposed") = false);
}

Rounding rounding_named(const std::string& name) {
    if (name == "rn") return Rounding::nearest_even;
    if (name == "rz") return Rounding::toward_zero;
    if (name == "rna") return Rounding::nearest_away;
    if (name == "rp") return Rounding::up;
    throw std::invalid_argument("no rounding " + name);
}

template <class To, class From, class Function>
auto map_vector(const Vector<From>& in, Function function) {
    std::vector<To> out(in.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = function(in.data()[i]);
    return owned(std::move(out));
}

template <class From>
void bind_widening(nb::module_& m, const char* name, float (*function)(From)) {
    m.def(
        name, [function](const Vector<From>& in) { return map_vector<float, From>(in, function); },
        nb::arg("values"));
}

template <class To>
void bind_narrowing(nb::module_& m, const char* name, To (*function)(float, Narrowing)) {
    m.def(
        name,
        [function](const Vector<float>& in, const std::string& rounding, bool satfinite, bool relu) {
            const Narrowing how{rounding_named(rounding), satfinite, relu};
            return map_vector<To, float>(in, [&](float value) { return function(value, how); });
        },
        nb::arg("values"), nb::arg("rounding") = "rn", nb::arg("satfinite") = false, nb::arg("relu") = false);
}

void bind_saturating(nb::module_& m, const char* name, uint8_t (*function)(float, bool)) {
    m.def(
        name,
        [function](const Vector<float>& in, bool relu) {
            return map_vector<uint8_t, float>(in, [&](float value) { return function(value, relu); });
        },
        nb::arg("values"), nb::arg("relu") = false);
}

void bind_fma(nb::module_& m, const char* name, uint16_t (*function)(uint16_t, uint16_t, uint16_t, Narrowing)) {
    m.def(
        name,
        [function](const Vector<uint16_t>& a, const Vector<uint16_t>& b, const Vector<uint16_t>& c, bool relu) {
            require(a.size() == b.size() && a.size() == c.size(), "operands of one length");
            std::vector<uint16_t> out(a.size());
            for (size_t i = 0; i < out.size(); ++i) {
                out[i] = function(a.data()[i], b.data()[i], c.data()[i], Narrowing{.relu = relu});
            }
            return owned(std::move(out));
        },
        nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("relu") = false);
}

void bind_numbers(nb::module_& m) {
    bind_widening<uint16_t>(m, "f32_from_f16", f32_from_f16);
    bind_widening<uint16_t>(m, "f32_from_bf16", f32_from_bf16);
    bind_widening<uint32_t>(m, "f32_from_tf32", f32_from_tf32);
    bind_widening<uint8_t>(m, "f32_from_e4m3", f32_from_e4m3);
    bind_widening<uint8_t>(m, "f32_from_e5m2", f32_from_e5m2);
    bind_widening<uint8_t>(m, "f32_from_e2m1", f32_from_e2m1);
    bind_widening<uint8_t>(m, "f32_from_ue8m0", f32_from_ue8m0);
    bind_narrowing<uint16_t>(m, "f16_from_f32", f16_from_f32);
    bind_narrowing<uint16_t>(m, "bf16_from_f32", bf16_from_f32);
    bind_narrowing<uint32_t>(m, "tf32_from_f32", tf32_from_f32);
    bind_saturating(m, "e4m3_from_f32", e4m3_from_f32);
    bind_saturating(m, "e5m2_from_f32", e5m2_from_f32);
    bind_saturating(m, "e2m1_from_f32", e2m1_from_f32);
    m.def(
        "ue8m0_from_f32",
        [](const Vector<float>& in, const std::string& rounding, bool satfinite) {
            const Rounding how = rounding_named(rounding);
            return map_vector<uint8_t, float>(in, [&](float value) { return ue8m0_from_f32(value, how, satfinite); });
        },
        nb::arg("values"), nb::arg("rounding"), nb::arg("satfinite") = false);
    m.def(
        "f32_round_to_odd", [](const Vector<double>& in) { return map_vector<float, double>(in, f32_round_to_odd); },
        nb::arg("values"));
    bind_fma(m, "fma_f16", fma_f16);
    bind_fma(m, "fma_bf16", fma_bf16);
    m.def(
        "add_f16x2",
        [](const Vector<uint32_t>& a, const Vector<uint32_t>& b) {
            require(a.size() == b.size(), "operands of one length");
            std::vector<uint32_t> out(a.size());
            for (size_t i = 0; i < out.size(); ++i) {
                out[i] = map_f16x2([](float x, float y) { return x + y; }, a.data()[i], b.data()[i]);
            }
            return owned(std::move(out));
        },
        nb::arg("a"), nb::arg("b"));
}

}  // namespace

void bind_engine(nb::module_& m) {
    nb::module_ engine = m.def_submodule("engine", "TMA geometry, tensor-core instructions and number formats.");
    bind_tensormap(engine);
    bind_matrix(engine);
    bind_numbers(engine);
}

}  // namespace machete::sim
