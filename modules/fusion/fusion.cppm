/// Graphs as few kernels: grouping, loop nests, schedules, generated C, memory plans, execution, the compile cache.
export module tenon.fusion;
export import :loop;
export import :c_text;
export import :interpret;
export import :contraction;
export import :library;
export import :memory;
export import :plan;
export import :key;
export import :program;
export import :package;
export import :cache;
