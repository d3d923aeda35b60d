/* Faults of the disk and jumps of the wall clock for one process, by LD_PRELOAD.

   Owns the interposed functions of libc and the layout of the control file, which hosts/preload.py writes while the process runs.  Without
   a fault each call costs one look at that file's memory.  Reads are not touched. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CONTROL_BYTES 8192
#define SECOND_NS 1000000000LL

struct control {
    int32_t disk;           /* whether there is any fault of the disk */
    int32_t error;          /* errno of writes and syncs, 0: none */
    int32_t full;           /* whether files may only grow by space_left */
    int32_t reserved;
    int64_t sync_us;        /* how much longer a sync takes */
    int64_t write_us;       /* how much longer a write takes */
    int64_t space_left;     /* bytes, all processes together */
    int64_t clock_ns;       /* what the wall clock is ahead */
    int64_t struck;         /* calls that a fault of the disk delayed or failed */
    char folder[PATH_MAX];  /* files below it are the disk's */
};
_Static_assert(sizeof(struct control) <= CONTROL_BYTES, "the control file is too small");

static struct control no_faults;
static struct control *control = &no_faults;

/* The function that the process would have called without this library. */
#define NEXT(name) \
    ({ \
        static __typeof__(&name) next; \
        if (!next) \
            next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        next; \
    })

__attribute__((constructor)) static void open_control(void)
{
    const char *path = getenv("DRILL_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        control = memory;
}

/* ---- which files ---- */

static int below_folder(const char *path)
{
    size_t size = strnlen(control->folder, sizeof control->folder);
    return size && !strncmp(path, control->folder, size) && (path[size] == '/' || path[size] == '\0');
}

static int on_disk(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = '\0';
    return below_folder(path);
}

static int path_on_disk(const char *given)
{
    char path[PATH_MAX];
    return realpath(given, path) && below_folder(path);
}

/* ---- faults of the disk: each function returns an errno, 0: go on ---- */

static void linger(int64_t us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (us > 0 && nanosleep(&left, &left) && errno == EINTR)
        ;
}

static int delay_or_fail(int64_t delay_us)
{
    if (delay_us > 0 || control->error)
        __atomic_add_fetch(&control->struck, 1, __ATOMIC_RELAXED);
    linger(delay_us);
    return control->error;
}

static int take_space(int64_t bytes)
{
    int64_t left = __atomic_load_n(&control->space_left, __ATOMIC_RELAXED);
    do {
        if (bytes > left) {
            __atomic_add_fetch(&control->struck, 1, __ATOMIC_RELAXED);
            return ENOSPC;
        }
    } while (!__atomic_compare_exchange_n(&control->space_left, &left, left - bytes, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 0;
}

/* What is written into blocks that a file has already needs no space. */
static int grow(int fd, int64_t end)
{
    struct stat facts;
    if (!control->full || fstat(fd, &facts) || !S_ISREG(facts.st_mode) || end <= facts.st_size)
        return 0;
    return take_space(end - facts.st_size);
}

static int before_sync(int fd)
{
    if (!control->disk)
        return 0;
    int saved = errno, error = on_disk(fd) ? delay_or_fail(control->sync_us) : 0;
    errno = error ? error : saved;
    return error;
}

static int64_t end_of_write(int fd, int64_t pos, size_t size)
{
    struct stat facts;
    if (pos < 0) {
        int flags = fcntl(fd, F_GETFL);
        pos = flags >= 0 && flags & O_APPEND && !fstat(fd, &facts) ? facts.st_size : lseek(fd, 0, SEEK_CUR);
    }
    return pos + (int64_t)size;
}

/* `pos` below 0: where the file stands. */
static int before_write(int fd, int64_t pos, size_t size)
{
    if (!control->disk)
        return 0;
    int saved = errno, error = 0;
    if (on_disk(fd)) {
        error = delay_or_fail(control->write_us);
        if (!error)
            error = grow(fd, end_of_write(fd, pos, size));
    }
    errno = error ? error : saved;
    return error;
}

static size_t total(const struct iovec *pieces, int count)
{
    size_t size = 0;
    for (int at = 0; at < count; at++)
        size += pieces[at].iov_len;
    return size;
}

int fsync(int fd) { return before_sync(fd) ? -1 : NEXT(fsync)(fd); }

int fdatasync(int fd) { return before_sync(fd) ? -1 : NEXT(fdatasync)(fd); }

ssize_t write(int fd, const void *data, size_t size) { return before_write(fd, -1, size) ? -1 : NEXT(write)(fd, data, size); }

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    return before_write(fd, -1, total(pieces, count)) ? -1 : NEXT(writev)(fd, pieces, count);
}

/* glibc has each of these under a second name for files beyond 2 GiB, which is what Python calls. */
#define WRITES_AT(pwrite, pwritev, pwritev2, posix_fallocate, off_t) \
    ssize_t pwrite(int fd, const void *data, size_t size, off_t pos) \
    { \
        return before_write(fd, pos, size) ? -1 : NEXT(pwrite)(fd, data, size, pos); \
    } \
    ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t pos) \
    { \
        return before_write(fd, pos, total(pieces, count)) ? -1 : NEXT(pwritev)(fd, pieces, count, pos); \
    } \
    ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t pos, int flags) \
    { \
        return before_write(fd, pos, total(pieces, count)) ? -1 : NEXT(pwritev2)(fd, pieces, count, pos, flags); \
    } \
    int posix_fallocate(int fd, off_t pos, off_t size) \
    { \
        int error = before_write(fd, pos, size); \
        return error ? error : NEXT(posix_fallocate)(fd, pos, size); \
    }

