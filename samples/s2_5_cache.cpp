// 2.5: the compile cache. What a compilation is told from others by, how a pipeline takes its cache along, and what that saves.
//
// Run it:  ninja -C build && ./build/samples/s2_5_cache [--json[=FILE]]
//
// The article layers caches (the local disk, then a shared store) under a key that must hold source, dependencies, parameters and environment and be
// stable besides; restores a pipeline's cache by a hash of files, then by a prefix; and gives hit rates and cold starts of three schemes. Here the
// local layer is at work, on real compilations; the shared one is to come.
#include <stdlib.h>

import std;
import tenon;
#include "lesson.h"
using namespace tenon;
namespace fs = std::filesystem;

namespace {

// A folder of this run's; it goes away with the object.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = fs::temp_directory_path() / "tenon-s2_5-XXXXXX";
    if (!mkdtemp(name.data())) fail("{}: can't be made", name);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
};
// What compile() looks things up in from now on.
void use_cache(std::string const& place) { setenv("TENON_CACHE", place.c_str(), 1); }

double seconds_of(auto const& act) {
  auto const start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What receipts say since a place among them.
struct Count {
  int hits = 0, misses = 0, refused = 0;
  double seconds = 0;  ///< of look-ups
};
std::int64_t last_receipt() {
  auto const all = fusion::receipts();
  return all.empty() ? 0 : all.back().number;
}
Count since(std::int64_t last) {
  using Outcome = fusion::Receipt::Outcome;
  Count count;
  for (auto const& receipt : fusion::receipts()) {
    if (receipt.number <= last) continue;
    count.hits += receipt.outcome == Outcome::hit, count.misses += receipt.outcome == Outcome::miss, count.refused += receipt.outcome == Outcome::refused;
    if (receipt.outcome == Outcome::hit || receipt.outcome == Outcome::miss) count.seconds += receipt.seconds;
  }
  return count;
}

// ---- 2.5.a: the key ----

// 1. What leaves a key as it is, and what changes it.
// A graph is put into one order and written down without names; two recordings of the same calls give the same text, whatever their author called
// things. Everything that decides which code is generated is a part of its own, so two keys that differ say where.
constexpr std::string_view recorded = R"(graph layer(%0 x: f32[8, 16], %1 w: f32[16, 4], %2 b: f32[4]) {
  %3 = matmul(%0, %1): f32[8, 4]
  %4 = add(%3, %2): f32[8, 4]
  %5 = mean(%2): f32[]
  return %4, %5
}
)";
constexpr std::string_view again = R"(graph dense(%0 input: f32[8, 16], %1 kernel: f32[16, 4], %2 bias: f32[4]) {
  %3 = mean(%2): f32[]
  %4 = matmul(%0, %1): f32[8, 4]  # "another/place.cpp" 7:3
  %5 = add(%4, %2): f32[8, 4]  @ blocks.0
  return %5, %3
}
)";
std::string edited(std::initializer_list<std::pair<std::string_view, std::string_view>> edits) {
  std::string text(recorded);
  for (auto const& [from, to] : edits)
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}
struct Keys {
  std::string parts;
  int same = 0, changed = 0;
};
Keys keys() {
  heading("the key");
  auto const key = fusion::key_of(ir::parse_graph(recorded), {});
  Keys found;
  for (auto const& part : key.parts) {
    found.parts += (found.parts.empty() ? "" : ", ") + part.name;
    std::cout << std::format("{:10} {}  {}\n", part.name, part.digest.substr(0, 16), part.text.substr(0, 90));
  }
  std::cout << std::format("{:10} {}\n", "the key", key.name.substr(0, 16));
  if (fusion::key_of(ir::parse_graph(again), {}) != key) fail("other names, places and another order of independent calls changed the key");
  ++found.same;
  std::cout << "\nother names, places in the source, and order of independent calls: the same key\n";
  auto const differs = [&](std::string_view what, fusion::Key const& other, std::string const& due) {
    std::string names;
    for (auto const& name : fusion::differences(key, other)) names += (names.empty() ? "" : ", ") + name;
    std::cout << std::format("{:40} another key: {}\n", what, names);
    if (names != due) fail("{}: the key differs in '{}', not in '{}'", what, names, due);
    ++found.changed;
  };
  differs("another op", fusion::key_of(ir::parse_graph(edited({{"add(", "sub("}})), {}), "graph");
  differs("another size", fusion::key_of(ir::parse_graph(edited({{"[8, ", "[9, "}})), {}), "graph, inputs");
  differs("another dtype", fusion::key_of(ir::parse_graph(edited({{"f32", "f64"}})), {}), "graph, inputs");
  differs("another order of the results", fusion::key_of(ir::parse_graph(edited({{"%4, %5", "%5, %4"}})), {}), "graph");
  differs("an option of the compilation", fusion::key_of(ir::parse_graph(recorded), {.group = {.fuse = false}}), "options");
  auto const elsewhere = [&](std::string_view name, std::string const& text) {
    auto parts = key.parts;
    for (auto& part : parts)
      if (part.name == name) part = fusion::key_part(part.name, text);
    return fusion::key_of(std::move(parts));
  };
  differs("a compiler with another build id", elsewhere("toolchain", "/usr/bin/cc 1234 bytes build 5678"), "toolchain");
  differs("a processor with fewer instructions", elsewhere("processor", "avx2 0"), "processor");
  differs("another commit of Tenon", elsewhere("build", "0"), "build");
  return found;
}

