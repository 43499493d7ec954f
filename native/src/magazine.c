/* magazine.c: the thread's bounded cache of free blocks of one class, and the depot that trades full ones.
 *
 * The idea is Bonwick and Adams' (USENIX 2001, section 3): a thread works from its loaded magazine, keeps one full one
 * behind it, and trades whole magazines with a depot, so that a block's way between threads costs a pointer a
 * magazine. A magazine here is a list threaded through its blocks, which is shorter code on a hit than an array.
 *
 * A block freed by any thread goes into that thread's magazine: nobody is asked who owned it. The first block of a
 * magazine at rest carries, in its second word, the next magazine of the depot and its own length, under the key. */

/* A depot has parts: a thread gives to its own and takes from it first, so that what it freed comes back to it, its
 * lines still in its core's cache. Blocks that came from another core cost up to five times as much. */
static struct depot depots[CLASSES][DEPOT_PARTS];
static _Atomic uint32_t depot_parts = 1; /* in use: as many as there were threads at a time, up to DEPOT_PARTS */
static _Atomic size_t depots_told;       /* bytes in all depots, each part to 256 KiB */
static _Atomic uint16_t class_capacity[CLASSES]; /* blocks; 0: as the knobs say. ACE writes here */

static uint32_t magazine_capacity(unsigned class)
{
    uint32_t learnt = atomic_load_explicit(&class_capacity[class], memory_order_relaxed);
    if (learnt != 0) return learnt;
    size_t fit = (size_t)knob(KNOB_magazine_bytes) / classes[class].size;
    return (uint32_t)size_min((size_t)knob(KNOB_magazine_blocks), size_max(fit, MAGAZINE_MIN));
}

/* --- the depot ---------------------------------------------------------------------------------------------------- */

/* Under the part's lock: what all depots hold is told in portions, so that a visit seldom touches a line of all. */
static ALWAYS_INLINE void depot_tell(struct depot *depot, unsigned class)
{
    size_t portion = size_min(256 * KIB, (size_t)knob(KNOB_depot_bytes) / 64);
    size_t bytes = (size_t)depot->blocks * classes[class].size, told = depot->told;
    if (LIKELY(bytes <= told + portion && told <= bytes + portion)) return;
    depot->told = bytes;
    atomic_fetch_add_explicit(&depots_told, bytes - told, memory_order_relaxed);
}

static void chain_seal(struct chain chain, uintptr_t below)
{
    block_words(chain.head)[1] = (below | (uintptr_t)chain.blocks << POINTER_BITS) ^ link_key;
}

static struct chain chain_open(uintptr_t head, uintptr_t *below)
{
    uintptr_t word = block_words(head)[1] ^ link_key;
    *below = word & (((uintptr_t)1 << POINTER_BITS) - 1);
    return (struct chain){head, (uint32_t)(word >> POINTER_BITS)};
}

static void depot_lock(struct depot *depot)
{
    if (LIKELY(lock_try(&depot->lock))) return;
    atomic_fetch_add_explicit(&depot->contended, 1, memory_order_relaxed);
    lock_wait(&depot->lock);
}

static void depot_push(struct depot *depot, unsigned class, struct chain chain)
{
    depot_lock(depot);
    chain_seal(chain, depot->top);
    POKE(depot->top, chain.head);
    POKE(depot->magazines, depot->magazines + 1);
    POKE(depot->blocks, depot->blocks + chain.blocks);
    POKE(depot->pushes, depot->pushes + 1);
    if (depot->pushes % DEPOT_TURN == 0) {
        POKE(depot->idle, depot->least);
        POKE(depot->least, depot->magazines);
    }
    depot_tell(depot, class);
    lock_drop(&depot->lock);
}

static struct chain depot_pop(struct depot *depot, unsigned class)
{
    struct chain chain = {0, 0};
    if (PEEK(depot->top) == 0) return chain;
    depot_lock(depot);
    if (depot->top != 0) {
        uintptr_t below;
        chain = chain_open(depot->top, &below);
        if (UNLIKELY(chain.blocks == 0 || chain.blocks > MAGAZINE_MAX)) fatal("free block overwritten", chain.head);
        POKE(depot->top, below);
        POKE(depot->magazines, depot->magazines - 1);
        POKE(depot->blocks, depot->blocks - chain.blocks);
        POKE(depot->pops, depot->pops + 1);
        if (depot->magazines < depot->low) POKE(depot->low, depot->magazines);
        if (depot->magazines < depot->least) POKE(depot->least, depot->magazines);
        depot_tell(depot, class);
    }
    lock_drop(&depot->lock);
    return chain;
}

