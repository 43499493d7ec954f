/* superslab.c: regions of 1 or 2 MiB from which slabs are taken.
 *
 * A superslab is aligned to its size, so that a huge page can back it. Free units remember whether they may hold pages.
 * A superslab that is entirely free goes back to the arena. Everything is under arena_lock. */

static struct superslab *superslabs_free; /* those with a free unit; read without the lock as a hint */
static struct superslab *superslabs_last; /* the last of them; those whose pages the kernel refused come last */
static _Atomic size_t superslab_bytes;    /* in all superslabs */
static _Atomic size_t slab_dirty_units;   /* free units that may hold pages */
static _Atomic size_t slab_units_taken;   /* so far, by slabs ... */
static _Atomic size_t slab_units_cold;    /* ... and of these without pages */
static _Atomic size_t carved_bytes; /* of the blocks that slabs have handed out at least once, a page each at most */

/* The superslab in which a unit lies. */
static struct superslab *superslab_of(const struct span *unit)
{
    const struct arena *arena = arena_of(unit->address);
    size_t region = (unit->address - arena->base) / SUPERSLAB_SMALL;
    struct superslab *superslab = &arena->superslabs[region];
    return superslab->units != 0 ? superslab : &arena->superslabs[region & ~(size_t)1];
}

static uintptr_t superslab_address(const struct superslab *superslab)
{
    return superslab->arena->base + ((uintptr_t)superslab->first << UNIT_SHIFT);
}

static unit_mask mask_of(uint32_t first, uint32_t units)
{
    return (units == UNIT_MASK_BITS ? ~(unit_mask)0 : ((unit_mask)1 << units) - 1) << first;
}

static uint64_t mask_upper(unit_mask mask) { return (uint64_t)(mask >> 32 >> 32); } /* 0 where it has 64 bits */

static uint32_t mask_units(unit_mask mask)
{
    return (uint32_t)(__builtin_popcountll((uint64_t)mask) + __builtin_popcountll(mask_upper(mask)));
}

/* mask != 0 */
static unsigned mask_lowest(unit_mask mask)
{
    return (uint64_t)mask != 0 ? lowest_bit((uint64_t)mask) : 64 + lowest_bit(mask_upper(mask));
}

static void superslab_check(const struct superslab *superslab)
{
    MUST(mask_units(superslab->free_mask) == superslab->free_units, superslab);
    MUST((superslab->dirty_mask & ~superslab->free_mask) == 0, superslab);
}

static void superslab_list(struct superslab *superslab)
{
    superslab->listed = true;
    superslab->prev = NULL;
    superslab->next = superslabs_free;
    if (superslab->next != NULL) superslab->next->prev = superslab;
    else superslabs_last = superslab;
    POKE(superslabs_free, superslab);
}

static void superslab_unlist(struct superslab *superslab)
{
    superslab->listed = false;
    if (superslab->next != NULL) superslab->next->prev = superslab->prev;
    else superslabs_last = superslab->prev;
    if (superslab->prev != NULL) superslab->prev->next = superslab->next;
    else POKE(superslabs_free, superslab->next);
}

/* Moves the superslab to the end of the list. */
static void superslab_defer(struct superslab *superslab)
{
    if (superslabs_last == superslab) return;
    superslab_unlist(superslab);
    superslab->listed = true;
    superslab->next = NULL;
    superslab->prev = superslabs_last;
    superslab->prev->next = superslab;
    superslabs_last = superslab;
}

/* Forbids huge pages in a superslab from which pages go back, and allows them again once it is full: where it may, the
 * kernel fills a huge page however few of its pages are there. Under arena_lock, as what follows. */
