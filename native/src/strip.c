/* strip.c: gives back pages of slabs in use: of those parts (a sixteenth of the slab, or a page) in which no block is
 * with a caller or in a magazine. A slab is looked into when none of its blocks has come or gone for some rounds. What
 * a part without pages means to those who take and give blocks is told in slab.c. */

static bool bit_of(const uint64_t *bits, size_t i) { return (bits[i / 64] >> i % 64 & 1) != 0; }

/* The parts in which all blocks are free, if they are half of all; those alone that were carved to their end, for
 * blocks that are carved later are not marked. */
static uint32_t slab_idle_parts(const struct span *slab, const uint64_t *free)
{
    bool whole = slab->carved == classes[slab->class].slab_blocks;
    unsigned parts = slab_part(slab, whole ? slab->address + span_bytes(slab) : slab_block(slab, slab->carved));
    uint32_t busy = 0;
    for (size_t i = 0; i < slab->carved; i++)
        if (!bit_of(free, i) && !slab_is_bare(slab, slab_block(slab, i))) busy |= slab_parts(slab, slab_block(slab, i));
    uint32_t idle = ((1u << parts) - 1) & ~busy;
    return 2 * (uint32_t)__builtin_popcount(idle) >= parts ? idle : 0;
}

/* What is written to free blocks must not be lost with their pages. */
static void slab_expect_idle(const struct span *slab, const uint64_t *free, uint32_t idle)
{
    for (size_t i = 0; idle != 0 && i < slab->carved; i++)
        if (bit_of(free, i) && (idle >> slab_part(slab, slab_block(slab, i)) & 1) != 0)
            slab_expect_free(slab_block(slab, i));
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

/* Of the free blocks that begin in idle parts: those of parts whose pages are gone are not marked any more, the others
 * say anew that they are free. */
static void slab_remark(const struct span *slab, uint64_t *free, uint32_t idle, uint32_t gone)
{
    for (size_t i = 0; i < slab->carved; i++) {
        uintptr_t block = slab_block(slab, i);
        uint32_t part = 1u << slab_part(slab, block);
        if (!bit_of(free, i) || (idle & part) == 0) continue;
        if ((gone & part) != 0) free[i / 64] &= ~(UINT64_C(1) << i % 64);
        else link_set(block, LIST_END);
    }
}

static bool slabs_due; /* blocks came back to slabs that were not looked into since */

/* Gives back the pages of idle parts of a listed slab. Under the class lock, which is dropped meanwhile: the slab is as
 * if a heap carved it, and its free blocks are out of it. Result: bytes. */
static size_t slab_strip(struct class_slabs *slabs, struct span *slab)
{
    uint64_t free[MARKS_WORDS];
    size_t words = slab_words_count(slab);
    memcpy(free, slab_words(slab), words * sizeof *free);
    memset(slab_words(slab), 0, words * sizeof *free);
    uint32_t returned = slab->returned;
    partial_unlink(slabs, slab);
    slab->place = SLAB_CURRENT;
    lock_drop(&slabs->lock); /* only `returned` and the bits change meanwhile */
    uint32_t idle = slab_idle_parts(slab, free) & ~slab->bare;
    slab_expect_idle(slab, free, idle);
    uint32_t gone = slab_purge(slab, idle);
    if (idle != 0 && gone == 0) refusals_left--;
    if (gone != 0 && slab->bare == 0) {
        lock_take(&arena_lock);
        superslab_bare(slab, true);
        lock_drop(&arena_lock);
    }
    if (idle != 0) slab_remark(slab, free, idle, gone);
    lock_take(&slabs->lock);
    POKE(slab->bare, (uint16_t)(slab->bare | gone));
    for (size_t w = 0; w < words; w++) slab_mark(slab, w, free[w]);
    slab->place = SLAB_NOWHERE;
    slab->quiet = slab->returned == returned ? SLAB_STRIPPED : 0;
    if (slab->quiet == 0) POKE(slabs_due, true);
    size_t bytes = (size_t)__builtin_popcount(gone) << slab_part_shift(slab);
    bool whole = slab->returned == slab->carved;
    if (!whole) partial_link(slabs, slab);
    lock_drop(&slabs->lock);
    if (whole) slab_delete(slab, os_now_ns());
    lock_take(&slabs->lock);
    return bytes;
}

/* The same for slabs of a list of which no block came or went for some rounds, or for all, where half of their blocks
 * are free; those that were looked at before come last. Result: bytes, and `most` is less by the slabs. */
static size_t slabs_strip_list(struct class_slabs *slabs, bool all, size_t *most)
{
    size_t bytes = 0;
    uint32_t seen = 0;
    lock_take(&slabs->lock);
    slabs->cursor = slabs->partial;
    for (struct span *slab; (slab = slabs->cursor) != NULL && slab->quiet < SLAB_STRIPPED && refusals_left > 0;) {
        slabs->cursor = slab->next;
        bool ripe = all || slab->quiet == SLAB_QUIET, half = 2 * slab->returned >= slab->carved;
        if (ripe && half && *most > 0) {
            bytes += slab_strip(slabs, slab);
            *most -= 1;
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
    return bytes;
}

/* In all lists at most so many slabs: what is behind them waits for the next round. Result: bytes. */
static size_t slabs_strip(bool all, size_t most)
{
    size_t bytes = 0, shortest = size_max((size_t)knob(KNOB_purge_range_bytes), 2 * os_page);
    POKE(slabs_due, false);
    for (unsigned part = 0; part < parts_count(); part++)
        for (unsigned class = 1; class < CLASSES && refusals_left > 0; class ++) {
            struct class_slabs *slabs = &class_slabs[part][class];
            if (PEEK(slabs->partial) == NULL || (size_t)classes[class].slab_units << UNIT_SHIFT < shortest) continue;
            bytes += slabs_strip_list(slabs, all, &most);
        }
    return bytes;
}
