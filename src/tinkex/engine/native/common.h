/* Shared by the kernels: SIMD vectors of the machine's width, the exponential, a small matrix
 * product, and a parallel loop over the threads torch already has.
 *
 * Everything is float32. The results of a row depend neither on the other rows of a call, nor on the
 * number of threads, nor on which thread computes what: every sum has one order. NaN propagates.
 */
#ifndef TINKEX_COMMON_H
#define TINKEX_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define TILE_VECTORS 4 /* of 32 registers */
#elif defined(__AVX__)
#define LANES 8
#define TILE_VECTORS 2 /* of 16 registers */
#elif defined(__ARM_NEON)
#define LANES 4
#define TILE_VECTORS 4
#else
#define LANES 4
#define TILE_VECTORS 2
#endif

#define BLOCK 64    /* tokens per block of the KV cache */
#define TILE_ROWS 6 /* TILE_ROWS x TILE_VECTORS sums fill the registers */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE long min_long(long a, long b) { return a < b ? a : b; }

INLINE vec load(const float *from) { return *(const vec *)from; }

INLINE void store(float *to, vec value) { *(vec *)to = value; }

INLINE vec blend(ivec mask, vec yes, vec no) {
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

INLINE vec broadcast(float value) {
    vec result;
    for (int i = 0; i < LANES; i++) result[i] = value;
    return result;
}

INLINE float reduce_add(vec value) {
    float part[LANES];
    store(part, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

/* e^x, to about one unit in the last place. x is clamped to -87 from below; above 88 the result is
 * infinity. */
INLINE vec exponential(vec x) {
    const vec low = broadcast(-87.0f), high = broadcast(88.0f), rounder = broadcast(12582912.0f);
    ivec is_high = x > high;
    x = blend(x < low, low, x);
    vec shifted = x * 1.44269504f + rounder; /* the integer is in the last bits */
    ivec power = (ivec)shifted - (ivec)rounder;
    vec whole = shifted - rounder;
    vec rest = x - whole * 0.693359375f;
    rest = rest - whole * -2.12194440e-4f;
    vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    return blend(is_high, broadcast(INFINITY), sum * (vec)((power + 127) << 23));
}

/* out = a @ b, or out += a @ b if `adds`, for up to TILE_ROWS rows: a[i] and out[i] point to rows,
 * b has `stride` floats per row. */
void product(long rows, const float *const *a, long depth, const float *b, long stride, long columns,
             float *const *out, int adds);

/* One step of a sum, rounded as in the vector code. */
INLINE float multiply_add(float a, float b, float sum) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
}

/* --- threads --------------------------------------------------------------------------------- */

/* The OpenMP team of torch, and scratch memory for each thread. `parallel` is GOMP_parallel. Kernels
 * and torch share one team: two would need twice as many threads as there are cores. */
struct team {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int64_t threads;
    float *scratch;
    int64_t scratch_floats; /* per thread */
};

typedef void (*task)(const void *job, long index, float *scratch);

/* Runs tasks 0..count, each once, on all threads. */
void parallel_for(const struct team *team, task run, const void *job, long count);

/* --- LoRA ------------------------------------------------------------------------------------ */

struct lora;

/* Adds the LoRA of these rows to the base model's product, unless tinkex_lora has done so. */
void add_lora(const struct lora *job, long first, long end);

#endif
