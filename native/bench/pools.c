/* pools.c: object pools against standard allocation.
 *
 * A memory pool here is what both sides offer: allocate, deallocate, preallocate, for objects of one size. On `direct`
 * it is the stack pool of hakmem.h, inlined; on `malloc` the standard allocator; on `floor` a bare intrusive list,
 * inlined, which is the least that any pool can do. A thread's pool lives as long as the thread. */
#include "bodies.h"
#include "pools.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

struct bare {
    void **top; /* idle objects, linked by their first words */
};

/* Passed by value, so that a loop keeps it in registers, as a program keeps the handle of its pool. */
struct memory_pool {
    size_t size;
    struct bare *bare; /* floor */
#ifdef HAK_BENCH_DIRECT
    hak_pool_t *stack;
#endif
};

static __thread struct bare bare_of_thread;
static __thread struct memory_pool pool_of_thread;

INLINE void *pool_take(enum backend on, struct memory_pool pool)
{
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) return hak_pool_allocate(pool.stack);
#endif
    if (on == ON_MALLOC) return malloc(pool.size);
    void **object = pool.bare->top;
    if (__builtin_expect(!object, 0)) return floor_malloc(pool.size);
    pool.bare->top = *object;
    return object;
}

INLINE void pool_give(enum backend on, struct memory_pool pool, void *object)
{
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) {
        hak_pool_deallocate(pool.stack, object);
        return;
    }
#endif
    if (on == ON_MALLOC) {
        free(object);
        return;
    }
    *(void **)object = pool.bare->top;
    pool.bare->top = object;
}

/* Makes so many objects ready. The standard allocator and the floor have no such verb, so all are taken, touched and
 * given back. */
INLINE void pool_prepare(enum backend on, struct memory_pool pool, void **block, uint64_t objects)
{
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) {
        if (hak_pool_preallocate(pool.stack, objects)) die(EXIT_FAILURE, "%s", hak_pool_message(hak_pool_error()));
        return;
    }
#endif
    for (uint64_t i = 0; i < objects; i++) touch(block[i] = pool_take(on, pool), i);
    for (uint64_t i = objects; i-- > 0;) pool_give(on, pool, block[i]);
}

INLINE struct memory_pool pool_make(enum backend on, size_t size)
{
    struct memory_pool pool = {.size = size, .bare = &bare_of_thread};
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT && !(pool.stack = hak_pool_new(size, 16)))
        die(EXIT_FAILURE, "%s", hak_pool_message(hak_pool_error()));
#endif
    (void)on;
    return pool;
}

INLINE void pool_end(enum backend on, struct memory_pool pool)
{
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) hak_pool_destroy(pool.stack);
#endif
    (void)on, (void)pool;
}

/* The thread's own pool, made at the first call, with so many objects made ready. */
INLINE struct memory_pool pool_here(enum backend on, struct lane *lane, uint64_t ready)
{
    if (pool_of_thread.size) return pool_of_thread;
    pool_of_thread = pool_make(on, lane->shape.size);
    if (ready) pool_prepare(on, pool_of_thread, lane->block, ready);
    forget(lane, 0, 1);
    return pool_of_thread;
}

/* --- what is not timed -------------------------------------------------------------------------------------------- */

static uint64_t faults_so_far(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_minflt;
}

static void pause_clocks(struct lane *lane)
{
    lane->untimed_cpu_ns -= clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    lane->untimed_ns -= clock_ns(CLOCK_MONOTONIC);
    lane->untimed_faults -= faults_so_far();
}

