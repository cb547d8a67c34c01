module;
#include <locale.h>
#include <stdlib.h>
#include <cerrno>
module tenon.nn;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

namespace tenon::nn {
using base::fail;

namespace {
std::ifstream open(std::string_view who, std::filesystem::path const& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) fail("{}: {}: is a folder, not a file", who, file.string());
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail("{}: {}: can't be read: {}", who, file.string(), std::generic_category().message(errno ? errno : EIO));
  return stream;
}

// As much of a field as an error line can show.
std::string shown(std::string_view field) {
  std::string text(field.substr(0, 24));
  for (auto& c : text)
    if (c < ' ' || c > '~') c = '?';
  return field.size() > 24 ? text + "…" : text;
}
// A decimal number, whatever the program's locale says of commas; nothing for other text and for what no double holds.
std::optional<double> number(std::string const& field) {
  static locale_t const plain = newlocale(LC_ALL_MASK, "C", nullptr);
  if (field.empty() || field.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  double const value = strtod_l(field.c_str(), &end, plain);
  if (end != field.c_str() + field.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}
std::string_view trimmed(std::string_view text) {
  auto const first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Reads one line's fields behind `values`; returns how many there were.
std::int64_t read_row(std::string_view line, std::filesystem::path const& file, std::int64_t number_of_line, std::vector<double>& values) {
  std::int64_t column = 0;
  for (std::size_t begin = 0; begin <= line.size();) {
    std::size_t const end = std::min(line.find(',', begin), line.size());
    std::string const field(trimmed(line.substr(begin, end - begin)));
    ++column;
    if (field.empty()) fail("read_csv: {}: line {}, column {}: expected a number, found nothing", file.string(), number_of_line, column);
    auto const value = number(field);
    if (!value) fail("read_csv: {}: line {}, column {}: expected a number, found '{}'", file.string(), number_of_line, column, shown(field));
    values.push_back(*value);
    begin = end + 1;
  }
  return column;
}

// The order of one epoch: Fisher and Yates, each swap from its own Philox block.
std::vector<std::int64_t> order_of(std::int64_t rows, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  auto const low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  auto const high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  auto const turn = static_cast<std::uint64_t>(epoch);
  for (std::uint64_t k = order.size(); k-- > 1;) {
    auto const block = base::philox({low(k), high(k), low(turn), high(turn)}, {low(seed), high(seed)});
    auto const random = block[0] | static_cast<std::uint64_t>(block[1]) << 32;
    std::swap(order[k], order[random % (k + 1)]);
  }
  return order;
}
}  // namespace

Table read_csv(std::filesystem::path const& file) {
  auto stream = open("read_csv", file);
  Table table;
  std::string line;
  std::int64_t number_of_line = 0, blank = 0;
  while (std::getline(stream, line)) {
    ++number_of_line;
    if (line.ends_with('\r')) line.pop_back();
    if (trimmed(line).empty()) {  // blank lines may only end the file
      if (blank == 0) blank = number_of_line;
      continue;
    }
    if (blank > 0) fail("read_csv: {}: line {}, column 1: expected a number, found an empty line", file.string(), blank);
    auto const columns = read_row(line, file, number_of_line, table.values);
    if (table.rows++ == 0) table.columns = columns;
    if (columns != table.columns)
      fail("read_csv: {}: line {}, column {}: expected {} fields as in line 1, found {}", file.string(), number_of_line, std::min(columns, table.columns) + 1,
           table.columns, columns);
  }
  if (stream.bad()) fail("read_csv: {}: line {}: can't be read on", file.string(), number_of_line + 1);
  if (table.rows == 0) fail("read_csv: {}: line 1, column 1: expected a number, found the end of the file", file.string());
  return table;
}

Characters read_characters(std::filesystem::path const& file) {
  auto stream = open("read_characters", file);
  std::string const text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) fail("read_characters: {}: can't be read on behind byte {}", file.string(), text.size());
  if (text.empty()) fail("read_characters: {}: the file is empty", file.string());
  std::array<std::int64_t, 256> token{};
  for (unsigned char c : text) token[c] = 1;
  Characters result;
  for (std::size_t c = 0; c < token.size(); ++c) {
    if (token[c] == 0) continue;
    token[c] = static_cast<std::int64_t>(result.vocabulary.size());
    result.vocabulary.push_back(static_cast<char>(c));
  }
  result.tokens.reserve(text.size());
  for (unsigned char c : text) result.tokens.push_back(token[c]);
  return result;
}

struct DataLoader::Worker {
  std::vector<Tensor> data;
  LoaderOptions options;
  std::int64_t rows = 0;
  std::vector<std::int64_t> order{};
  std::int64_t taken = 0;  ///< batches handed out
  bool started = false;
  // shared with the thread
  std::mutex mutex{};
  std::condition_variable_any changed{};
  std::deque<Batch> ready{};
  std::exception_ptr error{};
  std::jthread thread{};  // last: it ends before what it uses

  std::int64_t batches() const { return options.drop_last ? rows / options.batch : (rows + options.batch - 1) / options.batch; }
  Batch make(std::int64_t index) const;
  void prepare(std::stop_token const& stop);
  std::optional<Batch> wait();
};

// Copies rows as bytes, so that neither an interpreter of the caller's thread nor a dtype has a say in it.
Batch DataLoader::Worker::make(std::int64_t index) const {
  std::int64_t const first = index * options.batch, count = std::min(options.batch, rows - first);
  Batch batch;
  for (std::size_t k = 0; k < data.size(); ++k) {
    auto const memory = data[k].host();
    if (memory.sizes.empty() || memory.sizes[0] != rows) fail("data loader: tensor {} is {} now, it had {} rows", k, ir::to_string(data[k].meta()), rows);
    base::Shape shape = memory.sizes;
    shape[0] = 1;
    std::int64_t const bytes = base::numel(shape) * base::bytes_of(memory.dtype);
    shape[0] = count;
    std::vector<std::byte> elements(static_cast<std::size_t>(count * bytes));
    for (std::int64_t row = 0; row < count && bytes > 0; ++row)
      std::memcpy(&elements[static_cast<std::size_t>(row * bytes)], memory.data + order[static_cast<std::size_t>(first + row)] * bytes,
                  static_cast<std::size_t>(bytes));
    batch.push_back(tracer::from_file({memory.dtype, std::move(shape), elements}));
  }
  return batch;
}

void DataLoader::Worker::prepare(std::stop_token const& stop) {
  try {
    for (std::int64_t index = 0; index < batches(); ++index) {
      {
        std::unique_lock lock(mutex);
        if (!changed.wait(lock, stop, [&] { return std::cmp_less(ready.size(), options.prefetch); }) || stop.stop_requested()) return;
      }
      Batch batch = make(index);
      std::scoped_lock const lock(mutex);
      ready.push_back(std::move(batch));
      changed.notify_all();
    }
  } catch (...) {
    std::scoped_lock const lock(mutex);
    error = std::current_exception();
    changed.notify_all();
  }
}

// Batches that were made before the thread failed come first.
std::optional<Batch> DataLoader::Worker::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !ready.empty() || error; });
  if (ready.empty()) std::rethrow_exception(error);
  Batch batch = std::move(ready.front());
  ready.pop_front();
  changed.notify_all();
  return batch;
}

