// Offsets for the values of a plan: blocks that work in place are one unit, units are placed first-fit in several orders, and the best layout is
// repaired by placing first what reached highest.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {
using base::fail;

std::string_view to_string(Arena arena) {
  static constexpr std::array<std::string_view, arenas> names{"persistent", "step", "communication"};
  return names[static_cast<std::size_t>(arena)];
}

namespace {
std::size_t index(int i) { return static_cast<std::size_t>(i); }
std::int64_t rounded(std::int64_t bytes, std::int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }
// Pairs of units that may be compared in all: what bounds the time of a plan, and the same on every machine.
constexpr std::int64_t effort = 5'000'000;

std::string name_of(std::span<Block const> blocks, int b) {
  return blocks[index(b)].name.empty() ? std::format("block {}", b) : std::format("block {} ({})", b, blocks[index(b)].name);
}

}  // namespace

// The block whose memory each takes; of several takers of one block the largest, of those the first.
std::vector<int> accepted(std::span<Block const> blocks) {
  std::vector<int> taken(blocks.size(), -1), taker(blocks.size(), -1);
  for (int b = 0; std::cmp_less(b, blocks.size()); ++b) {
    auto const& block = blocks[index(b)];
    if (block.instead_of < 0) continue;
    auto const& old = blocks[index(block.instead_of)];
    // A block that is written in the very step in which it would be taken has no moment of its own.
    bool const fits = old.arena == block.arena && old.last == block.first && old.first < old.last && block.bytes <= old.bytes && block.bytes > 0;
    int& rival = taker[index(block.instead_of)];
    if (!fits || (rival >= 0 && blocks[index(rival)].bytes >= block.bytes)) continue;
    if (rival >= 0) taken[index(rival)] = -1;
    rival = b, taken[index(b)] = block.instead_of;
  }
  return taken;
}

namespace {
// A chain of blocks that lie at one offset: each link is smaller than or as large as the one before it.
struct Unit {
  std::vector<int> blocks;  // in order of life
  int first = 0, last = 0;  // among the plan's own steps, numbered without gaps
  std::int64_t bytes = 0;   // of the first link
};

// First-fit among the units of one arena. Which placed units live beside a new one: those that are alive at its first step, found on the path of
// a tree over the steps, and those that begin later in its life, found by their first step.
class Packing {
 public:
  Packing(std::span<Block const> blocks, std::vector<Unit> const& units, std::span<int const> ends, int steps, std::int64_t alignment)
      : blocks_(blocks), units_(units), ends_(ends), steps_(std::bit_ceil(static_cast<unsigned>(std::max(steps, 1)))), alignment_(alignment) {
    spanning_.resize(2 * std::size_t{steps_}), starting_.resize(steps_), offset_.resize(units.size());
  }
  std::int64_t visits = 0;

  // The size of the arena when units are placed in this order; `offset(u)` until the next call.
  std::int64_t pack(std::span<int const> order) {
    for (auto& list : spanning_) list.clear();
    for (auto& list : starting_) list.clear();
    std::int64_t size = 0;
    for (int u : order) {
      offset_[index(u)] = lowest(units_[index(u)]);
      enter(u);
      size = std::max(size, offset_[index(u)] + units_[index(u)].bytes);
    }
    return size;
  }
  std::int64_t offset(int unit) const { return offset_[index(unit)]; }

