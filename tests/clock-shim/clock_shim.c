/* Moves the clocks of one process, for tests: preloaded into it, it answers gettimeofday, time and
 * clock_gettime(CLOCK_REALTIME) with what the file named by CLOCK_SHIM says: two numbers, the offset in microseconds
 * and the rate in millionths by which the clock is fast since the process started. A third number, if there is one, is
 * how long CLOCK_MONOTONIC has stood still, in microseconds, as it does while a machine is suspended; a fourth that is
 * not 0 is where it stands still from then on, in microseconds. Other clocks are left alone.
 *
 * The file is read again every few milliseconds, so that a test can step a clock under a running server. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t READ_EVERY_US = 2000;

static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t offset_us, rate_ppm, still_us, stands_at_us, started_us, read_us;

/* Past the C library, whose own functions are the ones that are replaced here. */
static int64_t real_us(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void read_file(int64_t now) {
    const char *path = getenv("CLOCK_SHIM");
    char text[96];
    /* Another thread that reads it just now reads the same. */
    if (path == NULL || pthread_mutex_trylock(&reading) != 0) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        long long offset, rate, still = 0, stands = 0;
        if (length > 0) {
            text[length] = '\0';
            /* A file that is being written is read again next time. */
            if (sscanf(text, "%lld %lld %lld %lld", &offset, &rate, &still, &stands) >= 2) {
                offset_us = offset;
                rate_ppm = rate;
                still_us = still;
                stands_at_us = stands;
            }
        }
        close(file);
    }
    if (started_us == 0) started_us = now;
    read_us = now;
    pthread_mutex_unlock(&reading);
}

static int64_t shifted_us(void) {
    int64_t now = real_us();
    if (now - read_us >= READ_EVERY_US) read_file(now);
    return now + offset_us + (started_us == 0 ? 0 : (now - started_us) * rate_ppm / 1000000);
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    int64_t now = shifted_us();
    tv->tv_sec = now / 1000000;
    tv->tv_usec = now % 1000000;
    return 0;
}

time_t time(time_t *result) {
    time_t now = shifted_us() / 1000000;
    if (result != NULL) *result = now;
    return now;
}

static int64_t monotonic_us(void) {
    int64_t real = real_us();
    if (real - read_us >= READ_EVERY_US) read_file(real);
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    int64_t us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    return (stands_at_us != 0 && us > stands_at_us ? stands_at_us : us) - still_us;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = clock == CLOCK_REALTIME ? shifted_us() : monotonic_us();
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}
