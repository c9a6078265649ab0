// What each warp did in simulated time, for `machete-sim trace`: slices of running and waiting, and of asynchronous
// operations from their issue to their completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace machete::sim {

struct Warp;

enum class SliceKind : uint8_t { runs, waits, copy, product };

struct Slice {
    uint32_t cta = 0, warp = 0;
    SliceKind kind = SliceKind::runs;
    uint32_t pc = 0;             // of its first instruction
    uint64_t begin = 0, end = 0;  // ns
    uint32_t count = 0;          // instructions
};

class Recorder {
public:
    // lines: for each record of the program a number of its source line; instructions of one line are one slice.
    // limit: how many slices are kept.
    Recorder(std::vector<uint32_t> lines, size_t limit) : lines_(std::move(lines)), limit_(limit) {}

    void executed(const Warp& w, uint32_t pc, uint64_t begin, uint64_t end, bool waits);
    // The warp tried in vain since this time, and has now waited: what it did meanwhile took no time.
    void rewind(const Warp& w, uint64_t time);
    void operation(SliceKind kind, const Warp& w, uint32_t pc, uint64_t begin, uint64_t end);

    std::vector<Slice> slices() const;  // those of a warp in order
    bool truncated() const { return truncated_; }

private:
    std::vector<uint32_t> lines_;
    size_t limit_, kept_ = 0;
    bool truncated_ = false;
    std::unordered_map<uint64_t, std::vector<Slice>> warps_;  // by CTA and warp
    std::vector<Slice> operations_;

    std::vector<Slice>& of(const Warp& w);
    bool room();
};

}  // namespace machete::sim