 private:
  // What a chain holds at most in a stretch of its life: a link is followed by smaller ones only.
  std::int64_t height(Unit const& unit, int from) const {
    for (int b : unit.blocks)
      if (ends_[index(b)] >= from) return rounded(blocks_[index(b)].bytes, alignment_);
    return 0;
  }
  // The lowest gap, link by link: link k of `unit` may reach above a later, smaller life of a neighbour.
  std::int64_t lowest(Unit const& unit) {
    walls_.clear();
    auto const meet = [&](int other) {
      auto const& wall = units_[index(other)];
      ++visits;
      int const from = std::max(unit.first, wall.first);
      walls_.push_back({offset_[index(other)], offset_[index(other)] + height(wall, from), height(unit, from)});
    };
    for (unsigned at = steps_ + static_cast<unsigned>(unit.first); at > 0; at /= 2)
      for (int other : spanning_[at]) meet(other);
    for (int step = unit.first + 1; step <= unit.last; ++step)
      for (int other : starting_[index(step)]) meet(other);
    std::ranges::sort(walls_, {}, &Wall::from);
    std::int64_t place = 0;
    for (bool moved = true; moved;) {  // a wall that a small link passed under may stop it once it is moved up
      moved = false;
      for (auto const& wall : walls_)
        if (place < wall.to && wall.from < place + wall.height) place = wall.to, moved = true;
      if (same_height(unit)) break;
    }
    return place;
  }
  bool same_height(Unit const& unit) const {
    return unit.blocks.size() == 1 || blocks_[index(unit.blocks.back())].bytes == blocks_[index(unit.blocks[0])].bytes;
  }
  void enter(int u) {
    auto const& unit = units_[index(u)];
    starting_[index(unit.first)].push_back(u);
    for (unsigned from = steps_ + static_cast<unsigned>(unit.first), to = steps_ + static_cast<unsigned>(unit.last) + 1; from < to; from /= 2, to /= 2) {
      if (from % 2) spanning_[from++].push_back(u);
      if (to % 2) spanning_[--to].push_back(u);
    }
  }
  struct Wall {
    std::int64_t from, to, height;  // `height`: what the new unit holds while it meets this wall
  };
  std::span<Block const> blocks_;
  std::vector<Unit> const& units_;
  std::span<int const> ends_;
  unsigned steps_;
  std::int64_t alignment_;
  std::vector<std::vector<int>> spanning_, starting_;
  std::vector<std::int64_t> offset_;
  std::vector<Wall> walls_;
};

// All that place knows of one plan.
struct Plan {
  std::span<Block const> blocks;
  Layout& layout;
  std::vector<int> begins, ends;  // of each block, among steps without gaps
  int steps = 0;
  std::vector<int> names;  // what the plan calls its steps

  Plan(std::span<Block const> of, Layout& to) : blocks(of), layout(to), begins(of.size()), ends(of.size()) {
    for (auto const& block : blocks) names.push_back(block.first), names.push_back(block.last);
    std::ranges::sort(names);
    names.erase(std::ranges::unique(names).begin(), names.end());
    steps = static_cast<int>(names.size());
    auto const number = [&](int step) { return static_cast<int>(std::ranges::lower_bound(names, step) - names.begin()); };
    for (std::size_t b = 0; b < blocks.size(); ++b) begins[b] = number(blocks[b].first), ends[b] = number(blocks[b].last);
  }
  std::vector<Unit> units(Arena arena) const {
    std::vector<int> next(blocks.size(), -1);
    for (int b = 0; std::cmp_less(b, blocks.size()); ++b)
      if (layout.taken[index(b)] >= 0) next[index(layout.taken[index(b)])] = b;
    std::vector<Unit> list;
    for (int b = 0; std::cmp_less(b, blocks.size()); ++b) {
      if (blocks[index(b)].arena != arena || layout.taken[index(b)] >= 0 || blocks[index(b)].bytes == 0) continue;
      Unit unit{{}, begins[index(b)], 0, rounded(blocks[index(b)].bytes, layout.alignment)};
      for (int link = b; link >= 0; link = next[index(link)]) unit.blocks.push_back(link), unit.last = ends[index(link)];
      list.push_back(std::move(unit));
    }
    return list;
  }
  // Bytes alive at each of the plan's own steps.
  std::vector<std::int64_t> live(std::span<Unit const> list, bool always) const {
    std::vector<std::int64_t> change(index(steps) + 1, 0);
    for (auto const& unit : list) {
      int from = always ? 0 : unit.first;
      for (int b : unit.blocks) {
        auto const bytes = rounded(blocks[index(b)].bytes, layout.alignment);
        int const to = always ? steps : ends[index(b)] + 1;
        if (from < to) change[index(from)] += bytes, change[index(to)] -= bytes;
        from = std::max(from, to);
      }
    }
    change.pop_back();
    std::partial_sum(change.begin(), change.end(), change.begin());
    return change;
  }
  void settle(std::span<Unit const> list, std::span<std::int64_t const> offsets) {
    for (std::size_t u = 0; u < list.size(); ++u)
      for (int b : list[u].blocks) layout.offsets[index(b)] = offsets[u];
  }
  void persist(std::span<Unit const> list) {
    std::vector<std::int64_t> offsets;
    auto& size = layout.bytes[0];
    for (auto const& unit : list) offsets.push_back(std::exchange(size, size + unit.bytes));
    settle(list, offsets);
  }

