// tcgen05.mma, cp, shift and commit (PTX ISA 9.7.16.9, 9.7.16.10): they wait in the queue of the CTA that issues them
// and execute in order, at a random time later. What a commit reports to has no other way to know that they are done.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"
#include "shared_address.hpp"
#include "tensor_memory.hpp"
#include "tensor_product.hpp"
#include "widen.hpp"

namespace machete::sim {

void Machine::issue_tensor(Warp& warp, std::unique_ptr<TensorOperation> operation) {
    operation->warp = &warp;
    operation->pc = warp.pc;
    uint64_t& until = warp.cta->tensor_until;
    const uint64_t begin = std::max(until, now);
    operation->time = until = begin + operation->duration();
    if (recorder && !operation->only_signals())
        recorder->operation(SliceKind::product, warp, warp.pc, begin, operation->time);
    ++warp.effects;
    ++progress;
    if (warp.cta->tensor_queue.empty()) tensor_busy_.push_back(warp.cta);
    warp.cta->tensor_queue.push_back(std::move(operation));
}

void Machine::complete_tensor(Cta& cta) {
    const std::unique_ptr<TensorOperation> operation = std::move(cta.tensor_queue.front());
    cta.tensor_queue.pop_front();
    if (cta.tensor_queue.empty()) std::erase(tensor_busy_, &cta);
    ++progress;
    const uint64_t before = now;
    now = operation->time;
    try {
        operation->execute(*this);
    } catch (const Fault& fault) {
        const Warp& w = *operation->warp;
        throw LocatedFault{fault.kind,
                           fault.message,
                           fault.lanes,
                           {cta.id[0], cta.id[1], cta.id[2]},
                           static_cast<int>(w.index),
                           operation->pc,
                           w.mark_pc,
                           w.mark_values,
                           {}};
    }
    stats_.simulated_ns = std::max(stats_.simulated_ns, clock());
    now = before;
}

void Machine::tensor_check_exit(Cta& cta) {
    const auto pending =
        std::find_if(cta.tensor_queue.begin(), cta.tensor_queue.end(), [](const auto& o) { return !o->only_signals(); });
    if (pending != cta.tensor_queue.end()) {
        const TensorOperation& operation = **pending;
        throw LocatedFault{FaultKind::race,
                           "the CTA ended while this tcgen05 operation was in flight; nothing waited for it",
                           1u << operation.lane,
                           {cta.id[0], cta.id[1], cta.id[2]},
                           static_cast<int>(operation.warp->index),
                           operation.pc,
                           operation.warp->mark_pc,
                           operation.warp->mark_values,
                           {}};
    }
    while (!cta.tensor_queue.empty()) complete_tensor(cta);
    if (!cta.tensor) return;
    const auto& owner = cta.tensor->owner;
    const auto leak = std::find_if(owner.begin(), owner.end(), [](uint16_t o) { return o != 0; });
    if (leak == owner.end()) return;
    const auto columns = std::count_if(owner.begin(), owner.end(), [](uint16_t o) { return o != 0; });
    throw LocatedFault{FaultKind::tensor_memory,
                       format("the CTA ended with %d columns of tensor memory allocated, the first is %d "
                              "(tcgen05.dealloc is missing)",
                              static_cast<int>(columns), static_cast<int>(leak - owner.begin())),
                       0,
                       {cta.id[0], cta.id[1], cta.id[2]},
                       -1,
                       ~0u,
                       ~0u,
                       {},
                       {}};
}

namespace {

SharedView view_of(const Cta& cta) {
    return {cta.shared + cta.shared_begin, kSharedBase, cta.shared_end - cta.shared_begin,
            cta.shadow + cta.shared_begin};
}

[[noreturn]] void refuse(Machine& machine, const Cta& cta, const SharedFault& fault, uint32_t lane, const char* what) {
    static const FaultKind kinds[] = {FaultKind::unsupported, FaultKind::descriptor, FaultKind::misaligned,
                                      FaultKind::out_of_bounds, FaultKind::uninitialised};
    if (fault.kind == SharedFault::Kind::uninitialised)
        uninitialised(cta, machine, fault.address + (cta.rank << kRankShift), 1, lane, what);
    throw Fault{kinds[static_cast<int>(fault.kind)], fault.message, 1u << lane};
}

constexpr uint64_t kAllWritten = 0x0101010101010101ull;  // eight bytes of a shadow

// What an operation will read from shared memory. It must not change until the operation has executed.
struct Operand {
    Cta* cta;
    std::vector<uint32_t> chunks;  // addresses of 16 bytes
    uint64_t sum = 0;

