// The one order and the one text that all graphs of the same calls share, whatever they were called and in whatever order they were recorded.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
bool ordered(ir::OpDef const& op) { return op.kind == ir::Kind::random || op.kind == ir::Kind::host || op.kind == ir::Kind::collective; }

// Depth first without recursion: graphs may be chains of ten thousand calls.
class Walk {
 public:
  explicit Walk(ir::Graph const& graph) : graph_(graph), depth_(graph.nodes.size(), 0), state_(graph.nodes.size(), 0), before_(graph.nodes.size(), -1) {
    int last = -1;
    for (int n = 0; std::cmp_less(n, graph.nodes.size()); ++n) {
      auto const& node = graph.nodes[at(n)];
      if (ordered(*node.op)) before_[at(n)] = std::exchange(last, n);
      if (before_[at(n)] >= 0) depth_[at(n)] = depth_[at(before_[at(n)])] + 1;
      for (auto const& input : node.inputs)
        if (int const from = maker(input.value); from >= 0) depth_[at(n)] = std::max(depth_[at(n)], depth_[at(from)] + 1);
    }
  }
  // Outputs that need few steps first: of a training step the loss, then what the last layers' gradients give, each as soon as its gradient is
  // there. In the order of the parameters, the first one would need the whole backward pass with all of its gradients alive.
  std::vector<int> order() {
    std::vector<std::pair<int, int>> roots;
    for (int const output : graph_.outputs)
      if (int const from = maker(output); from >= 0) roots.emplace_back(depth_[at(from)], from);
    std::ranges::stable_sort(roots, {}, &std::pair<int, int>::first);
    for (int n = 0; std::cmp_less(n, graph_.nodes.size()); ++n)
      if (ordered(*graph_.nodes[at(n)].op)) roots.emplace_back(0, n);
    for (auto const& root : roots) visit(root.second);
    return std::move(order_);
  }

 private:
  int maker(int value) const { return value < 0 ? -1 : graph_.values[at(value)].node; }
  // The k-th node that must run before node n, -1 if that is none, -2 behind the last.
  int earlier(int n, std::size_t k) const {
    auto const& inputs = graph_.nodes[at(n)].inputs;
    if (k == 0) return before_[at(n)];
    return k <= inputs.size() ? maker(inputs[k - 1].value) : -2;
  }
  void visit(int root) {
    std::vector<std::pair<int, std::size_t>> path;
    auto const enter = [&](int n) {
      if (n < 0 || state_[at(n)]) return;
      state_[at(n)] = 1;
      path.emplace_back(n, 0);
    };
    enter(root);
    while (!path.empty()) {
      auto& [n, k] = path.back();
      if (int const next = earlier(n, k++); next != -2) {
        enter(next);
        continue;
      }
      order_.push_back(n);
      path.pop_back();
    }
  }

  ir::Graph const& graph_;
  std::vector<int> depth_;
  std::vector<char> state_;
  std::vector<int> before_;  // of random, host and collective calls: the one before
  std::vector<int> order_{};
};

class Writer {
 public:
  explicit Writer(ir::Graph const& graph) : graph_(graph) {}
  std::string inputs() {
    number(graph_.inputs.size());
    for (int const input : graph_.inputs) meta(*graph_.values[at(input)].meta);
    return std::move(text_);
  }
  std::string calls() {
    for (std::size_t k = 0; k < graph_.inputs.size(); ++k) place_[at(graph_.inputs[k])] = static_cast<int>(k);
    int next = static_cast<int>(graph_.inputs.size());
    number(graph_.nodes.size());
    for (auto const& node : graph_.nodes) {
      op(*node.op);
      number(node.inputs.size());
      for (auto const& input : node.inputs) operand(input);
      attrs(node.attrs);
      number(node.results);
      for (int k = 0; k < node.results; ++k) {
        place_[at(node.first + k)] = next++;
        meta(*graph_.values[at(node.first + k)].meta);
      }
    }
    number(graph_.outputs.size());
    for (int const output : graph_.outputs) number(place_[at(output)]);
    number(graph_.mutated.size());
    for (int const input : graph_.mutated) number(input);
    return std::move(text_);
  }

