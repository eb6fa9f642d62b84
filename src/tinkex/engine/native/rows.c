/* What happens to each row of a step by itself: norms, activation, positions, the way into the
 * cache. */
#include "common.h"

#define CHUNK 12 /* rows of a task: few enough to stay in the cache from one use to the next */

INLINE float norm_scale(const float *x, long width, float eps) {
    vec total = all_lanes(0.0f);
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec some = load(x + i);
        total += some * some;
    }
    float sum = sum_of(total);
    for (; i < width; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

/* --- x += plus; out = x at unit root mean square, times a weight ------------------------------- */

struct norm {
    float *x;                 /* [rows][width] */
    float *plus;              /* the same, or null */
    const float *plus_weight; /* of a norm on `plus` before it is added, or null */
    const float *weight;      /* null: x stays as it is, and there is no `out` */
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
    long width = job->width, end = least(job->rows, (index + 1) * CHUNK);
    lift(job->lora, index * CHUNK, end);
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
    share(team, norm_rows, job, (job->rows + CHUNK - 1) / CHUNK);
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
    long width = job->width, end = least(job->rows, (index + 1) * CHUNK);
    lift(job->lora, index * CHUNK, end);
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
    share(team, gate_rows, job, (job->rows + CHUNK - 1) / CHUNK);
}

/* --- queries and keys turned by their positions; keys and values into the cache ---------------- */

struct turn {
    float *qkv;             /* [rows][(heads + 2 * key heads) * width]; queries stay here, scaled */
    const float *cos, *sin; /* [positions][rotated / 2] */
    const int64_t *positions;
    const int32_t *places; /* [rows][2]: block (~n is a spare one) and place in it */
    float *keys, *values;  /* of the layer: [blocks][key heads][width][BLOCK], [...][BLOCK][width] */
    float *spare_keys, *spare_values;
    const float *query_norm, *key_norm; /* or null */
    int64_t rows, heads, key_heads, width;
    int64_t rotated;       /* features of a head that are turned, the first ones */
    int64_t norm_is_whole; /* whether a norm is over all heads of a row together */
    float eps, query_scale;
    const struct lora *lora; /* or null */
};

/* One head of one row: `a` and `b` are its halves. */
INLINE void turn_halves(float *restrict a, float *restrict b, const float *restrict cos,
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

static void turn_head(const struct turn *job, float *x, const float *weight, const float *cos,
                      const float *sin, float scale) {
    long half = job->rotated / 2;
    if (weight && !job->norm_is_whole) norm_in_place(x, weight, job->width, job->eps);
    for (long i = job->rotated; i < job->width; i++) x[i] *= scale;
    if (half == 32) /* what most models have: a constant is faster */
        turn_halves(x, x + half, cos, sin, 32, scale);
    else
        turn_halves(x, x + half, cos, sin, half, scale);
}

/* How many rows from this one on lie behind each other in one block. */
static long neighbours(const int32_t *places, long row, long end) {
    long next = row + 1;
    while (next < end && places[2 * next] == places[2 * row] &&
           places[2 * next + 1] == places[2 * row + 1] + next - row)
        next++;
    return next - row;
}

/* Keys and values of rows that lie behind each other, to their place in the cache. */
static void keep(const struct turn *job, long row, long count, long stride) {
    long width = job->width, all = job->key_heads * width;
    int32_t block = job->places[2 * row], place = job->places[2 * row + 1];
    const float *key = job->qkv + row * stride + job->heads * width, *value = key + all;
    float *keys = block >= 0 ? job->keys + block * all * BLOCK : job->spare_keys + ~block * all * BLOCK;
    float *values =
        block >= 0 ? job->values + block * all * BLOCK : job->spare_values + ~block * all * BLOCK;
    for (long c = 0; c < all; c++)
        for (long i = 0; i < count; i++) keys[c * BLOCK + place + i] = key[i * stride + c];
    for (long i = 0; i < count; i++)
        for (long h = 0; h < job->key_heads; h++)
            memcpy(values + (h * BLOCK + place + i) * width, value + i * stride + h * width,
                   sizeof(float) * width);
}

static void turn_rows(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct turn *job = argument;
    long width = job->width, stride = (job->heads + 2 * job->key_heads) * width;
    long first = index * CHUNK, end = least(job->rows, first + CHUNK);
    lift(job->lora, first, end);
    for (long row = first; row < end; row++) {
        const float *cos = job->cos + job->positions[row] * (job->rotated / 2);
        const float *sin = job->sin + job->positions[row] * (job->rotated / 2);
        float *query = job->qkv + row * stride, *key = query + job->heads * width;
        if (job->query_norm && job->norm_is_whole) {
            norm_in_place(query, job->query_norm, job->heads * width, job->eps);
            norm_in_place(key, job->key_norm, job->key_heads * width, job->eps);
        }
        for (long h = 0; h < job->heads; h++)
            turn_head(job, query + h * width, job->query_norm, cos, sin, job->query_scale);
        for (long h = 0; h < job->key_heads; h++)
            turn_head(job, key + h * width, job->key_norm, cos, sin, 1.0f);
    }
    for (long row = first, count; row < end; row += count) {
        count = neighbours(job->places, row, end);
        keep(job, row, count, stride);
    }
}

void tinkex_turn(const struct team *team, const struct turn *job) {
    share(team, turn_rows, job, (job->rows + CHUNK - 1) / CHUNK);
}
