/* alloc.c: the front door. malloc, free and realloc handle the hits here: those of the heap's magazines, and those of
 * the short runs that a thread has in hand. Everything else is one call away: there sizes are checked, heaps made and
 * the files above asked; a refusal becomes NULL and ENOMEM, damage becomes one fatal line. errno survives a free. */

static _Atomic bool started;

/* How calls are served; fixed at start. In all but the first no thread has a heap, so every call misses. */
static enum { MODE_CACHED, MODE_GUARDED, MODE_LIBC } mode;

extern void *__libc_malloc(size_t);
extern void __libc_free(void *);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

/* Runs once, before anything is handed out. */
static COLD void start(void)
{
    lock_take(&start_lock);
    bool begins = !atomic_load(&started);
    if (begins) {
        os_begin();
        run_threads = os_cores();
        uintptr_t table = align_up((uintptr_t)&owners, os_page), end = align_down((uintptr_t)(&owners + 1), os_page);
        os_huge((void *)table, end - table, false); /* 16 MiB of which little is touched */
        link_key = LINK_LEAST + (os_random() >> (64 - POINTER_BITS + 1));
        classes_init();
        ace_prepare();
        knobs_init(os_settings());
        mode = knob(KNOB_force_libc_alloc)                    ? MODE_LIBC
               : knob(KNOB_canaries) || knob(KNOB_quarantine) ? MODE_GUARDED
                                                              : MODE_CACHED;
        slabs_inspected = mode == MODE_GUARDED;
        heap_gone = helper_bereave;
        windows_relieve = windows_purge;
        blocks_live = heaps_live;
        fatal_leave = front_leave;
        knob_told = helper_poke;
        hand_opened = helper_hear;
        heaps_init();
        helper_prepare();
        atomic_store_explicit(&started, true, memory_order_release);
    }
    lock_drop(&start_lock);
    if (begins) fork_begin();
}

static NOINLINE struct heap *heap_make(void)
{
    if (UNLIKELY(!atomic_load_explicit(&started, memory_order_acquire))) start();
    return mode != MODE_CACHED || front.state == FRONT_EXITED || lock_passing ? NULL : heap_begin();
}

/* The calling thread's heap, made if need be. NULL where the thread's caches are gone (it ends, or dies), while it
 * forks without one (a new part's locks are not held), where nothing is cached in this mode, or where memory ends. */
static ALWAYS_INLINE struct heap *heap_here(void) { return LIKELY(front.heap != NULL) ? front.heap : heap_make(); }

/* Before a refusal: gives back all that this thread and the depots hold. The caller then tries once more. */
static COLD void scrape(struct heap *heap)
{
    uint64_t now = os_now_ns();
    if (heap != NULL) heap_flush(heap, now);
    give_all_back(now);
    arenas_trim(true);
}

static COLD void *refuse(void)
{
    errno = ENOMEM;
    return NULL;
}

/* --- allocation behind the hit ------------------------------------------------------------------------------------ */

static NOINLINE uintptr_t small_allocate(struct heap *heap, unsigned class)
{
    if (UNLIKELY(heap == NULL)) return orphan_allocate(class);
    for (int tries = 0; tries < 2; tries++) {
        uintptr_t block;
        if (bin_pop(&heap->bins.small[class], &block)) return block;
        if (class >= WIDE_CLASS && (block = wide_allocate_near(heap, class)) != 0) return block;
        if (magazine_refill(heap, class) && bin_pop(&heap->bins.small[class], &block)) return block;
        scrape(heap);
    }
    return orphan_allocate(class); /* there may be memory for a block, if not for a magazine's slots */
}

/* A run from the arena, at an alignment in units; NULL where memory ends. */
static struct span *run_fetch(struct heap *heap, size_t size, uint32_t alignment)
{
    if (size > SIZE_LIMIT) return NULL;
    size_t cached = heap != NULL ? PEEK(heap->kept.bytes) : 0;
    bool own = heap != NULL && alignment == 1;
    struct span *run = own ? mid_refill(heap, size) : orphan_run(size, alignment);
    if (run == NULL) {
        scrape(heap);
        run = own ? mid_refill(heap, size) : orphan_run(size, alignment);
    }
    if (heap != NULL && PEEK(heap->kept.bytes) < cached) helper_consider(); /* what it kept has gone to the arena */
    return run;
}

