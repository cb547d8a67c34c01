// What every row must do besides being right: print and parse, refuse wrong calls by name, read no more than it saves, take any strides.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using ir::Kind;
using ir::OpDef;
using support::Call;

namespace {

void each_sample(std::function<void(Call const&, std::mt19937&)> const& check) {
  std::mt19937 random(3);
  for (auto const* op : ir::all_ops())
    for (auto const& call : support::samples(*op, random)) try {
        check(call, random);
      } catch (std::exception const& error) {
        FAIL_CHECK(call.text << ": " << std::string(error.what()));
      }
}

/// Writes into a graph and notes which of the first `given` values emitted calls read.
struct Watch final : ir::Emit {
  ir::Graph& graph;
  int given;
  std::set<int> read{};
  Watch(ir::Graph& to, int count) : graph(to), given(count) {}
  int op(OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) override {
    for (auto const& input : inputs)
      if (input.value >= 0 && input.value < given && !op.value_free) read.insert(input.value);
    return graph.add(op, {inputs.begin(), inputs.end()}, std::move(attrs), {});
  }
  ir::Meta const& meta(int value) override { return *graph.values[static_cast<std::size_t>(value)].meta; }
};

/// The bits of `saves` that the gradient of this call reads.
std::uint32_t reads(Call const& call) {
  auto graph = support::graph_of(call);
  auto const node = graph.nodes[0];
  std::vector<int> cotangents;
  for (int k = 0; k < node.results; ++k) cotangents.push_back(graph.input(*graph.values[static_cast<std::size_t>(node.first + k)].meta));
  Watch watch(graph, cotangents[0]);
  std::vector<ir::Var> in, out, g;
  auto wanted = std::make_unique<bool[]>(node.inputs.size());
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    in.emplace_back(node.inputs[k].value >= 0 ? &watch : nullptr, node.inputs[k]);
    wanted[k] = call.operands[k].tensor && base::is_real(call.operands[k].tensor->at.dtype);
  }
  for (int k = 0; k < node.results; ++k) {
    out.emplace_back(watch, node.first + k);
    bool const real = base::is_real(graph.values[static_cast<std::size_t>(node.first + k)].meta->dtype);
    g.push_back(real ? ir::Var(watch, cotangents[static_cast<std::size_t>(k)]) : ir::Var());
  }
  if (std::ranges::none_of(g, [](ir::Var const& v) { return static_cast<bool>(v); })) return 0;
  ir::Vjp vjp{call.attrs, in, out, g, {wanted.get(), in.size()}, {}};
  ir::differentiate(*call.op, vjp);
  std::uint32_t bits = 0;
  for (std::size_t k = 0; k < in.size(); ++k)
    if (in[k].is_tensor() && watch.read.contains(in[k].input.value)) bits |= 1u << k;
  for (std::size_t k = 0; k < out.size(); ++k)
    if (watch.read.contains(out[k].input.value)) bits |= ir::saves_result << k;
  return bits;
}

ir::Graph sample_graph(Call const& call) {
  auto graph = support::graph_of(call);
  graph.nodes[0].at = {"a \"file\".cpp", 12, 9, ""};
  return graph;
}
}  // namespace

TEST_CASE("a gradient reads what the row saves, and all of it") {
  std::mt19937 random(3);
  for (auto const* op : ir::all_ops()) {
    std::uint32_t all = 0, there = ~0u;
    std::size_t most = 0;
    for (auto const& call : support::samples(*op, random)) all |= reads(call), most = std::max(most, call.operands.size());
    if (ir::signature(*op).variadic) there = ~(ir::saves_result - 1) | ((1u << most) - 1);  // as many operands as a sample has
    if (op->vjp) CHECK_MESSAGE(all == (op->saves & there), std::string(op->name) << ": reads " << all << ", saves " << op->saves);
    if (!op->vjp) CHECK_MESSAGE(op->saves == 0, std::string(op->name) << " saves without a gradient rule");
  }
}

TEST_CASE("the core, which has kernels of its own, stays small") {
  auto const core = std::ranges::count_if(ir::all_ops(), [](OpDef const* op) { return op->element.real || op->evaluate; });
  std::cout << std::format("{} rows, {} of them core\n", ir::all_ops().size(), core);
  CHECK(core < 120);
}

TEST_CASE("a call prints, parses and prints the same") {
  each_sample([](Call const& call, std::mt19937&) {
    auto const graph = sample_graph(call);
    auto const text = ir::to_string(graph);
    auto const again = ir::parse_graph(text);
    CHECK_MESSAGE(ir::to_string(again) == text, call.text);
    ir::verify(again);
    CHECK(ir::to_dot(graph).starts_with("digraph"));
  });
}

