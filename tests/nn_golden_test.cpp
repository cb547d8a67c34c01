#include "golden.hpp"

import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
import tenon.guards;
import tenon.tracer;
import tenon.nn;

using namespace tenon;
using namespace tenon::tracer;
using base::SafetensorsFile;

namespace {
constexpr double tolerance = 2e-5, long_tolerance = 1e-4;  // golden/README.md: float32, and long reductions

std::optional<SafetensorsFile> open(std::string const& name) {
  if (std::filesystem::exists(golden::file(name))) return SafetensorsFile(golden::file(name));
  std::cout << "golden: no " << name << ", skipped\n";
  return std::nullopt;
}
std::optional<Tensor> entry(SafetensorsFile const& file, std::string const& name) {
  if (!file.tensors().contains(name)) return std::nullopt;
  return from_file(file.at(name));
}
// The largest difference as a share of max(1, largest expected).
double distance(Tensor const& actual, Tensor const& expected) {
  if (actual.shape() != expected.shape()) return std::numeric_limits<double>::infinity();
  auto const a = actual.to_vector<double>(), b = expected.to_vector<double>();
  double worst = 0, largest = 1;
  for (std::size_t k = 0; k < a.size(); ++k) worst = std::max(worst, std::abs(a[k] - b[k])), largest = std::max(largest, std::abs(b[k]));
  return worst / largest;
}

// What each name of optim/NAME/STEP does.
using Step = std::function<void()>;
struct Rule {
  std::string name;
  std::function<Step(std::vector<Tensor> const&)> make;
};
template <class Optimizer>
Step stepping(Optimizer optimizer) {
  return [optimizer = std::make_shared<Optimizer>(std::move(optimizer))] { optimizer->step(); };
}
std::vector<Rule> rules() {
  return {{"sgd", [](auto const& p) { return stepping(nn::Sgd(p, {.lr = 0.1})); }},
          {"sgd_momentum", [](auto const& p) { return stepping(nn::Sgd(p, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true})); }},
          {"adam", [](auto const& p) { return stepping(nn::Adam(p, {.lr = 0.01})); }},
          {"adamw", [](auto const& p) { return stepping(nn::adamw(p, {.lr = 0.01, .weight_decay = 0.1})); }},
          {"adam_amsgrad", [](auto const& p) { return stepping(nn::Adam(p, {.lr = 0.01, .amsgrad = true})); }}};
}

// Golden names of a GPT's parameters in ours.
std::string golden_name(std::string name) {
  std::array<std::pair<std::string_view, std::string_view>, 7> const table{
      {{"tokens", "wte"}, {"positions", "wpe"}, {"norm1", "ln1"}, {"norm2", "ln2"}, {"projection", "proj"}, {"norm.", "lnf."}, {"].", "."}}};
  for (auto const& [ours, theirs] : table)
    if (auto const at = name.find(ours); at != std::string::npos) name.replace(at, ours.size(), theirs);
  if (auto const at = name.find('['); at != std::string::npos) name.replace(at, 1, ".");
  return name;
}

struct Golden {
  SafetensorsFile file;
  nlohmann::json json;
};
std::optional<Golden> gpt_golden() {
  auto json = golden::load("train.json", "gpt");
  auto file = open("train.safetensors");
  if (!json || !file) return std::nullopt;
  for (auto const* const key : {"config", "losses", "grad_norms"})
    if (!json->contains(key)) {
      std::cout << "golden: no gpt." << key << " in train.json, skipped\n";
      return std::nullopt;
    }
  return Golden{std::move(*file), std::move(*json)};
}

Tensor loss_of(nn::Gpt const& model, Tensor const& x, Tensor const& y) { return cross_entropy(flatten(model(x), 0, 1), flatten(y)); }

