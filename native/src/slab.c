/* slab.c: a slab is one unit or four, cut into equal blocks of one class.
 *
 * carved = handed out + in magazines + in the depot + returned. A heap carves its current slab without a lock; blocks
 * come back in any order from any thread, under the class lock, into `returned`. A slab that nobody carves and whose
 * blocks are all returned goes back to its superslab. Returned tiny blocks are linked through their first words; those
 * of L2 are bits in one word, which also shows a block that is given back twice. */

/* Added to every link and to the depot's addresses: random, once the heap is there, but for its top bits. A word that
 * is less, as signed numbers go, is no link: of all words one in 2^16 may be one. */
static uintptr_t link_key = LINK_LEAST;
static const uintptr_t empty_block[1]; /* ends every list and magazine: its word is no link and no slot's address */

static ALWAYS_INLINE uintptr_t *block_words(uintptr_t block) { return (uintptr_t *)block; }
static ALWAYS_INLINE void link_set(uintptr_t block, uintptr_t next) { block_words(block)[0] = next + link_key; }
static ALWAYS_INLINE uintptr_t link_next(uintptr_t block) { return block_words(block)[0] - link_key; }
static ALWAYS_INLINE bool link_valid(uintptr_t block) { return (intptr_t)block_words(block)[0] >= (intptr_t)link_key; }

/* The next block; ends the program where the link was overwritten or the block is not free. */
static ALWAYS_INLINE uintptr_t link_follow(uintptr_t block)
{
    if (UNLIKELY(!link_valid(block))) fatal("free block overwritten, or freed twice,", block);
    return link_next(block);
}

#define LIST_END ((uintptr_t)empty_block)

/* A slot holds a free block's address, and the block's first word the address above the slot, which is the top of the
 * magazine when the block is popped. So of two slots that hold one block, freed twice, only one is right; and a block
 * that was overwritten, or is in use, is in none. */
static ALWAYS_INLINE void slot_fill(uintptr_t *slot, uintptr_t block)
{
    POKE(*slot, block);
    block_words(block)[0] = (uintptr_t)(slot + 1);
}

static ALWAYS_INLINE bool slot_is_right(const uintptr_t *slot)
{
    return block_words(*slot)[0] == (uintptr_t)(slot + 1);
}

static void slot_expect_right(const uintptr_t *slot)
{
    if (UNLIKELY(!slot_is_right(slot))) fatal("free block overwritten, or freed twice,", *slot);
}

static struct class_slabs class_slabs[CLASSES];

static void partial_link(struct class_slabs *slabs, struct span *slab)
{
    slab->place = SLAB_PARTIAL;
    slab->prev = NULL;
    slab->next = slabs->partial;
    if (slab->next != NULL) slab->next->prev = slab;
    POKE(slabs->partial, slab);
}

static void partial_unlink(struct class_slabs *slabs, struct span *slab)
{
    slab->place = SLAB_NOWHERE;
    slabs->unlinked++;
    if (slab->next != NULL) slab->next->prev = slab->prev;
    if (slab->prev != NULL) slab->prev->next = slab->next;
    else POKE(slabs->partial, slab->next);
}

static bool slab_is_tiny(const struct span *slab) { return slab->class < TINY_CLASSES; }

static void slab_begin(struct span *slab, unsigned class)
{
    slab->class = (uint8_t) class;
    slab->place = SLAB_NOWHERE;
    slab->carved = slab->returned = slab->heap = slab->lifeless = 0;
    slab->bare = slab->looked = 0;
    if (slab_is_tiny(slab)) slab->list = LIST_END;
    else slab->slots = 0;
}

/* Hardened: free units read zero, so a write to one is seen when it becomes a slab. Ends the program then. */
static bool slabs_inspected;

static void slab_expect_empty(const struct span *slab)
{
    const uint64_t *at = (const uint64_t *)slab->address, *end = at + span_bytes(slab) / sizeof *at;
    for (; at < end; at++)
        if (UNLIKELY(*at != 0)) fatal("block written after it was freed", (uintptr_t)at);
}

static void slab_empty(const struct span *slab)
{
    if (!os_purge((void *)slab->address, span_bytes(slab))) memset((void *)slab->address, 0, span_bytes(slab));
}

