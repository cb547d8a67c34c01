/// What the interpreter runs: a kernel with this call's sizes, as lists of instructions over slots.
module tenon.fusion:machine;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :blocks;
import :online;

namespace tenon::fusion {

/// One block operation: `out` and `in` are slots.
struct Instruction {
  enum class Do : std::uint8_t {
    load,       ///< of step `number`
    index,      ///< the coordinate of step `number`
    op,         ///< `block`
    call,       ///< the element function of step `number`
    convert,    ///< in[0], held as `from`, as `lane`
    settle,     ///< rounds `out` to `dtype`
    kept,       ///< reads the row buffer of step `number`
    keep,       ///< writes it from in[0]
    total,      ///< the value of reduction `number`
    totals,     ///< those of a reduction with one a column
    fold,       ///< in[0] into total `number`
    fold_each,  ///< in[0] into totals `number`
    store,      ///< in[0] by store `number`
    pivot,      ///< what reduction `number`, carried along, reads by now of its lead
    move,       ///< what it has summed, to that
  };
  Do what;
  int number = -1;
  Lane lane = Lane::f32, from = Lane::f32;
  base::DType dtype = base::DType::f32;
  int out = -1;
  std::array<int, 3> in{-1, -1, -1};
  OpBlock block = nullptr;
};

/// What a row does: for each pass, values of the row, then those of its columns.
struct Stage {
  std::vector<Instruction> row, columns;
};

/// An access with plain numbers.
struct Where {
  std::int64_t offset = 0, index_stride = 0, index_size = 0;
  std::vector<std::int64_t> outer{}, inner{};  ///< strides of batch and row axes, and of merged column axes
  int index_slot = -1, guard_slot = -1;        ///< whole numbers
  base::DType dtype = base::DType::f32;
  std::byte* memory = nullptr;
  bool needed = false;
};
struct Slot {
  Lane lane = Lane::f32;
  std::int64_t offset = 0;
  bool spread = false;            ///< a row's value that its columns read: repeated over a block
  std::optional<Total> constant;  ///< a number
};

/// A kernel made ready.
struct Machine {
  Kernel const& kernel;
  std::vector<std::int64_t> outer{};    ///< sizes of batch and row axes
  std::vector<std::int64_t> columns{};  ///< of merged column axes
  std::vector<int> column_of{};         ///< per axis: its merged one, -1 for outer ones
  std::int64_t batches = 1, rows = 1, width = 1;
  std::vector<Where> places{};                      ///< loads by step, then stores
  std::vector<Lane> lanes{};                        ///< per step
  std::vector<std::array<double, 8>> attributes{};  ///< per step
  std::vector<Carried> carried{};                   ///< per step, of reductions that are carried along
  std::vector<Slot> slots{};
  std::int64_t slot_bytes = 0;
  std::vector<Stage> main{}, finish{};
  std::vector<int> row_folds{};  ///< reductions over rows
};
/// Error or Bug as interpret and verify have them.
Machine machine_of(Kernel const& kernel, std::span<std::byte* const> buffers, std::span<std::int64_t const> parameters,
                   std::span<double const> real_parameters);
/// The lane of a dtype's elements.
Lane lane_of_dtype(base::DType dtype);
inline std::int64_t lane_bytes(Lane lane) { return lane == Lane::f32 ? 4 : 8; }
inline bool over_each_column(Kernel const& kernel, int reduction) { return (kernel.steps[static_cast<std::size_t>(reduction)].level & over_columns) != 0; }

}  // namespace tenon::fusion
