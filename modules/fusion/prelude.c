/* What generated C begins with; the interpreter's blocks are made of the same functions.
   Approximations are minimax polynomials of our own (weighted least squares on Chebyshev nodes, made even by Lawson's iteration); the reductions of range
   are those of Cody & Waite, "Software Manual for the Elementary Functions" (1980), with the intervals of Cephes (expf, logf, tanhf). Everything but libm's
   functions is selects and bits, so that a loop over it becomes vector code of any width. */
#define TN static inline __attribute__((always_inline, unused))
/* Before a statement that adds up or multiplies: its terms may be taken in any order. Before a loop: no turn reads what another one writes. */
#if defined(__clang__)
#define TN_REORDER _Pragma("clang fp reassociate(on)")
#define TN_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#else
#define TN_REORDER
#define TN_VECTOR _Pragma("GCC ivdep")
#endif
typedef long long tn_i64;
typedef unsigned long long tn_u64;

TN unsigned tn_bits(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
TN float tn_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
TN tn_u64 tn_bits_d(double x) { tn_u64 u; __builtin_memcpy(&u, &x, 8); return u; }
TN double tn_double(tn_u64 u) { double x; __builtin_memcpy(&x, &u, 8); return x; }

/* The place that an index names; where there is no such place and one is wanted, *bad becomes 1. */
TN tn_i64 tn_place(tn_i64 index, tn_i64 size, int wanted, int *bad) {
  int const out = (tn_u64)index >= (tn_u64)size;
#ifdef TN_REPORT
  if (out & (wanted != 0)) TN_REPORT(index, size);
#endif
  *bad |= out & (wanted != 0);
  return out ? 0 : index;
}

/* Copies a piece of an output: past the caches, where it will not be read soon and does not lie in them already; then a fence before anybody reads. */
#if defined(__clang__) && defined(__x86_64__)
TN void tn_stream(void *to, const void *from, tn_i64 bytes, int apart) {
  typedef long long tn_line __attribute__((vector_size(64)));
  char *const o = (char *)to;
  const char *const t = (const char *)from;
  tn_i64 const head = (tn_i64)(-(tn_u64)o & 63);
  tn_i64 k = 0;
  if (apart && head < bytes) {
    if (head) __builtin_memcpy(o, t, (unsigned long)head);
    for (k = head; k + 64 <= bytes; k += 64) {
      tn_line v;
      __builtin_memcpy(&v, t + k, 64);
      __builtin_nontemporal_store(v, (tn_line *)(o + k));
    }
  }
  if (k < bytes) __builtin_memcpy(o + k, t + k, (unsigned long)(bytes - k));
}
TN void tn_streamed(void) { __builtin_ia32_sfence(); }
#else
TN void tn_stream(void *to, const void *from, tn_i64 bytes, int apart) { __builtin_memcpy(to, from, (unsigned long)bytes); }
TN void tn_streamed(void) {}
#endif

/* x = n ln 2 + r with |r| <= ln 2 / 2: adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
#define TN_SPLIT(x, t, n, r)                               \
  float const t = (x) * 1.44269504f + 12582912.0f;         \
  float const n = t - 12582912.0f;                         \
  float const r = ((x) - n * 0.693359375f) - n * -2.12194440e-4f
/* e^r - 1 - r = r^2 times this. */
TN float tn_exp_tail(float r) {
  return (((1.38138805e-3f * r + 8.36906303e-3f) * r + 4.16684225e-2f) * r + 0.166665182f) * r + 0.49999994f;
}
/* e^x where neither overflow nor a subnormal result can be: -87 <= x <= 88. */
TN float tn_exp_inner(float x) {
  TN_SPLIT(x, t, n, r);
  return (tn_exp_tail(r) * (r * r) + r + 1.0f) * tn_float((tn_bits(t) << 23) + 0x3f800000u);
}
TN float tn_exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  TN_SPLIT(x, t, n, r);
  int const k = (int)(tn_bits(t) - 0x4b400000u), half = k >> 1; /* scaled in two steps, for 2^128 and for subnormal results */
  float const p = tn_exp_tail(r) * (r * r) + r + 1.0f;
  return p * tn_float((unsigned)(half + 127) << 23) * tn_float((unsigned)(k - half + 127) << 23);
}
/* e^x for x <= 43, scaled to be normal until the last step. */
TN float tn_exp_down(float x) {
  x = x < -104.0f ? -104.0f : x;
  TN_SPLIT(x, t, n, r);
  return (tn_exp_tail(r) * (r * r) + r + 1.0f) * tn_float((tn_bits(t) << 23) + 0x5f800000u) * 0x1p-64f;
}
TN float tn_expm1(float v) {
  float x = v > 89.0f ? 89.0f : v;
  x = x < -25.0f ? -25.0f : x;
  TN_SPLIT(x, t, n, r);
  float const tail = ((((1.99148504e-4f * r + 1.39415218e-3f) * r + 8.3332723e-3f) * r + 4.16663475e-2f) * r + 0.166666672f) * r + 0.5f;
  float const q = tail * (r * r) + r, scale = tn_float((tn_bits(t) << 23) + 0x3f000000u); /* 2^(n - 1), so that 2^128 is not needed */
  float const y = (scale * q + (scale - 0.5f)) * 2.0f;
  return __builtin_fabsf(v) < 0x1p-24f ? v : y;
}

