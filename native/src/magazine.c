/* magazine.c: the thread's bounded cache of free blocks of one class.
 *
 * The idea is Bonwick and Adams' (USENIX 2001, section 3): a thread works from its loaded magazine, keeps a full one
 * behind it, and trades whole magazines with a depot. So no single block costs a lock or moves between cores.
 *
 * A magazine is an array of addresses. Where the next block lies is known without looking into this one, so a series of
 * calls does not wait for a chain of loads. The slots of the long magazines are a rack (rack.c), which goes to the
 * depot as it is where that pays, and is checked when it comes back. All other slots stay with the thread's heap, and a
 * magazine that leaves them is stored in its own blocks (chain.c).
 *
 * A block freed by any thread goes into that thread's magazine; it does not matter who allocated it. */

static _Atomic uint64_t orphan_stats[HEAP_STAT_COUNT]; /* what no thread with a heap counts */

/* What ACE gives a magazine, divided where there are many threads: as other magazines are, but each gets twice the
 * part, for ACE has learnt that it pays. */
static uint32_t capacity_part(unsigned class, uint32_t blocks)
{
    size_t bytes = (size_t)knob(KNOB_magazine_bytes), part = threads_part(bytes);
    return (uint32_t)size_min(size_max(2 * blocks * part / bytes, magazine_fits(class, part)), blocks);
}

/* The capacity for a thread that may have so many bytes of the class: more where that goes to the depot and comes back
 * in bursts, or where the thread has now more and now less free than a magazine holds. One of many threads, too,
 * has as many blocks then as make an exchange cost each of them little. */
static uint32_t capacity_with_bursts(const struct heap *heap, unsigned class, size_t bytes)
{
    uint32_t bursts = heap->bursts[class];
    if (LIKELY(bursts == 0)) return magazine_fits(class, bytes);
    uint32_t capacity = magazine_fits(class, size_max(size_min(bytes << bursts, BURST_BYTES), bytes));
    uint32_t of_few = magazine_fits(class, (size_t)knob(KNOB_magazine_bytes) << bursts);
    return (uint32_t)size_max(size_min(of_few, BURST_BLOCKS), capacity);
}

/* The capacity for one of few threads: what ACE takes for the arm in force, however many there are. */
static uint32_t heap_capacity_of_few(const struct heap *heap, unsigned class)
{
    uint32_t learnt = atomic_load_explicit(&class_capacity[class], memory_order_relaxed);
    return learnt != 0 ? learnt : capacity_with_bursts(heap, class, (size_t)knob(KNOB_magazine_bytes));
}

/* The capacity for one thread; less where there are many, most of which rest with what they hold. */
static uint32_t heap_capacity(const struct heap *heap, unsigned class)
{
    if (LIKELY(threads_are_few())) return heap_capacity_of_few(heap, class);
    uint32_t learnt = atomic_load_explicit(&class_capacity[class], memory_order_relaxed);
    if (learnt != 0) return capacity_part(class, learnt);
    return capacity_with_bursts(heap, class, threads_part((size_t)knob(KNOB_magazine_bytes)));
}

/* --- how much a magazine holds, whence it comes and where it goes ------------------------------------------------- */

/* Blocks that a magazine should hold. A thread that gives away one magazine after the other keeps few blocks in the
 * end, since each may hold back a page: a quarter of those that its callers have, or as many as hold back a unit
 * together, if that is more. A thread that frees what others allocated does not know how many there are, and keeps
 * magazines of the usual length. */
static uint32_t magazine_limit(const struct heap *heap, unsigned class)
{
    uint32_t capacity = heap_capacity(heap, class);
    int64_t out = heap->moved[class] - heap->loaded[class].blocks;
    if (LIKELY(heap->given[class] < GIVEN_MANY) || out < 0) return capacity;
    size_t few = UNIT_BYTES / size_max(classes[class].size, os_page);
    if (heap->given[class] == GIVEN_ALL) few /= 4;
    return (uint32_t)size_min(size_max((size_t)out / 4, size_max(few, 1)), capacity);
}

