// Bulk and tensor copies by the TMA unit (PTX ISA 9.7.9.25, 9.7.9.27).
//
// Operand lists in Inst::ext, entries marked 64 are 64-bit registers:
//   bulk load   dst, src64, bytes, mbarrier          bulk store  dst64, src, bytes
//   tile load   dst, map64, mbarrier, c0 …           tile store  map64, src, c0 …
// Shared addresses may be 32 or 64 bits wide: flag bit n of Inst::imm is set if entry n is 64 bits wide.
#include <algorithm>
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"
#include "shared_address.hpp"

namespace machete::sim {

uint64_t checksum(const Cta& cta, const std::vector<TileChunk>& chunks) {
    uint64_t h = 0;
    for (const TileChunk& c : chunks) {
        if (c.oob) continue;
        const uint8_t* p = cta.shared + c.shared;
        uint32_t n = c.bytes;
        for (; n >= 8; n -= 8, p += 8) {
            uint64_t v;
            std::memcpy(&v, p, 8);
            h = (h ^ v) * 0x9e3779b97f4a7c15ull;
            h ^= h >> 29;
        }
        for (; n; --n, ++p) h = (h ^ *p) * 0x9e3779b97f4a7c15ull;
    }
    return h;
}

void perform_read(Machine&, Copy& copy) {
    const bool peer = copy.kind == CopyKind::peer;
    const Cta& cta = peer ? *copy.source : *copy.cta;
    const std::vector<TileChunk>& chunks = peer ? copy.source_chunks : copy.chunks;
    if (checksum(cta, chunks) != copy.checksum)
        throw Fault{FaultKind::race,
                    peer ? "the source of this bulk copy was overwritten before the copy had read it"
                         : "the source of this bulk store was overwritten before the store had read it "
                           "(cp.async.bulk.wait_group.read is missing or too late)",
                    1u << copy.lane};
    copy.data.resize(copy.total);
    uint8_t* p = copy.data.data();
    for (const TileChunk& c : chunks) {
        if (!c.oob) std::memcpy(p, cta.shared + c.shared, c.bytes);  // such rows may lie outside shared memory
        p += c.bytes;
    }
    copy.read = true;
}

namespace {

void reduce_into(uint8_t* d, const uint8_t* s, uint32_t bytes, int op, int type) {
    static const uint32_t sizes[] = {4, 4, 8, 8, 4, 8, 4, 8, 2, 2, 4, 4, 2};
    const uint32_t n = sizes[type];
    for (uint32_t k = 0; k + n <= bytes; k += n) {
        uint64_t old = 0, x = 0;
        std::memcpy(&old, d + k, n);
        std::memcpy(&x, s + k, n);
        const uint64_t r = apply_atomic(op, type, old, x);
        std::memcpy(d + k, &r, n);
    }
}

// What such a copy touches until its mbarrier completes the phase.
void check_to_shared(Warp& w, const Copy& copy, Cta& signal, const Mbarrier& barrier, uint32_t address) {
    Checker& checker = *w.machine->checker;
    const uint32_t proxy = copy.kind == CopyKind::inline_store ? 0 : kAsyncProxy, lane = copy.lane;
    const uint64_t time = barrier.phase + 1;
    if (proxy) checker.barrier_object_async(w, signal, address, lane);
    for (const TileChunk& c : copy.chunks) {
        checker.async_shared(w, *copy.cta, c.shared, c.bytes, lane, barrier.agent, time,
                             kWrites | proxy | (copy.reduce >= 0 ? kStrong : 0));
        if (copy.kind == CopyKind::load && !c.oob)
            checker.async_global(w, c.global, c.bytes, lane, barrier.agent, time, kAsyncProxy);
    }
    for (const TileChunk& c : copy.source_chunks)
        checker.async_shared(w, *copy.source, c.shared, c.bytes, lane, barrier.agent, time, kAsyncProxy);
}

// The unit of the rounding is not documented; CUTLASS says that TMA rounds, and to nearest even is what cvt.rn does.
void round_to_tf32(uint8_t* values, uint32_t bytes) {
    for (uint32_t k = 0; k < bytes; k += 4) {
        float value;
        std::memcpy(&value, values + k, 4);
        const uint32_t rounded = tf32_from_f32(value);
        std::memcpy(values + k, &rounded, 4);
    }
}

}  // namespace

// A copy that writes shared memory and then tells an mbarrier. Its destination is unreadable until it lands.
void issue_to_shared(Warp& w, std::unique_ptr<Copy> copy, Cta& signal, uint32_t mbarrier) {
    const uint32_t lane = copy->lane;
    const Mbarrier& barrier = mbarrier_at(signal, mbarrier, lane);
    for (const TileChunk& c : copy->chunks) {
        check_shared(*copy->cta, c.shared, c.bytes, lane, "asynchronous copy");
        if (copy->reduce < 0) {
            std::memset(copy->cta->shadow + c.shared, 0, c.bytes);
            continue;
        }
        for (uint32_t k = 0; k < c.bytes; ++k)
            if (copy->cta->shadow[c.shared + k] != 1)
                uninitialised(*copy->cta, *w.machine, c.shared, c.bytes, lane, "asynchronous reduction");
    }
    if (w.clock) check_to_shared(w, *copy, signal, barrier, mbarrier);
    copy->phase = barrier.phase;
    mbarrier_copy_issued(*w.machine, signal, mbarrier);
    copy->warp = &w;
    copy->pc = w.pc;
    copy->signal = &signal;
    copy->mbarrier = mbarrier;
    w.machine->issue(std::move(copy));
}

void perform_copy(Machine& machine, Copy& copy) {
    if (copy.kind == CopyKind::store) {
        if (!copy.read) perform_read(machine, copy);
        const uint8_t* p = copy.data.data();
        for (const TileChunk& c : copy.chunks) {
            if (!c.oob) {
                auto* d = reinterpret_cast<uint8_t*>(c.global);
                if (copy.reduce >= 0) {
                    reduce_into(d, p, c.bytes, copy.reduce, copy.reduce_type);
                } else {
                    std::memcpy(d, p, c.bytes);
                }
            }
            p += c.bytes;
        }
        return;
    }
    if (copy.kind == CopyKind::peer && !copy.read) perform_read(machine, copy);
    Cta& cta = *copy.cta;
    const uint8_t* p = copy.data.data();
    for (const TileChunk& c : copy.chunks) {
        uint8_t* d = cta.shared + c.shared;
        if (copy.reduce >= 0) {
            reduce_into(d, p, c.bytes, copy.reduce, copy.reduce_type);
        } else if (copy.kind == CopyKind::peer || copy.kind == CopyKind::inline_store) {
            std::memcpy(d, p, c.bytes);
        } else if (c.oob) {
            std::memset(d, 0, c.bytes);
        } else {
            std::memcpy(d, reinterpret_cast<const void*>(c.global), c.bytes);
            if (copy.tf32) round_to_tf32(d, c.bytes);
        }
        p += c.bytes;
        std::memset(cta.shadow + c.shared, 1, c.bytes);
    }
    if (copy.mbarrier) mbarrier_copy_done(machine, *copy.signal, copy.mbarrier, copy.total, copy.lane, copy.phase);
}

namespace {

struct Operands {
    Warp& w;
    const Inst& i;
    const uint32_t* ext;
    Operands(Warp& warp, const Inst& inst) : w(warp), i(inst), ext(warp.machine->program.ext.data() + inst.ext) {}
    uint64_t raw(uint32_t n, uint32_t l) const { return address_value(w, ext[n], i.imm >> n & 1, l); }
    uint32_t shared(uint32_t n, uint32_t l) const { return to_shared(raw(n, l), l); }
    uint32_t word(uint32_t n, uint32_t l) const { return static_cast<uint32_t>(raw(n, l)); }
    bool same(uint32_t a, uint32_t b) const {
        for (uint32_t n = 0; n < i.count; ++n)
            if (raw(n, a) != raw(n, b)) return false;
        return true;
    }
};

// All global pieces must lie in memory of the launch.
void check_global(Warp& w, const std::vector<TileChunk>& chunks, bool write, uint32_t lane, const char* what) {
    uint64_t lo = ~0ull, hi = 0;
    for (const TileChunk& c : chunks) {
        if (c.oob) continue;
        lo = std::min(lo, c.global);
        hi = std::max(hi, c.global + c.bytes);
    }
    if (lo >= hi) return;
    const Region* r = w.machine->find_region(lo);
    if (r && hi <= r->end && (!write || r->writable)) return;
    for (const TileChunk& c : chunks)
        if (!c.oob) global_range(*w.machine, w.region, c.global, c.bytes, write, lane, what);
}

// Sends global memory to the shared memory of one CTA, which need not be the warp's own.
void issue_load(Warp& w, Cta& cta, std::vector<TileChunk> chunks, uint32_t total, Cta& signal, uint32_t mbarrier,
                uint32_t lane, bool tf32) {
    check_global(w, chunks, false, lane, "asynchronous load");
    w.machine->stats().bytes_loaded += total;
    auto copy = std::make_unique<Copy>();
    copy->kind = CopyKind::load;
    copy->cta = &cta;
    copy->lane = lane;
    copy->chunks = std::move(chunks);
    copy->total = total;
    copy->tf32 = tf32;
    issue_to_shared(w, std::move(copy), signal, mbarrier);
}

// Where a load goes. Without a multicast mask: the CTA that the destination address names. With one: the same offset
// in every CTA of the mask. The mbarrier is in the destination's CTA or, for cta_group::2, in either of its pair: for
// multicasts the parity of the rank in the mbarrier's address says in which.
struct Destination {
    uint32_t mask = 0;  // of CTAs; 0: no multicast
    bool pairs = false;
    bool tf32 = false;
};

void send(Warp& w, const Destination& to, std::vector<TileChunk> chunks, uint32_t shared, uint32_t total,
          uint32_t mbarrier, uint32_t lane) {
    constexpr uint32_t offset_bits = (1u << kRankShift) - 1;
    const uint32_t size = static_cast<uint32_t>(w.cta->cluster->ctas.size()), home = shared >> kRankShift;
    if (to.pairs && size % 2)
        throw Fault{FaultKind::unsupported, format("cta_group::2 in a cluster of %u CTAs: it needs pairs", size),
                    1u << lane};
    if (!to.mask) {
        Cta& cta = shared_owner(w, shared, lane, "asynchronous copy");
        Cta& signal = shared_owner(w, mbarrier, lane, "mbarrier of an asynchronous copy");
        if (&cta != &signal && !(to.pairs && cta.rank / 2 == signal.rank / 2))
            throw Fault{FaultKind::mbarrier,
                        format("a copy into CTA %u of the cluster reports to an mbarrier in CTA %u%s", cta.rank,
                               signal.rank, to.pairs ? ", which is not of the same pair" : ""),
                        1u << lane};
        issue_load(w, cta, std::move(chunks), total, signal, mbarrier, lane, to.tf32);
        return;
    }
    if (to.mask >> size)
        throw Fault{FaultKind::out_of_bounds, format("multicast to CTAs %#x of a cluster of %u", to.mask, size),
                    1u << lane};
    if (!to.pairs && mbarrier >> kRankShift != home)
        throw Fault{FaultKind::mbarrier, "the destination and the mbarrier of a multicast are in different CTAs",
                    1u << lane};
    for (uint32_t rank = 0; rank < size; ++rank) {
        if (!(to.mask >> rank & 1)) continue;
        const uint32_t told = to.pairs ? (rank & ~1u) | (mbarrier >> kRankShift & 1) : rank;
        std::vector<TileChunk> there = chunks;
        for (TileChunk& c : there) c.shared = (c.shared & offset_bits) | rank << kRankShift;
        const uint32_t there_mbarrier = (mbarrier & offset_bits) | told << kRankShift;
        issue_load(w, shared_owner(w, rank << kRankShift, lane, "multicast"), std::move(there), total,
                   shared_owner(w, there_mbarrier, lane, "mbarrier of a multicast"), there_mbarrier, lane, to.tf32);
    }
}

void issue_store(Warp& w, std::vector<TileChunk> chunks, uint32_t lane, int reduce, int type) {
    Machine& machine = *w.machine;
    Cta& cta = *w.cta;
    uint32_t total = 0;
    for (const TileChunk& c : chunks) {
        total += c.bytes;
        if (c.oob) continue;
        check_shared(cta, c.shared, c.bytes, lane, "asynchronous copy");
        for (uint32_t k = 0; k < c.bytes; ++k)
            if (cta.shadow[c.shared + k] != 1) uninitialised(cta, machine, c.shared, c.bytes, lane, "bulk store");
    }
    check_global(w, chunks, true, lane, "asynchronous store");
    machine.stats().bytes_stored += total;
    LaneCopies& state = w.lane_copies(lane);
    if (Checker* checker = machine.checker.get()) {
        if (!state.reads.index) state.reads = checker->new_agent(cta), state.writes = checker->new_agent(cta);
        const uint32_t writes = kWrites | kAsyncProxy | (reduce >= 0 ? kStrong : 0);
        for (const TileChunk& c : chunks) {
            if (c.oob) continue;
            checker->async_shared(w, cta, c.shared, c.bytes, lane, state.reads, state.bulk_committed + 1, kAsyncProxy);
            checker->async_global(w, c.global, c.bytes, lane, state.writes, state.bulk_committed + 1, writes);
        }
    }
    auto copy = std::make_unique<Copy>();
    copy->kind = CopyKind::store;
    copy->cta = &cta;
    copy->warp = &w;
    copy->pc = w.pc;
    copy->lane = lane;
    copy->checksum = checksum(cta, chunks);
    copy->chunks = std::move(chunks);
    copy->total = total;
    copy->group = state.bulk_committed;
    copy->reduce = reduce;
    copy->reduce_type = type;
    machine.issue(std::move(copy));
}

void check_bulk(uint64_t a, uint64_t b, uint32_t bytes, uint32_t lane) {
    if (a % 16 || b % 16 || bytes % 16)
        throw Fault{FaultKind::misaligned,
                    format("bulk copy of %u bytes between %#llx and %#llx: all three must be multiples of 16", bytes,
                           static_cast<unsigned long long>(a), static_cast<unsigned long long>(b)),
                    1u << lane};
}

uint32_t multicast_mask(const Operands& o, uint32_t index, uint32_t l) {
    const uint32_t mask = o.word(index, l) & 0xffffu;
    if (mask == 0) throw Fault{FaultKind::out_of_bounds, "multicast to no CTA", 1u << l};
    return mask;
}

// mod bit 0: multicast mask is entry 4
int bulk_load(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = o.shared(0, l), bytes = o.word(2, l);
        const uint64_t src = o.raw(1, l);
        check_bulk(src, dst, bytes, l);
        const Destination to{(i.mod & 1) ? multicast_mask(o, 4, l) : 0};
        send(o.w, to, {TileChunk{src, dst, bytes, false}}, dst, bytes, o.shared(3, l), l);
    }
    return kNext;
}

// From this CTA's shared memory to that of another. ext: dst, src, bytes, mbarrier; mod as for bulk_store
int bulk_peer(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    Warp& w = o.w;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = o.shared(0, l), src = o.shared(1, l), bytes = o.word(2, l), mbarrier = o.shared(3, l);
        check_bulk(src, dst, bytes, l);
        check_shared(*w.cta, src, bytes, l, "bulk copy");
        for (uint32_t k = 0; k < bytes; ++k)
            if (w.cta->shadow[src + k] != 1) uninitialised(*w.cta, *w.machine, src, bytes, l, "bulk copy");
        Cta& cta = shared_owner(w, dst, l, "bulk copy");
        if (mbarrier >> kRankShift != cta.rank)
            throw Fault{FaultKind::mbarrier, "the destination and the mbarrier of a bulk copy are in different CTAs",
                        1u << l};
        auto copy = std::make_unique<Copy>();
        copy->kind = CopyKind::peer;
        copy->cta = &cta;
        copy->source = w.cta;
        copy->source_chunks = {TileChunk{0, src, bytes, false}};
        copy->checksum = checksum(*w.cta, copy->source_chunks);
        copy->lane = l;
        copy->chunks = {TileChunk{0, dst, bytes, false}};
        copy->total = bytes;
        copy->reduce = (i.mod & 1) ? static_cast<int>(i.mod >> 8 & 255) : -1;
        copy->reduce_type = static_cast<int>(i.mod >> 16 & 255);
        issue_to_shared(w, std::move(copy), cta, mbarrier);
    }
    return kNext;
}

