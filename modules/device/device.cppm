/// What computes: the processor and its threads, the compiler and what it made.
export module tenon.device;
export import :cpu;
export import :toolchain;