/* A thread takes again what it gave in a row. If that was memory freed after a peak, the thread should keep little. But
 * one that takes it again within the purge delay works in bursts: each burst counted lets it keep more, and give more
 * in a row before that is a peak. After a longer pause the count begins anew. Giving and taking less by turns, many
 * times, is a burst, too (magazine_fetch). */
static COLD void heap_regret(const struct heap *heap, uint8_t *bursts, uint8_t most)
{
    bool soon = os_tick_ns() < heap->given_ns + (uint64_t)knob(KNOB_purge_delay_ms) * 1000000u; /* ticks lag behind */
    if (!soon) *bursts = 0;
    else if (*bursts < most) *bursts += 1;
}

/* The thread begins to give blocks of a class: notes how often its part of the depot was popped until now. */
static void heap_gives(struct heap *heap, unsigned class)
{
    heap->given_pops[class] = (uint32_t)PEEK(depot_own(heap, class)->pops);
}

/* Points the bin at the loaded magazine and its blocks, with room up to `limit`. The capacity is in force from now
 * on. */
static void bin_load(struct heap *heap, unsigned class, uint32_t limit)
{
    struct bin *bin = &heap->bins.small[class];
    struct magazine *loaded = &heap->loaded[class];
    uint32_t of_few = heap_capacity_of_few(heap, class);
    POKE(heap->capacity_of_few[class], (uint16_t)of_few);
    POKE(heap->capacity[class], (uint16_t)(LIKELY(threads_are_few()) ? of_few : heap_capacity(heap, class)));
    POKE(bin->top, loaded->slots + 1 + loaded->blocks);
    POKE(bin->limit, loaded->slots + 1 + size_min(limit, loaded->room));
}

/* Slots of the heap's own. There are enough: no magazine gets any twice that are as long. */
static uintptr_t *heap_slots(struct heap *heap, uint32_t count)
{
    uintptr_t *slots = heap->slots;
    heap->slots += count + SLOTS_GAP;
    return slots;
}

/* Makes room for so many blocks. Where a magazine has less, it moves to other slots, a power of two of them, or a rack;
 * the old ones, fewer than the new, are not used again. So a program that needs little of many classes touches few
 * pages. False: no memory for a rack; then a magazine without slots gets a few. */
static bool magazine_widen(struct heap *heap, unsigned class, struct magazine *magazine, uint32_t room)
{
    if (LIKELY(magazine->room >= room)) return true;
    uint32_t wider = MAGAZINE_MIN;
    while (wider < room) wider *= 2;
    if (room >= rack_least(class)) wider = MAGAZINE_MAX;
    uintptr_t *slots = wider == MAGAZINE_MAX ? rack_take() : heap_slots(heap, 1 + wider);
    if (UNLIKELY(slots == NULL)) {
        if (magazine->room == 0) magazine_widen(heap, class, magazine, MAGAZINE_MIN);
        return false;
    }
    POKE(slots[0], LIST_END);
    for (uint32_t i = 1; i <= magazine->blocks; i++) {
        slot_expect_right(&magazine->slots[i]);
        slot_fill(&slots[i], magazine->slots[i]);
    }
    POKE(magazine->slots, slots);
    magazine->room = wider;
    heap->slotted = true;
    return true;
}

static void magazine_put(struct magazine *place, struct magazine magazine)
{
    POKE(place->slots, magazine.slots);
    place->room = magazine.room;
    POKE(place->blocks, magazine.blocks);
}

/* Loaded and spare change places. */
static void magazine_swap(struct heap *heap, unsigned class)
{
    struct magazine loaded = heap->loaded[class];
    magazine_put(&heap->loaded[class], heap->spare[class]);
    magazine_put(&heap->spare[class], loaded);
}

/* Loaded and spare changed places, and no block left the thread or came. Where they do so again and again, it has as
 * many free blocks as one of them holds, sometimes more and sometimes less, and each time costs two calls: one with
 * more room holds all of them (blocks of 28 KiB and more gain hardly any). Not where there are many threads, most of
 * which rest with what they hold. */