/* Ends the program where a returned block was written to. */
static void slab_inspect(const struct span *slab)
{
    if (!slab_is_tiny(slab)) return;
    for (uintptr_t block = slab->list; block != LIST_END;) block = link_follow(block);
}

/* A fresh slab of the class; NULL where memory ends. */
static struct span *slab_new(unsigned class)
{
    lock_take(&arena_lock);
    struct span *slab = superslab_take(classes[class].slab_units);
    if (slab != NULL) slab_begin(slab, class); /* before observers, who hold the lock, can see it */
    lock_drop(&arena_lock);
    if (slab == NULL) return NULL;
    if (UNLIKELY(slabs_inspected)) slab_expect_empty(slab);
    size_t index = map_index(slab->address);
    if (class < FRONT_CLASSES && index != 0) owners.bin[index] = (uint16_t)(class * GRANULE); /* 0 is NULL's: no bin */
    return slab;
}

/* Nobody carves it and all its blocks are returned. */
static void slab_delete(struct span *slab, uint64_t now)
{
    if (UNLIKELY(slabs_inspected)) {
        slab_inspect(slab);
        slab_empty(slab);
    }
    owners.bin[map_index(slab->address)] = 0;
    lock_take(&arena_lock);
    superslab_give(slab, now);
    lock_drop(&arena_lock);
}

static ALWAYS_INLINE size_t slab_index(const struct span *slab, uintptr_t block)
{
    return (block - slab->address) / classes[slab->class].size;
}

/* Carves up to `wanted` new blocks into slots, the lowest address on top. By the slab's owner. */
static uint32_t slab_carve(struct span *slab, uint32_t wanted, uintptr_t *slots)
{
    uint32_t size = classes[slab->class].size, left = classes[slab->class].slab_blocks - slab->carved;
    uint32_t n = wanted < left ? wanted : left;
    uintptr_t block = slab->address + (size_t)(slab->carved + n) * size;
    for (uint32_t i = 0; i < n; i++) {
        block -= size;
        slot_fill(&slots[i], block);
    }
    POKE(slab->carved, slab->carved + n);
    return n;
}

/* --- parts of slabs: pages go back while other blocks of the slab are in use. Under the class lock ---------------- */

static unsigned slab_part_shift(const struct span *slab)
{
    return log2_floor(size_max(span_bytes(slab) / SLAB_PARTS, os_page));
}

/* The parts in which a block lies. */
static uint32_t slab_parts(const struct span *slab, size_t index)
{
    size_t begin = index * classes[slab->class].size, last = begin + classes[slab->class].size - 1;
    return (2u << (last >> slab_part_shift(slab))) - (1u << (begin >> slab_part_shift(slab)));
}

/* Does a block begin where there are no pages? */
static bool slab_is_bare(const struct span *slab, size_t index)
{
    return slab->bare != 0 && (slab->bare >> (index * classes[slab->class].size >> slab_part_shift(slab)) & 1) != 0;
}

static void slab_link(struct span *slab, uintptr_t block)
{
    link_set(block, slab->list);
    slab->list = block;
}

/* The tiny blocks that begin in the lowest bare part go into the list. */
static void slab_dress(struct span *slab)
{
    size_t size = classes[slab->class].size, begin = (size_t)lowest_bit(slab->bare) << slab_part_shift(slab);
    size_t end = begin + ((size_t)1 << slab_part_shift(slab));
    POKE(slab->bare, (uint16_t)(slab->bare & (slab->bare - 1)));
    for (size_t i = size_min((end + size - 1) / size, slab->carved); i-- > (begin + size - 1) / size;)
        slab_link(slab, slab->address + i * size);
}

#define SLAB_BLOCKS_MAX (UNIT_BYTES / GRANULE)

/* Sets bit i where block i is returned. */
static void slab_see_free(const struct span *slab, uint64_t *free)
{
    if (!slab_is_tiny(slab)) {
        free[0] = slab->slots;
        return;
    }
    for (size_t i = 0; i < slab->carved; i++)
        if (slab_is_bare(slab, i)) free[i / 64] |= UINT64_C(1) << i % 64;
    for (uintptr_t block = slab->list; block != LIST_END; block = link_follow(block))
        free[slab_index(slab, block) / 64] |= UINT64_C(1) << slab_index(slab, block) % 64;
}