/* Is this call served by guard.c, or by libc's allocator? A thread that dies is served by libc: this heap is damaged,
 * that one is not. */
static ALWAYS_INLINE bool is_served_otherwise(void) { return mode != MODE_CACHED || is_dying(); }
static ALWAYS_INLINE bool is_served_by_libc(void) { return mode == MODE_LIBC || is_dying(); }

/* Is this block one of libc's allocator? In that mode all are; once a thread dies some may be. */
static ALWAYS_INLINE bool is_libcs(const void *p)
{
    return mode == MODE_LIBC || (is_some_dying() && span_of((uintptr_t)p) == NULL);
}

static COLD void *allocate_otherwise(size_t alignment, size_t size)
{
    if (is_served_by_libc()) return alignment > GRANULE ? __libc_memalign(alignment, size) : __libc_malloc(size);
    uintptr_t block = guard_allocate(alignment, size);
    if (block == 0 && size <= SIZE_LIMIT) {
        guard_empty();
        scrape(NULL);
        block = guard_allocate(alignment, size);
    }
    return block != 0 ? (void *)block : refuse();
}

/* Any size, for which neither the bins nor the short runs in hand had anything. */
static NOINLINE void *allocate_slow(size_t size)
{
    struct heap *heap = heap_here();
    if (UNLIKELY(heap == NULL && is_served_otherwise())) return allocate_otherwise(GRANULE, size);
    if (size <= L2_MAX) {
        uintptr_t block = small_allocate(heap, small_class(size_max(size, 1)));
        if (heap != NULL) heap_shed(heap);
        helper_offer();
        return block != 0 ? (void *)block : refuse();
    }
    struct span *run = run_fetch(heap, size, 1);
    helper_offer();
    return run != NULL ? (void *)run_block(run) : refuse();
}

/* Serves as the call site's rule says. NULL where it has none, or memory ends: then the size decides. */
static NOINLINE struct span *run_by_site(struct heap *heap, size_t size, uintptr_t site)
{
    bool watched;
    uint32_t rule = site_visit(site, &watched);
    if (rule == HAK_SITE_NONE && (size <= L2_MAX || !watched)) return NULL;
    struct span *run = rule == HAK_SITE_GROWTH  ? window_take(heap, size, false)
                       : rule == HAK_SITE_FRESH ? NULL
                                                : mid_allocate(heap, size);
    if (run != NULL && rule != HAK_SITE_GROWTH) run->zeroed = 0; /* the cache does not keep that true */
    if (run == NULL) run = run_fetch(heap, size, 1);
    helper_offer();
    if (run == NULL) return NULL;
    run->site = site_number(site);
    POKE(run->size, size);
    run_sort(run);
    stat_add(heap, STAT_site_routed, rule != HAK_SITE_NONE);
    return run;
}

/* A run, where no short one serves: one that the thread keeps, else one from the arena. */
static NOINLINE void *allocate_run(struct heap *heap, size_t size)
{
    struct span *run = size <= SIZE_LIMIT ? mid_allocate(heap, size) : NULL;
    return LIKELY(run != NULL) ? (void *)run_block(run) : allocate_slow(size);
}

/* A size for which its bin had nothing: another short run, else as above. */
static NOINLINE void *allocate_near(size_t size)
{
    struct heap *heap = front.heap;
    if (size <= L2_MAX || UNLIKELY(heap == NULL)) return allocate_slow(size);
    uintptr_t block = size <= RUN_SHORT_MAX ? short_take_more(heap, size) : 0;
    return LIKELY(block != 0) ? (void *)block : allocate_run(heap, size);
}

/* The hit for sizes above 1 KiB, and every call of a thread without a heap: a block or a run that the thread has in
 * hand. Everything else is a tail call, so that no register is saved. */
static ALWAYS_INLINE void *allocate_by_size(size_t size)
{
    if (UNLIKELY(size > RUN_SHORT_MAX)) return allocate_near(size);
    uintptr_t block;
    return LIKELY(bin_pop(bin_of_big(size), &block)) ? (void *)block : allocate_near(size);
}

static NOINLINE void *allocate_routed(struct heap *heap, size_t size, void *site)
{
    struct span *run = heap != NULL && size <= SIZE_LIMIT ? run_by_site(heap, size, (uintptr_t)site) : NULL;
    return run != NULL ? (void *)run_block(run) : allocate_by_size(size);
}