static void magazine_turned(struct heap *heap, unsigned class)
{
    POKE(heap->swaps[class], heap->swaps[class] + 1);
    if (++heap->turns[class] < TURNS_MANY) return;
    heap->turns[class] = 0;
    if (heap->bursts[class] < TURNS_BURSTS && threads_share() == 1) heap->bursts[class]++;
}

/* Blocks to fetch from slabs at once when the depot has none: a page's worth, so that little is touched before it is
 * needed; of a class that the thread has much of, more, but at most a quarter of that, and a unit. Where two fetches
 * meet, neighbours may come to belong to two cores and disturb each other, so few long ones are better. */
static uint32_t magazine_batch(const struct heap *heap, unsigned class)
{
    uint32_t size = classes[class].size, half = heap_capacity(heap, class) / 2;
    int64_t quarter = heap->moved[class] * (int64_t)size / 4;
    size_t bytes = os_page;
    while ((int64_t)bytes * 2 <= quarter && bytes < UNIT_BYTES) bytes *= 2;
    return (uint32_t)size_max(size_min(bytes / size, half), 1);
}

/* Fills the loaded magazine, which is empty: from the depot, or from slabs where the depot has none, or where the class
 * is kept apart and slabs have blocks for it. False: no memory. */
static bool magazine_fetch(struct heap *heap, unsigned class)
{
    struct magazine *loaded = &heap->loaded[class];
    bool apart = heap->apart[class].frees != 0 && slabs_wait(heap, class);
    struct chain full = apart ? (struct chain){0, 0} : depot_find(heap, class);
    if (full.blocks == 0 && slabs_grow(heap, class)) full = depot_find_few(heap, class);
    if (full.blocks == 0 && !slabs_wait(heap, class)) depots_relieve_slabs();
    uint32_t blocks = full.blocks != 0 ? full.blocks : magazine_batch(heap, class);
    POKE(heap->refills[class], heap->refills[class] + 1);
    heap->turns[class] = 0;
    if (heap->gave_all || heap->given_bytes != 0) heap->homed = heap->gave_all || heap->given_bytes >= HOMES_LEAST;
    if (UNLIKELY(heap->gave_all)) {
        heap_regret(heap, &heap->peaks, PEAKS_MAX);
        heap->gave_all = false;
    }
    uint8_t given = heap->given[class];
    if (given == GIVEN_MANY) heap_regret(heap, &heap->bursts[class], BURSTS_MAX);
    else if (given != 0 && given < GIVEN_MANY && full.blocks != 0 && ++heap->trades[class] % TRADES_MANY == 0)
        heap->bursts[class] = (uint8_t)size_min(heap->bursts[class] + 1u, BURSTS_MAX);
    heap->given[class] = 0;
    heap->given_bytes = 0;
    if ((full.head & CHAIN_RACK) != 0) {
        if (loaded->room == MAGAZINE_MAX) rack_give(loaded->slots);
        POKE(chain_rack(full)->seal, 0);
        POKE(loaded->slots, chain_rack(full)->slots);
        loaded->room = MAGAZINE_MAX;
        heap->slotted = true;
        for (const uintptr_t *slot = loaded->slots + blocks; slot > loaded->slots; slot--) slot_expect_right(slot);
    } else if (UNLIKELY(!magazine_widen(heap, class, loaded, blocks))) {
        if (full.blocks != 0) depot_push(depot_own(heap, class), class, full);
        blocks = slabs_fill(heap, class, (uint32_t)size_min(blocks, loaded->room), loaded->slots + 1);
    } else if (full.blocks != 0) {
        chain_unpack(class, full, loaded->slots + 1);
    } else {
        blocks = slabs_fill(heap, class, blocks, loaded->slots + 1);
    }
    loaded->blocks = blocks;
    for (uint32_t i = 1; HAK_CHECKED && i <= blocks; i++) MUST(block_is_of(class, loaded->slots[i]), loaded->slots[i]);
    return blocks != 0;
}