// 2. What a hit is worth: a training step of a GPT, compiled, then compiled again as a new process would.
// From the cache it still is recorded and planned; only the compiler stays away. The figure beside it is what finding, checking and loading cost.
struct Training {
  std::int64_t tokens = 32, vocabulary = 256;
  Gpt model{{.vocabulary = vocabulary, .context = tokens, .layers = 2, .heads = 4, .features = 64}};
  std::vector<Tensor> weights = learnable(model);
  Adam optimizer{weights, {.lr = 6e-4}};
  Tensor indices = randint(0, vocabulary, {1, tokens}), targets = randint(0, vocabulary, {tokens});
  Tensor step() {
    optimizer.zero_grad();
    Tensor const loss = cross_entropy(reshape(model(indices), {tokens, vocabulary}), targets);
    loss.backward();
    optimizer.step();
    return loss;
  }
  static std::vector<Tensor> learnable(Gpt& gpt) {
    auto list = parameters(gpt);
    for (auto& parameter : list) parameter.set_requires_grad();
    return list;
  }
};
struct Worth {
  double cold = 0, warm = 0, look_up = 0;
  int kernels = 0;
};
Worth worth() {
  heading("a training step of a GPT");
  Folder const folder;
  use_cache(folder.path);
  Worth found;
  std::vector<float> losses;
  auto const first_call = [&] {
    manual_seed(1);
    Training training;
    auto const fast = compile([&training] { return training.step(); });
    return seconds_of([&] { losses.push_back(fast().to_vector<float>()[0]); });
  };
  auto last = last_receipt();
  found.cold = first_call();
  auto const cold = since(last);
  last = last_receipt();
  found.warm = first_call();
  auto const warm = since(last);
  found.look_up = warm.seconds, found.kernels = warm.hits;
  std::cout << std::format(
      "first call, nothing in the cache: {:.0f} ms ({} misses)\nfirst call, from the cache:       {:.0f} ms ({} hits, {:.2f} ms to find and check)\n",
      found.cold * 1e3, cold.misses, found.warm * 1e3, warm.hits, warm.seconds * 1e3);
  if (cold.misses == 0 || cold.hits != 0 || warm.hits != cold.misses || warm.misses != 0) fail("every miss of the first run should be a hit of the second");
  if (losses[0] != losses[1]) fail("the losses differ: {} and {}", losses[0], losses[1]);
  return found;
}

