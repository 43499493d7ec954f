/* region.c: huge pages under runs that come and go. A region of 2 MiB whose pages are nearly all resident is moved into
 * one, which costs hardly any memory but up to a millisecond, once. Only in the first arena, which holds nearly
 * everything; where the first block asked for has made that longer than others, regions end before it does. */

/* The one looked at next, where the round ends, whether there is one, whether all were full so far, rounds since there
 * were more regions, and, as bits, those that were moved. All under arena_lock. */
static size_t region_at, region_end;
static bool region_round, regions_full = true;
static uint32_t region_looks;
static uint64_t regions_moved[REGIONS / 64];

/* The next region that holds no superslab and was not moved; 0 where there is none. Regions are looked at once units
 * have been reused RECYCLED_TIMES as often as there are units below the frontier. A new round needs a quarter more
 * regions, or some that were not full, and twice the reuses of the last one. After REGION_LOOKS rounds over the same
 * regions there is no more: of a steady program, the kernel is asked nothing in the end. */
static uintptr_t region_next(void)
{
    const struct arena *arena = &arenas[0];
    size_t least = RECYCLED_TIMES * arena->born, regions = size_min(arena->born / SUPERSLAB_UNITS_MAX, REGIONS);
    bool grown = regions > region_end + region_end / 4, again = !regions_full && region_looks < REGION_LOOKS;
    if (!region_round && recycled_units >= least && (grown || again)) {
        region_looks = grown ? 1 : region_looks + 1;
        if (!regions_full) region_at = 0;
        region_end = regions;
        region_round = regions_full = true;
    }
    while (region_at < region_end) {
        size_t at = region_at++;
        const struct superslab *slabs = &arena->superslabs[at * (SUPERSLAB_LARGE / SUPERSLAB_SMALL)];
        if (slabs[0].units == 0 && slabs[1].units == 0 && !bit_of(regions_moved, at))
            return arena->base + at * SUPERSLAB_LARGE;
    }
    region_round = false;
    POKE(recycled_due, size_max(least, 2 * recycled_units));
    return 0;
}

/* At most one region a call is moved, and none until REGION_WAIT runs were taken, so a program that ends soon has none
 * moved. `runs`: taken since the last call. */
static NOINLINE void region_collapse(uint32_t runs)
{
    static uint32_t waited;
    uint32_t before = PEEK(waited);
    if (before < REGION_WAIT) {
        POKE(waited, before + runs);
        return;
    }
    lock_take(&arena_lock);
    uintptr_t region = region_next();
    lock_drop(&arena_lock);
    if (region == 0) return;
    bool full = os_dense((void *)region, SUPERSLAB_LARGE, 15), moved = false;
    if (full) {
        os_huge((void *)region, SUPERSLAB_LARGE, true);
        moved = os_collapse((void *)region, SUPERSLAB_LARGE);
        os_huge((void *)region, SUPERSLAB_LARGE, false); /* what comes later is small again */
        if (!moved && os_dense((void *)region, SUPERSLAB_LARGE, 15))
            POKE(recycled_due, SIZE_MAX); /* the kernel refuses: no more */
    }
    size_t at = (region - arenas[0].base) / SUPERSLAB_LARGE;
    lock_take(&arena_lock);
    if (!full) regions_full = false;
    regions_moved[at / 64] |= (uint64_t)moved << at % 64;
    lock_drop(&arena_lock);
}
