module tenon.fusion:elements;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :c_types;

namespace tenon::fusion {
using base::DType;
using ir::Dim;

/// Prints single steps of a loop nest as C: sizes, accesses, elements, what reductions add. `vK` is the value of step K, `iA` the index along axis A.
class Elements {
 protected:
  explicit Elements(Kernel const& kernel);
  Kernel const& kernel_;
  int outer_;
  std::string text_;
  int depth_ = 0;

  inline void line(std::string const& words) {
    text_.append(static_cast<std::size_t>(2 * depth_), ' ');
    text_ += words + "\n";
  }
  inline void open(std::string const& words) { line(words), ++depth_; }
  inline void close() { --depth_, line("}"); }
  inline Step const& step(int k) const { return kernel_.steps[static_cast<std::size_t>(k)]; }
  inline int axes() const { return static_cast<int>(kernel_.axes.size()); }
  inline bool inner(int k) const { return (step(k).level & over_columns) != 0; }

  std::string dim(Dim d) const;
  std::string number(ir::Scalar const& s, DType compute) const;
  std::string product(int first, int last) const;
  /// The place of a point among all inner ones.
  std::string place() const;
  std::string offset(Access const& access, int first, int last, bool constant) const;
  void base_pointer(Access const& access, std::string const& name, bool read);
  std::string element(Access const& access, std::string const& name) const;
  static std::string converted(std::string_view by, std::string const& text);
  std::string value(int k, DType compute) const;
  /// Whether it is exp(x - max(x)), as in softmax: of nothing above 0.
  bool is_exp_down(Step const& s) const;
  std::string expression(int k) const;
  void define(int k);
  void combine(Step const& s, std::string const& holder, std::string const& entry);
  std::string entry(Step const& s) const;
  std::string left(Step const& s, std::string const& holder) const;
  void store(Store const& s, std::string const& place);
};

}  // namespace tenon::fusion