/* A tiny block whose bin is empty. The exact size is no longer known, but the bin's offset is the size of its class,
 * which is enough. */
static NOINLINE void *allocate_missed(const struct bin *bin)
{
    return allocate_slow((size_t)((const char *)bin - (const char *)front.bins));
}

static ALWAYS_INLINE void *allocate_big(size_t size)
{
    if (UNLIKELY(knob(KNOB_site_rules))) return allocate_routed(front.heap, size, __builtin_return_address(0));
    return allocate_by_size(size);
}

static ALWAYS_INLINE void *allocate(size_t size)
{
    if (UNLIKELY(size >= front.tiny_end)) return allocate_big(size);
    struct bin *bin = bin_of_size(size);
    uintptr_t block;
    return LIKELY(bin_pop(bin, &block)) ? (void *)block : allocate_missed(bin);
}

/* --- freeing behind the hit --------------------------------------------------------------------------------------- */

/* The span of the block that starts here; ends the program where none does. A run's block is live, if it is not in
 * another thread's hand; a slab's was carved. */
static ALWAYS_INLINE struct span *span_of_block(void *p, const char *crime)
{
    uintptr_t block = (uintptr_t)p;
    struct span *span = span_of(block);
    bool good = span != NULL &&
                (span->kind == SPAN_SLAB ? slab_has(span, block)
                                         : span->kind == SPAN_RUN && run_is_out(span) && run_block(span) == block);
    if (UNLIKELY(!good || (front.heap != NULL && short_is_free(front.heap, span)))) fatal(crime, block);
    return span;
}

/* A giant is freed, or one becomes shorter: do its pages go back at once? They stay for the purge delay where giants
 * come again soon and the helper is there to return them. */
static bool giant_goes(uint64_t now)
{
    bool stays = PEEK(large_returns) && helper_is_there();
    POKE(giants_stay, stays);
    POKE(large_gone_ns, now);
    return !stays;
}

static void run_free(struct heap *heap, struct span *run, uintptr_t block)
{
    if (UNLIKELY(block != run_block(run))) fatal("free of no block's start", block);
    if (large_is_window(run)) {
        window_hold(run);
        uint64_t now = os_tick_ns();
        bool giant = run->touched > GROWTH_UNITS && large_goes(run_touched_bytes(run));
        window_give(heap, run, giant && giant_goes(now), now);
        return;
    }
    if (UNLIKELY(!run_end(run, block))) fatal("block freed twice", block);
    bool giant = large_goes(run->size), goes = giant && giant_goes(os_tick_ns());
    if (run->place || (goes && run->size >= LARGE_MIN)) run_settle(run);
    if (heap != NULL && !giant && mid_free(heap, run)) return;
    uint64_t now = os_tick_ns();
    size_t bytes = run_touched_bytes(run);
    run->zeroed = 0;
    large_free(heap, run, goes, now);
    if (heap != NULL) mid_fall(heap, bytes, now);
}

/* Keeps a freed block for which its bin has no room: the magazine spills, or the class keeps freed blocks apart. False:
 * it is not kept. */
static bool small_keep(struct heap *heap, unsigned class, uintptr_t block)
{
    if (LIKELY(heap->apart[class].frees == 0)) magazine_spill(heap, class);
    if (LIKELY(heap->apart[class].frees == 0)) return bin_push(&heap->bins.small[class], block);
    magazine_empty_spare(heap, class);
    return magazine_keep_apart(heap, class, block);
}

static void small_free(struct heap *heap, struct span *slab, uintptr_t block)
{
    unsigned class = slab->class;
    if (UNLIKELY(!slab_has(slab, block))) fatal("free of no block's start", block);
    if (UNLIKELY(heap == NULL || !small_keep(heap, class, block))) orphan_free(class, block);
    if (heap == NULL) return;
    if (UNLIKELY(heap->given_bytes >= heap_much(heap))) heap_give_all(heap);
}

/* Frees what the thread's caches do not take. In a thread that dies, libc's blocks go to libc, and nothing goes to the
 * damaged heap. */
