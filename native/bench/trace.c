/* trace.c: libhaktrace.so, which records the allocations of the program that it is preloaded into.
 *
 *   gcc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -DHAK_TRACE_RECORDER trace.c -o libhaktrace.so
 *
 * HAKMEM_TRACE_DIR says where the traces go (default: here), HAKMEM_TRACE_RECORDS how many records one may have. The
 * allocator underneath is the C library's own, by names that need no look-up (__libc_malloc), so recording works from
 * the first call of the first constructor on. The recorder takes no memory from the heap it watches and keeps no
 * descriptor that the program could close. The file is a shared mapping: what is recorded survives exit, exec, a crash
 * and SIGKILL.
 *
 * The symbol keeps this file out of the bench, whose malloc must stay the one that is measured. */
#ifdef HAK_TRACE_RECORDER
#define _GNU_SOURCE
#include "bench.h"
#include "trace.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

enum { WINDOW_RECORDS = 16384, PATH_BYTES = 3000, NOT_OPEN = 0, OPENING, OPEN, REFUSED };
static const uint64_t DEFAULT_RECORDS = 1 << 26; /* 1 GiB */

/* The recording of one process. The kernel empties it in a forked child, however that was forked, so the child opens a
 * file of its own. */
struct session {
    _Atomic int state, growing;
    _Atomic uint64_t extent; /* records that have disk space behind them */
    struct trace_header *header;
    char path[PATH_BYTES + 64];
};

static struct session *_Atomic shared_session;
static char folder[PATH_BYTES]; /* absolute; "" until the settings are read */
static uint64_t most_records;
static _Atomic uint64_t early_losses; /* records from before there was an environment */
static _Atomic uint32_t threads_seen;
static __thread uint32_t thread_number __attribute__((tls_model("initial-exec"))); /* from 1 */

static struct session *session_get(void)
{
    struct session *session = atomic_load(&shared_session), *none = NULL;
    if (session) return session;
    session = mmap(NULL, sizeof *session, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (session == MAP_FAILED) return NULL;
    madvise(session, sizeof *session, MADV_WIPEONFORK);
    if (atomic_compare_exchange_strong(&shared_session, &none, session)) return session;
    munmap(session, sizeof *session);
    return none;
}

/* Raw calls: the library's open and close are cancellation points, malloc and free are not. */
static int file_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NOFOLLOW, 0644);
}

static void file_close(int file) { syscall(SYS_close, file); }

static uint64_t file_bytes(uint64_t records) { return sizeof(struct trace_header) + records * sizeof(union record); }

/* Not getenv: some programs (bash) have one of their own, which calls malloc. */
static const char *setting(const char *name)
{
    size_t length = strlen(name);
    for (char **variable = environ; *variable; variable++)
        if (!strncmp(*variable, name, length) && (*variable)[length] == '=') return *variable + length + 1;
    return "";
}

/* Read once, so that forked children write where their first ancestor did, whatever became of its environment. */
static bool settings_read(void)
{
    const char *path = setting("HAKMEM_TRACE_DIR"), *records = setting("HAKMEM_TRACE_RECORDS");
    char here[PATH_BYTES / 2] = "";
    if (*folder) return true;
    if (*path != '/' && !getcwd(here, sizeof here)) return false;
    if (strlen(here) + strlen(path) + 2 > sizeof folder) {
        errno = ENAMETOOLONG;
        return false;
    }
    snprintf(folder, sizeof folder, "%s%s%s", here, *path && *here ? "/" : "", path);
    most_records = *records ? strtoull(records, NULL, 10) : DEFAULT_RECORDS;
    return true;
}

/* A name that no earlier image of this process has used: exec keeps the number of the process. */
static int file_create(struct session *session)
{
    for (unsigned image = 0; image < 100000; image++) {
        snprintf(session->path, sizeof session->path, "%s/%d.%u.haktrace", folder, (int)getpid(), image);
        int file = file_open(session->path, O_RDWR | O_CREAT | O_EXCL);
        if (file >= 0 || errno != EEXIST) return file;
    }
    return -1;
}

/* The header is written whole before it is mapped: a process that is killed here leaves an empty file, or a trace. */
static bool file_map(struct session *session, int file)
{
    struct trace_header first = {.version = TRACE_VERSION,
                                 .record_bytes = sizeof(union record),
                                 .limit = most_records,
                                 .lost = atomic_exchange(&early_losses, 0),
                                 .pid = (uint32_t)getpid(),
                                 .parent = (uint32_t)getppid()};
    memcpy(first.magic, TRACE_MAGIC, sizeof TRACE_MAGIC);
    prctl(PR_GET_NAME, first.program);
    if (syscall(SYS_write, file, &first, sizeof first) != (long)sizeof first) return false;
    uint64_t bytes = file_bytes(most_records);
    session->header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (session->header == MAP_FAILED) { /* the address space is limited, or has less than was asked for */
        unlink(session->path);
        return false;
    }
    madvise(session->header, bytes, MADV_DONTFORK);
    return true;
}

/* Opens the session's file; false where that was refused. The thread that changes NOT_OPEN to OPENING does it; the
 * others wait for it. */