// 3. What is in a folder is not trusted because it is there. A byte of an entry is changed, as a bad disk or a stranger would.
std::string refused() {
  heading("an altered entry");
  Folder const folder;
  use_cache(folder.path);
  auto const twice = [](Tensor const& x) { return x * 2.0 + 1.0; };
  Tensor const x = tensor({1, 2, 3});
  auto const right = compile(twice)(x).to_vector<float>();
  for (auto const& file : fs::directory_iterator(folder.path)) {
    if (file.path().filename().string().size() != 64) continue;
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
    stream.put('?');
  }
  auto const last = last_receipt();
  auto const loaded = device::libraries_loaded();
  auto const result = compile(twice)(x).to_vector<float>();
  std::string reason;
  for (auto const& receipt : fusion::receipts())
    if (receipt.number > last) {
      std::cout << fusion::to_string(receipt) << '\n';
      if (receipt.outcome == fusion::Receipt::Outcome::refused) reason = receipt.reason;
    }
  std::cout << std::format("objects handed to the loader: {}, the one that was compiled again\n", device::libraries_loaded() - loaded);
  if (reason.empty() || result != right || device::libraries_loaded() - loaded != 1) fail("an altered entry should be refused and compiled again");
  return reason;
}
Claim the_key() {
  auto const key = keys();
  auto const gain = worth();
  auto const reason = refused();
  return {
      .id = "2.5.a",
      .title = "a compile cache under a stable key",
      .article = "layered caches (local disk, then S3, Redis or BuildBarn); the key is stable and holds source, dependency versions, parameters, environment",
      .measured = std::format("local layer: names, places and order leave the key, {} real differences change the part that is due (parts: {}, source); first "
                              "call of a GPT's training step {:.0f} ms cold, {:.0f} ms from the cache, of which {:.2f} ms to find and check; an altered "
                              "entry is refused ({}). No shared layer yet",
                              key.changed, key.parts, gain.cold * 1e3, gain.warm * 1e3, gain.look_up * 1e3, reason),
      .verdict = "reproduced with a difference"};
}

// ---- a repository and what its jobs compile ----

// A model's source is a line of digits, an op each. A commit rewrites one of them.
struct Repository {
  std::vector<std::string> models{"0123", "3210", "0213"};
  void commit(std::mt19937& random) {
    auto& model = models[random() % models.size()];
    model[random() % model.size()] = static_cast<char>('0' + random() % 4);
  }
};
Tensor model(std::string const& source, Tensor x) {
  for (char const digit : source) {
    switch (digit) {
      case '0':
        x = sin(x);
        break;
      case '1':
        x = gelu(x);
        break;
      case '2':
        x = softmax(x, -1);
        break;
      default:
        x = x * x + 0.5;
    }
  }
  return x;
}
// A job builds and runs every model.
double job(Repository const& repository) {
  Tensor const x = full({16, 32}, 0.25);
  return seconds_of([&] {
    for (auto const& source : repository.models) (void)compile([&](Tensor const& in) { return model(source, in); })(x);
  });
}

// ---- 2.5.b: restoring by key, then by prefix ----

// What a pipeline's cache does: a folder is saved under a key once, and restored by that key, else by the newest key with one of the prefixes.
class Saved {
 public:
  explicit Saved(fs::path path) : path_(std::move(path)) {}
  void save(std::string const& key, fs::path const& folder) {
    if (std::ranges::find(keys_, key) != keys_.end()) return;
    copy(folder, path_ / key);
    keys_.push_back(key);
  }
  std::string restore(std::string const& key, std::span<std::string const> prefixes, fs::path const& folder) const {
    std::vector<std::string> wishes{key};
    wishes.insert(wishes.end(), prefixes.begin(), prefixes.end());
    for (auto const& wish : wishes)
      for (auto const& known : std::views::reverse(keys_))
        if (known.starts_with(wish)) return copy(path_ / known, folder), known;
    return {};
  }

 private:
  static void copy(fs::path const& from, fs::path const& to) {
    fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::permissions(to, fs::perms::owner_all);  // or the cache refuses it
  }
  fs::path path_;
  std::vector<std::string> keys_{};
};
std::string hash_of_files(Repository const& repository) {
  std::string all;
  for (auto const& source : repository.models) all += std::format("{} {}\n", source.size(), source);
  return fusion::to_hex(fusion::sha256(all)).substr(0, 12);
}
Claim restored() {
  heading("restore by key, then by prefix");
  Folder const storage;
  Saved saved(storage.path);
  Repository repository;
  std::string summary;
  int number = 0;
  auto const run = [&](std::string_view what, std::string const& tool, std::string_view by, int hits) {
    Folder const machine;  // every job gets a fresh one
    auto const cache = machine.path / "cache";
    use_cache(cache);
    auto const prefix = std::format("linux-{}-", tool), key = prefix + hash_of_files(repository);
    auto const found = saved.restore(key, std::array{prefix}, cache);
    std::string const how = found.empty() ? "nothing" : found == key ? "the key" : "the prefix";
    auto const last = last_receipt();
    double const seconds = job(repository);
    auto const count = since(last);
    saved.save(key, cache);
    std::cout << std::format("job {}, {:24} {:28} restored by {:11} {} of {} compilations are hits, {:.0f} ms\n", ++number, what, key, how + ",", count.hits,
                             count.hits + count.misses, seconds * 1e3);
    if (how != by || count.hits != hits || count.hits + count.misses != 3 || count.refused) fail("job {}: {} and {} hits were due", number, by, hits);
    summary += std::format("{}{} ({} of 3)", summary.empty() ? "" : ", ", how, count.hits);
  };
  run("the first one:", "clang19", "nothing", 0);
  run("the same commit:", "clang19", "the key", 3);
  repository.models[1] = "0000";
  run("one model changed:", "clang19", "the prefix", 2);
  run("again:", "clang19", "the key", 3);
  run("another tool:", "gcc12", "nothing", 0);
  return {
      .id = "2.5.b",
      .title = "restore by a hash of files, then by prefix",
      .article = "a CI pipeline restores by os-tool-hashFiles(…), then by prefix (restore-keys)",
      .measured = std::format("five jobs on fresh machines were restored by: {}. After a restore by prefix only what changed was compiled; its own key decides "
                              "that, so a folder that is too old costs misses and never a wrong hit",
                              summary),
      .verdict = "reproduced"};
}