static struct depot *depot_own(const struct heap *heap, unsigned class)
{
    return &depots[class][(heap->number - 1) % DEPOT_PARTS];
}

/* How many magazines of a part are for others: where its owner comes back for them, those that lie idle. A thread that
 * takes what another would have taken back mixes their blocks for good, neighbours in one page then belong to two
 * cores, and each core's prefetches disturb the other. */
static uint32_t depot_spare(const struct depot *depot)
{
    uint32_t asked = PEEK(depot->asked);
    bool wanted = asked != 0 && (uint32_t)PEEK(depot->pushes) + 1 - asked < DEPOT_TURN;
    return wanted ? (uint32_t)size_min(PEEK(depot->idle), PEEK(depot->least)) : PEEK(depot->magazines);
}

/* A full magazine: the thread's own before another's, and of those first where the last one was found. */
static struct chain depot_find(struct heap *heap, unsigned class)
{
    struct depot *own = depot_own(heap, class);
    POKE(own->asked, (uint32_t)PEEK(own->pushes) | 1);
    struct chain full = depot_pop(own, class);
    uint32_t parts = atomic_load_explicit(&depot_parts, memory_order_relaxed);
    for (uint32_t seen = 0; full.head == 0 && parts > 1 && seen < parts; seen++) {
        struct depot *other = &depots[class][heap->helped];
        if (depot_spare(other) != 0) full = depot_pop(other, class);
        if (full.head == 0) heap->helped = (heap->helped + 1) % parts;
    }
    return full;
}

/* Returns to their slabs the magazines that nobody asked for since the last trim. Result: bytes. */
static size_t depot_trim(struct depot *depot, unsigned class, uint64_t now, bool all)
{
    size_t bytes = 0;
    uint32_t idle = all ? UINT32_MAX : PEEK(depot->low);
    for (; idle > 0; idle--) {
        struct chain chain = depot_pop(depot, class);
        if (chain.head == 0) break;
        bytes += slabs_return(class, chain.head, now);
    }
    lock_take(&depot->lock);
    POKE(depot->low, depot->magazines);
    lock_drop(&depot->lock);
    return bytes;
}

/* The parts together. */
struct depot_counts {
    uint64_t magazines, blocks, pushes, pops, contended;
};

static struct depot_counts depot_read(unsigned class)
{
    struct depot_counts sum = {0};
    for (unsigned part = 0; part < DEPOT_PARTS; part++) {
        struct depot *depot = &depots[class][part];
        sum.magazines += PEEK(depot->magazines);
        sum.blocks += PEEK(depot->blocks);
        sum.pushes += PEEK(depot->pushes);
        sum.pops += PEEK(depot->pops);
        sum.contended += atomic_load_explicit(&depot->contended, memory_order_relaxed);
    }
    return sum;
}

static size_t depots_bytes(void)
{
    size_t bytes = 0;
    for (unsigned class = 1; class < CLASSES; class ++) bytes += depot_read(class).blocks * classes[class].size;
    return bytes;
}

static size_t depots_trim(uint64_t now, bool all)
{
    size_t bytes = 0;
    for (unsigned class = 1; class < CLASSES; class ++)
        for (unsigned part = 0; part < DEPOT_PARTS; part++)
            if (PEEK(depots[class][part].top) != 0) bytes += depot_trim(&depots[class][part], class, now, all);
    return bytes;
}

/* --- the two verbs of a magazine ---------------------------------------------------------------------------------- */

/* The bin takes a list of at most `capacity` blocks, which is in force from now on. */
static void bin_load(struct heap *heap, struct bin *bin, unsigned class, struct chain list, uint32_t capacity)
{
    POKE(heap->capacity[class], (uint16_t)capacity);
    POKE(bin->head, list.head);
    POKE(bin->room, (uint64_t)(capacity - list.blocks) * BIN_ONE);
}

static struct chain bin_unload(const struct heap *heap, const struct bin *bin, unsigned class)
{
    return (struct chain){bin->head, heap->capacity[class] - (uint32_t)(bin->room / BIN_ONE)};
}

/* Blocks to fetch at once when the depot has none: a page's worth, so that little is touched before it is needed; more
 * of a class that the thread has much of, at most a quarter of that and a unit. Magazines are split and joined at
 * multiples of what was fetched, and where fetches meet, neighbours may belong to two cores and disturb each other. */
