// The tour: a model is captured, guarded and trained on real data, in one program.
//
// Run it:  ninja -C build && ./build/samples/s0_tour [TEXT FILE] [--data CSV] [--dtype NAME] [--json[=FILE]]
//
// Read it from top to bottom. Each part is a piece of ordinary C++ and what became of it: the functions that train below know nothing of
// compilers, and the same function objects run both ways.
#include <CLI/CLI.hpp>

import std;
import tenon;
#include "lesson.h"
using namespace tenon;

namespace {

// 1. The data.
// 1,797 images of 8×8 pixels, each pixel 0 to 16, and the digit that somebody meant. They are shuffled by a fixed seed; four fifths train.
struct Digits {
  Tensor train_x, train_y, test_x, test_y;  // [N, 64] in 0 … 1, and [N] i64
};
constexpr std::int64_t pixels = 64, classes = 10, batch = 64;

Digits read_digits(std::filesystem::path const& file, DType dtype) {
  nn::Table const table = nn::read_csv(file);
  if (table.columns != pixels + 1)
    fail("digits: {}: a row must have {} columns ({} pixels and the digit), not {}", file.string(), pixels + 1, pixels, table.columns);
  std::int64_t const train = table.rows * 4 / 5;
  if (train < batch) fail("digits: {}: {} rows are too few: four fifths of them must fill one batch of {}", file.string(), table.rows, batch);
  manual_seed(0);
  auto const order = randperm(table.rows).to_vector<std::int64_t>();
  std::vector<double> x;
  std::vector<std::int64_t> y;
  for (std::int64_t const row : order) {
    auto const fields = std::span(table.values).subspan(static_cast<std::size_t>(row * table.columns), static_cast<std::size_t>(table.columns));
    for (double const pixel : fields.first(pixels)) x.push_back(pixel / 16);
    double const digit = fields[pixels];
    if (digit < 0 || digit >= classes || digit != std::floor(digit))
      fail("digits: {}: line {}, column {}: a digit must be 0 to {}, not {}", file.string(), row + 1, pixels + 1, classes - 1, digit);
    y.push_back(static_cast<std::int64_t>(digit));
  }
  Tensor const images = tensor(x, {table.rows, pixels}, dtype), digits = index_tensor(y, {table.rows});
  return {slice(images, 0, 0, train), slice(digits, 0, 0, train), slice(images, 0, train), slice(digits, 0, train)};
}

void show_data(Digits const& digits) {
  heading("the data");
  auto const image = select(digits.train_x, 0, 0).to_vector<double>();
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 8; ++column)
      std::cout << std::array{"  ", "░░", "▒▒", "▓▓", "██"}[static_cast<std::size_t>(image[row * 8 + column] * 4)];
    std::cout << (row == 7 ? std::format("  is a {}\n", select(digits.train_y, 0, 0).item().value) : "\n");
  }
  std::cout << std::format("{} images to train on, {} to test\n", digits.train_x.size(0), digits.test_x.size(0));
}

// 2. The model.
// A layer is a struct of tensors, a model a struct of layers. `fields` lists what is in it: optimizers, captures and files all walk that list.
struct Mlp {
  nn::Linear hidden{pixels, 128}, output{128, classes};
  Tensor operator()(Tensor const& x) const { return output(relu(hidden(x))); }
  static void fields(auto& self, auto&& field) { field("hidden", self.hidden), field("output", self.output); }
};

// 3. The training step.
// Forward, backward, update: three lines as you know them. Nothing here says whether they run at once or as a graph.
struct Step {
  nn::Sgd* optimizer;
  Tensor operator()(Mlp& model, Tensor const& x, Tensor const& y) const {
    Tensor loss = cross_entropy(model(x), y);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss;
  }
};

// 4. Training, twice.
// `fast` is that very step, compiled; the loop takes either. Both start from the same weights and see the same batches in the same order. Fused
// kernels add in another order than eager ops do, so losses agree to their last places at first, and drift apart as rounding does.
struct Run {
  Mlp model;
  std::vector<double> losses;
  double seconds = 0;
};
constexpr int epochs = 40;

Run fresh_run(DType dtype) {
  manual_seed(1);
  Run run;
  for (Tensor* const p : {&run.model.hidden.weight, &run.model.hidden.bias, &run.model.output.weight, &run.model.output.bias})
    if (p->dtype() != dtype) *p = to(p->detach(), dtype).set_requires_grad();
  return run;
}
nn::Sgd optimizer_of(Run& run) { return {nn::parameters(run.model), {.lr = 0.2, .momentum = 0.9, .nesterov = true}}; }

