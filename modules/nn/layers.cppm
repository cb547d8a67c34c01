export module tenon.nn:layers;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

export namespace tenon::nn {
using tracer::Dim;
using tracer::DimList;
using tracer::Tensor;

// A layer is a struct of tensors with `fields`, made by a constructor that draws its weights from this thread's generator, and called like a function.
// B batch, T tokens, C features or channels, H W image.

/// y = x Wᵀ + b over the last dim; weight [out, in], bias [out]; both uniform in ±1/√in (PyTorch's default).
struct Linear {
  Tensor weight, bias;
  Linear() = default;
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true);
  Tensor operator()(Tensor const& x, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("bias", self.bias); }
};

/// [B, C, H, W] to [B, out, H', W']; weight [out, in / groups, kh, kw], both uniform in ±1/√(in / groups · kh · kw).
struct Conv2d {
  Tensor weight, bias;
  tracer::Window window;
  Conv2d() = default;
  Conv2d(std::int64_t in, std::int64_t out, DimList const& kernel, tracer::Window how = {}, bool with_bias = true);
  Tensor operator()(Tensor const& x, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("bias", self.bias); }
};

/// Rows of weight [rows, features] by i64 index; weight standard normal.
struct Embedding {
  Tensor weight;
  Embedding() = default;
  Embedding(std::int64_t rows, std::int64_t features);
  Tensor operator()(Tensor const& indices, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) { field("weight", self.weight); }
};

/// Normalises the last dim of size `features` to mean 0 and variance 1, then scales (ones) and shifts (zeros).
struct LayerNorm {
  Tensor weight, bias;
  double eps = 1e-5;
  LayerNorm() = default;
  explicit LayerNorm(std::int64_t features, double epsilon = 1e-5);
  Tensor operator()(Tensor const& x, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("bias", self.bias); }
};

/// What of a decoder-only transformer varies.
struct GptConfig {
  std::int64_t vocabulary = 64, context = 16, layers = 2, heads = 4, features = 32;
};
/// One pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)) with gelu in its tanh form and four times the features inside.
struct GptBlock {
  LayerNorm norm1, norm2;
  Linear qkv, projection, up, down;
  std::int64_t heads = 1;
  GptBlock() = default;
  explicit GptBlock(GptConfig const& config);
  Tensor operator()(Tensor const& x, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) {
    field("norm1", self.norm1), field("qkv", self.qkv), field("projection", self.projection), field("norm2", self.norm2), field("up", self.up), field("down", self.down);
  }
};
/// GPT-2's form: token plus position embedding, blocks, a final norm, and a head tied to the token embedding; [B, T] i64 to logits [B, T, vocabulary].
struct Gpt {
  GptConfig config;
  Embedding tokens, positions;
  std::vector<GptBlock> blocks;
  LayerNorm norm;
  Gpt() = default;
  explicit Gpt(GptConfig const& how);
  Tensor operator()(Tensor const& indices, base::At at = base::At::current()) const;
  static void fields(auto& self, auto&& field) { field("tokens", self.tokens), field("positions", self.positions), field("blocks", self.blocks), field("norm", self.norm); }
};

/// Every parameter of a model with its path ("blocks[0].qkv.weight"), undefined tensors left out.
template <class Model>
std::vector<std::pair<std::string, Tensor>> named_parameters(Model& model) {
  auto list = tracer::named_tensors(model);
  std::erase_if(list, [](auto const& entry) { return !entry.second.defined(); });
  return list;
}
template <class Model>
std::vector<Tensor> parameters(Model& model) {
  std::vector<Tensor> list;
  for (auto& [name, tensor] : named_parameters(model)) list.push_back(tensor);
  return list;
}

}  // namespace tenon::nn