static void superslab_sparse(struct superslab *superslab, bool sparse)
{
    if (!superslab->huge || superslab->sparse == sparse) return;
    superslab->sparse = sparse;
    if (sparse && superslab->free_units != superslab->units) { /* the kernel may have filled what is free, too */
        uint32_t filled = mask_units(superslab->free_mask & ~superslab->dirty_mask);
        superslab->dirty_mask |= superslab->free_mask;
        atomic_fetch_add_explicit(&slab_dirty_units, filled, memory_order_relaxed);
    }
    os_huge((void *)superslab_address(superslab), (size_t)superslab->units << UNIT_SHIFT, !sparse);
}

static void superslab_fill(struct superslab *superslab)
{
    if (superslab->free_units == 0 && superslab->bare_slabs == 0) superslab_sparse(superslab, false);
}

/* A slab has parts without pages from now on, or has none any more. */
static void superslab_bare(const struct span *slab, bool bare)
{
    struct superslab *superslab = superslab_of(slab);
    if (bare) {
        superslab->bare_slabs++;
        superslab_sparse(superslab, true);
    } else {
        superslab->bare_slabs--;
        superslab_fill(superslab);
    }
}

/* Do superslabs amount to 1 / `part` of the bytes at which new ones get huge pages? */
static bool superslabs_are_much(size_t part)
{
    size_t total = atomic_load_explicit(&superslab_bytes, memory_order_relaxed);
    return knob(KNOB_huge_pages) && part * total >= (size_t)knob(KNOB_huge_after_bytes);
}

/* Looks in a row that found a superslab filled, up to HUGE_LOOKS; how many got huge pages on the strength of that since
 * the last one; and what that one looked at, if it was not filled yet. For where slabs of many sizes fill at a time,
 * those last taken are hardly begun, and only the next look tells. */
static uint32_t looks_filled, looks_due;
static void *looks_early;

static size_t (*blocks_live)(void); /* bytes of blocks that callers have, a page each at most: heap.c's, set at start */

/* Does a new superslab get huge pages? Only in a heap of some size, half of which was touched: where many threads carve
 * a slab each of many classes, or blocks are longer than what the program uses of them, what is never touched would be
 * resident. In a small heap, where most of a superslab is much, only while the program frees hardly anything, and so
 * will fill this one, too. Where the blocks do not tell, those superslabs do that went without. */
static bool superslab_is_huge(size_t bytes, size_t total)
{
    if (bytes != SUPERSLAB_LARGE || !superslabs_are_much(HUGE_EARLY)) return false;
    size_t carved = atomic_load_explicit(&carved_bytes, memory_order_relaxed);
    if (!superslabs_are_much(1) && blocks_live() < carved - carved / HUGE_IDLE) return false;
    return 2 * carved >= total - bytes || (looks_due < looks_filled && ++looks_due != 0);
}

static uint32_t forks; /* that lie between the first process and this one */

/* May it be moved into a huge page? Not if it got some from the start, was moved or is by another thread, if pages of
 * it went back or are to, or if a child shares it with its parent, for it would be copied. Where the kernel failed to
 * move it, as where another thread was about to touch a page there, it may be tried once more. */
static bool superslab_fits(const struct superslab *superslab)
{
    bool own = superslab->units << UNIT_SHIFT == SUPERSLAB_LARGE && superslab->forks == forks;
    bool missed = !superslab->huge || superslab->failed;
    return own && missed && !superslab->moved && superslab->dirty_mask == 0 && superslab->bare_slabs == 0;
}

/* Result: the slab's superslab, if half of that is taken for the first time; else NULL. Under arena_lock. */
static struct superslab *superslab_halved(const struct span *slab)
{
    struct superslab *superslab = superslab_of(slab);
    if (LIKELY(superslab->halved) || superslab->free_units > superslab->units / 2) return NULL;
    superslab->halved = true;
    return superslab;
}

/* Looks at a superslab when half of it is taken. Once superslabs are much (HUGE_SOON), it is moved into a huge page, if
 * most of that half was touched: then hardly more than the other half is resident without need. The caller has a slab
 * in it, so it stays a superslab; but where others gave pages of it back meanwhile, nothing is done. Result: was it
 * moved? */
