// How our ops are spelt in FX. A row: op, operands, target, arguments. The first row that can express a call prints it; every row reads.
//
// Operands: a character each, 't' tensor, 's' number, a digit a tensor of that rank, '.' any; "" any; "<" the row only reads.
// Target: ".NAME" is a method, "=NAME" a function of ATen that torch's own namespace lacks. Arguments are names of the op's parameters: "x~" a list's only
// item, "[x]" an operand in a list, "x!1" an attribute that must be 1 and is not printed, "'T'" and other literals; behind "*" with keywords; "..." all other
// attributes with keywords. An attribute that a row leaves out must have its default.
module tenon.ir;
import std;
import tenon.base;
import :fx;
import :table;

namespace tenon::ir::fx {
using Code = FxNode::Code;
using ArgKind = FxArg::Kind;

namespace {
struct Row {
  std::string_view op, operands, target, arguments;
};
// clang-format off
constexpr Row rows[] = {
    // operators and methods of Python
    {"add", "", "operator.add", "input, other"},
    {"sub", "", "operator.sub", "input, other"},
    {"mul", "", "operator.mul", "input, other"},
    {"div", "", "operator.truediv", "input, other"},
    {"pow", "", "operator.pow", "input, exponent"},
    {"matmul", "", "operator.matmul", "input, other"},
    {"remainder", "", "operator.mod", "input, other"},
    {"floor_divide", "", "operator.floordiv", "input, other"},
    {"neg", "", "operator.neg", "input"},
    {"eq", "", "operator.eq", "input, other"},
    {"ne", "", "operator.ne", "input, other"},
    {"lt", "", "operator.lt", "input, other"},
    {"le", "", "operator.le", "input, other"},
    {"gt", "", "operator.gt", "input, other"},
    {"ge", "", "operator.ge", "input, other"},
    {"bitwise_not", "", "operator.invert", "input"},
    {"transpose", "2", "builtins.getattr", "input, 'T', dim0!0, dim1!1"},
    {"permute", "2", "builtins.getattr", "input, 'T', dims![1, 0]"},
    {"transpose", "<", "builtins.getattr", "input, 'mT', dim0!-2, dim1!-1"},
    {"transpose", "", ".transpose", "input, dim0, dim1"},
    {"permute", "", ".permute", "input, dims"},
    {"reshape", "", ".reshape", "input, shape"},
    {"reshape", "<", ".view", "input, shape"},
    {"expand", "", ".expand", "input, size"},
    {"unsqueeze", "", ".unsqueeze", "input, dim"},
    {"squeeze", "", ".squeeze", "input"},
    {"squeeze", "", ".squeeze", "input, dim"},
    {"transpose", "<", ".t", "input, dim0!0, dim1!1"},
    {"transpose", "<", "torch.t", "input, dim0!0, dim1!1"},
    {"clone", "", ".clone", "input"},
    {"clone", "<", ".contiguous", "input"},
    {"to", "", ".to", "input, dtype"},
    {"to_device", "", ".to", "input, *, device"},
    {"softmax", "", ".softmax", "input, dim"},
    {"log_softmax", "", ".log_softmax", "input, dim"},
    {"softmax", "", "torch.softmax", "input, dim, *, dtype"},
    {"log_softmax", "", "torch.log_softmax", "input, dim, *, dtype"},
    {"softmax", "<", "torch.nn.functional.softmax", "input, dim, *, dtype"},
    {"log_softmax", "<", "torch.nn.functional.log_softmax", "input, dim, *, dtype"},
    // functions that stand elsewhere than torch.NAME, or take their arguments in another order
    {"slice", "", "=torch.ops.aten.slice.Tensor", "input, dim, start, end, step"},
    {"select", "", "torch.select", "input, dim, index"},
    {"index", "", "=torch.ops.aten.index.Tensor", "input, [indices]"},
    {"split", "", "torch.split", "tensor: input, split_size_or_sections: split_size~, dim"},
    {"split", "", "torch.split", "tensor: input, split_size_or_sections: split_size, dim"},
    {"embedding", "", "torch.nn.functional.embedding", "input, weight"},
    {"linear", "", "torch.nn.functional.linear", "input, weight, bias"},
    {"max.dim", "", "torch.max", "input, dim, keepdim"},
    {"min.dim", "", "torch.min", "input, dim, keepdim"},
    {"cross_entropy", "", "torch.nn.functional.cross_entropy", "input, target, weight, ..."},
    {"nll_loss", "", "torch.nn.functional.nll_loss", "input, target, weight, ..."},
    {"embedding_bag", "", "torch.nn.functional.embedding_bag", "input, weight, offsets, *, per_sample_weights, ..."},
    {"einsum", "", "torch.einsum", "equation, operands"},
    {"copy_", "", ".copy_", "input, src"},
    // ATen
    {"add", "", "torch.ops.aten.add.Tensor", "input, other, *, alpha"},
    {"sub", "", "torch.ops.aten.sub.Tensor", "input, other, *, alpha"},
    {"mul", "", "torch.ops.aten.mul.Tensor", "input, other"},
    {"div", "", "torch.ops.aten.div.Tensor", "input, other"},
    {"pow", "ts", "torch.ops.aten.pow.Tensor_Scalar", "input, exponent"},
    {"pow", "st", "torch.ops.aten.pow.Scalar", "input, exponent"},
    {"pow", "", "torch.ops.aten.pow.Tensor_Tensor", "input, exponent"},
    {"remainder", "ts", "torch.ops.aten.remainder.Scalar", "input, other"},
    {"remainder", "st", "torch.ops.aten.remainder.Scalar_Tensor", "input, other"},
    {"remainder", "", "torch.ops.aten.remainder.Tensor", "input, other"},
    {"fmod", "ts", "torch.ops.aten.fmod.Scalar", "input, other"},
    {"fmod", "", "torch.ops.aten.fmod.Tensor", "input, other"},
    {"eq", "ts", "torch.ops.aten.eq.Scalar", "input, other"},
    {"eq", "", "torch.ops.aten.eq.Tensor", "input, other"},
    {"ne", "ts", "torch.ops.aten.ne.Scalar", "input, other"},
    {"ne", "", "torch.ops.aten.ne.Tensor", "input, other"},
    {"lt", "ts", "torch.ops.aten.lt.Scalar", "input, other"},
    {"lt", "", "torch.ops.aten.lt.Tensor", "input, other"},
    {"le", "ts", "torch.ops.aten.le.Scalar", "input, other"},
    {"le", "", "torch.ops.aten.le.Tensor", "input, other"},
    {"gt", "ts", "torch.ops.aten.gt.Scalar", "input, other"},
    {"gt", "", "torch.ops.aten.gt.Tensor", "input, other"},
    {"ge", "ts", "torch.ops.aten.ge.Scalar", "input, other"},
    {"ge", "", "torch.ops.aten.ge.Tensor", "input, other"},
    {"rsub", "ts", "torch.ops.aten.rsub.Scalar", "input, other, alpha"},
    {"rsub", "", "torch.ops.aten.rsub.Tensor", "input, other, *, alpha"},
    {"clamp_min", "tt", "torch.ops.aten.clamp_min.Tensor", "input, min"},
    {"clamp_max", "tt", "torch.ops.aten.clamp_max.Tensor", "input, max"},
    {"where", "", "torch.ops.aten.where.self", "condition, input, other"},
    {"masked_fill", "", "torch.ops.aten.masked_fill.Scalar", "input, mask, value"},
    {"lerp", "tts", "torch.ops.aten.lerp.Scalar", "input, end, weight"},
    {"lerp", "", "torch.ops.aten.lerp.Tensor", "input, end, weight"},
    {"xlogy", "", "torch.ops.aten.xlogy.Tensor", "input, other"},
    {"to", "", "torch.ops.aten._to_copy.default", "input, *, dtype"},
    {"to_device", "", "torch.ops.aten._to_copy.default", "input, *, device"},
    {"sum", "", "torch.ops.aten.sum.default", "input, *, dtype"},
    {"sum", "", "torch.ops.aten.sum.dim_IntList", "input, dim, keepdim, *, dtype"},
    {"mean", "", "torch.ops.aten.mean.default", "input, *, dtype"},
    {"mean", "", "torch.ops.aten.mean.dim", "input, dim, keepdim, *, dtype"},
    {"prod", "", "torch.ops.aten.prod.default", "input, *, dtype"},
    {"prod", "", "torch.ops.aten.prod.dim_int", "input, dim~, keepdim, *, dtype"},
    {"any", "", "torch.ops.aten.any.default", "input"},
    {"any", "", "torch.ops.aten.any.dim", "input, dim~, keepdim"},
    {"any", "", "torch.ops.aten.any.dims", "input, dim, keepdim"},
    {"all", "", "torch.ops.aten.all.default", "input"},
    {"all", "", "torch.ops.aten.all.dim", "input, dim~, keepdim"},
    {"all", "", "torch.ops.aten.all.dims", "input, dim, keepdim"},
    {"var", "", "torch.ops.aten.var.correction", "input, dim, *, correction, keepdim"},
    {"std", "", "torch.ops.aten.std.correction", "input, dim, *, correction, keepdim"},
    {"var_mean", "", "torch.ops.aten.var_mean.correction", "input, dim, *, correction, keepdim"},
    {"max.dim", "", "torch.ops.aten.max.dim", "input, dim, keepdim"},
    {"min.dim", "", "torch.ops.aten.min.dim", "input, dim, keepdim"},
    {"softmax", "", "torch.ops.aten._softmax.default", "input, dim, False"},
    {"softmax", "", "torch.ops.aten.softmax.int", "input, dim, dtype"},
    {"log_softmax", "", "torch.ops.aten._log_softmax.default", "input, dim, False"},
    {"log_softmax", "", "torch.ops.aten.log_softmax.int", "input, dim, dtype"},
    {"linalg.vector_norm", "", "torch.ops.aten.linalg_vector_norm.default", "x, ord, dim, keepdim"},
    {"reshape", "", "torch.ops.aten.view.default", "input, shape"},
    {"reshape", "<", "torch.ops.aten._unsafe_view.default", "input, shape"},
    {"transpose", "", "torch.ops.aten.transpose.int", "input, dim0, dim1"},
    {"transpose", "<", "torch.ops.aten.t.default", "input, dim0!0, dim1!1"},
    {"squeeze", "", "torch.ops.aten.squeeze.default", "input"},
    {"squeeze", "", "torch.ops.aten.squeeze.dims", "input, dim"},
    {"squeeze", "<", "torch.ops.aten.squeeze.dim", "input, dim~"},
    {"slice", "", "torch.ops.aten.slice.Tensor", "input, dim, start, end, step"},
    {"select", "", "torch.ops.aten.select.int", "input, dim, index"},
    {"flatten", "", "torch.ops.aten.flatten.using_ints", "input, start_dim, end_dim"},
    {"unbind", "", "torch.ops.aten.unbind.int", "input, dim"},
    {"split", "", "torch.ops.aten.split.Tensor", "input, split_size~, dim"},
    {"split", "", "torch.ops.aten.split_with_sizes.default", "input, split_size, dim"},
    {"scatter", "", "torch.ops.aten.scatter.src", "input, dim, index, src"},
    {"index", "", "torch.ops.aten.index.Tensor", "input, [indices]"},
    {"index_put", "", "torch.ops.aten.index_put.default", "input, [indices], values, accumulate"},
    {"index_fill", "", "torch.ops.aten.index_fill.int_Scalar", "input, dim, index, value"},
    {"arange", "", "torch.ops.aten.arange.start_step", "start, end, step, *, dtype, device"},
    {"randint", "", "torch.ops.aten.randint.low", "low, high, size, *, dtype, device"},
    {"conv2d", "<", "torch.ops.aten.convolution.default", "input, weight, bias, stride, padding, dilation, False, [0, 0], groups"},
    {"clone", "<", "torch.ops.aten.alias.default", "input"},
    {"clone", "<", "torch.ops.aten.lift_fresh_copy.default", "input"},
    {"cross_entropy", "", "torch.ops.aten.cross_entropy_loss.default", "input, target, weight, reduction, ignore_index, label_smoothing"},
    {"nll_loss", "", "torch.ops.aten.nll_loss.default", "input, target, weight, reduction, ignore_index"},
};
// Names that live in torch.nn.functional alone; and those that PyTorch does not have, besides everything that ends in "_grad".
constexpr std::string_view in_functional[] = {
    "gelu", "silu", "softplus", "leaky_relu", "hardtanh", "relu6", "hardsigmoid", "hardswish", "elu", "softsign", "tanhshrink", "softshrink", "hardshrink",
    "logsigmoid", "mish", "glu", "softmin", "layer_norm", "rms_norm", "group_norm", "instance_norm", "normalize", "cosine_similarity", "pairwise_distance",
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
    "gaussian_nll_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss", "cosine_embedding_loss", "triplet_margin_loss", "conv1d", "conv2d",
    "conv_transpose1d", "conv_transpose2d", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_max_pool2d", "interpolate", "grid_sample", "affine_grid", "pad", "one_hot", "dropout", "scaled_dot_product_attention", "embedding_bag", "fold",
    "local_response_norm", "multi_margin_loss", "bilinear", "conv3d", "conv_transpose3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool3d", "multilabel_margin_loss", "multilabel_soft_margin_loss"};
constexpr std::string_view ours[] = {"constant", "batch_norm.train", "convolution", "max_pool"};
// Kind, function, parameters ("NAME?" may be absent), what the constructor takes by place ("-": not passed on), what is not passed on.
constexpr ModuleRow modules[] = {
    {"Linear", "torch.nn.functional.linear", "weight, bias?", "-, -", "in_features, out_features, bias"},
    {"Conv1d", "torch.nn.functional.conv1d", "weight, bias?", "-, -, -, stride, padding, dilation, groups", "in_channels, out_channels, kernel_size, bias"},
    {"Conv2d", "torch.nn.functional.conv2d", "weight, bias?", "-, -, -, stride, padding, dilation, groups", "in_channels, out_channels, kernel_size, bias"},
    {"Embedding", "torch.nn.functional.embedding", "weight", "-, -", "num_embeddings, embedding_dim"},
    {"LayerNorm", "torch.nn.functional.layer_norm", "weight?, bias?", "normalized_shape, eps", "elementwise_affine, bias"},
    {"RMSNorm", "torch.nn.functional.rms_norm", "weight?", "normalized_shape, eps", "elementwise_affine"},
    {"GroupNorm", "torch.nn.functional.group_norm", "weight?, bias?", "num_groups, -, eps", "num_channels, affine"},
    {"ReLU", "torch.relu", "", "", "inplace"},
    {"GELU", "torch.nn.functional.gelu", "", "approximate", ""},
    {"SiLU", "torch.nn.functional.silu", "", "", "inplace"},
    {"Tanh", "torch.tanh", "", "", ""},
    {"Sigmoid", "torch.sigmoid", "", "", ""},
    {"LeakyReLU", "torch.nn.functional.leaky_relu", "", "negative_slope", "inplace"},
    {"Softplus", "torch.nn.functional.softplus", "", "beta, threshold", ""},
    {"Softmax", "torch.softmax", "", "dim", ""},
    {"LogSoftmax", "torch.log_softmax", "", "dim", ""},
    {"Flatten", "torch.flatten", "", "start_dim, end_dim", ""},
    {"MaxPool2d", "torch.nn.functional.max_pool2d", "", "kernel_size, stride, padding, dilation, ceil_mode", ""},
    {"AvgPool2d", "torch.nn.functional.avg_pool2d", "", "kernel_size, stride, padding", ""},
    {"Identity", "torch.clone", "", "", ""},
};
constexpr std::pair<std::string_view, std::string_view> signs[] = {
    {"add", "+"}, {"sub", "-"}, {"mul", "*"}, {"floordiv", "//"}, {"truediv", "/"}, {"mod", "%"}, {"pow", "**"}, {"lshift", "<<"}, {"rshift", ">>"},
    {"and_", "&"}, {"or_", "|"}, {"xor", "^"}, {"matmul", "@"}, {"eq", "=="}, {"ne", "!="}, {"lt", "<"}, {"gt", ">"}, {"le", "<="}, {"ge", ">="},
    {"iadd", "+="}, {"isub", "-="}, {"imul", "*="}, {"ifloordiv", "//="}, {"itruediv", "/="}, {"imod", "%="}, {"ipow", "**="}, {"ilshift", "<<="},
    {"irshift", ">>="}, {"iand", "&="}, {"ior", "|="}, {"ixor", "^="}, {"imatmul", "@="}};
constexpr std::pair<std::string_view, std::string_view> prefixes[] = {{"pos", "+"}, {"neg", "-"}, {"invert", "~"}};
// clang-format on

FxArg literal(std::string_view text) {
  auto const value = Reader(std::format("f({})", text)).call().second;
  base::ensure(value.size() == 1, text);
  return value[0].second;
}

struct Table {
  std::unordered_map<OpDef const*, std::vector<Spelling>> by_op;
  std::unordered_map<std::string, std::vector<std::pair<OpDef const*, std::size_t>>> by_target;  // methods with a dot before
};
Spelling spelling(OpDef const& op, std::string_view operands, std::string_view target, std::string_view arguments) {
  Spelling made{.op = &op, .code = target.starts_with('.') ? Code::call_method : Code::call_function, .target = std::string(target)};
  if (target.starts_with('.') || target.starts_with('=')) made.target.erase(0, 1);
  made.reads_only = operands == "<";
  if (!made.reads_only) made.operands = operands;
  made.aten = target.starts_with("torch.ops.");
  auto const& parameters = signature(op).parameters;
  bool keyword = false;
  for (auto part : parts(arguments)) {
    if (part == "*") {
      keyword = true;
      continue;
    }
    Item item{.keyword = keyword};
    if (part == "...") {
      item.kind = Item::Kind::rest;
      made.items.push_back(std::move(item));
      continue;
    }
    std::string_view alias;
    if (auto const colon = part.find(": "); colon != std::string_view::npos) alias = part.substr(0, colon), part = part.substr(colon + 2);
    if (auto const mark = part.find('!'); mark != std::string_view::npos) {
      item.kind = Item::Kind::fixed;
      item.value = literal(part.substr(mark + 1));
      part = part.substr(0, mark);
    } else if (part.ends_with('~')) {
      item.kind = Item::Kind::first;
      part.remove_suffix(1);
    } else if (part.starts_with('[') && std::isalpha(static_cast<unsigned char>(part[1]))) {
      item.kind = Item::Kind::wrapped;
      part = part.substr(1, part.size() - 2);
    } else if (part[0] == '\'' || part[0] == '[' || part == "True" || part == "False" || part == "None") {
      item.kind = Item::Kind::literal;
      item.value = literal(part);
      made.items.push_back(std::move(item));
      continue;
    }
    auto const found = std::ranges::find(parameters, part, &Parameter::name);
    base::ensure(found != parameters.end(), std::format("{} has no parameter {} for {}", op.name, part, target));
    item.parameter = static_cast<int>(found - parameters.begin());
    item.name = alias.empty() ? part : alias;
    made.items.push_back(std::move(item));
  }
  return made;
}
// The spelling by the op's own signature: ATen's order, keywords behind "*"; functions of torch take every attribute by name.
Spelling own_spelling(OpDef const& op, bool aten) {
  bool const in_table = find_op(op.name) == &op;
  bool const known = in_table && op.kind != ir::Kind::collective && !op.name.ends_with("_grad") && std::ranges::find(ours, op.name) == std::end(ours);
  bool const linalg = op.name.starts_with("linalg.");
  auto const name_of = op.name.substr(linalg ? 7 : 0);  // "clamp.Tensor" is an overload of clamp
  auto const base_name = name_of.substr(0, name_of.find('.')),
             overload = name_of.find('.') == std::string_view::npos ? "default" : name_of.substr(base_name.size() + 1);
  bool const functional = std::ranges::find(in_functional, base_name) != std::end(in_functional);
  std::string const target = !in_table && op.name.find('.') != std::string_view::npos ? std::format("torch.ops.{}.default", op.name)
                             : !known                                                 ? std::format("torch.ops.tenon.{}.default", op.name)
                             : aten ? std::format("torch.ops.aten.{}{}.{}", linalg ? "linalg_" : "", base_name, overload)
                                    : std::format("torch.{}{}",
                                                  functional ? "nn.functional."
                                                  : linalg   ? "linalg."
                                                             : "",
                                                  base_name);
  std::string arguments;
  bool const by_place = aten || !known;
  bool attribute = false, keyword = false;  // an operand behind an attribute goes by its name
  for (auto const part : parts(op.signature)) {
    auto const word = part.substr(std::min(part.find(' ') + 1, part.size()));
    auto const name = part == "*" ? part : word.substr(0, word.find('='));
    bool const operand = part.starts_with("Tensor");
    attribute = attribute || (!operand && part != "*");
    if (part.starts_with("counter") || (!operand && !by_place)) continue;
    if (!by_place && attribute && !std::exchange(keyword, true)) arguments += ", *";
    arguments += (arguments.empty() ? "" : ", ") + std::string(name);
  }
  if (!by_place) arguments += arguments.empty() ? "..." : ", ...";
  auto made = spelling(op, "", target, arguments);
  made.aten = aten;
  return made;
}
Table const& table() {
  static Table const all = [] {
    Table made;
    for (auto const& row : rows)
      if (auto const* op = find_op(row.op)) made.by_op[op].push_back(spelling(*op, row.operands, row.target, row.arguments));
    for (auto const* op : all_ops())
      for (bool const aten : {false, true}) made.by_op[op].push_back(own_spelling(*op, aten));
    for (auto const* op : all_ops()) {
      auto const& list = made.by_op[op];
      for (std::size_t k = 0; k < list.size(); ++k) made.by_target[(list[k].code == Code::call_method ? "." : "") + list[k].target].emplace_back(op, k);
    }
    return made;
  }();
  return all;
}
}  // namespace

std::span<Spelling const> spellings(OpDef const& op) {
  if (auto const found = table().by_op.find(&op); found != table().by_op.end()) return found->second;
  static std::mutex mutex;
  static std::unordered_map<OpDef const*, std::unique_ptr<std::vector<Spelling>>> users;  // ops outside the table
  std::scoped_lock const lock(mutex);
  auto& made = users[&op];
  if (!made) made = std::make_unique<std::vector<Spelling>>(std::vector{own_spelling(op, false), own_spelling(op, true)});
  return *made;
}

std::vector<Spelling const*> spellings(FxNode::Code code, std::string_view target) {
  std::vector<Spelling const*> found;
  auto const take = [&](std::string const& key) {
    if (auto const rows_of = table().by_target.find(key); rows_of != table().by_target.end())
      for (auto const& [op, k] : rows_of->second) found.push_back(&table().by_op.at(op)[k]);
  };
  take((code == Code::call_method ? "." : "") + std::string(target));
  if (!found.empty()) return found;
  constexpr std::string_view aten = "torch.ops.aten.";
  auto name = target;
  if (target.starts_with(aten)) {  // another overload of an op of that name
    name = target.substr(aten.size());
    name = name.substr(0, name.find('.'));
    take(std::format("{}{}.default", aten, name));
    return found;
  }
  for (std::string_view const prefix : {"torch.nn.functional.", "torch.linalg.", "torch.special.", "torch.", "math.", "operator."})
    if (code == Code::call_function && target.starts_with(prefix)) {
      name = target.substr(prefix.size());
      break;
    }
  take(std::format("torch.{}", name));
  if (found.empty()) take(std::format("torch.nn.functional.{}", name));
  return found;
}

std::vector<std::string_view> parts(std::string_view text) {
  std::vector<std::string_view> list;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    depth += at < text.size() ? (text[at] == '[') - (text[at] == ']') : 0;
    if (at < text.size() && (text[at] != ',' || depth > 0)) continue;
    while (start < at && text[start] == ' ') ++start;
    if (start < at) list.push_back(text.substr(start, at - start));
    start = at + 1;
  }
  return list;
}

ModuleRow const* module_row(std::string_view kind) {
  auto const found = std::ranges::find(modules, kind.substr(kind.rfind('.') + 1), &ModuleRow::kind);
  return found == std::end(modules) ? nullptr : found;
}

std::string_view operator_sign(std::string_view target, int operands) {
  constexpr std::string_view prefix = "operator.";
  if (!target.starts_with(prefix)) return {};
  auto const find = [&](auto const& of) {
    auto const found = std::ranges::find(of, target.substr(prefix.size()), [](auto const& row) { return row.first; });
    return found == std::end(of) ? std::string_view{} : found->second;
  };
  return operands == 1 ? find(prefixes) : find(signs);
}
std::string operator_target(std::string_view sign, int operands) {
  auto const find = [&](auto const& of) {
    auto const found = std::ranges::find(of, sign, [](auto const& row) { return row.second; });
    return found == std::end(of) ? std::string{} : std::format("operator.{}", found->first);
  };
  return operands == 1 ? find(prefixes) : find(signs);
}

}  // namespace tenon::ir::fx
