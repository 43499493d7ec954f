/* large.c: blocks of 1 MiB and more, and blocks that grow.
 *
 * Large blocks are runs too. From the threshold on (a knob; twelve values are the arms of ACE's chooser), a freed block
 * goes back to the kernel at once. At the highest threshold, where such blocks come again soon, it goes back after the
 * purge delay instead. Below the threshold, it is kept like any run.
 *
 * A block that grows past its run is moved into a growth window: address space of 64 MiB of which only the used part
 * costs memory. From then on it grows in place. If it outgrows that, it moves once more, into a long window of 4 GiB. A
 * long window stays one, and the next block that gets it grows in it from the start; only as much of it as its blocks
 * have reached may be written to, in doublings. Shorter blocks get windows where they often grow (alloc.c).
 *
 * A freed window keeps its pages for the next block that grows, until they have been idle for the purge delay. A live
 * window keeps the pages behind its block in the same way. But what a giant left goes at once, unless giants come again
 * soon. */

static struct span *windows;           /* free ones, last freed first; under arena_lock */
static struct span *windows_live;      /* those with a caller; under arena_lock */
static _Atomic uint32_t windows_roomy; /* live ones that hold much more than their block */
static size_t windows_reserved;        /* bytes of address space in windows; under arena_lock */
static uint32_t windows_usual;         /* windows that are not long; written under arena_lock */

static ALWAYS_INLINE bool large_is_window(const struct span *run) { return PEEK(run->place) == RUN_WINDOW; }

