module tenon.fusion;
import std;
import :c_text;

namespace tenon::fusion {
namespace {
#pragma clang diagnostic ignored "-Wc23-extensions"  // #embed
constexpr char text[] = {
#embed "prelude.c"
};
}  // namespace

std::string_view prelude() { return {text, sizeof text}; }

}  // namespace tenon::fusion
