/* os.c: the kernel. All system calls for memory, files, time and sleep are made here, and those for memory are counted.
 * Only placement (numa.c) and printing (line.c) make their own.
 *
 * Errors: a refusal is a NULL or a false, never a message. Calls for memory keep errno: whoever allocates may get what
 * they asked for all the same. */

#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

static size_t os_page = 4096; /* bytes; read once at start, nothing else is assumed about pages */

#define KEEPING_ERRNO(call)                                                                                            \
    __extension__({                                                                                                    \
        int errno_before = errno;                                                                                      \
        __typeof__(call) result = call;                                                                                \
        errno = errno_before;                                                                                          \
        result;                                                                                                        \
    })

/* The kernel is asked directly, past libc: a library that takes the place of libc's function (libfaketime that of the
 * clock, a tracer that of mmap) may allocate there, while a lock is held here or a magazine is half changed. Only
 * sanitizers must see what is mapped. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define KERNEL(call, ...) KEEPING_ERRNO(call(__VA_ARGS__))
#else
#define KERNEL(call, ...) KEEPING_ERRNO(syscall(SYS_##call, __VA_ARGS__))
#endif

#ifdef __x86_64__
#define VDSO_CLOCK "__vdso_clock_gettime"
#else
#define VDSO_CLOCK "__kernel_clock_gettime"
#endif

static int (*os_clock)(clockid_t, struct timespec *) = clock_gettime; /* the vDSO's from the start on */

/* A function of the vDSO, in which the kernel maps its clock into every process; NULL where there is none. */
static COLD void *vdso_find(const char *name)
{
    const char *image = (const char *)getauxval(AT_SYSINFO_EHDR);
    if (image == NULL) return NULL;
    const ElfW(Ehdr) *header = (const void *)image;
    const ElfW(Phdr) *segments = (const void *)(image + header->e_phoff);
    const ElfW(Dyn) *entry = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL, *base = NULL;
    const uint32_t *hash = NULL; /* its second word is the number of symbols */
    for (unsigned i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_DYNAMIC) entry = (const void *)(image + segments[i].p_offset);
        if (segments[i].p_type == PT_LOAD && base == NULL) base = image + segments[i].p_offset - segments[i].p_vaddr;
    }
    for (; base != NULL && entry != NULL && entry->d_tag != DT_NULL; entry++) {
        const void *table = base + entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = table;
        if (entry->d_tag == DT_STRTAB) names = table;
        if (entry->d_tag == DT_HASH) hash = table;
    }
    if (symbols == NULL || names == NULL || hash == NULL) return NULL;
    for (uint32_t i = 0; i < hash[1]; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && strcmp(names + symbols[i].st_name, name) == 0)
            return (void *)(base + symbols[i].st_value);
    return NULL;
}

static void os_begin(void)
{
    os_page = (size_t)getauxval(AT_PAGESZ);
    void *clock = vdso_find(VDSO_CLOCK);
    if (clock != NULL) memcpy(&os_clock, &clock, sizeof clock);
}

