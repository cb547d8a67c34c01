// base: numbers, shapes, memory, files — what every other module stands on.
//
// Run it:  ninja -C build && ./build/samples/m_base
//
// Nothing here knows what a tensor is. The module answers smaller questions: how is a number stored, where does the next random one come from,
// who holds how many bytes, and what lies in that file?
import std;
import tenon.base;
#include "lesson.h"
using namespace tenon::base;

namespace {

// 1. Twelve element types, one table.
// A dtype is a row of facts; promotion (what an f16 plus an i64 gives) follows from the category first and the size second.
void dtypes() {
  heading("dtypes");
  for (int i = 0; i < dtype_count; ++i) {
    DTypeInfo const& row = info(static_cast<DType>(i));
    std::cout << std::format("{:7} {:14} {:8} {} bytes\n", row.name, row.torch_name, row.file_name, row.bytes);
  }
  std::cout << "f16 with i64  -> " << info(promote(DType::f16, DType::i64)).name << '\n';
  std::cout << "f16 with bf16 -> " << info(promote(DType::f16, DType::bf16)).name << '\n';
  std::cout << "i8 with u8    -> " << info(promote(DType::i8, DType::u8)).name << '\n';
}

// 2. Rounding.
// A double goes to a small float in one step, to the nearest value, and to the even one when two are as near. Read a row from left to right
// and watch precision go: bf16 keeps f32's range, f16 keeps more digits and ends at 65504, the two f8 keep three bits or two.
void rounding() {
  heading("rounding");
  std::cout << std::format("{:>9} {:>12} {:>12} {:>8} {:>8}\n", "value", "f16", "bf16", "f8e4m3", "f8e5m2");
  for (double const value : {0.1, 1.0 / 3, 17.0, 300.0, 448.0, 500.0, 70000.0, 1e-7}) {
    std::cout << std::format("{:9.4g}", value);
    std::array<std::byte, 8> element{};
    for (auto const [dtype, width] : {std::pair(DType::f16, 12), {DType::bf16, 12}, {DType::f8e4m3, 8}, {DType::f8e5m2, 8}}) {
      store_real(dtype, element.data(), value);
      std::cout << std::format(" {:{}.7g}", load_real(dtype, element.data()), width);
    }
    std::cout << '\n';
  }
}

// 3. Random numbers without a state.
// Philox is a function: seed, offset and index in, a number out. Nobody has to draw element 0 before element 1000000, so a thread, a rank or a
// kernel can make its own part of a stream and the whole does not depend on how it was cut.
void random_streams() {
  heading("random streams");
  std::uint64_t const seed = 42, offset = 0;
  std::cout << "uniform, elements 0 to 3:";
  for (std::uint64_t index = 0; index < 4; ++index) std::cout << std::format(" {:.6f}", uniform(seed, offset, index));
  std::cout << std::format("\nelement 1000000 at once:  {:.6f}\n", uniform(seed, offset, 1'000'000));
  double sum = 0, squares = 0;
  for (std::uint64_t index = 0; index < 100'000; ++index) sum += normal(seed, 1, index), squares += std::pow(normal(seed, 1, index), 2);
  std::cout << std::format("100000 normals: mean {:+.4f}, variance {:.4f}\n", sum / 1e5, squares / 1e5);
}

// 4. Shapes and strides.
// A shape is a list of sizes; strides say how far apart neighbours lie. The same elements may lie row by row, column by column or far apart;
// the stride of a size-1 dim means nothing. Which shapes are views of which is ir's to say: `reshape` is one of its ops.
void shapes() {
  heading("shapes and strides");
  Shape const shape{2, 3, 4};
  std::cout << "strides of " << to_string(shape) << " are " << to_string(contiguous_strides(shape)) << '\n';
  auto const show = [](Shape const& sizes, Shape const& strides) {
    std::cout << std::format("{:9} with strides {:11} {}\n", to_string(sizes), to_string(strides), is_contiguous(sizes, strides) ? "row-major" : "other order");
  };
  show({2, 3, 4}, {12, 4, 1});
  show({2, 3, 4}, {12, 1, 3});
  show({2, 1, 4}, {4, 99, 1});
  std::cout << "[2, 1, 4] with [3, 1] broadcasts to " << to_string(broadcast("lesson", Shape{2, 1, 4}, Shape{3, 1})) << '\n';
}

// 5. Memory that is counted.
// Every buffer adds its bytes when it is made and takes them off when the last reference goes. The peak is what a run needed at once.
void memory() {
  heading("memory");
  auto const print = [](std::string_view when) {
    auto const counters = memory_counters();
    std::cout << std::format("{:24} live {:6}, peak {:6}, allocations {}\n", when, counters.live, counters.peak, counters.allocations);
  };
  auto kept = make_ref<Buffer>(1000);
  print("one buffer of 1000");
  { Buffer const scratch(50'000); }
  print("and a scratch of 50000");
  Ref<Buffer> const second = kept;
  kept = nullptr;
  print("one of two references");
}

// 6. A file of tensors.
// safetensors is a length, a JSON header and the elements. Ours is written beside its final name and renamed, so a crash leaves the old file;
// it is mapped when read, and checked whole before anything in it is believed.
void files(std::filesystem::path const& path) {
  heading("safetensors");
  std::array<std::uint16_t, 3> const weights{to_bf16(0.5), to_bf16(-1), to_bf16(3.14159)};
  std::int64_t const step = 12;
  save_safetensors(path, {{"weights", {DType::bf16, {3}, std::as_bytes(std::span(weights))}}, {"step", {DType::i64, {}, std::as_bytes(std::span(&step, 1))}}},
                   {{"written_by", "m_base"}});
  SafetensorsFile const file(path);
  for (auto const& [name, tensor] : file.tensors()) {
    std::cout << std::format("{:8} {:5} {:4}:", name, info(tensor.dtype).name, to_string(tensor.shape));
    for (std::int64_t i = 0; i < numel(tensor.shape); ++i)
      std::cout << ' ' << load_real(tensor.dtype, &tensor.data[static_cast<std::size_t>(i * bytes_of(tensor.dtype))]);
    std::cout << '\n';
  }
}

// 7. Errors.
// Your mistake is an Error: one line, with what, where and both values. Here the file loses its last byte. A place is what the tracer will
// show when it tells which line of a model it means.
void errors(std::filesystem::path const& path) {
  heading("errors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  try {
    SafetensorsFile{path};
  } catch (Error const& error) {
    std::cout << error.what() << '\n';
  }
  At const here = At::current();
  std::cout << "A place in the source reads " << short_place(here) << ":\n" << caret(here);
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_base", argc, argv, [] {
    dtypes();
    rounding();
    random_streams();
    shapes();
    memory();
    std::filesystem::path const folder = std::filesystem::temp_directory_path() / "tenon_m_base", before = std::filesystem::current_path();
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
    files("lesson.safetensors");
    errors("lesson.safetensors");
    std::filesystem::current_path(before);
    std::filesystem::remove_all(folder);
  });
}
