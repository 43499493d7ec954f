/* peers.c: who can answer malloc in this executable, and the floor.
 *
 * Peers are not linked: LD_PRELOAD puts one behind `malloc`, and backend_origin proves which one it was. The floor is
 * the least that an allocator can do: one intrusive LIFO list for each thread and class, a free that is told the size,
 * no owner, and so no way back for blocks that other threads free. Its functions are not inlined, as malloc is not. */
#define _GNU_SOURCE
#include "bench.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline, noclone))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)

enum {
    FINE_BYTES = 4096, /* one class every 16 bytes up to here, then four a doubling */
    FINE_CLASSES = FINE_BYTES / 16 + 1,
    FLOOR_CLASSES = FINE_CLASSES + 4 * 52,
    CARVE_BYTES = 64 << 10, /* blocks of a class are carved so many bytes at a time */
};
static const size_t REGION_BYTES = (size_t)64 << 20; /* mapped at a time; becomes resident as it is touched */

const char *const backend_names[BACKENDS] = {"malloc", "floor", "direct"};

bool backend_usable(enum backend backend, const struct workload *workload)
{
    return workload->body[backend] && !(backend == ON_FLOOR && workload->flags & REMOTE);
}

const char *backend_origin(enum backend backend)
{
    void *function = dlsym(RTLD_DEFAULT, backend == ON_DIRECT ? "hak_malloc" : "malloc");
    Dl_info info;
    if (backend == ON_FLOOR) function = (void *)floor_malloc;
    return function && dladdr(function, &info) && info.dli_fname ? info.dli_fname : "unknown";
}

/* A function of the library that answers malloc, and of no other; NULL: it has none of this name. */
void *backend_function(const char *name)
{
    void *function = dlsym(RTLD_DEFAULT, name), *own = dlsym(RTLD_DEFAULT, "malloc");
    Dl_info theirs, here;
    bool same =
        function && own && dladdr(function, &here) && dladdr(own, &theirs) && here.dli_fbase == theirs.dli_fbase;
    return same ? function : NULL;
}

static __thread void *head[FLOOR_CLASSES];
static __thread char *region, *region_end;

/* Blocks above FINE_BYTES: the two bits below the leading one choose among the four classes of a doubling. */
static unsigned coarse_class(size_t size)
{
    unsigned shift = 61 - (unsigned)__builtin_clzl(size - 1);
    return FINE_CLASSES + shift * 4 + ((size - 1) >> shift & 3);
}

INLINE unsigned class_of(size_t size)
{
    return LIKELY(size <= FINE_BYTES) ? (unsigned)((size + 15) >> 4) : coarse_class(size);
}

static size_t class_bytes(unsigned class)
{
    if (class < FINE_CLASSES) return class ? class * 16 : 16;
    unsigned shift = (class - FINE_CLASSES) / 4, quarter = (class - FINE_CLASSES) % 4;
    return (size_t)(5 + quarter) << shift;
}

static char *carve(size_t size)
{
    if ((size_t)(region_end - region) < size) {
        size_t length = size > REGION_BYTES ? size : REGION_BYTES;
        region = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED)
            die(EXIT_FAILURE, "the floor could not map %zu bytes: use a smaller --size or --slots", length);
        region_end = region + length;
    }
    char *piece = region;
    region += size;
    return piece;
}

static NOINLINE void *refill(unsigned class)
{
    size_t size = class_bytes(class), count = size < CARVE_BYTES ? CARVE_BYTES / size : 1;
    char *first = carve(count * size);
    for (size_t i = count; i-- > 1;) {
        *(void **)(first + i * size) = head[class];
        head[class] = first + i * size;
    }
    return first;
}

NOINLINE void *floor_malloc(size_t size)
{
    unsigned class = class_of(size);
    void *block = head[class];
    if (!LIKELY(block)) return refill(class);
    head[class] = *(void **)block;
    return block;
}

NOINLINE void floor_free(void *block, size_t size)
{
    unsigned class = class_of(size);
    *(void **)block = head[class];
    head[class] = block;
}

void *floor_realloc(void *block, size_t old_size, size_t size)
{
    if (!block) return floor_malloc(size);
    if (class_of(old_size) == class_of(size)) return block;
    void *copy = floor_malloc(size);
    memcpy(copy, block, old_size < size ? old_size : size);
    floor_free(block, old_size);
    return copy;
}

void *floor_calloc(size_t size) { return memset(floor_malloc(size), 0, size); }
