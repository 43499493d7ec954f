/* rest.c: what threads have in their magazines goes home while they rest.
 *
 * The hits of malloc and free are a few loads and stores at the upper end of a magazine, and nothing tells whether a
 * thread is in the middle of one, where it may have been stopped for long. But all that it can do there is take the
 * uppermost block or put one above it. Everything else is a call that a collector can keep it from (hand_enter). So a
 * collector puts the end of the magazine into the slot below the uppermost block, and has the kernel pass a fence
 * through every thread. If a block or more still lies above then, and the end is where it was put, what lay below is
 * the collector's: the thread had not come so far down, and does not get past the end. */

/* A detector of races knows nothing of that fence. */
#ifdef __SANITIZE_THREAD__
#define FENCE_COUNTS false
#else
#define FENCE_COUNTS true
#endif

static struct {
    uintptr_t *slot, block; /* where the end was put, and what was there; NULL: nowhere */
} ends[CLASSES];            /* of the heap that is collected from. Under collect_lock */

/* What the magazines look like. A thread that frees what it takes may seem to rest, which does no harm. */
static uint64_t hand_look(const struct heap *heap)
{
    uint64_t look = 1;
    for (unsigned class = 1; class < CLASSES; class ++) look = look * 31 + (uintptr_t)PEEK(heap->bins.small[class].top);
    return look;
}

/* Puts ends below the uppermost blocks, where the thread has not put another block meanwhile. */
static void ends_put(struct heap *heap)
{
    for (unsigned class = 1; class < CLASSES; class ++) {
        uint32_t blocks = heap->holes[class] == 0 ? loaded_blocks(heap, class) : 0;
        ends[class].slot = NULL;
        if (blocks < 2) continue;
        uintptr_t *slot = heap->loaded[class].slots + blocks - 1, block = PEEK(*slot);
        if (!__atomic_compare_exchange_n(slot, &block, LIST_END, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        ends[class].slot = slot;
        ends[class].block = block;
    }
}

/* Takes back the ends that do not hold; all, unless a fence `passed`. At first those above which no block lies. Then,
 * once another fence shows what the thread had stored before the top that was read (`later`), those that it has put a
 * block over: it had been further down. */
static void ends_check(const struct heap *heap, bool passed, bool later)
{
    for (unsigned class = 1; class < CLASSES; class ++) {
        uintptr_t *slot = ends[class].slot, end = LIST_END;
        if (slot == NULL) continue;
        bool holds = later ? PEEK(*slot) == LIST_END : PEEK(heap->bins.small[class].top) >= slot + 2;
        if (passed && holds) continue;
        __atomic_compare_exchange_n(slot, &end, ends[class].block, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        ends[class].slot = NULL;
    }
}

/* Sends home what lay below the ends, and the spare magazines. Result: bytes. */
static size_t hand_take(struct heap *heap, uint64_t now)
{
    size_t bytes = 0;
    for (unsigned class = 1; class < CLASSES; class ++) {
        struct magazine *spare = &heap->spare[class];
        if (spare->blocks != 0) bytes += slabs_return(class, spare->slots + 1, spare->blocks, now);
        POKE(spare->blocks, 0);
        if (ends[class].slot == NULL) continue;
        uintptr_t *slots = heap->loaded[class].slots, last = ends[class].block;
        uint32_t holes = (uint32_t)(ends[class].slot - slots);
        if (UNLIKELY(block_slot(last) != (uintptr_t)ends[class].slot))
            fatal("free block overwritten, or freed twice,", last);
        slot_fill(&last, last);
        bytes += slabs_return(class, slots + 1, holes - 1, now) + slabs_return(class, &last, 1, now);
        count_moved(class, -(int64_t)holes);
        atomic_fetch_add_explicit(&orphan_stats[STAT_spilled_blocks], holes, memory_order_relaxed);
        POKE(heap->holes[class], (uint16_t)holes);
        heap->hand.holed = true;
    }
    return bytes;
}

/* Result: bytes; 0 where the thread is busy. */
static size_t hand_collect(struct heap *heap, uint64_t now)
{
    size_t bytes = 0;
    lock_take(&collect_lock);
    lock_take(&heap->hand.lock);
    POKE(heap->hand.asked, true);
    if (os_fence_all() && !__atomic_load_n(&heap->hand.busy, __ATOMIC_ACQUIRE)) {
        ends_put(heap);
        bool passed = os_fence_all();
        ends_check(heap, passed, false);
        ends_check(heap, passed && os_fence_all(), true);
        bytes = hand_take(heap, now);
    }
    __atomic_store_n(&heap->hand.asked, false, __ATOMIC_RELEASE);
    lock_drop(&heap->hand.lock);
    lock_drop(&collect_lock);
    return bytes;
}

/* Did the thread come to rest? True once for each rest. */
static bool hand_rests(struct heap *heap)
{
    uint64_t look = hand_look(heap);
    bool rests = look == heap->hand.look, anew = rests && !heap->hand.rested;
    heap->hand.look = look;
    heap->hand.rested = rests;
    return anew;
}

/* Sends home what threads have in their magazines that rested since the last round, or (`all`) any. Under round_lock.
 * Result: bytes. */
static size_t hands_collect(uint64_t now, bool all)
{
    size_t bytes = 0;
    if (!runs_can_be_collected() || !FENCE_COUNTS) return 0;
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next)
        if (atomic_load(&heap->state) == HEAP_LIVE && PEEK(heap->front) != NULL && (hand_rests(heap) || all))
            bytes += hand_collect(heap, now);
    return bytes;
}
