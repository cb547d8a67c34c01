// A package: the kernels of a program, its calls as C, and a run that is written out, one statement a launch.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :c_text;
import :build;
import :print_c;
import :run;
import :package_text;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::fail;
namespace fs = std::filesystem;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

bool is_identifier(std::string_view name) {
  auto const letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) && std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}
void write_file(fs::path const& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush()) fail("package: {}: {} bytes can't be written", path.string(), text.size());
}
std::string sizes_text(base::Shape const& sizes) { return base::to_string(sizes); }

// An input, output or weight, as C sees it.
struct Outside {
  std::string name;
  int value = -1;
  base::DType dtype = base::DType::f32;
  base::Shape sizes{}, strides{};
  std::int64_t bytes = 0;  ///< of the elements, row by row
};

struct Packer {
  ir::Graph const& graph;
  PackageOptions const& options;
  std::span<ir::Strided const> weights;
  Program program{};
  Sizes sizes{};
  std::vector<Outside> inputs{}, outputs{}, stored{};
  std::vector<std::string> pointers = {};    // per value: where its memory begins, in C
  std::vector<std::int64_t> weight_at = {};  // per stored weight: its place in the model's memory
  std::int64_t held = 0;                     // bytes of the model's memory so far
  std::string constants{}, declared{}, run{};
  std::set<std::size_t> direct{};  // outputs that are computed where they go
  std::vector<std::pair<std::string_view, base::DType>> parts{};
  std::vector<std::string_view> plain_parts{};

  ir::Graph const& lowered() const { return program.grouping.graph; }

  // Attention is not a call but what it is made of.
  static ir::Graph without_attention(ir::Graph const& graph) {
    return ir::decompose(graph,
                         [](ir::OpDef const& op) { return &op != &ops::scaled_dot_product_attention && &op != &ops::scaled_dot_product_attention_grad; });
  }
  void check() const {
    if (!is_identifier(options.name)) fail("package: the name '{}' can't be one of C's: letters, digits and _ are", options.name);
    base::ensure(weights.size() == graph.inputs.size(), "package: one entry of weights for each input of the graph");
    if (!graph.mutated.empty()) fail("package: the function writes into its input '{}'; a package only returns results", name_of(graph.mutated[0]));
    if (graph.outputs.empty()) fail("package: the function returns nothing that it computed");
    for (auto const& value : graph.values)
      for (auto const size : value.meta->sizes)
        if (size.node >= 0) fail("package: the size {} of '{}' is open; a package has fixed sizes", graph.symbols.to_string(size), value.name);
    for (auto const& node : graph.nodes) {
      if (node.op->kind == ir::Kind::random)
        fail("package: {} at {} draws random numbers; a package has no generator", node.op->name, base::short_place(node.at));
      auto const open = [&](auto const& what) {
        if (what.node >= 0)
          fail("package: {} at {} reads the number {}, which differs from call to call", node.op->name, base::short_place(node.at),
               graph.symbols.to_string(what));
      };
      for (auto const& dim : node.attrs.ints) open(dim);
      for (auto const& number : node.attrs.nums) open(number);
      for (auto const& input : node.inputs) open(input.scalar);
    }
  }
  std::string name_of(int input) const { return graph.values[at(graph.inputs[at(input)])].name; }

