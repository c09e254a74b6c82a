/*
 * Preloaded into one process: its clocks are ahead of the machine's by what the file named in SHIFTED_CLOCK
 * holds, two doubles in seconds: of the time of day, and of the time since the boot. They may change at any
 * time. CLOCK_MONOTONIC is left alone, as it is by who sets a clock, and by a machine that sleeps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *ahead;

__attribute__((constructor)) static void find(void)
{
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, 2 * sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        ahead = page;
}

static void add(struct timespec *at, double seconds)
{
    double whole = (double)(long long)seconds;
    at->tv_sec += (time_t)whole;
    at->tv_nsec += (long)((seconds - whole) * 1e9);
    if (at->tv_nsec >= 1000000000L) {
        at->tv_sec++;
        at->tv_nsec -= 1000000000L;
    } else if (at->tv_nsec < 0) {
        at->tv_sec--;
        at->tv_nsec += 1000000000L;
    }
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && ahead) {
        if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
            add(at, ahead[0]);
        else if (clock == CLOCK_BOOTTIME)
            add(at, ahead[1]);
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
