export module tenon.tracer;
export import :tensor;
export import :interpreter;
export import :leaves;
export import :ops;
export import :segment;
export import :compile;
export import :explain;
