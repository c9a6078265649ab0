// machete.sim._core: programs in, results out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "machine.hpp"
#include "opcodes.hpp"

namespace nb = nanobind;

namespace machete::sim {

void bind_engine(nb::module_& m);

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<const uint32_t, nb::shape<-1, 16>, nb::c_contig, nb::device::cpu>;

// Words of a record: op, guard, d, a, b, c, e, mod, ext, count, imm low, imm high, flags, 3 spare.
Program* make_program(const Records& code, const Array<uint32_t>& ext, const Array<uint64_t>& constants,
                      const Array<uint32_t>& use_starts, const Array<uint32_t>& uses,
                      const Array<uint32_t>& predicate_starts, const Array<uint32_t>& predicate_uses, uint32_t register_bytes,
                      uint32_t predicates, uint32_t static_shared, uint32_t local_bytes) {
    auto program = std::make_unique<Program>();
    const auto& table = opcodes();
    program->code.resize(code.shape(0));
    for (size_t n = 0; n < program->code.size(); ++n) {
        const uint32_t* r = code.data() + 16 * n;
        if (r[0] >= table.size()) throw nb::value_error("unknown opcode");
        Inst& i = program->code[n];
        i.fn = table[r[0]].fn;
        i.op = r[0];
        i.guard = static_cast<int32_t>(r[1]);
        i.d = r[2], i.a = r[3], i.b = r[4], i.c = r[5], i.e = r[6];
        i.mod = r[7];
        i.ext = r[8];
        i.count = r[9];
        i.imm = static_cast<int64_t>(uint64_t(r[11]) << 32 | r[10]);
        i.flags = r[12];
    }
    program->ext.assign(ext.data(), ext.data() + ext.size());
    program->constants.assign(constants.data(), constants.data() + constants.size());
    program->use_starts.assign(use_starts.data(), use_starts.data() + use_starts.size());
    program->uses.assign(uses.data(), uses.data() + uses.size());
    program->predicate_starts.assign(predicate_starts.data(), predicate_starts.data() + predicate_starts.size());
    program->predicate_uses.assign(predicate_uses.data(), predicate_uses.data() + predicate_uses.size());
    program->register_bytes = register_bytes;
    program->predicates = predicates;
    program->static_shared = static_shared;
    program->local_bytes = local_bytes;
    return program.release();
}

nb::dict mark_dict(uint32_t pc, const std::vector<int64_t>& values) {
    nb::dict d;
    d["pc"] = pc == ~0u ? nb::object(nb::none()) : nb::object(nb::int_(pc));
    d["values"] = nb::cast(values);
    return d;
}

nb::dict fault_dict(const LocatedFault& f) {
    nb::dict d;
    d["kind"] = static_cast<int>(f.kind);
    d["message"] = f.message;
    d["lanes"] = f.lanes;
    d["cta"] = std::make_tuple(f.cta[0], f.cta[1], f.cta[2]);
    d["warp"] = f.warp;
    d["pc"] = f.pc == ~0u ? -1 : static_cast<int>(f.pc);
    d["mark"] = mark_dict(f.mark_pc, f.mark_values);
    nb::list waiting;
    for (const auto& w : f.waiting) {
        nb::dict entry;
        entry["cta"] = w.cta;
        entry["warp"] = w.warp;
        entry["pc"] = w.pc;
        entry["what"] = w.what;
        entry["mark"] = mark_dict(w.mark_pc, w.mark_values);
        waiting.append(entry);
    }
    d["waiting"] = waiting;
    return d;
}

// A row for each slice: CTA, warp, kind, record, begin, end, instructions.
auto slice_rows(const std::vector<Slice>& slices) {
    constexpr size_t width = 7;
    auto* rows = new std::vector<uint64_t>;
    rows->reserve(width * slices.size());
    for (const Slice& s : slices)
        rows->insert(rows->end(), {s.cta, s.warp, static_cast<uint64_t>(s.kind), s.pc, s.begin, s.end, s.count});
    nb::capsule owner(rows, [](void* p) noexcept { delete static_cast<std::vector<uint64_t>*>(p); });
    return nb::ndarray<nb::numpy, uint64_t, nb::ndim<2>>(rows->data(), {slices.size(), width}, owner);
}

using RegionTuple = std::tuple<uint64_t, uint64_t, std::string, bool>;

nb::dict launch(const Program& program, const Array<uint8_t>& params, std::array<uint32_t, 3> grid,
                std::array<uint32_t, 3> block, std::array<uint32_t, 3> cluster, uint32_t dynamic_shared, uint32_t resident, uint64_t seed,
                uint64_t max_instructions, bool races, bool strict, const std::vector<RegionTuple>& regions,
                const nb::object& progress, const Array<uint32_t>& lines, uint64_t max_slices) {
    Launch l;
    l.grid = grid;
    l.block = block;
    l.cluster = cluster;
    l.dynamic_shared = dynamic_shared;
    l.resident = resident;
    l.seed = seed;
    l.max_instructions = max_instructions;
    l.races = races;
    l.strict = strict;
    l.lines.assign(lines.data(), lines.data() + lines.size());
    if (!l.lines.empty() && l.lines.size() != program.code.size()) throw nb::value_error("one line for each record");
    l.max_slices = max_slices;
    for (const auto& [address, bytes, name, writable] : regions)
        l.regions.push_back({address, address + bytes, name, writable});
    // Tensor maps among the parameters must stay 64-byte aligned.
    std::unique_ptr<uint8_t, void (*)(void*)> copy(
        static_cast<uint8_t*>(std::aligned_alloc(128, (params.size() + 255) / 128 * 128)), std::free);
    std::memcpy(copy.get(), params.data(), params.size());
    l.params = copy.get();
    l.param_bytes = static_cast<uint32_t>(params.size());
    const auto p = reinterpret_cast<uint64_t>(copy.get());
    if (l.param_bytes) l.regions.push_back({p, p + l.param_bytes, "kernel parameters", false});
    std::sort(l.regions.begin(), l.regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });

