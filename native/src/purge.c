/* purge.c: the pages of free spans go back to the kernel.
 *
 * It refuses where memory is locked. So after some refusals a round asks no more, and what was refused is counted:
 * until some of it was used again, it is no use to ask anew. */

static int refusals_left = REFUSALS_MAX; /* refusals in this round until it is no use to ask on */

static void refused_set(size_t units)
{
    lock_take(&arena_lock);
    atomic_store_explicit(&refused_units, units, memory_order_relaxed);
    lock_drop(&arena_lock);
}

/* Gives back the pages of a span that is nobody's, and frees it. One locked page is enough for a refusal, so after one
 * the halves are tried, while refusals are left. Under arena_lock, dropped meanwhile. Result: bytes that went back. */
static size_t span_purge(struct arena *arena, struct span *span, uint64_t now)
{
    uint32_t units = span->units, half = units / 2;
    uintptr_t begin = span->address, end = begin + span_bytes(span);
    lock_drop(&arena_lock);
    bool gone = refusals_left > 0 && os_purge((void *)begin, end - begin);
    lock_take(&arena_lock);
    if (!gone && refusals_left > 0) refusals_left--;
    if (!gone && half != 0 && refusals_left > 0) {
        span_shape(arena, span + half, SPAN_RUN, units - half);
        span[half].life = RUN_FREE;
        span_shape(arena, span, SPAN_RUN, half);
        size_t bytes = span_purge(arena, span, now);
        return bytes + span_purge(arena, span + half, now);
    }
    span = free_insert(arena, span, units, gone, now, dirty_newest);
    if (!gone) {
        atomic_fetch_add_explicit(&refused_units, units, memory_order_relaxed);
        return 0;
    }
    regions_retire(arena, span, begin, end);
    return end - begin;
}

/* Gives back the pages of dirty spans freed until `horizon`, oldest first, while more than `keep` dirty units are left.
 * Result: bytes. */
static size_t arena_purge(uint64_t horizon, size_t keep)
{
    size_t bytes = 0;
    lock_take(&arena_lock);
    for (struct span *span = dirty_oldest; span != NULL && span->freed_ns <= horizon; span = dirty_oldest) {
        if (atomic_load_explicit(&dirty_units, memory_order_relaxed) <= keep) break;
        free_unlink(span);
        span->life = RUN_FREE;
        struct arena *arena = arena_of(span->address);
        span_shape(arena, span, SPAN_RUN, span->units);      /* a run, so that no neighbour grows into it meanwhile */
        bytes += span_purge(arena, span, (horizon | 1) + 1); /* even, and after the horizon: not again in this round */
        if (refusals_left == 0) break;
    }
    lock_drop(&arena_lock);
    return bytes;
}
