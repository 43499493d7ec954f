/* guard.c: the hardened way of serving, chosen at start (canaries, quarantine; HAKMEM_PROFILE=hardened). No thread
 * caches anything; every call comes here.
 *
 * A guarded block ends in a trailer, which holds its size encoded with the key; every byte between the caller's last
 * one and the trailer holds GUARD. A freed block is filled with TRASH (a run is emptied instead) and waits in a queue;
 * when it leaves the queue, it must still look like that. So a write past the end, a second free and a write after the
 * free are found, at the latest when the block leaves the queue. */

enum { GUARD = 0xC5, TRASH = 0xDE };
#define TRAILER_FREED UINT64_C(0xF4EEDF4EEDF4EED5)

static struct lock guard_lock; /* guards the queue */
static uintptr_t guard_queue[QUARANTINE_MAX];
static size_t guard_next;

static size_t guard_room(const struct span *span)
{
    return span->kind == SPAN_SLAB ? classes[span->class].size : align_up(span->size, GRANULE);
}

static uint64_t *guard_trailer(const struct span *span, uintptr_t block)
{
    return (uint64_t *)(block + guard_room(span) - sizeof(uint64_t));
}

static uint64_t guard_sealed(uintptr_t block, size_t size)
{
    return (size ^ block) * UINT64_C(0x9E3779B97F4A7C15) ^ link_key;
}

/* The size that the caller of a block with this trailer asked for. Ends the program where trailer or guard bytes were
 * overwritten. */
static size_t guard_unseal(const struct span *span, uintptr_t block, uint64_t trailer)
{
    size_t size =
        (size_t)((trailer ^ link_key) * UINT64_C(0xF1DE83E19937733D)) ^ block; /* the factor's inverse modulo 2^64 */
    if (UNLIKELY(size > guard_room(span) - sizeof trailer)) fatal("end of block overwritten", block);
    const unsigned char *end = (const unsigned char *)guard_trailer(span, block);
    for (const unsigned char *at = (const unsigned char *)block + size; at < end; at++)
        if (UNLIKELY(*at != GUARD)) fatal("end of block overwritten", block);
    return size;
}

/* The size of a live block; also ends the program where it was freed. */
static size_t guard_size(const struct span *span, uintptr_t block)
{
    uint64_t trailer = *guard_trailer(span, block);
    if (UNLIKELY(trailer == (TRAILER_FREED ^ link_key))) fatal("block freed twice", block);
    return guard_unseal(span, block, trailer);
}

/* A guarded block, from the slabs or as a run; 0 where memory ends or the size is too large. */
static uintptr_t guard_allocate(size_t alignment, size_t size)
{
    if (size > SIZE_LIMIT - alignment - 2 * GRANULE) return 0;
    size_t needed = align_up(size + sizeof(uint64_t), GRANULE),
           rounded = align_up(needed, size_max(alignment, GRANULE));
    uintptr_t block;
    if (rounded <= L2_MAX && alignment < UNIT_BYTES && classes[small_class(rounded)].size % alignment == 0) {
        block = orphan_allocate(small_class(rounded));
    } else {
        struct span *run = orphan_run(size_max(needed, L2_MAX + 1), (uint32_t)size_max(alignment >> UNIT_SHIFT, 1));
        block = run != NULL ? run->address : 0;
    }
    if (block == 0) return 0;
    const struct span *span = span_of(block);
    memset((void *)(block + size), GUARD, guard_room(span) - sizeof(uint64_t) - size);
    *guard_trailer(span, block) = guard_sealed(block, size);
    return block;
}

/* Ends the program where a freed block was written to: a small one must still be full of TRASH, the first page of a run
 * all zero. */
static void guard_inspect(const struct span *span, uintptr_t block)
{
    const uint64_t *at = (const uint64_t *)block;
    const uint64_t *end = span->kind == SPAN_SLAB ? guard_trailer(span, block) : at + run_page() / sizeof *at;
    uint64_t left = span->kind == SPAN_SLAB ? TRASH * (UINT64_MAX / 0xFF) : 0; /* TRASH in every byte */
    for (; at < end; at++)
        if (UNLIKELY(*at != left)) fatal("block written after it was freed", block);
}

/* A freed block leaves the queue: it is inspected, and goes back. */
static void guard_release(uintptr_t block)
{
    struct span *span = span_of(block);
    guard_inspect(span, block);
    if (span->kind == SPAN_SLAB) orphan_free(span->class, block);
    else run_give(span, RUN_FREE, os_now_ns());
}

/* Frees a live guarded block: it is checked, emptied and queued; the oldest one leaves the queue. A run holds hardly
 * any pages there. Of two threads that free a block at once, one finds it freed. */
static void guard_free(struct span *span, uintptr_t block)
{
    uint64_t *trailer = guard_trailer(span, block);
    if (span->kind == SPAN_RUN) {
        if (UNLIKELY(!run_end(span, block))) fatal("block freed twice", block);
        guard_unseal(span, block, *trailer);
        span->zeroed = 0;
        if (os_purge((void *)span->address, span_bytes(span))) POKE(span->touched, 1);
        else memset((void *)block, 0, run_touched_bytes(span));
    } else {
        uint64_t sealed = __atomic_exchange_n(trailer, TRAILER_FREED ^ link_key, __ATOMIC_RELAXED);
        if (UNLIKELY(sealed == (TRAILER_FREED ^ link_key))) fatal("block freed twice", block);
        guard_unseal(span, block, sealed);
        memset((void *)block, TRASH, guard_room(span) - sizeof(uint64_t));
    }
    size_t length = (size_t)knob(KNOB_quarantine);
    uintptr_t oldest = block;
    if (length != 0) {
        lock_take(&guard_lock);
        uintptr_t *slot = &guard_queue[guard_next++ % length];
        oldest = *slot;
        *slot = block;
        lock_drop(&guard_lock);
    }
    if (oldest != 0) guard_release(oldest);
}

/* Lets every block leave the queue, when memory has run out. */
static COLD void guard_empty(void)
{
    for (size_t i = 0; i < (size_t)knob(KNOB_quarantine); i++) {
        lock_take(&guard_lock);
        uintptr_t block = guard_queue[i];
        guard_queue[i] = 0;
        lock_drop(&guard_lock);
        if (block != 0) guard_release(block);
    }
}

/* Inspects what is free when the program ends: in the queue, and behind it in the slabs. Other threads may still run,
 * hence the locks. */
static void guard_end(void)
{
    lock_take(&guard_lock);
    for (int i = 0; i < COUNT(guard_queue); i++)
        if (guard_queue[i] != 0) guard_inspect(span_of(guard_queue[i]), guard_queue[i]);
    lock_drop(&guard_lock);
    lock_take(&orphan_lock); /* a slab that is carved under this lock is given back under no other */
    for (unsigned class = 1; class < CLASSES; class ++) {
        struct class_slabs *slabs = slabs_own(&orphan_heap, class);
        lock_take(&slabs->lock);
        if (orphan_heap.current[class] != NULL) slab_inspect(orphan_heap.current[class]);
        for (struct span *slab = slabs->partial; slab != NULL; slab = slab->next) slab_inspect(slab);
        lock_drop(&slabs->lock);
    }
    lock_drop(&orphan_lock);
}
