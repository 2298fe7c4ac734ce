/* Loaded into a process (LD_PRELOAD): its time of day is the system's plus what a file says.

   FAULTS_CLOCK names the file: nanoseconds as a signed 64-bit number of this machine. The monotonic clock is
   left alone, as it is when somebody sets a machine's clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *step;
static int (*read_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
    read_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("FAULTS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) step = mapped;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!read_clock) read_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = read_clock(id, at);
    if (!failed && step && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long nanoseconds = at->tv_sec * 1000000000LL + at->tv_nsec + *step;
        at->tv_sec = nanoseconds / 1000000000LL;
        at->tv_nsec = nanoseconds % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
