/* Operations on single rows of a step: norms, gated activation, RoPE, writing to the KV cache. */
#include "common.h"

#define CHUNK 12 /* rows per task: few enough to stay in the CPU cache from one use to the next */

INLINE float norm_scale(const float *x, long width, float eps) {
    vec total = broadcast(0.0f);
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec some = load(x + i);
        total += some * some;
    }
    float sum = reduce_add(total);
    for (; i < width; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

/* --- x += plus; out = RMSNorm(x) -------------------------------------------------------------- */

struct norm {
    float *x;                 /* [rows][width] */
    float *plus;              /* the same, or null */
    const float *plus_weight; /* of an RMSNorm of `plus` before it is added, or null */
    const float *weight;      /* null: no norm, and `out` is not written */
    float *out;
    int64_t rows, width;
    float eps;
    const struct lora *lora; /* of `plus`, or null */
};

static void add_normed(float *x, const float *plus, const float *weight, long width, float eps) {
    float scale = norm_scale(plus, width, eps);
    for (long i = 0; i < width; i++) x[i] += plus[i] * scale * weight[i];
}

static void norm_rows(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct norm *job = argument;
    long width = job->width, end = min_long(job->rows, (index + 1) * CHUNK);
    add_lora(job->lora, index * CHUNK, end);
    for (long row = index * CHUNK; row < end; row++) {
        float *x = job->x + row * width, *out = job->out + row * width;
        if (job->plus_weight)
            add_normed(x, job->plus + row * width, job->plus_weight, width, job->eps);
        else if (job->plus)
            for (long i = 0; i < width; i++) x[i] += job->plus[row * width + i];
        if (!job->weight) continue;
        float scale = norm_scale(x, width, job->eps);
        for (long i = 0; i < width; i++) out[i] = x[i] * scale * job->weight[i];
    }
}

void tinkex_norm(const struct team *team, const struct norm *job) {
    parallel_for(team, norm_rows, job, (job->rows + CHUNK - 1) / CHUNK);
}

/* --- activation(gate) * up --------------------------------------------------------------------- */

enum activation { SILU, GELU_TANH };

struct gate {
    const float *gate_up; /* [rows][2 * width] */
    float *out;           /* [rows][width] */
    int64_t rows, width, activation;
    const struct lora *lora; /* or null */
};

/* GELU by the tanh formula is x / (1 + e^-2u) as SiLU is x / (1 + e^-x), for (1 + tanh u) / 2 is
 * 1 / (1 + e^-2u). */
#define GELU_OUTER 1.5957691216057308f /* 2 * sqrt(2 / pi) */
#define GELU_INNER 0.044715f

static void silu_row(const float *gate, const float *up, float *out, long width) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec some = load(gate + i);
        store(out + i, some / (1.0f + exponential(-some)) * load(up + i));
    }
    for (; i < width; i++) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void gelu_tanh_row(const float *gate, const float *up, float *out, long width) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec some = load(gate + i);
        vec twice = (some + some * some * some * GELU_INNER) * GELU_OUTER;
        store(out + i, some / (1.0f + exponential(-twice)) * load(up + i));
    }
    for (; i < width; i++) {
        float x = gate[i], twice = (x + x * x * x * GELU_INNER) * GELU_OUTER;
        out[i] = x / (1.0f + expf(-twice)) * up[i];
    }
}

static void gate_rows(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct gate *job = argument;
    long width = job->width, end = min_long(job->rows, (index + 1) * CHUNK);
    add_lora(job->lora, index * CHUNK, end);
    for (long row = index * CHUNK; row < end; row++) {
        const float *gate = job->gate_up + row * 2 * width, *up = gate + width;
        float *out = job->out + row * width;
        if (job->activation == GELU_TANH)
            gelu_tanh_row(gate, up, out, width);
        else
            silu_row(gate, up, out, width);
    }
}

void tinkex_gate(const struct team *team, const struct gate *job) {
    parallel_for(team, gate_rows, job, (job->rows + CHUNK - 1) / CHUNK);
}

/* --- RoPE of queries and keys; keys and values to the KV cache ---------------------------------- */