  void plan_it() {
    program = plan(without_attention(graph), {.in_place = false});
    sizes = sizes_of(program, {});
    for (auto const& kernel : program.kernels)
      base::ensure(kernel.parameters.empty() && kernel.real_parameters.empty(), "a kernel of fixed sizes has parameters");
  }
  std::int64_t take(std::int64_t bytes) { return std::exchange(held, held + aligned(std::max<std::int64_t>(bytes, 1))); }
  // Bytes before and from the first element on.
  static std::pair<std::int64_t, std::int64_t> reach(Outside const& x) {
    std::int64_t const bytes = base::bytes_of(x.dtype);
    std::pair<std::int64_t, std::int64_t> reach{0, bytes};
    for (std::size_t d = 0; d < x.sizes.size() && x.bytes > 0; ++d)
      (x.strides[d] < 0 ? reach.first : reach.second) += std::abs(x.strides[d]) * (x.sizes[d] - 1) * bytes;
    return reach;
  }
  Outside outside(int value, std::string name) const {
    auto const& meta = *lowered().values[at(value)].meta;
    Outside x{.name = std::move(name), .value = value, .dtype = meta.dtype, .sizes = ir::values(meta.sizes), .strides = ir::values(meta.strides)};
    x.bytes = base::numel(x.sizes) * base::bytes_of(x.dtype);
    return x;
  }
  void name_outside() {
    pointers.assign(lowered().values.size(), "");
    std::set<std::string> taken;
    for (std::size_t k = 0; k < lowered().inputs.size(); ++k) {
      int const value = lowered().inputs[k];
      auto const& own = graph.values[at(graph.inputs[k])].name;
      auto x = outside(value, own.empty() ? std::format("input{}", k) : own);
      if (x.sizes.size() > 16) fail("package: input '{}' has {} dims, 16 are the most", x.name, x.sizes.size());
      if (weights[k].data == nullptr) {
        if (inputs.size() < options.inputs.size()) x.name = options.inputs[inputs.size()];
        if (!base::is_contiguous(x.sizes, x.strides)) fail("package: input '{}' has strides {}; it must lie row by row", x.name, base::to_string(x.strides));
        declare(value, std::format("(char *)inputs[{}]", inputs.size()), x.name);
        inputs.push_back(std::move(x));
      } else {
        if (!taken.insert(x.name).second) fail("package: two weights are called '{}'", x.name);
        auto const [before, from] = reach(x);
        weight_at.push_back(take(aligned(before) + from) + aligned(before));
        declare(value, std::format("w + {}", weight_at.back()), x.name);
        stored.push_back(std::move(x));
      }
    }
    for (std::size_t k = 0; k < lowered().outputs.size(); ++k) {
      auto x = outside(lowered().outputs[k], k < options.outputs.size() ? options.outputs[k] : std::format("output{}", k));
      x.strides = sizes.outputs[k].strides;
      outputs.push_back(std::move(x));
    }
    if (options.inputs.size() > inputs.size()) fail("package: {} names for {} inputs", options.inputs.size(), inputs.size());
    if (options.outputs.size() > outputs.size()) fail("package: {} names for {} outputs", options.outputs.size(), outputs.size());
  }

  // Memory of what is neither given nor stored.
  void place_values() {
    auto const arena = take(sizes.arena);
    for (int v = 0; std::cmp_less(v, program.homes.size()); ++v) {
      auto const& home = program.homes[at(v)];
      if (home.kind == Home::Kind::arena) declare(v, std::format("w + {}", arena + sizes.offsets[at(v)]));
      if (home.kind == Home::Kind::constant) write_constant(v, home.number);
      if (home.kind != Home::Kind::output) continue;
      // An output that is all of it is computed where it goes.
      auto const whole = [&](std::size_t k) {
        return program.grouping.places[at(outputs[k].value)].root == v && sizes.output_offsets[k] == 0 && outputs[k].bytes == sizes.bytes[at(v)] &&
               base::is_contiguous(outputs[k].sizes, outputs[k].strides);
      };
      std::size_t k = 0;
      while (k < outputs.size() && !whole(k)) ++k;
      declare(v, k < outputs.size() ? std::format("(char *)outputs[{}]", k) : std::format("w + {}", take(sizes.bytes[at(v)])));
      if (k < outputs.size()) direct.insert(k);
    }
  }
  void write_constant(int value, int number) {
    auto const& node = lowered().nodes[at(lowered().values[at(value)].node)];
    auto const x = outside(value, "");
    std::vector<std::uint64_t> words(static_cast<std::size_t>(std::max<std::int64_t>((x.bytes + 7) / 8, 1)), 0);
    std::array out{ir::Strided{reinterpret_cast<std::byte*>(words.data()), x.dtype, x.sizes, base::contiguous_strides(x.sizes)}};
    ir::evaluate(*node.op, {}, {}, node.attrs, out);
    constants +=
        std::format("// {} {}\nstatic _Alignas(64) const unsigned long long tn_constant{}[] = {{", base::info(x.dtype).name, sizes_text(x.sizes), number);
    for (std::size_t k = 0; k < words.size(); ++k) constants += std::format("{}{:#x}", k % 8 ? ", " : k ? ",\n  " : "", words[k]);
    constants += "};\n";
    declare(value, std::format("(char *)tn_constant{}", number));
  }

