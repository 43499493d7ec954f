/* heap.c: everything that one thread has. A heap is made at a thread's first slow path, listed for observers, and
 * emptied when the thread ends: its magazines go to the depot, its slabs to their classes, its runs to the arena. The
 * struct then waits for the next thread. Heaps are never unmapped, so an observer may always follow the list.
 *
 * After its end hook has run, a thread may still free or allocate (in the destructors of others). It is then served
 * without a cache, so nothing can be left behind. The exception is a thread that first allocates in the last round of
 * destructors: it gets a heap but no hook, and that heap is buried later. */

#include <pthread.h>

static void (*heap_gone)(bool last); /* called when a thread has gone; set at start */
static struct lock heap_lock;        /* guards the list's head, reuse, and observers' look at bins */
static pthread_key_t heap_key;
static _Atomic bool heap_key_made;

static struct heap *heaps_free;                  /* those that wait for a thread; under heap_lock, as what follows */
static struct heap *heaps_by_front[HEAP_FRONTS]; /* those that a thread has, in rows by the address of its front */

static struct heap **heap_row(const struct front *of)
{
    return &heaps_by_front[((uintptr_t)of >> 6) * UINT64_C(0x9E3779B97F4A7C15) >> 32 & (HEAP_FRONTS - 1)];
}

/* A heap for this thread: one whose thread ended unheard, for its front lay where this one's lies; else a free one;
 * else NULL. Under heap_lock. */
static struct heap *heap_find_free(void)
{
    for (struct heap *heap = *heap_row(&front); heap != NULL; heap = heap->in_row)
        if (heap->front == &front) return heap;
    for (struct heap **at = &heaps_free; *at != NULL; at = &(*at)->in_row) {
        struct heap *heap = *at;
        if (atomic_load(&heap->state) != HEAP_FREE) continue;
        *at = heap->in_row;
        return heap;
    }
    return NULL;
}

/* The heap has this thread's front from now on. Under heap_lock. */
static void heap_occupy(struct heap *heap)
{
    struct heap **row = heap_row(&front);
    heap->in_row = *row;
    *row = heap;
    POKE(heap->front, &front);
    heap->thread = os_thread();
    atomic_store(&heap->state, HEAP_LIVE);
}

/* Behind a heap lie its counters and its slots. */
#define HEAP_STATS_AT align_up(sizeof(struct heap), CACHE_LINE)
#define HEAP_SLOTS_AT align_up(HEAP_STATS_AT + HEAP_STAT_COUNT * sizeof(uint64_t), CACHE_LINE)

static uintptr_t *heap_first_slot(struct heap *heap) { return (uintptr_t *)((char *)heap + HEAP_SLOTS_AT); }

static struct heap *heap_map(void)
{
    struct heap *heap = os_map(HEAP_SLOTS_AT + SLOTS_COUNT * sizeof(uintptr_t));
    if (heap == NULL) return NULL;
    heap->stats = (_Atomic uint64_t *)((char *)heap + HEAP_STATS_AT);
    heap->slots = heap_first_slot(heap);
    heap->next = atomic_load(&heaps);
    heap->number = heap->next != NULL ? heap->next->number + 1 : 1;
    return heap;
}

/* The heap waits for the next thread. Result: was it the last one with a thread? Under heap_lock. */
static bool heap_retire(struct heap *heap)
{
    struct heap **at = heap_row(heap->front);
    while (*at != heap) at = &(*at)->in_row;
    *at = heap->in_row;
    heap->in_row = heaps_free;
    heaps_free = heap;
    heap->run_held = heap->run_given = heap->kept.taken = 0;
    for (unsigned class = 1; class < CLASSES; class ++) {
        if (heap->moved[class] == 0) continue;
        count_moved(class, heap->moved[class]);
        POKE(heap->moved[class], 0);
    }
    POKE(heap->front, NULL);
    atomic_store(&heap->state, HEAP_FREE);
    return atomic_fetch_sub(&heaps_alive, 1) == 1;
}

/* Bytes of slabs' blocks that callers have, of each a page at most. Not exact while other threads work; 0 where they
 * are many, and would take long to ask. */
