/* stackpool.c: StackPool, pools of objects of one size. Owns the verbs and the control blocks of all pools.
 *
 *   owner's variant: carved = live + on the stack + counted
 *   shared variant:  carved = live + idle in lanes + idle in the depot
 *
 * Fresh objects are carved only when nothing is idle, so the number ever carved is the peak, and costs nothing to keep.
 * The number of live objects is not kept. Instead, reading the statistics walks what was freed since the last reading
 * and sets it aside as counted; it comes back in small steps when the stack runs dry. So a program that never reads
 * them pays nothing, and one that does pays a constant for each free since.
 *
 * A control block is never unmapped, and not reused before many others, so a stale handle finds a closed pool. */

static THREAD_LOCAL int pool_code; /* of this thread's last failure */

static COLD int pool_fail(int code)
{
    errno = code == HAK_POOL_MEMORY ? ENOMEM : EINVAL;
    return pool_code = code;
}

/* --- misuse ------------------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE int pool_gate(const struct pool *pool)
{
    if (UNLIKELY(pool->state == POOL_CLOSED)) return HAK_POOL_DESTROYED;
    if (pool->state == POOL_OWNED && pool->keeper != __builtin_thread_pointer()) return HAK_POOL_THREAD;
    return HAK_POOL_OK;
}

static void pool_lock(const struct pool *pool)
{
    if (pool->state == POOL_SHARED) lock_take(&pools.lock);
}

static void pool_unlock(const struct pool *pool)
{
    if (pool->state == POOL_SHARED) lock_drop(&pools.lock);
}

static int pool_check(struct pool *pool, const void *object, bool live)
{
    if (!HAK_CHECKED) return HAK_POOL_OK;
    pool_lock(pool);
    int code = pool_turn(pool, object, live);
    pool_unlock(pool);
    return code;
}

/* --- the owner's stack -------------------------------------------------------------------------------------------- */

/* Moves the stack onto the counted list, in the same order, and counts it. No more steps than objects were carved: a
 * longer stack is a circle, made by a double deallocation. */
static void owner_count(struct pool *pool)
{
    void **object = pool->hit.top, **last = NULL;
    for (uint64_t left = pool->carved - pool->counted_objects; object != NULL && left > 0; left--) {
        last = object;
        object = *object;
        pool->counted_objects++;
    }
    if (last == NULL) return;
    *last = pool->counted;
    pool->counted = pool->hit.top;
    pool->hit.top = NULL;
}

/* The stack is empty: up to POOL_RECALL objects from the top of the counted list become the stack. */
static void owner_recall(struct pool *pool)
{
    void **last = pool->counted;
    uint32_t objects = 1;
    for (; objects < POOL_RECALL && *last != NULL; objects++) last = *last;
    pool->hit.top = pool->counted;
    pool->counted = *last;
    pool->counted_objects -= objects;
    *last = NULL;
}

static void **owner_take(struct pool *pool)
{
    if (pool->hit.top == NULL && pool->counted != NULL) owner_recall(pool);
    void **object = pool->hit.top;
    if (object != NULL) pool->hit.top = *object;
    else object = pool_carve(pool);
    pool->hit.allocations += object != NULL;
    return object;
}

/* --- the verbs ---------------------------------------------------------------------------------------------------- */

void *hak_pool_allocate(hak_pool_t *handle)
{
    struct pool *pool = (struct pool *)handle;
    int code = pool_gate(pool);
    if (UNLIKELY(code != HAK_POOL_OK)) return pool_fail(code), NULL;
    void **object = pool->state == POOL_SHARED ? shared_take(pool) : owner_take(pool);
    if (UNLIKELY(object == NULL)) return pool_fail(HAK_POOL_MEMORY), NULL;
    pool_check(pool, object, true);
    return object;
}

void *hak_pool_allocate_whole(hak_pool_t *) __attribute__((alias("hak_pool_allocate")));

