// printf of device code: the call of vprintf (PTX ISA 9.7.12.5; CUDA programming guide, "Formatted Output").
#include <cstring>
#include <string>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

// Host address of `bytes` at a generic address: global, or local of the lane.
const uint8_t* resolve(Warp& w, uint64_t address, uint64_t bytes, uint32_t lane, const char* what) {
    if (address >> 32 != kLocalWindow >> 32) return global_range(*w.machine, w.region, address, bytes, false, lane, what);
    const uint64_t offset = address & 0xffffffffu, size = w.machine->program.local_bytes;
    if (offset + bytes > size)
        throw Fault{FaultKind::out_of_bounds,
                    format("%s at local address %#llx; a thread has %llu bytes", what,
                           static_cast<unsigned long long>(offset), static_cast<unsigned long long>(size)),
                    1u << lane};
    return w.local.data() + size_t(lane) * size + offset;
}

std::string text_at(Warp& w, uint64_t address, uint32_t lane) {
    std::string text;
    for (;; ++address) {
        const auto c = static_cast<char>(*resolve(w, address, 1, lane, "string of printf"));
        if (!c) return text;
        text += c;
    }
}

// Arguments lie one after the other, each at a multiple of its size: 4 bytes for int and char, 8 for double, long,
// pointers.
struct Arguments {
    Warp& w;
    uint64_t address;
    uint32_t lane;
    template <class T>
    T next() {
        address = (address + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        std::memcpy(&value, resolve(w, address, sizeof value, lane, "argument of printf"), sizeof value);
        address += sizeof value;
        return value;
    }
};

std::string formatted(Warp& w, const std::string& pattern, Arguments arguments) {
    std::string out;
    for (size_t at = 0; at < pattern.size(); ++at) {
        if (pattern[at] != '%') {
            out += pattern[at];
            continue;
        }
        std::string spec = "%";
        uint32_t longs = 0;
        char conversion = 0;
        while (++at < pattern.size()) {
            const char c = pattern[at];
            if (c == 'l' || c == 'z' || c == 'j' || c == 't') {
                ++longs;
            } else if (c == '*') {
                spec += std::to_string(arguments.next<int32_t>());
            } else if (std::strchr("-+ #0123456789.h", c)) {
                spec += c;
            } else {
                conversion = c;
                break;
            }
        }
        char buffer[512];
        const auto put = [&](const char* length, auto value) {
            std::snprintf(buffer, sizeof buffer, (spec + length + conversion).c_str(), value);
            out += buffer;
        };
        switch (conversion) {
            case '%': out += '%'; break;
            case 'd':
            case 'i':
                if (longs) put("ll", static_cast<long long>(arguments.next<int64_t>()));
                else put("", arguments.next<int32_t>());
                break;
            case 'u':
            case 'o':
            case 'x':
            case 'X':
                if (longs) put("ll", static_cast<unsigned long long>(arguments.next<uint64_t>()));
                else put("", arguments.next<uint32_t>());
                break;
            case 'c': put("", arguments.next<int32_t>()); break;
            case 'a':
            case 'A':
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G': put("", arguments.next<double>()); break;
            case 'p': put("", reinterpret_cast<void*>(arguments.next<uint64_t>())); break;
            case 's': out += text_at(w, arguments.next<uint64_t>(), arguments.lane); break;
            default:
                throw Fault{FaultKind::unsupported, "printf conversion '" + spec + conversion + "' does not exist",
                            1u << arguments.lane};
        }
    }
    return out;
}

int print(RegView& r, const Inst& i, uint32_t mask) {  // d = result or none, a = format, b = arguments
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const std::string pattern = text_at(w, lanes<uint64_t>(w, i.a)[l], l);
        w.machine->printed += formatted(w, pattern, {w, lanes<uint64_t>(w, i.b)[l], l});
        if (i.d != kNoOperand) lanes<uint32_t>(w, i.d)[l] = static_cast<uint32_t>(pattern.size());
    }
    ++w.effects;
    return kNext;
}

const NamedHandler table[] = {{"vprintf", print}};

}  // namespace

HandlerTable print_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