DataLoader::DataLoader(std::vector<Tensor> data, LoaderOptions options) {
  if (data.empty()) fail("data loader: no tensors are given");
  if (options.batch < 1) fail("data loader: the batch must have at least 1 row, not {}", options.batch);
  if (options.prefetch < 0) fail("data loader: prefetch must not be negative, but is {}", options.prefetch);
  for (std::size_t k = 0; k < data.size(); ++k) {
    if (!data[k].defined()) fail("data loader: tensor {} is undefined", k);
    if (data[k].rank() == 0) fail("data loader: tensor {} is {}, a scalar has no rows", k, ir::to_string(data[k].meta()));
    if (data[k].size(0) != data[0].size(0)) fail("data loader: tensor {} has {} rows, tensor 0 has {}", k, data[k].size(0), data[0].size(0));
    data[k] = tracer::contiguous(data[k]);
    (void)data[k].host();  // what a capture still owes is computed now
  }
  std::int64_t const rows = data[0].size(0);
  worker_.reset(new Worker{std::move(data), options, rows});
}
DataLoader::~DataLoader() = default;

std::int64_t DataLoader::size() const { return worker_->batches(); }

void DataLoader::start(std::int64_t epoch) {
  auto& worker = *worker_;
  worker.thread = {};  // asks the last epoch's to stop and waits for it
  worker.ready.clear();
  worker.error = nullptr;
  worker.taken = 0;
  worker.started = true;
  worker.order = order_of(worker.rows, worker.options.shuffle, worker.options.seed, epoch);
  if (worker.options.prefetch > 0) worker.thread = std::jthread([&worker](std::stop_token const& stop) { worker.prepare(stop); });
}

std::optional<Batch> DataLoader::next() {
  auto& worker = *worker_;
  if (!worker.started) fail("data loader: next() is called before start()");
  if (worker.taken == worker.batches()) return std::nullopt;
  auto batch = worker.options.prefetch > 0 ? worker.wait() : worker.make(worker.taken);
  ++worker.taken;
  return batch;
}

}  // namespace tenon::nn