int hak_pool_deallocate(hak_pool_t *handle, void *object)
{
    struct pool *pool = (struct pool *)handle;
    int code = pool_gate(pool);
    if (code == HAK_POOL_OK) code = object == NULL ? HAK_POOL_NULL : pool_check(pool, object, false);
    if (UNLIKELY(code != HAK_POOL_OK)) return pool_fail(code);
    if (pool->state == POOL_SHARED) {
        shared_give(pool, object);
        return HAK_POOL_OK;
    }
    *(void **)object = pool->hit.top;
    pool->hit.top = object;
    return HAK_POOL_OK;
}

int hak_pool_deallocate_whole(hak_pool_t *, void *) __attribute__((alias("hak_pool_deallocate")));

/* The chunk is mapped and touched before the lock is taken. */
int hak_pool_preallocate(hak_pool_t *handle, size_t objects)
{
    struct pool *pool = (struct pool *)handle;
    int code = pool_gate(pool);
    if (code != HAK_POOL_OK) return pool_fail(code);
    if (objects == 0) return HAK_POOL_OK;
    struct pool_chunk *chunk = pool_chunk_new(pool, objects);
    if (chunk == NULL) return pool_fail(HAK_POOL_MEMORY);
    for (char *page = (char *)chunk + os_page; page < (char *)chunk + chunk->bytes; page += os_page)
        *(volatile char *)page = 0;
    chunk->ready = true;
    pool_lock(pool);
    pool_adopt(pool, chunk);
    pool_unlock(pool);
    return HAK_POOL_OK;
}

/* Allocations so far, and live objects. In a shared pool deallocations are added up first: each object was allocated
 * before, so live is never negative. */
static void pool_traffic(struct pool *pool, uint64_t *allocations, uint64_t *live)
{
    if (pool->state == POOL_OWNED) {
        owner_count(pool);
        *allocations = pool->hit.allocations;
        *live = pool->carved - pool->counted_objects;
        return;
    }
    uint64_t deallocations = *allocations = 0;
    for (unsigned i = 0; i < POOL_LANES; i++)
        deallocations += atomic_load_explicit(&pool->lanes[i].deallocations, memory_order_acquire);
    for (unsigned i = 0; i < POOL_LANES; i++)
        *allocations += atomic_load_explicit(&pool->lanes[i].allocations, memory_order_acquire);
    *live = size_min(*allocations - deallocations, pool->carved); /* some were allocated between the two sums */
}

int hak_pool_stats(hak_pool_t *handle, hak_pool_stats_t *stats)
{
    struct pool *pool = (struct pool *)handle;
    int code = pool_gate(pool);
    if (code != HAK_POOL_OK) return pool_fail(code);
    uint64_t allocations, live;
    pool_lock(pool);
    pool_traffic(pool, &allocations, &live);
    uint64_t misses = size_min(pool->misses, allocations); /* shared: a batch is carved before it is asked for */
    *stats = (hak_pool_stats_t){
        .allocations = allocations,
        .hits = allocations - misses,
        .misses = misses,
        .live = live,
        .peak = pool->peak,
        .capacity = pool->capacity,
        .bytes_held = pool->bytes + (pool->lanes != NULL ? POOL_LANES * sizeof(struct pool_lane) : 0),
        .hit_rate = allocations != 0 ? (double)(allocations - misses) / (double)allocations : 0,
    };
    pool_unlock(pool);
    return HAK_POOL_OK;
}

/* --- shrink ------------------------------------------------------------------------------------------------------- */

/* Every idle object that this thread may touch, in one list: its own, nobody's, and those of threads that ended. */
static void **pool_gather(struct pool *pool)
{
    owner_count(pool);
    void **all = pool->counted, **next;
    pool->counted = NULL;
    pool->counted_objects = 0;
    if (pool->state != POOL_SHARED) return all;
    uint64_t held = lanes_hold(), free = held | UINT64_C(1) | UINT64_C(1) << lane_number;
    for (; free != 0; free &= free - 1) lane_empty(pool, &pool->lanes[lowest_bit(free)]);
    lanes_let_go(held);
    for (void **batch = pool->depot; batch != NULL; batch = next) {
        next = batch[1];
        for (void **object = batch, **link; object != NULL; object = link) {
            link = *object;
            *object = all;
            all = object;
        }
    }
    pool->depot = NULL;
    return all;
}