// mod: 0, or 1 | op << 8 | type << 16 for cp.reduce; bit 1: entry 3 is a mask of the bytes of every 16 to write
int bulk_store(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t dst = o.raw(0, l);
        const uint32_t src = o.shared(1, l), bytes = o.word(2, l);
        check_bulk(dst, src, bytes, l);
        std::vector<TileChunk> chunks;
        if (i.mod & 2) {
            const uint32_t wanted = o.word(3, l);
            for (uint32_t at = 0; at < bytes; ++at)
                if (wanted >> (at % 16) & 1) chunks.push_back({dst + at, src + at, 1, false});
        } else {
            chunks = {TileChunk{dst, src, bytes, false}};
        }
        issue_store(o.w, std::move(chunks), l, (i.mod & 1) ? static_cast<int>(i.mod >> 8 & 255) : -1,
                    static_cast<int>(i.mod >> 16 & 255));
    }
    return kNext;
}

int bulk_prefetch(RegView& r, const Inst& i, uint32_t mask) {  // src64, bytes
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t src = o.raw(0, l);
        const uint32_t bytes = o.word(1, l);
        check_bulk(src, 0, bytes, l);
        global_range(*o.w.machine, o.w.region, src, bytes, false, l, "bulk prefetch");
    }
    return kNext;
}