static size_t heaps_live(void)
{
    int64_t bytes = 0, most = (int64_t)os_page;
    if (!threads_are_few()) return 0;
    for (unsigned class = 1; class < CLASSES; class ++) {
        int64_t blocks = atomic_load(&moved_otherwise[class]), size = classes[class].size;
        for (const struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next)
            if (atomic_load_explicit(&heap->state, memory_order_relaxed) == HEAP_LIVE)
                blocks += PEEK(heap->moved[class]) - hand_blocks(heap, class);
        bytes += blocks * (size < most ? size : most);
    }
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Is it some thread's? Under heap_lock. */
static bool heap_is_owned(const struct heap *heap)
{
    return atomic_load_explicit(&heap->state, memory_order_acquire) == HEAP_LIVE && heap->front != NULL;
}

/* Gives all blocks, and the slabs that are being carved, to where other threads can get them; `leaves`: as in
 * magazine_flush. */
static void heap_flush_blocks(struct heap *heap, bool leaves, uint64_t now)
{
    for (unsigned class = 1; class < CLASSES; class ++) {
        magazine_flush(heap, class, leaves);
        hand_enter(heap); /* a collector may be about to take the slab, too */
        heap_abandon(heap, class, now);
        hand_leave(heap);
    }
    POKE(slabs_due, true); /* few blocks in depots may hold back many slabs */
}

/* The same, and all runs go to the arena. What was learnt of the thread is forgotten. */
static void heap_flush(struct heap *heap, uint64_t now)
{
    heap_flush_blocks(heap, true, now);
    mid_shrink(heap, 0, now);
    memset(heap->bursts, 0, sizeof heap->bursts);
    memset(heap->given, 0, sizeof heap->given);
    memset(heap->trades, 0, sizeof heap->trades);
    memset(heap->turns, 0, sizeof heap->turns);
    memset(heap->apart, 0, sizeof heap->apart);
    heap->given_bytes = heap->peaks = heap->gave_all = heap->homed = 0;
    heap->grown_bytes = heap->grows_long = 0;
    heap->shorts_kept = heap->shorts_bursts = 0;
    shorts_limit(heap, shorts_bytes());
}

/* Frees the heap of a thread that ended unheard. Under heap_lock. */
static COLD void heap_bury(struct heap *heap)
{
    heap_flush(heap, os_now_ns());
    heap_retire(heap);
}

/* Frees the heaps of all threads that ended unheard. For a process that lives on after its first thread has left:
 * nobody else would notice that its last one has. */
static COLD void heaps_bury(void)
{
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        lock_take(&heap_lock);
        if (heap_is_owned(heap) && os_has_ended(heap->thread)) heap_bury(heap);
        lock_drop(&heap_lock);
    }
}

static _Atomic bool main_has_left; /* by pthread_exit */
static sigset_t last_mask;         /* of signals, in the last thread that had a heap; under heap_lock */

/* The calling thread's heap, made if need be; NULL where memory ends. */
static struct heap *heap_begin(void)
{
    lock_take(&heap_lock);
    struct heap *heap = heap_find_free();
    bool fresh = heap == NULL;
    if (fresh) heap = heap_map();
    if (heap != NULL) {
        if (UNLIKELY(atomic_load(&heap->state) == HEAP_LIVE)) {
            heap_bury(heap);
            heap = heap_find_free();
        }
        heap->bins = no_bins;
        memset(heap->limits, 0, sizeof heap->limits); /* where a bin may hold nothing, nothing is opened (hand_mend) */
        heap->kept.life = heap->number * RUN_KEPT;
        heap->taken_seen = atomic_load(&slab_units_taken);
        heap->cold_seen = atomic_load(&slab_units_cold);
        POKE(heap->hand.shut, true); /* nothing to look at yet */
        heap_occupy(heap);
        if (fresh) atomic_store(&heaps, heap);
        if (fresh) atomic_store(&parts_used, size_min(heap->number, PARTS));
        atomic_fetch_add(&heaps_alive, 1);
    }
    lock_drop(&heap_lock);
    if (heap == NULL) return NULL;
    shorts_begin(heap);
    front.heap = heap;
    front_load(&heap->bins);
    front.state = FRONT_LIVE;
    stat_shared(STAT_threads_seen, 1);
    if (atomic_load_explicit(&heap_key_made, memory_order_acquire)) pthread_setspecific(heap_key, heap);
    return heap;
}

