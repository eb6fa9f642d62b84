/* Paged attention of a step: the rows of prompts and of running sequences over the KV cache.
 *
 * A block of the cache holds keys as [features][tokens] and values as [tokens][features], so both
 * products read it without a transposition. A chunk is some consecutive rows of one sequence. Cache
 * entries beyond the last row of a chunk do not affect its results, even if they are not finite.
 */
#include "common.h"

#define MAX_TILES 4 /* tiles of queries that read the blocks together */

/* Read by callers: the block size of the cache, and how many queries of a task hold scores at the
 * same time, one for every token of the context (this sizes the scratch memory). */
const int64_t tinkex_block_tokens = BLOCK, tinkex_queries_at_once = MAX_TILES * TILE_ROWS;

struct attention {
    const float *queries; /* [rows][query_stride], heads first, rotated and scaled */
    float *out;           /* [rows][heads * width] */
    const float *keys, *values;             /* of the layer: [blocks][kv heads][BLOCK * width] */
    const float *spare_keys, *spare_values; /* blocks that are not kept; block ~n of a table */
    const int32_t *block_tables;            /* the blocks of all sequences */
    const int32_t *chunks;                  /* [chunks][4]: first row, rows, position, table */
    int64_t num_chunks, query_stride, heads, kv_heads, width, window;
    int64_t heads_at_once; /* key/value heads of a task: 1, or all */
};

/* A few queries of one key/value head. */
struct tile {
    long count, kv_head;
    const float *query[TILE_ROWS];
    float *prob[TILE_ROWS]; /* by position, counted from the first block attended to */
    float *out[TILE_ROWS];
    long first[TILE_ROWS], end[TILE_ROWS]; /* the positions each attends to */
};

/* The blocks that the queries of a call attend to. */
struct view {
    const int32_t *table;
    long first_block, blocks, end;
};

static const float *block_of(const float *kept, const float *spare, int32_t block, long floats) {
    return block >= 0 ? kept + block * floats : spare + ~block * floats;
}

/* Turns the scores of one query into probabilities that are not yet normalized, and returns their
 * sum. Those of positions outside first..end become zero. */
static float softmax_row(float *score, long first, long end, long whole) {
    long begin = first / LANES * LANES, stop = (end + LANES - 1) / LANES * LANES;
    for (long i = begin; i < first; i++) score[i] = -INFINITY;
    for (long i = end; i < stop; i++) score[i] = -INFINITY;
    vec max_lanes = load(score + begin);
    for (long i = begin + LANES; i < stop; i += LANES) {
        vec some = load(score + i);
        max_lanes = blend(some > max_lanes, some, max_lanes);
    }
    float max_score = max_lanes[0];
    for (int i = 1; i < LANES; i++) max_score = max_lanes[i] > max_score ? max_lanes[i] : max_score;
    vec total = broadcast(0.0f);
    for (long i = begin; i < stop; i += LANES) {
        vec prob = exponential(load(score + i) - max_score);
        store(score + i, prob);
        total += prob;
    }
    for (long i = 0; i < first; i++) score[i] = 0.0f;
    for (long i = end; i < whole; i++) score[i] = 0.0f;
    return reduce_add(total);
}

static void score_block(const struct attention *job, const struct tile *tile, const float *keys,
                  long place) {
    float *prob[TILE_ROWS];
    for (long i = 0; i < tile->count; i++) prob[i] = tile->prob[i] + place;
    product(tile->count, tile->query, job->width, keys + tile->kv_head * job->width * BLOCK, BLOCK,
            BLOCK, prob, 0);
}

static void add_values(const struct attention *job, const struct tile *tile, const float *values,
                   long place, long tokens) {
    const float *prob[TILE_ROWS];
    for (long i = 0; i < tile->count; i++) prob[i] = tile->prob[i] + place;
    product(tile->count, prob, tokens, values + tile->kv_head * job->width * BLOCK, job->width,
            job->width, tile->out, place > 0);
}