TensorMap tensor_map(Warp& w, uint64_t address, uint32_t rank, uint32_t lane) {
    if (address % 64)
        throw Fault{
            FaultKind::misaligned,
            format("tensor map at %#llx, which is not a multiple of 64", static_cast<unsigned long long>(address)),
            1u << lane};
    const uint8_t* raw = global_range(*w.machine, w.region, address, 128, false, lane, "tensor map");
    if (w.clock && w.machine->launch.strict) w.machine->checker->use_tensor_map(w, address, lane);
    TensorMap map;
    std::string error;
    if (!decode_tensormap(raw, map, error))
        throw Fault{FaultKind::descriptor, "malformed tensor map: " + error, 1u << lane};
    if (static_cast<uint32_t>(map.rank) != rank)
        throw Fault{FaultKind::descriptor,
                    format("the instruction has %u dimensions, the tensor map %d", rank, map.rank), 1u << lane};
    return map;
}

std::vector<TileChunk> tile(const TensorMap& map, TileCopy direction, const Operands& o, uint32_t first,
                            uint32_t shared, uint32_t l) {
    int32_t coords[5] = {};
    for (int k = 0; k < map.rank; ++k) coords[k] = static_cast<int32_t>(o.word(first + static_cast<uint32_t>(k), l));
    std::string error;
    if (!check_tma(map, direction, coords, shared, error)) throw Fault{FaultKind::descriptor, error, 1u << l};
    std::vector<TileChunk> chunks;
    tile_chunks(map, direction, coords, shared, chunks);
    return chunks;
}