    uint64_t checksum() const {
        return checksum_of_chunks(cta->shared + (cta->rank << kRankShift), chunks);
    }
    // When the operation is issued: all of it must be there already.
    void take(Machine& machine, uint32_t lane, const char* what) {
        const uint8_t* window = cta->shadow + (cta->rank << kRankShift);
        const uint32_t end = cta->shared_end - (cta->rank << kRankShift);
        for (const uint32_t address : chunks) {
            SharedFault fault{SharedFault::Kind::out_of_range, address, {}};
            if (address < kSharedBase || address + 16 > end) {
                fault.message = "matrix operand lies outside shared memory";
                refuse(machine, *cta, fault, lane, what);
            }
            uint64_t flags[2];
            std::memcpy(flags, window + address, 16);
            if (flags[0] == kAllWritten && flags[1] == kAllWritten) continue;
            uint32_t hole = address;
            while (window[hole] == 1) ++hole;
            fault = {SharedFault::Kind::uninitialised, hole, {}};
            refuse(machine, *cta, fault, lane, what);
        }
        sum = checksum();
    }
    void verify(uint32_t lane) const {
        if (checksum() != sum)
            throw Fault{FaultKind::race,
                        "shared memory that this tcgen05 operation reads was overwritten before it had completed",
                        1u << lane};
    }
};

void record_reads(Warp& w, const Operand& operand, uint32_t lane) {
    if (!w.clock) return;
    for (const uint32_t address : operand.chunks)
        w.machine->checker->tensor_reads(w, *operand.cta, address + (operand.cta->rank << kRankShift), 16, lane);
}

// ---- mma -----------------------------------------------------------------------------------------------------

enum Kind { kF16, kTf32, kF8F6F4, kI8, kMxF8F6F4, kMxF4, kMxF4NvF4 };

struct Shape {
    uint32_t m = 0, n = 0, k = 0;
    TensorElement a = TensorElement::f16, b = TensorElement::f16;
    enum Accumulator { f16, f32, s32 } d = f32;
    bool a_mn_major = false, b_mn_major = false, negate_a = false, negate_b = false, saturate = false;
    // block scaling
    uint32_t scales = 0;  // a row; 0: none
    uint32_t a_scale_byte = 0, b_scale_byte = 0;
    bool scale_e8m0 = false;
};

[[noreturn]] void bad_instruction(uint32_t lane, const std::string& why) {
    throw Fault{FaultKind::descriptor, "tcgen05.mma instruction descriptor: " + why, 1u << lane};
}

TensorElement narrow_element(uint32_t code, uint32_t lane) {
    switch (code) {
        case 0: return TensorElement::e4m3;
        case 1: return TensorElement::e5m2;
        case 3: return TensorElement::e2m3;
        case 4: return TensorElement::e3m2;
        case 5: return TensorElement::e2m1;
        default: bad_instruction(lane, format("element format %u does not exist for this kind", code));
    }
}

TensorElement element_of(Kind kind, uint32_t code, uint32_t lane) {
    switch (kind) {
        case kF16:
            if (code < 2) return code ? TensorElement::bf16 : TensorElement::f16;
            break;
        case kTf32:
            if (code == 2) return TensorElement::tf32;
            break;
        case kI8:
            if (code < 2) return code ? TensorElement::s8 : TensorElement::u8;
            break;
        case kF8F6F4:
        case kMxF8F6F4: return narrow_element(code, lane);
        default:
            if (code == 1) return TensorElement::e2m1_packed;
            break;
    }
    bad_instruction(lane, format("element format %u does not exist for this kind", code));
}

// PTX ISA 9.7.16.4.2, tables of the instruction descriptor. scales: of a row, from the instruction's modifier.
Shape decode(uint32_t bits, Kind kind, uint32_t group, bool weight_stationary, uint32_t scales, uint32_t lane) {
    Shape s;
    const bool scaled = kind >= kMxF8F6F4;
    if (bits & 4) bad_instruction(lane, "sparse matrices are not simulated");
    if (bits & 3) bad_instruction(lane, "a sparsity selector without sparsity");
    s.a = element_of(kind, bits >> 7 & 7, lane);
    s.b = element_of(kind, bits >> 10 & 7, lane);
    s.negate_a = bits >> 13 & 1;
    s.negate_b = bits >> 14 & 1;
    s.a_mn_major = bits >> 15 & 1;
    s.b_mn_major = bits >> 16 & 1;
    s.n = (bits >> 17 & 63) * 8;
    s.m = (bits >> 24 & 31) * 16;
    if (scaled) {
        if (bits & (1u << 3 | 1u << 6)) bad_instruction(lane, "reserved bits are set");
        if (bits >> 31) bad_instruction(lane, "K of 96 exists on sm_103a only");
        s.scales = scales;
        s.b_scale_byte = bits >> 4 & 3;
        s.a_scale_byte = bits >> 29 & 3;
        s.scale_e8m0 = bits >> 23 & 1;
        if (!s.scale_e8m0 && kind != kMxF4NvF4) bad_instruction(lane, "the scales of this kind are ue8m0");
        if (s.a_scale_byte % scales || s.b_scale_byte % scales)
            bad_instruction(lane, format("scale factor ids %u and %u with %u scales a row", s.a_scale_byte,
                                         s.b_scale_byte, scales));
    } else {
        if (bits & (1u << 6 | 1u << 23 | 1u << 29)) bad_instruction(lane, "reserved bits are set");
        if (bits >> 30) bad_instruction(lane, "a maximum shift (of convolutions) is not simulated");
        const uint32_t format_code = bits >> 4 & 3;
        if (format_code == 3) bad_instruction(lane, "accumulator format 3 does not exist");
        s.d = static_cast<Shape::Accumulator>(format_code);
        const bool half = (kind == kF16 && s.a == TensorElement::f16 && s.b == TensorElement::f16) || kind == kF8F6F4;
        if ((s.d == Shape::s32) != (kind == kI8) || (s.d == Shape::f16 && !half))
            bad_instruction(lane, format("accumulator format %u does not exist for this kind", format_code));
        s.saturate = bits >> 3 & 1;
        if (s.saturate && kind != kI8) bad_instruction(lane, "only integers saturate");
    }
    if (kind == kI8 && (s.negate_a || s.negate_b)) bad_instruction(lane, "integers are not negated");
    s.k = kind >= kMxF4 ? 64 : kind == kF16 ? 16 : kind == kTf32 ? 8 : 32;
    for (const auto& [e, mn] : {std::pair{s.a, s.a_mn_major}, std::pair{s.b, s.b_mn_major}})
        if (mn && (e == TensorElement::e2m1 || e == TensorElement::e2m1_packed || e == TensorElement::e2m3 ||
                   e == TensorElement::e3m2))
            bad_instruction(lane, "4-bit and 6-bit elements are K-major");
    const bool m_exists = weight_stationary ? s.m == 32 || s.m == 64 || s.m == 128
                          : group == 2      ? s.m == 128 || s.m == 256
                                            : s.m == 128 || (s.m == 64 && !scaled);
    const uint32_t n_step = weight_stationary ? 64 : group == 2 || s.m == 128 ? 16 : 8;
    const bool n_scaled = scaled && group == 1 && s.n % 8 == 0;
    if (!m_exists || s.n < 8 || s.n > 256 || (s.n % n_step && !n_scaled) || (weight_stationary && s.n == 192) ||
        (kind == kI8 && s.n > 32 && s.n % 16))
        bad_instruction(lane, format("there is no M of %u with N of %u for cta_group::%u%s", s.m, s.n, group,
                                     weight_stationary ? " and .ws" : ""));
    return s;
}

// Where a part of D is: rows of one CTA, columns of N.
struct Panel {
    uint32_t row, rows, n, columns, lane, column;
};

std::vector<Panel> panels(const Shape& s, uint32_t group, bool weight_stationary, uint32_t lane) {
    const uint32_t rows = s.m / group, n = s.n;
    if (rows == 128) return {{0, 128, 0, n, 0, 0}};
    if (group == 2 || (weight_stationary && rows == 64))
        return {{0, 64, 0, n / 2, 0, 0}, {0, 64, n / 2, n / 2, 64, 0}};
    std::vector<Panel> out;
    for (uint32_t q = 0; q < 4; ++q) {
        if (weight_stationary)
            out.push_back({0, 32, q * n / 4, n / 4, 32 * q, 0});
        else
            out.push_back({16 * q, 16, 0, n, 32 * q + lane, 0});
    }
    return out;
}

struct Multiply : TensorOperation {
    Kind kind = kF16;
    Shape shape;
    TensorGroup group;
    bool weight_stationary = false, a_in_tensor = false, accumulate = false;
    uint32_t d = 0, a_address = 0, a_scale = 0, b_scale = 0, halvings = 0;
    uint64_t a_descriptor = 0, b_descriptor = 0;
    uint32_t disabled[8] = {};
    std::vector<Operand> operands;