  // Orders in which units are placed; each ends in the order of the plan.
  std::vector<std::vector<int>> orders(std::vector<Unit> const& list, std::span<std::int64_t const> alive) const {
    std::vector<std::int64_t> crowd;  // the most bytes alive in a unit's life: by a table of maxima of stretches of 2^k steps
    std::vector<std::vector<std::int64_t>> table{{alive.begin(), alive.end()}};
    for (std::size_t width = 1; 2 * width <= alive.size(); width *= 2) {
      std::vector<std::int64_t> next(alive.size() - 2 * width + 1);
      for (std::size_t s = 0; s < next.size(); ++s) next[s] = std::max(table.back()[s], table.back()[s + width]);
      table.push_back(std::move(next));
    }
    for (auto const& unit : list) {
      auto const k = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(unit.last - unit.first + 1)) - 1);
      crowd.push_back(std::max(table[k][index(unit.first)], table[k][index(unit.last) + 1 - (std::size_t{1} << k)]));
    }
    auto const life = [&](std::size_t u) { return std::int64_t{list[u].last} - list[u].first + 1; };
    using Key = std::array<std::int64_t, 2>;
    std::array<std::function<Key(std::size_t)>, 5> const keys{
        [&](std::size_t u) { return Key{-list[u].bytes, -life(u)}; },
        [&](std::size_t u) { return Key{-crowd[u], -list[u].bytes}; },
        [&](std::size_t u) { return Key{-life(u), -list[u].bytes}; },
        [&](std::size_t u) { return Key{-list[u].bytes / layout.alignment * life(u), list[u].first}; },
        [&](std::size_t u) { return Key{list[u].first, -list[u].bytes}; },
    };
    std::vector<std::vector<int>> made;
    for (auto const& key : keys) {
      std::vector<int> order(list.size());
      std::iota(order.begin(), order.end(), 0);
      std::vector<Key> by(list.size());
      for (std::size_t u = 0; u < list.size(); ++u) by[u] = key(u);
      std::ranges::stable_sort(order, {}, [&](int u) { return by[index(u)]; });
      made.push_back(std::move(order));
    }
    return made;
  }

  void pack(std::vector<Unit> const& list, std::size_t arena) {
    auto const alive = live(list, false);
    std::int64_t const bound = list.empty() ? 0 : std::ranges::max(alive);
    layout.bound[arena] = bound;
    if (list.empty()) return;
    Packing packing(blocks, list, ends, steps, layout.alignment);
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    std::vector<int> order;
    std::vector<std::int64_t> offsets(list.size());
    auto const attempt = [&](std::span<int const> with) {
      auto const size = packing.pack(with);
      if (size >= best) return false;
      best = size;
      for (std::size_t u = 0; u < list.size(); ++u) offsets[u] = packing.offset(static_cast<int>(u));
      return true;
    };
    for (auto& each : orders(list, alive)) {
      if (best == bound || packing.visits > effort) break;
      if (attempt(each)) order = std::move(each);
    }
    // Squeaky wheels: one after another of those that reach beyond the bound is placed first, whether or not that helps at once; after a while
    // without success from the best order again, with another wheel.
    auto kept = order;
    auto now = offsets;
    std::size_t fruitless = 0;
    for (std::size_t turn = 0; best > bound && packing.visits < effort; ++turn) {
      std::vector<std::size_t> high;
      for (std::size_t at = 0; at < order.size(); ++at)
        if (now[index(order[at])] + list[index(order[at])].bytes > bound) high.push_back(at);
      auto const raised = order.begin() + static_cast<std::ptrdiff_t>(high[(turn * 7 + turn / 16) % high.size()]);
      std::rotate(order.begin(), raised, raised + 1);
      if (attempt(order)) {
        kept = order, fruitless = 0;
      } else if (++fruitless % 24 == 0) {
        order = kept;
        (void)packing.pack(order);
      }
      for (std::size_t u = 0; u < list.size(); ++u) now[u] = packing.offset(static_cast<int>(u));
    }
    layout.bytes[arena] = best;
    settle(list, offsets);
  }
};

