/* LoRA of a step's rows, added to what the base model's matrix gave: y += (x @ A) @ B.
 *
 * Rows of one adapter lie side by side, a run. A and B are copies laid out for this, the scale is in
 * B. First every run's rows times its A, which is narrow. The product with B is left to the kernel
 * that reads the sum next (`lift`), some rows at a time, so that they are in the cache; of few rows
 * all columns are shared out instead.
 */
#include "common.h"

#define ROWS 12     /* of a task */
#define COLUMNS 256 /* of a task where rows are few */
#define FEW_ROWS 24

struct run {
    int32_t first, end, adapter; /* its rows */
};

struct adapter {
    const float *a; /* [inputs][a_stride]; null: no LoRA here */
    const float *b; /* [rank][b_stride] */
};

struct shape {
    int64_t rank, a_stride; /* the latter is the rank of all parts, in whole vectors */
};

struct lora {
    const float *x; /* [rows][inputs] */
    float *y;       /* [rows][outputs] */
    float *down;    /* [rows][down_stride] */
    const struct run *runs;
    const int32_t *run_of; /* [rows], -1: none */
    const struct adapter *adapters;
    const struct shape *shapes; /* of each adapter; by the number of parts */
    int64_t part_ends[3];       /* columns of the output */
    int64_t num_parts, num_runs, rows, inputs, outputs, down_stride, b_stride;
};

static int has_few_rows(const struct lora *job) { return job->rows <= FEW_ROWS; }

static void go_down(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct lora *job = argument;
    long end = least(job->rows, (index + 1) * ROWS), rows;
    for (long row = index * ROWS; row < end; row += rows) {
        rows = 1;
        if (job->run_of[row] < 0) continue;
        const struct run *run = job->runs + job->run_of[row];
        const struct adapter *adapter = job->adapters + run->adapter;
        long stride = job->shapes[run->adapter].a_stride;
        rows = least(TILE_ROWS, least(end, run->end) - row);
        if (!adapter->a) continue;
        const float *x[TILE_ROWS];
        float *down[TILE_ROWS];
        for (long i = 0; i < rows; i++) {
            x[i] = job->x + (row + i) * job->inputs;
            down[i] = job->down + (row + i) * job->down_stride;
        }
        product(rows, x, job->inputs, adapter->a, stride, stride, down, 0);
    }
}

/* Columns `from..to` of a part, of rows of one run. */
static void go_up(const struct lora *job, const struct run *run, long first, long end, long part,
                  long from, long to) {
    const struct adapter *adapter = job->adapters + run->adapter;
    long rank = job->shapes[run->adapter].rank;
    for (long row = first; row < end; row += TILE_ROWS) {
        long rows = least(TILE_ROWS, end - row);
        const float *down[TILE_ROWS];
        float *y[TILE_ROWS];
        for (long i = 0; i < rows; i++) {
            down[i] = job->down + (row + i) * job->down_stride + part * rank;
            y[i] = job->y + (row + i) * job->outputs + from;
        }
        product(rows, down, rank, adapter->b + from, job->b_stride, to - from, y, 1);
    }
}

static void lift_rows(const struct lora *job, const struct run *run, long first, long end) {
    if (!job->adapters[run->adapter].a) return;
    for (long part = 0; part < job->num_parts; part++)
        for (long from = part ? job->part_ends[part - 1] : 0; from < job->part_ends[part];
             from += COLUMNS)
            go_up(job, run, first, end, part, from, least(job->part_ends[part], from + COLUMNS));
}

void lift(const struct lora *job, long first, long end) {
    if (!job || has_few_rows(job)) return;
    for (long row = first, next; row < end; row = next) {
        next = row + 1;
        if (job->run_of[row] < 0) continue;
        const struct run *run = job->runs + job->run_of[row];
        next = least(end, run->end);
        lift_rows(job, run, row, next);
    }
}

static long spans_of(const struct lora *job) {
    return (job->outputs + COLUMNS - 1) / COLUMNS;
}

static void lift_columns(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct lora *job = argument;
    const struct run *run = job->runs + index / spans_of(job);
    long first = index % spans_of(job) * COLUMNS, last = least(job->outputs, first + COLUMNS);
    if (!job->adapters[run->adapter].a) return;
    for (long part = 0; part < job->num_parts; part++) {
        long start = part ? job->part_ends[part - 1] : 0;
        long from = first > start ? first : start, to = least(last, job->part_ends[part]);
        if (from < to) go_up(job, run, run->first, run->end, part, from, to);
    }
}

void tinkex_lora(const struct team *team, const struct lora *job) {
    share(team, go_down, job, (job->rows + ROWS - 1) / ROWS);
    if (has_few_rows(job)) share(team, lift_columns, job, job->num_runs * spans_of(job));
}