    uint32_t d_columns() const { return panels(shape, group.size, weight_stationary, 0).front().columns; }
    uint32_t a_columns() const {
        const uint32_t bits = static_cast<uint32_t>(tensor_element_bits(shape.a));
        return shape.k * bits / 32;
    }
    bool touches(uint32_t first, uint32_t columns) const override {
        const auto meets = [&](uint32_t from, uint32_t count) { return from < first + columns && first < from + count; };
        return meets(tensor_column(d), d_columns()) || (a_in_tensor && meets(tensor_column(a_address), a_columns()));
    }

    uint64_t duration() const override { return 1 + uint64_t(shape.m) * shape.n * shape.k / kTensorOpsPerNs; }

    void read_a(Machine& machine, Cta& cta, uint32_t* out) const {
        const uint32_t rows = shape.m / group.size;
        if (!a_in_tensor) {
            SharedFault fault;
            if (!read_tensor_tile(a_descriptor, shape.a, shape.a_mn_major, shape.negate_a, rows, shape.k, view_of(cta),
                                  out, 1, rows, fault))
                refuse(machine, cta, fault, lane, "tcgen05.mma read of A");
            return;
        }
        TensorMemory& memory = tensor_memory(cta);
        const uint32_t first = tensor_column(a_address), columns = a_columns();
        const bool spread = rows == 64 && group.size == 1 && !weight_stationary;
        for (uint32_t row = 0; row < rows; ++row) {
            const uint32_t at = spread ? row / 16 * 32 + row % 16 + tensor_lane(a_address) : row;
            uint32_t cells[8];
            for (uint32_t c = 0; c < columns; ++c) {
                if (!memory.written_column(first + c)[at]) unwritten(at, first + c, "A");
                cells[c] = memory.column(first + c)[at];
                // The halves of N are computed by different subpartitions, each from its own copy of A.
                if (group.size == 2 && rows == 64 && (!memory.written_column(first + c)[at + 64] ||
                                                      memory.column(first + c)[at + 64] != cells[c]))
                    throw Fault{FaultKind::tensor_memory,
                                format("A of M 128 and cta_group::2 must be in tensor memory twice, but lanes %u and "
                                       "%u of column %u differ",
                                       at, at + 64, first + c),
                                1u << lane};
            }
            widen_tensor_row(shape.a, shape.negate_a, cells, shape.k, out + row, rows);
        }
    }

