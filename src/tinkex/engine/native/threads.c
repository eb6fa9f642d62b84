/* A parallel loop: every thread takes the next task until there is none left. */
#include "common.h"

struct parallel_job {
    const struct team *team;
    task run;
    const void *job;
    long count, next, joined;
};

static void run_tasks(void *argument) {
    struct parallel_job *shared = argument;
    long thread = __atomic_fetch_add(&shared->joined, 1, __ATOMIC_RELAXED);
    float *scratch = shared->team->scratch + thread * shared->team->scratch_floats;
    for (;;) {
        long index = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (index >= shared->count) return;
        shared->run(shared->job, index, scratch);
    }
}

void parallel_for(const struct team *team, task run, const void *job, long count) {
    struct parallel_job shared = {team, run, job, count, 0, 0};
    /* The whole team or one thread: GOMP ends the threads that a smaller team leaves over, and
     * torch's next operation would have to start them again. */
    if (team->threads > 1 && count > 1)
        team->parallel(run_tasks, &shared, (unsigned)team->threads, 0);
    else
        run_tasks(&shared);
}