/* Makes a chain of a magazine's blocks, for the depot. A rack with enough of them goes as it is, and the magazine gets
 * another, while few racks are out and if the class comes back from the depot: to memory that is only torn down they
 * would add. All other blocks are packed. */
static struct chain magazine_rest(struct heap *heap, unsigned class, struct magazine *full, bool leaves)
{
    size_t much = size_max(RACKS_LEAST, atomic_load_explicit(&superslab_bytes, memory_order_relaxed) / RACKS_SHARE);
    bool returns = !leaves && PEEK(depot_own(heap, class)->pops) != 0;
    bool racked = full->room == MAGAZINE_MAX && full->blocks >= rack_least(class) && returns;
    uintptr_t *others = racked && PEEK(racks_out) < much / sizeof(struct rack) ? rack_take() : NULL;
    if (others == NULL) return chain_pack(class, full->slots + 1, full->blocks);
    struct chain chain = {(uintptr_t)rack_of(full->slots) | CHAIN_RACK, full->blocks};
    POKE(full->slots, others);
    return chain;
}

/* Do its blocks lie in a row, upwards or downwards? Not if more than an eighth lie elsewhere than next to the one
 * before them, or next but one. Every eighth is looked at. */
static bool magazine_is_row(const struct magazine *full, size_t size)
{
    uint32_t apart = 0, seen = 0;
    for (uint32_t i = 2; i <= full->blocks; i += 8, seen++)
        apart += full->slots[i] - full->slots[i - 1] + 2 * size > 4 * size;
    return apart * 8 <= seen;
}

/* Does a magazine go home, to slabs? A thread that gives much and takes nothing tears down what it had. From the depot,
 * what it builds next would lie for good in the order in which that was freed: walking it, and filling long blocks,
 * would miss all caches. Slabs give blocks in the order of addresses. It does not go home where others take from the
 * depot what the thread gives, nor where its blocks lie in a row anyway, as from the depot they still would; and blocks
 * that others had taken go only once much of all classes was given. Blocks that only lie close together do go: a tree
 * torn down depth first leaves them a little mixed, and from the depot each next one would mix them more. What tidying
 * takes from the depot later does not end it. */
static bool magazine_homes(struct heap *heap, unsigned class, const struct magazine *full)
{
    bool others = heap->moved[class] < 0, much = !others && (heap->homed || heap->given_bytes >= HOMES_LEAST);
    if (LIKELY(!much && heap->given[class] != GIVEN_ALL) || classes[class].size > HOMES_MAX) return false;
    bool homing = PEEK(class_homing[class]);
    if (!homing && (uint32_t)PEEK(depot_own(heap, class)->pops) != heap->given_pops[class]) return false;
    if (magazine_is_row(full, classes[class].size) || lock_is_taken(&slabs_own(heap, class)->lock)) return false;
    if (!homing) POKE(class_homing[class], true);
    return true;
}

/* Returns a magazine's blocks to slabs; `homes`: and one magazine of the depot's, whose blocks would keep those slabs
 * from becoming whole. */
static void magazine_return(struct heap *heap, unsigned class, struct magazine *full, bool homes)
{
    uint64_t now = os_tick_ns();
    size_t bytes = slabs_return(class, full->slots + 1, full->blocks, now);
    slabs_use(slabs_own(heap, class), bytes, now);
    if (homes && lock_try(&round_lock)) {
        if (depot_send_home(depot_own(heap, class), class, now) != 0) heap->given_pops[class]++;
        lock_drop(&round_lock);
    }
    POKE(slabs_due, true);
    POKE(full->blocks, 0);
}

/* A magazine's blocks leave the thread: to the depot or, unless it `leaves` as well, to slabs, for the sake of their
 * order (magazine_homes) or because the depot holds enough. */
static void magazine_give(struct heap *heap, unsigned class, struct magazine *full, bool leaves)
{
    bool homes = !leaves && magazine_homes(heap, class, full);
    if (UNLIKELY(homes || (!leaves && depots_hold((size_t)knob(KNOB_depot_bytes))))) {
        magazine_return(heap, class, full, homes);
        return;
    }
    depot_push(depot_own(heap, class), class, magazine_rest(heap, class, full, leaves));
    POKE(full->blocks, 0);
}

