#include "recorder.hpp"

#include <algorithm>

#include "machine.hpp"

namespace machete::sim {

std::vector<Slice>& Recorder::of(const Warp& w) { return warps_[uint64_t(w.cta->linear) << 8 | w.index]; }

bool Recorder::room() {
    if (kept_ < limit_) {
        ++kept_;
        return true;
    }
    truncated_ = true;
    return false;
}

void Recorder::executed(const Warp& w, uint32_t pc, uint64_t begin, uint64_t end, bool waits) {
    if (truncated_) return;
    std::vector<Slice>& track = of(w);
    if (!track.empty() && track.back().end < begin) {  // it slept, or polled, until now
        if (track.back().kind == SliceKind::waits) {
            track.back().end = begin;
        } else {
            begin = track.back().end;
            waits = true;
        }
    }
    const SliceKind kind = waits ? SliceKind::waits : SliceKind::runs;
    if (!track.empty()) {
        Slice& last = track.back();
        const bool alike = waits ? last.pc == pc : lines_[last.pc] == lines_[pc];
        if (last.kind == kind && last.end == begin && alike) {
            last.end = std::max(last.end, end);
            ++last.count;
            return;
        }
    }
    if (room()) track.push_back({w.cta->linear, w.index, kind, pc, begin, std::max(begin, end), 1});
}

void Recorder::rewind(const Warp& w, uint64_t time) {
    std::vector<Slice>& track = of(w);
    while (!track.empty() && track.back().begin >= time) {
        track.pop_back();
        --kept_;
    }
    if (!track.empty()) track.back().end = std::min(track.back().end, time);
}

void Recorder::operation(SliceKind kind, const Warp& w, uint32_t pc, uint64_t begin, uint64_t end) {
    if (!truncated_ && room()) operations_.push_back({w.cta->linear, w.index, kind, pc, begin, end, 1});
}

std::vector<Slice> Recorder::slices() const {
    std::vector<uint64_t> keys;
    for (const auto& [key, track] : warps_) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    std::vector<Slice> out;
    for (const uint64_t key : keys) out.insert(out.end(), warps_.at(key).begin(), warps_.at(key).end());
    out.insert(out.end(), operations_.begin(), operations_.end());
    return out;
}

}  // namespace machete::sim