static NOINLINE void free_slow(struct heap *heap, struct span *span, uintptr_t block)
{
    if (UNLIKELY(span == NULL && is_some_dying())) {
        __libc_free((void *)block);
        return;
    }
    if (UNLIKELY(heap == NULL && is_dying())) return;
    int saved = errno;
    if (UNLIKELY(span == NULL))
        fatal(arena_of(block) != NULL ? "free of no block's start" : "free of an address that is not ours,", block);
    bool gone = span->kind == SPAN_RUN && run_block(span) == block && !run_is_out(span);
    if (UNLIKELY(mode == MODE_GUARDED))
        guard_free(span_of_block((void *)block, gone ? "block freed twice" : "free of no block"), block);
    else if (span->kind == SPAN_SLAB) small_free(heap, span, block);
    else if (span->kind == SPAN_RUN) run_free(heap, span, block);
    else fatal("free of memory that is free,", block);
    helper_consider();
    errno = saved;
}

/* The heap for a free; NULL for the first EARLY_FREES of a thread that has none. Such a thread may be ending: libc
 * frees tables of its stack, fewer than that, after the last hook that could retire a heap, so one made then would stay
 * for ever. */
static struct heap *heap_of_free(void)
{
    if (front.heap != NULL) return front.heap;
    if (front.state == FRONT_NEW && atomic_load_explicit(&started, memory_order_acquire) &&
        front.early_frees < EARLY_FREES) {
        front.early_frees++;
        return NULL;
    }
    int saved = errno;
    struct heap *heap = heap_here();
    errno = saved;
    return heap;
}

/* Frees what the hits did not take: NULL, longer runs, blocks for which there is no room, and what is not ours. */
static NOINLINE void free_rest(void *p)
{
    if (p == NULL) return;
    struct heap *heap = front.heap;
    uintptr_t block = (uintptr_t)p;
    struct span *span = span_of(block);
    if (LIKELY(heap != NULL && span != NULL)) {
        if (span->kind == SPAN_SLAB && slab_has(span, block) && magazine_keep_apart(heap, span->class, block)) return;
        uint32_t round = PEEK(heap->run_round);
        size_t told = PEEK(heap->kept.told), passed = atomic_load_explicit(&depots_told, memory_order_relaxed);
        if (run_is_live(span, block) && !large_goes(span->size)) {
            if (run_keep(heap, &span)) { /* then it may be another's already */
                if (UNLIKELY(PEEK(heap->run_round) < round || PEEK(heap->kept.told) > told || depots_hold(passed + 1)))
                    helper_consider(); /* idle runs have gone to the arena, or much is kept or was passed on */
                return;
            }
            block = run_block(span);
        }
    } else {
        heap = heap_of_free();
        if (UNLIKELY(mode == MODE_LIBC)) {
            __libc_free(p);
            return;
        }
    }
    free_slow(heap, span, block);
}

static ALWAYS_INLINE void release(void *p)
{
    if (UNLIKELY(!front_free((uintptr_t)p))) free_rest(p);
}

/* --- the rest of the family --------------------------------------------------------------------------------------- */

/* Is this a block as in front_has, and in the first arena, so that no address of others passes for one? False in a
 * thread without a heap. */
static ALWAYS_INLINE bool front_holds(uintptr_t block, size_t *doubled)
{
    return front.heap != NULL && block - arenas[0].base < PEEK(arenas[0].bytes) && front_has(block, doubled);
}

static size_t span_usable(const struct span *span, uintptr_t block)
{
    if (UNLIKELY(mode == MODE_GUARDED)) return guard_size(span, block);
    if (span->kind == SPAN_SLAB) return classes[span->class].size;
    return align_up(span->start + span->size, run_page()) - span->start; /* whole pages, all in touched units */
}

/* glibc exports its own malloc_usable_size under no other name. The chunk's size stands before the block; the lowest
 * three bits are flags. */
static size_t libc_usable_size(void *p)
{
    return (((size_t *)p)[-1] & ~(size_t)7) - ((((size_t *)p)[-1] & 2) ? 16 : 8);
}

size_t hak_usable_size(void *p)
{
    size_t doubled;
    if (LIKELY(front_holds((uintptr_t)p, &doubled) && doubled < 2 * CLASSES)) return classes[doubled / 2].size;
    if (p == NULL) return 0;
    if (UNLIKELY(is_libcs(p))) return libc_usable_size(p);
    return span_usable(span_of_block(p, "usable size of no block"), (uintptr_t)p);
}