/* A pop failed: the loaded magazine is empty, or its uppermost block is not as it was left, which ends the program.
 * Takes the spare magazine, or fetches blocks. False: no memory. */
static NOINLINE bool magazine_refill(struct heap *heap, unsigned class)
{
    hand_enter(heap);
    const uintptr_t *uppermost = heap->bins.small[class].top - 1;
    if (UNLIKELY(*uppermost != LIST_END)) {
        slot_expect_right(uppermost); /* it was asked for meanwhile, in vain */
        hand_leave(heap);
        return true;
    }
    struct magazine *loaded = &heap->loaded[class];
    loaded->blocks = 0;
    bool served = true;
    if (heap->spare[class].blocks != 0 && heap->apart[class].frees == 0) {
        magazine_swap(heap, class);
        magazine_turned(heap, class);
    } else {
        served = magazine_fetch(heap, class);
    }
    uint32_t limit = heap->apart[class].frees == 0 ? heap_capacity(heap, class) : 0;
    bin_load(heap, class, limit); /* its slots may be new */
    if (LIKELY(served)) {
        stat_add(heap, STAT_refills, 1);
        stat_add(heap, STAT_refilled_blocks, loaded->blocks);
        POKE(heap->moved[class], heap->moved[class] + loaded->blocks);
        hand_grew(heap, (size_t)loaded->blocks * classes[class].size);
    }
    hand_leave(heap);
    return served;
}

/* --- what is freed is kept apart from what is taken --------------------------------------------------------------- */

/* What was freed last is taken next, whichever slab it lies in. So where a class needs ever less of its slabs, or less
 * than at a peak, the few live blocks are soon spread over all slabs, and none can go. Therefore, while much of a class
 * is free and blocks are both taken and given, those given go home by way of the spare magazine, and those taken come
 * from the slabs that entered the list last. These are nearly full; the others become whole. The price is a call for
 * each free, as the bin has no room (its limit is 0); hits of malloc cost what they did. */

/* Blocks of the class that the thread's callers took, less those that they freed. */
static int64_t heap_out(const struct heap *heap, unsigned class)
{
    return heap->moved[class] - bin_length(heap, class);
}

/* Is much of the class free in the thread's part (slabs_are_sparse)? Blocks in the depot's idle magazines count as
 * free, and so do those in the thread's own beyond two magazines of the usual length. */
static bool class_is_sparse(const struct heap *heap, unsigned class, bool before)
{
    uint32_t cached = heap->loaded[class].blocks + heap->spare[class].blocks, usual = 2 * magazine_capacity(class);
    uint32_t idle = depot_idle_blocks(depot_own(heap, class));
    return slabs_are_sparse(slabs_own(heap, class), class, idle + (uint32_t)(cached - size_min(cached, usual)), before);
}

/* A magazine was given: are freed blocks of the class to be kept apart from now on? */
static bool magazine_parts(struct heap *heap, unsigned class)
{
    if (LIKELY(!class_is_sparse(heap, class, false))) return false;
    if (heap->apart[class].wait == 0) return true;
    heap->apart[class].wait--;
    return false;
}

/* Begins to watch the next APART_LOOK frees; `anew`: and what becomes of the slabs. */
static void magazine_look(struct heap *heap, unsigned class, bool anew)
{
    struct apart *apart = &heap->apart[class];
    apart->frees = 1;
    apart->out = heap_out(heap, class);
    if (!anew) return;
    apart->freed = 0;
    apart->slabs = PEEK(slabs_own(heap, class)->slabs);
}

/* Freed blocks are no longer kept apart, and will not be until `wait` more magazines were given. */
static void magazine_join(struct heap *heap, unsigned class, size_t wait)
{
    struct magazine *loaded = &heap->loaded[class];
    heap->apart[class].frees = 0;
    heap->apart[class].wait = (uint32_t)size_min(wait, UINT32_MAX);
    loaded->blocks = bin_length(heap, class);
    if (loaded->room != 0) bin_load(heap, class, magazine_limit(heap, class));
}

