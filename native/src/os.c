/* os.c: the kernel. Each system call stands here once, and those for memory are counted. Except for placement (numa.c)
 * and printing (line.c), nothing else asks the kernel for memory or files.
 *
 * Errors: a refusal is a NULL or a false, never a message; alloc.c preserves the caller's errno. */

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

static size_t os_page = 4096; /* bytes; read once at start, the only assumption about pages */

/* What is asked at the start is asked of the kernel, not of libc: a library that has one of these functions for itself,
 * to fake it (libfaketime has getrandom), may allocate there, and who asks holds the lock of the start. */
static void os_begin(void) { os_page = (size_t)getauxval(AT_PAGESZ); }

static uint64_t os_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t os_now_ns(void) { return os_clock_ns(CLOCK_MONOTONIC); }

/* The same as of the kernel's last tick, a few milliseconds ago, for a fifth of the time: good enough for the age of
 * memory. */
static uint64_t os_tick_ns(void) { return os_clock_ns(CLOCK_MONOTONIC_COARSE); }

static uint64_t os_random(void)
{
    uint64_t n = 0;
    if (syscall(SYS_getrandom, &n, sizeof n, GRND_NONBLOCK) != sizeof n)
        n = os_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ (uintptr_t)&n;
    return n;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void os_huge(void *p, size_t bytes, bool wanted)
{
    stat_shared(STAT_sys_madvise, 1);
    madvise(p, bytes, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

/* Without huge pages, whatever the system does for all (transparent_hugepage/enabled may say "always"): where they are
 * worth it the allocator asks for them, and elsewhere only what is touched becomes resident. */
static void *os_mmap(void *hint, size_t bytes, int protection)
{
    stat_shared(STAT_sys_mmap, 1);
    void *p = mmap(hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    os_huge(p, bytes, false);
    return p;
}

/* Pages that may be used at once, zeroed; for the allocator's own tables and small chunks of pools. */
static void *os_map(size_t bytes) { return os_mmap(NULL, bytes, PROT_READ | PROT_WRITE); }

static void os_unmap(void *p, size_t bytes)
{
    stat_shared(STAT_sys_munmap, 1);
    munmap(p, bytes);
}

/* Such pages at a place of ours, one mapping with what lies before it. False where the kernel refuses, with EEXIST
 * where somebody else has the place. A hint is enough: every kernel follows it where it can, and what came elsewhere
 * goes. */
static bool os_map_at(void *place, size_t bytes)
{
    void *p = os_mmap(place, bytes, PROT_READ | PROT_WRITE);
    if (p == place) return true;
    if (p == NULL) return false;
    os_unmap(p, bytes);
    errno = EEXIST;
    return false;
}

/* Has nobody anything there? True where the kernel does not tell. */
static bool os_is_bare(void *place, size_t bytes)
{
    void *p = os_mmap(place, bytes, PROT_NONE);
    if (p != NULL) os_unmap(p, bytes);
    return p == NULL || p == place;
}

/* Where the kernel maps what is asked for next; 0 where it refuses. */
static uintptr_t os_next_place(void)
{
    void *p = os_mmap(NULL, os_page, PROT_NONE);
    if (p != NULL) os_unmap(p, os_page);
    return (uintptr_t)p;
}

/* Address space without memory, aligned. NULL where there is none. */
static void *os_reserve(size_t bytes, size_t alignment)
{
    char *p = os_mmap(NULL, bytes + alignment, PROT_NONE);
    if (p == NULL) return NULL;
    char *start = (char *)align_up((uintptr_t)p, alignment);
    if (start != p) os_unmap(p, (size_t)(start - p));
    if (start + bytes != p + bytes + alignment) os_unmap(start + bytes, (size_t)(p + alignment - start));
    return start;
}

/* Reserved space becomes writable; false where the kernel refuses. */
static bool os_commit(void *p, size_t bytes)
{
    stat_shared(STAT_sys_mprotect, 1);
    return mprotect(p, bytes, PROT_READ | PROT_WRITE) == 0;
}

/* Nothing may be written there until it is committed: so it counts as little, and no lock of all memory fills it. */
static void os_forbid(void *p, size_t bytes)
{
    stat_shared(STAT_sys_mprotect, 1);
    mprotect(p, bytes, PROT_NONE);
}

/* The pages go back; the range reads zero when it is next touched. False, and nothing is done, where the kernel refuses
 * (locked memory) or the range is not of whole pages, for the kernel would take the rest of the last one too. */
static bool os_purge(void *p, size_t bytes)
{
    if ((((uintptr_t)p | bytes) & (os_page - 1)) != 0) return false;
    stat_shared(STAT_sys_madvise, 1);
    if (madvise(p, bytes, MADV_DONTNEED) != 0) return false;
    stat_shared(STAT_purges, 1);
    stat_shared(STAT_purged_bytes, bytes);
    return true;
}

/* Are so many sixteenths of the range's pages resident? Looks at all of them up to 16 MiB, at as many in sixteen places
 * beyond. */
static bool os_dense(void *p, size_t bytes, size_t sixteenths)
{
    unsigned char resident[256];
    size_t pages = bytes / os_page, places = size_min((pages + sizeof resident - 1) / sizeof resident, 16);
    size_t step = places != 0 ? (pages + places - 1) / places : 1, seen = 0, looked = 0;
    for (size_t at = 0; at < pages; at += step) {
        size_t n = size_min(size_min(step, sizeof resident), pages - at);
        stat_shared(STAT_sys_mincore, 1);
        if (mincore((char *)p + at * os_page, n * os_page, resident) != 0) return false;
        for (size_t i = 0; i < n; i++) seen += resident[i] & 1;
        looked += n;
    }
    return 16 * seen >= sixteenths * looked;
}

static bool os_is_resident(void *page)
{
    unsigned char resident = 0;
    stat_shared(STAT_sys_mincore, 1);
    return mincore(page, os_page, &resident) == 0 && (resident & 1) != 0;
}

/* Is memory resident as soon as it is mapped, as mlockall wants it? `fresh` is a page that nobody has touched. What
 * nobody may touch never is, but to kernels that call everything resident. */
static bool os_is_filled(void *fresh)
{
    void *bare = os_is_resident(fresh) ? os_mmap(NULL, os_page, PROT_NONE) : NULL;
    if (bare == NULL) return false;
    bool filled = !os_is_resident(bare);
    os_unmap(bare, os_page);
    return filled;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Moves resident pages into huge ones at once, and fills these; false where the kernel cannot, or may not: they must
 * have been asked for. */
static bool os_collapse(void *p, size_t bytes)
{
    stat_shared(STAT_sys_madvise, 1);
    int saved = errno;
    bool collapsed = madvise(p, bytes, MADV_COLLAPSE) == 0;
    errno = saved;
    return collapsed;
}

static int32_t os_thread(void) { return (int32_t)syscall(SYS_gettid); }

/* Has the thread ended? Another may have its number by now. */
static bool os_has_ended(int32_t thread) { return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH; }

static size_t os_limit(int resource)
{
    struct rlimit limit;
    bool none = syscall(SYS_prlimit64, 0, resource, NULL, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
    return none ? SIZE_MAX : (size_t)limit.rlim_cur;
}

/* Bytes of address space the process may have, and write to; SIZE_MAX without a limit. */
static size_t os_address_space(void) { return size_min(os_limit(RLIMIT_AS), os_limit(RLIMIT_DATA)); }

/* Cores that the process may run on. */
static uint32_t os_cores(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores); /* the kernel writes as many as it knows */
    bool told = syscall(SYS_sched_getaffinity, 0, sizeof cores, &cores) > 0;
    return told ? (uint32_t)CPU_COUNT(&cores) : CPU_SETSIZE;
}

extern char **environ;

extern void *__libc_stack_end __attribute__((weak));

/* The environment, also before libc has set it: the loader asks for memory long before constructors run, and knows
 * where the kernel left argc, argv and the environment. */
static char **environment(void)
{
    if (environ != NULL || &__libc_stack_end == NULL || __libc_stack_end == NULL) return environ;
    char **arguments = (char **)__libc_stack_end + 1;
    while (*arguments != NULL) arguments++;
    return arguments + 1;
}

/* The settings in it; NULL where they do not count: a set-uid program does nothing for its caller. */
static char **os_settings(void) { return getauxval(AT_SECURE) == 0 ? environment() : NULL; }

/* What it says of a variable; NULL where it says nothing, or may not. */
static ACE_ONLY const char *os_variable(const char *name)
{
    size_t length = strlen(name);
    for (char **at = os_settings(); at != NULL && *at != NULL; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
    return NULL;
}

/* --- the process, as the kernel counts it ------------------------------------------------------------------------- */

static ACE_ONLY uint64_t os_cpu_ns(void) { return os_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static ACE_ONLY uint64_t os_faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_minflt : 0;
}

/* Resident bytes; 0 where /proc does not say. A thread that is cancelled would leave ACE's lock behind, so these are
 * the system calls themselves, at which none is. */
static ACE_ONLY uint64_t os_rss(void)
{
    char text[64];
    int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC);
    long length = file >= 0 ? syscall(SYS_read, file, text, sizeof text - 1) : -1;
    if (file >= 0) syscall(SYS_close, file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *at = strchr(text, ' ');
    return at != NULL ? strtoull(at, NULL, 10) * os_page : 0;
}

/* The program's folder, and the length of its name; 0 where the room is too small or there is none. */
static ACE_ONLY size_t os_folder(char *name, size_t room) { return getcwd(name, room) != NULL ? strlen(name) : 0; }

static int os_open_append(const char *path) { return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }
static bool os_file_is_empty(int file) { return lseek(file, 0, SEEK_END) == 0; }

/* Appends all of the text or, where that fails and nobody else has written behind it, nothing. */
static bool os_append(int file, const char *text, size_t length)
{
    off_t end = lseek(file, 0, SEEK_END);
    size_t done = 0;
    for (ssize_t n; done < length; done += (size_t)n)
        if ((n = write(file, text + done, length - done)) <= 0) break;
    bool whole = done == length, last = end >= 0 && lseek(file, 0, SEEK_END) == end + (off_t)done;
    if (!whole && last && ftruncate(file, end) != 0) return false;
    return whole;
}

static void os_close(int file) { close(file); }

/* What tells a file from others, whatever its descriptor; of a closed one nothing. */
struct file_id {
    dev_t device;
    ino_t number;
};

static struct file_id os_file_id(int file)
{
    struct stat is;
    return fstat(file, &is) == 0 ? (struct file_id){is.st_dev, is.st_ino} : (struct file_id){0, 0};
}

/* A number under which the file stays open, out of the way of the program's own and closed by exec. */
static int os_keep_open(int file)
{
    const int far = 200;
    int kept = fcntl(file, F_DUPFD_CLOEXEC, far);
    return kept >= 0 ? kept : file;
}

/* --- fences in other threads -------------------------------------------------------------------------------------- */

/* From now on os_fence_all can be; false where the kernel has no such thing, or a filter forbids it. Keeps errno. */
static bool os_fences_begin(void)
{
    int saved = errno;
    bool there = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    errno = saved;
    return there;
}

/* Every thread of the process passes a full fence before this returns. Keeps errno. */
static bool os_fence_all(void)
{
    int saved = errno;
    bool passed = syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
    errno = saved;
    return passed;
}

/* --- sleeping ----------------------------------------------------------------------------------------------------- */

static void os_futex_wake(_Atomic uint32_t *word, int threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, 0, 0, 0);
}

/* Sleeps while *word == seen, at most `ns` (0: without end). Wakes early at times; callers look again. */
static void os_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    int saved = errno; /* a lock may be waited for within free */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns != 0 ? &t : NULL, 0, 0);
    errno = saved;
}

/* Why this thread waits for no lock and drops none: it forks and holds them all, and handlers of others that run
 * meanwhile may allocate; or it dies, and may hold some for ever. */
static THREAD_LOCAL enum { LOCKS_COUNT, LOCKS_FORKING, LOCKS_DYING } lock_passing;

static ALWAYS_INLINE bool lock_try(struct lock *lock)
{
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &free, 1, memory_order_acquire, memory_order_relaxed);
}

static ALWAYS_INLINE bool lock_is_taken(struct lock *lock)
{
    return atomic_load_explicit(&lock->state, memory_order_relaxed) != 0;
}

/* Looks a few times, then sleeps in the kernel: no yielding, no back-off sleeps. */
static NOINLINE void lock_wait(struct lock *lock)
{
    if (lock_passing) return;
    for (int i = 0; i < 64; i++) {
        cpu_relax();
        if (!lock_is_taken(lock) && lock_try(lock)) return;
    }
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0) os_futex_wait(&lock->state, 2, 0);
}

static ALWAYS_INLINE void lock_take(struct lock *lock)
{
    if (UNLIKELY(!lock_try(lock))) lock_wait(lock);
}

static ALWAYS_INLINE void lock_drop(struct lock *lock)
{
    if (UNLIKELY(lock_passing)) return;
    if (UNLIKELY(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2)) os_futex_wake(&lock->state, 1);
}

static void lock_reset(struct lock *lock) { atomic_store_explicit(&lock->state, 0, memory_order_relaxed); }

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void (*fatal_leave)(void); /* set at start: the calling thread leaves its caches */
static _Atomic pid_t fatal_said;  /* the process that said its line: a child may say its own */

static ALWAYS_INLINE bool is_dying(void) { return lock_passing == LOCKS_DYING; }

/* Some thread dies, so there may be blocks of libc's. */
static ALWAYS_INLINE bool is_some_dying(void) { return atomic_load_explicit(&fatal_said, memory_order_relaxed) != 0; }

/* The heap is damaged: one line, then the end. The program's handler of SIGABRT may run before that and allocate: its
 * thread is served without this heap from here on (alloc.c), and a crime in there ends the program at once. Other
 * threads that find damage wait for the end, but not for ever: the handler may wait for them. */
static COLD __attribute__((noreturn)) void fatal(const char *crime, uintptr_t address)
{
    pid_t self = getpid();
    bool first = !is_dying() && atomic_exchange(&fatal_said, self) != self;
    if (!first) {
        if (!is_dying()) sleep(FATAL_WAIT_S);
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    lock_passing = LOCKS_DYING;
    if (fatal_leave != NULL) fatal_leave();
    struct line line = {0};
    line_text(&line, "hakmem: ");
    line_text(&line, crime);
    line_text(&line, " at ");
    line_address(&line, address);
    line_end(&line);
    abort();
}

/* What holds while nothing is damaged and no code is wrong. The checked build looks, and ends the program where it does
 * not. */
#define MUST(condition, address)                                                                                       \
    do {                                                                                                               \
        if (HAK_CHECKED && UNLIKELY(!(condition))) fatal("must hold: " #condition ",", (uintptr_t)(address));          \
    } while (0)