static bool superslab_collapse(struct superslab *superslab)
{
    void *region = (void *)superslab_address(superslab);
    bool filled = os_dense(region, SUPERSLAB_LARGE / 2, HUGE_HALF);
    lock_take(&arena_lock);
    bool late = looks_early != NULL && os_dense(looks_early, SUPERSLAB_LARGE / 2, HUGE_HALF);
    looks_filled = filled || late ? (uint32_t)size_min(looks_filled + 1, HUGE_LOOKS) : 0;
    looks_due = 0;
    looks_early = filled ? NULL : region;
    bool whole = filled && superslabs_are_much(HUGE_SOON) && superslab_fits(superslab);
    superslab->huge |= whole;
    if (whole) os_huge(region, SUPERSLAB_LARGE, true);
    lock_drop(&arena_lock);
    if (!whole || os_collapse(region, SUPERSLAB_LARGE)) return whole;
    lock_take(&arena_lock);
    superslab->failed = true;
    lock_drop(&arena_lock);
    return false;
}

static struct superslab *superslab_new(void)
{
    uint32_t units = (uint32_t)((size_t)knob(KNOB_superslab_bytes) / UNIT_BYTES);
    size_t bytes = (size_t)units << UNIT_SHIFT;
    struct span *span = arena_take(units, units);
    if (span == NULL) return NULL;
    struct arena *arena = arena_of(span->address);
    struct superslab *superslab = &arena->superslabs[(span->address - arena->base) / SUPERSLAB_SMALL];
    bool dirty = !span->zeroed;
    *superslab = (struct superslab){.first = (uint32_t)(span - arena->spans),
                                    .units = units,
                                    .free_units = units,
                                    .free_mask = mask_of(0, units),
                                    .dirty_mask = dirty ? mask_of(0, units) : 0,
                                    .moved = dirty && superslab->moved,
                                    .arena = arena,
                                    .forks = forks};
    if (dirty) atomic_fetch_add_explicit(&slab_dirty_units, units, memory_order_relaxed);
    for (uint32_t i = 0; i < units; i++) span_shape(arena, &span[i], SPAN_SUPERSLAB, 1);
    size_t total = atomic_fetch_add_explicit(&superslab_bytes, bytes, memory_order_relaxed) + bytes;
    superslab->huge = superslab_is_huge(bytes, total);
    if (superslab->huge) os_huge((void *)span->address, bytes, true);
    stat_shared(STAT_superslabs_taken, 1);
    superslab_list(superslab);
    return superslab;
}

static void superslab_return(struct superslab *superslab, uint64_t now)
{
    struct arena *arena = superslab->arena;
    struct span *span = &arena->spans[superslab->first];
    uint32_t units = superslab->units, dirty = mask_units(superslab->dirty_mask);
    superslab_unlist(superslab);
    superslab_sparse(superslab, true); /* whoever takes its space next has not asked for huge pages */
    for (uint32_t i = 0; i < units; i++) {
        span[i].kind = SPAN_INSIDE;
        span[i].back = UINT32_MAX;
    }
    span_shape(arena, span, SPAN_RUN, units);
    superslab->units = 0;
    atomic_fetch_sub_explicit(&slab_dirty_units, dirty, memory_order_relaxed);
    refused_reuse(dirty); /* from here on the arena counts what the kernel refuses of them */
    atomic_fetch_sub_explicit(&superslab_bytes, (size_t)units << UNIT_SHIFT, memory_order_relaxed);
    stat_shared(STAT_superslabs_returned, 1);
    arena_give(span, dirty != 0 ? units : 0, now);
}

/* First place in the mask where `units` free ones lie together, aligned to their number; UNIT_MASK_BITS where there is
 * none. */