    [[noreturn]] void unwritten(uint32_t at, uint32_t column, const char* what) const {
        throw Fault{FaultKind::uninitialised,
                    format("tcgen05.mma reads %s from tensor memory lane %u column %u, which was never written", what,
                           at, column),
                    1u << lane};
    }

    float scale_value(uint32_t byte) const {
        return shape.scale_e8m0 ? f32_from_ue8m0(static_cast<uint8_t>(byte))
                                : f32_from_e4m3(static_cast<uint8_t>(byte & 127));
    }

    // Multiplies elements values[row * row_step + k * k_step] by the scales of rows `first` to `first + rows`: that of
    // row r is in lane r % 32 of column r / 32, once in each of the subpartitions that need it.
    void apply_scales(Cta& cta, uint32_t address, uint32_t byte, uint32_t rows, uint32_t subpartitions, uint32_t base,
                      uint32_t* values, uint32_t row_step, uint32_t k_step, const char* what) const {
        TensorMemory& memory = tensor_memory(cta);
        const uint32_t first = tensor_column(address & 0x3fffffffu), block = shape.k / shape.scales;
        for (uint32_t row = 0; row < rows; ++row) {
            const uint32_t column = first + row / 32, at = base + row % 32;
            const uint32_t cell = memory.column(column)[at];
            for (uint32_t q = 0; q < subpartitions; ++q) {
                if (!memory.written_column(column)[at + 32 * q]) unwritten(at + 32 * q, column, what);
                if ((memory.column(column)[at + 32 * q] ^ cell) >> (8 * byte) &
                    (shape.scales == 4 ? ~0u : (1u << 8 * shape.scales) - 1))
                    throw Fault{FaultKind::tensor_memory,
                                format("%s differ between lanes %u and %u of tensor memory column %u: all "
                                       "subpartitions need them (tcgen05.cp with .warpx4)",
                                       what, at, at + 32 * q, column),
                                1u << lane};
            }
            for (uint32_t s = 0; s < shape.scales; ++s) {
                const float scale = scale_value(cell >> 8 * (byte + s) & 255);
                uint32_t* v = values + size_t(row) * row_step + size_t(s * block) * k_step;
                for (uint32_t k = 0; k < block; ++k, v += k_step) *v = bits<uint32_t>(bits<float>(*v) * scale);
            }
        }
    }