/* calloc above L2_MAX, guarded or by libc's allocator. What reads zero already is not written. */
static COLD void *allocate_zeroed_otherwise(size_t size)
{
    if (is_served_by_libc()) return __libc_calloc(1, size);
    void *p = allocate_otherwise(GRANULE, size);
    return p == NULL || span_of((uintptr_t)p)->zeroed ? p : memset(p, 0, size);
}

static ALWAYS_INLINE void *allocate_zeroed(size_t size)
{
    if (size <= L2_MAX) {
        void *p = allocate(size);
        return p != NULL ? memset(p, 0, size) : NULL;
    }
    struct heap *heap = heap_here();
    if (UNLIKELY(heap == NULL && is_served_otherwise())) return allocate_zeroed_otherwise(size);
    uintptr_t block;
    if (size <= RUN_SHORT_MAX && !knob(KNOB_site_rules) &&
        (bin_pop(bin_of_big(size), &block) || (heap != NULL && (block = short_take_more(heap, size)) != 0)))
        return memset((void *)block, 0, size);
    struct span *run = NULL;
    bool cached = false; /* then what `zeroed` says is out of date */
    if (heap != NULL && size <= SIZE_LIMIT) {
        if (UNLIKELY(knob(KNOB_site_rules))) run = run_by_site(heap, size, (uintptr_t)__builtin_return_address(0));
        if (run == NULL) cached = (run = mid_allocate(heap, size)) != NULL;
    }
    if (run == NULL) {
        run = run_fetch(heap, size, 1);
        helper_offer();
    }
    if (run == NULL) return refuse();
    block = run_block(run);
    size_t zeroed = run->zeroed && !cached ? size : giant_bare(block, size);
    if (zeroed != size) memset((void *)(block + zeroed), 0, size - zeroed);
    return (void *)block;
}

void *hak_calloc(size_t count, size_t size)
{
    size_t total;
    if (UNLIKELY(__builtin_mul_overflow(count, size, &total))) return refuse();
    return allocate_zeroed(total);
}

/* Does a block of this row stay where it lies, for another size? If half of its bytes are needed, or half a granule
 * less; above L2_MAX, if half of its units are, rounded down. So what varies a little is not copied to and fro. */
static ALWAYS_INLINE bool row_stays(unsigned row, size_t size)
{
    size_t had = row_size(row);
    if (size - 1 >= had) return false;
    return row < CLASSES || size <= L2_MAX ? had <= 2 * size + GRANULE : run_units(size) >= (row - CLASSES) / 2;
}

/* Moves a run's block into a growth window, to grow there in place. `warm`: only into one that has pages. NULL where
 * there is no such window. */
static void *grow_in_window(struct heap *heap, struct span *run, size_t size, bool warm)
{
    struct span *window = window_take(heap, size, warm);
    if (window == NULL) return NULL;
    size_t had = size_min(span_usable(run, run_block(run)), size);
    window_huge(window, had >> UNIT_SHIFT, run_units(size), true);
    block_copy(run_block(window), run_block(run), had);
    window->site = run->site;
    site_grew(run->site);
    if (large_is_window(run)) { /* so would the next block, which begins in the longer one: its pages go */
        window_hold(run);
        window_give(heap, run, true, os_tick_ns());
    } else run_free(heap, run, run_block(run));
    return (void *)run_block(window);
}

/* Gives a run's block another size, where it lies, else in a growth window; NULL where neither can be. A block that
 * grows goes into a window even if there is room behind it, while the copy is cheap: a shorter one only into a warm
 * window, whose pages are there, a large one into any, for it gets huge pages there and leaves them to the next. */
static void *grow(struct heap *heap, struct span *run, size_t size)
{
    if (heap == NULL || size > SIZE_LIMIT) return NULL;
    size_t had = run->size;
    bool brief = run_row(run) != 0; /* then `had` is the most that the block may have had */
    bool grows = size > had, window = large_is_window(run);
    bool moves = !window && run_units(size) > run->units && (brief || size >= had + had / 8) && had < WINDOW_HUGE;
    void *moved = moves ? grow_in_window(heap, run, size, size < LARGE_MIN) : NULL;
    bool there = moved == NULL && large_resize(heap, run, size);
    if (moved == NULL && !there && grows) moved = grow_in_window(heap, run, size, false);
    if (there && !grows && window && PEEK(run->touched) > GROWTH_UNITS && giant_goes(os_tick_ns()))
        window_fit(heap, run);
    if (there && window && size > GROWN_SMALL) heap->grows_long = true; /* who frees it may be another thread */
    if (moved != NULL || !grows) helper_consider();
    helper_offer();
    stat_add(heap, STAT_growths, there && grows);
    return there ? (void *)run_block(run) : moved;
}

