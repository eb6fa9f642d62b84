/* LoRA of a step's rows, added to the base model's product: y += (x @ A) @ B.
 *
 * Consecutive rows of one adapter are a run. A and B are copies in a layout for these kernels; B
 * includes the scale. First the rows of every run are multiplied by A, which is narrow. The product
 * with B is done by the kernel that reads y next (`add_lora`), some rows at a time, while they are in
 * the CPU cache. If there are few rows, it is done here, in parallel over columns.
 */
#include "common.h"

#define ROWS 12     /* per task */
#define COLUMNS 256 /* per task if there are few rows */
#define FEW_ROWS 24

struct run {
    int32_t first, end, adapter; /* its rows */
};

struct adapter {
    const float *a; /* [inputs][a_stride]; null: no LoRA here */
    const float *b; /* [rank][b_stride] */
};

struct shape {
    int64_t rank, a_stride; /* a_stride: rank * number of parts, rounded up to whole vectors */
};

struct lora {
    const float *x; /* [rows][inputs] */
    float *y;       /* [rows][outputs] */
    float *down;    /* [rows][down_stride] */
    const struct run *runs;
    const int32_t *run_of; /* [rows], -1: none */
    const struct adapter *adapters;
    const struct shape *shapes; /* of each adapter, for this number of parts */
    int64_t part_ends[3];       /* end of each part in the columns of y */
    int64_t num_parts, num_runs, rows, inputs, outputs, down_stride, b_stride;
};

static int has_few_rows(const struct lora *job) { return job->rows <= FEW_ROWS; }

static void project_down(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct lora *job = argument;
    long end = min_long(job->rows, (index + 1) * ROWS), rows;
    for (long row = index * ROWS; row < end; row += rows) {
        rows = 1;
        if (job->run_of[row] < 0) continue;
        const struct run *run = job->runs + job->run_of[row];
        const struct adapter *adapter = job->adapters + run->adapter;
        long stride = job->shapes[run->adapter].a_stride;
        rows = min_long(TILE_ROWS, min_long(end, run->end) - row);
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

/* Columns `from..to` of a part, for rows of one run. */
static void project_up(const struct lora *job, const struct run *run, long first, long end,
                       long part, long from, long to) {
    const struct adapter *adapter = job->adapters + run->adapter;
    long rank = job->shapes[run->adapter].rank;
    for (long row = first; row < end; row += TILE_ROWS) {
        long rows = min_long(TILE_ROWS, end - row);
        const float *down[TILE_ROWS];
        float *y[TILE_ROWS];
        for (long i = 0; i < rows; i++) {
            down[i] = job->down + (row + i) * job->down_stride + part * rank;
            y[i] = job->y + (row + i) * job->outputs + from;
        }
        product(rows, down, rank, adapter->b + from, job->b_stride, to - from, y, 1);
    }
}

static void add_lora_rows(const struct lora *job, const struct run *run, long first, long end) {
    if (!job->adapters[run->adapter].a) return;
    for (long part = 0; part < job->num_parts; part++)
        for (long from = part ? job->part_ends[part - 1] : 0; from < job->part_ends[part];
             from += COLUMNS)
            project_up(job, run, first, end, part, from,
                       min_long(job->part_ends[part], from + COLUMNS));
}

void add_lora(const struct lora *job, long first, long end) {
    if (!job || has_few_rows(job)) return;
    for (long row = first, next; row < end; row = next) {
        next = row + 1;
        if (job->run_of[row] < 0) continue;
        const struct run *run = job->runs + job->run_of[row];
        next = min_long(end, run->end);
        add_lora_rows(job, run, row, next);
    }
}

static long num_column_tasks(const struct lora *job) {
    return (job->outputs + COLUMNS - 1) / COLUMNS;
}

static void add_lora_columns(const void *argument, long index, float *scratch) {
    (void)scratch;
    const struct lora *job = argument;
    const struct run *run = job->runs + index / num_column_tasks(job);
    long first = index % num_column_tasks(job) * COLUMNS;
    long last = min_long(job->outputs, first + COLUMNS);
    if (!job->adapters[run->adapter].a) return;
    for (long part = 0; part < job->num_parts; part++) {
        long start = part ? job->part_ends[part - 1] : 0;
        long from = first > start ? first : start, to = min_long(last, job->part_ends[part]);
        if (from < to) project_up(job, run, run->first, run->end, part, from, to);
    }
}

void tinkex_lora(const struct team *team, const struct lora *job) {
    parallel_for(team, project_down, job, (job->rows + ROWS - 1) / ROWS);
    if (has_few_rows(job))
        parallel_for(team, add_lora_columns, job, job->num_runs * num_column_tasks(job));
}