enum class How { eager, whole_step, backward_only };
struct Run {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> first_gradients, last;  ///< by golden name; the gradients as clipped
  std::vector<int> graphs;                              ///< captured so far, after each step
  std::string report;
};
Run train(Golden const& golden, How how, Backend const& backend = reference_backend) {
  auto const& config = golden.json["config"];
  manual_seed(0);
  nn::Gpt model({.vocabulary = config["V"], .context = config["T"], .layers = config["L"], .heads = config["h"], .features = config["d"]});
  NoGrad off;
  for (auto& [name, parameter] : nn::named_parameters(model)) parameter.copy_(from_file(golden.file.at("init/" + golden_name(name))));
  GradMode const on(true);
  nn::Adam optimizer = nn::adamw(nn::parameters(model), {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});

  auto const forward_backward = [](nn::Gpt& net, Tensor const& x, Tensor const& y) {
    Tensor loss = loss_of(net, x, y);
    loss.backward();
    return loss.detach();
  };
  auto const update = [&](nn::Gpt& net, std::map<std::string, Tensor>* clipped = nullptr) {
    Tensor norm = nn::clip_grad_norm(nn::parameters(net), 1.0);
    if (clipped)
      for (auto& [name, parameter] : nn::named_parameters(net)) clipped->emplace(golden_name(name), clone(parameter.grad()));
    optimizer.step();
    optimizer.zero_grad();
    return norm;
  };
  auto const step = [&](nn::Gpt& net, Tensor const& x, Tensor const& y) {
    Tensor loss = forward_backward(net, x, y);
    return std::pair(loss, update(net));
  };
  auto const fast_step = compile(step, {.fullgraph = true, .backend = backend, .name = "step"});
  auto const fast_backward = compile(forward_backward, {.fullgraph = true, .backend = backend, .name = "forward_backward"});

  Run run;
  for (std::size_t k = 0; k < golden.json["losses"].size() && golden.file.tensors().contains(std::format("batch/{}/x", k)); ++k) {
    Tensor const x = from_file(golden.file.at(std::format("batch/{}/x", k))), y = from_file(golden.file.at(std::format("batch/{}/y", k)));
    Tensor loss, norm;
    if (how == How::whole_step) {
      std::tie(loss, norm) = fast_step(model, x, y);
      run.graphs.push_back(describe(fast_step.state()).graphs);
    } else {
      loss = how == How::eager ? forward_backward(model, x, y) : fast_backward(model, x, y);
      norm = update(model, k == 0 ? &run.first_gradients : nullptr);
      run.graphs.push_back(describe(fast_backward.state()).graphs);
    }
    run.losses.push_back(loss.item());
    run.norms.push_back(norm.item());
  }
  for (auto& [name, parameter] : nn::named_parameters(model)) run.last.emplace(golden_name(name), parameter.detach());
  run.report = how == How::whole_step ? to_string(describe(fast_step.state())) : how == How::backward_only ? to_string(describe(fast_backward.state())) : "";
  return run;
}
// A bias of the keys shifts all scores of a row alike, so its gradient is 0 but for rounding, which Adam divides by its own size: q and v alone.
Tensor without_keys(std::string const& name, Tensor const& tensor) {
  if (!name.ends_with("qkv.bias")) return tensor;
  std::int64_t const third = tensor.size(0) / 3;
  return cat(std::array{slice(tensor, 0, 0, third), slice(tensor, 0, 2 * third)});
}
void compare_tensors(golden::Tally& tally, Golden const& golden, std::string_view group, std::map<std::string, Tensor> const& have, double bound) {
  for (auto const& [name, tensor] : have) {
    auto const expected = entry(golden.file, std::format("{}/{}", group, name));
    if (!expected) {
      ++tally.skipped;
      continue;
    }
    ++tally.checked;
    double const apart = distance(without_keys(name, tensor), without_keys(name, *expected));
    CHECK_MESSAGE(apart <= bound, group, "/", name, ": ", apart);
  }
}
void compare(Golden const& golden, Run const& run, std::string const& label) {
  golden::Tally losses{"train.json gpt losses, " + label}, norms{"train.json gpt grad_norms, " + label};
  double worst = 0;
  for (std::size_t k = 0; k < run.losses.size(); ++k, ++losses.checked, ++norms.checked) {
    double const loss = golden.json["losses"][k], norm = golden.json["grad_norms"][k];
    worst = std::max(worst, std::abs(run.losses[k] - loss));
    CHECK_MESSAGE(std::abs(run.losses[k] - loss) <= 1e-4, "step ", k);
    CHECK_MESSAGE(std::abs(run.norms[k] - norm) <= 1e-4 * norm, "step ", k, ": ", run.norms[k], " expected ", norm);
  }
  std::cout << std::format("gpt, {}: largest difference of a loss {:.2g}\n", label, worst);
  golden::Tally tensors{"train.safetensors gpt tensors, " + label};
  compare_tensors(tensors, golden, "grad0", run.first_gradients, tolerance);
  compare_tensors(tensors, golden, "final", run.last, long_tolerance);
}
}  // namespace

