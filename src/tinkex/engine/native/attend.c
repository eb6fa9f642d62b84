/* Attention of a step's rows to the block cache, rows of prompts and single ones alike.
 *
 * A block of the cache holds keys features first and values tokens first, so both products read it
 * as it lies. Some consecutive rows of one sequence make a chunk. Nothing beyond the last row of a
 * chunk has a share in its numbers, whatever lies there.
 */
#include "common.h"

#define MOST_TILES 4 /* of queries that go through the blocks together */

/* What callers have to know: how the cache is cut up, and how many queries of a task hold weights,
 * one for every place they may see, at the same time. */
const int64_t tinkex_block_tokens = BLOCK, tinkex_queries_at_once = MOST_TILES * TILE_ROWS;

struct attention {
    const float *queries; /* [rows][query_stride], heads first, turned and scaled */
    float *seen;          /* [rows][heads * width] */
    const float *keys, *values;             /* of the layer: [blocks][key heads][BLOCK * width] */
    const float *spare_keys, *spare_values; /* blocks that are not kept; block ~n of a table */
    const int32_t *tables;                  /* the blocks of all sequences */
    const int32_t *chunks;                  /* [chunks][4]: first row, rows, position, table */
    int64_t num_chunks, query_stride, heads, key_heads, width, window;
    int64_t heads_at_once; /* key heads of a task: 1, or all */
};

/* A few queries of one key head. */
struct tile {
    long count, key_head;
    const float *query[TILE_ROWS];
    float *weight[TILE_ROWS]; /* by place, counted from the first block that is seen */
    float *out[TILE_ROWS];
    long first[TILE_ROWS], end[TILE_ROWS]; /* the places each sees */
};

/* The blocks that queries which are computed together see. */
struct view {
    const int32_t *table;
    long first_block, blocks, end;
};

static const float *block_of(const float *kept, const float *spare, int32_t block, long floats) {
    return block >= 0 ? kept + block * floats : spare + ~block * floats;
}

/* Turns scores into weights; those of places the query does not see are zero. Their sum. */
static float soften(float *score, long first, long end, long whole) {
    long begin = first / LANES * LANES, stop = (end + LANES - 1) / LANES * LANES;
    for (long i = begin; i < first; i++) score[i] = -INFINITY;
    for (long i = end; i < stop; i++) score[i] = -INFINITY;
    vec highest = load(score + begin);
    for (long i = begin + LANES; i < stop; i += LANES) {
        vec some = load(score + i);
        highest = choose(some > highest, some, highest);
    }
    float most = highest[0];
    for (int i = 1; i < LANES; i++) most = highest[i] > most ? highest[i] : most;
    vec total = all_lanes(0.0f);
    for (long i = begin; i < stop; i += LANES) {
        vec weight = exponential(load(score + i) - most);
        store(score + i, weight);
        total += weight;
    }
    for (long i = 0; i < first; i++) score[i] = 0.0f;
    for (long i = end; i < whole; i++) score[i] = 0.0f;
    return sum_of(total);
}

static void score(const struct attention *job, const struct tile *tile, const float *keys,
                  long place) {
    float *weight[TILE_ROWS];
    for (long i = 0; i < tile->count; i++) weight[i] = tile->weight[i] + place;
    product(tile->count, tile->query, job->width, keys + tile->key_head * job->width * BLOCK, BLOCK,
            BLOCK, weight, 0);
}

static void gather(const struct attention *job, const struct tile *tile, const float *values,
                   long place, long tokens) {
    const float *weight[TILE_ROWS];
    for (long i = 0; i < tile->count; i++) weight[i] = tile->weight[i] + place;
    product(tile->count, weight, tokens, values + tile->key_head * job->width * BLOCK, job->width,
            job->width, tile->out, place > 0);
}

/* Tiles that see the same blocks. Block by block, all key heads of one before the next: they lie
 * side by side, and long runs of memory are read twice as fast as short ones. */
static void attend_tiles(const struct attention *job, struct tile *tiles, long count,
                         const struct view *view) {
    long floats = job->key_heads * job->width * BLOCK, base = view->first_block * BLOCK;
    for (long b = view->first_block; b < view->blocks; b++) {
        const float *keys = block_of(job->keys, job->spare_keys, view->table[b], floats);
        for (long t = 0; t < count; t++) score(job, tiles + t, keys, b * BLOCK - base);
    }
    float total[MOST_TILES][TILE_ROWS];
    for (long t = 0; t < count; t++)
        for (long i = 0; i < tiles[t].count; i++)
            total[t][i] = soften(tiles[t].weight[i], tiles[t].first[i] - base,
                                 tiles[t].end[i] - base, view->blocks * BLOCK - base);
    for (long b = view->first_block; b < view->blocks; b++) {
        const float *values = block_of(job->values, job->spare_values, view->table[b], floats);
        long tokens = least(BLOCK, view->end - b * BLOCK);
        for (long t = 0; t < count; t++) gather(job, tiles + t, values, b * BLOCK - base, tokens);
    }
    for (long t = 0; t < count; t++)
        for (long i = 0; i < tiles[t].count; i++)
            for (long c = 0; c < job->width; c++) tiles[t].out[i][c] /= total[t][i];
}

static void add_query(const struct attention *job, struct tile *tile, const int32_t *chunk,
                      long row, long head, float *weight) {
    long i = tile->count++, end = chunk[2] + row + 1;
    tile->query[i] = job->queries + (chunk[0] + row) * job->query_stride + head * job->width;
    tile->out[i] = job->seen + ((chunk[0] + row) * job->heads + head) * job->width;
    tile->weight[i] = weight;
    tile->end[i] = end;
    tile->first[i] = job->window && end > job->window ? end - job->window : 0;
}

/* Key heads `from..to` of a chunk. Of several rows each tile goes through the blocks by itself; the
 * heads of a single row go together. */
static void attend_heads(const struct attention *job, const int32_t *chunk, long from, long to,
                         float *scratch) {
    struct tile tiles[MOST_TILES];
    long group = job->heads / job->key_heads, queries = chunk[1] * group, num_tiles = 0;
    long longest = (chunk[2] + chunk[1] + BLOCK - 1) / BLOCK * BLOCK;
    long most = chunk[1] > 1 ? 1 : MOST_TILES;
    for (long key_head = from; key_head < to; key_head++)
        for (long start = 0; start < queries; start += TILE_ROWS) {
            struct tile *tile = tiles + num_tiles;
            tile->count = 0;
            tile->key_head = key_head;
            for (long i = start; i < least(queries, start + TILE_ROWS); i++)
                add_query(job, tile, chunk, i / group, key_head * group + i % group,
                          scratch + (num_tiles * TILE_ROWS + tile->count) * longest);
            int is_last = key_head == to - 1 && start + TILE_ROWS >= queries;
            if (++num_tiles < most && !is_last) continue;
            long end = tiles[0].end[tiles[0].count - 1];
            struct view view = {job->tables + chunk[3], tiles[0].first[0] / BLOCK,
                                (end + BLOCK - 1) / BLOCK, end};
            attend_tiles(job, tiles, num_tiles, &view);
            num_tiles = 0;
        }
}

static void attend_chunk(const void *argument, long index, float *scratch) {
    const struct attention *job = argument;
    long tasks = job->key_heads / job->heads_at_once;
    long from = index % tasks * job->heads_at_once;
    attend_heads(job, job->chunks + index / tasks * 4, from, from + job->heads_at_once, scratch);
}

void tinkex_attend(const struct team *team, const struct attention *job) {
    share(team, attend_chunk, job, job->num_chunks * (job->key_heads / job->heads_at_once));
}