    void execute(Machine& machine) override {
        for (const Operand& operand : operands) operand.verify(lane);
        ++machine.stats().matrix_instructions;
        const uint32_t rows = shape.m / group.size, share = shape.n / group.size;
        static thread_local std::vector<uint32_t> a, b, scaled;
        a.resize(size_t(rows) * shape.k);
        b.resize(size_t(shape.n) * shape.k);
        for (uint32_t c = 0; c < group.size; ++c) {
            SharedFault fault;
            if (!read_tensor_tile(b_descriptor, shape.b, shape.b_mn_major, shape.negate_b, share, shape.k,
                                  view_of(*group.ctas[c]), b.data() + size_t(c) * share * shape.k, shape.k, 1, fault))
                refuse(machine, *group.ctas[c], fault, lane, "tcgen05.mma read of B");
        }
        const std::vector<Panel> parts = panels(shape, group.size, weight_stationary, tensor_lane(d));
        for (uint32_t c = 0; c < group.size; ++c) {
            Cta& cta = *group.ctas[c];
            read_a(machine, cta, a.data());
            const uint32_t* columns = b.data();
            if (shape.scales) {
                apply_scales(cta, a_scale, shape.a_scale_byte, rows, 4, 0, a.data(), 1, rows, "scales of A");
                scaled = b;
                columns = scaled.data();
                const uint32_t halves = static_cast<uint32_t>(parts.size()), part = shape.n / halves;
                for (uint32_t h = 0; h < halves; ++h)
                    apply_scales(cta, b_scale, shape.b_scale_byte, part, 4 / halves, 64 * h,
                                 scaled.data() + size_t(h) * part * shape.k, shape.k, 1, "scales of B");
            }
            for (const Panel& panel : parts) accumulate_panel(cta, panel, a.data(), columns, rows, disabled + 4 * c);
        }
    }

    void accumulate_panel(Cta& cta, const Panel& panel, const uint32_t* a, const uint32_t* b, uint32_t a_rows,
                          const uint32_t* off) const {
        TensorMemory& memory = tensor_memory(cta);
        const uint32_t first = tensor_column(d) + panel.column;
        const TensorProduct product{a + panel.row,      a_rows,       b + size_t(panel.n) * shape.k, shape.k,
                                    memory.column(first) + panel.lane, kTensorLanes, panel.rows, panel.columns,
                                    accumulate};
        const bool masked = std::any_of(off, off + 4, [](uint32_t m) { return m != 0; });
        if (masked || halvings) {
            accumulate_with_care(memory, first, panel, product, off);
            return;
        }
        for (uint32_t n = first; n < first + panel.columns; ++n) {
            uint8_t* written = memory.written_column(n) + panel.lane;
            if (accumulate)
                if (const void* hole = std::memchr(written, 0, panel.rows))
                    unwritten(panel.lane + static_cast<uint32_t>(static_cast<const uint8_t*>(hole) - written), n, "D");
            std::memset(written, 1, panel.rows);
        }
        if (shape.d == Shape::s32) return accumulate_integers(memory.column(first) + panel.lane, panel, product);
        uint32_t* const cells = memory.column(first) + panel.lane;
        const bool half = shape.d == Shape::f16;
        for (uint32_t n = 0; half && accumulate && n < panel.columns; ++n)
            halves_to_floats(cells + size_t(n) * kTensorLanes, panel.rows);
        multiply_tensor(product);
        for (uint32_t n = 0; half && n < panel.columns; ++n)
            floats_to_halves(cells + size_t(n) * kTensorLanes, panel.rows);
    }

    void accumulate_integers(uint32_t* cells, const Panel& panel, TensorProduct product) const {
        static thread_local std::vector<uint32_t> sums;
        sums.resize(size_t(panel.rows) * panel.columns);
        product.d = sums.data();
        product.d_step = panel.rows;
        product.accumulate = false;
        multiply_tensor(product);
        for (uint32_t n = 0; n < panel.columns; ++n, cells += kTensorLanes)
            add_integers(reinterpret_cast<const float*>(sums.data() + size_t(n) * panel.rows),
                         accumulate ? cells : nullptr, static_cast<int>(panel.rows), shape.saturate, cells);
    }

    // Lanes that keep their values, and sums that are scaled.
    void accumulate_with_care(TensorMemory& memory, uint32_t first, const Panel& panel, TensorProduct product,
                              const uint32_t* off) const {
        if (shape.d == Shape::s32) product.accumulate = false;
        std::vector<uint32_t> before;
        for (uint32_t n = first; n < first + panel.columns; ++n) {
            uint32_t* cells = memory.column(n) + panel.lane;
            uint8_t* written = memory.written_column(n) + panel.lane;
            before.insert(before.end(), cells, cells + panel.rows);
            for (uint32_t r = 0; r < panel.rows; ++r) {
                if (disables(off, panel.lane + r)) continue;
                if (accumulate && !written[r]) unwritten(panel.lane + r, n, "D");
                written[r] = 1;
                if (shape.d == Shape::f16) cells[r] = bits<uint32_t>(f32_from_f16(static_cast<uint16_t>(cells[r])));
                if (halvings) cells[r] = bits<uint32_t>(std::ldexp(bits<float>(cells[r]), -static_cast<int>(halvings)));
            }
        }
        multiply_tensor(product);
        for (uint32_t n = 0; n < panel.columns; ++n) {
            uint32_t* cells = memory.column(first + n) + panel.lane;
            const uint32_t* old = before.data() + size_t(n) * panel.rows;
            for (uint32_t r = 0; r < panel.rows; ++r) {
                if (shape.d == Shape::f16) cells[r] = f16_from_f32(bits<float>(cells[r]));
                if (shape.d == Shape::s32) {
                    int64_t sum = static_cast<int64_t>(bits<float>(cells[r]));
                    if (accumulate) sum += static_cast<int32_t>(old[r]);
                    if (shape.saturate) sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
                    cells[r] = static_cast<uint32_t>(sum);
                }
                if (disables(off, panel.lane + r)) cells[r] = old[r];
            }
        }
    }