static void resume_clocks(struct lane *lane)
{
    lane->untimed_faults += faults_so_far();
    lane->untimed_ns += clock_ns(CLOCK_MONOTONIC);
    lane->untimed_cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* --- pool against standard, sizes, throughput --------------------------------------------------------------------- */

INLINE void take_all(enum backend on, struct memory_pool pool, struct lane *lane)
{
    void **block = lane->block;
    for (size_t i = 0; i < lane->shape.slots; i++) touch(block[i] = pool_take(on, pool), i);
}

INLINE void give_all(enum backend on, struct memory_pool pool, struct lane *lane)
{
    void **block = lane->block;
    for (size_t i = 0; i < lane->shape.slots; i++) pool_give(on, pool, block[i]);
    forget(lane, 0, 1);
}

BODY pool_allocate(enum backend on, struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(on, lane, lane->shape.slots);
    for (uint64_t k = 0; k < n; k++) {
        take_all(on, pool, lane);
        pause_clocks(lane);
        for (size_t i = lane->shape.slots; i-- > 0;) pool_give(on, pool, lane->block[i]);
        resume_clocks(lane);
    }
    forget(lane, 0, 1);
    return n * lane->shape.slots;
}

INLINE void cycle(enum backend on, struct memory_pool pool, uint64_t value)
{
    void *object = pool_take(on, pool);
    touch(object, value);
    pool_give(on, pool, object);
    /* A program does other things in between, so no cycle may find the pool's top in a register from the last one.
     * Without this the compiler drops the floor's load and its test for an empty list, but not the pool's. */
    __asm__ volatile("" : : : "memory");
}

BODY pool_cycle(enum backend on, struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(on, lane, lane->shape.slots);
    for (uint64_t k = 0; k < n; k++) cycle(on, pool, k);
    return n;
}

INLINE uint64_t ten_cycles(enum backend on, struct lane *lane, uint64_t n, uint64_t ready)
{
    struct memory_pool pool = pool_here(on, lane, ready);
    for (uint64_t k = 0; k < n; k++)
        for (int i = 0; i < 10; i++) cycle(on, pool, k);
    return n * 10;
}

BODY pool_ten(enum backend on, struct lane *lane, uint64_t n) { return ten_cycles(on, lane, n, lane->shape.slots); }
BODY pool_unready(enum backend on, struct lane *lane, uint64_t n) { return ten_cycles(on, lane, n, 0); }

BODY pool_sweep(enum backend on, struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(on, lane, lane->shape.slots);
    const uint32_t *order = lane->rig->order;
    for (uint64_t k = 0; k < n; k++) {
        take_all(on, pool, lane);
        for (size_t i = 0; i < lane->shape.slots; i++) pool_give(on, pool, lane->block[order[i]]);
    }
    forget(lane, 0, 1);
    return n * lane->shape.slots;
}

BODY pool_batch(enum backend on, struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(on, lane, lane->shape.slots);
    for (uint64_t k = 0; k < n; k++) {
        take_all(on, pool, lane);
        give_all(on, pool, lane);
    }
    return n * lane->shape.slots;
}

/* --- preallocation: every pass is a first one --------------------------------------------------------------------- */

/* `before` objects are made ready before the clock runs, `after` on the clock. The standard allocator has one heap for
 * all passes, so only its first pass is really a first one. */
INLINE uint64_t first_pass(enum backend on, struct lane *lane, uint64_t n, uint64_t before, uint64_t after)
{
    for (uint64_t k = 0; k < n; k++) {
        pause_clocks(lane);
        struct memory_pool pool = pool_make(on, lane->shape.size);
        if (before) pool_prepare(on, pool, lane->block, before);
        resume_clocks(lane);
        if (after) pool_prepare(on, pool, lane->block, after);
        take_all(on, pool, lane);
        pause_clocks(lane);
        give_all(on, pool, lane);
        pool_end(on, pool);
        resume_clocks(lane);
    }
    return n * lane->shape.slots;
}

BODY pool_first(enum backend on, struct lane *lane, uint64_t n) { return first_pass(on, lane, n, 0, 0); }
BODY pool_first_ready(enum backend on, struct lane *lane, uint64_t n)
{
    return first_pass(on, lane, n, lane->shape.slots, 0);
}
BODY pool_first_total(enum backend on, struct lane *lane, uint64_t n)
{
    return first_pass(on, lane, n, 0, lane->shape.slots);
}
BODY pool_first_half(enum backend on, struct lane *lane, uint64_t n)
{
    return first_pass(on, lane, n, lane->shape.slots / 2, 0);
}

/* --- one pool for all threads ------------------------------------------------------------------------------------- */

#ifdef HAK_BENCH_DIRECT
static hak_pool_t *common;
static pthread_once_t common_once = PTHREAD_ONCE_INIT;
static size_t common_size;

static void common_make(void)
{
    if (!(common = hak_pool_new_shared(common_size, 16))) die(EXIT_FAILURE, "%s", hak_pool_message(hak_pool_error()));
}
#endif

INLINE struct memory_pool pool_common(enum backend on, struct lane *lane)
{
    struct memory_pool pool = {.size = lane->shape.size, .bare = &bare_of_thread};
#ifdef HAK_BENCH_DIRECT
    if (on == ON_DIRECT) {
        common_size = lane->rig->options->size;
        pthread_once(&common_once, common_make);
        pool.stack = common;
    }
#endif
    (void)on;
    return pool;
}

BODY pool_shared(enum backend on, struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_common(on, lane);
    for (uint64_t k = 0; k < n; k++) cycle(on, pool, k);
    return n;
}

/* Each thread gives back what its neighbour took. On the floor the objects stay where they died. */
BODY pool_exchange(enum backend on, struct lane *lane, uint64_t n)
{
    struct rig *rig = lane->rig;
    struct memory_pool pool = pool_common(on, lane);
    struct lane *neighbour = &rig->lane[(lane->id + 1) % rig->options->threads];
    for (uint64_t k = 0; k < n; k++) {
        take_all(on, pool, lane);
        pthread_barrier_wait(&rig->round);
        give_all(on, pool, neighbour);
        pthread_barrier_wait(&rig->round);
    }
    return n * lane->shape.slots;
}

#define POOL_INSTANCES(name, body, ...)                                                                                \
    uint64_t name##_malloc(struct lane *lane, uint64_t n) { return body(ON_MALLOC, lane, n); }                         \
    uint64_t name##_floor(struct lane *lane, uint64_t n) { return body(ON_FLOOR, lane, n); }
POOL_WORKLOADS(POOL_INSTANCES)

/* --- what only a stack pool has ----------------------------------------------------------------------------------- */

#ifdef HAK_BENCH_DIRECT
#define STACK_INSTANCES(name, body, ...)                                                                               \
    uint64_t name##_direct(struct lane *lane, uint64_t n) { return body(ON_DIRECT, lane, n); }
POOL_WORKLOADS(STACK_INSTANCES)

uint64_t pool_uncounted_direct(struct lane *lane, uint64_t n)
{
    hak_pool_t *stack = pool_here(ON_DIRECT, lane, lane->shape.slots).stack;
    for (uint64_t k = 0; k < n; k++) {
        void *object = hak_pool_take(stack, 0);
        touch(object, k);
        hak_pool_deallocate(stack, object);
    }
    return n;
}

uint64_t pool_ten_read_direct(struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(ON_DIRECT, lane, lane->shape.slots);
    hak_pool_stats_t stats;
    for (uint64_t k = 0; k < n; k++) {
        for (int i = 0; i < 10; i++) cycle(ON_DIRECT, pool, k);
        hak_pool_stats(pool.stack, &stats);
        touch(&stats, k);
    }
    return n * 10;
}

static uint64_t construct(hak_pool_t *(*make)(size_t, size_t), struct lane *lane, uint64_t n)
{
    for (uint64_t k = 0; k < n; k++) {
        hak_pool_t *pool = make(lane->shape.size, 16);
        touch(hak_pool_allocate(pool), k);
        hak_pool_destroy(pool);
    }
    return n;
}

uint64_t pool_construct_direct(struct lane *lane, uint64_t n) { return construct(hak_pool_new, lane, n); }
uint64_t pool_construct_shared_direct(struct lane *lane, uint64_t n) { return construct(hak_pool_new_shared, lane, n); }

/* The object to be handed out next is prefetched while the program works on this one. */
uint64_t pool_sweep_ahead_direct(struct lane *lane, uint64_t n)
{
    struct memory_pool pool = pool_here(ON_DIRECT, lane, lane->shape.slots);
    const uint32_t *order = lane->rig->order;
    for (uint64_t k = 0; k < n; k++) {
        for (size_t i = 0; i < lane->shape.slots; i++) {
            void *object = pool_take(ON_DIRECT, pool);
            __builtin_prefetch(pool.stack->top, 1);
            touch(lane->block[i] = object, i);
        }
        for (size_t i = 0; i < lane->shape.slots; i++) pool_give(ON_DIRECT, pool, lane->block[order[i]]);
    }
    forget(lane, 0, 1);
    return n * lane->shape.slots;
}

/* --- placement: what asking costs --------------------------------------------------------------------------------- */

static uint64_t place(struct lane *lane, uint64_t n, int policy)
{
    void *region = map_zeroed(lane->shape.size);
    for (uint64_t k = 0; k < n; k++) {
        int code = hak_place(region, lane->shape.size, policy, hak_node_current());
        if (code) die(EXIT_FAILURE, "this kernel refuses placement: %s", strerror(-code));
    }
    munmap(region, lane->shape.size);
    return n;
}

uint64_t place_default_direct(struct lane *lane, uint64_t n) { return place(lane, n, HAK_PLACE_DEFAULT); }
uint64_t place_local_direct(struct lane *lane, uint64_t n) { return place(lane, n, HAK_PLACE_LOCAL); }
uint64_t place_interleave_direct(struct lane *lane, uint64_t n) { return place(lane, n, HAK_PLACE_INTERLEAVE); }
uint64_t place_bind_direct(struct lane *lane, uint64_t n) { return place(lane, n, HAK_PLACE_BIND); }

/* --- copies ------------------------------------------------------------------------------------------------------- */

static void stream(char *to, const char *from, size_t size)
{
#ifdef __SSE2__
    for (size_t at = 0; at < size; at += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(to + at), *(const __m128i *)(from + at));
    _mm_sfence();
#else
    memcpy(to, from, size);
#endif
}

static void plain(char *to, const char *from, size_t size) { memcpy(to, from, size); }

/* As a program that grows a vector would use it: the first and the last byte of the copy are written. */
INLINE uint64_t copies(void (*copy)(char *, const char *, size_t), struct lane *lane, uint64_t n)
{
    size_t size = lane->shape.size & ~(size_t)15;
    char *from = map_zeroed(size), *to = map_zeroed(size);
    for (uint64_t k = 0; k < n; k++) {
        copy(to, from, size);
        touch(to, k);
        touch(to + size - 1, k);
    }
    munmap(from, size);
    munmap(to, size);
    return n;
}

uint64_t copy_plain_direct(struct lane *lane, uint64_t n) { return copies(plain, lane, n); }
uint64_t copy_stream_direct(struct lane *lane, uint64_t n) { return copies(stream, lane, n); }
#endif
