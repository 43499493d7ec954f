/* poolchunk.c: the memory of stack pools. Owns what a chunk is: a header, then objects one stride apart, carved
 * upwards.
 *
 * An object is fresh (never handed out), live, or idle. A chunk is in one of its pool's two lists: `carving`, those
 * with fresh objects, or `carved_out`. It is released only when every carved object in it is idle. Called by poollane.c
 * and stackpool.c. */

/* Bytes of memory in this machine: more is never asked for at a time. Read once; threads that race to be the first
 * store the same value. */
static size_t pool_memory(void)
{
    static _Atomic size_t bytes;
    if (UNLIKELY(bytes == 0)) bytes = (size_t)sysconf(_SC_PHYS_PAGES) * os_page;
    return bytes;
}

/* Offset of the first object in a chunk of so many: behind the header and, in the checked build, the live bits. */
static size_t pool_header(const struct pool *pool, size_t objects)
{
    size_t bits = HAK_CHECKED ? align_up(objects, 64) / 8 : 0;
    return align_up(sizeof(struct pool_chunk) + bits, pool->alignment);
}

static void *pool_map(const struct pool *pool, size_t bytes)
{
    size_t alignment = size_max(pool->alignment, bytes >= POOL_CHUNK_MAX ? POOL_CHUNK_MAX : os_page);
    if (bytes > pool_memory()) return NULL;
    char *base = alignment > os_page ? os_reserve(bytes, alignment) : os_map(bytes);
    if (base == NULL) return NULL;
    if (alignment > os_page && !os_commit(base, bytes)) {
        os_unmap(base, bytes);
        return NULL;
    }
    if (bytes >= POOL_CHUNK_MAX) os_huge(base, bytes, knob(KNOB_huge_pages) != 0);
    numa_place(base, bytes);
    return base;
}

/* A chunk of at least so many objects, in no list yet; NULL when there is no memory. */
static struct pool_chunk *pool_chunk_new(const struct pool *pool, size_t objects)
{
    if (objects > PTRDIFF_MAX / 2 / pool->stride) return NULL;
    size_t bytes = align_up(pool_header(pool, objects) + objects * pool->stride, os_page);
    struct pool_chunk *chunk = pool_map(pool, bytes);
    if (chunk == NULL) return NULL;
    chunk->bytes = bytes;
    chunk->first = chunk->fresh = (char *)chunk + pool_header(pool, objects);
    size_t room = (size_t)((char *)chunk + bytes - chunk->first) / pool->stride;
    chunk->end = chunk->first + (HAK_CHECKED ? objects : room) * pool->stride;
    return chunk;
}

static void pool_chunk_push(struct pool_chunk **list, struct pool_chunk *chunk)
{
    chunk->next = *list;
    *list = chunk;
}

static void pool_chunk_free(struct pool_chunk *chunk)
{
    for (struct pool_chunk *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        os_unmap(chunk, chunk->bytes);
    }
}

static void pool_adopt(struct pool *pool, struct pool_chunk *chunk)
{
    pool_chunk_push(&pool->carving, chunk);
    pool->bytes += chunk->bytes;
    pool->capacity += (size_t)(chunk->end - chunk->first) / pool->stride;
}

/* Adds a chunk of as many bytes as the pool has already, within bounds. False: no memory. */
static bool pool_grow(struct pool *pool)
{
    size_t bytes = size_min(size_max(pool->bytes, POOL_CHUNK_MIN), POOL_CHUNK_MAX), header = pool_header(pool, 1);
    struct pool_chunk *chunk =
        pool_chunk_new(pool, bytes > header + pool->stride ? (bytes - header) / pool->stride : 1);
    if (chunk != NULL) pool_adopt(pool, chunk);
    return chunk != NULL;
}

/* A fresh object; NULL when there is no memory. */
static void **pool_carve(struct pool *pool)
{
    if (pool->carving == NULL && !pool_grow(pool)) return NULL;
    struct pool_chunk *chunk = pool->carving;
    void **object = (void **)chunk->fresh;
    chunk->fresh += pool->stride;
    pool->misses += !chunk->ready;
    if (++pool->carved > pool->peak) pool->peak = pool->carved;
    if (chunk->fresh == chunk->end) {
        pool->carving = chunk->next;
        pool_chunk_push(&pool->carved_out, chunk);
    }
    return object;
}

/* --- finding the chunk of an object ------------------------------------------------------------------------------- */

static struct pool_chunk *pool_chunk_of(struct pool_chunk *list, const char *object)
{
    while (list != NULL && (object < list->first || object >= list->fresh)) list = list->next;
    return list;
}

/* Checked build: sets the object's live bit to `live`. HAK_POOL_FOREIGN where it is no object of this pool,
 * HAK_POOL_DOUBLE where the bit has that value already. */
static int pool_turn(struct pool *pool, const char *object, bool live)
{
    struct pool_chunk *chunk = pool_chunk_of(pool->carving, object);
    if (chunk == NULL) chunk = pool_chunk_of(pool->carved_out, object);
    if (chunk == NULL || (size_t)(object - chunk->first) % pool->stride != 0) return HAK_POOL_FOREIGN;
    size_t index = (size_t)(object - chunk->first) / pool->stride;
    if (bit_of(chunk->live, index) == live) return HAK_POOL_DOUBLE;
    chunk->live[index / 64] ^= UINT64_C(1) << (index % 64);
    return HAK_POOL_OK;
}

struct chunk_table {
    struct pool_chunk **row; /* sorted by address */
    size_t rows;
};

static int chunk_order(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    return (x > y) - (x < y);
}

static size_t chunk_list(struct pool_chunk *chunk, struct pool_chunk **row)
{
    size_t rows = 0;
    for (; chunk != NULL; chunk = chunk->next) {
        chunk->idle = 0;
        row[rows++] = chunk;
    }
    return rows;
}

static struct pool_chunk *chunk_find(const struct chunk_table *table, const void *object)
{
    size_t low = 0, high = table->rows;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if ((const void *)table->row[middle] <= object) low = middle;
        else high = middle;
    }
    return table->row[low];
}

static bool chunk_is_idle(const struct pool *pool, const struct pool_chunk *chunk)
{
    return (size_t)(chunk->fresh - chunk->first) == chunk->idle * pool->stride;
}