/* Moves a small block that grows by half or more into a growth window that is warm already. Or into any, where a thread
 * has copied much for such blocks, windows are few and address space costs nothing. That pays only if the block becomes
 * long: so blocks move from GROWN_LEAST on while those in windows do, else from GROWN_SMALL on. NULL where there is
 * none. */
static void *grow_small(struct heap *heap, void *p, size_t had, size_t size)
{
    size_t least = heap != NULL && heap->grows_long ? GROWN_LEAST : GROWN_SMALL;
    if (heap == NULL || size <= least || size < had + had / 2) return NULL;
    struct span *window = window_take(heap, size, true);
    heap->grown_bytes += window == NULL ? had : 0;
    if (window == NULL && heap->grown_bytes >= GROWN_MUCH) {
        bool few = PEEK(windows_usual) < WINDOWS_FEW && os_address_space() == SIZE_MAX;
        if (few && size < LARGE_MIN) window = window_take(heap, size, false);
        heap->grown_bytes = 0;
    }
    if (window == NULL) return NULL;
    memcpy((void *)run_block(window), p, had);
    release(p);
    return (void *)run_block(window);
}

/* Moves a block. A small one that grows by less than a quarter gets a quarter more, so that one which grows in small
 * steps is copied seldom: in all, four to six bytes for each that it has in the end. Not where sizes are guarded. */
static void *reallocate_by_copy(void *p, size_t had, size_t size)
{
    int saved = errno;
    bool steps = size > had && size < had + had / 4 && size <= L2_MAX && mode == MODE_CACHED;
    void *fresh = allocate(steps ? size_min(had + had / 4, L2_MAX) : size);
    if (UNLIKELY(fresh == NULL) && steps) errno = saved, fresh = allocate(size);
    if (UNLIKELY(fresh == NULL)) {
        if (size > had) return NULL;
        errno = saved; /* a block that shrinks can stay where it lies */
        return p;
    }
    block_copy((uintptr_t)fresh, (uintptr_t)p, size_min(had, size));
    release(p);
    return fresh;
}

/* Ends the program where a freed block is resized. Resized where it lies, it would have two owners. */
static void expect_live(const struct heap *heap, unsigned class, uintptr_t block)
{
    if (UNLIKELY(block_is_free(heap, class, block))) fatal("realloc of a freed block", block);
}

/* What a hit of realloc did not serve. */
static NOINLINE void *reallocate(void *p, size_t size)
{
    struct heap *heap = front.heap;
    if (p == NULL) return allocate(size);
    if (UNLIKELY(is_libcs(p))) return __libc_realloc(p, size);
    if (size == 0) {
        release(p);
        return NULL;
    }
    struct span *span = span_of_block(p, "realloc of no block");
    if (UNLIKELY(mode == MODE_GUARDED)) return reallocate_by_copy(p, guard_size(span, (uintptr_t)p), size);
    bool slab = span->kind == SPAN_SLAB;
    if (slab && heap != NULL && UNLIKELY(block_seems_free(heap, span->class, (uintptr_t)p)))
        expect_live(heap, span->class, (uintptr_t)p);
    unsigned row = slab ? span->class : run_row(span);
    if (row != 0 ? row_stays(row, size) : heap != NULL && run_stays(heap, span, size)) return p;
    void *there = NULL;
    if (slab) there = grow_small(heap, p, classes[row].size, size);
    else if (size > L2_MAX || large_is_window(span)) there = grow(heap_here(), span, size);
    if (there != NULL) return there;
    return reallocate_by_copy(p, span_usable(span, (uintptr_t)p), size);
}

/* A block of a slab that seems to be free: as reallocate would, but without asking for its span. */
static NOINLINE void *reallocate_doubted(void *p, size_t size, unsigned class)
{
    if (!row_stays(class, size)) return reallocate(p, size);
    expect_live(front.heap, class, (uintptr_t)p);
    return p;
}

/* A hit: a block that does not seem to be free stays where it lies, or is copied here if it is of a slab and becomes no
 * longer than what a slab serves in any case (grow_small). */
