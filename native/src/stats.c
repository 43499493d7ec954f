/* stats.c: THE table of counters.
 *
 * Counters of a heap are written by its thread alone (a relaxed load and store, no atomic add) and summed over all
 * heaps when somebody reads them. Counters that any thread may raise are atomic adds on slow paths. A hit touches
 * none. */

/* clang-format off */
/*   name               unit      meaning */
#define HEAP_STATS(X)                                                                                       \
    X(refills,          "calls",  "an empty magazine was exchanged for a full one or filled from slabs")   \
    X(refilled_blocks,  "blocks", "blocks that came with them")                                            \
    X(spills,           "calls",  "a full magazine was exchanged for an empty one")                        \
    X(spilled_blocks,   "blocks", "blocks that went with them")                                            \
    X(carved_blocks,    "blocks", "blocks taken from a slab for the first time")                           \
    X(growths,          "calls",  "reallocations that made a block of more than 512 KiB, or a grown one, longer where it lay") \
    X(aligned,          "calls",  "aligned allocations that no ordinary class could serve")                \
    X(site_routed,      "calls",  "allocations routed by a call-site rule")

#define SHARED_STATS(X)                                                                                     \
    X(returned_blocks,  "blocks", "blocks given back to their slab")                                       \
    X(slabs_taken,      "slabs",  "slabs taken from superslabs")                                           \
    X(slabs_returned,   "slabs",  "slabs given back to superslabs")                                        \
    X(superslabs_taken, "superslabs", "superslabs taken from the arena")                                   \
    X(superslabs_returned, "superslabs", "superslabs given back to the arena")                             \
    X(spans_taken,      "spans",  "runs taken from the arena")                                             \
    X(spans_returned,   "spans",  "runs given back to the arena")                                          \
    X(purged_bytes,     "bytes",  "bytes given back to the kernel")                                        \
    X(purges,           "calls",  "ranges given back to the kernel")                                       \
    X(sys_mmap,         "calls",  "mmap")                                                                  \
    X(sys_munmap,       "calls",  "munmap")                                                                \
    X(sys_madvise,      "calls",  "madvise")                                                               \
    X(sys_mprotect,     "calls",  "mprotect")                                                              \
    X(sys_mincore,      "calls",  "mincore")                                                               \
    X(sys_mbind,        "calls",  "mbind and set_mempolicy")                                               \
    X(threads_seen,     "threads", "threads that got a heap")                                              \
    X(pools,            "pools",  "stack pools made")

/* Derived when they are read: levels, and sums of what each depot counts. */
#define LEVEL_STATS(X)                                                                                      \
    X(depot_pushes,     "calls",  "magazines given to the depot")                                          \
    X(depot_pops,       "calls",  "magazines taken from the depot")                                        \
    X(depot_contended,  "calls",  "the depot's lock was not free at once")                                 \
    X(reserved_bytes,   "bytes",  "address space reserved")                                                \
    X(committed_bytes,  "bytes",  "bytes in slabs, runs and free memory that may hold pages")              \
    X(in_use_bytes,     "bytes",  "bytes in blocks that are out of their slabs, and in runs with callers, in hand or in the depot") \
    X(live_bytes,       "bytes",  "of those, bytes with callers, derived: without what magazines, depot and hand hold") \
    X(cached_bytes,     "bytes",  "bytes in magazines, depot and hand, which are in use too, and in other runs that threads keep") \
    X(dirty_bytes,      "bytes",  "free bytes that may hold pages: what a purge would return")             \
    X(heaps,            "heaps",  "heaps of living threads")                                               \
    X(live_blocks,      "blocks", "blocks up to 32 KiB with callers, derived: refilled minus spilled minus what magazines hold; those in quarantine too")
/* clang-format on */

#define STAT_ENUM(name, ...) STAT_##name,
enum heap_stat { HEAP_STATS(STAT_ENUM) HEAP_STAT_COUNT };
enum shared_stat { SHARED_STATS(STAT_ENUM) SHARED_STAT_COUNT };
enum level_stat { LEVEL_STATS(STAT_ENUM) LEVEL_STAT_COUNT };
#define STAT_COUNT ((int)HEAP_STAT_COUNT + (int)SHARED_STAT_COUNT + (int)LEVEL_STAT_COUNT)

static const hak_stat_t stat_rows[] = {
#define STAT_ROW(name, unit, meaning) {#name, unit, meaning, 0},
    HEAP_STATS(STAT_ROW) SHARED_STATS(STAT_ROW) LEVEL_STATS(STAT_ROW)};

static _Atomic uint64_t shared_stats[SHARED_STAT_COUNT];

static ALWAYS_INLINE void stat_add(struct heap *heap, enum heap_stat row, uint64_t n)
{
    _Atomic uint64_t *at = &heap->stats[row];
    atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + n, memory_order_relaxed);
}

static ALWAYS_INLINE void stat_shared(enum shared_stat row, uint64_t n)
{
    atomic_fetch_add_explicit(&shared_stats[row], n, memory_order_relaxed);
}

static ALWAYS_INLINE uint64_t stat_shared_read(enum shared_stat row)
{
    return atomic_load_explicit(&shared_stats[row], memory_order_relaxed);
}
