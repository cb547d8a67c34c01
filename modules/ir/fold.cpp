// Constant folding: what depends on constants alone is computed once, by the reference evaluator.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::DType;

namespace {
// What is known of a value: one number for all elements, or each of them.
struct Known {
  std::optional<Scalar> uniform{};
  Strided elements{};
  base::Ref<base::Buffer> storage{};
};

bool plain(Dims const& dims) {
  return std::ranges::all_of(dims, [](Dim d) { return d.node < 0; });
}
bool plain(Attrs const& attrs) {
  return std::ranges::all_of(attrs.ints, [](Dim d) { return d.node < 0; }) && std::ranges::all_of(attrs.nums, [](Scalar const& s) { return s.node < 0; });
}
// The elements that a uniform value of these sizes has.
Known filled(Scalar number, DType dtype, base::Shape const& sizes) {
  Known known;
  known.storage = base::make_ref<base::Buffer>(base::numel(sizes) * base::bytes_of(dtype));
  known.elements = {known.storage->data(), dtype, sizes, base::contiguous_strides(sizes)};
  for (std::int64_t i = 0, n = base::numel(sizes); i < n; ++i)
    number.kind == ScalarKind::real ? known.elements.set(i, number.real) : known.elements.set_whole(i, number.whole);
  return known;
}
Known copied(Strided const& x) {
  Known known = filled(Scalar(0), x.dtype, x.sizes);
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  walk<2>(x.sizes, {&x.strides, &known.elements.strides}, [&](auto const& at) { std::memcpy(known.elements.at(at[1]), x.at(at[0]), bytes); });
  return known;
}
Scalar number_at(Strided const& x, std::int64_t offset) { return base::is_real(x.dtype) ? Scalar(x.real(offset)) : Scalar(x.whole(offset)); }
// The number that all elements are, bit for bit.
std::optional<Scalar> uniform(Strided const& x) {
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  bool same = true;
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { same = same && std::memcmp(x.at(at[0]), x.data, bytes) == 0; });
  if (!same) return {};
  return base::numel(x.sizes) == 0 ? Scalar(0) : number_at(x, 0);
}
std::string words(Strided const& x) {
  std::string text;
  std::array<char, 64> word{};
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) {
    if (!text.empty()) text += ' ';
    if (double const number = x.real(at[0]); std::isnan(number)) return void(text += std::signbit(number) ? "-nan" : "nan");
    char* const end = word.data() + word.size();
    char* const stop = !base::is_real(x.dtype) ? std::to_chars(word.data(), end, x.whole(at[0])).ptr
                       : x.dtype == DType::f64 ? std::to_chars(word.data(), end, x.real(at[0])).ptr
                                               : std::to_chars(word.data(), end, static_cast<float>(x.real(at[0]))).ptr;
    text += std::string_view(word.data(), stop);
  });
  return text;
}

struct Fold {
  Graph const& graph;
  std::int64_t max_elements;
  Rebuild rebuild{graph};
  std::unordered_map<int, Known> known{};

  Known& of(int value) { return known[value]; }
  bool is_known(int value) const { return known.contains(value); }
  Meta const& meta(int value) const { return *graph.values[static_cast<std::size_t>(value)].meta; }
  std::optional<std::int64_t> count(Meta const& meta) const { return plain(meta.sizes) ? std::optional(base::numel(values(meta.sizes))) : std::nullopt; }
  bool small(int value) const { return count(meta(value)).value_or(max_elements + 1) <= max_elements; }

  // Runs one call on constants; empty if it is not legal for these elements, or not pure inside.
  std::optional<Evaluated> run(Node const& node, std::span<Known const> in) const try {
    Graph single;
    std::vector<Strided> elements;
    std::vector<Input> inputs;
    for (std::size_t k = 0; k < in.size(); ++k) {
      inputs.push_back({-1, node.inputs[k].scalar});
      if (node.inputs[k].value < 0) continue;
      auto const& x = in[k].elements;
      Meta like = contiguous_meta(x.dtype, meta(node.inputs[k].value).device, {});
      for (auto size : x.sizes) like.sizes.push_back(size);
      for (auto stride : x.strides) like.strides.push_back(stride);
      inputs.back() = {single.input(std::move(like)), {}};
      elements.push_back(x);
    }
    int const first = single.add(*node.op, std::move(inputs), node.attrs, node.at);
    for (int k = 0; k < single.nodes[0].results; ++k) single.outputs.push_back(first + k);
    if (!has_kernel(*node.op)) single = decompose(single);
    for (auto const& inner : single.nodes)
      if (!pure(*inner.op) || inner.op->kind == Kind::collective) return {};
    return evaluate(single, elements);
  } catch (base::Error const&) {
    return {};
  }

