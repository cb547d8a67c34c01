export module tenon.base;
export import :diagnostics;
export import :number;
export import :shape;
export import :memory;
export import :safetensors;