/* Puts the objects whose chunk stays back where they came from: the stack, or the depot in batches. */
static void pool_scatter(struct pool *pool, const struct chunk_table *table, void **all)
{
    void **batch = NULL;
    uint32_t count = 0;
    for (void **next; all != NULL; all = next) {
        next = *all;
        if (chunk_is_idle(pool, chunk_find(table, all))) continue;
        *all = batch;
        batch = all;
        if (pool->state == POOL_SHARED && ++count == pool->batch) {
            depot_give(pool, batch);
            batch = NULL;
            count = 0;
        }
    }
    if (pool->state != POOL_SHARED) pool->hit.top = batch;
    else if (batch != NULL) depot_give(pool, batch);
}

static void pool_release_idle(struct pool *pool, struct pool_chunk **list, struct pool_chunk **released)
{
    while (*list != NULL) {
        struct pool_chunk *chunk = *list;
        if (!chunk_is_idle(pool, chunk)) {
            list = &chunk->next;
            continue;
        }
        *list = chunk->next;
        pool_chunk_push(released, chunk);
        pool->bytes -= chunk->bytes;
        pool->capacity -= (size_t)(chunk->end - chunk->first) / pool->stride;
        pool->carved -= chunk->idle;
    }
}

static struct pool_chunk *pool_shrink(struct pool *pool, struct pool_chunk **row)
{
    struct chunk_table table = {row, chunk_list(pool->carving, row)};
    table.rows += chunk_list(pool->carved_out, row + table.rows);
    qsort(row, table.rows, sizeof *row, chunk_order);
    void **all = pool_gather(pool);
    for (void **object = all; object != NULL; object = *object) chunk_find(&table, object)->idle++;
    pool_scatter(pool, &table, all);
    struct pool_chunk *released = NULL;
    pool_release_idle(pool, &pool->carving, &released);
    pool_release_idle(pool, &pool->carved_out, &released);
    return released;
}

/* Idle objects in the lanes of other living threads stay, and their chunks with them. */
int hak_pool_shrink(hak_pool_t *handle)
{
    struct pool *pool = (struct pool *)handle;
    int code = pool_gate(pool);
    if (code != HAK_POOL_OK) return pool_fail(code);
    pool_lock(pool);
    size_t chunks = 1, bytes;
    for (struct pool_chunk *chunk = pool->carving; chunk != NULL; chunk = chunk->next) chunks++;
    for (struct pool_chunk *chunk = pool->carved_out; chunk != NULL; chunk = chunk->next) chunks++;
    bytes = align_up(chunks * sizeof(struct pool_chunk *), os_page);
    struct pool_chunk **row = os_map(bytes), *released = row != NULL ? pool_shrink(pool, row) : NULL;
    pool_unlock(pool);
    pool_chunk_free(released);
    if (row == NULL) return pool_fail(HAK_POOL_MEMORY);
    os_unmap(row, bytes);
    return HAK_POOL_OK;
}

/* --- birth and death ---------------------------------------------------------------------------------------------- */

/* A control block: the longest closed pool's once there are more than POOL_CLOSED_MAX, else a new one. NULL when there
 * is no memory. The lock is held. */
static struct pool *pool_control(void)
{
    struct pool *pool = pools.closed;
    if (pools.closed_count > POOL_CLOSED_MAX) {
        pools.closed = pool->next_closed;
        pools.closed_count--;
        return pool;
    }
    if (pools.control == pools.control_end) {
        char *block = os_map(POOL_CONTROL_BYTES);
        if (block == NULL) return NULL;
        pools.control = block;
        pools.control_end = block + POOL_CONTROL_BYTES / sizeof(struct pool) * sizeof(struct pool);
    }
    pool = (struct pool *)pools.control;
    pools.control += sizeof(struct pool);
    return pool;
}

static void pool_retire(struct pool *pool)
{
    pool->next_closed = NULL;
    if (pools.closed == NULL) pools.closed_end = &pools.closed;
    *pools.closed_end = pool;
    pools.closed_end = &pool->next_closed;
    pools.closed_count++;
}

