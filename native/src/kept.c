/* kept.c: runs that threads keep. A thread takes from its own lists without a lock or a fence; who needs the memory,
 * the helper when the thread rests or anybody before memory grows, takes it from there all the same.
 *
 * A thread says while it is at its lists. Who collects says so first, then has the kernel pass a fence through every
 * thread of the process (membarrier), and only then looks whether the thread is busy: if not, it will see, before it
 * touches its lists again, that they are asked for. So who collects pays for the order between the two. Where the
 * kernel cannot do that, threads keep less, and nobody collects (runs_watched). */

static struct heap *_Atomic heaps;   /* every one there ever was, newest first */
static _Atomic size_t run_units_out; /* of runs that threads have or keep */
static _Atomic size_t runs_told;     /* bytes that they keep, each thread's to RUN_PORTION */
static bool runs_watched;            /* the helper collects from threads that rest */

static size_t runs_bytes(void) { return atomic_load_explicit(&runs_told, memory_order_relaxed); }
static ALWAYS_INLINE uintptr_t run_block(const struct span *run) { return run->address + run->start; }
static size_t run_touched_bytes(const struct span *run) { return (size_t)PEEK(run->touched) << UNIT_SHIFT; }

/* A run of the thread whose word this is: of two threads that freed a block at a time, each of which keeps it, one
 * finds that it is the other's. */
static ALWAYS_INLINE void run_expect_kept(uint32_t word, const struct span *run)
{
    if (UNLIKELY(run->kind != SPAN_RUN || PEEK(run->life) != word)) fatal("block freed twice", run_block(run));
}

/* A run goes to the arena, unless its word of life is not what it was: another thread, that freed the block at the same
 * time, has just put it elsewhere. */
static void run_give(struct span *run, uint32_t life, uint64_t now)
{
    atomic_fetch_sub_explicit(&run_units_out, run->units, memory_order_relaxed);
    lock_take(&arena_lock);
    if (UNLIKELY(run->kind != SPAN_RUN || PEEK(run->life) != life)) fatal("block freed twice", run_block(run));
    POKE(run->life, RUN_FREE);
    arena_give(run, run->touched != 0 ? run->units : 0, now); /* whole, or it would not serve such a size again */
    lock_drop(&arena_lock);
    stat_shared(STAT_spans_returned, 1);
}

/* --- a thread at its lists ---------------------------------------------------------------------------------------- */

/* False: somebody collects, and it is to be waited for. The frequent calls leave that, and what else is rare, to a tail
 * call, so that they save no register. */
static ALWAYS_INLINE bool kept_try(struct kept *kept)
{
    POKE(kept->visited, true);
    POKE(kept->busy, true);
    atomic_signal_fence(memory_order_seq_cst); /* the kernel's fence makes of it what the processor needs */
    return !__atomic_load_n(&kept->asked, __ATOMIC_ACQUIRE);
}

static ALWAYS_INLINE void kept_leave(struct kept *kept) { __atomic_store_n(&kept->busy, false, __ATOMIC_RELEASE); }

static void kept_enter(struct kept *kept)
{
    while (!kept_try(kept)) {
        kept_leave(kept);
        lock_take(&kept->lock);
        lock_drop(&kept->lock);
    }
}

/* What all threads keep is told in portions, so that few calls touch a line of all. */
static void kept_tell(struct kept *kept)
{
    atomic_fetch_add_explicit(&runs_told, kept->bytes - kept->told, memory_order_relaxed);
    POKE(kept->told, kept->bytes);
}

/* Ends what kept_try or kept_enter began, as all that follows, with one run more. */
static NOINLINE bool kept_leave_told(struct kept *kept)
{
    kept_tell(kept);
    kept_leave(kept);
    return true;
}

static ALWAYS_INLINE bool kept_push(struct kept *kept, unsigned bin, struct span *run, size_t bytes)
{
    run->next = kept->runs[bin];
    kept->runs[bin] = run;
    kept->bits |= UINT64_C(1) << bin;
    POKE(kept->bytes, kept->bytes + bytes);
    if (UNLIKELY(kept->bytes - kept->told + RUN_PORTION > 2 * RUN_PORTION)) return kept_leave_told(kept);
    kept_leave(kept);
    return true;
}