/* |x| = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); a subnormal x is scaled first. */
#define TN_MANTISSA(x, k, f)                                                            \
  unsigned const tiny_##k = (x) < 0x1p-126f;                                            \
  unsigned const u_##k = tn_bits(tiny_##k ? (x) * 0x1p23f : (x)) - 0x3f3504f3u;          \
  float const k = (float)(((int)u_##k >> 23) - (tiny_##k ? 23 : 0));                    \
  float const f = tn_float((u_##k & 0x7fffffu) + 0x3f3504f3u) - 1.0f
/* log(1 + f) = f - f^2 / 2 + f^3 times this. */
TN float tn_log_tail(float f) {
  return ((((((-7.6461017e-2f * f + 0.127791137f) * f - 0.131641865f) * f + 0.141996965f) * f - 0.166227654f) * f + 0.200012922f) * f - 0.250008374f) * f +
         0.333333313f;
}
/* What a logarithm is at the ends of its range: y inside. */
TN float tn_log_ends(float x, float y) {
  y = x < __builtin_inff() ? y : x;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x < 0.0f ? __builtin_nanf("") : y;
}
TN float tn_log_inner(float x) {
  TN_MANTISSA(x, k, f);
  float const s = f * f, y = tn_log_tail(f) * (s * f) + k * -2.12194440e-4f;
  return (y - 0.5f * s) + f + k * 0.693359375f;
}
TN float tn_log(float x) { return tn_log_ends(x, tn_log_inner(x)); }
TN float tn_log2(float x) {
  TN_MANTISSA(x, k, f);
  float const s = f * f, y = tn_log_tail(f) * (s * f) - 0.5f * s;
  /* log2(e) = 1 + 0.44269504 keeps the bits of f */
  return tn_log_ends(x, (y * 0.44269504f + (f * 0.44269504f + y)) + f + k);
}
TN float tn_log1p(float x) {
  float const u = 1.0f + x, lost = (u - 1.0f) - x; /* what the sum rounded away is given back to first order */
  float const y = tn_log_ends(u, tn_log_inner(u) - (u < __builtin_inff() ? lost / u : 0.0f));
  return __builtin_fabsf(x) < 0x1p-24f ? x : y;
}

TN float tn_tanh(float x) {
  float const a = __builtin_fabsf(x), s = x * x;
  float const low = ((((-5.7170447e-3f * s + 2.06505861e-2f) * s - 5.37434965e-2f) * s + 0.133314908f) * s - 0.333332837f) * s * x + x;
  float const e = tn_exp_inner((a > 10.0f ? 10.0f : a) * 2.0f);
  return __builtin_copysignf(a < 0.625f ? low : 1.0f - 2.0f / (e + 1.0f), x);
}
TN float tn_sigmoid(float x) {
  float const e = tn_exp(-__builtin_fabsf(x)); /* never overflows, so that small results keep their bits */
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
/* x (1 + tanh(u / 2)) / 2 = x / (1 + e^-u), which loses nothing where tanh is near -1. */
TN float tn_gelu_tanh(float x) {
  float u = x * (-1.5957691216f + x * x * -0.0713548163f);
  u = u > 89.0f ? 89.0f : u;
  u = u < -87.0f ? -87.0f : u;
  TN_SPLIT(u, t, n, r);
  float const e = (tn_exp_tail(r) * (r * r) + r + 1.0f) * tn_float((tn_bits(t) << 23) + 0x3f000000u); /* half of it, so that 2^128 is not needed */
  return x / (1.0f + 2.0f * e);
}
TN float tn_erf(float x) {
  float const a = __builtin_fabsf(x), s = x * x;
  float const low =
      (((((-6.09036011e-4f * s + 5.01196273e-3f) * s - 2.67789084e-2f) * s + 0.112821408f) * s - 0.376125246f) * s + 0.128379151f) * x + x;
  float const t = a > 4.0f ? 4.0f : a; /* log of the complement beyond 0.9 */
  float const q =
      (((((1.98219699e-4f * t - 3.06549063e-3f) * t + 2.23152153e-2f) * t - 0.104113683f) * t - 0.636976063f) * t - 1.12779725f) * t - 1.6644744e-4f;
  return a < 0.9f ? low : __builtin_copysignf(1.0f - tn_exp_inner(q), x);
}
TN float tn_erfc(float x) { return __builtin_erfcf(x); }
TN float tn_sin(float x) { return __builtin_sinf(x); }
TN float tn_cos(float x) { return __builtin_cosf(x); }
TN float tn_pow(float x, float y) { return __builtin_powf(x, y); }

/* Sums that are carried along with a row's largest element or sum, the lead, over n columns so far (online.cpp): what their terms then subtract, what they
   are where that moves, and when the row is done. As long as all is -inf, terms subtract 0, and the sum stays what it is. */
TN double tn_top(double lead, double n __attribute__((unused))) { return lead == -__builtin_inf() ? 0.0 : lead; }
TN double tn_finite_top(double lead, double n __attribute__((unused))) { return __builtin_fabs(lead) == __builtin_inf() ? 0.0 : lead; }
TN double tn_mean(double lead, double n) { return lead / n; }
TN double tn_exp_moved(double sum, double lead, double n, double from, double to) {
  return n == 0.0 || lead == -__builtin_inf() || from == to ? sum : sum * __builtin_exp(from - to);
}
TN double tn_squares_moved(double sum, double lead, double n, double from, double to) {
  double const a = lead / n - from, b = lead / n - to;
  return n == 0.0 || from == to ? sum : sum + n * (b * b - a * a);
}
TN double tn_nan_at_ends(double sum, double lead) { return sum + (lead - lead); }

/* Small floats: round to nearest even; a NaN keeps its sign. The nearest subnormal falls out of the addition of a power of two whose last place it is. */
TN float tn_from_bf16(unsigned short h) {
  unsigned const m = h & 0x7fffu, u = (unsigned)h << 16;
  return tn_float(m > 0x7f80u ? (u & 0x80000000u) | 0x7fc00000u : u);
}
TN unsigned short tn_to_bf16(float x) {
  unsigned const u = tn_bits(x), m = u & 0x7fffffffu, s = u >> 16 & 0x8000u;
  return (unsigned short)(m > 0x7f800000u ? s | 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
TN float tn_from_f16(unsigned short h) {
  unsigned const m = h & 0x7fffu, s = (h & 0x8000u) << 16;
  unsigned const sub = tn_bits(tn_float((m << 13) + (113u << 23)) - 0x1p-14f);
  unsigned const y = m < 0x400u ? sub : m < 0x7c00u ? (m << 13) + (112u << 23) : m > 0x7c00u ? 0x7fc00000u : 0x7f800000u;
  return tn_float(y | s);
}
TN unsigned short tn_to_f16(float x) {
  unsigned const u = tn_bits(x), m = u & 0x7fffffffu, s = u >> 16 & 0x8000u;
  unsigned const sub = tn_bits(tn_float(m) + 0.5f) - 0x3f000000u;
  unsigned const up = (m - (112u << 23) + 0xfffu + (m >> 13 & 1u)) >> 13, top = up > 0x7c00u ? 0x7c00u : up;
  return (unsigned short)(s | (m > 0x7f800000u ? 0x7e00u : m < 0x38800000u ? sub : top));
}
TN float tn_from_f8e4m3(unsigned char h) {
  unsigned const m = h & 0x7fu, s = (h & 0x80u) << 24;
  unsigned const y = m < 8u ? tn_bits((float)(int)m * 0x1p-9f) : m < 0x7fu ? (m << 20) + (120u << 23) : 0x7fc00000u;
  return tn_float(y | s);
}
TN unsigned char tn_to_f8e4m3(float x) {
  unsigned const u = tn_bits(x), m = u & 0x7fffffffu, s = u >> 24 & 0x80u;
  unsigned const sub = tn_bits(tn_float(m) + 0x1p14f) - 0x46800000u;
  unsigned const up = (m - (120u << 23) + 0x7ffffu + (m >> 20 & 1u)) >> 20, top = up > 0x7fu ? 0x7fu : up;
  return (unsigned char)(s | (m > 0x7f800000u ? 0x7fu : m < 0x3c800000u ? sub : top));
}
TN float tn_from_f8e5m2(unsigned char h) {
  unsigned const m = h & 0x7fu, s = (h & 0x80u) << 24;
  unsigned const y = m < 4u ? tn_bits((float)(int)m * 0x1p-16f) : m < 0x7cu ? (m << 21) + (112u << 23) : m > 0x7cu ? 0x7fc00000u : 0x7f800000u;
  return tn_float(y | s);
}
TN unsigned char tn_to_f8e5m2(float x) {
  unsigned const u = tn_bits(x), m = u & 0x7fffffffu, s = u >> 24 & 0x80u;
  unsigned const sub = tn_bits(tn_float(m) + 0x1p7f) - 0x43000000u;
  unsigned const up = (m - (112u << 23) + 0xfffffu + (m >> 21 & 1u)) >> 21, top = up > 0x7cu ? 0x7cu : up;
  return (unsigned char)(s | (m > 0x7f800000u ? 0x7fu : m < 0x38800000u ? sub : top));
}
/* A double on its way to a small float, rounded to odd: the second rounding then sees on which side of a tie it lay. */
TN float tn_odd(double x) {
  float const f = (float)x;
  double const back = (double)f;
  unsigned u = tn_bits(f);
  u -= __builtin_fabs(back) > __builtin_fabs(x) ? 1u : 0u;
  return tn_float(u | (back != x && x == x ? 1u : 0u));
}
TN float tn_odd_i64(tn_i64 x) { /* what a double has no room for becomes its last bit */
  tn_i64 const lost = x & 0x7ff, wide = (x - lost) | (lost ? 0x800 : 0);
  return tn_odd((double)(x < -(1LL << 53) || x > 1LL << 53 ? wide : x));
}

/* Order of floats as order of whole numbers, with a NaN above (or below) all: reductions of them vectorise, and NaN wins. Keys are their own inverses. */
TN int tn_key(float x) {
  int const b = (int)tn_bits(x);
  return x != x ? 0x7fffffff : b ^ (b >> 31 & 0x7fffffff);
}
TN int tn_key_min(float x) {
  int const b = (int)tn_bits(x);
  return x != x ? -0x7fffffff - 1 : b ^ (b >> 31 & 0x7fffffff);
}
TN float tn_unkey(int k) { return tn_float((unsigned)(k ^ (k >> 31 & 0x7fffffff))); }
TN tn_i64 tn_key_d(double x) {
  tn_i64 const b = (tn_i64)tn_bits_d(x);
  return x != x ? 0x7fffffffffffffffLL : b ^ (b >> 63 & 0x7fffffffffffffffLL);
}
TN tn_i64 tn_key_min_d(double x) {
  tn_i64 const b = (tn_i64)tn_bits_d(x);
  return x != x ? -0x7fffffffffffffffLL - 1 : b ^ (b >> 63 & 0x7fffffffffffffffLL);
}
TN double tn_unkey_d(tn_i64 k) { return tn_double((tn_u64)(k ^ (k >> 63 & 0x7fffffffffffffffLL))); }

/* Whole numbers wrap, divisions by 0 give what the reference gives; a float that fits no i64 becomes the lowest one. */
TN tn_i64 tn_whole(double x) {
  int const fits = x >= -0x1p63 && x < 0x1p63;
  tn_i64 const y = (tn_i64)(fits ? x : 0.0);
  return fits ? y : -0x7fffffffffffffffLL - 1;
}
TN tn_i64 tn_neg_i64(tn_i64 a) { return (tn_i64)(0 - (tn_u64)a); }
TN tn_i64 tn_abs_i64(tn_i64 a) { return a < 0 ? tn_neg_i64(a) : a; }
TN tn_i64 tn_add_i64(tn_i64 a, tn_i64 b) { return (tn_i64)((tn_u64)a + (tn_u64)b); }
TN tn_i64 tn_sub_i64(tn_i64 a, tn_i64 b) { return (tn_i64)((tn_u64)a - (tn_u64)b); }
TN tn_i64 tn_mul_i64(tn_i64 a, tn_i64 b) { return (tn_i64)((tn_u64)a * (tn_u64)b); }
TN tn_i64 tn_fmod_i64(tn_i64 a, tn_i64 b) {
  tn_i64 const r = a % (b == 0 || b == -1 ? 1 : b);
  return b == 0 ? -1 : r;
}
TN tn_i64 tn_remainder_i64(tn_i64 a, tn_i64 b) {
  tn_i64 const r = tn_fmod_i64(a, b);
  return b != 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
TN tn_i64 tn_floordiv_i64(tn_i64 a, tn_i64 b) {
  tn_i64 const safe = b == 0 || b == -1 ? 1 : b, q = a / safe - (a % safe != 0 && (a < 0) != (safe < 0));
  return b == 0 ? -1 : b == -1 ? tn_neg_i64(a) : q;
}
TN tn_i64 tn_pow_i64(tn_i64 a, tn_i64 n) {
  tn_u64 y = 1, square = (tn_u64)a;
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n % 2 ? -1 : 1) : 0;
  for (; n; n >>= 1, square *= square) y *= n & 1 ? square : 1;
  return (tn_i64)y;
}
