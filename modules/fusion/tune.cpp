// max_autotune: candidates, timed with the sizes of this run within a budget. What is chosen is text; a plan made with it is the same everywhere.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :choose;
import :execute;
import :run;

namespace tenon::fusion {
namespace ops = ir::ops;
using Clock = std::chrono::steady_clock;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
constexpr double worth = 0.95;  // of the time before: less than that is noise

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A compiled program on inputs of its own.
class Timed {
 public:
  explicit Timed(Program program) : executor_(std::move(program)) {
    auto const& graph = executor_.program().grouping.graph;
    for (int const input : graph.inputs) add_input(*graph.values[at(input)].meta);
    frame_ = executor_.frame({});
    executor_.attach(*frame_, inputs_, outputs_);
    run();
  }
  Program const& program() const { return executor_.program(); }
  Frame const& frame() const { return *frame_; }
  void run() {
    for (std::size_t l = 0; l < program().launches.size();) l += executor_.launch(*frame_, l);
  }
  // The least of a few runs.
  double whole() {
    return least([&] { run(); });
  }
  // Of launches [first, last), a launch's time with the kernel that runs on its rows. Launches of one kernel with equal sizes are timed once.
  double launches(std::size_t first, std::size_t last) {
    std::string name;
    for (auto l = first; l < last; ++l) {
      auto const& launch = program().launches[l];
      if (launch.node >= 0) name += std::format("call {} ", l);
      if (launch.node < 0) name += std::format("kernel {} ", launch.kernel);
      for (auto const number : frame_->sizes.launches[l].whole) name += std::format("{} ", number);
    }
    auto const [known, fresh] = known_.try_emplace(name, 0);
    if (fresh)
      known->second = least([&] {
        for (auto l = first; l < last;) l += executor_.launch(*frame_, l);
      });
    return known->second;
  }

 private:
  static double least(auto f) {
    double best = std::numeric_limits<double>::infinity();
    auto const start = Clock::now();
    for (int k = 0; k < 5 || (k < 50 && seconds_since(start) < 2e-3); ++k) {
      auto const begin = Clock::now();
      f();
      best = std::min(best, seconds_since(begin));
    }
    return best;
  }
  // Small positive numbers, and whole numbers that are places of anything.
  void add_input(ir::Meta const& meta) {
    auto const sizes = ir::values(meta.sizes), strides = ir::values(meta.strides);
    std::int64_t low = 0, high = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) (strides[d] < 0 ? low : high) += (std::max<std::int64_t>(sizes[d], 1) - 1) * strides[d];
    auto const bytes = base::bytes_of(meta.dtype);
    auto const& memory = memory_.emplace_back(base::make_ref<base::Buffer>((high - low + 1) * bytes));
    std::memset(memory->data(), 0, static_cast<std::size_t>(memory->bytes()));
    if (base::is_real(meta.dtype))
      for (std::int64_t i = 0; i <= high - low; ++i) base::store_real(meta.dtype, memory->data() + i * bytes, 0.25 + static_cast<double>(i * 37 % 64) / 128);
    inputs_.push_back({memory->data() - low * bytes, meta.dtype, sizes, strides});
  }
  Executor executor_;
  std::vector<base::Ref<base::Buffer>> memory_, outputs_;
  std::vector<ir::Strided> inputs_;
  std::unique_ptr<Frame> frame_;
  std::map<std::string, double> known_;
};

class Tuning {
 public:
  Tuning(ir::Graph const& graph, LowerOptions const& options) : graph_(graph), options_(options) { options_.mode = Mode::normal; }
  Choices run() {
    auto fused = timed({});
    groups(fused);
    kernels(*fused);
    products(*fused);
    return std::move(chosen_);
  }

