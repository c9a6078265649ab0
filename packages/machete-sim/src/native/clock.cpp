#include "clock.hpp"

#include <algorithm>

namespace machete::sim {

bool WarpTime::join(const WarpTime& other) {
    const WarpTime before = *this;
    synced = std::max(synced, other.synced);
    // Two sets of lanes at two times have no exact join in this form: the lanes of both, at the later time, knows too
    // much rather than too little, so that no race is reported that is none.
    const bool mine = time > synced, theirs = other.time > synced;
    if (mine && theirs) {
        mask |= other.mask;
        time = std::max(time, other.time);
    } else if (theirs) {
        time = other.time;
        mask = other.mask;
    } else if (!mine) {
        time = synced;
        mask = ~0u;
    }
    for (int s = 0; s < 3; ++s) fenced[s] = std::max(fenced[s], other.fenced[s]);
    arrived = std::max(arrived, other.arrived);
    return synced != before.synced || time != before.time || mask != before.mask || fenced[0] != before.fenced[0] ||
           fenced[1] != before.fenced[1] || fenced[2] != before.fenced[2] || arrived != before.arrived;
}

namespace {

// Whether b knows nothing that a does not know.
bool covers(const ClockBlock& a, const ClockBlock& b) {
    if (a.warps.size() < b.warps.size() || a.agents.size() < b.agents.size()) return false;
    for (size_t k = 0; k < b.agents.size(); ++k)
        if (b.agents[k] > a.agents[k]) return false;
    for (size_t k = 0; k < b.warps.size(); ++k) {
        const WarpTime &x = a.warps[k], &y = b.warps[k];
        if (y.synced > x.synced || (y.time > x.synced && (y.time > x.time || (y.mask & ~x.mask))) ||
            y.fenced[0] > x.fenced[0] || y.fenced[1] > x.fenced[1] || y.fenced[2] > x.fenced[2] ||
            y.arrived > x.arrived)
            return false;
    }
    return true;
}

}  // namespace

Clock::Clock(const Clock& other) : entries_(other.entries_) {
    for (const Entry& e : entries_) ++e.block->references;
}

void Clock::release(ClockBlock* block) {
    if (--block->references == 0) delete block;
}

void Clock::clear() {
    for (const Entry& e : entries_) release(e.block);
    entries_.clear();
}

size_t Clock::find(uint32_t cta) const {
    if (entries_.size() == 1) return entries_[0].cta < cta;
    auto it = std::lower_bound(entries_.begin(), entries_.end(), cta, [](const Entry& e, uint32_t c) { return e.cta < c; });
    return static_cast<size_t>(it - entries_.begin());
}

ClockBlock& Clock::own(size_t index) {
    ClockBlock*& block = entries_[index].block;
    if (block->references > 1) {
        auto* copy = new ClockBlock(*block);
        copy->references = 1;
        --block->references;
        block = copy;
    }
    return *block;
}

ClockBlock& Clock::at(uint32_t cta) {
    const size_t index = find(cta);
    if (index == entries_.size() || entries_[index].cta != cta) {
        auto* block = new ClockBlock;
        block->references = 1;
        entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(index), Entry{cta, block});
        return *block;
    }
    return own(index);
}

bool Clock::join(const Clock& other) {
    if (&other == this) return false;
    bool changed = false;
    size_t i = 0;
    for (const Entry& theirs : other.entries_) {
        while (i < entries_.size() && entries_[i].cta < theirs.cta) ++i;
        if (i == entries_.size() || entries_[i].cta != theirs.cta) {
            ++theirs.block->references;
            entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(i), theirs);
            changed = true;
            continue;
        }
        ClockBlock* mine = entries_[i].block;
        if (mine == theirs.block || covers(*mine, *theirs.block)) continue;
        changed = true;
        if (covers(*theirs.block, *mine)) {  // share it
            ++theirs.block->references;
            release(mine);
            entries_[i].block = theirs.block;
            continue;
        }
        ClockBlock& block = own(i);
        if (block.warps.size() < theirs.block->warps.size()) block.warps.resize(theirs.block->warps.size());
        if (block.agents.size() < theirs.block->agents.size()) block.agents.resize(theirs.block->agents.size());
        for (size_t k = 0; k < theirs.block->warps.size(); ++k) block.warps[k].join(theirs.block->warps[k]);
        for (size_t k = 0; k < theirs.block->agents.size(); ++k)
            block.agents[k] = std::max(block.agents[k], theirs.block->agents[k]);
    }
    return changed;
}

bool Clock::knows(Epoch epoch, uint32_t lanes) const {
    const size_t index = find(epoch_cta(epoch));
    if (index == entries_.size() || entries_[index].cta != epoch_cta(epoch)) return false;
    const ClockBlock& block = *entries_[index].block;
    const uint32_t agent = epoch_agent(epoch), time = epoch_time(epoch);
    if (agent < kFirstAsyncAgent) return agent < block.warps.size() && block.warps[agent].knows(time, lanes);
    const uint32_t k = agent - kFirstAsyncAgent;
    return k < block.agents.size() && time <= block.agents[k];
}

bool Clock::fenced(Epoch epoch, int space) const {
    const size_t index = find(epoch_cta(epoch));
    if (index == entries_.size() || entries_[index].cta != epoch_cta(epoch)) return false;
    const ClockBlock& block = *entries_[index].block;
    const uint32_t agent = epoch_agent(epoch);
    return agent < block.warps.size() && epoch_time(epoch) <= block.warps[agent].fenced[space];
}

bool Clock::arrived(Epoch epoch) const {
    const size_t index = find(epoch_cta(epoch));
    if (index == entries_.size() || entries_[index].cta != epoch_cta(epoch)) return false;
    const ClockBlock& block = *entries_[index].block;
    const uint32_t agent = epoch_agent(epoch);
    return agent < block.warps.size() && epoch_time(epoch) <= block.warps[agent].arrived;
}

void Clock::learn_agent(uint32_t cta, uint32_t agent, uint32_t time) {
    const size_t k = agent - kFirstAsyncAgent;
    const size_t index = find(cta);
    if (index < entries_.size() && entries_[index].cta == cta) {
        const ClockBlock& block = *entries_[index].block;
        if (k < block.agents.size() && block.agents[k] >= time) return;
    }
    ClockBlock& block = at(cta);
    if (block.agents.size() <= k) block.agents.resize(k + 1);
    block.agents[k] = std::max(block.agents[k], time);
}

void Clock::set_warp(uint32_t cta, uint32_t warp, const WarpTime& time) {
    ClockBlock& block = at(cta);
    if (block.warps.size() <= warp) block.warps.resize(warp + 1);
    block.warps[warp] = time;
}

void Clock::fence(uint32_t spaces, uint32_t cta, uint32_t last) {
    for (size_t i = 0; i < entries_.size(); ++i) {
        const bool here = entries_[i].cta >= cta && entries_[i].cta <= last;
        const uint32_t which = here ? spaces : spaces & kProxyGlobal;
        if (!which) continue;
        bool needed = false;
        for (const WarpTime& w : entries_[i].block->warps)
            for (int s = 0; s < 3; ++s) needed |= (which >> s & 1) && w.fenced[s] < w.time;
        if (!needed) continue;
        for (WarpTime& w : own(i).warps)
            for (int s = 0; s < 3; ++s)
                if (which >> s & 1) w.fenced[s] = std::max(w.fenced[s], w.time);
    }
}

}  // namespace machete::sim