// gather4 and scatter4: one column coordinate, then four rows of a matrix, that are neighbours in shared memory.
std::vector<TileChunk> four_rows(const TensorMap& map, TileCopy direction, const Operands& o, uint32_t first,
                                 uint32_t shared, uint32_t l) {
    if (map.box[1] != 1)
        throw Fault{FaultKind::descriptor, format("the box of a tensor map for gather4 has 1 row, not %u", map.box[1]),
                    1u << l};
    std::vector<TileChunk> chunks;
    const uint32_t pitch = std::max(tile_bytes(map), static_cast<uint32_t>(map.swizzle));
    for (uint32_t row = 0; row < 4; ++row) {
        const int32_t coords[5] = {static_cast<int32_t>(o.word(first, l)),
                                   static_cast<int32_t>(o.word(first + 1 + row, l))};
        std::string error;
        if (!check_tma(map, direction, coords, shared, error)) throw Fault{FaultKind::descriptor, error, 1u << l};
        tile_chunks(map, direction, coords, shared + row * pitch, chunks);
    }
    return chunks;
}

// mod: rank | multicast << 8 | pairs << 9 | gather4 << 10; the multicast mask is the last entry
int tile_load(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    const uint32_t rank = i.mod & 255;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const TensorMap map = tensor_map(o.w, o.raw(1, l), rank, l);
        const bool rows = i.mod >> 10 & 1;
        const uint32_t coordinates = rows ? 5 : rank;
        const Destination to{(i.mod >> 8 & 1) ? multicast_mask(o, 3 + coordinates, l) : 0, (i.mod >> 9 & 1) != 0,
                             map.tf32};
        const uint32_t shared = o.shared(0, l);
        auto chunks = rows ? four_rows(map, TileCopy::load, o, 3, shared, l) : tile(map, TileCopy::load, o, 3, shared, l);
        send(o.w, to, std::move(chunks), shared, tile_bytes(map) * (rows ? 4 : 1), o.shared(2, l), l);
    }
    return kNext;
}