/* After APART_LOOK frees: are blocks still to be kept apart? Not where the thread hardly takes any: it tears down what
 * it had. Not where the class is dense again: slabs became whole, as they do where blocks come and go in balance; or
 * none did, and what was free was taken again, as in waves: then the next try waits longer. Nor where all blocks were
 * freed several times and no slabs became whole: then it waits longest. */
static void magazine_judge(struct heap *heap, unsigned class)
{
    struct apart *apart = &heap->apart[class];
    uint32_t slabs = PEEK(slabs_own(heap, class)->slabs);
    int64_t taken = heap_out(heap, class) + APART_LOOK - apart->out;
    size_t blocks = (size_t)apart->slabs * classes[class].slab_blocks;
    apart->freed += APART_LOOK;
    bool all = apart->freed >= APART_TIMES * blocks, vain = slabs >= apart->slabs - apart->slabs / APART_WORTH;
    size_t wait = size_max(APART_TIMES * blocks / heap->capacity[class], APART_WAIT);
    if (taken < APART_LOOK / APART_TAKEN) magazine_join(heap, class, APART_WAIT);
    else if (!class_is_sparse(heap, class, true)) magazine_join(heap, class, vain ? wait : APART_WAIT);
    else if (all && vain) magazine_join(heap, class, APART_VAIN * blocks / heap->capacity[class]);
    else {
        heap->bursts[class] = 0;
        magazine_look(heap, class, all);
    }
}

/* The loaded magazine has no room, unless it was only shut (hand.c): it gets more, up to its limit, or it becomes the
 * spare, and the blocks of the spare leave the thread. */
static NOINLINE void magazine_spill(struct heap *heap, unsigned class)
{
    hand_enter(heap);
    const struct bin *bin = &heap->bins.small[class];
    if (UNLIKELY(bin->top < bin->limit)) {
        hand_leave(heap);
        return;
    }
    struct magazine *loaded = &heap->loaded[class], *spare = &heap->spare[class];
    loaded->blocks = bin_length(heap, class);
    uint32_t limit = magazine_limit(heap, class);
    bool wider = loaded->blocks < limit && magazine_widen(heap, class, loaded, loaded->blocks + 1), parts = false;
    if (!wider && loaded->blocks != 0) {
        stat_add(heap, STAT_spills, 1);
        stat_add(heap, STAT_spilled_blocks, loaded->blocks);
        POKE(heap->moved[class], heap->moved[class] - loaded->blocks);
        uint32_t given = spare->blocks;
        if (UNLIKELY(magazine_homes(heap, class, loaded))) { /* at once, while what was freed is in the first cache */
            given = loaded->blocks;
            magazine_return(heap, class, loaded, true);
        } else {
            if (given != 0) magazine_give(heap, class, spare, false);
            magazine_widen(heap, class, spare, (uint32_t)size_min(loaded->room, limit));
            magazine_swap(heap, class);
        }
        size_t units = (size_t)given * classes[class].size >> UNIT_SHIFT, more = given != 0 ? size_max(units, 1) : 0;
        if (heap->given[class] == 0) heap_gives(heap, class);
        if (heap->given[class] < GIVEN_MANY) {
            heap->given[class] = (uint8_t)size_min(heap->given[class] + more, GIVEN_MANY);
            if (heap->given[class] == GIVEN_MANY) heap->given_ns = os_tick_ns();
        }
        heap->given_bytes += (size_t)given * classes[class].size;
        if (given != 0) {
            POKE(heap->spills[class], heap->spills[class] + 1);
            heap->turns[class] = 0;
        } else {
            magazine_turned(heap, class);
        }
        parts = magazine_parts(heap, class);
    }
    bin_load(heap, class, parts ? 0 : limit);
    hand_grew(heap, (size_t)(bin->limit - bin->top) * classes[class].size);
    if (UNLIKELY(parts)) magazine_look(heap, class, true);
    hand_leave(heap);
}