/* Bytes that a thread gives in a row until that is much: less where there are many threads, most of which rest with
 * what they hold. One that soon takes them again gives more before, half as many at least as if it were alone. */
static size_t heap_much(const struct heap *heap)
{
    size_t threads = threads_share();
    return (GIVEN_MUCH << heap->peaks) / (heap->peaks == 0 ? threads : size_min(threads, 2));
}

/* A thread that gave much, and took nothing, keeps few blocks of any class from now on: each may hold back a page, and
 * where no helper runs nobody takes them from it while it rests. */
static NOINLINE void heap_give_all(struct heap *heap)
{
    for (unsigned class = 1; class < CLASSES; class ++) {
        if (heap->given[class] == 0) heap_gives(heap, class);
        heap->given[class] = GIVEN_ALL;
    }
    heap->gave_all = true;
    heap->given_ns = os_tick_ns();
    heap_flush_blocks(heap, false, heap->given_ns);
    heap->given_bytes = 0;
}

/* When slabs have taken so many units, the program may have gone on to other sizes. */
static size_t shed_units(void)
{
    size_t used = atomic_load_explicit(&superslab_bytes, memory_order_relaxed) >> UNIT_SHIFT;
    return size_max(SHED_UNITS * atomic_load_explicit(&heaps_alive, memory_order_relaxed), used / SHED_SHARE);
}

/* After slabs have taken memory: where a program goes on to other sizes, a few blocks of those before that a thread
 * caches may hold back many slabs, which would do. So the thread looks from time to time at what it does not use, and
 * while slabs take memory without pages, that goes home. Else nothing does: where sizes vary, the kernel would get
 * pages in one moment that are missed in the next. */
static void heap_shed(struct heap *heap)
{
    size_t taken = atomic_load_explicit(&slab_units_taken, memory_order_relaxed) - heap->taken_seen;
    if (LIKELY(taken < SHED_UNITS) || taken < shed_units()) return;
    size_t cold = atomic_load_explicit(&slab_units_cold, memory_order_relaxed) - heap->cold_seen;
    bool grows = cold >= taken / SHED_COLD && PEEK(depots_inherited) == 0; /* a child would copy its parent's pages */
    heap->taken_seen += taken;
    heap->cold_seen += cold;
    for (unsigned class = 1; class < CLASSES; class ++)
        if (class_rests(heap, class) && grows) magazine_shed(heap, class);
    if (grows) depots_relieve(0);
}

/* The calling thread has no caches any more: its next call misses. */
static COLD void front_leave(void)
{
    front.heap = NULL;
    front_load(NO_BINS);
    front.state = FRONT_EXITED;
}

static void heap_end(void *argument)
{
    struct heap *heap = argument;
    if (front.heap != heap) return;
    heap_flush(heap, os_tick_ns()); /* by the clock that a round of tidying goes by (helper_consider) */
    bool first = heap->thread == getpid();
    lock_take(&heap_lock);
    front_leave();
    if (atomic_load(&heaps_alive) == 1) pthread_sigmask(SIG_BLOCK, NULL, &last_mask);
    bool last = heap_retire(heap);
    lock_drop(&heap_lock);
    if (first) atomic_store(&main_has_left, true);
    heap_gone(last);
}

/* Once, at start, before there is a heap: threads are told when they end. */
static void heaps_init(void)
{
    if (pthread_key_create(&heap_key, heap_end) == 0) atomic_store_explicit(&heap_key_made, true, memory_order_release);
}

/* --- what a thread without a cache uses --------------------------------------------------------------------------- */

/* Single blocks straight from the slabs, for which slabs are carved under this heap. It is under orphan_lock. */
static struct heap orphan_heap;
static struct lock orphan_lock;