static bool window_try(struct span *window)
{
    uint32_t live = run_mark(run_block(window));
    return __atomic_compare_exchange_n(&window->life, &live, RUN_HELD, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static struct lock trim_lock; /* held while live windows are trimmed; arena_lock comes after it */

/* Holds a live window, as whoever changes its size or pages must. A hold lasts for a few instructions, or for one
 * purge: then the owner waits for trim_lock, which goes with it. */
static void window_hold(struct span *window)
{
    while (!window_try(window)) {
        if (PEEK(window->life) == RUN_FREE) fatal("block freed twice", run_block(window));
        lock_take(&trim_lock);
        lock_drop(&trim_lock);
    }
}

static void window_release(struct span *window, uint32_t life)
{
    __atomic_store_n(&window->life, life, __ATOMIC_RELEASE);
}

static bool window_is_long(const struct span *window) { return window->units > GROWTH_UNITS; }

/* Units of a window that may be written to once its blocks have reached so many. */
static size_t window_open_units(size_t units)
{
    size_t open = GROWTH_UNITS;
    while (open < units) open *= 2;
    return open;
}

/* Makes so many units of a window writable; false where the kernel refuses. The caller holds the window, or it is in no
 * list. */
static bool window_open(const struct span *window, size_t units)
{
    size_t open = window_open_units(units);
    return open <= window_open_units(window->touched) || os_commit((void *)window->address, open << UNIT_SHIFT);
}

/* Units that a window holds beyond so many, if they are most of what it holds, or very many; else 0. */
static size_t window_spare(const struct span *window, size_t units)
{
    size_t spare = window->touched - size_min(window->touched, units);
    return spare > units || spare > WINDOW_SPARE ? spare : 0;
}

static void window_count(size_t had, size_t has)
{
    if (has != had) atomic_fetch_add_explicit(&window_units, has - had, memory_order_relaxed);
}

/* Has the window pages for several blocks of so many bytes? */
static bool window_is_roomy(const struct span *window, size_t size) { return run_touched_bytes(window) > 4 * size; }

/* What a live window holds beyond its block. */
struct room {
    size_t spare;
    bool roomy;
};
static const struct room no_room;

static ALWAYS_INLINE struct room window_room(const struct span *window)
{
    size_t size = PEEK(window->size);
    return (struct room){window_spare(window, run_units(size)), window_is_roomy(window, size)};
}

static void room_count(struct room had, struct room has)
{
    window_count(had.spare, has.spare);
    if (has.spare < had.spare) refused_reuse(had.spare - has.spare);
    uint32_t more = (uint32_t)has.roomy - had.roomy;
    if (more != 0) atomic_fetch_add_explicit(&windows_roomy, more, memory_order_relaxed);
}

/* A new window for so many units. NULL where windows have their share of the address space, a quarter (long ones: where
 * all have an eighth), or memory is resident as soon as it is mapped: then blocks that grow are copied. Under
 * arena_lock. */
static struct span *window_new(size_t units)
{
    bool is_long = units > GROWTH_UNITS;
    uint32_t length = is_long ? GROWTH_UNITS_MAX : GROWTH_UNITS;
    size_t bytes = windows_reserved + ((size_t)length << UNIT_SHIFT);
    if (bytes > WINDOW_BYTES / (is_long ? 8 : 4) || bytes > os_address_space() / 4 || arena_filled) return NULL;
    struct span *window = arena_take(length, SUPERSLAB_LARGE / UNIT_BYTES);
    if (window == NULL) return NULL;
    size_t open = (size_t)GROWTH_UNITS << UNIT_SHIFT;
    if (is_long && window->touched == 0) os_forbid((void *)(window->address + open), span_bytes(window) - open);
    window->start = window->wanted = 0;
    POKE(window->place, RUN_WINDOW);
    windows_reserved += span_bytes(window);
    POKE(windows_usual, windows_usual + !is_long);
    return window;
}

/* The block is about to grow from `had` units, which lie in this window or, `moved`, are copied here next. From
 * WINDOW_HUGE on, so that the rest of the last huge page is little beside it, it gets huge pages each time it doubles,
 * up to the next doubling, if it grows in steps and what it had is filled. The caller holds the window, or has just
 * taken it. */
static ALWAYS_INLINE void window_huge(const struct span *window, size_t had, size_t units, bool moved)
{
    size_t end = (size_t)2 << log2_floor(units), from = moved ? 0 : end / 2;
    if (units < WINDOW_HUGE / UNIT_BYTES || had < units / 4 || !knob(KNOB_huge_pages)) return;
    if (!moved && (had >= from || !os_dense((void *)window->address, had << UNIT_SHIFT, 12))) return;
    end = size_min(end, window->units);
    if (from < end) os_huge((void *)(window->address + (from << UNIT_SHIFT)), (end - from) << UNIT_SHIFT, true);
}

/* Gives back the window's pages from a unit on, up to the end of the last huge page, and withdraws the request for huge
 * pages there. The caller holds the window, or it is nobody's. Result: bytes of units that were touched, 0 where the
 * kernel refuses. */
static size_t window_purge(struct span *window, uint32_t from)
{
    uintptr_t begin = window->address + ((size_t)from << UNIT_SHIFT), end = window->address + run_touched_bytes(window);
    uintptr_t whole = align_up(end, SUPERSLAB_LARGE);
    if (begin == end || !os_purge((void *)begin, whole - begin)) return 0;
    if (whole - window->address >= WINDOW_HUGE)
        os_huge((void *)begin, window->address + span_bytes(window) - begin, false);
    POKE(window->touched, from);
    return end - begin;
}

static void window_want(struct span *window, size_t units)
{
    if (units > window->wanted) window->wanted = (uint32_t)units;
}

static void window_list(struct span *window)
{
    window_count(0, window->touched);
    window->next = windows;
    POKE(windows, window);
}

/* Takes the free window that was used last, of those that are long enough. Long windows are for blocks that need them;
 * others get one only while less than half of their share is reserved. `warm`: only one with pages. Each holds them
 * until a round of purging, so once there are as many roomy windows as threads can work at a time, one with far more
 * pages than the block is passed over; up to eight are looked at. NULL where there is none. Under arena_lock. */
static struct span *window_pick(size_t size, bool warm)
{
    bool any = !warm || atomic_load_explicit(&windows_roomy, memory_order_relaxed) < run_threads;
    size_t least = run_units(size), most = GROWTH_UNITS_MAX;
    if (least <= GROWTH_UNITS && windows_reserved > WINDOW_BYTES / 16) most = GROWTH_UNITS;
    int look = 8;
    for (struct span **at = &windows; *at != NULL && look > 0; at = &(*at)->next) {
        struct span *window = *at;
        if (window->units < least || window->units > most || (warm && window->touched == 0)) continue;
        look--;
        if (!any && window_is_roomy(window, size)) continue;
        POKE(*at, window->next);
        window_count(window->touched, 0);
        return window;
    }
    return NULL;
}

/* A window for a block of this size, a free one before a new one; `warm`: only a free one that has pages, and only if
 * there is nothing to wait for. NULL where there is none. */
static struct span *window_take(struct heap *heap, size_t size, bool warm)
{
    size_t units = run_units(size);
    if (size > SIZE_LIMIT || units > GROWTH_UNITS_MAX || !knob(KNOB_growth_windows)) return NULL;
    if (warm && PEEK(windows) == NULL) return NULL;
    if (units > GROWTH_UNITS) large_came();
    if (!lock_try(&arena_lock)) {
        if (warm) return NULL;
        lock_wait(&arena_lock);
    }
    struct span *window = window_pick(size, warm);
    if (window == NULL && !warm) window = window_new(units);
    if (window != NULL && !window_open(window, units)) {
        window_list(window);
        window = NULL;
    }
    bool cold = window != NULL && window->touched < units;
    if (window != NULL) {
        run_begin(window, size, units);
        room_count(no_room, window_room(window));
        window_want(window, units);
        window->prev = NULL;
        window->next = windows_live;
        if (window->next != NULL) window->next->prev = window;
        windows_live = window;
    }
    lock_drop(&arena_lock);
    if (cold && units > GROWTH_UNITS) giant_relieve();
    if (window != NULL) heap->run_held += run_touched_bytes(window);
    return window;
}

/* Frees a window that the caller holds; `goes`: without its pages. */
static void window_give(struct heap *heap, struct span *window, bool goes, uint64_t now)
{
    if (heap != NULL) {
        heap->run_held -= size_min(heap->run_held, run_touched_bytes(window));
        heap->grows_long = window->size > GROWN_SMALL;
    }
    struct room had = window_room(window);
    POKE(window->size, 0); /* no bytes are in use where no pages are: until the lock is had, observers may look */
    if (goes) window_purge(window, 0);
    lock_take(&arena_lock);
    room_count(had, no_room);
    if (window->next != NULL) window->next->prev = window->prev;
    *(window->prev != NULL ? &window->prev->next : &windows_live) = window->next;
    window->zeroed = 0;
    window_release(window, RUN_FREE);
    window->idle_ns = now;
    window_list(window);
    lock_drop(&arena_lock);
}

/* The block became shorter: the pages behind it go, if they are WINDOW_HUGE or more. */
static void window_fit(struct heap *heap, struct span *window)
{
    window_hold(window);
    struct room had = window_room(window);
    uint32_t units = (uint32_t)run_units(window->size);
    if (window->touched >= units + WINDOW_HUGE / UNIT_BYTES) {
        size_t gone = window_purge(window, units);
        heap->run_held -= size_min(heap->run_held, gone);
        room_count(had, window_room(window));
    }
    window_release(window, run_mark(run_block(window)));
}

/* Gives back the pages of live windows that no block has reached since the last round (`all`: that the present block
 * does not reach), where they are most of what the window holds, or very many. A vector that is emptied and grows again
 * keeps its pages. Result: bytes. */
static size_t windows_trim(bool all)
{
    size_t bytes = 0;
    lock_take(&trim_lock);
    lock_take(&arena_lock);
    for (struct span *window = windows_live; window != NULL; window = window->next) {
        if (!window_try(window)) continue;
        uint32_t units = (uint32_t)run_units(PEEK(window->size)), wanted = all ? units : window->wanted;
        struct room had = window_room(window);
        if (window_spare(window, wanted) != 0) {
            lock_drop(&arena_lock); /* nobody takes a window that is held out of the list */
            size_t gone = window_purge(window, wanted);
            lock_take(&arena_lock);
            if (gone == 0) atomic_fetch_add_explicit(&refused_units, had.spare, memory_order_relaxed);
            bytes += gone;
        }
        room_count(had, window_room(window));
        window->wanted = units;
        window_release(window, run_mark(run_block(window)));
        lock_drop(&trim_lock); /* its owner may wait for it, and takes no other under it: so here it may come second */
        lock_take(&trim_lock);
    }
    lock_drop(&arena_lock);
    lock_drop(&trim_lock);
    return bytes;
}

/* Gives free windows that are idle since `horizon` back to the arena, without their pages; long ones stay, and lose
 * only their pages. But one whose pages the kernel refuses goes to the arena with them, all of it writable again: there
 * they are asked for in parts, and what is refused counts. Result: bytes. */
static size_t windows_purge(uint64_t horizon)
{
    size_t bytes = 0;
    lock_take(&arena_lock);
    for (struct span **at = &windows; *at != NULL;) {
        struct span *window = *at;
        if (window->idle_ns > horizon || (window_is_long(window) && window->touched == 0)) {
            at = &window->next;
            continue;
        }
        POKE(*at, window->next);
        window_count(window->touched, 0);
        lock_drop(&arena_lock);
        bytes += window_purge(window, 0);
        bool is_long = window_is_long(window),
             stays = is_long && (window->touched == 0 || !window_open(window, window->units));
        lock_take(&arena_lock);
        if (stays) {
            window->idle_ns = horizon + 1; /* not again in this round */
            window_list(window);
        } else {
            windows_reserved -= span_bytes(window);
            POKE(windows_usual, windows_usual - !is_long);
            arena_give(window, window->touched, horizon);
        }
        at = &windows;
    }
    lock_drop(&arena_lock);
    return bytes;
}

/* In a child: windows are counted anew, and those that were held by threads that stayed behind are released. */
static void windows_child(void)
{
    atomic_store(&window_units, 0);
    atomic_store(&windows_roomy, 0);
    for (const struct span *window = windows; window != NULL; window = window->next) window_count(0, window->touched);
    for (struct span *window = windows_live; window != NULL; window = window->next) {
        POKE(window->life, run_mark(run_block(window))); /* who held it stayed behind */
        room_count(no_room, window_room(window));
    }
}

/* Frees a run that its thread does not keep; `goes`: its pages go back. */
static void large_free(struct heap *heap, struct span *run, bool goes, uint64_t now)
{
    size_t bytes = run_touched_bytes(run);
    if (goes && os_purge((void *)run->address, span_bytes(run))) {
        POKE(run->touched, 0);
        if (heap != NULL) heap->run_held -= size_min(heap->run_held, bytes);
    }
    mid_spill(heap, run, RUN_FREE, now);
}

/* A block became much shorter where it lies: the pages behind it go, and where it needs less than half of the run, the
 * address space, too. */
static void run_trim(struct heap *heap, struct span *run, size_t units)
{
    size_t had = run_touched_bytes(run), keeps = units << UNIT_SHIFT;
    bool much = had >= keeps + WINDOW_HUGE;
    bool gone = much && os_purge((void *)(run->address + keeps), span_bytes(run) - keeps);
    if (gone) POKE(run->touched, (uint32_t)units);
    if (units < run->units / 2) {
        atomic_fetch_sub_explicit(&run_units_out, run->units - units, memory_order_relaxed);
        lock_take(&arena_lock);
        arena_split(run, (uint32_t)units, gone, os_tick_ns());
        lock_drop(&arena_lock);
    }
    heap->run_held -= size_min(heap->run_held, had - size_min(had, run_touched_bytes(run)));
}

static void run_resize(struct heap *heap, struct span *run, size_t size, size_t units)
{
    if (PEEK(run->place) == RUN_PROBED) POKE(run->place, RUN_SETTLED); /* another part will be in the middle */
    if (run->touched < units) {
        heap->run_held += (units - run->touched) << UNIT_SHIFT;
        POKE(run->touched, (uint32_t)units); /* first, as observers read the size first */
    }
    POKE(run->size, size);
    run_sort(run);
}

/* Lets a live run that is not short serve another size, if nothing else has to change. Either it needs as many units as
 * before. Or it had up to RUN_SHORT and needs half of them, rounded down: then it keeps its old size. False where more
 * is to be done. A window is not held for this, as windows_trim goes by units, unless it is roomy: the new size may
 * change that, and so may a trim meanwhile. */
static ALWAYS_INLINE bool run_stays(struct heap *heap, struct span *run, size_t size)
{
    size_t had = run->size, units = run_units(size), had_units = run_units(had);
    if (size <= L2_MAX || size > SIZE_LIMIT || units > had_units || run->start + size > run_touched_bytes(run))
        return false;
    if (units < had_units) return had_units <= RUN_SHORT && units >= had_units / 2;
    bool window = large_is_window(run), roomy = window && window_is_roomy(run, size_min(size, had));
    if (UNLIKELY(roomy) && !window_try(run)) return false;
    bool same = !roomy || window_is_roomy(run, size) == window_is_roomy(run, had);
    if (LIKELY(same)) {
        if (window) heap->grows_long = true;
        stat_add(heap, STAT_growths, size > had);
        POKE(run->size, size);
    }
    if (roomy) window_release(run, run_mark(run_block(run)));
    return same;
}

/* Lets a live run serve another size where it lies; false where it cannot. */
static bool large_resize(struct heap *heap, struct span *run, size_t size)
{
    size_t units = (run->start + size + UNIT_BYTES - 1) >> UNIT_SHIFT;
    if (large_is_window(run)) {
        if (units > run->units) return false;
        if (units > GROWTH_UNITS && run->size <= (size_t)GROWTH_UNITS << UNIT_SHIFT) {
            large_came();
            if (PEEK(run->touched) < units) giant_relieve();
        }
        window_hold(run);
        if (!window_open(run, units)) {
            window_release(run, run_mark(run_block(run)));
            return false;
        }
        window_want(run, run_units(size)); /* as windows_trim counts them: maybe one more */
        window_huge(run, run->touched, units, false);
        struct room had = window_room(run);
        run_resize(heap, run, size, units);
        room_count(had, window_room(run));
        window_release(run, run_mark(run_block(run)));
        return true;
    }
    bool cuts = units >= run->units / 4 && run->units - units >= WINDOW_HUGE / UNIT_BYTES;
    if (units < run->units / 2 && !cuts) return false; /* moving it copies little, and leaves its place whole */
    if (units > run->units) {
        lock_take(&arena_lock);
        uint32_t had = run->units;
        bool extended = arena_extend(run, (uint32_t)units);
        lock_drop(&arena_lock);
        if (!extended) return false;
        atomic_fetch_add_explicit(&run_units_out, run->units - had, memory_order_relaxed);
    }
    run_resize(heap, run, size, units);
    run_trim(heap, run, units);
    return true;
}

/* Makes a giant block read zero without writing to it, which would make all of it resident: if less than half of it is,
 * its whole pages go back to the kernel. Result: bytes from its start on that read zero now; 0 where it must be written
 * to. */
static size_t giant_bare(uintptr_t block, size_t size)
{
    size_t pages = size - size % os_page; /* behind the size there may be a guard */
    bool bare = size >= LARGE_THRESHOLD_MAX && !os_dense((void *)block, pages, 8) && os_purge((void *)block, pages);
    return bare ? pages : 0;
}

/* Copies a giant block to a new place. Pages that read zero are not written where the new place reads zero, too: what
 * nobody has touched does not become resident by moving. */
static COLD void giant_copy(uintptr_t to, uintptr_t from, size_t size)
{
    size_t bare = giant_bare(to, size), step = bare != 0 ? os_page : size;
    for (size_t at = 0; at < size; at += step) {
        const char *page = (const char *)from + at;
        size_t bytes = size_min(step, size - at);
        bool holds = at + bytes > bare || page[0] != 0 || memcmp(page, page + 1, bytes - 1) != 0;
        if (holds) memcpy((char *)to + at, page, bytes);
    }
}

static ALWAYS_INLINE void block_copy(uintptr_t to, uintptr_t from, size_t size)
{
    if (LIKELY(size < LARGE_THRESHOLD_MAX)) memcpy((void *)to, (const void *)from, size);
    else giant_copy(to, from, size);
}