    static bool disables(const uint32_t* off, uint32_t at) { return off[at / 32] >> (at % 32) & 1; }
};

// ext: d, a, b, idesc, scales of a, of b or none, then 0, 4 or 8 words of disabled lanes; c = accumulate.
// imm: group | a in tensor memory << 2 | kind << 4 | scales a row << 8 | halvings << 12 | ws << 16
int multiply(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    const auto v = static_cast<uint32_t>(i.imm);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        auto word = [&](uint32_t n) { return lanes<uint32_t>(w, ext[n])[l]; };
        auto operation = std::make_unique<Multiply>();
        Multiply& m = *operation;
        m.lane = l;
        m.group = tensor_group(w, v & 3, l);
        m.kind = static_cast<Kind>(v >> 4 & 15);
        m.a_in_tensor = v >> 2 & 1;
        m.weight_stationary = v >> 16 & 1;
        m.halvings = v >> 12 & 15;
        m.shape = decode(word(3), m.kind, m.group.size, m.weight_stationary, v >> 8 & 7, l);
        m.accumulate = w.pred[i.c] >> l & 1;
        m.d = word(0);
        const bool half = m.shape.m == 64 && m.group.size == 1 && !m.weight_stationary;
        auto check_lane = [&](uint32_t address, const char* what) {
            if (tensor_lane(address) && !(half && tensor_lane(address) == 16))
                throw Fault{FaultKind::tensor_memory,
                            format("%s of this tcgen05.mma starts at lane %u of tensor memory, not at 0%s", what,
                                   tensor_lane(address), half ? " or 16" : ""),
                            1u << l};
        };
        check_lane(m.d, "D");
        for (uint32_t c = 0; c < m.group.size; ++c)
            check_tensor_columns(*m.group.ctas[c], tensor_column(m.d), m.d_columns(), l, "accumulator of tcgen05.mma");
        if (m.a_in_tensor) {
            m.a_address = word(1);
            check_lane(m.a_address, "A");
            if (m.shape.a_mn_major)
                throw Fault{FaultKind::descriptor, "A in tensor memory is K-major", 1u << l};
            for (uint32_t c = 0; c < m.group.size; ++c)
                check_tensor_columns(*m.group.ctas[c], tensor_column(m.a_address), m.a_columns(), l, "tcgen05.mma read of A");
        } else {
            m.a_descriptor = lanes<uint64_t>(w, ext[1])[l];
        }
        m.b_descriptor = lanes<uint64_t>(w, ext[2])[l];
        if (m.shape.scales) {
            m.a_scale = word(4);
            m.b_scale = word(5);
            const uint32_t ids[2] = {m.shape.a_scale_byte, m.shape.b_scale_byte};
            for (uint32_t k = 0; k < 2; ++k) {
                const uint32_t address = k ? m.b_scale : m.a_scale;
                // The two top bits may repeat the scale factor id of the descriptor.
                if (tensor_lane(address & 0x3fffffffu) || (address >> 30 && address >> 30 != ids[k]))
                    throw Fault{FaultKind::tensor_memory,
                                format("address %#x of scale factors: lane 0 is expected, and factor id %u", address,
                                       ids[k]),
                                1u << l};
                const bool split = m.group.size == 2 && m.shape.m == 128;
                const uint32_t rows = k ? m.shape.n / (split ? 2 : 1) : m.shape.m / m.group.size;
                for (uint32_t c = 0; c < m.group.size; ++c)
                    check_tensor_columns(*m.group.ctas[c], tensor_column(address & 0x3fffffffu), (rows + 31) / 32, l,
                                         "scale factors of tcgen05.mma");
            }
        }
        for (uint32_t k = 6; k < i.count; ++k) m.disabled[k - 6] = word(k);
        for (uint32_t c = 0; c < m.group.size; ++c) {
            Operand operand{m.group.ctas[c], {}, 0};
            SharedFault fault;
            if ((!m.a_in_tensor && !tensor_tile_chunks(m.a_descriptor, m.shape.a, m.shape.a_mn_major,
                                                       m.shape.m / m.group.size, m.shape.k, operand.chunks, fault)) ||
                !tensor_tile_chunks(m.b_descriptor, m.shape.b, m.shape.b_mn_major, m.shape.n / m.group.size, m.shape.k,
                                    operand.chunks, fault))
                refuse(*w.machine, *w.cta, fault, l, "tcgen05.mma");
            operand.take(*w.machine, l, "tcgen05.mma read");
            record_reads(w, operand, l);
            // Accumulators of fewer rows share columns with others.
            if (w.clock && m.shape.m / m.group.size == 128)
                w.machine->checker->tensor_columns(w, *m.group.ctas[c], tensor_column(m.d), m.d_columns(), l, true);
            if (w.clock && m.shape.m / m.group.size == 128 && m.a_in_tensor)
                w.machine->checker->tensor_columns(w, *m.group.ctas[c], tensor_column(m.a_address), m.a_columns(), l,
                                                   false);
            m.operands.push_back(std::move(operand));
        }
        w.machine->issue_tensor(w, std::move(operation));
    }
    return kNext;
}

// ---- cp ------------------------------------------------------------------------------------------------------

// Rows of 16 or 32 bytes in shared memory, and the lanes that get them.
struct CopyShape {
    uint32_t rows, bytes;
    uint32_t lane(uint32_t row, uint32_t copy) const {
        switch (kind) {
            case 1: return 32 * row;                                       // 4x256b
            case 3: return row + 64 * copy;                                // 64x128b.warpx2::02_13
            case 4: return row % 32 + row / 32 * 64 + 32 * copy;           // 64x128b.warpx2::01_23
            case 5: return row + 32 * copy;                                // 32x128b.warpx4
            default: return row;
        }
    }
    uint32_t copies, kind;
};
constexpr CopyShape copy_shapes[] = {{128, 32, 1, 0}, {4, 32, 1, 1},  {128, 16, 1, 2},
                                     {64, 16, 2, 3},  {64, 16, 2, 4}, {32, 16, 4, 5}};

struct CopyToTensor : TensorOperation {
    CopyShape shape{};
    uint32_t expand = 0;  // bits of packed elements that get a byte each: 0 (none), 4 or 6
    uint32_t address = 0;
    TensorGroup group;
    std::vector<Operand> operands;

