// Regions of StableHLO's text: in braces with a block's parameters, behind reducer, cond and do, or named by one operation.
module tenon.ir;
import std;
import tenon.base;
import :stablehlo;

namespace tenon::ir::hlo {

void StablehloReader::region(Function& into) {
  in_.expect("{");
  scoped([&] {
    if (in_.accept("^")) {
      in_.word();
      if (in_.accept("(")) {
        do {
          auto const [number, of] = parameter();
          into.parameters.push_back(number), into.types.push_back(of);
        } while (in_.accept(","));
        in_.expect(")");
      }
      in_.expect(":");
    }
    block(into);
  });
}

// The region that "applies stablehlo.add" stands for; its types follow from the first operand.
void StablehloReader::applied(Op& op, std::string_view name) {
  if (op.operands.empty()) in_.refuse("a reduction without operands");
  Type const scalar{types_[static_cast<std::size_t>(op.operands[0])].dtype, {}};
  auto& body = op.regions.emplace_back();
  for (int k = 0; k < 3; ++k) types_.push_back(scalar);
  int const last = static_cast<int>(types_.size()) - 1;
  body.parameters = {last - 2, last - 1};
  body.types = {scalar, scalar};
  body.returns = {last};
  Op& inner = body.ops.emplace_back();
  inner.name = name.starts_with("stablehlo.") ? name.substr(10) : name;
  inner.operands = body.parameters;
  inner.results = {last};
  inner.types = {scalar};
  inner.line = op.line, inner.column = op.column;
}

// reducer(%a: type, %b: type) (%c: type, %d: type) { .. }: the left operands come first, as in the long form.
void StablehloReader::reducer(Op& op) {
  if (!in_.accept_word("reducer")) in_.refuse("expected reducer");
  auto& body = op.regions.emplace_back();
  scoped([&] {
    std::vector<std::pair<int, Type>> left, right;
    while (in_.accept("(")) {
      left.push_back(parameter());
      in_.expect(",");
      right.push_back(parameter());
      in_.expect(")");
    }
    left.insert(left.end(), right.begin(), right.end());
    for (auto const& [number, of] : left) body.parameters.push_back(number), body.types.push_back(of);
    in_.expect("{");
    block(body);
  });
}

void StablehloReader::while_loop(Op& op) {
  auto const names = op.regions.empty() ? std::vector<std::string>{} : op.regions[0].names;
  if (names.size() != op.types.size()) in_.refuse(std::format("{} values for {} types", names.size(), op.types.size()));
  op.regions.assign(2, Function{});
  if (in_.accept_word("attributes")) in_.expect("{"), attributes(nullptr, "}");
  for (std::size_t k = 0; k < 2; ++k) {
    if (!in_.accept_word(k ? "do" : "cond")) in_.refuse(k ? "expected do" : "expected cond");
    in_.expect("{");
    scoped([&] {
      auto& body = op.regions[k];
      for (std::size_t v = 0; v < names.size(); ++v) body.parameters.push_back(define(names[v], op.types[v]));
      body.types = op.types;
      block(body);
    });
  }
}

}  // namespace tenon::ir::hlo