// Reduction type of the elements of a tensor map, by the hardware's data type code.
int element_type(const TensorMap& map, int op, uint32_t lane) {
    switch (map.dtype) {
        case 2: return 0;
        case 3: return 1;
        case 4: return 2;
        case 5: return 3;
        case 6: return 8;
        case 7: return 6;
        case 9: return 7;
        case 10: return 9;
        default: break;
    }
    throw Fault{FaultKind::unsupported, format("reduction %d of tensor map elements of type %d", op, map.dtype),
                1u << lane};
}

// mod: rank | (1 + op) << 8 for reductions | scatter4 << 16
int tile_store(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    const uint32_t rank = i.mod & 255;
    const int reduce = static_cast<int>(i.mod >> 8 & 255) - 1;
    const uint32_t first = first_lane(mask);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        // Epilogues let a whole warp store a tile, without elect.sync: the same bytes to the same place, once.
        if (l != first && reduce < 0 && o.same(first, l)) continue;
        const TensorMap map = tensor_map(o.w, o.raw(0, l), rank, l);
        std::vector<TileChunk> chunks = (i.mod >> 16 & 1) ? four_rows(map, TileCopy::store, o, 2, o.shared(1, l), l)
                                                          : tile(map, TileCopy::store, o, 2, o.shared(1, l), l);
        issue_store(o.w, std::move(chunks), l, reduce, reduce >= 0 ? element_type(map, reduce, l) : 0);
    }
    return kNext;
}

