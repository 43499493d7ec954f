/* strip.c: pages go back of slabs in use: of their parts, a sixteenth or a page, in which no block is with a caller or
 * in a magazine. A slab is looked into when none of its blocks came or went for some rounds. What a part without pages
 * means to those who take and give blocks, slab.c says. */

#define SLAB_BLOCKS_MAX (UNIT_BYTES / GRANULE)

static bool bit_of(const uint64_t *bits, size_t i) { return (bits[i / 64] >> i % 64 & 1) != 0; }

/* Sets bit i where block i is returned. */
static void slab_see_free(const struct span *slab, uint64_t *free)
{
    uintptr_t block = slab_is_tiny(slab) ? slab->list : LIST_END;
    if (!slab_is_tiny(slab)) free[0] = slab->slots;
    for (size_t i = 0; i < slab->carved; i++)
        if (slab_is_bare(slab, slab_block(slab, i))) free[i / 64] |= UINT64_C(1) << i % 64;
    for (; block != LIST_END; block = link_follow(block)) {
        size_t i = slab_index(slab, block);
        if (UNLIKELY(i >= slab->carved || bit_of(free, i))) fatal("free list overwritten", block);
        free[i / 64] |= UINT64_C(1) << i % 64;
    }
}

/* The parts in which all blocks are free, if they are half of all; those alone that were carved to their end, for
 * blocks that are carved later are in no list. */
static uint32_t slab_idle_parts(const struct span *slab, const uint64_t *free)
{
    bool whole = slab->carved == classes[slab->class].slab_blocks;
    unsigned parts = slab_part(slab, whole ? slab->address + span_bytes(slab) : slab_block(slab, slab->carved));
    uint32_t busy = 0;
    for (size_t i = 0; i < slab->carved; i++)
        if (!bit_of(free, i)) busy |= slab_parts(slab, slab_block(slab, i));
    uint32_t idle = ((1u << parts) - 1) & ~busy;
    return 2 * (uint32_t)__builtin_popcount(idle) >= parts ? idle : 0;
}

/* Gives back the pages of those of the parts for which the kernel takes them. Result: these. Of others it may have
 * taken the first pages: what their blocks say has to be written anew. */
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

/* Writes anew what the free blocks say that are not bare: tiny ones are linked by address. Result: the last of these,
 * 0: there is none. */
static uintptr_t slab_chain(struct span *slab, const uint64_t *free)
{
    uintptr_t last = 0;
    if (slab_is_tiny(slab)) slab->list = LIST_END;
    for (size_t i = slab->carved; i-- > 0;) {
        uintptr_t block = slab_block(slab, i);
        if (!bit_of(free, i) || slab_is_bare(slab, block)) continue;
        slab_put(slab, block);
        if (last == 0 && slab_is_tiny(slab)) last = block;
    }
    return last;
}

static bool slabs_due; /* blocks came back to slabs that were not looked into since */

/* Gives back the pages of idle parts of a listed slab. Under the class lock, which is dropped meanwhile: the slab is as
 * if a heap carved it, and its free blocks are out of it. Result: bytes. */
static size_t slab_strip(struct class_slabs *slabs, struct span *slab)
{
    uint64_t free[SLAB_BLOCKS_MAX / 64] = {0};
    struct span aside = *slab;
    partial_unlink(slabs, slab);
    slab->place = SLAB_CURRENT;
    if (slab_is_tiny(slab)) slab->list = LIST_END;
    else slab->slots = 0;
    lock_drop(&slabs->lock);
    slab_see_free(&aside, free);
    uint32_t idle = slab_idle_parts(&aside, free) & ~aside.bare, gone = slab_purge(&aside, idle);
    if (idle != 0 && gone == 0) refusals_left--;
    if (gone != 0 && aside.bare == 0) {
        lock_take(&arena_lock);
        superslab_bare(slab, true);
        lock_drop(&arena_lock);
    }
    aside.bare |= (uint16_t)gone;
    uintptr_t last = slab_chain(&aside, free);
    lock_take(&slabs->lock);
    POKE(slab->bare, aside.bare);
    if (last != 0) {
        link_set(last, slab->list);
        slab->list = aside.list;
    } else if (!slab_is_tiny(slab)) {
        uint64_t twice = slab->slots & aside.slots;
        if (UNLIKELY(twice != 0)) fatal("block freed twice", slab_block(slab, lowest_bit(twice)));
        slab->slots |= aside.slots;
    }
    slab->place = SLAB_NOWHERE;
    slab->quiet = slab->returned == aside.returned ? SLAB_STRIPPED : 0;
    if (slab->quiet == 0) POKE(slabs_due, true);
    bool whole = slab->returned == slab->carved;
    if (!whole) partial_link(slabs, slab);
    lock_drop(&slabs->lock);
    if (whole) slab_delete(slab, os_now_ns());
    lock_take(&slabs->lock);
    return (size_t)__builtin_popcount(gone) << slab_part_shift(&aside);
}

/* The same for slabs of which no block came or went for some rounds, or for all, where half of their blocks are free;
 * those that were looked at before come last in their lists. At most so many slabs: what is behind them waits for the
 * next round. Result: bytes. */
static size_t slabs_strip(bool all, size_t most)
{
    size_t bytes = 0, shortest = size_max((size_t)knob(KNOB_purge_range_bytes), 2 * os_page);
    uint32_t seen = 0;
    POKE(slabs_due, false);
    for (unsigned class = 1; class < CLASSES && refusals_left > 0; class ++) {
        struct class_slabs *slabs = &class_slabs[class];
        if (PEEK(slabs->partial) == NULL || (size_t)classes[class].slab_units << UNIT_SHIFT < shortest) continue;
        lock_take(&slabs->lock);
        slabs->cursor = slabs->partial;
        for (struct span *slab; (slab = slabs->cursor) != NULL && slab->quiet < SLAB_STRIPPED && refusals_left > 0;) {
            slabs->cursor = slab->next;
            bool ripe = all || slab->quiet == SLAB_QUIET, half = 2 * slab->returned >= slab->carved;
            if (ripe && half && most > 0) {
                bytes += slab_strip(slabs, slab);
                most--;
            } else if (ripe && !half) {
                partial_unlink(slabs, slab);
                slab->quiet = SLAB_STRIPPED;
                partial_link(slabs, slab);
            } else {
                if (!ripe) slab->quiet++;
                POKE(slabs_due, true);
            }
            if (++seen % 64 != 0) continue;
            lock_drop(&slabs->lock); /* the cursor knows what others do meanwhile */
            lock_take(&slabs->lock);
        }
        slabs->cursor = NULL;
        lock_drop(&slabs->lock);
    }
    return bytes;
}
