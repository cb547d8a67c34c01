/* What a package's files are made of beside its kernels. Each part stands behind a line that names it and is written only where it is needed. Words in
   capitals are filled in; in parts that are written once a dtype, DTYPE is its name, ELEMENT how it lies in memory, NUMBER what it is computed in, and LOAD
   and STORE lead from one to the other. */
//: header
// NAME: a compiled function as a library of C, written by Tenon.
#ifndef GUARD_H
#define GUARD_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

// What runs read and write: blocks of elements, row by row, that do not overlap.
TENSORS
typedef struct NAME NAME;  // a model with its weights and the memory of a run
typedef struct {
  const char *name, *dtype;  // the dtype as safetensors has it: F32, I64, BOOL and so on
  int rank;
  const int64_t *sizes;
  int64_t bytes;
} NAME_tensor;

// A model with the weights of a safetensors file, which may hold other tensors beside; null on failure.
NAME *NAME_create(const char *weights);
// Computes the outputs; 0, or -1 on failure. One run of a model at a time; several models may run at once.
int NAME_run(NAME *model, const void *const *inputs, void *const *outputs);
void NAME_destroy(NAME *model);
// What this thread's last failure was.
const char *NAME_error(void);
// Input, output or weight k; null if there is none.
const NAME_tensor *NAME_input(int k);
const NAME_tensor *NAME_output(int k);
const NAME_tensor *NAME_weight(int k);

#ifdef __cplusplus
}
#endif
#endif
//: top
// NAME.c: written by Tenon, needs libc and libm only. Its library for this machine:
//   cc FLAGS -shared NAME.c -o libNAME.so -lm
#include "NAME.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#define API __attribute__((visibility("default")))
//: begin
/* The first index of a run that is out of range. */
static _Thread_local struct { long long index, size; int is; } tn_wrong;
#define TN_REPORT(i, of) (tn_wrong.is ? (void)0 : (void)(tn_wrong.index = (i), tn_wrong.size = (of), tn_wrong.is = 1))
//: errors
static _Thread_local char tn_error[1000];
static int tn_fail(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(tn_error, sizeof tn_error, format, list);
  va_end(list);
  return -1;
}
/* Whether this processor has the instructions that the library was compiled for. */
static int tn_processor(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d, b7 = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return tn_fail("the processor can't be asked for its instructions");
  if (__get_cpuid_count(7, 0, &a, &b7, &c, &d)) (void)c;
  (void)b7;
#if defined(__AVX2__)
  if (!(b7 >> 5 & 1)) return tn_fail("this library was compiled for processors with AVX2, and this one has none: compile its source here");
#endif
#if defined(__AVX512F__)
  if (!(b7 >> 16 & 1)) return tn_fail("this library was compiled for processors with AVX-512, and this one has none: compile its source here");
#endif
#endif
  return 0;
}
/* Elements of so many bytes with strides in bytes: between memory that is row-major and memory that is not. */
static __attribute__((unused)) void tn_walk(char *dense, char *strided, int rank, const tn_i64 *sizes, const tn_i64 *strides, int bytes, int gather) {
  if (rank == 0) {
    __builtin_memcpy(gather ? dense : strided, gather ? strided : dense, (size_t)bytes);
    return;
  }
  if (rank == 1 && strides[0] == bytes) {
    __builtin_memcpy(gather ? dense : strided, gather ? strided : dense, (size_t)(sizes[0] * bytes));
    return;
  }
  tn_i64 block = bytes;
  for (int d = 1; d < rank; ++d) block *= sizes[d];
  for (tn_i64 i = 0; i < sizes[0]; ++i) tn_walk(dense + i * block, strided + i * strides[0], rank - 1, sizes + 1, strides + 1, bytes, gather);
}
//: file
/* Reading weights from a safetensors file: eight bytes with the length of a header, the header as JSON, the elements. */
typedef struct {
  const char *name, *dtype;
  int rank;
  tn_i64 sizes[16], strides[16]; /* strides in bytes */
  int bytes;                     /* of an element */
  tn_i64 at;                     /* its place in the model's memory */
} tn_weight;
typedef struct { const char *at, *end, *path; } tn_text;

