export module tenon.ir;
export import :sym;
export import :op;
export import :rule;
export import :graph;
export import :table;
export import :rewrite;
export import :text;
