/* pools.h: the rows of the pool workloads, for the table in workloads.c. */
#ifndef HAK_BENCH_POOLS_H
#define HAK_BENCH_POOLS_H

/* X(name, body, unit, size, smallest, slots, threads, iterations, round, flags, what it stresses), as in workloads.c.
 * Slots are the objects that a thread's pool holds. `direct` is the stack pool of hakmem.h, `malloc` the standard. */
/* clang-format off */
#define POOL_WORKLOADS(X) \
    X(pool_allocate, pool_allocate, "call", 64, 16, 10000, 1, 500, 0, ALONE, "allocation alone; giving back is not timed") \
    X(pool_cycle, pool_cycle, "pair", 64, 16, 100, 1, 20000000, 0, 0, "one object taken, touched, given back") \
    X(pool_ten, pool_ten, "pair", 64, 16, 100, 1, 2000000, 0, 0, "ten such cycles in a pool of so many objects") \
    X(pool_unready, pool_unready, "pair", 64, 16, 10, 1, 2000000, 0, 0, "ten cycles in a pool that was not preallocated") \
    X(pool_sweep, pool_sweep, "pair", 64, 16, 1000, 1, 20000, 0, SHUFFLED, "all objects taken in order, given back at random") \
    X(pool_batch, pool_batch, "pair", 64, 16, 100, 1, 200000, 0, 0, "all objects taken, all given back in the same order") \
    X(pool_first, pool_first, "call", 64, 16, 10000, 1, 40, 0, ALONE, "first pass over a pool that grows") \
    X(pool_first_ready, pool_first_ready, "call", 64, 16, 10000, 1, 40, 0, ALONE, "first pass; preallocated before the clock") \
    X(pool_first_total, pool_first_total, "call", 64, 16, 10000, 1, 40, 0, ALONE, "first pass and the preallocation itself") \
    X(pool_first_half, pool_first_half, "call", 64, 16, 10000, 1, 40, 0, ALONE, "half preallocated before the clock, then exhausted") \
    X(pool_threads, pool_cycle, "pair", 64, 16, 100, 4, 20000000, 0, THREADED, "cycles, a pool for each thread") \
    X(pool_shared, pool_shared, "pair", 64, 16, 100, 4, 8000000, 0, THREADED, "cycles, one pool for all threads") \
    X(pool_exchange, pool_exchange, "pair", 64, 16, 400, 4, 10000, 0, THREADED | TOGETHER, "one pool; objects die in another thread")

/* Workloads for `direct` alone: what only a stack pool has, placement, and copies. */
#define STACK_WORKLOADS(X) \
    X(pool_uncounted, pool_uncounted, "pair", 64, 16, 100, 1, 20000000, 0, 0, "cycles that count nothing") \
    X(pool_ten_read, pool_ten_read, "pair", 64, 16, 100, 1, 2000000, 0, 0, "ten cycles, then the statistics are read") \
    X(pool_construct, pool_construct, "call", 64, 16, 10, 1, 20000, 0, 0, "a pool made, used once and destroyed") \
    X(pool_construct_shared, pool_construct_shared, "call", 64, 16, 10, 1, 20000, 0, 0, "the same, for any thread") \
    X(pool_sweep_ahead, pool_sweep_ahead, "pair", 64, 16, 1000, 1, 20000, 0, SHUFFLED, "pool_sweep with the next object prefetched") \
    X(place_default, place_default, "call", 65536, 4096, 1, 1, 200000, 0, 0, "no policy asked for a region: the call alone") \
    X(place_local, place_local, "call", 65536, 4096, 1, 1, 200000, 0, 0, "a region placed on the toucher's node") \
    X(place_interleave, place_interleave, "call", 65536, 4096, 1, 1, 200000, 0, 0, "a region placed page by page") \
    X(place_bind, place_bind, "call", 65536, 4096, 1, 1, 200000, 0, 0, "a region bound to one node") \
    X(copy_plain, copy_plain, "call", 1 << 20, 64, 1, 1, 20000, 0, 0, "a block copied as realloc does") \
    X(copy_stream, copy_stream, "call", 1 << 20, 64, 1, 1, 20000, 0, 0, "the same by stores that pass the cache")
/* clang-format on */

#define POOL_BODY(name, ...)                                                                                           \
    uint64_t name##_malloc(struct lane *lane, uint64_t n);                                                             \
    uint64_t name##_floor(struct lane *lane, uint64_t n);                                                              \
    uint64_t name##_direct(struct lane *lane, uint64_t n);
#define STACK_BODY(name, ...) uint64_t name##_direct(struct lane *lane, uint64_t n);
POOL_WORKLOADS(POOL_BODY)
STACK_WORKLOADS(STACK_BODY)

#endif