    bool touches(uint32_t first, uint32_t columns) const override {
        const uint32_t from = tensor_column(address), count = shape.bytes / 4;
        return from < first + columns && first < from + count;
    }
    void execute(Machine&) override {
        for (const Operand& operand : operands) {
            operand.verify(lane);
            TensorMemory& memory = tensor_memory(*operand.cta);
            const uint8_t* window = operand.cta->shared + (operand.cta->rank << kRankShift);
            const uint32_t chunks = shape.bytes / 16;
            for (uint32_t row = 0; row < shape.rows; ++row) {
                uint32_t cells[8];
                for (uint32_t c = 0; c < chunks; ++c) widen(window + operand.chunks[row * chunks + c], cells + 4 * c);
                for (uint32_t copy = 0; copy < shape.copies; ++copy) {
                    const uint32_t at = tensor_lane(address) + shape.lane(row, copy);
                    for (uint32_t c = 0; c < shape.bytes / 4; ++c) {
                        memory.column(tensor_column(address) + c)[at] = cells[c];
                        memory.written_column(tensor_column(address) + c)[at] = 1;
                    }
                }
            }
        }
    }
    // Narrow elements get the middle of their byte: 00xxxx00 and 0xxxxxx0.
    void widen(const uint8_t* chunk, uint32_t* cells) const {
        if (!expand) {
            std::memcpy(cells, chunk, 16);
            return;
        }
        uint8_t bytes[16];
        for (uint32_t n = 0; n < 16; ++n) {
            uint16_t pair;
            std::memcpy(&pair, chunk + expand * n / 8, 2);
            const uint32_t value = pair >> (expand * n % 8) & ((1u << expand) - 1);
            bytes[n] = static_cast<uint8_t>(value << (expand == 4 ? 2 : 1));
        }
        std::memcpy(cells, bytes, 16);
    }
};

// a = address, b = descriptor; mod = group | shape << 4 | expand << 8
int copy(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        auto operation = std::make_unique<CopyToTensor>();
        operation->lane = l;
        operation->group = tensor_group(w, i.mod & 15, l);
        operation->shape = copy_shapes[i.mod >> 4 & 15];
        operation->expand = i.mod >> 8 & 15;
        operation->address = lanes<uint32_t>(w, i.a)[l] + static_cast<uint32_t>(i.imm);
        const CopyShape& shape = operation->shape;
        const uint32_t at = tensor_lane(operation->address);
        if (shape.kind == 1 ? at >= 32 : at != 0)
            throw Fault{FaultKind::tensor_memory, format("tcgen05.cp to lane %u of tensor memory", at), 1u << l};
        for (uint32_t c = 0; c < operation->group.size; ++c) {
            Cta& cta = *operation->group.ctas[c];
            check_tensor_columns(cta, tensor_column(operation->address), shape.bytes / 4, l, "tcgen05.cp");
            Operand operand{&cta, {}, 0};
            SharedFault fault;
            if (!tensor_tile_chunks(lanes<uint64_t>(w, i.b)[l], TensorElement::u8, false, shape.rows, shape.bytes,
                                    operand.chunks, fault))
                refuse(*w.machine, cta, fault, l, "tcgen05.cp");
            operand.take(*w.machine, l, "tcgen05.cp read");
            record_reads(w, operand, l);
            operation->operands.push_back(std::move(operand));
        }
        w.machine->issue_tensor(w, std::move(operation));
    }
    return kNext;
}