static uint64_t os_clock_ns(clockid_t clock)
{
    struct timespec t;
    os_clock(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t os_now_ns(void) { return os_clock_ns(CLOCK_MONOTONIC); }

/* The same clock as of the kernel's last tick, a few milliseconds ago. It takes a fifth of the time and is good enough
 * for the age of memory. */
static uint64_t os_tick_ns(void) { return os_clock_ns(CLOCK_MONOTONIC_COARSE); }

static uint64_t os_random(void)
{
    uint64_t n = 0;
    struct timespec t = {0};
    if (syscall(SYS_getrandom, &n, sizeof n, GRND_NONBLOCK) == sizeof n) return n;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_nsec * UINT64_C(0x9E3779B97F4A7C15) ^ (uintptr_t)&n;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* False where the kernel refuses: it has no huge pages, or the memory is locked. */
static bool os_advise(void *p, size_t bytes, int advice)
{
    stat_shared(STAT_sys_madvise, 1);
    return KERNEL(madvise, p, bytes, advice) == 0;
}

static void os_huge(void *p, size_t bytes, bool wanted)
{
    (void)os_advise(p, bytes, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

/* Maps without huge pages, even where the system gives them to all (transparent_hugepage/enabled says "always"): the
 * allocator asks for them where they are worth it, and elsewhere only what is touched becomes resident. NULL where the
 * kernel refuses. */
static void *os_mmap(void *hint, size_t bytes, int protection)
{
    stat_shared(STAT_sys_mmap, 1);
    void *p = (void *)KERNEL(mmap, hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, (off_t)0);
    if (p == MAP_FAILED) return NULL;
    os_huge(p, bytes, false);
    return p;
}

/* Zeroed pages, ready for use; for the allocator's own tables and small chunks of pools. */
static void *os_map(size_t bytes) { return os_mmap(NULL, bytes, PROT_READ | PROT_WRITE); }

static void os_unmap(void *p, size_t bytes)
{
    stat_shared(STAT_sys_munmap, 1);
    (void)KERNEL(munmap, p, bytes);
}

/* Is there memory for so many bytes? Finds out by mapping them for a moment. */
static bool os_would_map(size_t bytes)
{
    void *p = os_map(bytes);
    if (p != NULL) os_unmap(p, bytes);
    return p != NULL;
}

/* Such pages at a given address, where they join the mapping that lies before. The address is only a hint, which is
 * enough: every kernel follows it where it can, and a mapping that came out elsewhere is removed. False where the
 * kernel refuses, with ENOMEM, or where the place is taken, with EEXIST. */
static bool os_map_at(void *place, size_t bytes)
{
    void *p = os_mmap(place, bytes, PROT_READ | PROT_WRITE);
    if (p == place) return true;
    if (p != NULL) os_unmap(p, bytes);
    errno = p != NULL ? EEXIST : ENOMEM;
    return false;
}

/* Is nothing mapped in this range? Finds out by mapping it for a moment; true where the kernel refuses that. */
static bool os_is_bare(void *place, size_t bytes)
{
    void *p = os_mmap(place, bytes, PROT_NONE);
    if (p != NULL) os_unmap(p, bytes);
    return p == NULL || p == place;
}

/* The address that the kernel would give the next small mapping; 0 where it refuses. */
static uintptr_t os_next_place(void)
{
    void *p = os_mmap(NULL, os_page, PROT_NONE);
    if (p != NULL) os_unmap(p, os_page);
    return (uintptr_t)p;
}

/* Reserves aligned address space, without access to it. NULL where there is none. */
static void *os_reserve(size_t bytes, size_t alignment)
{
    char *p = os_mmap(NULL, bytes + alignment, PROT_NONE);
    if (p == NULL) return NULL;
    char *start = (char *)align_up((uintptr_t)p, alignment);
    if (start != p) os_unmap(p, (size_t)(start - p));
    if (start + bytes != p + bytes + alignment) os_unmap(start + bytes, (size_t)(p + alignment - start));
    return start;
}

/* Makes reserved space readable and writable; false where the kernel refuses. */
static bool os_commit(void *p, size_t bytes)
{
    stat_shared(STAT_sys_mprotect, 1);
    return KERNEL(mprotect, p, bytes, PROT_READ | PROT_WRITE) == 0;
}

/* Takes access away until os_commit returns it. Space without access does not count as data (RLIMIT_DATA), and mlockall
 * does not fill it. Where the kernel refuses, it serves all the same. */
static void os_forbid(void *p, size_t bytes)
{
    stat_shared(STAT_sys_mprotect, 1);
    (void)KERNEL(mprotect, p, bytes, PROT_NONE);
}

/* Gives the pages back to the kernel; the range reads zero when it is next touched. False, with nothing done, where the
 * kernel refuses (locked memory) or the range is not whole pages: the kernel would round its end up and take what lies
 * beyond. */
static bool os_purge(void *p, size_t bytes)
{
    if ((((uintptr_t)p | bytes) & (os_page - 1)) != 0) return false;
    if (!os_advise(p, bytes, MADV_DONTNEED)) return false;
    stat_shared(STAT_purges, 1);
    stat_shared(STAT_purged_bytes, bytes);
    return true;
}

/* One byte a page, lowest bit: is it resident? False where the kernel does not tell. */
static bool os_mincore(void *p, size_t bytes, unsigned char *resident)
{
    stat_shared(STAT_sys_mincore, 1);
    return KERNEL(mincore, p, bytes, resident) == 0;
}

/* Are at least so many sixteenths of the range's pages resident? Looks at all pages of a range up to 16 MiB, and at 256
 * pages in each of sixteen places of a longer one. False where the kernel does not tell. */
static bool os_dense(void *p, size_t bytes, size_t sixteenths)
{
    unsigned char resident[256];
    size_t pages = bytes / os_page, places = size_min((pages + sizeof resident - 1) / sizeof resident, 16);
    size_t step = places != 0 ? (pages + places - 1) / places : 1, seen = 0, looked = 0;
    for (size_t at = 0; at < pages; at += step) {
        size_t n = size_min(size_min(step, sizeof resident), pages - at);
        if (!os_mincore((char *)p + at * os_page, n * os_page, resident)) return false;
        for (size_t i = 0; i < n; i++) seen += resident[i] & 1;
        looked += n;
    }
    return 16 * seen >= sixteenths * looked;
}

static bool os_is_resident(void *page)
{
    unsigned char resident = 0;
    return os_mincore(page, os_page, &resident) && (resident & 1) != 0;
}

/* Does memory become resident as soon as it is mapped, as mlockall can demand? `fresh` is a page that nobody has
 * touched. A page without access serves as a control: it is never resident, except to kernels that call every page
 * so. */
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

/* Moves the range's resident pages into huge pages now, and fills the rest of these. False where the kernel cannot, or
 * huge pages were not asked for there first (os_huge). */
static bool os_collapse(void *p, size_t bytes) { return os_advise(p, bytes, MADV_COLLAPSE); }

static int32_t os_thread(void) { return (int32_t)syscall(SYS_gettid); }

/* Has the thread of this number ended? No, if a later one has the number by now. */
static bool os_has_ended(int32_t thread) { return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH; }

static size_t os_limit(int resource)
{
    struct rlimit limit;
    bool told = KEEPING_ERRNO(syscall(SYS_prlimit64, 0, resource, NULL, &limit)) == 0;
    return told && limit.rlim_cur != RLIM_INFINITY ? (size_t)limit.rlim_cur : SIZE_MAX;
}

/* The lower of the process's limits on address space and on data, in bytes; SIZE_MAX without one. */
static size_t os_address_space(void) { return size_min(os_limit(RLIMIT_AS), os_limit(RLIMIT_DATA)); }

/* Cores that the calling thread may run on; CPU_SETSIZE where the kernel does not tell. */
static uint32_t os_cores(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores); /* the kernel writes only as many bits as it knows cores */
    bool told = syscall(SYS_sched_getaffinity, 0, sizeof cores, &cores) > 0;
    return told ? (uint32_t)CPU_COUNT(&cores) : CPU_SETSIZE;
}

extern void *__libc_stack_end __attribute__((weak));

/* The environment, even before libc has set `environ`: the loader asks for memory long before constructors run. At
 * __libc_stack_end the kernel left argc, argv and the environment. */
static char **environment(void)
{
    if (environ != NULL || &__libc_stack_end == NULL || __libc_stack_end == NULL) return environ;
    char **arguments = (char **)__libc_stack_end + 1;
    while (*arguments != NULL) arguments++;
    return arguments + 1;
}

/* The environment as a source of settings; NULL in a set-uid program, which does not obey its caller. */
static char **os_settings(void) { return getauxval(AT_SECURE) == 0 ? environment() : NULL; }

/* The value of one of these settings; NULL where it is not set, or settings do not count. */
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

/* Resident bytes; 0 where /proc does not say. Raw system calls, because libc's are cancellation points: a thread
 * cancelled here would leave ACE's lock taken. */
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

/* Writes the name of the working directory. Result: its length; 0 where there is none or the room is too small. */
static ACE_ONLY size_t os_folder(char *name, size_t room) { return getcwd(name, room) != NULL ? strlen(name) : 0; }

static int os_open_append(const char *path) { return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }
static bool os_file_is_empty(int file) { return lseek(file, 0, SEEK_END) == 0; }

/* Appends the whole text. Where that fails, false: what was written is cut off again, unless somebody else has written
 * behind it. */
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

/* Identifies a file, whatever its descriptor; zeros for a descriptor that is closed. */
struct file_id {
    dev_t device;
    ino_t number;
};

static struct file_id os_file_id(int file)
{
    struct stat is;
    return fstat(file, &is) == 0 ? (struct file_id){is.st_dev, is.st_ino} : (struct file_id){0, 0};
}

/* Another descriptor of the file, closed by exec, with a number out of the way of the program's own. Where there is
 * none left, the same one. */
static int os_keep_open(int file)
{
    const int far = 200;
    int kept = fcntl(file, F_DUPFD_CLOEXEC, far);
    return kept >= 0 ? kept : file;
}

/* --- fences in other threads -------------------------------------------------------------------------------------- */

/* Registers the process for os_fence_all. False where the kernel has no such call, or a filter forbids it. Keeps
 * errno. */
static bool os_fences_begin(void)
{
    return KEEPING_ERRNO(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0)) == 0;
}

/* Makes every thread of the process pass a full fence before it returns; false where the kernel refuses. Keeps
 * errno. */
static bool os_fence_all(void)
{
    return KEEPING_ERRNO(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) == 0;
}

/* --- sleeping ----------------------------------------------------------------------------------------------------- */

static void os_futex_wake(_Atomic uint32_t *word, int threads)
{
    (void)KEEPING_ERRNO(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, 0, 0, 0));
}

/* Sleeps while *word == seen, for at most `ns` (0: no limit). May wake early, so callers look again. */
static void os_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    (void)KEEPING_ERRNO(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns != 0 ? &t : NULL, 0, 0));
}

