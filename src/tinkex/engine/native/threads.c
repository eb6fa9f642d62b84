/* Work divided among threads: each takes the next task until there is none. */
#include "common.h"

struct shared {
    const struct team *team;
    task run;
    const void *job;
    long count, next, joined;
};

static void take_part(void *argument) {
    struct shared *shared = argument;
    long place = __atomic_fetch_add(&shared->joined, 1, __ATOMIC_RELAXED);
    float *scratch = shared->team->scratch + place * shared->team->scratch_floats;
    for (;;) {
        long index = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (index >= shared->count) return;
        shared->run(shared->job, index, scratch);
    }
}

void share(const struct team *team, task run, const void *job, long count) {
    struct shared shared = {team, run, job, count, 0, 0};
    /* All of the team or one: a smaller team would end threads that torch's next operation needs. */
    if (team->threads > 1 && count > 1)
        team->parallel(take_part, &shared, (unsigned)team->threads, 0);
    else
        take_part(&shared);
}