std::string megabytes(std::int64_t bytes) {
  if (bytes >= 1 << 20) return std::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
  return bytes >= 1 << 10 ? std::format("{:.2f} KiB", static_cast<double>(bytes) / (1 << 10)) : std::format("{} B", bytes);
}
}  // namespace

Layout place(std::span<Block const> blocks, std::int64_t alignment) {
  if (alignment < 1) fail("place: alignment {} is not positive", alignment);
  for (int b = 0; std::cmp_less(b, blocks.size()); ++b) {
    auto const& block = blocks[index(b)];
    if (block.bytes < 0) fail("place: {} has {} bytes", name_of(blocks, b), block.bytes);
    if (block.last < block.first) fail("place: {} is written at step {} and last read at step {}", name_of(blocks, b), block.first, block.last);
    if (block.instead_of >= 0 && (std::cmp_greater_equal(block.instead_of, blocks.size()) || block.instead_of == b))
      fail("place: {} may stand instead of block {}, there are {} others", name_of(blocks, b), block.instead_of, blocks.size() - 1);
  }
  Layout layout{.offsets = std::vector<std::int64_t>(blocks.size(), 0), .taken = accepted(blocks), .alignment = alignment};
  if (blocks.empty()) return layout;
  Plan plan(blocks, layout);
  std::vector<std::int64_t> all(index(plan.steps), 0);
  for (auto const arena : {Arena::persistent, Arena::step, Arena::communication}) {
    auto const list = plan.units(arena);
    auto const alive = plan.live(list, arena == Arena::persistent);
    for (std::size_t s = 0; s < all.size(); ++s) all[s] += alive[s];
    if (arena == Arena::persistent) {
      plan.persist(list);
      layout.bound[0] = layout.bytes[0];
    } else {
      plan.pack(list, static_cast<std::size_t>(arena));
    }
  }
  layout.peak_step = plan.names[static_cast<std::size_t>(std::ranges::max_element(all) - all.begin())];
  std::vector<char> given(blocks.size(), 0);  // at the peak step, to a block in its place: named once, by who holds more
  for (int b = 0; std::cmp_less(b, blocks.size()); ++b)
    if (int const old = layout.taken[index(b)]; old >= 0 && (blocks[index(b)].first == layout.peak_step || blocks[index(b)].arena == Arena::persistent))
      given[index(b)] = 1;
  for (int b = 0; std::cmp_less(b, blocks.size()); ++b) {
    auto const& block = blocks[index(b)];
    bool const alive = block.arena == Arena::persistent || (block.first <= layout.peak_step && layout.peak_step <= block.last);
    if (alive && block.bytes > 0 && !given[index(b)]) layout.holders.push_back(b);
  }
  std::ranges::stable_sort(layout.holders, std::greater{}, [&](int b) { return blocks[index(b)].bytes; });
  return layout;
}

