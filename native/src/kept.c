/* kept.c: the runs that threads keep. A thread takes from its own lists without a lock or a fence. Others can still
 * take runs from there: the helper when the thread rests, anybody before memory grows.
 *
 * A thread marks itself busy while it is at its lists. A collector first says that it is asking, then has the kernel
 * pass a fence through every thread of the process (membarrier), and only then looks whether the thread is busy. If it
 * is not, it will see that its lists are asked for before it touches them again. So the collector alone pays for the
 * ordering. Where the kernel cannot pass such a fence, nobody collects, and threads keep less. */

static struct heap *_Atomic heaps; /* every one there ever was, newest first */
/* In runs that callers have, threads keep or the depot holds. Written often, so not beside what slow paths read. */
static _Alignas(CACHE_LINE) _Atomic size_t run_units_out;
static _Atomic size_t runs_told; /* bytes that threads keep, each thread's to within a portion */
static bool fences_there;        /* the kernel passes fences, so runs can be collected ... */
static bool runs_watched;        /* ... and the helper does, from threads that rest */
static _Alignas(CACHE_LINE) _Atomic uint32_t heaps_alive; /* threads that cache; heap.c counts them */
static uint32_t run_threads = 1;                          /* threads that can work at a time: the number of cores */

/* What a thread may keep is divided by this: where there are two threads a core or more, some of them rest. */
static uint32_t threads_share(void)
{
    uint32_t share = atomic_load_explicit(&heaps_alive, memory_order_relaxed) / run_threads;
    return share != 0 ? share : 1;
}

/* Up to two a core. */
static bool threads_are_few(void)
{
    return atomic_load_explicit(&heaps_alive, memory_order_relaxed) <= 2 * run_threads;
}

/* Of the bytes that each of a few threads may have, the part for each of many: together they have no more than few. */
static size_t threads_part(size_t bytes)
{
    uint32_t threads = atomic_load_explicit(&heaps_alive, memory_order_relaxed), few = 2 * run_threads;
    return LIKELY(threads <= few) ? bytes : bytes * few / threads;
}

/* Not by a thread that passes locks (lock_passing), for it drops none: one that forks may be asked for memory by a
 * handler that runs after ours. */
static bool runs_can_be_collected(void) { return PEEK(fences_there) && !lock_passing; }

/* Bytes that can be collected. */
static size_t runs_bytes(void)
{
    return runs_can_be_collected() ? atomic_load_explicit(&runs_told, memory_order_relaxed) : 0;
}

static ALWAYS_INLINE uintptr_t *block_words(uintptr_t block) { return (uintptr_t *)block; }
static ALWAYS_INLINE uintptr_t run_block(const struct span *run) { return run->address + run->start; }

/* The row of bins to which free puts the run's block; 0: it is not short. */
static unsigned run_row(const struct span *run)
{
    return (PEEK(owners.bound[map_index(run->address)]) & BOUND_ROW) / 2;
}

/* The word of life of a run that a caller has: the lower half of its block's address, plus one. It is odd, so no other
 * span has it in this place: a slab has 0 there, a free span an even number. */
static ALWAYS_INLINE uint32_t run_mark(uintptr_t block) { return (uint32_t)block + 1; }

/* Does a block that a caller has, or a short run in hand or in the depot, start here? The span may be of any kind. */
static ALWAYS_INLINE bool run_is_live(const struct span *span, uintptr_t block)
{
    return PEEK(span->life) == run_mark(block);
}

static size_t run_touched_bytes(const struct span *run) { return (size_t)PEEK(run->touched) << UNIT_SHIFT; }

/* Ends the program where a run's word of life is not what it must be: two threads freed the block at the same time, and
 * the other one has put the run elsewhere. */
static ALWAYS_INLINE void run_expect(uint32_t life, const struct span *run)
{
    if (UNLIKELY(run->kind != SPAN_RUN || PEEK(run->life) != life)) fatal("block freed twice", run_block(run));
}

/* The same of a run that a thread keeps. The first word of one that went there as a short one names the descriptor. If
 * it does not, the run was written to, or freed again: then it is in hand as well. */
static ALWAYS_INLINE void kept_expect(uint32_t life, const struct span *run)
{
    run_expect(life, run);
    uintptr_t block = run_block(run);
    if (run_row(run) != 0 && UNLIKELY(block_words(block)[0] != (uintptr_t)run))
        fatal("free block overwritten, or freed twice,", block);
}

