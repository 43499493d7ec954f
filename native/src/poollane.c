/* poollane.c: how threads share a pool. Owns the thread's number, its lanes, and the depot of each shared pool.
 *
 * A lane is two lists of idle objects that no other thread touches. Whole batches move between lanes and the depot,
 * under the one lock of all pools. A thread's number is unique among living threads, and the next thread with that
 * number inherits the lanes as they are: nothing is flushed when a thread ends. Called by stackpool.c. */

#include <pthread.h>

static struct {
    struct lock lock; /* guards the rest, and of shared pools everything but the lanes that threads own */
    char *control, *control_end;
    struct pool *closed, **closed_end;
    uint32_t closed_count;
} pools = {.closed_end = &pools.closed};

static _Atomic uint64_t lanes_taken = 1;  /* bit n: lane n has a living thread; lane 0 is nobody's */
static THREAD_LOCAL unsigned lane_number; /* of this thread; 0: none yet */
static THREAD_LOCAL bool lane_left;       /* this thread had a lane, and is ending */
static pthread_key_t lane_key;            /* its destructor frees the number */
static bool lane_key_made;

static void lane_leave(void *number)
{
    lane_number = 0;
    lane_left = true; /* a number taken in the last round of destructors would never be freed */
    atomic_fetch_and_explicit(&lanes_taken, ~(UINT64_C(1) << (uintptr_t)number), memory_order_release);
}

/* Takes the lowest free number. 0 when all are taken, or when nothing would free it at the thread's end. */
static NOINLINE unsigned lane_enter(void)
{
    uint64_t taken = atomic_load_explicit(&lanes_taken, memory_order_relaxed);
    unsigned number;
    if (lane_left || !lane_key_made) return 0;
    do {
        if (taken == UINT64_MAX) return 0;
        number = lowest_bit(~taken);
    } while (!atomic_compare_exchange_weak_explicit(&lanes_taken, &taken, taken | UINT64_C(1) << number,
                                                    memory_order_acquire, memory_order_relaxed));
    if (pthread_setspecific(lane_key, (void *)(uintptr_t)number) != 0) {
        lane_leave((void *)(uintptr_t)number);
        return 0;
    }
    return lane_number = number;
}

/* Takes all lanes that no living thread has, until they are let go; a thread that enters meanwhile finds none free. */
static uint64_t lanes_hold(void) { return ~atomic_fetch_or_explicit(&lanes_taken, UINT64_MAX, memory_order_acquire); }
static void lanes_let_go(uint64_t held) { atomic_fetch_and_explicit(&lanes_taken, ~held, memory_order_release); }

/* In a forked child only the calling thread is left; threads to come inherit the other lanes. */
static void lanes_child(void)
{
    atomic_store_explicit(&lanes_taken, UINT64_C(1) | UINT64_C(1) << lane_number, memory_order_relaxed);
}

static void lanes_init(void) { lane_key_made = pthread_key_create(&lane_key, lane_leave) == 0; }

/* Raises a counter of the lane's own. The store is a release, so that a reader who has seen an object's deallocation
 * then sees its allocation too. */
static void lane_count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

/* A batch of fresh objects, linked; shorter, or NULL, when memory ends. The lock is held. */
static void **pool_carve_batch(struct pool *pool)
{
    void **batch = NULL, **object;
    for (uint32_t i = 0; i < pool->batch && (object = pool_carve(pool)) != NULL; i++) {
        *object = batch;
        batch = object;
    }
    return batch;
}

static void **depot_take(struct pool *pool)
{
    void **batch = pool->depot;
    if (batch == NULL) return pool_carve_batch(pool);
    pool->depot = batch[1];
    return batch;
}

static void depot_give(struct pool *pool, void **batch)
{
    batch[1] = pool->depot;
    pool->depot = batch;
}

static void lane_empty(struct pool *pool, struct pool_lane *lane)
{
    if (lane->loaded != NULL) depot_give(pool, lane->loaded);
    if (lane->spare != NULL) depot_give(pool, lane->spare);
    lane->loaded = lane->spare = NULL;
    lane->count = 0;
}

/* `alone`: the lane is the thread's own, and the lock is not held; else it is lane 0, under the lock. A fork may come
 * between any two stores to a lane, and the child's threads inherit it as it is then. So the stores are ordered: a
 * batch is never in two places, and one that is in none at that moment is lost to the child. */
static NOINLINE void lane_refill(struct pool *pool, struct pool_lane *lane, bool alone)
{
    void **batch = lane->spare;
    POKE(lane->spare, NULL);
    atomic_signal_fence(memory_order_seq_cst);
    if (batch == NULL) {
        if (alone) lock_take(&pools.lock);
        batch = depot_take(pool);
        if (alone) lock_drop(&pools.lock);
    }
    POKE(lane->loaded, batch);
    lane->count = pool->batch;
}

static NOINLINE void lane_spill(struct pool *pool, struct pool_lane *lane, bool alone)
{
    void **full = lane->loaded, **behind = lane->spare;
    POKE(lane->loaded, NULL);
    lane->count = 0;
    atomic_signal_fence(memory_order_seq_cst);
    POKE(lane->spare, full);
    atomic_signal_fence(memory_order_seq_cst);
    if (behind == NULL) return;
    if (alone) lock_take(&pools.lock);
    depot_give(pool, behind);
    if (alone) lock_drop(&pools.lock);
}

static ALWAYS_INLINE void **lane_pop(struct pool *pool, struct pool_lane *lane, bool alone)
{
    if (UNLIKELY(lane->loaded == NULL)) lane_refill(pool, lane, alone);
    void **object = lane->loaded;
    if (UNLIKELY(object == NULL)) return NULL;
    lane->loaded = *object;
    lane->count--;
    lane_count(&lane->allocations);
    return object;
}

static ALWAYS_INLINE void lane_push(struct pool *pool, struct pool_lane *lane, void **object, bool alone)
{
    if (UNLIKELY(lane->count == pool->batch)) lane_spill(pool, lane, alone);
    *object = lane->loaded;
    atomic_signal_fence(memory_order_release);
    lane->loaded = object;
    lane->count++;
    lane_count(&lane->deallocations);
}

static ALWAYS_INLINE unsigned lane_here(void) { return LIKELY(lane_number != 0) ? lane_number : lane_enter(); }

static void **shared_take(struct pool *pool)
{
    unsigned number = lane_here();
    struct pool_lane *lane = &pool->lanes[number];
    if (LIKELY(number != 0)) return lane_pop(pool, lane, true);
    lock_take(&pools.lock);
    void **object = lane_pop(pool, lane, false);
    lock_drop(&pools.lock);
    return object;
}

static void shared_give(struct pool *pool, void **object)
{
    unsigned number = lane_here();
    struct pool_lane *lane = &pool->lanes[number];
    if (LIKELY(number != 0)) {
        lane_push(pool, lane, object, true);
        return;
    }
    lock_take(&pools.lock);
    lane_push(pool, lane, object, false);
    lock_drop(&pools.lock);
}