/* Tiles that attend to the same blocks. Block by block, all key/value heads of a block before the
 * next block: they are adjacent in memory, and long reads are twice as fast as short ones. */
static void attend_tiles(const struct attention *job, struct tile *tiles, long count,
                         const struct view *view) {
    long floats = job->kv_heads * job->width * BLOCK, base = view->first_block * BLOCK;
    for (long b = view->first_block; b < view->blocks; b++) {
        const float *keys = block_of(job->keys, job->spare_keys, view->table[b], floats);
        for (long t = 0; t < count; t++) score_block(job, tiles + t, keys, b * BLOCK - base);
    }
    float total[MAX_TILES][TILE_ROWS];
    for (long t = 0; t < count; t++)
        for (long i = 0; i < tiles[t].count; i++)
            total[t][i] = softmax_row(tiles[t].prob[i], tiles[t].first[i] - base,
                                 tiles[t].end[i] - base, view->blocks * BLOCK - base);
    for (long b = view->first_block; b < view->blocks; b++) {
        const float *values = block_of(job->values, job->spare_values, view->table[b], floats);
        long tokens = min_long(BLOCK, view->end - b * BLOCK);
        for (long t = 0; t < count; t++)
            add_values(job, tiles + t, values, b * BLOCK - base, tokens);
    }
    for (long t = 0; t < count; t++)
        for (long i = 0; i < tiles[t].count; i++)
            for (long c = 0; c < job->width; c++) tiles[t].out[i][c] /= total[t][i];
}

static void add_query(const struct attention *job, struct tile *tile, const int32_t *chunk,
                      long row, long head, float *prob) {
    long i = tile->count++, end = chunk[2] + row + 1;
    tile->query[i] = job->queries + (chunk[0] + row) * job->query_stride + head * job->width;
    tile->out[i] = job->out + ((chunk[0] + row) * job->heads + head) * job->width;
    tile->prob[i] = prob;
    tile->end[i] = end;
    tile->first[i] = job->window && end > job->window ? end - job->window : 0;
}

/* Key/value heads `from..to` of a chunk. In a chunk of several rows each tile reads the blocks by
 * itself; the heads of a single row read them together. */
static void attend_heads(const struct attention *job, const int32_t *chunk, long from, long to,
                         float *scratch) {
    struct tile tiles[MAX_TILES];
    long group = job->heads / job->kv_heads, queries = chunk[1] * group, num_tiles = 0;
    long longest = (chunk[2] + chunk[1] + BLOCK - 1) / BLOCK * BLOCK;
    long max_tiles = chunk[1] > 1 ? 1 : MAX_TILES;
    for (long kv_head = from; kv_head < to; kv_head++)
        for (long start = 0; start < queries; start += TILE_ROWS) {
            struct tile *tile = tiles + num_tiles;
            tile->count = 0;
            tile->kv_head = kv_head;
            for (long i = start; i < min_long(queries, start + TILE_ROWS); i++)
                add_query(job, tile, chunk, i / group, kv_head * group + i % group,
                          scratch + (num_tiles * TILE_ROWS + tile->count) * longest);
            int is_last = kv_head == to - 1 && start + TILE_ROWS >= queries;
            if (++num_tiles < max_tiles && !is_last) continue;
            long end = tiles[0].end[tiles[0].count - 1];
            struct view view = {job->block_tables + chunk[3], tiles[0].first[0] / BLOCK,
                                (end + BLOCK - 1) / BLOCK, end};
            attend_tiles(job, tiles, num_tiles, &view);
            num_tiles = 0;
        }
}

static void attend_chunk(const void *argument, long index, float *scratch) {
    const struct attention *job = argument;
    long tasks = job->kv_heads / job->heads_at_once;
    long from = index % tasks * job->heads_at_once;
    attend_heads(job, job->chunks + index / tasks * 4, from, from + job->heads_at_once, scratch);
}

void tinkex_attend(const struct team *team, const struct attention *job) {
    parallel_for(team, attend_chunk, job, job->num_chunks * (job->kv_heads / job->heads_at_once));
}