  // An element function of numbers alone gives one number, whatever the sizes.
  bool fold_uniform(Node const& node) {
    bool const pointwise = node.op->kind == Kind::pointwise && node.op->element.real;
    if (!pointwise && !(node.op->geometry && !writes(*node.op))) return false;
    std::vector<Known> in;
    for (auto const& input : node.inputs) {
      if (input.value < 0 && input.scalar.node >= 0) return false;
      if (input.value >= 0 && (!is_known(input.value) || !of(input.value).uniform)) return false;
      in.push_back(input.value < 0 ? Known{} : filled(*of(input.value).uniform, meta(input.value).dtype, base::Shape(meta(input.value).sizes.size(), 1)));
    }
    if (!pointwise) {
      auto const one = of(node.inputs[0].value).uniform;
      of(node.first).uniform = one;
      return true;
    }
    if (!plain(node.attrs)) return false;
    auto const done = run(node, in);
    if (done) of(node.first).uniform = number_at(done->outputs[0], 0);
    return done.has_value();
  }
  bool fold_elements(Node const& node) {
    if (!plain(node.attrs)) return false;
    std::vector<Known> in;
    for (auto const& input : node.inputs) {
      if (input.value < 0 && input.scalar.node >= 0) return false;
      if (input.value >= 0 && (!is_known(input.value) || !small(input.value))) return false;
      in.push_back(input.value < 0                 ? Known{}
                   : of(input.value).elements.data ? of(input.value)
                                                   : filled(*of(input.value).uniform, meta(input.value).dtype, values(meta(input.value).sizes)));
    }
    for (int k = 0; k < node.results; ++k)
      if (!small(node.first + k)) return false;
    auto const done = run(node, in);
    if (!done) return false;
    for (std::size_t k = 0; k < done->outputs.size(); ++k) {
      auto& fresh = of(node.first + static_cast<int>(k));
      auto const& y = done->outputs[k];
      fresh.uniform = uniform(y);
      if (!fresh.uniform) fresh = copied(y);
    }
    return true;
  }

  void learn(Node const& node) {  // a constant that stands in the graph
    auto const value = node.first;
    if (node.op == &ops::full && node.attrs.nums[0].node < 0) {
      auto const one = filled(node.attrs.nums[0], meta(value).dtype, {});
      of(value).uniform = number_at(one.elements, 0);
    } else if ((node.op == &ops::constant || node.op == &ops::arange) && plain(node.attrs) && small(value)) {
      if (auto const done = run(node, {})) of(value).elements = done->outputs[0], of(value).storage = done->storage[0];
    }
  }
  // Nothing but row-major memory may take the place of a result: what reads it keeps its metas.
  bool row_major(Meta const& like) const { return graph.symbols.row_major(like.sizes, like.strides); }
  void place(Node const& node, int value) {
    auto const& like = meta(value);
    Attrs attrs;
    auto const& [one, elements, _] = of(value);
    if (!one) attrs.with_text(words(elements));
    attrs.with(like.sizes).with(like.dtype).with(like.device);
    if (one) attrs.with_num(*one);
    Symbols::Scope const scope(&rebuild.to.symbols);
    GraphEmit emit(rebuild.to, node.at);
    emit.module = node.module;
    rebuild.at(value) = emit.op(one ? ops::full : ops::constant, {}, std::move(attrs));
    rebuild.to.values.back().name = graph.values[static_cast<std::size_t>(value)].name;
  }
};
}  // namespace

Graph fold_constants(Graph const& graph, FoldOptions const& options) {
  need_no_writes(graph, "fold_constants");
  Fold fold{graph, options.max_elements};
  bool changed = false;
  for (auto const& node : graph.nodes) {
    fold.learn(node);
    bool const tensors = std::ranges::any_of(node.inputs, [](Input const& input) { return input.value >= 0; });
    bool const may = tensors && pure(*node.op) && node.op->kind != Kind::collective && !node.op->measured;
    bool done = may && (fold.fold_uniform(node) || fold.fold_elements(node));
    for (int k = 0; k < node.results; ++k) done = done && fold.row_major(fold.meta(node.first + k));
    if (!done) {
      fold.rebuild.copy(node);
      continue;
    }
    for (int k = 0; k < node.results; ++k) fold.place(node, node.first + k);
    changed = true;
  }
  auto folded = fold.rebuild.finish();
  return changed ? eliminate_dead_code(folded) : folded;
}

}  // namespace tenon::ir