TEST_CASE("golden optimizers, eager and compiled") {
  auto const file = open("train.safetensors");
  if (!file) return;
  auto const start = entry(*file, "optim/p0");
  if (!start) return;
  golden::Tally tally{"train.safetensors optim"};
  std::set<std::string> unknown;
  for (auto const& [key, tensor] : file->tensors())
    if (key.starts_with("optim/") && std::ranges::count(key, '/') == 2) unknown.insert(key.substr(6, key.rfind('/') - 6));
  for (auto const& rule : rules()) {
    unknown.erase(rule.name);
    for (bool const compiled : {false, true}) {
      Tensor parameter = clone(*start).set_requires_grad();
      Step const step = rule.make({parameter});
      auto const call = [&](Tensor& p, Tensor const& gradient) {
        p.set_grad(gradient);
        step();
      };
      auto const fast = compile(call, {.fullgraph = true, .name = rule.name});
      std::vector<int> graphs;
      for (int k = 0; auto const gradient = entry(*file, std::format("optim/g{}", k)); ++k) {
        auto const expected = entry(*file, std::format("optim/{}/{}", rule.name, k));
        if (!expected) {
          ++tally.skipped;
          continue;
        }
        if (compiled)
          fast(parameter, *gradient);
        else
          call(parameter, *gradient);
        ++tally.checked;
        CHECK_MESSAGE(distance(parameter, *expected) <= tolerance, rule.name, " step ", k, ": ", distance(parameter, *expected));
        graphs.push_back(describe(fast.state()).graphs);
      }
      if (!compiled) continue;
      std::cout << std::format("{}: graphs after each step", rule.name);
      for (int count : graphs) std::cout << ' ' << count;
      std::cout << '\n';
      int const last = rule.name.starts_with("adam") ? 2 : 1;  // Adam's step number becomes a parameter at its second capture
      for (std::size_t k = 0; k < graphs.size(); ++k) CHECK(graphs[k] == (k == 0 ? 1 : last));
    }
  }
  for (auto const& name : unknown) std::cout << "golden: no optimizer is known as " << name << ", skipped\n", ++tally.skipped;
}

TEST_CASE("golden GPT: 60 steps eagerly and compiled, bit for bit alike") {
  auto const golden = gpt_golden();
  if (!golden) return;
  Run const eager = train(*golden, How::eager);
  compare(*golden, eager, "eager");
  Run const whole = train(*golden, How::whole_step);
  compare(*golden, whole, "whole step compiled");
  CHECK(whole.losses == eager.losses);
  CHECK(whole.norms == eager.norms);
  for (std::size_t k = 0; k < whole.graphs.size(); ++k) CHECK(whole.graphs[k] == (k == 0 ? 1 : 2));
  Run const partly = train(*golden, How::backward_only);
  compare(*golden, partly, "forward and backward compiled");
  CHECK(partly.losses == eager.losses);
  for (int const count : partly.graphs) CHECK(count == 1);
  for (auto const& report : {whole.report, partly.report}) std::cout << report.substr(0, report.find("  graph 1:")) << report.substr(report.find("  time:"));
}

TEST_CASE("golden GPT: 60 steps through fused kernels in every mode") {
  auto const golden = gpt_golden();
  if (!golden) return;
  constexpr std::pair<std::string_view, fusion::Mode> modes[] = {
      {"normal", fusion::Mode::normal}, {"reduce_overhead", fusion::Mode::reduce_overhead}, {"max_autotune", fusion::Mode::max_autotune}};
  std::vector<Run> runs;
  for (auto const& [name, mode] : modes) {
    Backend const backend = [mode](ir::Graph const& graph) -> Runner { return fusion::lower(graph, {.mode = mode, .tune_seconds = 0.5}); };
    runs.push_back(train(*golden, How::whole_step, backend));
    compare(*golden, runs.back(), std::format("whole step compiled, fusion, {}", name));
    std::cout << name << runs.back().report.substr(runs.back().report.find("  time:"));
  }
  CHECK(runs[1].losses == runs[0].losses);  // bit for bit
  CHECK(runs[1].norms == runs[0].norms);
  Backend const backend = [](ir::Graph const& graph) -> Runner { return fusion::lower(graph); };
  compare(*golden, train(*golden, How::backward_only, backend), "forward and backward compiled, fusion");
}