  void declare(int value, std::string const& where, std::string const& name = "") {
    auto const& meta = *lowered().values[at(value)].meta;
    declared += std::format("  char *const v{} = {};  // {} {}{}{}\n", value, where, base::info(meta.dtype).name, sizes_text(ir::values(meta.sizes)),
                            name.empty() ? "" : " ", name.empty() ? "" : literal(name));
    pointers[at(value)] = std::format("v{}", value);
  }
  std::string pointer(int root, std::int64_t offset) const {
    base::ensure(!pointers[at(root)].empty(), "package: a value has no memory");
    return offset == 0 ? pointers[at(root)] : std::format("{} + {}", pointers[at(root)], offset);
  }
  void write_kernel(Launch const& launch, Prepared const& p, std::int64_t& scratch, std::int64_t& part) {
    auto const& kernel = program.kernels[at(launch.kernel)];
    auto const first = line_of(lowered().nodes[at(program.grouping.groups[at(launch.group)].nodes[0])]);
    if (p.interpreted) fail("package: {} gathers from a dim of size 0", first);
    bool const gathers = has_indices(kernel);
    std::string buffers;
    for (int const root : launch.roots) buffers += (buffers.empty() ? "" : ", ") + pointer(root, 0);
    for (int const n : program.grouping.groups[at(launch.group)].nodes) run += "    // " + line_of(lowered().nodes[at(n)]) + "\n";
    if (gathers) run += "    int bad = 0;\n";
    run += std::format("    char *const b[] = {{{}{}}};\n", buffers, gathers ? ", (char *)&bad" : "");
    if (p.region == 0) {
      run += std::format("    {}(b, 0, 0, 0, {}, 0, {}, scratch, 0);\n", kernel.name, p.items, p.first_columns);
    } else {
      if (std::ranges::find(plain_parts, "parts") == plain_parts.end()) plain_parts.emplace_back("parts");
      run += std::format("    tn_in_parts({0}, {0}_finish, b, {1}, {2}, {3}, {4}, {5}, {6}, scratch, part);\n", kernel.name, p.batches, p.chunks, p.rows,
                         p.first_columns, kernel.schedule.form == Form::split ? 1 : 0, p.region);
      if (has_second_pass(kernel))
        run += std::format("    tn_in_parts_again({}_apply, b, {}, {}, {}, {}, part);\n", kernel.name, p.batches, p.chunks, p.first_columns, p.region);
      part = std::max<std::int64_t>(part, p.batches * p.chunks * p.region);
    }
    if (gathers)
      run += std::format("    if (bad) return tn_fail(\"{}_run: index %lld is out of range for size %lld, in %s\", tn_wrong.index, tn_wrong.size, {});\n",
                         options.name, literal(first));
    scratch = std::max<std::int64_t>(scratch, p.scratch);
  }
  void write_call(Launch const& launch, Prepared const& p, std::int64_t& work) {
    auto const& node = lowered().nodes[at(launch.node)];
    std::vector<std::string> in, out;
    for (std::size_t k = 0; k < p.in.size(); ++k) in.push_back(p.in_roots[k] < 0 ? "0" : pointer(p.in_roots[k], p.in_offsets[k]));
    for (int k = 0; k < node.results; ++k) out.push_back(pointer(node.first + k, 0));
    auto const call = call_text(node, p, in, out);
    for (auto const& part : call.parts)
      if (std::ranges::find(parts, part) == parts.end()) parts.push_back(part);
    for (auto const& part : call.plain_parts)
      if (std::ranges::find(plain_parts, part) == plain_parts.end()) plain_parts.push_back(part);
    run += "    // " + line_of(node) + "\n";
    for (auto const& line : call.lines) run += "    " + line + "\n";
    work = std::max(work, call.work);
  }
  void write_run() {
    std::int64_t scratch = 0, part = 0, work = 0;
    for (std::size_t l = 0; l < program.launches.size(); ++l) {
      run += "  {\n";
      if (auto const& launch = program.launches[l]; launch.node < 0)
        write_kernel(launch, sizes.launches[l], scratch, part);
      else
        write_call(launch, sizes.launches[l], work);
      run += "  }\n";
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      auto const& x = outputs[k];
      auto const from = pointer(program.grouping.places[at(x.value)].root, sizes.output_offsets[k]);
      if (!direct.contains(k)) run += "  " + dense_text(std::format("(char *)outputs[{}]", k), from, {nullptr, x.dtype, x.sizes, x.strides}) + "\n";
    }
    std::string begin = "  char *const w = model->memory;\n";
    for (auto const& [name, bytes] : {std::pair("scratch", scratch), {"part", part}, {"work", work}})
      begin += std::format("  char *const {0} = w + {1};\n  (void){0};\n", name, take(bytes));
    run = begin + declared + "  tn_wrong.is = 0;\n" + run;
  }