// ---- shift ---------------------------------------------------------------------------------------------------

// Every lane gets the 32 bytes of the next one, but for the last lane of each subpartition.
struct Shift : TensorOperation {
    uint32_t address = 0;
    TensorGroup group;

    bool touches(uint32_t first, uint32_t columns) const override {
        return tensor_column(address) < first + columns && first < tensor_column(address) + 8;
    }
    void execute(Machine&) override {
        for (uint32_t k = 0; k < group.size; ++k) {
            TensorMemory& memory = tensor_memory(*group.ctas[k]);
            for (uint32_t c = tensor_column(address); c < tensor_column(address) + 8; ++c)
                for (uint32_t at = tensor_lane(address); at < kTensorLanes; ++at) {
                    if (at % 32 == 31) continue;
                    memory.column(c)[at] = memory.column(c)[at + 1];
                    memory.written_column(c)[at] = memory.written_column(c)[at + 1];
                }
        }
    }
};

int shift(RegView& r, const Inst& i, uint32_t mask) {  // a = address; mod = group
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        auto operation = std::make_unique<Shift>();
        operation->lane = l;
        operation->group = tensor_group(w, i.mod, l);
        operation->address = lanes<uint32_t>(w, i.a)[l] + static_cast<uint32_t>(i.imm);
        if (tensor_lane(operation->address) % 32)
            throw Fault{FaultKind::tensor_memory,
                        format("tcgen05.shift from lane %u, not a multiple of 32", tensor_lane(operation->address)),
                        1u << l};
        for (uint32_t k = 0; k < operation->group.size; ++k)
            check_tensor_columns(*operation->group.ctas[k], tensor_column(operation->address), 8, l, "tcgen05.shift");
        w.machine->issue_tensor(w, std::move(operation));
    }
    return kNext;
}

// ---- commit --------------------------------------------------------------------------------------------------

struct Commit : TensorOperation {
    struct Target {
        Cta* cta;
        uint32_t mbarrier;
    };
    std::vector<Target> targets;
    Clock known;  // for the checker

    bool only_signals() const override { return true; }
    void execute(Machine& machine) override {
        for (const Target& target : targets) {
            if (target.cta->exited)
                throw Fault{FaultKind::race, "tcgen05.commit reports to an mbarrier of a CTA that has already ended",
                            1u << lane};
            Mbarrier& barrier = mbarrier_at(*target.cta, target.mbarrier, lane);
            barrier.arrived.join(known);
            mbarrier_arrive(machine, *target.cta, barrier, 1, lane);
        }
    }
};

int commit(RegView& r, const Inst& i, uint32_t mask) {  // a = mbarrier, b = CTA mask or none; mod = group
    Warp& w = warp_of(r);
    constexpr uint32_t offset_bits = (1u << kRankShift) - 1;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        tensor_group(w, i.mod, l, false);
        auto operation = std::make_unique<Commit>();
        operation->lane = l;
        if (w.clock) operation->known = w.machine->checker->tensor_commit(w, l);
        const uint32_t address = shared_address(w, i, i.a, l, 0);
        auto add = [&](uint32_t at) {
            Cta& cta = shared_owner(w, at, l, "mbarrier of tcgen05.commit");
            mbarrier_at(cta, at, l);
            operation->targets.push_back({&cta, at});
        };
        if (i.b == kNoOperand) {
            add(address);
        } else {
            const uint32_t ctas = lanes<uint32_t>(w, i.b)[l] & 0xffffu;
            if (ctas == 0 || ctas >> w.cta->cluster->ctas.size())
                throw Fault{FaultKind::out_of_bounds,
                            format("tcgen05.commit to CTAs %#x of a cluster of %zu", ctas, w.cta->cluster->ctas.size()),
                            1u << l};
            for (uint32_t rank = 0; rank < 16; ++rank)
                if (ctas >> rank & 1) add((address & offset_bits) | rank << kRankShift);
        }
        w.machine->issue_tensor(w, std::move(operation));
    }
    return kNext;
}

const NamedHandler table[] = {
    {"tcgen05.mma", multiply},
    {"tcgen05.cp", copy},
    {"tcgen05.shift", shift},
    {"tcgen05.commit", commit},
};

}  // namespace

HandlerTable tcgen05_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