 private:
  // A number ends in ';' and a text has its length before it, so that no two sequences give the same bytes.
  void number(std::integral auto n) {
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, n).ptr);
    text_ += ';';
  }
  void words(std::string_view text) { number(text.size()), text_ += text; }
  // By place of first use, and what a user's op is made of; that of a row of Tenon's is in the identity of the build.
  void op(ir::OpDef const& op) {
    auto const [known, fresh] = ops_.try_emplace(&op, static_cast<int>(ops_.size()));
    number(known->second);
    if (!fresh) return;
    for (auto const part : {op.name, op.signature, op.source, op.terms, op.mono, op.equation.text}) words(part);
    for (int const part : {static_cast<int>(op.kind), static_cast<int>(op.combine), static_cast<int>(op.types), static_cast<int>(op.precision)}) number(part);
  }
  // An expression read into symbols of the writer's own, so that its terms stand in the order of these.
  std::string reread(std::string const& text) {
    try {
      return symbols_.to_string(symbols_.parse(text));
    } catch (base::Error const&) {
      return text;  // a real symbol, or nested too deep to be read
    }
  }
  // An expression with its symbols named by first appearance.
  void expression(std::string const& given) {
    auto const text = reread(given);
    std::string renamed;
    for (std::size_t k = 0; k < text.size();) {
      std::size_t end = k + 1;
      if (std::isalpha(static_cast<unsigned char>(text[k]))) {
        while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end]))) ++end;
        if (auto const name = text.substr(k, end - k); name == "mod") {
          renamed += name;
        } else {
          renamed += std::format("{}#{}", name[0], names_.try_emplace(name, names_.size()).first->second);
        }
      } else {
        renamed += text[k];
      }
      k = end;
    }
    words(renamed);
  }
  void dim(ir::Dim d) {
    d = graph_.symbols.own(d);
    if (d.node < 0) return number(d.value);
    text_ += '$', expression(graph_.symbols.to_string(d));
  }
  void dims(std::span<ir::Dim const> list) {
    number(list.size());
    for (auto const d : list) dim(d);
  }
  void scalar(ir::Scalar const& s) {
    number(static_cast<int>(s.kind));
    if (s.node >= 0) {
      text_ += '$', expression(graph_.symbols.to_string(s));
    } else if (s.kind == ir::ScalarKind::real) {
      number(std::bit_cast<std::uint64_t>(s.real));
    } else {
      number(s.whole);
    }
  }
  void operand(ir::Input const& input) {
    if (input.value >= 0) return text_ += '%', number(place_[at(input.value)]);
    scalar(input.scalar);
  }
  void attrs(ir::Attrs const& attrs) {
    dims({attrs.ints.data(), attrs.ints.size()});
    number(attrs.nums.size());
    for (auto const& s : attrs.nums) scalar(s);
    words(attrs.text);
  }
  void meta(ir::Meta const& meta) {
    number(static_cast<int>(meta.dtype)), number(static_cast<int>(meta.device.kind)), number(int{meta.device.index});
    dims({meta.sizes.data(), meta.sizes.size()});
    dims({meta.strides.data(), meta.strides.size()});
  }

  ir::Graph const& graph_;
  ir::Symbols symbols_{};
  std::map<std::string, std::size_t> names_{};
  std::unordered_map<ir::OpDef const*, int> ops_{};
  std::vector<int> place_ = std::vector<int>(graph_.values.size(), -1);
  std::string text_{};
};
}  // namespace

ir::Graph canonical(ir::Graph const& graph) {
  if (std::ranges::any_of(graph.nodes, [](ir::Node const& node) { return ir::writes(*node.op); })) return graph;
  Moving moving(graph);
  for (int const n : Walk(graph).order()) moving.copy(n);
  return moving.finish();
}

std::string canonical_text(ir::Graph const& graph) {
  Writer writer(graph);
  return writer.inputs() + writer.calls();
}

std::vector<KeyPart> parts_of(ir::Graph const& graph) {
  Writer writer(graph);
  auto const inputs = writer.inputs(), calls = writer.calls();
  std::string types;
  for (std::size_t k = 0; k < graph.inputs.size(); ++k) {
    if (types.size() > 400) {
      types += std::format(", … {} in all", graph.inputs.size());
      break;
    }
    types += (k ? ", " : "") + ir::to_string(*graph.values[at(graph.inputs[k])].meta, &graph.symbols);
  }
  return {key_part("graph", calls, std::format("{} calls, {} outputs", graph.nodes.size(), graph.outputs.size())), key_part("inputs", inputs, types)};
}

}  // namespace tenon::fusion
