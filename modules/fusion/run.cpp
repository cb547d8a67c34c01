// Running kernels: how their items are cut for threads, and where partial results lie.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :run;

namespace tenon::fusion {

char* thread_memory(std::int64_t bytes, int which) {
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  thread_local std::array<std::pair<std::unique_ptr<char, Free>, std::int64_t>, 3> held;
  auto& [memory, size] = held[static_cast<std::size_t>(which)];
  if (size < bytes) {
    memory.reset(static_cast<char*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t{64})));
    size = bytes;
  }
  return memory.get();
}

void run_rows(Entry const& entry, Prepared& l, Whole low, Whole high) {
  entry.main(l.buffers.data(), l.whole.data(), l.real.data(), low, high, 0, l.first_columns, l.scratch ? thread_memory(l.scratch) : nullptr, nullptr);
}

void run_kernel(Kernel const& kernel, Entry const& entry, Prepared& l) {
  auto const threads = static_cast<Whole>(device::threads());
  bool const alone = threads == 1 || l.items * l.columns < 4 * l.grain;  // sooner done than shared
  if (l.region == 0) {
    bool const by_columns = kernel.schedule.form == Form::pointwise && l.items < threads;
    Whole const total = by_columns ? l.first_columns : l.items;
    Whole const shares = alone ? 1 : std::max<Whole>(1, std::min({total, 4 * threads, l.items * l.columns / l.grain}));
    auto const share = [&](std::int64_t k, int) {
      Whole low = total * k / shares, high = total * (k + 1) / shares;
      if (by_columns) {  // whole cache lines a thread
        low = low / 64 * 64, high = k + 1 == shares ? high : high / 64 * 64;
        entry.main(l.buffers.data(), l.whole.data(), l.real.data(), 0, l.items, low, high, nullptr, nullptr);
      } else {
        run_rows(entry, l, low, high);
      }
    };
    if (shares == 1) return share(0, 0);
    return device::parallel(shares, share);
  }
  Whole const parts = l.batches * l.chunks;
  char* const memory = thread_memory(parts * l.region, 1);
  bool const split = kernel.schedule.form == Form::split;
  auto const from = [&](Whole g) { return l.first_columns * g / l.chunks; };
  auto const part = [&](std::int64_t k, int) {
    Whole const batch = k / l.chunks, g = k % l.chunks;
    char* const scratch = l.scratch ? thread_memory(l.scratch) : nullptr;
    Whole const low = split ? batch : batch * l.rows + l.rows * g / l.chunks, high = split ? batch + 1 : batch * l.rows + l.rows * (g + 1) / l.chunks;
    entry.main(l.buffers.data(), l.whole.data(), l.real.data(), low, high, split ? from(g) : 0, split ? from(g + 1) : l.first_columns, scratch,
               memory + k * l.region);
  };
  auto const each_part = [&](auto const& f) {
    if (!alone) return device::parallel(parts, f);
    for (Whole k = 0; k < parts; ++k) f(k, 0);
  };
  each_part(part);
  for (Whole batch = 0; batch < l.batches; ++batch)
    entry.finish(l.buffers.data(), l.whole.data(), l.real.data(), batch, memory + batch * l.chunks * l.region, l.chunks, l.region);
  if (!entry.apply) return;
  each_part([&](std::int64_t k, int) {
    Whole const row = k / l.chunks, g = k % l.chunks;
    entry.apply(l.buffers.data(), l.whole.data(), l.real.data(), row, from(g), from(g + 1), memory + row * l.chunks * l.region);
  });
}

void run_call(ir::OpDef const& op, Prepared& l) {
  if (!l.engine) return library_call(op, l.in, l.scalars, l.attrs, l.out);
  auto product = gemm_of(l.in[0], l.in[1], l.out[0]);
  product.engine = l.engine;
  gemm(product);
}

namespace {
// Blocks of rows for what comes behind them: each copies the right operand once more, so they are as large as their rows stay near.
Tiling joined_tiling(Gemm const& call) {
  auto tiling = fusion::tiling(call, device::threads(), Cut::whole_rows);
  constexpr std::int64_t near = 1 << 20;  // elements
  tiling.rows = std::min(tiling.rows, std::max<std::int64_t>(near / std::max<std::int64_t>(call.n, 1), 128));
  return tiling;
}
}  // namespace

bool joined_pays(Prepared const& product) {
  auto const call = gemm_of(product.in[0], product.in[1], product.out[0]);
  auto const copied = [&](Tiling const& cut) {  // elements of both operands, by all threads
    return tiles(call, cut) * (std::min(cut.rows, call.m) + std::min(cut.columns, call.n)) * call.k;
  };
  return copied(joined_tiling(call)) <= copied(fusion::tiling(call, device::threads())) + entries(call) * call.m * call.n;  // reading the result once more
}

void run_matmul(Prepared& product, Entry const& behind, Prepared& launch) {
  auto call = gemm_of(product.in[0], product.in[1], product.out[0]);
  call.engine = product.engine;
  auto const tiling = joined_tiling(call);
  device::parallel(tiles(call, tiling), [&](std::int64_t k, int) {
    auto const part = tile(call, tiling, k);
    gemm(call, part);
    run_rows(behind, launch, part.entry * call.m + part.row, part.entry * call.m + part.row + part.rows);
  });
}

}  // namespace tenon::fusion