/* Gives back the pages of those of the parts for which the kernel takes them. Result: these. */
static uint32_t slab_purge(const struct span *slab, uint32_t parts)
{
    uint32_t gone = 0;
    for (uint32_t row; parts != 0; parts &= ~row) {
        unsigned at = lowest_bit(parts), length = lowest_bit(~(uint64_t)(parts >> at));
        row = ((1u << length) - 1) << at;
        if (os_purge((void *)(slab->address + ((size_t)at << slab_part_shift(slab))),
                     (size_t)length << slab_part_shift(slab)))
            gone |= row;
    }
    return gone;
}

/* Gives back the pages of the parts in which no block is in use, where they are most of the slab; of those that were
 * carved to their end alone, since blocks carved later are not in the list. Result: bytes. */
static size_t slab_strip(struct span *slab)
{
    size_t carved =
        slab->carved == classes[slab->class].slab_blocks ? span_bytes(slab) : slab->carved * classes[slab->class].size;
    uint32_t parts = (uint32_t)(carved >> slab_part_shift(slab)), busy = 0, was = slab->bare;
    uint64_t free[SLAB_BLOCKS_MAX / 64] = {0};
    slab->looked = (uint16_t)slab->returned;
    if ((size_t)slab->returned * classes[slab->class].size < carved / 2) return 0;
    slab_see_free(slab, free);
    for (size_t i = 0; i < slab->carved; i++)
        if ((free[i / 64] >> i % 64 & 1) == 0) busy |= slab_parts(slab, i);
    uint32_t idle = ((1u << parts) - 1) & ~busy;
    if ((idle & ~was) == 0 || 2 * (uint32_t)__builtin_popcount(idle) < parts) return 0;
    uint32_t gone = slab_purge(slab, idle);
    POKE(slab->bare, (uint16_t)gone);
    if (slab_is_tiny(slab)) slab->list = LIST_END;
    for (size_t i = slab->carved; slab_is_tiny(slab) && i-- > 0;)
        if ((free[i / 64] >> i % 64 & 1) != 0 && !slab_is_bare(slab, i))
            slab_link(slab, slab->address + i * classes[slab->class].size);
    return (size_t)__builtin_popcount(gone & ~was) << slab_part_shift(slab);
}

/* The same for all slabs of which blocks came back. Result: bytes. */
static size_t slabs_strip(void)
{
    size_t bytes = 0;
    for (unsigned class = 1; class < CLASSES; class ++) {
        struct class_slabs *slabs = &class_slabs[class];
        size_t whole = (size_t)classes[class].slab_units << UNIT_SHIFT;
        if (!PEEK(slabs->stirred) || whole < (size_t)knob(KNOB_purge_range_bytes)) continue;
        lock_take(&slabs->lock);
        POKE(slabs->stirred, false);
        for (struct span *slab = slabs->partial, *next; slab != NULL; slab = next) {
            uint32_t unlinked = slabs->unlinked;
            next = slab->next;
            if (slab->returned == slab->looked) continue;
            bytes += slab_strip(slab);
            lock_drop(&slabs->lock); /* others wait for one slab at most */
            lock_take(&slabs->lock);
            if (unlinked != slabs->unlinked) next = slabs->partial;
        }
        lock_drop(&slabs->lock);
    }
    return bytes;
}

/* --- taking and giving -------------------------------------------------------------------------------------------- */

/* Takes up to `wanted` blocks of a slab that nobody carves: returned ones, then new ones. Under the class lock. */
static uint32_t slab_take(struct span *slab, uint32_t wanted, uintptr_t *slots)
{
    uint32_t n = 0;
    for (; n < wanted && slab->returned > 0; n++, POKE(slab->returned, slab->returned - 1)) {
        uintptr_t block;
        if (slab_is_tiny(slab)) {
            while (slab->list == LIST_END && slab->bare != 0) slab_dress(slab);
            block = slab->list;
            slab->list = link_follow(block);
        } else {
            size_t index = lowest_bit(slab->slots);
            block = slab->address + index * classes[slab->class].size;
            slab->slots &= slab->slots - 1;
            if (slab->bare != 0) POKE(slab->bare, (uint16_t)(slab->bare & ~slab_parts(slab, index)));
        }
        slot_fill(&slots[n], block);
    }
    return n + slab_carve(slab, wanted - n, slots + n);
}

