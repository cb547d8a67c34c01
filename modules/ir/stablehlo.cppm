/// The reader of StableHLO as MLIR text.
module tenon.ir:stablehlo;
import std;
import tenon.base;
import :hlo;
import :hlo_text;

namespace tenon::ir::hlo {

/// Recursive descent over one text; values of a function are numbered as they appear, regions included.
class StablehloReader {
 public:
  explicit StablehloReader(std::string_view text) : in_(text) {}
  Module module();

 private:
  // stablehlo_attribute.cpp
  Type type();
  std::vector<Type> types();  // one, or several in parentheses, which may bear attributes
  Literal dense();            // behind the word
  std::optional<Attribute> list();
  void value(Op& op, std::string const& key);
  void attributes(Op* op, std::string_view end);  // behind the opening bracket; of no op: passed over
  void convolution_dims(Op& op);

  // stablehlo_read.cpp
  void function();
  void block(Function& into);  // to its '}'
  void region(Function& into);
  void operation(Function& into);
  void pieces(Op& op);
  void generic(Op& op);
  void assigned(Op& op, std::string const& key);
  void types_of(Op& op, std::size_t results);
  void while_loop(Op& op);
  void reducer(Op& op);
  void applied(Op& op, std::string_view name);
  int use();
  void uses(std::vector<int>& into);
  std::string value_name();
  int define(std::string const& name, Type const& type);
  std::pair<int, Type> parameter();
  void scoped(std::function<void()> const& inside);
  void skip_location();

  Cursor in_;
  Module module_;
  std::unordered_map<std::string, std::vector<int>> values_;
  std::vector<std::pair<std::string, std::optional<std::vector<int>>>> undo_;  // names that the open scopes made, with what they hid
  std::vector<Type> types_;                                                    // of the function's values
  int depth_ = 0;
};

}  // namespace tenon::ir::hlo