static bool session_open(struct session *session)
{
    int state = NOT_OPEN, error = errno;
    unsigned spins = 0;
    if (!environ) {
        early_losses++;
        return false;
    }
    if (atomic_compare_exchange_strong(&session->state, &state, OPENING)) {
        int file = settings_read() ? file_create(session) : -1;
        state = file >= 0 && file_map(session, file) ? OPEN : REFUSED;
        if (file >= 0) file_close(file);
        atomic_store(&session->state, state); /* before printing, which may allocate */
        if (state == REFUSED)
            dprintf(STDERR_FILENO, "libhaktrace: cannot write a trace to %s: %m; this process is not recorded%s\n",
                    *folder ? folder : setting("HAKMEM_TRACE_DIR"),
                    file < 0 ? "" : " (fewer --records need less room)");
    }
    while ((state = atomic_load(&session->state)) == OPENING) relax(&spins);
    errno = error;
    return state == OPEN;
}

/* Disk space is allocated a window at a time, before it is written to, so that a full disk costs records and not the
 * program. False where there is none for this place. */
static bool session_grow(struct session *session, uint64_t place)
{
    int error = errno;
    unsigned spins = 0;
    while (atomic_exchange(&session->growing, 1)) relax(&spins);
    int file = session->extent <= place ? file_open(session->path, O_RDWR) : -1;
    while (session->extent <= place && place < session->header->limit) {
        if (file < 0 ||
            posix_fallocate(file, (off_t)file_bytes(session->extent), WINDOW_RECORDS * sizeof(union record)))
            session->header->limit = session->extent;
        else session->extent += WINDOW_RECORDS;
    }
    if (file >= 0) file_close(file);
    atomic_store(&session->growing, 0);
    errno = error;
    return place < session->header->limit;
}

static void note(enum record_kind kind, const void *block, size_t size, size_t alignment)
{
    struct session *session = session_get();
    if (!session || (atomic_load_explicit(&session->state, memory_order_acquire) != OPEN && !session_open(session)))
        return;
    if (!thread_number) thread_number = ++threads_seen;
    uint64_t place = atomic_fetch_add(&session->header->next, 1);
    if (place >= session->header->limit || (place >= session->extent && !session_grow(session, place))) {
        session->header->lost++;
        return;
    }
    union record record = {.address = (uintptr_t)block,
                           .thread = thread_number < UINT16_MAX ? (uint16_t)thread_number : UINT16_MAX,
                           .size = size,
                           .kind = kind,
                           .align_log2 = alignment ? (unsigned)__builtin_ctzl(alignment) : 0};
    record.check = record_check(record);
    memcpy((union record *)(session->header + 1) + place, &record, sizeof record);
}

static void *noted(enum record_kind kind, void *block, size_t size, size_t alignment)
{
    if (block) note(kind, block, size, alignment);
    return block;
}

EXPORT void *malloc(size_t size) { return noted(TAKE, __libc_malloc(size), size, 0); }

EXPORT void *calloc(size_t count, size_t size)
{
    return noted(TAKE_ZEROED, __libc_calloc(count, size), count * size, 0);
}

EXPORT void free(void *block)
{
    noted(GIVE, block, 0, 0);
    __libc_free(block);
}

/* glibc exports its own under no other name, and a program may be linked to an allocator that would answer in its
 * place. The chunk's size stands before the block; of the flags in its lowest three bits, the second says that the
 * chunk is a mapping, and so has no next one whose first word is the block's. */
EXPORT size_t malloc_usable_size(void *block)
{
    if (!block) return 0;
    size_t chunk = ((size_t *)block)[-1], words = chunk & 2 ? 2 : 1;
    return (chunk & ~(size_t)7) - words * sizeof(size_t);
}

EXPORT void *realloc(void *block, size_t size)
{
    if (!block || !size) {
        noted(GIVE, block, 0, 0);
        return noted(TAKE, __libc_realloc(block, size), size, 0);
    }
    note(MOVE_FROM, block, 0, 0);
    void *moved = __libc_realloc(block, size);
    return moved ? noted(MOVE_TO, moved, size, 0) : (note(MOVE_TO, block, malloc_usable_size(block), 0), NULL);
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    return noted(TAKE_ALIGNED, __libc_memalign(alignment, size), size, alignment);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    if (alignment % sizeof(void *) || !alignment || alignment & (alignment - 1)) return EINVAL;
    int error = errno;
    void *aligned = memalign(alignment, size);
    errno = error;
    if (!aligned) return ENOMEM;
    *block = aligned;
    return 0;
}

EXPORT void *valloc(size_t size) { return memalign((size_t)getpagesize(), size); }

EXPORT void *pvalloc(size_t size)
{
    size_t page = (size_t)getpagesize();
    return memalign(page, (size + page - 1) & ~(page - 1));
}

/* A library that prefers the symbols of its own dependencies would call libc's free, of which we hear nothing. So it
 * does not prefer them, as under preload.c, whose call is a tail call for the same reason. */
EXPORT void *dlopen(const char *file, int flags)
{
    static void *(*of_libc)(const char *file, int flags);
    if (!of_libc) of_libc = dlsym(RTLD_NEXT, "dlopen");
    return of_libc(file, flags & ~RTLD_DEEPBIND);
}

#endif