/* Puts a freed block into the spare magazine, if its class is kept apart and there is room; else false, and nothing is
 * done. */
static bool magazine_keep_apart(struct heap *heap, unsigned class, uintptr_t block)
{
    struct magazine *spare = &heap->spare[class];
    if (heap->apart[class].frees == 0) return false;
    hand_enter(heap);
    bool fits = spare->blocks < size_min(spare->room, heap->capacity[class]);
    if (fits) {
        slot_fill(&spare->slots[spare->blocks + 1], block);
        POKE(spare->blocks, spare->blocks + 1);
        POKE(heap->moved[class], heap->moved[class] - 1);
        stat_add(heap, STAT_spilled_blocks, 1);
        if (++heap->apart[class].frees > APART_LOOK) magazine_judge(heap, class);
    }
    hand_leave(heap);
    return fits;
}

/* What was kept apart goes home. */
static void magazine_empty_spare(struct heap *heap, unsigned class)
{
    struct magazine *spare = &heap->spare[class];
    hand_enter(heap);
    stat_add(heap, STAT_spills, 1);
    POKE(heap->spills[class], heap->spills[class] + 1);
    if (spare->blocks != 0) magazine_return(heap, class, spare, true);
    magazine_widen(heap, class, spare, heap->capacity[class]);
    hand_leave(heap);
}

/* All blocks of a class are about to leave the thread; `wait`: as in magazine_join. Result: has the loaded magazine
 * any? They are counted as gone. */
static bool magazine_unload(struct heap *heap, unsigned class, size_t wait)
{
    struct magazine *loaded = &heap->loaded[class];
    if (heap->apart[class].frees != 0) magazine_join(heap, class, wait);
    loaded->blocks = bin_length(heap, class);
    if (loaded->blocks == 0) return false;
    POKE(heap->moved[class], heap->moved[class] - loaded->blocks);
    stat_add(heap, STAT_spilled_blocks, loaded->blocks);
    return true;
}

/* Gives away all blocks of one class. `leaves`: the thread ends, rests or purges, and so does not come back; then all
 * go to the depot. */
static void magazine_flush(struct heap *heap, unsigned class, bool leaves)
{
    hand_enter(heap);
    struct magazine *loaded = &heap->loaded[class], *spare = &heap->spare[class];
    if (magazine_unload(heap, class, leaves ? 0 : APART_WAIT)) {
        magazine_give(heap, class, loaded, leaves);
        bin_load(heap, class, magazine_limit(heap, class));
    }
    if (spare->blocks != 0) magazine_give(heap, class, spare, leaves);
    if (leaves) POKE(depot_own(heap, class)->given, DEPOT_LEFT);
    hand_leave(heap);
}

/* How what the thread has of a class looks; else once it was used. */
static uint32_t class_look(const struct heap *heap, unsigned class)
{
    const uintptr_t *top = heap->bins.small[class].top;
    uint32_t look = (uint32_t)(uintptr_t)top * 31 + (uint32_t)PEEK(top[-1]);
    return (look * 31 + heap->spare[class].blocks) * 31 + heap->refills[class] + heap->spills[class] +
           heap->swaps[class];
}

/* The thread looks at a class: has it not used it since the last look, while what it has of it may hold back slabs? */
static bool class_rests(struct heap *heap, unsigned class)
{
    uint32_t look = class_look(heap, class), cached = bin_length(heap, class) + heap->spare[class].blocks;
    bool same = look == heap->looks[class];
    heap->looks[class] = look;
    if (!same || cached == 0) return false;
    return slabs_are_sparse(slabs_own(heap, class), class, cached + depot_idle_blocks(depot_own(heap, class)), true);
}

/* What the thread has of a class goes home, to slabs. */
static void magazine_shed(struct heap *heap, unsigned class)
{
    hand_enter(heap);
    struct magazine *loaded = &heap->loaded[class], *spare = &heap->spare[class];
    if (magazine_unload(heap, class, APART_WAIT)) {
        magazine_return(heap, class, loaded, true);
        bin_load(heap, class, magazine_limit(heap, class));
    }
    if (spare->blocks != 0) magazine_return(heap, class, spare, true);
    heap_abandon(heap, class, os_tick_ns()); /* a collector may be about to take the slab, too */
    hand_leave(heap);
}