  static std::string listed(base::Shape const& numbers, int times = 1) {
    std::string text;
    for (auto const number : numbers) text += std::format("{}{}", text.empty() ? "" : ", ", number * times);
    return text.empty() ? "0" : text;
  }
  std::string tensors(std::string_view kind, std::vector<Outside> const& list) const {
    std::string text, rows;
    for (std::size_t k = 0; k < list.size(); ++k) {
      auto const& x = list[k];
      text += std::format("static const int64_t tn_{}{}[] = {{{}}};\n", kind, k, listed(x.sizes));
      rows += std::format("  {{{}, \"{}\", {}, tn_{}{}, {}}},\n", literal(x.name), base::info(x.dtype).file_name, x.sizes.size(), kind, k, x.bytes);
    }
    return text + std::format("static const {}_tensor tn_{}s[] = {{\n{}  {{0, 0, 0, 0, 0}}}};\n", options.name, kind, rows);
  }
  std::string header() const {
    std::string guard = options.name, text;
    for (auto& c : guard) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    auto const lines = [&](std::string_view kind, std::vector<Outside> const& list) {
      text += std::format("#define {}_{}s {}\n", options.name, kind, list.size());
      for (std::size_t k = 0; k < list.size(); ++k)
        text += std::format("#define {}_{}{}_elements {}  // {}: {} {}\n", options.name, kind, k, base::numel(list[k].sizes), literal(list[k].name),
                            base::info(list[k].dtype).file_name, sizes_text(list[k].sizes));
    };
    lines("input", inputs), lines("output", outputs);
    text += std::format("#define {}_weights {}\n", options.name, stored.size());
    return filled(package_part("header"), {{"GUARD", guard}, {"NAME", options.name}, {"TENSORS", text}});
  }
  std::string source(std::string_view flags) const {
    std::string text = filled(package_part("top"), {{"NAME", options.name}, {"FLAGS", flags}}) + package_part("begin");
    text += "\n" + program.source + "\n" + package_part("errors") + package_part("file");
    for (auto const part : plain_parts) text += package_part(part);
    for (auto const& [name, dtype] : parts) text += package_part(name, dtype);
    text += "\n" + constants + tensors("input", inputs) + tensors("output", outputs) + tensors("weight", stored) + "static const tn_weight tn_stored[] = {\n";
    for (std::size_t k = 0; k < stored.size(); ++k) {
      auto const& x = stored[k];
      int const bytes = base::bytes_of(x.dtype);
      text += std::format("  {{{}, \"{}\", {}, {{{}}}, {{{}}}, {}, {}}},\n", literal(x.name), base::info(x.dtype).file_name, x.sizes.size(), listed(x.sizes),
                          listed(x.strides, bytes), bytes, weight_at[k]);
    }
    auto const number = [](auto n) { return std::to_string(n); };
    return text + "  {0, 0, 0, {0}, {0}, 0, 0}};\n\n" +
           filled(package_part("model"), {{"NAME", options.name},
                                          {"OUTPUTS", number(outputs.size())},
                                          {"INPUTS", number(inputs.size())},
                                          {"WEIGHTS", number(stored.size())},
                                          {"BYTES", number(std::max<std::int64_t>(held, 64))},
                                          {"RUN", run}});
  }
  void save_weights(fs::path const& path) const {
    std::map<std::string, base::FileTensor> tensors;
    std::vector<std::vector<std::byte>> dense;
    for (std::size_t k = 0, s = 0; k < weights.size(); ++k) {
      auto const& x = weights[k];
      if (x.data == nullptr) continue;
      auto const& entry = stored[s++];
      auto& bytes = dense.emplace_back(static_cast<std::size_t>(entry.bytes));
      auto const size = static_cast<std::size_t>(base::bytes_of(x.dtype));
      std::byte* to = bytes.data();
      ir::walk<1>(x.sizes, {&x.strides}, [&](auto const& offset) { std::memcpy(to, x.at(offset[0]), size), to += size; });
      tensors[entry.name] = {x.dtype, x.sizes, bytes};
    }
    base::save_safetensors(path, tensors);
  }
};
}  // namespace

