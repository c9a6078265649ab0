// Who touched memory last: a list of accesses for every 16 bytes of shared, tensor and global memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "clock.hpp"

namespace machete::sim {

enum AccessFlags : uint8_t {
    kWrites = 1,
    kAsyncProxy = 2,  // by TMA, wgmma or tcgen05
    kStrong = 4,      // atomic, volatile, relaxed, acquire or release: two of them are no race
    kCtaScope = 8,    // strong inside of its CTA only
    kSettles = 16,    // a store that compares what it wrote with what was there (Checker::settle)
    kLoads = 32,      // from shared memory into registers, where it arrives later (SharedLoads)
};

struct AccessRecord {
    Epoch epoch = 0;
    uint32_t site = 0;   // where in the program, and in whose hands (Checker::sites)
    uint32_t lanes = 0;  // of a warp
    uint16_t bytes = 0;  // of the 16
    uint8_t flags = 0;
    uint8_t pattern = 0;  // bytes per lane, if neighbouring lanes made neighbouring accesses; 0: all lanes, all bytes

    // The lanes that touched any of these bytes.
    uint32_t lanes_at(uint32_t mask) const;
};

// The accesses to 16 bytes that a later one could still conflict with.
class ShadowCell {
public:
    ShadowCell() = default;
    ShadowCell(const ShadowCell&) = delete;
    ShadowCell& operator=(const ShadowCell&) = delete;
    ~ShadowCell() { delete more_; }

    uint32_t size() const { return count_; }
    AccessRecord& operator[](uint32_t i) { return i < kInline ? items_[i] : (*more_)[i - kInline]; }
    void add(const AccessRecord& record);
    void remove(uint32_t i);
    void clear() {
        count_ = 0;
        if (more_) more_->clear();
    }

private:
    static constexpr uint32_t kInline = 2;
    AccessRecord items_[kInline];
    std::vector<AccessRecord>* more_ = nullptr;
    uint32_t count_ = 0;
};

// Shared or tensor memory of a CTA: a flat range of addresses.
class FlatShadow {
public:
    void resize(uint32_t bytes) {
        count_ = (bytes + 15) / 16;
        cells_ = std::make_unique<ShadowCell[]>(count_);
    }
    bool empty() const { return !cells_; }
    void clear() {
        for (uint32_t i = 0; i < count_; ++i) cells_[i].clear();
    }
    void begin_at(uint64_t address) { begin_ = address; }  // of the first cell; 0 unless set
    ShadowCell& at(uint64_t address) { return cells_[(address - begin_) / 16]; }

private:
    uint64_t begin_ = 0;
    std::unique_ptr<ShadowCell[]> cells_;
    uint32_t count_ = 0;
};

// Global memory: pages on demand.
class PagedShadow {
public:
    ShadowCell& at(uint64_t address) {
        const uint64_t page = address / kPage;
        Recent& recent = recent_[page % recent_.size()];
        if (recent.page != page) recent = {page, find(page)};
        return recent.cells[address % kPage / 16];
    }

private:
    static constexpr uint64_t kPage = 4096;
    struct Recent {
        uint64_t page = ~0ull;
        ShadowCell* cells = nullptr;
    };
    ShadowCell* find(uint64_t page);

    std::unordered_map<uint64_t, std::unique_ptr<ShadowCell[]>> pages_;
    std::array<Recent, 256> recent_;
};

}  // namespace machete::sim