static unsigned mask_find(unit_mask mask, uint32_t units)
{
    if (units == 1) return mask != 0 ? mask_lowest(mask) : UNIT_MASK_BITS;
    for (uint32_t at = 0; at + units <= UNIT_MASK_BITS; at += units)
        if ((mask & mask_of(at, units)) == mask_of(at, units)) return at;
    return UNIT_MASK_BITS;
}

/* A place for so many units, warm ones first; UNIT_MASK_BITS where there is none. */
static unsigned superslab_place(const struct superslab *superslab, uint32_t units)
{
    unsigned warm = mask_find(superslab->dirty_mask, units);
    return warm != UNIT_MASK_BITS ? warm : mask_find(superslab->free_mask, units);
}

/* The first superslab with room for so many units, and where in it; NULL where there is none. */
static struct superslab *superslab_first(uint32_t units, unsigned *at)
{
    struct superslab *superslab = superslabs_free;
    for (; superslab != NULL; superslab = superslab->next)
        if ((*at = superslab_place(superslab, units)) != UNIT_MASK_BITS) break;
    return superslab;
}

/* Takes units for a slab, at a place that superslab_first found, or in a new superslab. The caller holds arena_lock. */
static struct span *superslab_take(struct superslab *superslab, unsigned at, uint32_t units)
{
    if (superslab == NULL) {
        superslab = superslab_new();
        at = 0;
    }
    if (superslab == NULL) return NULL;
    unit_mask mask = mask_of(at, units);
    size_t warm = mask_units(superslab->dirty_mask & mask);
    atomic_fetch_sub_explicit(&slab_dirty_units, warm, memory_order_relaxed);
    refused_reuse(warm);
    atomic_fetch_add_explicit(&slab_units_taken, units, memory_order_relaxed);
    atomic_fetch_add_explicit(&slab_units_cold, units - warm, memory_order_relaxed);
    superslab->free_mask &= ~mask;
    superslab->dirty_mask &= ~mask;
    superslab->free_units -= units;
    superslab_check(superslab);
    if (superslab->free_units == 0) {
        superslab_unlist(superslab);
        superslab_fill(superslab);
    }
    struct span *span = &superslab->arena->spans[superslab->first + at];
    for (uint32_t i = 0; i < units; i++) {
        span[i].kind = i == 0 ? SPAN_SLAB : SPAN_SLAB_INSIDE;
        span[i].back = i;
    }
    span->units = units;
    stat_shared(STAT_slabs_taken, 1);
    return span;
}

/* Takes back a slab's units. The caller holds arena_lock. */
static void superslab_give(struct span *span, uint64_t now)
{
    struct superslab *superslab = superslab_of(span);
    const struct arena *arena = superslab->arena;
    uint32_t units = span->units;
    unit_mask mask = mask_of((uint32_t)(span - arena->spans) - superslab->first, units);
    MUST((superslab->free_mask & mask) == 0, span->address);
    for (uint32_t i = 0; i < units; i++) span_shape(arena, &span[i], SPAN_SUPERSLAB, 1);
    superslab->free_mask |= mask;
    superslab->dirty_mask |= mask;
    superslab->free_units += units;
    superslab->freed_ns = now;
    superslab_check(superslab);
    atomic_fetch_add_explicit(&slab_dirty_units, units, memory_order_relaxed);
    stat_shared(STAT_slabs_returned, 1);
    if (!superslab->listed) superslab_list(superslab);
    if (superslab->free_units == superslab->units) superslab_return(superslab, now);
}

/* The first row of dirty free units that is worth a call of its own, without `kept`, which the kernel refused in this
 * round. 0 where there is none, or a unit came back after `horizon`. */
