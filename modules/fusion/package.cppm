/// Programs as libraries of C that need nothing of Tenon.
export module tenon.fusion:package;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::fusion {

/// Where a package goes and what things are called in it.
struct PackageOptions {
  std::filesystem::path folder{};
  std::string name = "model";                    ///< of its files and of its functions in C
  std::vector<std::string> inputs{}, outputs{};  ///< names for people; empty: the graph's, and "output0" …
  std::vector<std::string> flags{};              ///< for the compiler, behind the usual ones, as "-march=x86-64-v3" for other machines
};
/// The files of a package, and figures on it.
struct Package {
  std::filesystem::path header, source, library, weights;
  int kernels = 0, launches = 0;   ///< kernels of different form, and what a run does: kernels and calls
  std::int64_t weight_bytes = 0;   ///< elements of the weights
  std::int64_t working_bytes = 0;  ///< what a model holds beside them
  double compile_seconds = 0;
};
/// Writes NAME.h, NAME.c (the kernels, calls as plain C, a run of them in order on one thread), libNAME.so and weights.safetensors; docs/package.md.
/// `weights` has an entry for each input of the graph: the elements of a weight, or no data for an input that every run gives. Error naming what a
/// package can't have: an open size, an op for which there is no C, a write into an input, an output that nothing computes.
Package write_package(ir::Graph const& graph, std::span<ir::Strided const> weights, PackageOptions const& options);

}  // namespace tenon::fusion
