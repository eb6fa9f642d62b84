/* An operating system that can be told to fail: preloaded into a server and its engine.
 *
 * A file that both sides map says what to do now: how far the wall clock is off, and which calls
 * fail, with which error, below which path, after how many that still succeed and how often.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNC = 1, WRITE = 2, OPEN = 4, MAKE = 8, RENAME = 16, REMOVE = 32 };

struct orders {
    int64_t clock_offset_s;
    int32_t calls;     /* which kinds of calls fail */
    int32_t error;     /* with which errno */
    int32_t skip;      /* how many succeed first */
    int32_t times;     /* how many fail then; negative: all */
    int32_t num_seen;  /* calls of these kinds below the path since the orders were given */
    int32_t num_failed;
    char below[4096];
};

static struct orders *orders;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void map_orders(void) {
    const char *path = getenv("TINKEX_TEST_BROKEN_OS");
    if (!path) return;
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int handle = real_open(path, O_RDWR);
    if (handle < 0) return;
    void *at = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
    if (at != MAP_FAILED) orders = at;
}

static int is_below(const char *path) {
    size_t length = strlen(orders->below);
    return length && !strncmp(path, orders->below, length);
}

/* Whether this call is to fail; errno is set then. */
static int fails(int kind, const char *path) {
    if (!orders || !(orders->calls & kind) || !is_below(path)) return 0;
    int seen = __atomic_fetch_add(&orders->num_seen, 1, __ATOMIC_SEQ_CST);
    if (seen < orders->skip) return 0;
    if (orders->times >= 0 && seen >= orders->skip + orders->times) return 0;
    __atomic_fetch_add(&orders->num_failed, 1, __ATOMIC_SEQ_CST);
    errno = orders->error;
    return 1;
}

static int handle_fails(int kind, int handle) {
    if (!orders || !(orders->calls & kind)) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

static int path_fails(int kind, int folder, const char *path) {
    if (!orders || !(orders->calls & kind)) return 0;
    if (path[0] == '/' || folder == AT_FDCWD) return fails(kind, path);
    return handle_fails(kind, folder);
}

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }

int clock_gettime(clockid_t id, struct timespec *at) {
    REAL(clock_gettime);
    int result = real(id, at);
    if (!result && orders && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += orders->clock_offset_s;
    return result;
}

int gettimeofday(struct timeval *at, void *zone) {
    REAL(gettimeofday);
    int result = real(at, zone);
    if (!result && orders) at->tv_sec += orders->clock_offset_s;
    return result;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int fsync(int handle) {
    REAL(fsync);
    return handle_fails(SYNC, handle) ? -1 : real(handle);
}

int fdatasync(int handle) {
    REAL(fdatasync);
    return handle_fails(SYNC, handle) ? -1 : real(handle);
}

ssize_t write(int handle, const void *from, size_t count) {
    REAL(write);
    return handle_fails(WRITE, handle) ? -1 : real(handle, from, count);
}

ssize_t writev(int handle, const struct iovec *parts, int count) {
    REAL(writev);
    return handle_fails(WRITE, handle) ? -1 : real(handle, parts, count);
}

ssize_t pwrite(int handle, const void *from, size_t count, off_t at) {
    REAL(pwrite);
    return handle_fails(WRITE, handle) ? -1 : real(handle, from, count, at);
}

ssize_t pwrite64(int handle, const void *from, size_t count, off64_t at) {
    REAL(pwrite64);
    return handle_fails(WRITE, handle) ? -1 : real(handle, from, count, at);
}

int ftruncate(int handle, off_t size) {
    REAL(ftruncate);
    return handle_fails(WRITE, handle) ? -1 : real(handle, size);
}

int ftruncate64(int handle, off64_t size) {
    REAL(ftruncate64);
    return handle_fails(WRITE, handle) ? -1 : real(handle, size);
}

#define OPENING(name, folder, ...) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    REAL(name); \
    return writes(flags) && path_fails(OPEN, folder, path) ? -1 : real(__VA_ARGS__, flags, mode);

int open(const char *path, int flags, ...) { OPENING(open, AT_FDCWD, path) }
int open64(const char *path, int flags, ...) { OPENING(open64, AT_FDCWD, path) }
int openat(int folder, const char *path, int flags, ...) { OPENING(openat, folder, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPENING(openat64, folder, folder, path) }

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return path_fails(MAKE, AT_FDCWD, path) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return path_fails(RENAME, AT_FDCWD, from) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return path_fails(REMOVE, AT_FDCWD, path) ? -1 : real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    return path_fails(REMOVE, folder, path) ? -1 : real(folder, path, flags);
}

int rmdir(const char *path) {
    REAL(rmdir);
    return path_fails(REMOVE, AT_FDCWD, path) ? -1 : real(path);
}
