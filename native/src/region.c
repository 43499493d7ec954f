/* region.c: huge pages under what is resident anyway, or soon will be. A region of 2 MiB whose pages are nearly all
 * resident is moved into one if its runs come and go, or if superslabs grow on; which costs hardly any memory but up to
 * a millisecond, once. A new region gets one from the start where runs are filled. Only in the first arena, which holds
 * nearly everything; where the first block asked for has made that longer than others, regions end before it does. */

/* The one looked at next, where the round ends, whether there is one, whether all were full so far, and rounds since
 * there were more regions. All under arena_lock. */
static size_t region_at, region_end;
static bool region_round, regions_full = true;
static uint32_t region_looks;

static struct superslab *region_row(size_t at)
{
    return &arenas[0].superslabs[at * (SUPERSLAB_LARGE / SUPERSLAB_SMALL)];
}

/* Claims a region for the calling thread to move, as threads that grow come at the same time. Runs and large blocks may
 * lie in it, or one superslab that fits. Result: its address; 0 where it does not fit. Under arena_lock. */
static uintptr_t region_claim(size_t at)
{
    struct superslab *row = region_row(at);
    bool empty = row[0].units + row[1].units == 0;
    if (empty ? row->moved : !superslab_fits(row)) return 0;
    row->moved = true;
    return arenas[0].base + at * SUPERSLAB_LARGE;
}

/* Claims the next region that fits; 0 where there is none. Regions are looked at once units have been reused
 * RECYCLED_TIMES as often as there are units below the frontier. A new round needs a quarter more regions, or some that
 * were not full, and twice the reuses of the last one. After REGION_LOOKS rounds over the same regions there is no
 * more: of a steady program, the kernel is asked nothing in the end. */
static uintptr_t region_next(void)
{
    const struct arena *arena = &arenas[0];
    size_t least = RECYCLED_TIMES * arena->born, regions = arena->born / SUPERSLAB_UNITS_MAX;
    bool grown = regions > region_end + region_end / 4, again = !regions_full && region_looks < REGION_LOOKS;
    if (!region_round && recycled_units >= least && (grown || again)) {
        region_looks = grown ? 1 : region_looks + 1;
        if (!regions_full) region_at = 0;
        region_end = regions;
        region_round = regions_full = true;
    }
    while (region_at < region_end) {
        uintptr_t region = region_claim(region_at++);
        if (region != 0) return region;
    }
    region_round = false;
    POKE(recycled_due, size_max(least, 2 * recycled_units));
    return 0;
}

/* Moves a claimed region, if nearly all of its pages are resident. Result: were they? The kernel also fails for once,
 * as where another thread is about to touch a page there: it refuses if it fails REGION_REFUSALS times in a row. */
static bool region_move(uintptr_t region)
{
    static uint32_t refusals;
    bool dense = os_dense((void *)region, SUPERSLAB_LARGE, REGION_DENSE), moved = false;
    if (dense) {
        os_huge((void *)region, SUPERSLAB_LARGE, true);
        moved = os_collapse((void *)region, SUPERSLAB_LARGE);
        os_huge((void *)region, SUPERSLAB_LARGE, false); /* what comes later is small again */
    }
    lock_take(&arena_lock);
    region_row((region - arenas[0].base) / SUPERSLAB_LARGE)->moved = moved;
    if (dense) refusals = moved ? 0 : refusals + 1;
    if (refusals >= REGION_REFUSALS) POKE(recycled_due, SIZE_MAX); /* no more */
    lock_drop(&arena_lock);
    return dense;
}

static bool regions_huge; /* some got huge pages from the start */

/* A run that nobody has touched goes to a caller. The first one to reach into a region at the end of the heap: does the
 * region get huge pages? Yes in a heap of some size, while runs are filled. Only a region without huge pages can tell,
 * when another one is full, too, so its runs' callers had their time; the more were filled, the fewer go without. */
static NOINLINE void region_begin(const struct span *run)
{
    static size_t newest, teller; /* regions: the last one that began, and the one that will tell, or 0 */
    static uint32_t filled, due;  /* looks in a row that found one filled; regions that get huge pages unlooked at */
    const struct arena *arena = &arenas[0];
    size_t at = (run->address + span_bytes(run) - 1 - arena->base) / SUPERSLAB_LARGE;
    bool begins = at > PEEK(newest) && at < PEEK(arena->writable) / SUPERSLAB_LARGE;
    bool grown = knob(KNOB_huge_pages) && at * SUPERSLAB_LARGE >= (size_t)knob(KNOB_huge_after_bytes);
    if (LIKELY(!begins || !grown)) return;
    bool huge = false;
    lock_take(&arena_lock);
    if (at > newest) {
        POKE(newest, at);
        if (teller != 0 && at >= teller + 2) {
            bool dense = os_dense((void *)(arena->base + teller * SUPERSLAB_LARGE), SUPERSLAB_LARGE, REGION_DENSE);
            due = filled = dense ? (uint32_t)size_min(2 * filled + 1, HUGE_LOOKS) : 0;
            teller = 0;
        }
        huge = due != 0;
        if (huge) {
            due--;
            POKE(regions_huge, true);
        } else if (teller == 0) {
            teller = at;
        }
    }
    lock_drop(&arena_lock);
    if (huge) os_huge((void *)(arena->base + at * SUPERSLAB_LARGE), SUPERSLAB_LARGE, true);
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
    if (region == 0 || region_move(region)) return;
    lock_take(&arena_lock);
    regions_full = false;
    lock_drop(&arena_lock);
}

/* Half of a superslab is taken for the first time: may it be moved already? Else others below it have been filled by
 * now: GROWTH_LOOKS at most are looked at, each once, and the first one whose pages are there is moved. The caller, in
 * the middle of one call, is not kept for more. Later there may be no occasion, for a program that has grown to its
 * size may never leave the short ways again. */
static NOINLINE void superslabs_grow(struct superslab *superslab)
{
    static size_t at;
    if (!superslab->huge && superslabs_are_much(HUGE_EARLY) && superslab_collapse(superslab)) return;
    bool grown = superslab->arena == &arenas[0] && superslabs_are_much(HUGE_FIRST);
    size_t below = grown ? (superslab_address(superslab) - arenas[0].base) / SUPERSLAB_LARGE : 0, left = below;
    for (uint32_t looks = 0; looks < GROWTH_LOOKS; looks++) {
        uintptr_t region = 0;
        lock_take(&arena_lock);
        for (; left > 0 && region == 0 && PEEK(recycled_due) != SIZE_MAX; left--) {
            at = at + 1 < below ? at + 1 : 0;
            if (region_row(at)->units != 0) region = region_claim(at);
        }
        lock_drop(&arena_lock);
        if (region == 0 || region_move(region)) break;
    }
}