struct rotate {
    float *qkv;             /* [rows][(heads + 2 * kv heads) * width]; rotated and scaled in place */
    const float *cos, *sin; /* [positions][rotated / 2] */
    const int64_t *positions;
    const int32_t *slots; /* [rows][2]: block (~n is a spare one) and offset in it */
    float *keys, *values; /* of the layer: [blocks][kv heads][width][BLOCK], [...][BLOCK][width] */
    float *spare_keys, *spare_values;
    const float *query_norm, *key_norm; /* or null */
    int64_t rows, heads, kv_heads, width;
    int64_t rotated;       /* how many features of a head are rotated, the first ones */
    int64_t norm_is_whole; /* whether QK norm is over all heads of a row together */
    float eps, query_scale;
    const struct lora *lora; /* or null */
};

/* Rotates one head of one row: `a` and `b` are its halves. */
INLINE void rotate_halves(float *restrict a, float *restrict b, const float *restrict cos,
                          const float *restrict sin, long half, float scale) {
    for (long i = 0; i < half; i++) {
        float left = a[i], right = b[i];
        a[i] = (left * cos[i] - right * sin[i]) * scale;
        b[i] = (right * cos[i] + left * sin[i]) * scale;
    }
}

static void norm_in_place(float *x, const float *weight, long width, float eps) {
    float unit = norm_scale(x, width, eps);
    for (long i = 0; i < width; i++) x[i] = x[i] * unit * weight[i];
}

static void rotate_head(const struct rotate *job, float *x, const float *weight, const float *cos,
                        const float *sin, float scale) {
    long half = job->rotated / 2;
    if (weight && !job->norm_is_whole) norm_in_place(x, weight, job->width, job->eps);
    for (long i = job->rotated; i < job->width; i++) x[i] *= scale;
    if (half == 32) /* the most common size; a constant is faster */
        rotate_halves(x, x + half, cos, sin, 32, scale);
    else
        rotate_halves(x, x + half, cos, sin, half, scale);
}

/* How many rows, starting at `row`, have consecutive slots of one block. */
static long consecutive_rows(const int32_t *slots, long row, long end) {
    long next = row + 1;
    while (next < end && slots[2 * next] == slots[2 * row] &&
           slots[2 * next + 1] == slots[2 * row + 1] + next - row)
        next++;
    return next - row;
}

/* Writes keys and values of rows with consecutive slots to the KV cache. */
static void store_kv(const struct rotate *job, long row, long count, long stride) {
    long width = job->width, all = job->kv_heads * width;
    int32_t block = job->slots[2 * row], offset = job->slots[2 * row + 1];
    const float *key = job->qkv + row * stride + job->heads * width, *value = key + all;
    float *keys = block >= 0 ? job->keys + block * all * BLOCK : job->spare_keys + ~block * all * BLOCK;
    float *values =
        block >= 0 ? job->values + block * all * BLOCK : job->spare_values + ~block * all * BLOCK;
    for (long c = 0; c < all; c++)
        for (long i = 0; i < count; i++) keys[c * BLOCK + offset + i] = key[i * stride + c];
    for (long i = 0; i < count; i++)
        for (long h = 0; h < job->kv_heads; h++)
            memcpy(values + (h * BLOCK + offset + i) * width, value + i * stride + h * width,
                   sizeof(float) * width);
}

static void rotate_rows(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct rotate *job = argument;
    long width = job->width, stride = (job->heads + 2 * job->kv_heads) * width;
    long first = index * CHUNK, end = min_long(job->rows, first + CHUNK);
    add_lora(job->lora, first, end);
    for (long row = first; row < end; row++) {
        const float *cos = job->cos + job->positions[row] * (job->rotated / 2);
        const float *sin = job->sin + job->positions[row] * (job->rotated / 2);
        float *query = job->qkv + row * stride, *key = query + job->heads * width;
        if (job->query_norm && job->norm_is_whole) {
            norm_in_place(query, job->query_norm, job->heads * width, job->eps);
            norm_in_place(key, job->key_norm, job->kv_heads * width, job->eps);
        }
        for (long h = 0; h < job->heads; h++)
            rotate_head(job, query + h * width, job->query_norm, cos, sin, job->query_scale);
        for (long h = 0; h < job->kv_heads; h++)
            rotate_head(job, key + h * width, job->key_norm, cos, sin, 1.0f);
    }
    for (long row = first, count; row < end; row += count) {
        count = consecutive_rows(job->slots, row, end);
        store_kv(job, row, count, stride);
    }
}

void tinkex_rotate(const struct team *team, const struct rotate *job) {
    parallel_for(team, rotate_rows, job, (job->rows + CHUNK - 1) / CHUNK);
}