static hak_pool_t *pool_new(size_t size, size_t alignment, enum pool_state state)
{
    if (size == 0) return pool_fail(HAK_POOL_SIZE), NULL;
    if (!is_power_of_two(alignment)) return pool_fail(HAK_POOL_ALIGNMENT), NULL;
    if (size > pool_memory() || alignment > pool_memory()) return pool_fail(HAK_POOL_MEMORY), NULL;
    struct pool_lane *lanes = state == POOL_SHARED ? os_map(POOL_LANES * sizeof(struct pool_lane)) : NULL;
    lock_take(&pools.lock);
    struct pool *pool = state == POOL_SHARED && lanes == NULL ? NULL : pool_control();
    lock_drop(&pools.lock);
    if (pool == NULL) {
        if (lanes != NULL) os_unmap(lanes, POOL_LANES * sizeof(struct pool_lane));
        return pool_fail(HAK_POOL_MEMORY), NULL;
    }
    alignment = size_max(alignment, sizeof(void *));
    size_t links = state == POOL_SHARED ? 2 * sizeof(void *) : sizeof(void *);
    *pool = (struct pool){.keeper = __builtin_thread_pointer(), .state = state, .alignment = alignment, .lanes = lanes};
    pool->stride = align_up(size_max(size, links), alignment);
    pool->batch = (uint32_t)size_max(1, size_min(POOL_BATCH_MAX, POOL_BATCH_BYTES / pool->stride));
    if (state == POOL_OWNED && !HAK_CHECKED) pool->hit.owner = pool->keeper;
    stat_shared(STAT_pools, 1);
    return &pool->hit;
}

hak_pool_t *hak_pool_new(size_t size, size_t alignment) { return pool_new(size, alignment, POOL_OWNED); }

hak_pool_t *hak_pool_new_shared(size_t size, size_t alignment)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, lanes_init);
    return pool_new(size, alignment, POOL_SHARED);
}

hak_pool_t *hak_pool_with_capacity(size_t size, size_t alignment, size_t objects)
{
    hak_pool_t *pool = hak_pool_new(size, alignment);
    if (pool != NULL && hak_pool_preallocate(pool, objects) != HAK_POOL_OK) {
        int code = pool_code;
        hak_pool_destroy(pool);
        pool_fail(code);
        return NULL;
    }
    return pool;
}

int hak_pool_destroy(hak_pool_t *handle)
{
    struct pool *pool = (struct pool *)handle;
    lock_take(&pools.lock);
    if (pool->state == POOL_CLOSED) {
        lock_drop(&pools.lock);
        return pool_fail(HAK_POOL_DESTROYED);
    }
    struct pool gone = *pool;
    *pool = (struct pool){.state = POOL_CLOSED};
    pool_retire(pool);
    lock_drop(&pools.lock);
    pool_chunk_free(gone.carving);
    pool_chunk_free(gone.carved_out);
    if (gone.lanes != NULL) os_unmap(gone.lanes, POOL_LANES * sizeof(struct pool_lane));
    return HAK_POOL_OK;
}

int hak_pool_error(void) { return pool_code; }

const char *hak_pool_message(int code)
{
    static const char *const messages[] = {
        [-HAK_POOL_OK] = "no failure",
        [-HAK_POOL_SIZE] = "the size of an object is 0: give its bytes, at least 1",
        [-HAK_POOL_ALIGNMENT] = "the alignment is not a power of two: give 1, 2, 4, 8, ...",
        [-HAK_POOL_MEMORY] = "the pool wants more memory than there is: ask for fewer or smaller objects",
        [-HAK_POOL_NULL] = "NULL was deallocated: give an object that this pool allocated",
        [-HAK_POOL_DESTROYED] = "the pool was destroyed: make a new one, and drop the handle when a pool is destroyed",
        [-HAK_POOL_THREAD] = "another thread used an owner's pool: use it where it was made, or make it shared",
        [-HAK_POOL_FOREIGN] = "the pointer is no object of this pool: deallocate what this pool allocated",
        [-HAK_POOL_DOUBLE] = "the object is not live: it was deallocated twice",
    };
    return code <= 0 && -code < COUNT(messages) ? messages[-code] : "no such code";
}
