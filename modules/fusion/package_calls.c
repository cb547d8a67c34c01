/* Calls of a package that are not kernels, in the form of package.c. */
//: matmul
/* c = a b with any strides of a and b, and rows of c `cr` apart: blocks of registers, six rows by two vectors, over panels of b. The work holds a as
   numbers, row by row, where it does not lie so already, and one panel. */
#if defined(__AVX512F__)
enum { tn_lanes_DTYPE = 64 / sizeof(NUMBER) };
#else
enum { tn_lanes_DTYPE = 32 / sizeof(NUMBER) };
#endif
typedef NUMBER tn_vector_DTYPE __attribute__((vector_size(tn_lanes_DTYPE * sizeof(NUMBER))));
static void tn_matmul_DTYPE(tn_i64 m, tn_i64 n, tn_i64 k, const ELEMENT *a, tn_i64 ar, tn_i64 ac, const ELEMENT *b, tn_i64 br, tn_i64 bc, ELEMENT *c, tn_i64 cr,
                            char *work) {
  enum { lanes = tn_lanes_DTYPE, wide = 2 * lanes, tall = 6 };
  const NUMBER *left = (const NUMBER *)(const void *)a;
  NUMBER *const copy = (NUMBER *)(void *)work;
  if (sizeof(NUMBER) != sizeof(ELEMENT) || ac != 1) {
    for (tn_i64 i = 0; i < m; ++i)
      for (tn_i64 p = 0; p < k; ++p) copy[i * k + p] = LOAD(a[i * ar + p * ac]);
    left = copy, ar = k;
    work += (m * k * (tn_i64)sizeof(NUMBER) + 63) / 64 * 64;
  }
  if (m < 3 && br == 1) { /* columns of b lie in one piece: sums of products */
    for (tn_i64 i = 0; i < m; ++i)
      for (tn_i64 j = 0; j < n; ++j) {
        const NUMBER *const x = left + i * ar;
        const ELEMENT *const y = b + j * bc;
        NUMBER sum = 0;
        for (tn_i64 p = 0; p < k; ++p) { TN_REORDER sum += x[p] * LOAD(y[p]); }
        c[i * cr + j] = STORE(sum);
      }
    return;
  }
  tn_vector_DTYPE *const panel = (tn_vector_DTYPE *)(void *)work;
  for (tn_i64 j = 0; j < n; j += wide) {
    tn_i64 const width = n - j < wide ? n - j : wide;
    NUMBER *const to = (NUMBER *)panel;
    if (br == 1 && bc != 1) {
      for (tn_i64 q = 0; q < wide; ++q)
        for (tn_i64 p = 0; p < k; ++p) to[p * wide + q] = q < width ? LOAD(b[p + (j + q) * bc]) : 0;
    } else {
      for (tn_i64 p = 0; p < k; ++p)
        for (tn_i64 q = 0; q < wide; ++q) to[p * wide + q] = q < width ? LOAD(b[p * br + (j + q) * bc]) : 0;
    }
    for (tn_i64 i = 0; i < m; i += tall) {
      const NUMBER *row[tall];
      for (int r = 0; r < tall; ++r) row[r] = left + (i + r < m ? i + r : m - 1) * ar;
      tn_vector_DTYPE sums[tall][2];
      for (int r = 0; r < tall; ++r) sums[r][0] = sums[r][1] = (tn_vector_DTYPE){0};
      for (tn_i64 p = 0; p < k; ++p) {
        tn_vector_DTYPE const b0 = panel[2 * p], b1 = panel[2 * p + 1];
        for (int r = 0; r < tall; ++r) sums[r][0] += row[r][p] * b0, sums[r][1] += row[r][p] * b1;
      }
      for (int r = 0; r < tall && i + r < m; ++r) {
        NUMBER line[wide];
        __builtin_memcpy(line, sums[r], sizeof line);
        for (tn_i64 q = 0; q < width; ++q) c[(i + r) * cr + j + q] = STORE(line[q]);
      }
    }
  }
}
//: convolution shape
/* Sizes of a convolution, spatial dims apart. */
typedef struct { int dims; tn_i64 images, groups, channels, results, in[3], kernel[3], out[3], stride[3], low[3], dilation[3], input_dilation[3]; } tn_window;
//: convolution
/* As products: a group's weights [results, terms] times patches [terms, places] of an image, where terms are channels and taps of the kernel. */
static void tn_convolution_DTYPE(const tn_window *s, const ELEMENT *x, const ELEMENT *w, ELEMENT *y, char *work) {
  enum { most = 256 };
  tn_i64 taps = 1, places = 1, plane = 1;
  for (int d = 0; d < s->dims; ++d) taps *= s->kernel[d], places *= s->out[d], plane *= s->in[d];
  tn_i64 const terms = s->channels * taps;
  ELEMENT *const patches = (ELEMENT *)(void *)work;
  work += (terms * most * (tn_i64)sizeof(ELEMENT) + 63) / 64 * 64;
  for (tn_i64 image = 0; image < s->images; ++image)
    for (tn_i64 group = 0; group < s->groups; ++group)
      for (tn_i64 first = 0; first < places; first += most) {
        tn_i64 const count = places - first < most ? places - first : most;
        for (tn_i64 term = 0; term < terms; ++term) {
          const ELEMENT *const from = x + ((image * s->groups + group) * s->channels + term / taps) * plane;
          for (tn_i64 q = 0; q < count; ++q) {
            tn_i64 tap = term % taps, place = first + q, offset = 0, step = 1;
            int inside = 1;
            for (int d = s->dims; d-- > 0; tap /= s->kernel[d], place /= s->out[d], step *= s->in[d]) {
              tn_i64 const at = place % s->out[d] * s->stride[d] - s->low[d] + tap % s->kernel[d] * s->dilation[d], of = s->input_dilation[d];
              inside = inside && at >= 0 && at % of == 0 && at / of < s->in[d];
              offset += at / of * step;
            }
            patches[term * count + q] = inside ? from[offset] : 0;
          }
        }
        tn_matmul_DTYPE(s->results, count, terms, w + group * s->results * terms, terms, 1, patches, count, 1,
                        y + (image * s->groups + group) * s->results * places + first, places, work);
      }
}
//: cumsum
static void tn_cumsum_DTYPE(tn_i64 outer, tn_i64 size, tn_i64 inner, const ELEMENT *x, ELEMENT *y) {
  for (tn_i64 o = 0; o < outer; ++o)
    for (tn_i64 j = 0; j < inner; ++j) {
      double sum = 0;
      for (tn_i64 i = 0; i < size; ++i) {
        tn_i64 const at = (o * size + i) * inner + j;
        sum += (double)LOAD(x[at]);
        y[at] = STORE((NUMBER)sum);
      }
    }
}
//: matmul of whole numbers
static void tn_matmul_DTYPE(tn_i64 m, tn_i64 n, tn_i64 k, const ELEMENT *a, tn_i64 ar, tn_i64 ac, const ELEMENT *b, tn_i64 br, tn_i64 bc, ELEMENT *c, tn_i64 cr,
                            char *work) {
  (void)work;
  for (tn_i64 i = 0; i < m; ++i)
    for (tn_i64 j = 0; j < n; ++j) {
      tn_i64 sum = 0;
      for (tn_i64 p = 0; p < k; ++p) sum = tn_add_i64(sum, tn_mul_i64(a[i * ar + p * ac], b[p * br + j * bc]));
      c[i * cr + j] = (ELEMENT)sum;
    }
}
//: max_pool
/* The largest element of each window, a NaN before all, and its place in its image. */
static int tn_max_pool_DTYPE(const tn_window *s, const ELEMENT *x, ELEMENT *y, tn_i64 *where) {
  tn_i64 taps = 1, places = 1, plane = 1;
  for (int d = 0; d < s->dims; ++d) taps *= s->kernel[d], places *= s->out[d], plane *= s->in[d];
  for (tn_i64 image = 0; image < s->images; ++image, x += plane)
    for (tn_i64 p = 0; p < places; ++p) {
      tn_i64 best = -1;
      for (tn_i64 t = 0; t < taps; ++t) {
        tn_i64 tap = t, place = p, offset = 0, step = 1;
        int inside = 1;
        for (int d = s->dims; d-- > 0; tap /= s->kernel[d], place /= s->out[d], step *= s->in[d]) {
          tn_i64 const at = place % s->out[d] * s->stride[d] - s->low[d] + tap % s->kernel[d] * s->dilation[d];
          inside = inside && at >= 0 && at < s->in[d];
          offset += at * step;
        }
        if (!inside) continue;
        NUMBER const now = LOAD(x[offset]);
        if (best < 0 || now > LOAD(x[best]) || now != now) best = offset;
      }
      if (best < 0) return tn_fail("max_pool: a window has no element inside its image");
      *y++ = x[best], *where++ = best;
    }
  return 0;
}
//: arg
/* The first place along a dim of the largest (smallest) element; a NaN before all. */
static void tn_arg_DTYPE(tn_i64 outer, tn_i64 size, tn_i64 inner, int smallest, const ELEMENT *x, tn_i64 *y) {
  for (tn_i64 o = 0; o < outer; ++o)
    for (tn_i64 j = 0; j < inner; ++j) {
      tn_i64 best = 0;
      for (tn_i64 i = 1; i < size; ++i) {
        NUMBER const now = LOAD(x[(o * size + i) * inner + j]), held = LOAD(x[(o * size + best) * inner + j]);
        if (held == held && (now != now || (smallest ? now < held : now > held))) best = i;
      }
      y[o * inner + j] = best;
    }
}
