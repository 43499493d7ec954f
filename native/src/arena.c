/* arena.c: ranges of addresses, cut into units, and the free spans in them.
 *
 * Owns the unit descriptors, the free spans, and one lock for all of them. Invariants under the lock:
 *   - the first descriptor of a span says what the span is; its other descriptors read "inside", like those of units
 *   never used; the last one knows the way back;
 *   - free neighbours of one kind (dirty: may hold pages; clean: reads zero) are one span;
 *   - a clean span, and everything beyond `born`, costs no memory.
 * Called by superslab.c and by the pools of runs, on slow paths only. */

/* Every free reads the first, so they are not on the lock's line. */
static _Alignas(CACHE_LINE) struct arena arenas[ARENAS_MAX] = {{.base = ARENA_NOWHERE}};
static _Atomic uint32_t arena_count;
static _Alignas(CACHE_LINE) struct lock arena_lock;

enum { CLEAN, DIRTY };
static struct span *free_bins[2][RUN_BINS];
static uint64_t free_bits[2]; /* bit b: bin b is not empty */
static struct span *dirty_oldest, *dirty_newest;
static _Atomic size_t dirty_units;                       /* in dirty free spans */
static _Atomic size_t refused_units;                     /* free ones whose pages the kernel refused when last asked */
static _Atomic size_t fetched_units;                     /* taken by this process since it began */
static size_t recycled_units;                            /* taken that had been in use before */
static size_t recycled_due = RECYCLED_MIN >> UNIT_SHIFT; /* value at which regions are looked at */

static ALWAYS_INLINE size_t map_index(uintptr_t address) { return (address >> UNIT_SHIFT) & MAP_MASK; }