int tile_prefetch(RegView& r, const Inst& i, uint32_t mask) {  // map64, c0 …; mod = rank
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (mask >> l & 1) tensor_map(o.w, o.raw(0, l), i.mod & 255, l);
    return kNext;
}

int prefetch_map(RegView& r, const Inst& i, uint32_t mask) {  // map64
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (mask >> l & 1) global_range(*o.w.machine, o.w.region, o.raw(0, l), 128, false, l, "tensor map prefetch");
    return kNext;
}

// st.bulk: zeros in shared memory. ext: dst, bytes64
int bulk_zero(RegView& r, const Inst& i, uint32_t mask) {
    const Operands o(warp_of(r), i);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = o.shared(0, l);
        const uint64_t bytes = o.raw(1, l);
        if (dst % 8 || bytes % 8)
            throw Fault{FaultKind::misaligned,
                        format("st.bulk of %llu bytes at shared %#x: both must be multiples of 8",
                               static_cast<unsigned long long>(bytes), dst),
                        1u << l};
        check_shared(*o.w.cta, dst, bytes, l, "st.bulk");
        if (o.w.clock)
            o.w.machine->checker->shared(o.w, *o.w.cta, dst, static_cast<uint32_t>(bytes), 1u << l, kWrites);
        std::memset(o.w.cta->shared + dst, 0, bytes);
        std::memset(o.w.cta->shadow + dst, 1, bytes);
    }
    ++o.w.effects;
    ++o.w.machine->progress;
    return kNext;
}

