export module tenon.nn:data;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

export namespace tenon::nn {
using tracer::Tensor;

/// A table of numbers read from text: rows × columns, row-major.
struct Table {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;
};
/// Reads comma separated numbers, one row a line, all of one length; Error naming file, line and column for a missing file, a row of another
/// length, an empty field or one that is no number.
Table read_csv(std::filesystem::path const& file);

/// Text as tokens: the vocabulary is the set of bytes that occur, in order.
struct Characters {
  std::string vocabulary;
  std::vector<std::int64_t> tokens;
};
/// Reads a whole file as characters; Error naming the file if it can't be read or is empty.
Characters read_characters(std::filesystem::path const& file);

/// One mini-batch: rows of every tensor of the data set, in the order of the shuffle.
using Batch = std::vector<Tensor>;

struct LoaderOptions {
  std::int64_t batch = 32;
  bool shuffle = true, drop_last = false;
  std::uint64_t seed = 0;
  int prefetch = 2;  ///< batches that a thread prepares ahead; 0: none, on the caller's thread
};

/// Batches of a data set whose tensors share their first size; the order of epoch e depends on (seed, e) alone.
class DataLoader {
 public:
  DataLoader(std::vector<Tensor> data, LoaderOptions options);
  ~DataLoader();
  DataLoader(DataLoader const&) = delete;
  DataLoader& operator=(DataLoader const&) = delete;
  /// Batches an epoch.
  std::int64_t size() const;
  /// Starts epoch `epoch`; batches still waiting from an earlier one are dropped.
  void start(std::int64_t epoch);
  /// The next batch; nothing at the end of the epoch. An error of the preparing thread is thrown here.
  std::optional<Batch> next();

 private:
  struct Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace tenon::nn
