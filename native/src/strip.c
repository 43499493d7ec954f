/* strip.c: gives back pages of slabs in use: of those parts (a sixteenth of the slab, or a page) in which no block is
 * with a caller or in a magazine. A slab is looked into when none of its blocks has come or gone for some rounds. What
 * those who take and give blocks do with a bare part, one without pages, is told in slab.c. */

/* The parts in which all blocks are free, or not carved yet, if they are at least half of the parts; else none. */
static uint32_t slab_idle_parts(const struct span *slab, const uint64_t *free)
{
    unsigned parts = slab_part(slab, slab->address + span_bytes(slab));
    uint32_t busy = 0;
    for (size_t i = 0; i < slab->carved; i++)
        if (!bit_of(free, i) && !slab_is_bare(slab, slab_block(slab, i))) busy |= slab_parts(slab, slab_block(slab, i));
    uint32_t idle = ((1u << parts) - 1) & ~busy;
    return 2 * (uint32_t)__builtin_popcount(idle) >= parts ? idle : 0;
}

/* Ends the program where a free block in an idle part was written to: this must not vanish with its page. */
static void slab_expect_idle(const struct span *slab, const uint64_t *free, uint32_t idle)
{
    for (size_t i = 0; idle != 0 && i < slab->carved; i++)
        if (bit_of(free, i) && (idle >> slab_part(slab, slab_block(slab, i)) & 1) != 0)
            slab_expect_free(slab_block(slab, i));
}

/* Gives back the pages of the parts, row by row. Result: the parts whose pages went. Where the kernel refused a row it
 * may have taken the first pages, so what the row's blocks say has to be written anew. */
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

/* Brings the free blocks that begin in idle parts up to date. In a part whose pages are gone they lose their bits; in
 * the others their first words are written anew, to say that they are free. */
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

static bool slabs_due; /* blocks came back to slabs, which were not looked into since */

/* Gives back the pages of a listed slab's idle parts. Under the class lock, which is dropped meanwhile: until then the
 * slab is in no list, as if a heap carved it, and its bits are kept here. Result: bytes. */
static size_t slab_strip(struct class_slabs *slabs, struct span *slab)
{
    uint64_t free[MARKS_WORDS];
    size_t words = slab_words_count(slab);
    memcpy(free, slab_words(slab), words * sizeof *free);
    memset(slab_words(slab), 0, words * sizeof *free);
    uint32_t returned = slab->returned;
    partial_unlink(slabs, slab);
    POKE(slab->place, SLAB_CURRENT);
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
    POKE(slab->place, SLAB_NOWHERE);
    POKE(slab->quiet, slab->returned == returned ? SLAB_STRIPPED : 0);
    if (slab->quiet == 0) POKE(slabs_due, true);
    size_t bytes = (size_t)__builtin_popcount(gone) << slab_part_shift(slab);
    bool whole = slab->returned == slab->carved;
    if (!whole) partial_link(slabs, slab);
    lock_drop(&slabs->lock);
    if (whole) slab_delete(slab, os_now_ns());
    lock_take(&slabs->lock);
    return bytes;
}

/* The same for slabs of a list, if at least half of their blocks are free or not carved: those of which no block came
 * or went for SLAB_QUIET rounds, or `all`. Slabs that were looked at before stand last and end the walk. `most`: slabs
 * that may be stripped; it falls by those that were. Result: bytes. */
static size_t slabs_strip_list(struct class_slabs *slabs, bool all, size_t *most)
{
    size_t bytes = 0;
    uint32_t seen = 0;
    lock_take(&slabs->lock);
    slabs->cursor = slabs->partial;
    for (struct span *slab; (slab = slabs->cursor) != NULL && slab->quiet < SLAB_STRIPPED && refusals_left > 0;) {
        slabs->cursor = slab->next;
        bool ripe = all || slab->quiet == SLAB_QUIET;
        uint32_t blocks = classes[slab->class].slab_blocks;
        bool half = 2 * (slab->returned + blocks - slab->carved) >= blocks;
        if (ripe && half && *most > 0) {
            bytes += slab_strip(slabs, slab);
            *most -= 1;
        } else if (ripe && !half) {
            partial_unlink(slabs, slab);
            POKE(slab->quiet, SLAB_STRIPPED);
            partial_link(slabs, slab);
        } else {
            if (!ripe) POKE(slab->quiet, (uint16_t)(slab->quiet + 1));
            POKE(slabs_due, true);
        }
        if (++seen % 64 != 0) continue;
        lock_drop(&slabs->lock); /* who unlinks the cursor's slab meanwhile moves it on */
        lock_take(&slabs->lock);
    }
    slabs->cursor = NULL;
    lock_drop(&slabs->lock);
    return bytes;
}

/* The same for all lists, but at most so many slabs: the others wait for the next round. Result: bytes. */
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
