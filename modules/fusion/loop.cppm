export module tenon.fusion:loop;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::fusion {

/// The parts of an iteration space. A kernel runs, for each batch index, over rows; for each row, in passes, over columns.
enum class Role : std::uint8_t { batch, row, column };
/// Sets of roles: what a value varies over, or what a reduction takes away.
using Roles = std::uint8_t;
inline constexpr Roles over_batch = 1, over_rows = 2, over_columns = 4, over_all = 7;
inline Roles roles_of(Role role) { return static_cast<Roles>(1u << static_cast<unsigned>(role)); }

/// An axis of the iteration space; axes stand in order batch, row, column, the innermost last.
struct Axis {
  ir::Dim size;
  Role role = Role::column;
};

/// The element of a buffer that belongs to a point: offset + sum of index[axis] * stride[axis], in elements.
struct Access {
  int buffer = -1;  ///< place in Kernel::buffers
  ir::Dim offset{};
  ir::Dims strides{};  ///< one an axis
  int index = -1;      ///< a step whose whole number, in [0, index_size), times `index_stride` is added (gather)
  ir::Dim index_stride{}, index_size{};
  int guard = -1;  ///< a boolean step: where it is false nothing is read and the value is 0
};

/// One value of the loop body, in single-assignment form; steps stand in an order in which they can be computed.
struct Step {
  enum class Kind : std::uint8_t { load, number, index, op, reduce };
  Kind kind = Kind::op;
  base::DType dtype = base::DType::f32;  ///< of the value; small floats are held as f32 and rounded by `to` and by stores only
  Roles level = 0;                       ///< what it varies over
  int pass = 0;       ///< of the row's passes, the first in which it can be computed (a reduction over columns: one after its operand's, or that of `with`)
  bool keep = false;  ///< a point value that later passes read from a row buffer instead of computing it again
  ir::OpDef const* op = nullptr;             ///< op: a pointwise row with a source text
  base::InlineVector<std::int32_t, 4> in{};  ///< op, reduce: steps
  ir::Attrs attrs{};
  ir::Scalar number{};                    ///< number
  Access access{};                        ///< load
  int axis = -1;                          ///< index: the coordinate along this axis, i64
  ir::Monoid combine = ir::Monoid::none;  ///< reduce: sum, prod, max or min (NaN wins)
  Roles over = 0;                         ///< reduce: over_columns, over_rows or both
  int with = -1;                          ///< reduce: carried along in the walk of this reduction, which its terms read (online.cpp); -1: in a walk of its own
};

/// The op of a step that is an index, and out of range where it does not lie in [0, size): (index, size) -> index. Such a step, and a load that gathers,
/// has the name of the call that checks so in attrs.text.
extern ir::OpDef const checked_index;

/// Writes a step's value; its level must be all that the access varies over.
struct Store {
  int step = -1;
  Access to{};
};

/// Memory that a kernel reads or writes.
struct Argument {
  base::DType dtype = base::DType::f32;
  bool written = false;
  std::string name{};  ///< of the graph's value, for printed forms
};

/// How a kernel's space is walked.
enum class Form : std::uint8_t {
  pointwise,  ///< no reductions: any split
  row,        ///< rows on threads, a row's passes one after another; sums over rows as partial results of chunks of rows, then finished in order
  split,      ///< few rows: the columns are cut in chunks with partial results, then finished in order; what is left of a second pass runs over chunks again
  online,     ///< as row, where reductions are carried along with others, so that there are fewer passes
};
struct Schedule {
  Form form = Form::pointwise;
  int ahead = -1;  ///< row: the pass, the longest one, during which the elements of the next row are fetched from memory; -1: none
};

/// One loop nest over a space: what device-neutral fusion makes and printers for C, CUDA and the interpreter read.
struct Kernel {
  std::string name = "kernel";
  std::vector<Axis> axes;
  std::vector<Argument> buffers;
  std::vector<Step> steps;
  std::vector<Store> stores;
  Schedule schedule{};
  std::vector<ir::Dim> parameters{};          ///< symbolic sizes, offsets and numbers that the caller evaluates and passes, whole ones
  std::vector<ir::Scalar> real_parameters{};  ///< and real ones
  std::vector<std::string> origin{};          ///< "%5 = gelu  model.cpp:41", a line a node
};

/// How many passes over the columns a row takes.
int passes(Kernel const& kernel);
/// The type that an op's element is computed in: f32, f64 or i64.
base::DType compute_type(Kernel const& kernel, Step const& step);
/// Loads, ops and stores in their passes, one line each.
std::string to_string(Kernel const& kernel, ir::Symbols const* symbols = nullptr);
/// Bytes that one run reads and writes, and FLOPs, with this run's sizes.
ir::Cost cost(Kernel const& kernel);
/// Structure, order, levels, passes and form; Bug naming the step otherwise.
void verify(Kernel const& kernel);

}  // namespace tenon::fusion