/* A block comes home. Under the class lock; true where the slab is now free as a whole and out of every list. */
static bool slab_give(struct class_slabs *slabs, struct span *slab, uintptr_t block)
{
    if (slab_is_tiny(slab)) {
        if (UNLIKELY(slab->bare != 0 && slab_is_bare(slab, slab_index(slab, block)))) fatal("block freed twice", block);
        slab_link(slab, block);
    } else {
        uint64_t bit = UINT64_C(1) << slab_index(slab, block);
        if (UNLIKELY(slab->slots & bit)) fatal("block freed twice", block);
        slab->slots |= bit;
    }
    POKE(slab->returned, slab->returned + 1);
    if (slab->place == SLAB_CURRENT) return false;
    if (slab->returned == slab->carved) {
        if (slab->place == SLAB_PARTIAL) partial_unlink(slabs, slab);
        return true;
    }
    if (slab->place == SLAB_NOWHERE) partial_link(slabs, slab);
    return false;
}

static bool slab_has_blocks(const struct span *slab)
{
    return slab->returned > 0 || slab->carved < classes[slab->class].slab_blocks;
}

/* The owner stops carving: the slab belongs to the class. */
static void slab_abandon(struct span *slab, uint64_t now)
{
    struct class_slabs *slabs = &class_slabs[slab->class];
    lock_take(&slabs->lock);
    slab->place = SLAB_NOWHERE;
    POKE(slab->heap, 0);
    bool whole = slab->returned == slab->carved;
    if (!whole && slab_has_blocks(slab)) partial_link(slabs, slab);
    lock_drop(&slabs->lock);
    if (whole) slab_delete(slab, now);
}

/* Returns the blocks in so many slots, each to its slab. Result: bytes. A block that is not free, or none of ours, ends
 * the program. */
static size_t slabs_return(unsigned class, const uintptr_t *slots, uint32_t blocks, uint64_t now)
{
    struct class_slabs *slabs = &class_slabs[class];
    for (uint32_t n = 0; n < blocks;) {
        struct span *whole = NULL;
        lock_take(&slabs->lock);
        for (int i = 0; i < 64 && n < blocks && whole == NULL; i++, n++) {
            uintptr_t block = slots[n];
            slot_expect_right(&slots[n]);
            struct span *slab = span_of(block);
            if (UNLIKELY(slab == NULL || slab->kind != SPAN_SLAB || slab->class != class))
                fatal("free list overwritten", block);
            if (slab_give(slabs, slab, block)) whole = slab;
        }
        POKE(slabs->stirred, true);
        lock_drop(&slabs->lock);
        if (whole != NULL) slab_delete(whole, now);
    }
    stat_shared(STAT_returned_blocks, blocks);
    return (size_t)blocks * classes[class].size;
}

/* Fills up to `wanted` slots with blocks: from slabs with returned blocks, then from the heap's current slab, then from
 * a new one. Result: how many, 0 where memory ends. */
static uint32_t slabs_fill(struct heap *heap, unsigned class, uint32_t wanted, uintptr_t *slots)
{
    struct class_slabs *slabs = &class_slabs[class];
    uint32_t n = 0;
    if (PEEK(slabs->partial) != NULL) {
        lock_take(&slabs->lock);
        while (n < wanted && slabs->partial != NULL) {
            struct span *slab = slabs->partial;
            n += slab_take(slab, wanted - n, slots + n);
            if (!slab_has_blocks(slab)) partial_unlink(slabs, slab);
        }
        lock_drop(&slabs->lock);
        if (n > 0) return n;
    }
    struct span *slab = heap->current[class];
    if (slab != NULL && slab->carved == classes[class].slab_blocks) {
        slab_abandon(slab, 0);
        slab = NULL;
    }
    if (slab == NULL) {
        slab = slab_new(class);
        heap->current[class] = slab;
        if (slab == NULL) return 0;
        slab->place = SLAB_CURRENT;
        POKE(slab->heap, heap->number);
    }
    n = slab_carve(slab, wanted, slots);
    stat_add(heap, STAT_carved_blocks, n);
    return n;
}