static int tn_bad(const tn_text *t, const char *what) {
  return tn_fail("%s: the header is broken, %lld bytes before its end: %s is expected", t->path, (long long)(t->end - t->at), what);
}
static void tn_space(tn_text *t) {
  while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t')) ++t->at;
}
static int tn_take(tn_text *t, char c) {
  tn_space(t);
  if (t->at == t->end || *t->at != c) return 0;
  ++t->at;
  return 1;
}
/* A string, cut where there is no room: names that are needed have. */
static int tn_string(tn_text *t, char *to, size_t room) {
  size_t n = 0;
  if (!tn_take(t, '"')) return tn_bad(t, "a string");
  while (t->at < t->end && *t->at != '"') {
    unsigned code = (unsigned char)*t->at++;
    int raw = 1;
    if (code == '\\') {
      static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
      if (t->at == t->end) break;
      char const c = *t->at++;
      const char *const found = c ? strchr(from, c) : 0;
      if (found) code = (unsigned char)into[found - from];
      else if (c == 'u' && t->end - t->at >= 4) {
        code = 0, raw = 0;
        for (int k = 0; k < 4; ++k) {
          char const h = *t->at++;
          int const digit = h >= '0' && h <= '9' ? h - '0' : h >= 'a' && h <= 'f' ? h - 'a' + 10 : h >= 'A' && h <= 'F' ? h - 'A' + 10 : -1;
          if (digit < 0) return tn_bad(t, "a hexadecimal digit");
          code = code * 16 + (unsigned)digit;
        }
      } else return tn_bad(t, "an escape of JSON");
    }
    char encoded[3];
    int length = 0;
    if (raw || code < 0x80) encoded[length++] = (char)code;
    else if (code < 0x800) encoded[length++] = (char)(0xc0 | code >> 6), encoded[length++] = (char)(0x80 | (code & 63));
    else encoded[length++] = (char)(0xe0 | code >> 12), encoded[length++] = (char)(0x80 | (code >> 6 & 63)), encoded[length++] = (char)(0x80 | (code & 63));
    for (int k = 0; k < length; ++k)
      if (n + 1 < room) to[n++] = encoded[k];
  }
  to[n] = 0;
  return tn_take(t, '"') ? 0 : tn_bad(t, "the end of a string");
}
static int tn_number(tn_text *t, tn_i64 *value) {
  tn_space(t);
  if (t->at == t->end || *t->at < '0' || *t->at > '9') return tn_bad(t, "a whole number");
  for (*value = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; ++t->at) {
    if (*value > (0x7fffffffffffffffLL - 9) / 10) return tn_bad(t, "a smaller number");
    *value = *value * 10 + (*t->at - '0');
  }
  return 0;
}
/* Up to `room` numbers in brackets; more are counted. */
static int tn_numbers(tn_text *t, tn_i64 *to, int room, int *count) {
  *count = 0;
  if (!tn_take(t, '[')) return tn_bad(t, "[");
  if (tn_take(t, ']')) return 0;
  do {
    tn_i64 number = 0;
    if (tn_number(t, &number)) return -1;
    if (*count < room) to[*count] = number;
    if (*count < 1000) ++*count;
  } while (tn_take(t, ','));
  return tn_take(t, ']') ? 0 : tn_bad(t, "] or ,");
}
static void tn_shape(char *to, size_t room, const tn_i64 *sizes, int rank) {
  size_t n = (size_t)snprintf(to, room, "[");
  for (int d = 0; d < rank && n < room; ++d) n += (size_t)snprintf(to + n, room - n, d ? ", %lld" : "%lld", (long long)sizes[d]);
  if (n < room) snprintf(to + n, room - n, "]");
}
static int tn_elements(FILE *file, const tn_weight *w, const char *path, tn_i64 from, char *memory) {
  tn_i64 bytes = w->bytes, packed = 1;
  for (int d = w->rank; d-- > 0; bytes *= w->sizes[d]) packed = packed && (w->sizes[d] == 1 || w->strides[d] == bytes);
  char *const to = packed ? memory + w->at : malloc((size_t)bytes + 1);
  if (!to) return tn_fail("%s: tensor '%s': there is no memory for %lld bytes", path, w->name, (long long)bytes);
  int const bad = fseeko(file, from, SEEK_SET) != 0 || fread(to, 1, (size_t)bytes, file) != (size_t)bytes;
  if (!packed) {
    if (!bad) tn_walk(to, memory + w->at, w->rank, w->sizes, w->strides, w->bytes, 0);
    free(to);
  }
  return bad ? tn_fail("%s: tensor '%s': %lld bytes at %lld can't be read", path, w->name, (long long)bytes, (long long)from) : 0;
}
static int tn_entry(FILE *file, tn_text *t, const tn_weight *weights, int count, unsigned char *seen, const char *name, tn_i64 data, tn_i64 size,
                    char *memory) {
  char key[32], dtype[32] = "", have[400], want[400];
  tn_i64 sizes[16], offsets[2];
  int rank = -1, both = -1, which = 0;
  if (!tn_take(t, '{')) return tn_bad(t, "{");
  do {
    if (tn_string(t, key, sizeof key)) return -1;
    if (!tn_take(t, ':')) return tn_bad(t, ":");
    if (!strcmp(key, "dtype") ? tn_string(t, dtype, sizeof dtype) : !strcmp(key, "shape") ? tn_numbers(t, sizes, 16, &rank)
        : !strcmp(key, "data_offsets") ? tn_numbers(t, offsets, 2, &both) : tn_bad(t, "dtype, shape or data_offsets"))
      return -1;
  } while (tn_take(t, ','));
  if (!tn_take(t, '}')) return tn_bad(t, "} or ,");
  if (rank < 0 || both != 2 || !dtype[0]) return tn_fail("%s: tensor '%s' lacks dtype, shape or two data_offsets", t->path, name);
  if (offsets[0] > offsets[1] || offsets[1] > size)
    return tn_fail("%s: tensor '%s': data_offsets [%lld, %lld] do not lie in the file's %lld bytes", t->path, name, (long long)offsets[0],
                   (long long)offsets[1], (long long)size);
  while (which < count && strcmp(weights[which].name, name)) ++which;
  if (which == count) return 0; /* somebody else's */
  const tn_weight *const w = weights + which;
  if (seen[which]++) return tn_fail("%s: tensor '%s' is there twice", t->path, name);
  if (strcmp(dtype, w->dtype)) return tn_fail("%s: tensor '%s' is %s, %s is needed", t->path, name, dtype, w->dtype);
  int same = rank == w->rank;
  tn_i64 bytes = w->bytes;
  for (int d = 0; d < w->rank; ++d) same = same && sizes[d] == w->sizes[d], bytes *= w->sizes[d];
  tn_shape(have, sizeof have, sizes, rank < 16 ? rank : 16), tn_shape(want, sizeof want, w->sizes, w->rank);
  if (!same) return tn_fail("%s: tensor '%s' has the shape %s, %s is needed", t->path, name, have, want);
  if (offsets[1] - offsets[0] != bytes)
    return tn_fail("%s: tensor '%s' has %lld bytes, its shape %s of %s needs %lld", t->path, name, (long long)(offsets[1] - offsets[0]), have, dtype,
                   (long long)bytes);
  return tn_elements(file, w, t->path, data + offsets[0], memory);
}
static int tn_header(FILE *file, tn_text *t, const tn_weight *weights, int count, unsigned char *seen, tn_i64 data, tn_i64 size, char *memory) {
  char name[1024], other[16];
  if (!tn_take(t, '{')) return tn_bad(t, "{");
  if (!tn_take(t, '}')) {
    do {
      if (tn_string(t, name, sizeof name)) return -1;
      if (!tn_take(t, ':')) return tn_bad(t, ":");
      if (strcmp(name, "__metadata__")) {
        if (tn_entry(file, t, weights, count, seen, name, data, size, memory)) return -1;
        continue;
      }
      if (!tn_take(t, '{')) return tn_bad(t, "{");
      if (tn_take(t, '}')) continue;
      do {
        if (tn_string(t, other, sizeof other)) return -1;
        if (!tn_take(t, ':')) return tn_bad(t, ":");
        if (tn_string(t, other, sizeof other)) return -1;
      } while (tn_take(t, ','));
      if (!tn_take(t, '}')) return tn_bad(t, "} or ,");
    } while (tn_take(t, ','));
    if (!tn_take(t, '}')) return tn_bad(t, "} or ,");
  }
  for (int k = 0; k < count; ++k)
    if (!seen[k]) return tn_fail("%s: there is no tensor '%s'", t->path, weights[k].name);
  return 0;
}
static int tn_load(const char *path, const tn_weight *weights, int count, char *memory) {
  FILE *const file = fopen(path, "rb");
  if (!file) return tn_fail("%s: %s", path, strerror(errno));
  unsigned char length[8];
  tn_u64 header = 0;
  char *text = 0;
  unsigned char *seen = calloc((size_t)count + 1, 1);
  int bad;
  tn_i64 const all = fseeko(file, 0, SEEK_END) ? -1 : (tn_i64)ftello(file);
  if (all < 8 || fseeko(file, 0, SEEK_SET) || fread(length, 1, 8, file) != 8) {
    bad = tn_fail("%s: %lld bytes are no safetensors file", path, (long long)all);
  } else {
    for (int k = 8; k-- > 0;) header = header << 8 | length[k];
    if (header > 100000000 || (tn_i64)header > all - 8) {
      bad = tn_fail("%s: a header of %llu bytes in a file of %lld", path, header, (long long)all);
    } else if (!seen || !(text = malloc((size_t)header + 1)) || fread(text, 1, (size_t)header, file) != (size_t)header) {
      bad = tn_fail("%s: a header of %llu bytes can't be read", path, header);
    } else {
      tn_text t = {text, text + header, path};
      tn_i64 const data = 8 + (tn_i64)header;
      bad = tn_header(file, &t, weights, count, seen, data, all - data, memory);
    }
  }
  free(text), free(seen), fclose(file);
  return bad;
}
//: parts
typedef void tn_main(char *const *, const tn_i64 *, const double *, tn_i64, tn_i64, tn_i64, tn_i64, char *, char *);
typedef void tn_finish(char *const *, const tn_i64 *, const double *, tn_i64, char *, tn_i64, tn_i64);
typedef void tn_apply(char *const *, const tn_i64 *, const double *, tn_i64, tn_i64, tn_i64, char *);
/* Chunks of rows, or of columns, leave partial results of `region` bytes each, which are then finished in order. */
static void tn_in_parts(tn_main *run, tn_finish *finish, char *const *b, tn_i64 batches, tn_i64 chunks, tn_i64 rows, tn_i64 columns, int by_columns,
                        tn_i64 region, char *scratch, char *part) {
  for (tn_i64 k = 0; k < batches * chunks; ++k) {
    tn_i64 const batch = k / chunks, g = k % chunks;
    if (by_columns)
      run(b, 0, 0, batch, batch + 1, columns * g / chunks, columns * (g + 1) / chunks, scratch, part + k * region);
    else
      run(b, 0, 0, batch * rows + rows * g / chunks, batch * rows + rows * (g + 1) / chunks, 0, columns, scratch, part + k * region);
  }
  for (tn_i64 batch = 0; batch < batches; ++batch) finish(b, 0, 0, batch, part + batch * chunks * region, chunks, region);
}
/* The second pass over chunks of columns, with what the first chunk's region then holds of each row. */
static __attribute__((unused)) void tn_in_parts_again(tn_apply *run, char *const *b, tn_i64 rows, tn_i64 chunks, tn_i64 columns, tn_i64 region,
                                                      char *part) {
  for (tn_i64 k = 0; k < rows * chunks; ++k) {
    tn_i64 const row = k / chunks, g = k % chunks;
    run(b, 0, 0, row, columns * g / chunks, columns * (g + 1) / chunks, part + row * chunks * region);
  }
}
//: model
struct NAME {
  char *memory; // weights, values of a run, and what kernels and calls work in
};
API const char *NAME_error(void) { return tn_error; }
API const NAME_tensor *NAME_input(int k) { return k < 0 || k >= INPUTS ? 0 : &tn_inputs[k]; }
API const NAME_tensor *NAME_output(int k) { return k < 0 || k >= OUTPUTS ? 0 : &tn_outputs[k]; }
API const NAME_tensor *NAME_weight(int k) { return k < 0 || k >= WEIGHTS ? 0 : &tn_weights[k]; }
API void NAME_destroy(NAME *model) {
  if (model) free(model->memory);
  free(model);
}
API NAME *NAME_create(const char *weights) {
  if (tn_processor()) return 0;
  if (!weights) {
    tn_fail("NAME_create: the path of the weights is null");
    return 0;
  }
  NAME *const model = calloc(1, sizeof *model);
  if (!model || !(model->memory = aligned_alloc(64, BYTES))) {
    tn_fail("NAME_create: there is no memory for BYTES bytes");
    NAME_destroy(model);
    return 0;
  }
  memset(model->memory, 0, BYTES);
  if (!tn_load(weights, tn_stored, WEIGHTS, model->memory)) return model;
  NAME_destroy(model);
  return 0;
}
API int NAME_run(NAME *model, const void *const *inputs, void *const *outputs) {
  if (!model) return tn_fail("NAME_run: the model is null");
  for (int k = 0; k < INPUTS; ++k)
    if (!inputs || !inputs[k]) return tn_fail("NAME_run: input %d, '%s', is null", k, tn_inputs[k].name);
  for (int k = 0; k < OUTPUTS; ++k)
    if (!outputs || !outputs[k]) return tn_fail("NAME_run: output %d, '%s', is null", k, tn_outputs[k].name);
RUN  return 0;
}
