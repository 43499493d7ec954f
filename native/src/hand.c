/* hand.c: what a thread has in hand: its loaded magazines and a few short runs, in slots that its bins point into. The
 * hits are plain loads and stores; all else that a thread does there lies between hand_enter and hand_leave, so that
 * others can take from the lower slots while it rests (rest.c). They leave holes, and shut the bins: the next free is
 * no hit, and the thread mends what it has in hand. So it is known when a thread no longer rests. */

/* Top and limit of a bin whose class was not used yet: empty and full at once. */
static const uintptr_t no_slots[1] = {LIST_END};
#define NO_SLOT ((uintptr_t *)no_slots + 1)

static _Atomic bool hands_open;   /* some thread may free much, of which nobody hears */
static void (*hand_opened)(void); /* called when a thread begins to; set at start */

/* By class: the sum of `moved` over threads that ended, and blocks that threads without a heap took, less those that
 * they freed; less the holes of magazines, which their threads do not know of yet. */
static _Atomic int64_t moved_otherwise[CLASSES];

static void count_moved(unsigned class, int64_t blocks)
{
    atomic_fetch_add_explicit(&moved_otherwise[class], blocks, memory_order_relaxed);
}

static ALWAYS_INLINE struct bin *hand_bin(const struct heap *heap, unsigned row)
{
    return (struct bin *)(row < CLASSES ? &heap->bins.small[row] : &heap->bins.shorts[row - CLASSES]);
}

/* The slots of a row of bins, of which the first holds no block; NULL: none yet. */
static ALWAYS_INLINE uintptr_t *hand_slots(const struct heap *heap, unsigned row)
{
    return row < CLASSES ? PEEK(heap->loaded[row].slots) : (uintptr_t *)heap->short_slots[row - CLASSES];
}

/* Blocks in a bin; to an observer, who may see one half of a swap, any number. */
static ALWAYS_INLINE uint32_t bin_length(const struct heap *heap, unsigned row)
{
    const struct bin *bin = hand_bin(heap, row);
    uintptr_t *top = PEEK(bin->top), *slots = hand_slots(heap, row);
    uint32_t filled = PEEK(bin->limit) != NO_SLOT && top > slots + 1 ? (uint32_t)(top - slots - 1) : 0;
    return filled - (uint32_t)size_min(PEEK(heap->holes[row]), filled);
}

/* The same, for an observer. */
static uint32_t hand_blocks(const struct heap *heap, unsigned row)
{
    uint32_t blocks = bin_length(heap, row);
    return blocks <= (row < CLASSES ? MAGAZINE_MAX : RUN_SHORT_MOST) ? blocks : 0;
}

/* The heap knows of what was collected from here on, and counts it itself. */
static void hand_forget(struct heap *heap, unsigned row, uint32_t holes)
{
    if (row < CLASSES) {
        POKE(heap->moved[row], heap->moved[row] - holes);
        count_moved(row, holes);
    } else heap->run_held -= size_min(heap->run_held, (size_t)holes * (row - CLASSES) << UNIT_SHIFT);
}

/* The thread may free so many bytes more by hits. */
static void hand_grew(struct heap *heap, size_t bytes)
{
    if (LIKELY(heap->hand.told) || (heap->hand.unheard += bytes) < HAND_TOLD) return;
    POKE(heap->hand.told, true);
    atomic_store(&hands_open, true);
    hand_opened();
}

/* Bytes that the thread may free by hits: of each class what its callers have, as far as the bin has room, and all of
 * their runs. A thread that frees what others allocated does not know how much there is. */
static size_t hand_unheard(const struct heap *heap)
{
    size_t bytes = heap->run_held, idle = heap->kept.bytes + PEEK(heap->kept.taken);
    for (unsigned length = 1; length <= RUN_SHORT; length++)
        idle += bin_length(heap, CLASSES + length) * length << UNIT_SHIFT;
    bytes -= size_min(bytes, idle);
    for (unsigned class = 1; class < CLASSES; class ++) {
        int64_t out = heap->moved[class] - bin_length(heap, class);
        size_t room = heap->capacity[class];
        bytes += classes[class].size * (out < 0 ? room : size_min((size_t)out, room));
    }
    return bytes;
}

/* Moves what lies above holes down to where they begin, and opens the bins. */
static COLD void hand_mend(struct heap *heap)
{
    for (unsigned row = 1; row < ROWS; row++) {
        uint32_t holes = heap->holes[row], blocks = bin_length(heap, row);
        uintptr_t *slots = hand_slots(heap, row);
        struct bin *bin = hand_bin(heap, row);
        if (slots != NULL && bin->limit == slots) POKE(bin->limit, slots + heap->limits[row]);
        if (holes == 0) continue;
        for (uint32_t i = 1; i <= blocks; i++) {
            slot_expect_right(&slots[holes + i]);
            slot_fill(&slots[i], slots[holes + i]);
        }
        POKE(bin->top, slots + 1 + blocks);
        POKE(heap->holes[row], 0);
        hand_forget(heap, row, holes);
    }
    POKE(heap->hand.shut, false);
    POKE(heap->hand.told, false);
    heap->hand.unheard = 0;
    hand_grew(heap, hand_unheard(heap));
}

/* Marks the thread busy at what it has in hand, which is whole from now on. The collector pays for the order
 * (kept_try). */
static ALWAYS_INLINE void hand_enter(struct heap *heap)
{
    for (;;) {
        POKE(heap->hand.busy, true);
        atomic_signal_fence(memory_order_seq_cst);
        if (LIKELY(!__atomic_load_n(&heap->hand.asked, __ATOMIC_ACQUIRE))) break;
        __atomic_store_n(&heap->hand.busy, false, __ATOMIC_RELEASE);
        lock_take(&heap->hand.lock);
        lock_drop(&heap->hand.lock);
    }
    if (UNLIKELY(heap->hand.shut)) hand_mend(heap);
}

static ALWAYS_INLINE void hand_leave(struct heap *heap) { __atomic_store_n(&heap->hand.busy, false, __ATOMIC_RELEASE); }