int bulk_commit(RegView& r, const Inst&, uint32_t mask) {
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (mask >> l & 1) ++w.lane_copies(l).bulk_committed;
    return kNext;
}

// Whether a wait of some lanes that lets `keep` groups of each stay pending is for this copy.
bool awaits(const Warp& w, uint32_t mask, uint64_t keep, const Copy& c) {
    if (c.kind != CopyKind::store || c.warp != &w || !(mask >> c.lane & 1)) return false;
    return c.group + keep < c.warp->lane_copies(c.lane).bulk_committed;
}

// The lanes go on: all that they wait for is complete, or completes now.
void end_bulk_wait(Warp& w, uint32_t mask, uint64_t keep, bool read_only) {
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const LaneCopies& state = w.lane_copies(l);
        const uint64_t committed = state.bulk_committed;
        const uint64_t awaited = std::min<uint64_t>(committed > keep ? committed - keep : 0, state.bulk_time.size());
        if (awaited) w.machine->not_before(state.bulk_time[awaited - 1] - (read_only ? kCopyLatency : 0));
        w.machine->finish_copies([&](const Copy& c) { return awaits(w, 1u << l, keep, c); }, read_only);
        if (w.clock && committed > keep) {
            w.machine->checker->complete(w, 1u << l, state.reads, committed - keep);
            if (!read_only) w.machine->checker->complete(w, 1u << l, state.writes, committed - keep);
        }
    }
}

int bulk_wait(RegView& r, const Inst& i, uint32_t mask) {  // imm = groups that may stay pending; mod 1: .read
    Warp& w = warp_of(r);
    const auto keep = static_cast<uint64_t>(i.imm);
    const bool read_only = i.mod & 1;
    const auto awaited = [&w, mask, keep](const Copy& c) { return awaits(w, mask, keep, c); };
    if (w.machine->has_copies(awaited, read_only) && w.machine->copies_are_late()) {
        const auto go_on = [&w, mask, keep, read_only] { end_bulk_wait(w, mask, keep, read_only); };
        w.machine->suspend_for_copies({&w, awaited, read_only, go_on});
        return kSuspend;
    }
    end_bulk_wait(w, mask, keep, read_only);
    return kNext;
}

const NamedHandler table[] = {
    {"bulk.load", bulk_load},
    {"bulk.peer", bulk_peer},
    {"bulk.store", bulk_store},
    {"bulk.prefetch", bulk_prefetch},
    {"bulk.zero", bulk_zero},
    {"tile.load", tile_load},
    {"tile.store", tile_store},
    {"tile.prefetch", tile_prefetch},
    {"prefetch.tensormap", prefetch_map},
    {"bulk.commit", bulk_commit},
    {"bulk.wait", bulk_wait},
};

}  // namespace

HandlerTable bulk_copy_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