static uint32_t magazine_batch(const struct heap *heap, unsigned class)
{
    uint32_t size = classes[class].size, half = magazine_capacity(class) / 2;
    int64_t quarter = heap->moved[class] * (int64_t)size / 4;
    size_t bytes = os_page;
    while ((int64_t)bytes * 2 <= quarter && bytes < UNIT_BYTES) bytes *= 2;
    return (uint32_t)size_max(size_min(bytes / size, half), 1);
}

/* A magazine from before its class's capacity was lowered: what it has too much becomes the spare, of which there is
 * none. */
static NOINLINE struct chain magazine_cut(struct heap *heap, unsigned class, struct chain full, uint32_t capacity)
{
    uintptr_t last = full.head;
    for (uint32_t i = 1; i < capacity; i++) last = link_follow(last);
    POKE(heap->spare[class].blocks, full.blocks - capacity);
    POKE(heap->spare[class].head, link_follow(last));
    link_set(last, LIST_END);
    return (struct chain){full.head, capacity};
}

/* The loaded magazine is empty: take the spare, a full one from the depot, or blocks from slabs. False: no memory. */
static NOINLINE bool magazine_refill(struct heap *heap, struct bin *bin, unsigned class)
{
    struct chain full = heap->spare[class];
    if (full.head != 0) {
        POKE(heap->spare[class].head, 0);
        POKE(heap->swaps[class], heap->swaps[class] + 1);
    } else {
        full = depot_find(heap, class);
        POKE(heap->refills[class], heap->refills[class] + 1);
    }
    if (full.head == 0) {
        full.head = LIST_END;
        full.blocks = slabs_fill(heap, class, magazine_batch(heap, class), &full.head);
        if (full.blocks == 0) return false;
    }
    uint32_t capacity = magazine_capacity(class);
    if (UNLIKELY(full.blocks > capacity)) full = magazine_cut(heap, class, full, capacity);
    bin_load(heap, bin, class, full, capacity);
    stat_add(heap, STAT_refills, 1);
    stat_add(heap, STAT_refilled_blocks, full.blocks);
    POKE(heap->moved[class], heap->moved[class] + full.blocks);
    return true;
}

/* A full magazine leaves the thread: to the depot, or to the slabs where the depot holds enough. */
static void magazine_give(struct heap *heap, unsigned class, struct chain full)
{
    if (LIKELY(atomic_load_explicit(&depots_told, memory_order_relaxed) < (size_t)knob(KNOB_depot_bytes)))
        depot_push(depot_own(heap, class), class, full);
    else slabs_return(class, full.head, os_now_ns());
}

/* The loaded magazine has no room: it becomes the spare, and the spare goes to the depot. */
static NOINLINE void magazine_spill(struct heap *heap, struct bin *bin, unsigned class)
{
    struct chain full = bin_unload(heap, bin, class);
    if (bin->head != LIST_END) {
        if (heap->spare[class].head != 0) {
            magazine_give(heap, class, heap->spare[class]);
            POKE(heap->spills[class], heap->spills[class] + 1);
        } else POKE(heap->swaps[class], heap->swaps[class] + 1);
        POKE(heap->spare[class].blocks, full.blocks);
        POKE(heap->spare[class].head, full.head);
        stat_add(heap, STAT_spills, 1);
        stat_add(heap, STAT_spilled_blocks, full.blocks);
        POKE(heap->moved[class], heap->moved[class] - full.blocks);
    }
    bin_load(heap, bin, class, (struct chain){LIST_END, 0}, magazine_capacity(class));
}

/* Everything of one class goes to the depot, for a thread that ends, rests or purges, and so does not come back. */
static void magazine_flush(struct heap *heap, struct bin *bin, unsigned class)
{
    if (bin->head != LIST_END && bin->head != 0) {
        struct chain loaded = bin_unload(heap, bin, class);
        POKE(heap->moved[class], heap->moved[class] - loaded.blocks);
        stat_add(heap, STAT_spilled_blocks, loaded.blocks);
        depot_push(depot_own(heap, class), class, loaded);
        bin_load(heap, bin, class, (struct chain){LIST_END, 0}, magazine_capacity(class));
    }
    if (heap->spare[class].head != 0) depot_push(depot_own(heap, class), class, heap->spare[class]);
    POKE(heap->spare[class].head, 0);
    POKE(depot_own(heap, class)->asked, 0);
}