void verify(std::span<Block const> blocks, Layout const& layout) {
  base::ensure(layout.offsets.size() == blocks.size() && layout.taken.size() == blocks.size(), "layout: another plan's");
  struct Life {
    int first, last, block;
  };
  std::array<std::vector<Life>, arenas> lives;
  int least = 0, most = 0;
  for (auto const& block : blocks) least = std::min(least, block.first), most = std::max(most, block.last);
  for (int b = 0; std::cmp_less(b, blocks.size()); ++b) {
    auto const& block = blocks[index(b)];
    auto const offset = layout.offsets[index(b)], size = layout.bytes[static_cast<std::size_t>(block.arena)];
    if (offset < 0 || offset % layout.alignment != 0 || offset + block.bytes > size)
      throw base::Bug(std::format("layout: {} of {} bytes lies at {} of an arena of {}", name_of(blocks, b), block.bytes, offset, size));
    bool const always = block.arena == Arena::persistent;
    if (block.bytes > 0) lives[static_cast<std::size_t>(block.arena)].push_back({always ? least : block.first, always ? most : block.last, b});
  }
  // Whether one is written into the other's place by leave of the plan: they then share one step, or in persistent memory one place for ever.
  auto const follows = [&](int later, int earlier) {
    auto const &now = blocks[index(later)], &old = blocks[index(earlier)];
    if (now.arena == Arena::persistent) {
      int link = later;
      while (link >= 0 && link != earlier) link = layout.taken[index(link)];
      return link == earlier;
    }
    return layout.taken[index(later)] == earlier && now.instead_of == earlier && now.first == old.last && old.first < old.last &&
           layout.offsets[index(later)] == layout.offsets[index(earlier)];
  };
  for (auto& list : lives) {
    std::ranges::sort(list, {}, &Life::first);
    std::vector<Life> alive;
    for (auto const& life : list) {
      std::erase_if(alive, [&](Life const& other) { return other.last < life.first; });
      auto const from = layout.offsets[index(life.block)], to = from + blocks[index(life.block)].bytes;
      for (auto const& other : alive) {
        auto const start = layout.offsets[index(other.block)], end = start + blocks[index(other.block)].bytes;
        if (from >= end || start >= to || follows(life.block, other.block) || follows(other.block, life.block)) continue;
        throw base::Bug(std::format("layout: {} at {} to {} lies over {} at {} to {}, both alive at step {}", name_of(blocks, life.block), from, to,
                                    name_of(blocks, other.block), start, end, life.first));
      }
      alive.push_back(life);
    }
  }
}

std::vector<std::int64_t> live_bytes(std::span<Block const> blocks, Layout const& layout, Arena arena) {
  if (blocks.empty()) return {};
  auto const begin = std::ranges::min(blocks, {}, &Block::first).first, end = std::ranges::max(blocks, {}, &Block::last).last + 1;
  std::vector<std::int64_t> change(index(end - begin) + 1, 0);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    auto const& block = blocks[b];
    bool const always = arena == Arena::persistent, inside = layout.taken[b] >= 0;
    if (block.arena != arena || (always && inside)) continue;
    int const from = always ? begin : block.first + inside, to = always ? end : block.last + 1;
    auto const bytes = rounded(block.bytes, layout.alignment);
    if (from < to) change[index(from - begin)] += bytes, change[index(to - begin)] -= bytes;
  }
  change.pop_back();
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

std::string report(std::span<Block const> blocks, Layout const& layout, std::size_t rows) {
  auto const ratio = [](std::int64_t size, std::int64_t bound) { return bound ? static_cast<double>(size) / static_cast<double>(bound) : 1.0; };
  std::string text = std::format("peak {}, lower bound {}, ratio {:.3f}, at step {}\n", megabytes(layout.peak()), megabytes(layout.lower_bound()),
                                 ratio(layout.peak(), layout.lower_bound()), layout.peak_step);
  for (std::size_t a = 0; a < arenas; ++a)
    if (layout.bytes[a])
      text += std::format("  {:13} {:>12}, lower bound {:>12}, ratio {:.3f}\n", to_string(static_cast<Arena>(a)), megabytes(layout.bytes[a]),
                          megabytes(layout.bound[a]), ratio(layout.bytes[a], layout.bound[a]));
  std::int64_t rest = 0;
  for (std::size_t k = 0; k < layout.holders.size(); ++k) {
    int const b = layout.holders[k];
    auto const& block = blocks[index(b)];
    if (k >= rows) {
      rest += block.bytes;
      continue;
    }
    auto const life = block.arena == Arena::persistent ? std::string("always") : std::format("{} to {}", block.first, block.last);
    text += std::format("  {:>12}  {:13} {:>12}  {}\n", megabytes(block.bytes), to_string(block.arena), life,
                        block.name.empty() ? std::format("block {}", b) : block.name);
  }
  if (layout.holders.size() > rows) text += std::format("  {:>12}  in {} others\n", megabytes(rest), layout.holders.size() - rows);
  return text;
}

}  // namespace tenon::fusion