    nb::dict result;
    Machine machine(program, l);
    const auto start = std::chrono::steady_clock::now();
    try {
        const nb::gil_scoped_release release;
        machine.run([&] {
            const nb::gil_scoped_acquire acquire;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            if (!progress.is_none()) progress(machine.statistics().instructions, machine.statistics().retired_ctas);
        });
    } catch (const LocatedFault& fault) {
        result["fault"] = fault_dict(fault);
    }
    if (machine.recorder) {
        result["slices"] = slice_rows(machine.recorder->slices());
        result["truncated"] = machine.recorder->truncated();
    }
    result["printed"] = nb::bytes(machine.printed.data(), machine.printed.size());
    const Statistics& s = machine.statistics();
    result["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result["instructions"] = s.instructions;
    result["retired_ctas"] = s.retired_ctas;
    result["async_copies"] = s.async_copies;
    result["bytes_loaded"] = s.bytes_loaded;
    result["bytes_stored"] = s.bytes_stored;
    result["matrix_instructions"] = s.matrix_instructions;
    result["max_stages_in_flight"] = s.max_stages_in_flight;
    result["simulated_ns"] = s.simulated_ns;
    return result;
}

std::vector<std::string> opcode_names() {
    std::vector<std::string> names;
    for (const auto& entry : opcodes()) names.emplace_back(entry.name);
    return names;
}

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "Native interpreter of machete.sim";
    nb::class_<Program>(m, "Program");
    m.def("make_program", &make_program, nb::rv_policy::take_ownership, nb::arg("code"), nb::arg("ext"),
          nb::arg("constants"), nb::arg("use_starts"), nb::arg("uses"), nb::arg("predicate_starts"),
          nb::arg("predicate_uses"), nb::arg("register_bytes"), nb::arg("predicates"), nb::arg("static_shared"),
          nb::arg("local_bytes"));
    m.def("launch", &launch, nb::arg("program"), nb::arg("params"), nb::arg("grid"), nb::arg("block"), nb::arg("cluster"),
          nb::arg("dynamic_shared"), nb::arg("resident"), nb::arg("seed"), nb::arg("max_instructions"),
          nb::arg("races"), nb::arg("strict"), nb::arg("regions"), nb::arg("progress").none(), nb::arg("lines"), nb::arg("max_slices"));
    m.def("opcode_names", &opcode_names, "Names of the native handlers; an opcode is an index into this list.");
    m.attr("INSTRUCTION_SET") = use_avx2() ? "avx2" : "base";
    m.attr("SHARED_BASE") = kSharedBase;
    m.attr("SHARED_WINDOW") = kSharedWindow;
    m.attr("LOCAL_WINDOW") = kLocalWindow;
    bind_engine(m);
}

}  // namespace machete::sim