/* While this is not LOCKS_COUNT, the thread waits for no lock and drops none. LOCKS_FORKING: it forks and holds all of
 * them, and other libraries' fork handlers, which run meanwhile, may allocate. LOCKS_DYING: it dies, and those it holds
 * may stay taken for ever. */
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

/* Spins a few times, then sleeps in the kernel: no yielding, no back-off. */
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

static void (*fatal_leave)(void); /* set at start: takes the calling thread's caches away */
static _Atomic pid_t fatal_said;  /* the process that printed its line: a forked child may print one too */

static ALWAYS_INLINE bool is_dying(void) { return lock_passing == LOCKS_DYING; }

/* Has some thread begun to die? Then there may be blocks from libc's allocator. */
static ALWAYS_INLINE bool is_some_dying(void) { return atomic_load_explicit(&fatal_said, memory_order_relaxed) != 0; }

/* The heap is damaged: prints one line and ends the program. A SIGABRT handler of the program's may run before that and
 * allocate: from here on libc's allocator serves this thread (alloc.c), and damage found inside the handler ends the
 * program at once. Other threads that find damage wait for the end, but not for ever: the handler may wait for them. */
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

/* States what holds unless memory is damaged or the code is wrong. The checked build tests it, and ends the program
 * where it does not hold. */
#define MUST(condition, address)                                                                                       \
    do {                                                                                                               \
        if (HAK_CHECKED && UNLIKELY(!(condition))) fatal("must hold: " #condition ",", (uintptr_t)(address));          \
    } while (0)