 private:
  bool over() const { return seconds_since(start_) > options_.tune_seconds; }
  std::unique_ptr<Timed> timed(Choices const& more) const {
    auto options = options_;
    options.choices = chosen_;
    for (auto const& [name, value] : more) options.choices[name] = value;
    return std::make_unique<Timed>(plan(graph_, options));
  }
  // How far to fuse; then, of the groups, those whose nodes are faster by themselves.
  void groups(std::unique_ptr<Timed>& best) {
    double least = best->whole();
    std::unique_ptr<Timed> single;
    for (auto const name : group_choices().subspan(1)) {
      if (over()) return;
      auto other = timed({{"group", std::string(name)}});
      double const time = other->whole();
      if (name == group_choices().back()) single = std::move(other);
      if (time >= worth * least) continue;
      least = time;
      chosen_["group"] = name;
    }
    if (!chosen_.empty()) {
      best = timed({});
    } else if (auto const nodes = slower_together(*best, *single); !nodes.empty() && !over()) {
      auto other = timed({{"apart", nodes}});
      if (other->whole() >= worth * least) return;
      chosen_["apart"] = nodes;
      best = std::move(other);
    }
  }
  static std::string slower_together(Timed& fused, Timed& single) {
    std::string nodes;
    auto const &grouping = fused.program().grouping, &alone = single.program().grouping;
    std::vector<int> launch_of(alone.groups.size(), -1);
    for (std::size_t l = 0; l < single.program().launches.size(); ++l) launch_of[at(single.program().launches[l].group)] = static_cast<int>(l);
    for (std::size_t l = 0; l < fused.program().launches.size(); ++l) {
      auto const& group = grouping.groups[at(fused.program().launches[l].group)];
      if (group.call || group.nodes.size() < 2) continue;
      double apart = 0;
      for (int const n : group.nodes) {
        int const g = alone.group_of[at(n)];
        if (int const own = g < 0 ? -1 : launch_of[at(g)]; own >= 0) apart += single.launches(at(own), at(own) + 1);
      }
      if (apart < worth * fused.launches(l, l + 1))
        for (int const n : group.nodes) nodes += std::format("{}{}", nodes.empty() ? "" : " ", n);
    }
    return nodes;
  }
  // How each kernel is walked: all variants of one number are compiled together.
  void kernels(Timed& base) {
    auto const& launches = base.program().launches;
    for (std::size_t round = 0; !over(); ++round) {
      Choices more;
      for (std::size_t l = 0; l < launches.size(); ++l) {
        if (launches[l].node >= 0) continue;
        auto const variants = variants_of(base.program().kernels[at(launches[l].kernel)]);
        if (round < variants.size()) more[std::format("kernel {}", l)] = variants[round];
      }
      if (more.empty()) break;
      auto const other = timed(more);
      for (std::size_t l = 0; l < launches.size(); ++l)
        if (auto const found = more.find(std::format("kernel {}", l)); found != more.end() && !follows(launches, l) && !follows(other->program().launches, l))
          if (other->launches(l, l + 1) < worth * base.launches(l, l + 1)) chosen_.insert(*found);
    }
  }
  static bool follows(std::vector<Launch> const& launches, std::size_t l) { return l > 0 && launches[l - 1].with_next; }
  // Who computes each product, and whether the kernel behind it runs on its rows.
  void products(Timed& base) {
    auto const& program = base.program();
    Choices apart;
    for (std::size_t l = 0; l < program.launches.size() && !over(); ++l) {
      auto const& launch = program.launches[l];
      if (launch.node < 0 || program.grouping.graph.nodes[at(launch.node)].op != &ops::matmul) continue;
      auto const& prepared = base.frame().sizes.launches[l];
      auto const product = gemm_of(prepared.in[0], prepared.in[1], prepared.out[0]);
      if (auto const engine = fastest(product); engine != preferred(product.dtype)) chosen_[std::format("gemm {}", l)] = name_of(engine);
      if (launch.with_next) apart[std::format("rows {}", l)] = "apart";
    }
    if (apart.empty() || over()) return;
    auto const joined = timed({}), other = timed(apart);
    for (std::size_t l = 0; l < program.launches.size(); ++l)
      if (auto const found = apart.find(std::format("rows {}", l)); found != apart.end())
        if (other->launches(l, l + 2) < worth * joined->launches(l, l + 2)) chosen_.insert(*found);
  }

  ir::Graph const& graph_;
  LowerOptions options_;
  Clock::time_point start_ = Clock::now();
  Choices chosen_;
};
}  // namespace

Choices tune(ir::Graph const& graph, LowerOptions const& options) { return Tuning(graph, options).run(); }

}  // namespace tenon::fusion