TEST_CASE("any strides give the same elements, and every element is written") {
  each_sample([](Call const& call, std::mt19937& random) {
    auto const plain = support::graph_of(call);
    auto const expected = support::run(plain, support::inputs_of(call));
    for (int turn = 0; turn < 3; ++turn) {
      auto strided = call;
      for (auto& operand : strided.operands)
        if (operand.tensor) operand.tensor = support::restrided(operand.tensor->at, random);
      auto const graph = support::graph_of(strided);
      ir::verify(graph);
      auto const got = support::run(graph, support::inputs_of(strided));
      for (std::size_t k = 0; k < got.outputs.size(); ++k) {
        CHECK_MESSAGE(got.outputs[k].sizes == expected.outputs[k].sizes, call.text);
        CHECK_MESSAGE(support::distance(support::reals(got.outputs[k]), support::reals(expected.outputs[k])) <= 1e-12, call.text);
        auto const inferred = ir::values(graph.values[static_cast<std::size_t>(graph.outputs[k])].meta->strides);
        if (call.op->kind == Kind::view) CHECK_MESSAGE(got.outputs[k].strides == inferred, call.text);
      }
    }
    if (!ir::has_kernel(*call.op)) return;
    std::vector<ir::Strided> in;
    std::vector<ir::Scalar> scalars;
    for (auto const& operand : call.operands) {
      in.push_back(operand.tensor ? operand.tensor->at : ir::Strided{});
      scalars.push_back(operand.number);
    }
    std::vector<std::vector<std::byte>> bytes;
    for (int fill : {0x00, 0x01}) {
      std::vector<support::Array> rooms;
      std::vector<ir::Strided> out;
      for (auto const& y : expected.outputs) {
        rooms.push_back(support::array(y.dtype, y.sizes));
        std::memset(rooms.back().storage->data(), fill, static_cast<std::size_t>(rooms.back().storage->bytes()));
        out.push_back(rooms.back().at);
      }
      ir::evaluate(*call.op, in, scalars, call.attrs, out);
      bytes.emplace_back();
      for (auto const& room : rooms) bytes.back().insert(bytes.back().end(), room.storage->data(), room.storage->data() + room.storage->bytes());
    }
    CHECK_MESSAGE(bytes[0] == bytes[1], call.text << ": not every element is written");
  });
}

TEST_CASE("a wrong call is an Error that names the op, never a crash") {
  int refused = 0, taken = 0;
  auto const attempt = [&](Call const& call, std::string_view change) {
    ir::Graph graph;
    auto const text = support::caught([&] {
      graph = support::graph_of(call);
      ir::verify(graph);
    });
    if (text == "nothing") {  // then it runs: bad indices and huge sizes show only there
      ++taken;
      auto const later = support::caught([&] { support::run(graph, support::inputs_of(call)); });
      if (later.starts_with("Bug")) FAIL_CHECK(call.text << " with " << change << ": " << later);
      return;
    }
    ++refused;
    if (text.starts_with("Bug") || !support::says(text, call.op->name)) FAIL_CHECK(call.text << " with " << change << ": " << text);
  };
  each_sample([&](Call const& call, std::mt19937& random) {
    for (std::size_t k = 0; k < call.operands.size(); ++k) {
      auto const& operand = call.operands[k];
      auto changed = call;
      auto const with = [&](base::Shape const& sizes, DType dtype, std::string_view change) {
        changed = call;
        changed.operands[k] = {support::array(dtype, sizes), {}};
        attempt(changed, std::format("operand {} {}", k, change));
      };
      base::Shape const sizes = operand.tensor ? operand.tensor->at.sizes : base::Shape{2, 3};
      DType const dtype = operand.tensor ? operand.tensor->at.dtype : DType::f64;
      auto more = sizes, fewer = sizes, empty = sizes, wider = sizes, none = sizes;
      more.insert(more.begin(), 2);
      with(more, dtype, "of rank + 1");
      if (!sizes.empty()) {
        auto const d = random() % sizes.size();
        fewer.pop_back(), wider[d] += 1, empty[d] = 0;
        with(fewer, dtype, "of rank - 1");
        with(wider, dtype, "one larger");
        with(empty, dtype, "empty");
      }
      with({}, dtype, "0-d");
      for (auto other : {DType::f32, DType::bf16, DType::f8e4m3, DType::i64, DType::i32, DType::boolean}) with(sizes, other, "of another dtype");
      changed = call;
      changed.operands[k] = {std::nullopt, ir::Scalar()};
      attempt(changed, "an operand missing");
      changed.operands[k] = {std::nullopt, ir::Scalar(2)};
      attempt(changed, "a number for an operand");
      changed = call;
      changed.operands.erase(changed.operands.begin() + static_cast<std::ptrdiff_t>(k));
      attempt(changed, "an operand fewer");
    }
    auto extra = call;
    extra.operands.push_back({support::array(DType::f64, {2}), {}});
    attempt(extra, "an operand too many");
    // Attributes that keep their layout: plain numbers, and items of lists.
    ir::AttrReader reader{call.attrs};
    std::vector<std::size_t> places;
    using Type = ir::Parameter::Type;
    for (auto const& parameter : ir::signature(*call.op).parameters) switch (parameter.type) {
        case Type::wholes:
        case Type::sizes:
          for (std::size_t i = 0, n = reader.list().size(); i < n; ++i) places.push_back(reader.at - n + i);
          break;
        case Type::whole:
        case Type::size:
        case Type::counter:
          places.push_back(reader.at), reader.number();
          break;
        case Type::flag:
        case Type::dtype:
        case Type::choice:
        case Type::device:
        case Type::reals:
          reader.number();
          break;
        default:
          break;
      }
    for (auto place : places)
      for (std::int64_t const value : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{-9}, std::int64_t{1} << 40,
                                       std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max(), ir::absent, ir::absent + 1}) {
        auto changed = call;
        changed.attrs.ints[place] = value;
        attempt(changed, std::format("attribute {} of {}", place, value));
      }
    for (std::size_t n = 0; n < call.attrs.nums.size(); ++n)
      for (double const value : {0.0, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        auto changed = call;
        changed.attrs.nums[n] = value;
        attempt(changed, std::format("number {} of {}", n, value));
      }
  });
  std::cout << std::format("wrong calls: {} refused, {} taken\n", refused, taken);
  CHECK(refused > 1000);
}