/* --- a block asked about ------------------------------------------------------------------------------------------ */

/* Does the block's first word name one of the slots from `first` to below `top`, and does that one hold the block? */
static bool slots_hold(const uintptr_t *first, const uintptr_t *top, uintptr_t block)
{
    uintptr_t at = block_slot(block) - (uintptr_t)first;
    return at < (uintptr_t)top - (uintptr_t)first && first[at / sizeof *first] == block;
}

/* Is the block among the returned ones of its slab? */
static bool slab_holds(struct span *slab, uintptr_t block)
{
    struct class_slabs *slabs = slabs_of(slab);
    if (PEEK(slab->returned) == 0) return false;
    lock_take(&slabs->lock);
    size_t index;
    bool found = slab_finds(slab, block, &index) && slab_is_marked(slab, index);
    lock_drop(&slabs->lock);
    return found;
}

static bool depot_holds(struct depot *depot, unsigned row, uintptr_t block)
{
    bool found = false;
    if (PEEK(depot->top) == 0) return false;
    lock_take(&round_lock); /* for round_slots */
    lock_take(&depot->lock);
    for (uintptr_t head = depot->top; head != 0 && !found;) {
        struct chain chain = chain_open(head, &head);
        if (chain.blocks - 1 >= MAGAZINE_MAX) break;
        found = (chain.head & CHAIN_RACK) == 0 && chain_holds(row, chain, round_slots, block);
    }
    lock_drop(&depot->lock);
    lock_drop(&round_lock);
    return found;
}

/* Could the block's first word be that of a free block in a slab or in the depot? */
static bool block_leads_on(unsigned class, uintptr_t block)
{
    uintptr_t next = link_next(block), below;
    struct chain chain = chain_open(block, &below);
    bool chained = chain.blocks - 1 < MAGAZINE_MAX &&
                   (below == 0 || (below & CHAIN_RACK ? word_is_of_rack(below) : block_is_of(class, below)));
    return chained || (link_valid(block) && (next == 0 || next == LIST_END || block_is_of(class, next)));
}

/* Is the block free, in one of this thread's magazines, in a slab or in the depot? Those in other threads' magazines
 * and in bare parts are not found. Most words that a program writes look like none of these; only for the others are
 * all places searched. */
static NOINLINE bool block_is_free(const struct heap *heap, unsigned class, uintptr_t block)
{
    if ((intptr_t)block_words(block)[0] < (intptr_t)CHAIN_LEAST) { /* then it could only name a slot */
        const struct magazine *loaded = &heap->loaded[class], *spare = &heap->spare[class];
        const struct bin *bin = &heap->bins.small[class];
        if (bin->limit != NO_SLOT && slots_hold(loaded->slots + 1, bin->top, block)) return true;
        if (spare->blocks != 0 && slots_hold(spare->slots + 1, spare->slots + 1 + spare->blocks, block)) return true;
        return word_is_near_racks(block_slot(block)) && racks_hold(block_slot(block), block);
    }
    if (LIKELY(!block_leads_on(class, block))) return false;
    if (slab_holds(span_of(block), block)) return true;
    bool found = false;
    for (unsigned part = 0; part < parts_count() && !found; part++)
        found = depot_holds(&depots[part][class], class, block);
    return found;
}

/* May the block be free? The first word of a live block seldom says so, unless a program copied it there unread, or it
 * points to what lies among the racks. */
static ALWAYS_INLINE bool block_seems_free(const struct heap *heap, unsigned class, uintptr_t block)
{
    uintptr_t word = block_words(block)[0];
    return (intptr_t)word >= (intptr_t)CHAIN_LEAST || word_is_near_racks(block_slot(block)) ||
           word - (uintptr_t)heap->loaded[class].slots <= SLOTS_LONGEST ||
           word - (uintptr_t)heap->spare[class].slots <= SLOTS_LONGEST;
}