Package write_package(ir::Graph const& graph, std::span<ir::Strided const> weights, PackageOptions const& options) {
  Packer packer{.graph = graph, .options = options, .weights = weights};
  packer.check();
  packer.plan_it();
  packer.name_outside();
  packer.place_values();
  packer.write_run();

  auto compiler = device::toolchain();
  if (!compiler) fail("package: there is no C compiler: clang-19, clang, gcc and cc are looked for on PATH, and what TENON_CC names");
  compiler->linker.clear();  // the compiler knows what a library that stands alone needs
  std::vector<std::string> flags{"-fvisibility=hidden", std::format("-I{}", fs::absolute(options.folder).string())};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  std::string command;
  for (auto const& flag : device::compile_flags(*compiler)) command += flag + " ";
  command += "-fvisibility=hidden";
  for (auto const& flag : options.flags) command += " " + flag;

  fs::create_directories(options.folder);
  Package made{.header = options.folder / (options.name + ".h"),
               .source = options.folder / (options.name + ".c"),
               .library = options.folder / ("lib" + options.name + ".so"),
               .weights = options.folder / "weights.safetensors",
               .kernels = static_cast<int>(packer.program.kernels.size()),
               .launches = static_cast<int>(packer.program.launches.size()),
               .working_bytes = packer.held};
  for (std::size_t k = 0; k < packer.stored.size(); ++k) {
    made.weight_bytes += packer.stored[k].bytes;
    auto const [before, from] = Packer::reach(packer.stored[k]);
    made.working_bytes -= aligned(before) + aligned(from);
  }
  auto const source = packer.source(command);
  write_file(made.header, packer.header());
  write_file(made.source, source);
  packer.save_weights(made.weights);
  auto const object = device::compile(*compiler, source, flags);
  made.compile_seconds = object.seconds;
  write_file(made.library, {reinterpret_cast<char const*>(object.bytes.data()), object.bytes.size()});
  return made;
}

}  // namespace tenon::fusion