/* One block; 0 where memory ends. */
static uintptr_t orphan_allocate(unsigned class)
{
    lock_take(&orphan_lock);
    orphan_heap.stats = orphan_stats;
    uintptr_t block;
    if (slabs_fill(&orphan_heap, class, 1, &block) == 0) block = 0;
    lock_drop(&orphan_lock);
    if (block == 0) return 0;
    block_words(block)[0] = 0;
    atomic_fetch_add_explicit(&orphan_stats[STAT_refilled_blocks], 1, memory_order_relaxed);
    count_moved(class, 1);
    return block;
}

static void orphan_free(unsigned class, uintptr_t block)
{
    uintptr_t slot;
    atomic_fetch_add_explicit(&orphan_stats[STAT_spilled_blocks], 1, memory_order_relaxed);
    count_moved(class, -1);
    slot_fill(&slot, block);
    slabs_return(class, &slot, 1, os_tick_ns());
}

/* The slabs that it carves go back to their classes. */
static void orphan_flush(uint64_t now)
{
    lock_take(&orphan_lock);
    for (unsigned class = 1; class < CLASSES; class ++) heap_abandon(&orphan_heap, class, now);
    lock_drop(&orphan_lock);
}

/* A run for at most SIZE_LIMIT bytes, at an alignment in units of at most half of that; NULL where memory ends. */
static struct span *orphan_run(size_t size, uint32_t alignment)
{
    lock_take(&arena_lock);
    struct span *run = arena_take((uint32_t)run_units(size), alignment);
    lock_drop(&arena_lock);
    if (run == NULL) return NULL;
    stat_shared(STAT_spans_taken, 1);
    run->start = 0;
    POKE(run->place, RUN_SETTLED);
    run_begin(run, size, run_units(size));
    atomic_fetch_add_explicit(&run_units_out, run->units, memory_order_relaxed);
    return run;
}

/* Gives back the slots of an ended thread: racks, and the pages of the others. The heap is held. Result: bytes of these
 * pages. */
static size_t heap_empty(struct heap *heap)
{
    uintptr_t *first = heap_first_slot(heap);
    uintptr_t begin = align_up((uintptr_t)first, os_page), end = align_up((uintptr_t)heap->slots, os_page);
    racks_return(heap);
    memset(heap->loaded, 0, sizeof heap->loaded);
    memset(heap->spare, 0, sizeof heap->spare);
    heap->slots = first;
    heap->slotted = false;
    return begin < end && os_purge((void *)begin, end - begin) ? end - begin : 0;
}

static size_t heaps_empty(void)
{
    size_t bytes = 0;
    for (struct heap *heap = atomic_load(&heaps); heap != NULL; heap = heap->next) {
        lock_take(&heap_lock);
        bool used = atomic_load(&heap->state) == HEAP_FREE && heap->slotted;
        if (used) atomic_store(&heap->state, HEAP_HELD);
        lock_drop(&heap_lock);
        if (!used) continue;
        bytes += heap_empty(heap);
        atomic_store(&heap->state, HEAP_FREE);
    }
    return bytes;
}

/* --- memory that waits for someone -------------------------------------------------------------------------------- */

/* Free units that may hold pages. */
static size_t idle_units(void)
{
    return atomic_load_explicit(&dirty_units, memory_order_relaxed) +
           atomic_load_explicit(&window_units, memory_order_relaxed) +
           atomic_load_explicit(&slab_dirty_units, memory_order_relaxed);
}

/* Bytes that a trim and a purge could return, with so many in depots. What the kernel refused is not among them. */
static size_t pending_bytes(size_t in_depots)
{
    size_t units = idle_units();
    units -= size_min(units, atomic_load_explicit(&refused_units, memory_order_relaxed));
    return (units << UNIT_SHIFT) + in_depots + runs_bytes();
}

/* Before another kind of memory is asked for: locked pages of one kind say nothing of the others, so as many refusals
 * are allowed again. Result: were all used up? */
static bool refusals_renew(void)
{
    bool spent = refusals_left <= 0;
    refusals_left = REFUSALS_MAX;
    return spent;
}