WRITES_AT(pwrite, pwritev, pwritev2, posix_fallocate, off_t)
#ifdef __GLIBC__
WRITES_AT(pwrite64, pwritev64, pwritev64v2, posix_fallocate64, off64_t)
#endif

int unlink(const char *path)
{
    struct stat facts;
    int frees = control->disk && control->full && !lstat(path, &facts) && S_ISREG(facts.st_mode) && facts.st_nlink == 1 && path_on_disk(path);
    int result = NEXT(unlink)(path);
    if (!result && frees)
        __atomic_add_fetch(&control->space_left, facts.st_size, __ATOMIC_RELAXED);
    return result;
}

#define SPACE(statvfs, result_of) \
    int statvfs(const char *path, struct result_of *facts) \
    { \
        int result = NEXT(statvfs)(path, facts); \
        if (!result && control->disk && control->full && path_on_disk(path)) \
            facts->f_bfree = facts->f_bavail = (uint64_t)control->space_left / facts->f_frsize; \
        return result; \
    }

SPACE(statvfs, statvfs)
#ifdef __GLIBC__
SPACE(statvfs64, statvfs64)
#endif

/* ---- the wall clock ---- */

static void shift(struct timespec *when, int64_t ns)
{
    int64_t rest = when->tv_nsec + ns % SECOND_NS;
    when->tv_sec += ns / SECOND_NS + (rest >= SECOND_NS) - (rest < 0);
    when->tv_nsec = rest + (rest < 0) * SECOND_NS - (rest >= SECOND_NS) * SECOND_NS;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = NEXT(clock_gettime)(clock, now);
    if (control->clock_ns && !result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(now, control->clock_ns);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    if (!control->clock_ns)
        return NEXT(gettimeofday)(now, zone);
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    *now = (struct timeval){fine.tv_sec, fine.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *into)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

/* A deadline that the process took from its shifted clock, as the kernel's clock has it; one of the monotonic clock is far smaller. */
static const struct timespec *kernel_time(const struct timespec *deadline, struct timespec *into)
{
    if (!control->clock_ns || !deadline || deadline->tv_sec < SECOND_NS)
        return deadline;
    *into = *deadline;
    shift(into, -control->clock_ns);
    if (into->tv_sec < 0)
        *into = (struct timespec){0, 0};
    return into;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
    struct timespec own;
    return NEXT(sem_timedwait)(semaphore, kernel_time(deadline, &own));
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
    static __typeof__(&pthread_cond_timedwait) next;
    struct timespec own;
#ifdef __GLIBC__
    if (!next) /* without a version some releases of glibc find the function of 2001 */
        next = (__typeof__(next))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
#endif
    if (!next)
        next = NEXT(pthread_cond_timedwait);
    return next(condition, mutex, kernel_time(deadline, &own));
}

/* Locks of C++ libraries wait in the kernel by themselves. */
long syscall(long number, ...)
{
    long given[6];
    struct timespec own;
    va_list all;
    va_start(all, number);
    for (int at = 0; at < 6; at++)
        given[at] = va_arg(all, long);
    va_end(all);
    if (number == SYS_futex && given[1] & FUTEX_CLOCK_REALTIME)
        given[3] = (long)kernel_time((const struct timespec *)given[3], &own);
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