static NOINLINE struct arena *arena_search(uintptr_t address)
{
    uint32_t count = atomic_load_explicit(&arena_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (address - arenas[i].base < PEEK(arenas[i].bytes)) return &arenas[i];
    return NULL;
}

/* The first arena holds nearly everything; before it exists its length is 0. */
static ALWAYS_INLINE struct arena *arena_of(uintptr_t address)
{
    return LIKELY(address - arenas[0].base < PEEK(arenas[0].bytes)) ? &arenas[0] : arena_search(address);
}

/* The span that an address of ours lies in; NULL where it is in none. */
static ALWAYS_INLINE struct span *span_of(uintptr_t address)
{
    struct arena *arena = arena_of(address);
    if (UNLIKELY(arena == NULL)) return NULL;
    size_t unit = (address - arena->base) >> UNIT_SHIFT;
    struct span *span = &arena->spans[unit];
    if (span->kind != SPAN_INSIDE && span->kind != SPAN_SLAB_INSIDE) return span;
    size_t back = span->back;
    if (back > unit || span[-(ptrdiff_t)back].kind == SPAN_INSIDE || back >= span[-(ptrdiff_t)back].units) return NULL;
    return span - back;
}

static size_t span_bytes(const struct span *span) { return (size_t)span->units << UNIT_SHIFT; }

/* --- free spans --------------------------------------------------------------------------------------------------- */

/* Writes only the first descriptor of a span and the last: to write all those of a giant would cost time and memory. */
static void span_shape(const struct arena *arena, struct span *span, enum span_kind kind, uint32_t units)
{
    span->address = arena->base + ((uintptr_t)(span - arena->spans) << UNIT_SHIFT);
    span->kind = (uint8_t)kind;
    span->units = units;
    if (units > 1) {
        span[units - 1].kind = SPAN_INSIDE;
        span[units - 1].back = units - 1;
    }
}

/* Lists a free span. A dirty one goes into the list by age, too: behind `older` or up to 16 places further. If that is
 * not far enough, it takes its neighbour's age, so the list stays sorted. */
static void free_link(struct span *span, struct span *older)
{
    int state = span->zeroed ? CLEAN : DIRTY;
    unsigned bin = run_bin_floor(span->units);
    MUST(span->kind == SPAN_FREE && span->units > 0, span->address);
    span->prev = NULL;
    span->next = free_bins[state][bin];
    if (span->next != NULL) span->next->prev = span;
    free_bins[state][bin] = span;
    free_bits[state] |= UINT64_C(1) << bin;
    if (state == CLEAN) return;
    atomic_fetch_add_explicit(&dirty_units, span->units, memory_order_relaxed);
    struct span *newer = older != NULL ? older->newer : dirty_oldest;
    for (int look = 16; look > 0 && newer != NULL && newer->freed_ns < span->freed_ns; look--)
        older = newer, newer = newer->newer;
    if (older != NULL && span->freed_ns < older->freed_ns) span->freed_ns = older->freed_ns;
    if (newer != NULL && span->freed_ns > newer->freed_ns) span->freed_ns = newer->freed_ns;
    span->older = older;
    span->newer = newer;
    *(older != NULL ? &older->newer : &dirty_oldest) = span;
    *(newer != NULL ? &newer->older : &dirty_newest) = span;
}

static void free_unlink(struct span *span)
{
    int state = span->zeroed ? CLEAN : DIRTY;
    unsigned bin = run_bin_floor(span->units);
    bool listed = span->prev == NULL ? free_bins[state][bin] == span : span->prev->next == span;
    if (UNLIKELY(span->kind != SPAN_FREE || !listed || (span->next != NULL && span->next->prev != span)))
        fatal("block freed twice, by two threads at a time,", span->address);
    if (span->next != NULL) span->next->prev = span->prev;
    if (span->prev != NULL) span->prev->next = span->next;
    else if ((free_bins[state][bin] = span->next) == NULL) free_bits[state] &= ~(UINT64_C(1) << bin);
    if (state == CLEAN) return;
    atomic_fetch_sub_explicit(&dirty_units, span->units, memory_order_relaxed);
    *(span->newer != NULL ? &span->newer->older : &dirty_newest) = span->older;
    *(span->older != NULL ? &span->older->newer : &dirty_oldest) = span->newer;
}

/* The place and age that a free span will have in the list by age, while it grows together with its neighbours. */
struct age {
    struct span *older; /* the span before it: the one before the longest of them */
    size_t longest;     /* units */
    uint64_t mean_ns;   /* over all units: what comes and goes beside an old span does not make it young */
};

/* Takes out a free neighbour, to become part of a span of `units` units. Only an older one changes the age. */
static void free_join(struct span *neighbour, uint32_t units, struct age *age)
{
    if (!neighbour->zeroed) {
        uint64_t share = ((uint64_t)neighbour->units << 16) / (units + neighbour->units);
        if (neighbour->freed_ns < age->mean_ns) {
            if (neighbour->units >= AGE_MOST * units) age->mean_ns = neighbour->freed_ns;
            else age->mean_ns -= ((age->mean_ns - neighbour->freed_ns) >> 16) * share;
        }
        if (neighbour->units > age->longest || age->older == neighbour) age->older = neighbour->older;
        age->longest = size_max(age->longest, neighbour->units);
    }
    free_unlink(neighbour);
}

/* Makes the span free as of `now` and joins it with free neighbours of its kind. `older`: the span in the list by age
 * behind which one of that age belongs. Result: what it is a part of now. */
static struct span *free_insert(struct arena *arena, struct span *span, uint32_t units, bool zeroed, uint64_t now,
                                struct span *older)
{
    size_t at = (size_t)(span - arena->spans);
    MUST(at + units <= arena->born, span->address);
    struct age age = {older, units, now};
    struct span *after = span + units;
    if (at + units < arena->born && after->kind == SPAN_FREE && after->zeroed == zeroed) {
        free_join(after, units, &age);
        units += after->units;
        after->kind = SPAN_INSIDE;
        after->back = UINT32_MAX;
    }
    if (at > 0) {
        struct span *before = span - 1;
        if (before->kind == SPAN_INSIDE && before->back <= at - 1) before -= before->back;
        if (before->kind == SPAN_FREE && before->zeroed == zeroed && before + before->units == span) {
            free_join(before, units, &age);
            units += before->units;
            span->kind = SPAN_INSIDE;
            span->back = UINT32_MAX;
            span = before;
        }
    }
    span_shape(arena, span, SPAN_FREE, units);
    span->zeroed = zeroed;
    span->freed_ns = age.mean_ns & ~UINT64_C(1);
    free_link(span, age.older);
    return span;
}

/* So many free units are used again. Those that the kernel refused may be among them, so as many fewer count as
 * refused: when they are free again, it is asked anew. */
static void refused_reuse(size_t units)
{
    size_t refused = atomic_load_explicit(&refused_units, memory_order_relaxed);
    while (UNLIKELY(refused != 0) &&
           !atomic_compare_exchange_weak(&refused_units, &refused, refused - size_min(refused, units))) {
    }
}

/* --- arenas ------------------------------------------------------------------------------------------------------- */

/* Would such an arena share map entries with another one? Then the two cannot live together. */
static bool arena_collides(uintptr_t base, size_t bytes)
{
    for (uint32_t i = 0; i < atomic_load_explicit(&arena_count, memory_order_relaxed); i++) {
        uintptr_t apart = (base - arenas[i].base) & (WINDOW_BYTES - 1);
        if (apart < size_max(arenas[i].range, arenas[i].bytes) || WINDOW_BYTES - apart < bytes) return true;
    }
    return false;
}

/* Address space for an arena; NULL where there is none that can live with the others. A range that collides stays
 * reserved until the search is over, so that the kernel answers with another one. */
static void *arena_reserve(size_t bytes)
{
    void *refused[8];
    int n = 0;
    void *base = os_reserve(bytes, SUPERSLAB_LARGE);
    while (base != NULL && arena_collides((uintptr_t)base, bytes)) {
        refused[n++] = base;
        base = n < COUNT(refused) ? os_reserve(bytes, SUPERSLAB_LARGE) : NULL;
    }
    while (n > 0) os_unmap(refused[--n], bytes);
    return base;
}

static size_t spans_bytes(size_t bytes) { return align_up((bytes >> UNIT_SHIFT) * sizeof(struct span), os_page); }
static size_t superslabs_bytes(size_t bytes)
{
    return align_up(bytes / SUPERSLAB_SMALL * sizeof(struct superslab), os_page);
}

/* The tables of an arena: its spans, and behind them its superslabs. */
static void arena_place_tables(struct arena *arena, uintptr_t place)
{
    arena->spans = (struct span *)place;
    arena->superslabs = (struct superslab *)(place + spans_bytes(arena->range));
}

/* Extends the tables of an arena that grow with it, to describe `goal` bytes from its base. False, and nothing is done,
 * where memory is refused. */
static bool arena_describe(struct arena *arena, size_t goal)
{
    size_t had = spans_bytes(arena->bytes), more = spans_bytes(goal) - had;
    size_t rows = superslabs_bytes(arena->bytes), more_rows = superslabs_bytes(goal) - rows;
    if (more != 0 && !os_map_at((char *)arena->spans + had, more)) return false;
    if (more_rows != 0 && !os_map_at((char *)arena->superslabs + rows, more_rows)) {
        if (more != 0) os_unmap((char *)arena->spans + had, more);
        return false;
    }
    POKE(arena->bytes, goal);
    return true;
}

static void arena_unmap_tables(const struct arena *arena)
{
    if (arena->bytes == 0) return;
    os_unmap(arena->spans, spans_bytes(arena->bytes));
    os_unmap(arena->superslabs, superslabs_bytes(arena->bytes));
}

static bool arena_filled; /* memory is resident as soon as it is mapped: no more is mapped than is needed */

/* Makes the arena writable up to `goal` bytes from its base; false where the kernel refuses. */
static bool arena_map(struct arena *arena, size_t goal)
{
    void *from = (void *)(arena->base + arena->writable);
    size_t bytes = goal - arena->writable;
    if (goal > arena->bytes && !arena_describe(arena, size_min(align_up(goal, TABLES_STEP), arena->range)))
        return false;
    if (!(arena->reserved ? os_commit(from, bytes) : os_map_at(from, bytes))) return false;
    POKE(arena_filled, os_is_filled((void *)(arena->base + goal - os_page)));
    numa_place(from, bytes);
    POKE(arena->writable, goal);
    return true;
}

/* Makes the arena writable up to a unit, in steps: they take few calls, and charge little in advance. False where the
 * kernel refuses. */
static bool arena_reach(struct arena *arena, size_t units)
{
    size_t need = units << UNIT_SHIFT;
    if (need <= arena->writable) return true;
    int saved = errno;
    errno = 0; /* os_map_at tells why it fails, os_commit does not */
    size_t step = size_min(arena_filled ? UNIT_BYTES : FRONTIER_STEP, size_max(arena->range / 16, ARENA_BYTES_MIN));
    bool there = arena_map(arena, size_min(align_up(need, step), arena->range)) || arena_map(arena, need);
    if (!there && errno == EEXIST) { /* somebody else's mapping: the arena ends here, and later calls need not ask */
        arena->units = (uint32_t)units - 1;
        arena->range = align_up(need, SUPERSLAB_LARGE);
    }
    errno = saved;
    return there;
}

/* An address where nobody has anything for so many bytes: `place`, or one of seven below it; 0 where there is none.
 * `units`: they must not collide with an arena either. */
static uintptr_t place_find(uintptr_t place, size_t bytes, bool units)
{
    for (int looks = 8; looks > 0; looks--, place -= bytes) /* another copy of this library may be there */
        if (!(units && arena_collides(place, bytes)) && os_is_bare((void *)place, bytes)) return place;
    return 0;
}

/* Begins an arena that maps its range as it needs it: reserved space would count against a limit that the program sets
 * later, and leave it nothing. So the first arena begins far below where the kernel maps what others ask for, its
 * tables half as far, and each further one below the one before. The distance follows from where the kernel maps, so
 * the places are as hard to guess. False where there is no room for `bytes`. */
static bool arena_begin(struct arena *arena, size_t bytes)
{
    uint32_t count = atomic_load_explicit(&arena_count, memory_order_relaxed);
    const struct arena *above = count != 0 && !arenas[count - 1].reserved ? &arenas[count - 1] : NULL;
    uintptr_t near = os_next_place(), far = near / ARENA_FAR;
    if (far < WINDOW_BYTES) return false;
    struct arena begun = *arena;
    size_t tables = align_up(spans_bytes(begun.range) + superslabs_bytes(begun.range), SUPERSLAB_LARGE);
    uintptr_t base = above != NULL ? above->base - begun.range : align_down(near - far, SUPERSLAB_LARGE),
              place = above != NULL ? (uintptr_t)above->spans - tables : align_down(near - far / 2, SUPERSLAB_LARGE);
    begun.base = place_find(base, begun.range, true);
    place = place_find(place, tables, false);
    if (begun.base == 0 || place == 0) return false;
    arena_place_tables(&begun, place);
    if (arena_reach(&begun, bytes >> UNIT_SHIFT)) {
        *arena = begun;
        return true;
    }
    arena_unmap_tables(&begun);
    return false;
}

/* Makes an arena with this range, of which `bytes` are needed first. The range is reserved only where the arena cannot
 * begin without. False where address space, or memory for its tables, is refused. */
static bool arena_make(struct arena *arena, size_t range, size_t bytes)
{
    *arena = (struct arena){.range = range, .units = (uint32_t)(range >> UNIT_SHIFT)};
    if (arena_begin(arena, bytes)) return true;
    void *tables = os_map(spans_bytes(range) + superslabs_bytes(range));
    if (tables == NULL) return false;
    arena_place_tables(arena, (uintptr_t)tables);
    arena->bytes = range;
    arena->reserved = true;
    arena->base = (uintptr_t)arena_reserve(range);
    if (arena->base == 0) arena_unmap_tables(arena);
    return arena->base != 0;
}

/* Adds an arena of at least `bytes`, half as long after each refusal; false where none can be had. */
static bool arena_add(size_t bytes)
{
    uint32_t count = atomic_load_explicit(&arena_count, memory_order_relaxed);
    size_t limit = os_address_space();
    size_t wish = limit == SIZE_MAX ? ARENA_BYTES : align_down(size_min(ARENA_BYTES, limit / 4), SUPERSLAB_LARGE);
    size_t least = size_max(align_up(bytes, SUPERSLAB_LARGE), ARENA_BYTES_MIN);
    if (count == ARENAS_MAX || least > WINDOW_BYTES) return false;
    struct arena arena;
    bool made = arena_make(&arena, wish = size_max(wish, least), bytes);
    while (!made && wish > least)
        made = arena_make(&arena, wish = align_down(size_max(wish / 2, least), SUPERSLAB_LARGE), bytes);
    if (!made) return false;
    arenas[count] = arena;
    atomic_store_explicit(&arena_count, count + 1, memory_order_release);
    return true;
}

/* Undoes the latest arena_add: nothing of that arena was ever handed out. */
static void arena_drop(void)
{
    uint32_t count = atomic_load_explicit(&arena_count, memory_order_relaxed) - 1;
    struct arena dropped = arenas[count];
    atomic_store_explicit(&arena_count, count, memory_order_release);
    arenas[count] = (struct arena){.base = ARENA_NOWHERE};
    os_unmap((void *)dropped.base, dropped.reserved ? dropped.range : dropped.writable);
    arena_unmap_tables(&dropped);
}

/* The first unit from `at` on whose address is a multiple of `alignment` units. */
static size_t unit_aligned(const struct arena *arena, size_t at, size_t alignment)
{
    size_t base = arena->base >> UNIT_SHIFT;
    return align_up(base + at, alignment) - base;
}

/* The free span that ends at the frontier; NULL where there is none. */
static struct span *frontier_span(const struct arena *arena)
{
    if (arena->born == 0) return NULL;
    struct span *last = &arena->spans[arena->born - 1];
    if (last->kind == SPAN_INSIDE && last->back < arena->born) last -= last->back;
    bool ends = last + last->units == &arena->spans[arena->born];
    return last->kind == SPAN_FREE && ends ? last : NULL;
}

/* Unmaps what is clean and free at the end of each arena or, if `all`, what is free there. Under a limit on address
 * space that leaves room for another arena, for what is longer than any, and for what others map, such as the stacks of
 * threads. Arenas keep their tables, and grow anew. */
static COLD void arenas_trim(bool all)
{
    lock_take(&arena_lock);
    for (uint32_t i = 0; i < atomic_load_explicit(&arena_count, memory_order_relaxed); i++) {
        struct arena *arena = &arenas[i];
        if (arena->reserved) continue;
        for (struct span *last; (last = frontier_span(arena)) != NULL && (all || last->zeroed);) {
            free_unlink(last);
            if (!last->zeroed) refused_reuse(last->units);
            arena->born = (uint32_t)(last - arena->spans);
            *last = (struct span){.back = UINT32_MAX};
        }
        size_t used = (size_t)arena->born << UNIT_SHIFT;
        if (arena->writable <= used) continue;
        os_unmap((void *)(arena->base + used), arena->writable - used);
        POKE(arena->writable, used);
    }
    lock_drop(&arena_lock);
}

/* The first aligned unit from `from` on where a span can begin, writable up to the span's end; SIZE_MAX where the arena
 * has no room for it. */
static size_t arena_room(struct arena *arena, size_t from, uint32_t units, uint32_t alignment)
{
    size_t start = unit_aligned(arena, from, alignment);
    return start + units <= arena->units && arena_reach(arena, start + units) ? start : SIZE_MAX;
}

/* A span from beyond the frontier; the gap that alignment leaves becomes a clean free span. Where there is no room, the
 * span begins in the clean free one that ends at the frontier. NULL where that does not help. */
static struct span *arena_advance(struct arena *arena, uint32_t units, uint32_t alignment)
{
    size_t start = arena_room(arena, arena->born, units, alignment);
    if (start == SIZE_MAX) {
        struct span *last = frontier_span(arena);
        if (last == NULL || !last->zeroed) return NULL;
        start = arena_room(arena, (size_t)(last - arena->spans), units, alignment);
        if (start == SIZE_MAX) return NULL;
        free_unlink(last);
        arena->born = (uint32_t)(last - arena->spans);
    }
    size_t gap = start - arena->born;
    struct span *hole = &arena->spans[arena->born];
    arena->born = (uint32_t)(start + units);
    if (gap != 0) free_insert(arena, hole, (uint32_t)gap, true, 0, NULL);
    struct span *span = &arena->spans[start];
    span_shape(arena, span, SPAN_RUN, units);
    span->life = RUN_FREE; /* until the caller says otherwise: an observer sees a run that nobody has */
    span->zeroed = 1;
    return span;
}

/* Is there room in a free span for an aligned piece? */
static bool span_serves(const struct span *span, uint32_t units, uint32_t alignment)
{
    const struct arena *arena = arena_of(span->address);
    size_t at = (size_t)(span - arena->spans);
    return unit_aligned(arena, at, alignment) + units <= at + span->units;
}

/* Cuts an aligned piece out of a free span that has room for it; what is left on either side keeps its age. */
static struct span *span_cut(struct span *span, uint32_t units, uint32_t alignment)
{
    struct arena *arena = arena_of(span->address);
    size_t at = (size_t)(span - arena->spans), start = unit_aligned(arena, at, alignment);
    bool zeroed = span->zeroed;
    uint32_t before = (uint32_t)(start - at), after = span->units - before - units;
    uint64_t since = span->freed_ns;
    struct span *older = span->older;
    free_unlink(span);
    struct span *piece = span + before;
    span_shape(arena, piece, SPAN_RUN, units); /* first, so that what is left does not grow together across it */
    piece->life = RUN_FREE;
    piece->zeroed = zeroed;
    if (after != 0) free_insert(arena, piece + units, after, zeroed, since, older);
    if (before != 0) free_insert(arena, span, before, zeroed, since, older);
    return piece;
}

static bool span_is_better(const struct span *span, const struct span *than)
{
    return span->units != than->units ? span->units < than->units : span->address < than->address;
}

/* Good fit: the lowest bin that can serve and, of the first few spans in it, the shortest; of equal ones the lowest, so
 * that those higher up are left to grow together. In the last bin, whose lengths differ most, all spans are looked at.
 * `than`: units of a span that would serve already; then only a few are looked at, and no bin above that span's. NULL
 * where none serves. */
static struct span *span_best(int state, uint32_t units, uint32_t alignment, uint32_t than)
{
    uint64_t bits = free_bits[state] & (~UINT64_C(0) << run_bin_floor(units));
    if (than != 0) bits &= UINT64_MAX >> (RUN_BINS - 1 - run_bin_floor(than));
    for (; bits != 0; bits &= bits - 1) {
        unsigned bin = lowest_bit(bits);
        uint32_t look = alignment > 1 ? 64 : 8; /* most do not serve */
        if (bin == RUN_BINS - 1 && than == 0) look = UINT32_MAX;
        struct span *best = NULL;
        for (struct span *span = free_bins[state][bin]; span != NULL && look-- > 0; span = span->next)
            if (span_serves(span, units, alignment) && (best == NULL || span_is_better(span, best))) best = span;
        if (best != NULL) return best;
    }
    return NULL;
}

/* A piece of the best free span; NULL where none serves. What a giant left, and will soon have again, is not broken up
 * for a small piece if a shorter clean span serves: else the giant would find no room each time it comes back, and go
 * on to memory that nobody has touched. */
static struct span *span_find(int state, uint32_t units, uint32_t alignment)
{
    struct span *best = span_best(state, units, alignment, 0);
    if (best == NULL) return NULL;
    uint32_t small = alignment > 1 ? SUPERSLAB_UNITS_MAX : LARGE_MIN / UNIT_BYTES;
    if (UNLIKELY(state == DIRTY && best->units >= GIANT_UNITS && units <= small)) {
        struct span *clean = span_best(CLEAN, units, alignment, best->units);
        if (clean != NULL && clean->units < best->units) best = clean;
    }
    return span_cut(best, units, alignment);
}

/* Pages went back between these addresses, which are in a clean free span. Asks for no huge pages any more in the 2 MiB
 * regions where they were, or the kernel would fill a region again for one small block that stayed. Only in whole
 * regions: the kernel keeps an account of each stretch that differs from its neighbours, and not of many. And what huge
 * pages held beyond both ends, in what was clean before, goes too: nobody would ask for it later. Under arena_lock. */
static void regions_retire(const struct arena *arena, const struct span *clean, uintptr_t begin, uintptr_t end)
{
    uintptr_t first = align_down(begin, SUPERSLAB_LARGE), last = align_up(end, SUPERSLAB_LARGE);
    uintptr_t before = size_max(first, clean->address), behind = size_min(last, clean->address + span_bytes(clean));
    if (!knob(KNOB_huge_pages)) return;
    os_huge((void *)first, size_min(last, arena->base + arena->writable) - first, false);
    if (before < begin && os_is_resident((void *)(begin - os_page))) os_purge((void *)before, begin - before);
    if (end < behind && os_is_resident((void *)end)) os_purge((void *)end, behind - end);
}

/* Gives a span back; its first `touched` units may hold pages, the rest reads zero. The caller holds arena_lock. */
static void arena_give(struct span *span, uint32_t touched, uint64_t now)
{
    struct arena *arena = arena_of(span->address);
    uint32_t units = span->units;
    MUST(span->kind == SPAN_RUN && touched <= units, span->address);
    if (touched < units) {
        span_shape(arena, span, SPAN_RUN, touched != 0 ? touched : units);
        struct span *rest = span + touched;
        span_shape(arena, rest, SPAN_RUN, units - touched);
        uintptr_t begin = rest->address, end = begin + span_bytes(rest);
        regions_retire(arena, free_insert(arena, rest, units - touched, true, now, NULL), begin, end);
    }
    if (touched != 0) free_insert(arena, span, touched, false, now, dirty_newest);
}

/* Accounts for a span that leaves the arena; its first `units` were in use before, if they do not read zero. */
static struct span *arena_taken(struct span *span, uint32_t units)
{
    MUST(span->kind == SPAN_RUN && span->units >= units, span->address);
    span->touched = span->zeroed ? 0 : units;
    if (!span->zeroed) {
        POKE(recycled_units, recycled_units + units);
        refused_reuse(units);
    }
    atomic_fetch_add_explicit(&fetched_units, units, memory_order_relaxed);
    return span;
}

/* Lengthens a span in place by what is clean and free behind it, or beyond the frontier; false where that is too
 * little. The caller holds arena_lock. */
static bool arena_extend(struct span *span, uint32_t units)
{
    struct arena *arena = arena_of(span->address);
    size_t at = (size_t)(span - arena->spans);
    struct span *after = span + span->units;
    uint32_t more = units - span->units;
    if (at + span->units == arena->born) {
        if (arena_advance(arena, more, 1) == NULL) return false;
    } else {
        if (after->kind != SPAN_FREE || !after->zeroed || after->units < more) return false;
        span_cut(after, more, 1);
    }
    atomic_fetch_add_explicit(&fetched_units, more, memory_order_relaxed);
    after->kind = SPAN_INSIDE;
    span_shape(arena, span, SPAN_RUN, units);
    return true;
}

/* A dirty free span that is too short, lengthened by what is clean behind it: fewer pages become resident than where
 * all of it is clean. The longest one counts, of the first few of each bin; NULL where none is half as long. */
static struct span *span_lengthen(uint32_t units)
{
    struct span *best = NULL;
    uint64_t bits = free_bits[DIRTY] & (~UINT64_C(0) << run_bin_floor(units / 2));
    for (; bits != 0; bits &= bits - 1) {
        int look = 8;
        for (struct span *span = free_bins[DIRTY][lowest_bit(bits)]; span != NULL && look-- > 0; span = span->next) {
            const struct span *after = span + span->units;
            const struct arena *arena = arena_of(span->address);
            bool grows = (size_t)(after - arena->spans) == arena->born ||
                         (after->kind == SPAN_FREE && after->zeroed && span->units + after->units >= units);
            if (grows && span->units < units && (best == NULL || span->units > best->units)) best = span;
        }
    }
    if (best == NULL || best->units < units / 2) return NULL;
    struct arena *arena = arena_of(best->address);
    struct span *older = best->older;
    uint64_t since = best->freed_ns;
    uint32_t held = best->units;
    free_unlink(best);
    span_shape(arena, best, SPAN_RUN, held);
    best->life = RUN_FREE;
    if (arena_extend(best, units)) return arena_taken(best, held);
    free_insert(arena, best, held, false, since, older); /* what could not serve is as old as before */
    return NULL;
}

/* Takes `units` that hold pages already, those of a giant at least in part; NULL where there are none. The caller holds
 * arena_lock. */
static struct span *arena_take_warm(uint32_t units)
{
    struct span *span = span_find(DIRTY, units, 1);
    if (span != NULL) return arena_taken(span, units);
    return units >= GIANT_UNITS ? span_lengthen(units) : NULL;
}

/* Takes `units` aligned to `alignment` units; warm memory first, then clean, then new. The caller holds arena_lock. A
 * program that lives at its limit is refused often, and to try an arena of each length takes fifty calls of the kernel:
 * so it is first asked for the bytes alone. */
static struct span *arena_take(uint32_t units, uint32_t alignment)
{
    struct span *span = span_find(DIRTY, units, alignment);
    if (span == NULL) span = span_find(CLEAN, units, alignment);
    uint32_t count = atomic_load_explicit(&arena_count, memory_order_relaxed);
    for (uint32_t i = 0; span == NULL && i < count; i++) span = arena_advance(&arenas[i], units, alignment);
    bool room = span == NULL && (count == 0 || os_would_map((size_t)units << UNIT_SHIFT));
    if (room && arena_add(((size_t)units + alignment) << UNIT_SHIFT)) {
        span = arena_advance(&arenas[atomic_load_explicit(&arena_count, memory_order_relaxed) - 1], units, alignment);
        if (span == NULL) arena_drop();
    }
    return span != NULL ? arena_taken(span, units) : NULL;
}

/* Shortens a span in place; the rest becomes free. `zeroed`: the rest reads zero. The caller holds arena_lock. */
static void arena_split(struct span *span, uint32_t units, bool zeroed, uint64_t now)
{
    const struct arena *arena = arena_of(span->address);
    uint32_t more = span->units - units;
    struct span *rest = span + units;
    span_shape(arena, span, SPAN_RUN, units);
    span_shape(arena, rest, SPAN_RUN, more);
    rest->life = RUN_FREE;
    if (PEEK(span->touched) > units) POKE(span->touched, units);
    arena_give(rest, zeroed ? 0 : more, now);
}
