/* jump.c - preloaded into a test, it makes the system's clock jump by an hour, forwards and backwards, twenty
 * times a second, as when an administrator or a time server sets it. What waits must not notice. */
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

typedef int clock_gettime_fn(clockid_t clock, struct timespec *now);

static clock_gettime_fn *gettime(void)
{
    static clock_gettime_fn *found;
    if (!found) found = (clock_gettime_fn *)dlsym(RTLD_NEXT, "clock_gettime");
    return found;
}

static time_t jumped_by(void)
{
    static const time_t hours[] = {0, 1, -1, 1, 0, -1};
    struct timespec now;
    gettime()(CLOCK_MONOTONIC, &now);
    return 3600 * hours[(now.tv_sec * 20 + now.tv_nsec / 50000000) % 6];
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = gettime()(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jumped_by();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec jumped;
    (void)zone;
    int status = clock_gettime(CLOCK_REALTIME, &jumped);
    *now = (struct timeval){.tv_sec = jumped.tv_sec, .tv_usec = jumped.tv_nsec / 1000};
    return status;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