void train(Run& run, Digits const& digits, std::string_view label, auto const& step) {
  nn::DataLoader loader({digits.train_x, digits.train_y}, {.batch = batch, .seed = 2});
  Progress bar{std::string(label), epochs};
  auto const start = std::chrono::steady_clock::now();
  for (int epoch = 0; epoch < epochs; ++epoch) {
    loader.start(epoch);
    while (auto const rows = loader.next()) run.losses.push_back(step(run.model, (*rows)[0], (*rows)[1]).item().value);
    bar.advance();
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double accuracy(Mlp const& model, Tensor const& x, Tensor const& y) {
  NoGrad const off;
  return mean(to(eq(argmax(model(x), 1), y), DType::f64)).item().value;
}

std::string curve(std::vector<double> const& losses) {
  std::string text;
  for (std::size_t k = 0; k < 6; ++k) text += std::format(" {:.4f}", losses[k * (losses.size() - 1) / 5]);
  return text;
}

struct Captured {
  Explanation report;
  double seconds;  ///< of the whole compiled run
};
Captured digits_twice(Digits const& digits, DType dtype) {
  heading("an MLP, eager and compiled");
  Run eager = fresh_run(dtype), compiled = fresh_run(dtype);
  nn::Sgd eager_optimizer = optimizer_of(eager), compiled_optimizer = optimizer_of(compiled);
  auto const fast = compile(Step{&compiled_optimizer}, {.name = "step"});
  train(eager, digits, "eager", Step{&eager_optimizer});
  train(compiled, digits, "compiled", fast);

  std::cout << std::format("{} steps of at most {} images; the loss from the first to the last:\n", eager.losses.size(), batch);
  std::cout << std::format("eager    {}   {:.2f} s\ncompiled {}   {:.2f} s\n", curve(eager.losses), eager.seconds, curve(compiled.losses), compiled.seconds);
  double farthest = 0;
  for (std::size_t k = 0; k < std::min<std::size_t>(eager.losses.size(), 20); ++k) {  // fused kernels add up in another order, and steps build on steps
    farthest = std::max(farthest, std::abs(eager.losses[k] - compiled.losses[k]) / eager.losses[k]);
    if (!(farthest <= 1e-4)) fail("the loss of step {} differs: {:.17g} eager, {:.17g} compiled", k, eager.losses[k], compiled.losses[k]);
  }
  std::cout << std::format("the first 20 losses differ by {:.1e} of themselves at most\n", farthest);

  double const right = accuracy(compiled.model, digits.test_x, digits.test_y);
  std::cout << std::format("test accuracy {:.2f} % of {} images that it never saw\n", right * 100, digits.test_x.size(0));
  if (right < 0.95) fail("the test accuracy is {:.2f} %, less than 95 %", right * 100);
  return {describe(fast.state()), compiled.seconds};
}

// 5. What was captured.
// The first batch was recorded. The full batches after it were replayed: the step's C++ ran again, each op was compared with the record, and the
// work was one launch of the graph. The last batch of an epoch is shorter; a guard said so, and the second graph has a symbol for the batch, so
// that it serves every length.
void show_captures(Explanation const& report, std::int64_t rows) {
  heading("what was captured");
  std::int64_t const ragged = rows % batch;
  int const due = ragged == 0 ? 0 : 1;
  std::cout << std::format("{} calls, of these {} with {} rows: {} captures\n", report.calls, epochs * due, ragged, report.graphs);
  for (auto const& recompile : report.recompiles | std::views::take(3)) std::cout << "recompiled: " << recompile.reason.text << '\n';
  if (report.graphs != 1 + due || std::ssize(report.recompiles) != due || !report.breaks.empty())
    fail("one capture for full batches and one for the ragged batch were due, not {} with {} recompiles and {} breaks", report.graphs, report.recompiles.size(),
         report.breaks.size());

  std::string const text = ir::to_string(report.parts.back().graph);
  std::vector<std::string_view> lines;
  for (auto const line : std::views::split(std::string_view(text), '\n')) lines.emplace_back(line.begin(), line.end());
  std::cout << std::format("\nthe last graph: {} ops, forward, backward and update in one; each with the line of C++ that called it\n",
                           report.parts.back().ops.size());
  std::size_t const head = 19, tail = 8;
  for (std::size_t k = 0; k < lines.size(); ++k) {
    if (k < head || k + tail >= lines.size()) std::cout << lines[k] << '\n';
    if (k == head) std::cout << std::format("  … {} more lines\n", lines.size() - head - tail);
  }
  std::cout << "its guards:\n";
  for (auto const& guard : report.parts.back().guards) std::cout << std::format("{}{}{}\n", guard.text, guard.place.empty() ? "" : "  # ", guard.place);
}

// 6. Where the time went.
// Recording and lowering happen once a graph. Replaying is what each later call pays; running is the work itself.
void show_time(Captured const& captured) {
  heading("where the time went");
  auto const& [report, seconds] = captured;
  auto const row = [](std::string_view what, double part, std::int64_t count, std::string_view unit) {
    std::cout << std::format("{:36} {:8.1f} ms  {:9.2f} µs each of {} {}\n", what, part * 1e3,
                             part * 1e6 / static_cast<double>(std::max<std::int64_t>(count, 1)), count, unit);
  };
  row("recording", report.record_seconds, report.graphs, "graphs");
  row("lowering to kernels, and compiling", report.compile_seconds, report.graphs, "graphs");
  row("running the graphs", report.launch_seconds, report.launches, "launches");
  row("the rest: body, replay, batches", seconds - report.record_seconds - report.compile_seconds - report.launch_seconds, report.calls, "calls");
  std::cout << std::format("{} ops were recorded, {} replayed\n", report.recorded_ops, report.replayed_ops);
}

// 7. A graph break.
// This function chooses its way by what a tensor holds. C++ has to know, so the graph ends at that line, and both ways become graphs of their own.
Tensor soften(Tensor const& x) {
  Tensor const y = x * 2;
  if (sum(y) > 10) return sigmoid(y) * 10;
  return y + 1;
}
void show_break() {
  heading("a graph break");
  auto const fast = compile(soften, {.name = "soften"});
  for (double const value : {1.0, 4.0, 2.0, 8.0}) std::cout << std::format("soften({}) = {}\n", value, fast(full({2}, value)).to_string());
  std::cout << describe(fast.state());
}

// 8. A transformer on text.
// The same three lines train a GPT to guess the next character. Adam's step number is a plain C++ number that is another one on each call: the
// second recording finds that it varies and makes it a parameter, so there is no third.
struct TextStep {
  nn::Adam* optimizer;
  Tensor operator()(nn::Gpt& model, Tensor const& windows) const {
    Dim const last = windows.dim(1) - 1;
    Tensor const logits = model(slice(windows, 1, 0, last));
    Tensor loss = cross_entropy(flatten(logits, 0, 1), flatten(slice(windows, 1, 1)));
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss;
  }
};
void train_on_text(std::string const& file, nn::Characters text) {
  heading("a GPT on text");
  nn::GptConfig const config{.vocabulary = std::ssize(text.vocabulary), .context = 32, .layers = 2, .heads = 4, .features = 32};
  std::int64_t const window = config.context + 1, windows = std::ssize(text.tokens) / window, rows = 8, steps = 100;
  if (windows < rows) fail("text: {}: {} characters are too few: a batch takes {}", file, text.tokens.size(), rows * window);
  text.tokens.resize(static_cast<std::size_t>(windows * window));
  manual_seed(3);
  nn::Gpt model(config);
  nn::Adam optimizer(nn::parameters(model), {.lr = 3e-3});
  std::int64_t weights = 0;
  for (auto const& parameter : nn::parameters(model)) weights += parameter.numel();
  std::cout << std::format("{}: {} windows of {} characters, {} different ones; {} weights\n", file, windows, window, config.vocabulary, weights);

  nn::DataLoader loader({index_tensor(text.tokens, {windows, window})}, {.batch = rows, .drop_last = true, .seed = 4});
  auto const fast = compile(TextStep{&optimizer}, {.name = "text_step"});
  std::vector<double> losses;
  for (std::int64_t epoch = 0; std::cmp_less(losses.size(), steps); ++epoch) {
    loader.start(epoch);
    while (auto const rows_of_text = std::cmp_less(losses.size(), steps) ? loader.next() : std::nullopt) {
      losses.push_back(fast(model, (*rows_of_text)[0]).item().value);
      if (losses.size() % 20 == 1 || std::cmp_equal(losses.size(), steps)) std::cout << std::format("step {:3}: loss {:.4f}\n", losses.size(), losses.back());
    }
  }
  auto const report = describe(fast.state());
  std::cout << std::format("guessing blindly costs {:.4f}; {} captures, of {} ops each\n", std::log(static_cast<double>(config.vocabulary)), report.graphs,
                           report.parts[0].ops.size());
  for (auto const& recompile : report.recompiles) std::cout << "recompiled: " << recompile.reason.text << '\n';
  if (losses.back() >= losses.front()) fail("the loss on {} did not fall: {} at first, {} at last", file, losses.front(), losses.back());
}

std::string default_text() {
  for (std::string const name : {"/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0"})
    if (std::filesystem::exists(name)) return name;
  return TENON_SOURCE_ROOT "/README.md";
}

void tour(std::string const& data, std::string const& dtype_name, std::string const& text_file) {
  auto const start = std::chrono::steady_clock::now();
  DType const dtype = dtype_of(dtype_name);
  nn::Characters const text = nn::read_characters(text_file);  // what is wrong with a file is said before anything runs
  Digits const digits = read_digits(data, dtype);
  show_data(digits);
  Captured const captured = digits_twice(digits, dtype);
  show_captures(captured.report, digits.train_x.size(0));
  show_time(captured);
  show_break();
  train_on_text(text_file, text);
  std::cout << std::format("\nthe tour took {:.1f} s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Captures, guards and trains models on real data.", "s0_tour");
  std::string text = default_text(), data = TENON_SOURCE_ROOT "/samples/data/digits.csv", dtype = "f32", json = "-";
  app.add_option("text", text, "the text that the GPT reads")->capture_default_str();
  app.add_option("--data", data, "rows of 64 pixels from 0 to 16 and a digit")->capture_default_str();
  app.add_option("--dtype", dtype, "of images and weights of the MLP")->capture_default_str();
  app.add_flag("--json{}", json, "print the claims instead of the prose; --json=FILE: write them to FILE");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run_lesson("s0_tour", json == "-" ? std::nullopt : std::optional(json), [&] { tour(data, dtype, text); });
}
