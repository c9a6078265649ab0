#include "shadow.hpp"

namespace machete::sim {

uint32_t AccessRecord::lanes_at(uint32_t mask) const {
    if (pattern == 0) return lanes;
    const auto first = static_cast<uint32_t>(__builtin_ctz(lanes));
    const auto start = static_cast<uint32_t>(__builtin_ctz(bytes));
    uint32_t out = 0;
    for (uint32_t m = mask & bytes; m; m &= m - 1)
        out |= 1u << (first + (static_cast<uint32_t>(__builtin_ctz(m)) - start) / pattern);
    return out & lanes;
}

void ShadowCell::add(const AccessRecord& record) {
    // Memory that very many warps read keeps the latest of them: fewer conflicts are found, none is invented.
    constexpr uint32_t kMost = 96;
    if (count_ < kInline) {
        items_[count_++] = record;
    } else if (count_ < kMost) {
        if (!more_) more_ = new std::vector<AccessRecord>;
        more_->push_back(record);
        ++count_;
    } else {
        (*more_)[record.site % more_->size()] = record;
    }
}

void ShadowCell::remove(uint32_t i) {
    AccessRecord& last = (*this)[count_ - 1];
    if (i != count_ - 1) (*this)[i] = last;
    if (count_ > kInline) more_->pop_back();
    --count_;
}

ShadowCell* PagedShadow::find(uint64_t page) {
    auto& cells = pages_[page];
    if (!cells) cells = std::make_unique<ShadowCell[]>(kPage / 16);
    return cells.get();
}

}  // namespace machete::sim