// ---- 2.5.c: three schemes ----

// The same history for each scheme: 60 jobs on 4 machines, a commit before two of three jobs, and now and then a machine is set up anew. Without a cache each
// job compiles everything; with a local one it finds what its own machine has seen. The compilations are real, and so are their times.
struct Scheme {
  int jobs = 0, hits = 0, all = 0;
  double seconds = 0;
  double rate() const { return 100.0 * hits / all; }
  double a_job() const { return seconds / jobs; }
};
constexpr int jobs = 60, machines = 4, renewed_every = 15;

Scheme simulated(bool local) {
  std::mt19937 random(25);
  Repository repository;
  std::vector<std::unique_ptr<Folder>> disks(machines);
  Scheme scheme{.jobs = jobs};
  for (int k = 0; k < jobs; ++k) {
    if (k % 3 != 2) repository.commit(random);
    auto& disk = disks[random() % machines];
    if (!disk || random() % renewed_every == 0) disk = std::make_unique<Folder>();
    use_cache(local ? disk->path.string() : "none");
    auto const last = last_receipt();
    scheme.seconds += job(repository);
    auto const count = since(last);
    if (count.refused) fail("job {}: {} entries were refused", k, count.refused);
    scheme.hits += count.hits, scheme.all += count.hits + count.misses;
  }
  return scheme;
}
Claim schemes() {
  heading("three schemes");
  auto const none = simulated(false), local = simulated(true);
  std::cout << std::format("{:16} {:>5} {:>9} {:>14}   {}\n", "", "jobs", "hits", "a job's start", "the article");
  std::cout << std::format("{:16} {:>5} {:>7.0f} % {:>11.0f} ms   0 %, 182 s\n", "none", none.jobs, none.rate(), none.a_job() * 1e3);
  std::cout << std::format("{:16} {:>5} {:>7.0f} % {:>11.0f} ms   41 %, 107 s\n", "local", local.jobs, local.rate(), local.a_job() * 1e3);
  std::cout << "local + remote   to come                           89 %, 23 s\n";
  if (none.hits != 0 || none.all != local.all || local.hits == 0) fail("{} of {} and {} of {} hits", none.hits, none.all, local.hits, local.all);
  return {.id = "2.5.c",
          .title = "hit rates and cold starts of the schemes none and local",
          .article = "hit rate and cold start: none 0 % and 182 s, local 41 % and 107 s, local + remote 89 % and 23 s; the workload is not named",
          .measured = std::format("{} jobs on {} machines, {} compilations: none {:.0f} % and {:.0f} ms a job, local {:.0f} % and {:.0f} ms ({:.2f} of it; the "
                                  "article's {:.2f}). The rate follows from how often a machine sees a version again; no shared layer yet",
                                  jobs, machines, none.all, none.rate(), none.a_job() * 1e3, local.rate(), local.a_job() * 1e3, local.a_job() / none.a_job(),
                                  107.0 / 182),
          .verdict = "reproduced with a difference"};
}

std::vector<Claim> lesson() { return claims_of({the_key, restored, schemes}); }

}  // namespace

int main(int argc, char** argv) { return run_lesson("s2_5_cache", argc, argv, lesson); }
