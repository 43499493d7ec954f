/* rest.c: what threads have in hand goes home while they rest: the blocks in their magazines, short runs, and the slabs
 * that they carve.
 *
 * The hits of malloc and free are a few loads and stores at the upper end of a bin, and nothing tells whether a thread
 * is in the middle of one, where it may have been stopped for long. But all that it can do there is take the uppermost
 * block or put one above it. Everything else is a call that a collector can keep it from (hand_enter). So a collector
 * puts the end of the bin into the slot below the uppermost block, and has the kernel pass a fence through every
 * thread. If a block or more still lies above then, and the end is where it was put, what lay below is the collector's:
 * the thread had not come so far down, and does not get past the end. Then the bins are shut, and until the thread
 * opens them there is no need to look at it again. The helper does not stay awake for one that can free but little by
 * hits. */

/* A detector of races knows nothing of that fence. */
#ifdef __SANITIZE_THREAD__
#define FENCE_COUNTS false
#else
#define FENCE_COUNTS true
#endif

static struct {
    uintptr_t *slot, block; /* where the end was put, and what was there; NULL: nowhere */
} ends[ROWS];               /* of the heap that is collected from. Under collect_lock */

/* What the bins look like. A thread that frees what it takes may seem to rest, which does no harm. */
static uint64_t hand_look(const struct heap *heap)
{
    uint64_t look = 1;
    for (unsigned row = 1; row < ROWS; row++) look = look * 31 + (uintptr_t)PEEK(hand_bin(heap, row)->top);
    return look;
}

/* Puts ends below the uppermost blocks, where the thread has not put another block meanwhile. */
static void ends_put(struct heap *heap)
{
    for (unsigned row = 1; row < ROWS; row++) {
        uint32_t blocks = heap->holes[row] == 0 ? hand_blocks(heap, row) : 0;
        ends[row].slot = NULL;
        if (blocks < 2) continue;
        uintptr_t *slot = hand_slots(heap, row) + blocks - 1, block = PEEK(*slot);
        if (!__atomic_compare_exchange_n(slot, &block, LIST_END, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        ends[row].slot = slot;
        ends[row].block = block;
    }
}

/* Takes back the ends that do not hold; all, unless a fence `passed`. At first those above which no block lies. Then,
 * once another fence shows what the thread had stored before the top that was read (`later`), those that it has put a
 * block over: it had been further down. */
static void ends_check(const struct heap *heap, bool passed, bool later)
{
    for (unsigned row = 1; row < ROWS; row++) {
        uintptr_t *slot = ends[row].slot, end = LIST_END;
        if (slot == NULL) continue;
        bool holds = later ? PEEK(*slot) == LIST_END : PEEK(hand_bin(heap, row)->top) >= slot + 2;
        if (passed && holds) continue;
        __atomic_compare_exchange_n(slot, &end, ends[row].block, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        ends[row].slot = NULL;
    }
}

/* Sends home so many blocks of a row, which were collected. Result: bytes. */
static size_t hand_send(unsigned row, uintptr_t *slots, uint32_t blocks, uint64_t now)
{
    if (row < CLASSES) return slabs_return(row, slots, blocks, now);
    size_t bytes = 0;
    for (uint32_t i = 0; i < blocks; i++) {
        struct span *run = span_of(slots[i]);
        slot_expect_right(&slots[i]);
        block_words(slots[i])[0] = 0; /* it names a slot that may still hold it */
        bytes += run_touched_bytes(run);
        run_give(run, run_mark(slots[i]), now);
    }
    return bytes;
}

/* Sends home what lay below the end in a row, where there is one. Result: bytes. */
static size_t hand_take(struct heap *heap, unsigned row, uint64_t now)
{
    if (ends[row].slot == NULL) return 0;
    uintptr_t *slots = hand_slots(heap, row), last = ends[row].block;
    uint32_t holes = (uint32_t)(ends[row].slot - slots);
    if (UNLIKELY(block_slot(last) != (uintptr_t)ends[row].slot)) fatal("free block overwritten, or freed twice,", last);
    slot_fill(&last, last);
    size_t bytes = hand_send(row, slots + 1, holes - 1, now) + hand_send(row, &last, 1, now);
    if (row < CLASSES) {
        count_moved(row, -(int64_t)holes);
        atomic_fetch_add_explicit(&orphan_stats[STAT_spilled_blocks], holes, memory_order_relaxed);
    }
    POKE(heap->holes[row], (uint16_t)holes);
    return bytes;
}

static size_t hand_take_spare(struct heap *heap, unsigned class, uint64_t now)
{
    struct magazine *spare = &heap->spare[class];
    size_t bytes = spare->blocks != 0 ? slabs_return(class, spare->slots + 1, spare->blocks, now) : 0;
    POKE(spare->blocks, 0);
    return bytes;
}

/* Puts all limits where no block gets past them, but those that the thread just changes. */
static void hand_shut(struct heap *heap)
{
    for (unsigned row = 1; row < ROWS; row++) {
        struct bin *bin = hand_bin(heap, row);
        const uintptr_t *slots = hand_slots(heap, row), *limit = PEEK(bin->limit);
        if (slots == NULL || limit == NO_SLOT) continue;
        heap->limits[row] = (uint16_t)(limit - slots);
        __atomic_compare_exchange_n(&bin->limit, &limit, slots, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    heap->hand.look = 0;
    POKE(heap->hand.shut, true);
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
        for (unsigned row = 1; row < ROWS; row++) bytes += hand_take(heap, row, now);
        for (unsigned class = 1; class < CLASSES; class ++) {
            bytes += hand_take_spare(heap, class, now);
            heap_abandon(heap, class, now);
        }
        hand_shut(heap);
    }
    __atomic_store_n(&heap->hand.asked, false, __ATOMIC_RELEASE);
    lock_drop(&heap->hand.lock);
    lock_drop(&collect_lock);
    return bytes;
}

/* Did the thread rest since it was last looked at? */
static bool hand_rests(struct heap *heap)
{
    uint64_t look = hand_look(heap);
    bool rests = look == heap->hand.look;
    heap->hand.look = look;
    return rests;
}

static struct heap *hand_next; /* the heap at which the next round begins; NULL: the first. Under round_lock */

static bool hands_can_be_collected(void) { return runs_can_be_collected() && FENCE_COUNTS; }

/* Are there threads to be looked at? */
static bool hands_due(void)
{
    return (atomic_load(&hands_open) || PEEK(hand_next) != NULL) && hands_can_be_collected();
}

/* Sends home what threads have in hand that rested since they were looked at, HANDS_LOOKED of them in a round, or of
 * `all`. Under round_lock. Result: bytes. */
static size_t hands_collect(uint64_t now, bool all)
{
    size_t bytes = 0;
    if (!hands_can_be_collected()) return 0;
    struct heap *heap = all || hand_next == NULL ? atomic_load(&heaps) : hand_next;
    if (!all && hand_next == NULL) atomic_store(&hands_open, false); /* first: who opens a hand says so again */
    for (unsigned looks = 0; heap != NULL && (all || looks < HANDS_LOOKED); heap = heap->next, looks++) {
        if (atomic_load(&heap->state) != HEAP_LIVE || PEEK(heap->front) == NULL || PEEK(heap->hand.shut)) continue;
        if (hand_rests(heap) || all) bytes += hand_collect(heap, now);
        if (!PEEK(heap->hand.shut) && PEEK(heap->hand.told)) atomic_store(&hands_open, true);
    }
    if (!all) POKE(hand_next, heap);
    return bytes;
}
