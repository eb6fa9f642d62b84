/* What the kernels share: vectors as wide as the machine's, the exponential, a small matrix product,
 * and work divided among the threads torch already has.
 *
 * Everything is float32. A row's numbers never depend on which rows share a call, on the number of
 * threads or on who computes what: sums have one order. Not a number stays one.
 */
#ifndef TINKEX_COMMON_H
#define TINKEX_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define TILE_VECTORS 4 /* 32 registers */
#elif defined(__AVX__)
#define LANES 8
#define TILE_VECTORS 2 /* 16 registers */
#elif defined(__ARM_NEON)
#define LANES 4
#define TILE_VECTORS 4
#else
#define LANES 4
#define TILE_VECTORS 2
#endif

#define BLOCK 64    /* tokens of a block of the cache */
#define TILE_ROWS 6 /* with a tile's vectors they fill the registers */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE long least(long a, long b) { return a < b ? a : b; }

INLINE vec load(const float *from) { return *(const vec *)from; }

INLINE void store(float *to, vec value) { *(vec *)to = value; }

INLINE vec choose(ivec mask, vec yes, vec no) {
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

INLINE vec all_lanes(float value) {
    vec found;
    for (int i = 0; i < LANES; i++) found[i] = value;
    return found;
}

INLINE float sum_of(vec value) {
    float part[LANES];
    store(part, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

/* e to the x, to about one unit in the last place; below -87 that of -87, above 88 infinity. */
INLINE vec exponential(vec x) {
    const vec low = all_lanes(-87.0f), high = all_lanes(88.0f), rounder = all_lanes(12582912.0f);
    ivec is_high = x > high;
    x = choose(x < low, low, x);
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
    return choose(is_high, all_lanes(INFINITY), sum * (vec)((power + 127) << 23));
}

/* out = a @ b (added to what is there if `adds`), for up to TILE_ROWS rows: a[i] and out[i] are its
 * rows, b has `stride` floats a row. */
void product(long rows, const float *const *a, long depth, const float *b, long stride, long columns,
             float *const *out, int adds);

/* One step of a sum, as the vectors do it. */
INLINE float multiply_add(float a, float b, float sum) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
}

/* --- threads --------------------------------------------------------------------------------- */

/* Threads of torch's own team, and memory for each. `parallel` is OpenMP's GOMP_parallel: one team
 * for both, or twice as many threads would want the cores. */
struct team {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int64_t threads;
    float *scratch;
    int64_t scratch_floats; /* of each thread */
};

typedef void (*task)(const void *job, long index, float *scratch);

/* Runs task 0..count, each once, on all threads. */
void share(const struct team *team, task run, const void *job, long count);

/* --- LoRA ------------------------------------------------------------------------------------ */

struct lora;

/* Adds the LoRA of these rows to what the base model's matrix gave, unless that is done already. */
void lift(const struct lora *job, long first, long end);

#endif