static unit_mask superslab_purgeable(const struct superslab *superslab, uint64_t horizon, size_t shortest,
                                     unit_mask kept)
{
    unit_mask mask = superslab->freed_ns <= horizon ? superslab->dirty_mask & ~kept : 0;
    while (mask != 0) {
        unsigned at = mask_lowest(mask);
        unit_mask above = ~(mask >> at);
        unsigned length = above == 0 ? UNIT_MASK_BITS : mask_lowest(above);
        unit_mask row = mask_of(at, length);
        if ((size_t)length << UNIT_SHIFT >= shortest) return row;
        mask &= ~row;
    }
    return 0;
}

/* Gives back the pages of a row of units that is nobody's. One locked page is enough for a refusal, so after one the
 * halves are tried, if they are worth a call. Result: the units that the kernel refused. */
static unit_mask superslab_purge_row(const struct superslab *superslab, uint32_t at, uint32_t units, size_t shortest)
{
    uintptr_t begin = superslab_address(superslab) + ((size_t)at << UNIT_SHIFT);
    if (refusals_left > 0 && os_purge((void *)begin, (size_t)units << UNIT_SHIFT)) return 0;
    if (refusals_left > 0) refusals_left--;
    uint32_t half = units / 2;
    if (half == 0 || (size_t)half << UNIT_SHIFT < shortest || refusals_left == 0) return mask_of(at, units);
    return superslab_purge_row(superslab, at, half, shortest) |
           superslab_purge_row(superslab, at + half, units - half, shortest);
}

/* Gives back the pages of free units whose superslab has been quiet since `horizon`, until `most` bytes have gone. A
 * row is taken out of the free units while the kernel works, so that nobody gets it meanwhile. Superslabs of which the
 * kernel refused some go to the end of the list, and come last in the next round. Result: bytes. */
static size_t superslab_purge(uint64_t horizon, size_t most)
{
    size_t bytes = 0, shortest = (size_t)knob(KNOB_purge_range_bytes);
    unit_mask kept = 0;
    lock_take(&arena_lock);
    for (struct superslab *superslab = superslabs_free; superslab != NULL && bytes < most;) {
        unit_mask row = superslab_purgeable(superslab, horizon, shortest, kept);
        if (row == 0 || refusals_left == 0) { /* none left: memory is locked, and all else would be refused too */
            struct superslab *next = superslab->next;
            if (superslab->freed_ns <= horizon) { /* rows too short for a call wait as refused ones do */
                atomic_fetch_add_explicit(&refused_units, mask_units(superslab->dirty_mask & ~kept),
                                          memory_order_relaxed);
                superslab->freed_ns = horizon + 1; /* not again in this round */
            }
            if (kept != 0) superslab_defer(superslab);
            if (refusals_left == 0) break;
            kept = 0;
            superslab = next;
            continue;
        }
        uint32_t at = mask_lowest(row), units = mask_units(row);
        superslab->dirty_mask &= ~row;
        superslab->free_mask &= ~row;
        superslab->free_units -= units;
        superslab_sparse(superslab, true);
        atomic_fetch_sub_explicit(&slab_dirty_units, units, memory_order_relaxed);
        lock_drop(&arena_lock);
        unit_mask refused = superslab_purge_row(superslab, at, units, shortest);
        lock_take(&arena_lock);
        superslab_sparse(superslab, true); /* it is not full, though somebody may have taken all the rest */
        uint32_t stay = mask_units(refused);
        bytes += (size_t)(units - stay) << UNIT_SHIFT;
        kept |= refused;
        superslab->dirty_mask |= refused;
        atomic_fetch_add_explicit(&slab_dirty_units, stay, memory_order_relaxed);
        atomic_fetch_add_explicit(&refused_units, stay, memory_order_relaxed);
        superslab->free_mask |= row;
        superslab->free_units += units;
        if (!superslab->listed) superslab_list(superslab);
        if (superslab->free_units == superslab->units) superslab_return(superslab, superslab->freed_ns);
        if (!superslab->listed) {
            kept = 0;
            superslab = superslabs_free;
        }
    }
    lock_drop(&arena_lock);
    return bytes;
}