/* Is there free memory that is too young to go back, and so was not asked for? */
static bool idle_is_young(uint64_t horizon)
{
    bool young = false;
    lock_take(&arena_lock);
    for (struct span *span = dirty_newest; span != NULL && !young; span = span->older)
        young = span->freed_ns > (horizon | 1) + 1;
    for (struct superslab *superslab = superslabs_free; superslab != NULL && !young; superslab = superslab->next)
        young = superslab->dirty_mask != 0 && superslab->freed_ns > horizon + 1;
    for (struct span *window = windows; window != NULL && !young; window = window->next)
        young = window->touched != 0 && window->idle_ns > horizon;
    lock_drop(&arena_lock);
    return young;
}

static uint32_t rounds_vain; /* rounds in a row that asked in vain for what the kernel refused. Under round_lock */

/* Everything that has been free since `horizon` goes back to the kernel; of live growth windows, what no block has
 * reached since the last round, or (`all`) what none reaches now; of slabs in use, the parts that lay idle for some
 * rounds, in at most so many slabs. What the kernel refuses is asked for again when other memory is, and after a while.
 * Where it refused until no refusal was left and took nothing, all memory is locked: then everything idle counts as
 * refused. Under round_lock. Result: bytes. */
static size_t purge_aged(uint64_t horizon, bool all, size_t slabs)
{
    round_begin();
    size_t bytes = heaps_empty() + slabs_strip(all, slabs);
    bool spent = refusals_renew();
    bytes += superslab_purge(horizon, SIZE_MAX) + windows_purge(horizon) + windows_trim(all);
    spent |= refusals_renew();
    bytes += arena_purge(horizon, 0);
    if (os_address_space() != SIZE_MAX) arenas_trim(false);
    spent |= refusals_renew();
    if (spent && bytes == 0 && !idle_is_young(horizon)) refused_set(idle_units());
    if (bytes != 0 || atomic_load(&refused_units) == 0) POKE(rounds_vain, 0);
    return bytes;
}

static _Atomic uint64_t tidied_ns;

/* Everything idle goes back, magazines in depots too. The caller holds no lock. Result: bytes. */
static size_t give_all_back(uint64_t now)
{
    lock_take(&round_lock);
    orphan_flush(now);
    depots_trim(now, true);
    runs_collect(now, true);
    hands_collect(now, true);
    size_t bytes = purge_aged(now + 1, true, SIZE_MAX);
    lock_drop(&round_lock);
    return bytes;
}

/* Nanoseconds between two rounds of tidying; `again`: between those that only ask again for what the kernel refused. */
static uint64_t tidy_pause(bool again)
{
    uint64_t pause = (uint64_t)knob(KNOB_purge_delay_ms) * 1000000u / 2 + 1000000u;
    uint32_t doublings = again ? PEEK(rounds_vain) : 0;
    return pause << doublings < AGAIN_NS ? pause << doublings : size_max(pause, AGAIN_NS);
}

/* A round of tidying, by whoever comes first, at most twice in a purge delay: magazines that nobody asked for since the
 * last round go home, then what is old goes back (purge_aged). `again`: the latter alone. Result: ns until the next. */
static uint64_t tidy(uint64_t now, bool again, size_t slabs)
{
    uint64_t delay = (uint64_t)knob(KNOB_purge_delay_ms) * 1000000u;
    uint64_t last = atomic_load_explicit(&tidied_ns, memory_order_relaxed);
    if (now >= last + tidy_pause(again) && atomic_compare_exchange_strong(&tidied_ns, &last, now)) {
        last = now;
        lock_take(&round_lock);
        if (!again) {
            depots_trim(now, false);
            runs_collect(now, false);
            if (hands_collect(now, false) != 0) POKE(slabs_due, true);
            POKE(runs_relieved, atomic_load_explicit(&run_units_out, memory_order_relaxed));
        }
        size_t bytes = purge_aged(now > delay ? now - delay : 0, false, slabs);
        if (again && bytes == 0) POKE(rounds_vain, (uint32_t)size_min(rounds_vain + 1, ROUNDS_VAIN_MAX));
        lock_drop(&round_lock);
    }
    uint64_t due = last + tidy_pause(again);
    return due > now ? due - now : 1;
}
