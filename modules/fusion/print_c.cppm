/// Prints loop nests as C.
module tenon.fusion:print_c;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :c_text;

namespace tenon::fusion {

/// A kernel's functions, NAME and, where there are partial results, NAME_finish and NAME_apply:
/// void NAME(char *const *b, const tn_i64 *n, const double *q, tn_i64 lo, tn_i64 hi, tn_i64 from, tn_i64 to, char *scratch, char *part)
/// runs items [lo, hi) of the outer axes and, where columns may be cut, [from, to) of the first inner axis;
/// void NAME_finish(char *const *b, const tn_i64 *n, const double *q, tn_i64 item, char *part, tn_i64 chunks, tn_i64 stride)
/// finishes one item (a batch index, or a row of `split`) from the partial results of its chunks, `stride` bytes apart, into those of the first;
/// void NAME_apply(char *const *b, const tn_i64 *n, const double *q, tn_i64 item, tn_i64 from, tn_i64 to, char *part)
/// runs the second pass of `split` over columns [from, to) of one row, with what NAME_finish left.
/// A kernel with indices finds the address of an int behind its buffers and sets it to 1 where an index is out of range; it then reads place 0, which must
/// exist.
/// Outputs of `stream_from` bytes are written past the caches.
std::int64_t stream_from();
std::string c_text(Kernel const& kernel, std::int64_t stream_from = fusion::stream_from());
/// Whether it gathers or checks an index in another way.
bool has_indices(Kernel const& kernel);

/// How a kernel's axes are cut: the first `outer` run as flattened items, the others inside.
int outer_axes(Kernel const& kernel);
/// Whether it leaves partial results: rows that are summed, or columns that are cut.
bool has_partials(Kernel const& kernel);
/// Whether chunks of columns run a second pass, with what the rows' partial results make.
bool has_second_pass(Kernel const& kernel);
/// The reductions behind them, as steps; each has one partial element, or one a column.
std::vector<int> partial_steps(Kernel const& kernel);
bool partial_per_column(Kernel const& kernel, int step);
/// What each row reads side by side from a place of its own, once each: of a kernel with one axis of columns.
std::vector<Access> row_streams(Kernel const& kernel);
/// Bytes of a partial result or a row buffer of so many elements of 8 (4) bytes.
inline std::int64_t rounded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
/// Bytes of an element of a kept step's row buffer.
int kept_bytes(Step const& step);

}  // namespace tenon::fusion
