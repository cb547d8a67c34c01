// tenon-run: evaluates a graph from any of the text forms on tensors from a safetensors file, or prints it in another form.
#include <CLI/CLI.hpp>

import std;
import tenon.base;
import tenon.ir;
#include "tool.hpp"
using namespace tenon;
using base::fail;

namespace {
using Tensors = std::map<std::string, base::FileTensor>;

struct Request {
  std::string graph, inputs, outputs, backend = "reference", print;
  std::vector<std::string> modules;
  int time = 0;
};

std::string text_of(std::string const& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail("{}: is a folder, not a graph", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("{}: can't be read", path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A row: what --print takes, and how it prints.
struct Form {
  std::string_view name;
  std::string (*print)(ir::Graph const& graph);
};
std::string fx_code(ir::Graph const& graph) {
  auto const code = ir::to_code(ir::to_fx(graph, {.types = true}));
  auto const start = code.find_first_not_of('\n');
  return code.substr(start, code.find_last_not_of(' ') + 1 - start);
}
constexpr Form forms[] = {
    {"own", [](ir::Graph const& graph) { return ir::to_string(graph); }},
    {"fx", [](ir::Graph const& graph) { return ir::to_string(ir::to_fx(graph, {.types = true})); }},
    {"fx_code", fx_code},
    {"aten", [](ir::Graph const& graph) { return ir::to_string(ir::to_fx(graph, {.style = ir::FxStyle::aten, .types = true})); }},
    {"stablehlo", ir::to_stablehlo},
    {"hlo", ir::to_hlo},
    {"dot", ir::to_dot},
    {"svg", [](ir::Graph const& graph) { return ir::to_svg(ir::to_dot(graph)); }},
};

ir::Meta meta_of(base::FileTensor const& tensor) {
  ir::Dims sizes;
  for (auto size : tensor.shape) sizes.push_back(size);
  return ir::contiguous_meta(tensor.dtype, {}, sizes);
}

// Everything of a file that a graph may ask for by name or by place.
ir::FxSurroundings surroundings(Request const& request, Tensors const& tensors) {
  ir::FxSurroundings around;
  for (auto const& [name, tensor] : tensors) around.tensors.emplace(name, meta_of(tensor));
  for (auto const& entry : request.modules) {
    auto const equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) fail("--module: \"{}\" is not PATH=KIND", entry);
    around.modules[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return around;
}

/// An input's elements, aligned for their dtype.
struct Loaded {
  base::Ref<base::Buffer> storage;
  ir::Strided at;
};
Loaded loaded(base::FileTensor const& tensor) {
  Loaded made{base::make_ref<base::Buffer>(static_cast<std::int64_t>(tensor.data.size())), {}};
  std::ranges::copy(tensor.data, made.storage->data());
  made.at = {made.storage->data(), tensor.dtype, tensor.shape, base::contiguous_strides(tensor.shape)};
  return made;
}

// The tensor of input k: by its name, or by its place.
std::pair<std::string, base::FileTensor const*> find_input(ir::Graph const& graph, std::size_t k, Tensors const& tensors, std::string const& file) {
  auto const& name = graph.values[static_cast<std::size_t>(graph.inputs[k])].name;
  for (auto const& key : {name, std::to_string(k)})
    if (auto const found = tensors.find(key); found != tensors.end()) return {key, &found->second};
  std::string there;
  for (auto const& [key, tensor] : tensors) there += (there.empty() ? "" : ", ") + key;
  fail("{}: no tensor \"{}\" or \"{}\" for input {} of graph {}; there are: {}", file, name, k, k, graph.name, there.empty() ? "none" : there);
}

// Binds the symbols that stand alone as sizes, then checks every size and constraint against what the file has.
ir::Bindings checked(ir::Graph const& graph, std::span<Loaded const> inputs, std::span<std::string const> keys, std::string const& file) {
  auto const& symbols = graph.symbols;
  ir::Bindings bindings;
  for (int number = 0; std::cmp_less(number, symbols.names().size()); ++number) {
    auto const hint = symbols.symbol_at(number);
    bindings.whole.push_back(hint.whole);
    bindings.real.push_back(hint.real);
  }
  auto const meta = [&](std::size_t k) -> ir::Meta const& { return *graph.values[static_cast<std::size_t>(graph.inputs[k])].meta; };
  for (std::size_t k = 0; k < inputs.size(); ++k)
    for (std::size_t d = 0; d < std::min(meta(k).sizes.size(), inputs[k].at.sizes.size()); ++d)
      if (int const number = symbols.symbol_number(meta(k).sizes[d]); number >= 0) bindings.whole[static_cast<std::size_t>(number)] = inputs[k].at.sizes[d];
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    auto const& wish = meta(k);
    auto const& have = inputs[k].at;
    auto const refuse = [&] {
      fail("{}: tensor \"{}\" is {}{}, but input {} of graph {} is {}", file, keys[k], base::info(have.dtype).name, base::to_string(have.sizes), k, graph.name,
           ir::to_string(wish, &symbols));
    };
    if (wish.dtype != have.dtype || wish.sizes.size() != have.sizes.size()) refuse();
    for (std::size_t d = 0; d < have.sizes.size(); ++d)
      if (symbols.evaluate(wish.sizes[d], bindings) != have.sizes[d]) refuse();
  }
  for (auto const& constraint : symbols.constraints) {
    auto const a = symbols.evaluate(constraint.a, bindings), b = symbols.evaluate(constraint.b, bindings);
    bool const holds = constraint.relation == ir::Relation::equal     ? a == b
                       : constraint.relation == ir::Relation::unequal ? a != b
                       : constraint.relation == ir::Relation::less    ? a < b
                                                                      : a <= b;
    if (!holds) fail("{}: the graph needs {}, but these are {} and {}", file, symbols.to_string(constraint), a, b);
  }
  return bindings;
}

// Inputs in the memory order that the graph wants, row-major unless it has other strides.
void arrange(ir::Graph const& graph, std::vector<Loaded>& inputs, ir::Bindings const& bindings) {
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    auto const& meta = *graph.values[static_cast<std::size_t>(graph.inputs[k])].meta;
    base::Shape strides;
    for (auto stride : meta.strides) strides.push_back(graph.symbols.evaluate(stride, bindings));
    auto& from = inputs[k];
    if (strides == from.at.strides || base::numel(from.at.sizes) == 0) continue;
    std::int64_t first = 0, last = 0;  // the lowest and the highest element
    for (std::size_t d = 0; d < strides.size(); ++d) {
      std::int64_t reach = 0, end = 0;
      bool const fits = !__builtin_mul_overflow(strides[d], from.at.sizes[d] - 1, &reach) && !__builtin_add_overflow(reach < 0 ? first : last, reach, &end);
      if (!fits || end < -(std::int64_t{1} << 40) || end > (std::int64_t{1} << 40)) fail("input {}: strides {} reach too far", k, base::to_string(strides));
      (reach < 0 ? first : last) = end;
    }
    Loaded to{base::make_ref<base::Buffer>((last - first + 1) * base::bytes_of(from.at.dtype)), {}};
    to.at = {to.storage->data() - first * base::bytes_of(from.at.dtype), from.at.dtype, from.at.sizes, strides};
    ir::walk<2>(from.at.sizes, {&from.at.strides, &to.at.strides},
                [&](auto const& at) { std::copy_n(from.at.at(at[0]), base::bytes_of(from.at.dtype), to.at.at(at[1])); });
    from = std::move(to);
  }
}

void save(std::string const& file, ir::Graph const& graph, ir::Evaluated const& done) {
  std::vector<Loaded> kept;
  Tensors tensors;
  for (std::size_t k = 0; k < done.outputs.size(); ++k) {
    auto const& from = done.outputs[k];
    Loaded to{base::make_ref<base::Buffer>(base::numel(from.sizes) * base::bytes_of(from.dtype)), {}};
    to.at = {to.storage->data(), from.dtype, from.sizes, base::contiguous_strides(from.sizes)};
    ir::walk<2>(from.sizes, {&from.strides, &to.at.strides}, [&](auto const& at) { std::copy_n(from.at(at[0]), base::bytes_of(from.dtype), to.at.at(at[1])); });
    tensors[std::to_string(k)] = {from.dtype, from.sizes, {to.storage->data(), static_cast<std::size_t>(to.storage->bytes())}};
    kept.push_back(std::move(to));
  }
  base::save_safetensors(file, tensors, {{"graph", graph.name}});
}

void run(Request const& request) {
  std::optional<base::SafetensorsFile> file;
  if (!request.inputs.empty()) file.emplace(request.inputs);
  Tensors const none;
  auto const& tensors = file ? file->tensors() : none;
  ir::Graph graph;
  auto const text = text_of(request.graph);
  try {
    graph = ir::read_graph(text, surroundings(request, tensors));
    ir::verify(graph);
  } catch (base::Error const& error) {
    fail("{}: {}", request.graph, error.what());
  } catch (base::Bug const& bug) {  // a text of our own form says what inference does not
    fail("{}: {}", request.graph, bug.what());
  }
  if (!request.print.empty()) {
    auto const form = std::ranges::find(forms, request.print, &Form::name);
    std::cout << form->print(graph) << (request.print == "fx" || request.print == "aten" ? "\n" : "");
  }
  if (request.outputs.empty() && request.time == 0) return;

  auto const table = run_backends();
  auto const backend = std::ranges::find(table, request.backend, &RunBackend::name);
  std::vector<Loaded> inputs;
  std::vector<std::string> keys;
  for (std::size_t k = 0; k < graph.inputs.size(); ++k) {
    auto const [key, tensor] = find_input(graph, k, tensors, file ? request.inputs : "without --inputs");
    inputs.push_back(loaded(*tensor));
    keys.push_back(key);
  }
  auto const bindings = checked(graph, inputs, keys, request.inputs);
  arrange(graph, inputs, bindings);
  std::vector<ir::Strided> elements;
  for (auto const& input : inputs) elements.push_back(input.at);

  auto const runner = backend->prepare(graph);
  std::vector<double> seconds;
  ir::Evaluated done;
  for (int turn = 0; turn < std::max(request.time, 1); ++turn) {
    auto const start = std::chrono::steady_clock::now();
    done = runner(elements, bindings);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  if (!request.outputs.empty()) save(request.outputs, graph, done);
  std::ranges::sort(seconds);
  if (request.time > 0)
    std::cout << std::format("{}: {} nodes, median of {} runs on {}: {:.3f} ms (least {:.3f}, most {:.3f})\n", graph.name, graph.nodes.size(), request.time,
                             request.backend, seconds[seconds.size() / 2] * 1e3, seconds.front() * 1e3, seconds.back() * 1e3);
}
}  // namespace

int main(int argc, char** argv) {
  Request request;
  CLI::App app("Evaluates a graph on tensors, or prints it in another form.", "tenon-run");
  std::vector<std::string> backends, prints;
  for (auto const& backend : run_backends()) backends.emplace_back(backend.name);
  for (auto const& form : forms) prints.emplace_back(form.name);
  app.add_option("FILE", request.graph, "a graph: our own form, FX (printed or code), StableHLO or HLO")->required();
  app.add_option("--inputs", request.inputs, "a safetensors file: tensors by the inputs' names, or by their places \"0\", \"1\", …");
  app.add_option("--outputs", request.outputs, "the safetensors file to write: outputs by their places");
  app.add_option("--backend", request.backend, "what evaluates")->check(CLI::IsMember(backends))->capture_default_str();
  app.add_option("--time", request.time, "runs that often and prints the median")->check(CLI::Range(1, 1'000'000));
  app.add_option("--print", request.print, "prints the graph in a form")->check(CLI::IsMember(prints));
  app.add_option("--module", request.modules, "of an FX text: PATH=KIND, such as fc1=Linear or \"act=Softmax(dim=-1)\"");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (request.outputs.empty() && request.print.empty() && request.time == 0) request.print = "own";
    run(request);
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tenon-run: " << error.what() << '\n';
    return 1;
  }
}