void *hak_realloc(void *p, size_t size)
{
    const struct heap *heap = front.heap;
    uintptr_t block = (uintptr_t)p;
    size_t doubled;
    if (UNLIKELY(!front_holds(block, &doubled))) return reallocate(p, size);
    unsigned row = (unsigned)doubled / 2;
    bool small = row < CLASSES;
    if (UNLIKELY(small && block_seems_free(heap, row, block))) return reallocate_doubted(p, size, row);
    if (UNLIKELY(!small && short_seems_free(heap, row, block))) return reallocate(p, size);
    if (LIKELY(row_stays(row, size))) return p;
    bool copied = small && size - 1 < GROWN_LEAST;
    return copied ? reallocate_by_copy(p, row_size(row), size) : reallocate(p, size);
}

/* Takes out a tiny block that has the alignment, a power of two, as all of its class have; false where none lies
 * ready, or the class is another pool's. */
static ALWAYS_INLINE bool tiny_pop_aligned(size_t alignment, size_t size, uintptr_t *block)
{
    if (UNLIKELY((size | alignment) >= front.tiny_end)) return false;
    return LIKELY(bin_pop(bin_of_size(align_up(size_max(size, 1), alignment)), block));
}

/* Serves an alignment by a class whose blocks all have it, else by a run, which begins on a unit, else by a run taken
 * at that alignment. */
static void *allocate_aligned(size_t alignment, size_t size)
{
    if (LIKELY((size | alignment) < front.tiny_end)) return allocate(align_up(size_max(size, 1), alignment));
    if (alignment <= GRANULE) return allocate(size);
    if (alignment > SIZE_LIMIT / 2 || size > SIZE_LIMIT - alignment) return refuse();
    struct heap *heap = heap_here();
    if (UNLIKELY(heap == NULL && is_served_otherwise())) return allocate_otherwise(alignment, size);
    /* Blocks of 1 KiB and more begin a line; runs so long that they have no colour, a unit. */
    size_t least = size > RUN_COLOURED * UNIT_BYTES ? UNIT_BYTES : CACHE_LINE;
    if (size >= TINY_MAX && alignment <= least && !knob(KNOB_site_rules)) return allocate(size);
    size_t rounded = align_up(size_max(size, 1), alignment);
    if (rounded <= L2_MAX && alignment < UNIT_BYTES && (classes[small_class(rounded)].size & (alignment - 1)) == 0) {
        void *p = allocate(rounded);
        if (LIKELY(((uintptr_t)p & (alignment - 1)) == 0)) return p;
        struct span *routed = span_of((uintptr_t)p); /* a run, by a call-site rule; a window begins on a unit */
        if (!large_is_window(routed)) run_level(routed, rounded);
        return (void *)run_block(routed);
    }
    size = size_max(size, L2_MAX + 1);
    struct span *run = heap != NULL && alignment <= UNIT_BYTES ? mid_allocate(heap, size) : NULL;
    if (run == NULL) run = run_fetch(heap, size, (uint32_t)size_max(alignment >> UNIT_SHIFT, 1));
    helper_offer();
    if (run == NULL) return refuse();
    run_level(run, size);
    if (heap != NULL) stat_add(heap, STAT_aligned, 1);
    return (void *)run_block(run);
}

void *hak_aligned_alloc(size_t alignment, size_t size)
{
    if (!is_power_of_two(alignment)) {
        errno = EINVAL;
        return NULL;
    }
    return allocate_aligned(alignment, size);
}

static NOINLINE int allocate_aligned_to(void **block, size_t alignment, size_t size)
{
    int saved = errno;
    void *p = allocate_aligned(alignment, size);
    errno = saved;
    if (p == NULL) return ENOMEM;
    *block = p;
    return 0;
}

/* A hit saves no errno, which nothing changes, and no register. */
HIT int hak_posix_memalign(void **block, size_t alignment, size_t size)
{
    uintptr_t hit;
    if (!is_power_of_two(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
    if (UNLIKELY(!tiny_pop_aligned(alignment, size, &hit))) return allocate_aligned_to(block, alignment, size);
    *block = (void *)hit;
    return 0;
}

HIT void *hak_malloc(size_t size) { return allocate(size); }
HIT void hak_free(void *block) { release(block); }
