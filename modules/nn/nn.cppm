export module tenon.nn;
export import :layers;
export import :optim;
export import :data;
