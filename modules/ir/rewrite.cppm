export module tenon.ir:rewrite;
import std;
import tenon.base;
import :sym;
import :op;
import :rule;
import :graph;

export namespace tenon::ir {}  // namespace tenon::ir