/* Gives the run, whose word of life must be `life`, to the arena. */
static void run_give(struct span *run, uint32_t life, uint64_t now)
{
    lock_take(&arena_lock);
    run_expect(life, run);
    POKE(run->life, RUN_FREE);
    POKE(owners.bound[map_index(run->address)], 0);
    atomic_fetch_sub_explicit(&run_units_out, run->units, memory_order_relaxed);
    arena_give(run, run->touched != 0 ? run->units : 0, now); /* whole: split, it would not serve such a size again */
    lock_drop(&arena_lock);
    stat_shared(STAT_spans_returned, 1);
}

/* --- a thread at its lists ---------------------------------------------------------------------------------------- */

/* Marks the thread busy at its lists. False: somebody collects, and must be waited for. The frequent callers leave
 * that, and everything else that is rare, to a tail call, so that they save no register. */
static ALWAYS_INLINE bool kept_try(struct kept *kept)
{
    POKE(kept->visited, true);
    POKE(kept->busy, true);
    atomic_signal_fence(memory_order_seq_cst); /* orders the compiler; the collector's fence orders the processor */
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

/* Brings the sum over all threads up to date. That is done in portions, so that few calls touch a line that all
 * share. */
static void kept_tell(struct kept *kept)
{
    atomic_fetch_add_explicit(&runs_told, kept->bytes - kept->told, memory_order_relaxed);
    POKE(kept->told, kept->bytes);
}

/* Tells the sum, and ends what kept_try or kept_enter began. */
static NOINLINE bool kept_leave_told(struct kept *kept)
{
    kept_tell(kept);
    kept_leave(kept);
    return true;
}

/* Puts a run of so many touched bytes into its list. */
static ALWAYS_INLINE void kept_put(struct kept *kept, struct span *run, size_t bytes)
{
    unsigned bin = run_bin_floor(run->units);
    run->next = kept->runs[bin];
    kept->runs[bin] = run;
    kept->bits |= UINT64_C(1) << bin;
    POKE(kept->bytes, kept->bytes + bytes);
}

/* Leaves the lists after something was put there. */
static ALWAYS_INLINE bool kept_leave_fuller(struct kept *kept)
{
    if (UNLIKELY(kept->bytes - kept->told + kept->portion > 2 * kept->portion)) return kept_leave_told(kept);
    kept_leave(kept);
    return true;
}

/* Takes a run out of a list that is not empty. */
static ALWAYS_INLINE struct span *kept_take_first(struct kept *kept, unsigned bin)
{
    struct span *run = kept->runs[bin];
    kept_expect(kept->life, run);
    kept->runs[bin] = run->next;
    if (run->next == NULL) kept->bits &= ~(UINT64_C(1) << bin);
    POKE(kept->bytes, kept->bytes - run_touched_bytes(run));
    kept->idle = size_min(kept->idle, kept->bytes);
    return run;
}

/* The same, and leaves the lists. */
static ALWAYS_INLINE struct span *kept_pop(struct heap *heap, unsigned bin)
{
    struct span *run = kept_take_first(&heap->kept, bin);
    kept_leave(&heap->kept);
    return run;
}

/* Takes out one of the longest runs, if more than `keep` bytes are kept; else NULL. */
static struct span *kept_longest(struct heap *heap, size_t keep)
{
    struct kept *kept = &heap->kept;
    kept_enter(kept);
    if (kept->bytes > keep && kept->bits != 0) return kept_pop(heap, log2_floor(kept->bits));
    kept_leave(kept);
    return NULL;
}

/* As kept_pop, for a caller: the list counts as used in this round. */
static ALWAYS_INLINE struct span *kept_serve(struct heap *heap, unsigned bin)
{
    heap->kept.used |= UINT64_C(1) << bin;
    return kept_pop(heap, bin);
}

/* Takes out a run of a list from which none was taken since `used` was cleared; NULL where there is none. */
static struct span *kept_unused(struct heap *heap)
{
    struct kept *kept = &heap->kept;
    kept_enter(kept);
    uint64_t unused = kept->bits & ~kept->used;
    if (unused != 0) return kept_pop(heap, log2_floor(unused));
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

/* Takes out all that the thread keeps, unless it is at its lists. They are asked for, and the fence has passed. */
static void kept_take(struct kept *kept)
{
    if (__atomic_load_n(&kept->busy, __ATOMIC_ACQUIRE)) return;
    kept->out_bits = kept->bits;
    for (uint64_t bits = kept->bits; bits != 0; bits &= bits - 1) {
        unsigned bin = lowest_bit(bits);
        kept->out[bin] = kept->runs[bin];
        POKE(kept->runs[bin], NULL); /* the thread may look at any time whether there is one */
    }
    if (kept->bytes != 0) POKE(kept->taken, kept->taken + kept->bytes);
    kept->bits = 0;
    kept->idle = 0;
    POKE(kept->bytes, 0);
    kept_tell(kept);
}

/* Gives what was taken to the arena. The heap may be another thread's by now, but its number is the same. Result:
 * bytes. */
static size_t kept_give(struct heap *heap, uint64_t since)
{
    uint32_t word = heap->number * RUN_KEPT;
    size_t bytes = 0;
    for (; heap->kept.out_bits != 0; heap->kept.out_bits &= heap->kept.out_bits - 1)
        for (struct span *run = heap->kept.out[lowest_bit(heap->kept.out_bits)], *next; run != NULL; run = next) {
            next = run->next;
            bytes += run_touched_bytes(run);
            kept_expect(word, run);
            run_give(run, word, since);
        }
    return bytes;
}

/* Are the runs of this heap to be collected? Its thread must keep something and, unless `all`, must not have been at
 * its lists since this was last asked. A thread that was there looks itself, at its next free, for what lay idle. In a
 * child, the heap of a thread that stayed behind has no front; its lists may be whole all the same (fork.c). */
static bool kept_is_due(struct heap *heap, uint64_t now, bool all)
{
    struct kept *kept = &heap->kept;
    if ((PEEK(heap->front) == NULL && !kept->left) || (PEEK(kept->bytes) | PEEK(kept->told)) == 0) return false;
    bool rests = !PEEK(kept->visited);
    POKE(kept->visited, false);
    if (!rests) kept->seen_ns = now;
    if (!rests && !all) POKE(heap->run_round, RUN_ENDED);
    return all || rests;
}

static struct lock collect_lock; /* held for one collection, in which nothing is slow */

/* Asks for the lists of the heaps that are due, except for one: their threads keep away until kept_let. One fence
 * serves for all. Under collect_lock. Result: the heaps; *passed: did the fence? If not, nothing is known of the
 * threads. */
static struct heap *kept_ask(uint64_t now, bool all, const struct heap *but, bool *passed)
{
    struct heap *due = NULL;
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        if (heap == but || !kept_is_due(heap, now, all)) continue;
        lock_take(&heap->kept.lock);
        POKE(heap->kept.asked, true);
        heap->kept.due = due;
        due = heap;
    }
    *passed = due != NULL && os_fence_all();
    if (due != NULL && !*passed) POKE(fences_there, false); /* a filter may forbid it later than the start */
    return due;
}

/* The thread may come to its lists again. `verb`: drops the lock or, in a child, resets it. */
static void kept_let(struct kept *kept, void (*verb)(struct lock *))
{
    __atomic_store_n(&kept->asked, false, __ATOMIC_RELEASE);
    verb(&kept->lock);
}

/* Collects from threads that were not at their lists since this was last asked, or from `all`, and gives the runs to
 * the arena. Under collect_lock. Result: bytes. */
static size_t kept_collect(uint64_t now, bool all)
{
    size_t bytes = 0;
    bool passed;
    struct heap *due = kept_ask(now, all, NULL, &passed);
    for (struct heap *heap = due; heap != NULL; heap = heap->kept.due) {
        if (passed) kept_take(&heap->kept);
        kept_let(&heap->kept, lock_drop);
    }
    for (struct heap *heap = due; heap != NULL; heap = heap->kept.due) bytes += kept_give(heap, heap->kept.seen_ns);
    return bytes;
}

/* Result: bytes that went to the arena. */
static size_t runs_collect(uint64_t now, bool all)
{
    if (!runs_can_be_collected()) return 0;
    lock_take(&collect_lock);
    size_t bytes = kept_collect(now, all);
    lock_drop(&collect_lock);
    return bytes;
}

static size_t runs_left; /* by the last collection before memory grew: bytes that threads kept, or fewer since */

/* Do threads keep enough more than that to be worth another one? */
static bool runs_are_worth(void)
{
    size_t bytes = runs_bytes();
    if (bytes < PEEK(runs_left)) POKE(runs_left, bytes);
    return bytes >= PEEK(runs_left) + RUN_WORTH;
}

/* Before memory for runs or superslabs grows: the runs that threads keep go to the arena, if they are worth it. */
static void runs_relieve(void)
{
    if (LIKELY(!runs_are_worth())) return;
    lock_take(&collect_lock);
    if (runs_are_worth()) { /* else another thread did it meanwhile */
        kept_collect(os_tick_ns(), true);
        POKE(runs_left, runs_bytes());
    }
    lock_drop(&collect_lock);
}