/* With one run less; the bin is not empty. */
static ALWAYS_INLINE struct span *kept_pop(struct kept *kept, const struct bins *bins, unsigned bin)
{
    struct span *run = kept->runs[bin];
    run_expect_kept(bins->kept, run);
    kept->runs[bin] = run->next;
    if (run->next == NULL) kept->bits &= ~(UINT64_C(1) << bin);
    POKE(kept->bytes, kept->bytes - run_touched_bytes(run));
    kept->idle = size_min(kept->idle, kept->bytes);
    kept_leave(kept);
    return run;
}

/* Takes out one of the longest, while there are more bytes than `keep`; NULL where there are not. */
static struct span *kept_longest(struct kept *kept, const struct bins *bins, size_t keep)
{
    kept_enter(kept);
    if (kept->bytes > keep && kept->bits != 0) return kept_pop(kept, bins, log2_floor(kept->bits));
    kept_leave(kept);
    return NULL;
}

/* Bytes that did not lie idle since this was last asked. */
static size_t kept_used(struct kept *kept)
{
    kept_enter(kept);
    size_t used = kept->bytes - kept->idle;
    kept->idle = kept->bytes;
    kept_leave(kept);
    return used;
}

/* Bytes that were collected since this was last asked. */
static size_t kept_learn(struct kept *kept)
{
    kept_enter(kept);
    size_t taken = kept->taken;
    POKE(kept->taken, 0);
    kept_leave(kept);
    return taken;
}

/* --- who collects ------------------------------------------------------------------------------------------------- */

/* Takes all that the thread keeps, to the arena, unless it is at its lists. Result: bytes. */
static size_t kept_collect(struct heap *heap, uint64_t since)
{
    struct kept *kept = &heap->kept;
    struct span *runs[RUN_BINS];
    uint32_t word = heap->number * RUN_KEPT; /* its bins may be another thread's before all is done */
    uint64_t bits = 0;
    size_t bytes = 0;
    lock_take(&kept->lock);
    POKE(kept->asked, true);
    if (os_fence_all()) {
        if (!__atomic_load_n(&kept->busy, __ATOMIC_ACQUIRE)) {
            bits = kept->bits;
            for (uint64_t left = bits; left != 0; left &= left - 1) {
                unsigned bin = lowest_bit(left);
                runs[bin] = kept->runs[bin];
                POKE(kept->runs[bin], NULL); /* the thread may look at any time whether there is one */
            }
            bytes = kept->bytes;
            if (bytes != 0) POKE(kept->taken, kept->taken + bytes);
            kept->bits = 0;
            kept->idle = 0;
            POKE(kept->bytes, 0);
            kept_tell(kept);
        }
    }
    __atomic_store_n(&kept->asked, false, __ATOMIC_RELEASE);
    lock_drop(&kept->lock);
    for (; bits != 0; bits &= bits - 1)
        for (struct span *run = runs[lowest_bit(bits)], *next; run != NULL; run = next) {
            next = run->next;
            run_expect_kept(word, run);
            run_give(run, word, since);
        }
    return bytes;
}

/* From threads that were not at their lists since the last round, or from all. Under round_lock. Result: bytes. */
static size_t runs_collect(uint64_t now, bool all)
{
    size_t bytes = 0;
    if (!PEEK(runs_watched)) return 0;
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        struct kept *kept = &heap->kept;
        if (PEEK(heap->front) == NULL || (PEEK(kept->bytes) | PEEK(kept->told)) == 0)
            continue; /* in a child, a thread that stayed behind */
        bool rests = !PEEK(kept->visited);
        if (all || rests) bytes += kept_collect(heap, rests ? kept->seen_ns : now);
        POKE(kept->visited, false);
        if (!rests) kept->seen_ns = now;
    }
    return bytes;
}
