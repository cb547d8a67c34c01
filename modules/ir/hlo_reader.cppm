/// The reader of HLO's text.
module tenon.ir:hlo_reader;
import std;
import tenon.base;
import :hlo;
import :hlo_text;

namespace tenon::ir::hlo {

/// One instruction's types or values: an array's, or a tuple's of arrays (tuples in tuples are refused).
template <class T>
struct Bundle {
  std::vector<T> items;
  bool tuple = false;
};

/// Recursive descent over one text: computations become functions, or regions of the operations that name them.
class HloReader {
 public:
  explicit HloReader(std::string_view text) : in_(text) {}
  Module module();

 private:
  struct Instruction {
    Op op;
    std::string opcode;
    Bundle<Type> types;
    std::vector<Bundle<int>> operands;
    std::multimap<std::string, std::string, std::less<>> called;  // computations by the attribute that names them
    std::int64_t index = -1;                                      // of get-tuple-element and parameter
  };
  struct Computation {
    Function function;
    int values = 0;
    int line = 0;
  };
  struct Parameter {
    std::string name;
    Bundle<Type> types;
    std::vector<int> values;
  };

  void computation(bool entry);
  void instruction();
  Bundle<Type> types();
  Type type();
  std::string name();
  void constant(Instruction& made);
  void operands(Instruction& made);
  void attribute(Instruction& made, std::string const& key);
  std::vector<std::int64_t> braced(), crossed();
  void window(Instruction& made);
  void dim_labels(Op& op);
  void slice(Op& op);
  void padding(Op& op);
  Bundle<int> finish(Instruction& made);
  Bundle<int> take(Instruction& made);
  void regions(Instruction& made);
  Function instance(std::string const& name, std::optional<std::vector<int>> const& given);
  int value(Type const& type);

  Cursor in_;
  Module module_;
  std::map<std::string, Computation, std::less<>> computations_;
  Function made_;  // the computation being read
  std::vector<Type> types_;
  std::unordered_map<std::string, Bundle<int>> names_;
  std::map<std::int64_t, Parameter> parameters_;
  std::int64_t copied_ = 0;
  bool rooted_ = false;
};

}  // namespace tenon::ir::hlo
