/* mid.c: blocks above 32 KiB: runs of units. A thread keeps some of the runs it frees, pages and all, by length. A few
 * short ones are in hand, in bins like those of slabs' blocks: the hits of malloc and free (tiny.c) take both alike.
 * For the others, one word shows which lengths there are, so the nearest longer one is found without a search. Short
 * ones that another thread asks for go to the depot (short.c), all other runs to the arena.
 *
 * A run's descriptor lies outside the run. Only free short ones are written to: each one's first word and, in the
 * depot, a few more of the first of several. */

static size_t run_page(void) { return size_min(os_page, UNIT_BYTES); } /* no run is shorter */

/* Is a run of this length near enough to be used for so many units? Longer by half and a unit will do: its pages are
 * there already. One unit, the most frequent length, takes no other. From nine to sixteen, where each length has a bin,
 * longer by a quarter and a unit is enough to find one, and less memory lies idle. */
static ALWAYS_INLINE bool run_is_near(size_t length, size_t units)
{
    return length <= units + units / (units > RUN_SHORT && units <= RUN_EXACT ? 4 : 2) + (units > 1);
}

/* Says whether a live run is short: then free takes its block as one of a slab. Short runs need no accounts (all of
 * such a run counts as touched), and what malloc asked for is not known: all serve the longest block of their length.
 * No site may be known, which would have to be forgotten; and one that is aligned, or grew in place, lacks its colour.
 * A run of 5 or 7 units, made elsewhere, serves the length below, if its block is no longer. */
static ALWAYS_INLINE void run_sort(struct span *run)
{
    size_t index = map_index(run->address); /* NULL is at index 0 */
    size_t length = run_length(run->units) > run->units ? run->units - 1 : run->units;
    bool brief = length <= RUN_SHORT && run->size <= short_size(length) && run->site == 0 && index != 0 &&
                 run->start == run_colour(run);
    if (brief) {
        POKE(run->touched, run->units);
        POKE(run->size, short_size(length));
    }
    POKE(owners.bound[index], brief ? short_bound(length, run_block(run)) : 0);
}

/* The run is free, and not in hand: no hit takes its block any more. One that was freed twice, and is in hand as well,
 * is noticed when it is taken from there. */
static ALWAYS_INLINE void run_unsort(struct span *run)
{
    if (run_row(run) == 0) return;
    POKE(owners.bound[map_index(run->address)], 0);
    block_words(run_block(run))[0] = 0;
}

/* Does a caller have its block, or is it short and in hand or in the depot? */
static ALWAYS_INLINE bool run_is_out(const struct span *run) { return PEEK(run->life) % RUN_KEPT != RUN_FREE; }

/* The run goes to a caller. */
static ALWAYS_INLINE void run_begin(struct span *run, size_t size, size_t units)
{
    MUST(run->kind == SPAN_RUN && units <= run->units && run->start + size <= span_bytes(run), run->address);
    if (run->touched < units) POKE(run->touched, (uint32_t)units);
    POKE(run->size, size);
    POKE(run->life, run_mark(run_block(run)));
    run->site = 0;
}

/* The run goes to a caller of a thread with a heap, staggered, and short if it can be. */
static ALWAYS_INLINE void run_serve(struct span *run, size_t size, size_t units)
{
    run->start = run_colour(run);
    run_begin(run, size, units);
    run_sort(run);
}

/* The run comes back, to be given to the arena. False where another thread has freed it, too. */
static bool run_end(struct span *run, uintptr_t block)
{
    uint32_t live = run_mark(block);
    if (UNLIKELY(!__atomic_compare_exchange_n(&run->life, &live, RUN_FREE, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)))
        return false;
    run_unsort(run);
    return true;
}

/* Lets a live run's block begin where the run does, without a colour. */
static void run_level(struct span *run, size_t size)
{
    run->start = 0;
    POKE(run->size, size);
    POKE(run->life, run_mark(run->address));
    run_sort(run);
}

/* Short runs of a length that a thread has in hand at most, and the slots for them. */
static size_t shorts_most(size_t length) { return run_length(length) == length ? RUN_SHORT_MOST / length : 0; }
static uintptr_t *shorts_slots(struct heap *heap, size_t length) { return heap->short_slots[length] + 1; }

/* Runs of the length in hand. */
static size_t shorts_count(const struct heap *heap, size_t length)
{
    return hand_blocks(heap, CLASSES + (unsigned)length);
}

/* Nothing was taken from the bin. Ends the program where that was not because it is empty. */
static ALWAYS_INLINE void shorts_expect_none(struct heap *heap, size_t length)
{
    uintptr_t *top = heap->bins.shorts[length].top;
    if (UNLIKELY(top != shorts_slots(heap, length))) slot_expect_right(top - 1);
}

/* Takes out the short run that was kept last. Result: its block; 0 where there is none. */
static ALWAYS_INLINE uintptr_t short_pop(struct heap *heap, size_t length)
{
    uintptr_t block;
    if (LIKELY(bin_pop(&heap->bins.shorts[length], &block))) return block;
    shorts_expect_none(heap, length);
    return 0;
}

/* Bytes of runs, beside those in hand, that a thread may always keep. */
static size_t runs_least(void) { return (size_t)knob(KNOB_run_cache_bytes) / threads_share(); }

/* Bytes of short runs of each length that it may have in hand. */
static size_t shorts_bytes(void)
{
    return size_min(RUN_SHORT_BYTES, (size_t)knob(KNOB_run_cache_bytes) / 4 * 3) / threads_share();
}

/* As many as fit into the bytes; none where one is longer, for the last one freed can be collected from the lists, but
 * not from the hand (rest.c). */
static void shorts_limit(struct heap *heap, size_t bytes)
{
    for (unsigned length = 1; length <= RUN_SHORT; length++) {
        size_t runs = bytes / (length * UNIT_BYTES);
        POKE(heap->bins.shorts[length].limit, shorts_slots(heap, length) + size_min(runs, shorts_most(length)));
    }
    heap->short_bytes = bytes;
}

/* Gives the heap empty bins for short runs. */
static void shorts_begin(struct heap *heap)
{
    heap->run_allowed = runs_least();
    for (unsigned length = 1; length <= RUN_SHORT; length++) {
        uintptr_t *slots = shorts_slots(heap, length);
        slots[-1] = LIST_END;
        POKE(heap->bins.shorts[length].top, slots);
    }
    shorts_limit(heap, shorts_bytes());
}

/* The short run that was kept last; NULL where there is none. */
static struct span *short_run(struct heap *heap, size_t length)
{
    uintptr_t block = short_pop(heap, length);
    if (block == 0) return NULL;
    run_expect(run_mark(block), span_of(block));
    return span_of(block);
}

/* The nearest longer one in hand for so many units; NULL where none is near. */
static struct span *short_run_near(struct heap *heap, size_t units)
{
    struct span *run = NULL;
    hand_enter(heap);
    for (size_t length = units; run == NULL && length <= RUN_SHORT && run_is_near(length, units); length++)
        run = short_run(heap, length);
    hand_leave(heap);
    return run;
}

/* Serves a block by the cached run whose length is nearest and not shorter; NULL where none is near. Its pages are not
 * zero. Of the requests that a longer short run could serve, one in NEAR_MANY is refused, or a length that is served so
 * again and again would never get runs of its own: it gets one from the arena, to which the longer one goes. The caller
 * has begun with kept_try or kept_enter; this ends it. */
static NOINLINE struct span *mid_allocate_near(struct heap *heap, size_t size)
{
    size_t units = run_units(size);
    struct span *run = NULL;
    if (units <= RUN_SHORT) run = short_run_near(heap, units);
    unsigned bin = run_bin_ceil(units);
    uint64_t bits = run == NULL && bin < RUN_BINS ? heap->kept.bits >> bin : 0;
    if (bits != 0 && run_is_near(run_bin_units(bin + lowest_bit(bits)), units))
        run = kept_serve(heap, bin + lowest_bit(bits));
    else kept_leave(&heap->kept);
    if (run == NULL) return NULL;
    if (run->units > run_length(units) && run->units <= RUN_SHORT) {
        uint8_t *lent = &heap->short_lent[run_length(units)];
        *lent = (uint8_t)((*lent + 1) % NEAR_MANY);
        if (*lent == 0) { /* it is exchanged, which does not count as given */
            heap->run_held -= size_min(heap->run_held, run_touched_bytes(run));
            run_give(run, run->life, os_tick_ns());
            return NULL;
        }
    }
    run_serve(run, size, units);
    return run;
}

static NOINLINE struct span *mid_allocate_later(struct heap *heap, size_t size)
{
    kept_enter(&heap->kept);
    return mid_allocate_near(heap, size);
}

/* A cached run that is long enough and not much longer, at first one of the right length; NULL where there is none, or
 * one was refused. */
static struct span *mid_allocate(struct heap *heap, size_t size)
{
    size_t units = run_units(size), length = run_length(units);
    struct kept *kept = &heap->kept;
    if (UNLIKELY(!kept_try(kept))) return mid_allocate_later(heap, size);
    if (length > RUN_EXACT || kept->runs[length - 1] == NULL) return mid_allocate_near(heap, size);
    struct span *run = kept_serve(heap, (unsigned)length - 1);
    run_serve(run, size, units);
    return run;
}

static void run_huge(const struct span *run, bool wanted)
{
    const struct arena *arena = arena_of(run->address);
    uintptr_t begin = align_down(run->address, SUPERSLAB_LARGE),
              end = align_up(run->address + span_bytes(run), SUPERSLAB_LARGE);
    os_huge((void *)begin, size_min(end, arena->base + PEEK(arena->writable)) - begin, wanted);
}

/* Large blocks get huge pages where this program fills them; else each of which little is touched would cost 2 MiB.
 * What is known is kept by doublings of size (log2). Only small pages can tell, for one touch fills 2 MiB of the
 * others; so some blocks go without huge ones, to see, the more seldom the more were filled; of long ones only a part,
 * the probe. `large_filled`: of those that could tell, how many in a row were filled, long ones counted as several, up
 * to LARGE_SURE; or LARGE_SPARSE. `large_since`: blocks since the last one without. A lost update does no harm. */
static uint8_t large_filled[64], large_since[64];

/* The pages of a block from the threshold on go back when it is freed. But where the threshold is the highest, and such
 * a block is asked for soon after the last one was freed (`large_returns`), they stay for the purge delay, as other
 * free memory does. A lost update does no harm. */
static uint64_t large_gone_ns;
static bool large_returns;
static bool giants_stay; /* did those of the last block that was freed or shortened? */

/* Never a short run's, of which only the longest size is known. */
static bool large_goes(size_t size) { return size > RUN_SHORT_MAX && size >= (size_t)knob(KNOB_large_threshold); }

static void large_came(void)
{
    bool soon = os_tick_ns() < PEEK(large_gone_ns) + (uint64_t)knob(KNOB_purge_delay_ms) * 1000000u;
    POKE(large_returns, soon && (size_t)knob(KNOB_large_threshold) == LARGE_THRESHOLD_MAX);
}

/* A doubling of which less is known goes by the one beside it, up to LARGE_FEW. */
static void large_hint(unsigned doubling, size_t filled)
{
    uint8_t *row = &large_filled[doubling], hint = (uint8_t)size_min(filled, LARGE_FEW);
    if (PEEK(*row) < hint) POKE(*row, hint);
}

/* The pages of a probed run that tell. They lie within it as long as it is as long as it was. */
static void *run_probe(const struct span *run)
{
    return (void *)align_down(run->address + span_bytes(run) / 2, LARGE_PROBE);
}

/* Learns from a large block. That it was not filled always counts; that it was, only if small pages tell. Without any
 * it still speaks for the next doubling: where tables double as they grow, each is met once, and after every other one
 * without huge pages there would be nothing to go by. */
static void large_learn(size_t size, enum run_place place, bool filled)
{
    unsigned doubling = log2_floor(size);
    uint8_t *row = &large_filled[doubling], had = PEEK(*row);
    size_t now = had == LARGE_SPARSE ? 0 : had;
    if (!filled) {
        POKE(*row, LARGE_SPARSE);
        return;
    }
    if (place != RUN_SETTLED) {
        now = size_min(now + size_min(1 + size / LARGE_LONG, LARGE_FEW), LARGE_SURE);
        POKE(*row, (uint8_t)now);
        large_hint(doubling - 1, now);
    }
    large_hint(doubling + 1, now);
}

static bool large_is_filled(uintptr_t block, size_t size, enum run_place place, void *probe)
{
    return os_dense((void *)block, size, 12) && (place != RUN_PROBED || os_dense(probe, LARGE_PROBE, 12));
}

/* Looks at the large block that this thread took last from what nobody had touched. A thread that asks for another one
 * has filled it by now, if ever. Result: does it live? */
static bool large_look(const struct heap *heap)
{
    const struct span *last = heap->fresh;
    if (last == NULL) return false;
    lock_take(&arena_lock); /* it may be another's by now, or no run at all */
    uintptr_t block = last->address;
    size_t size = last->kind == SPAN_RUN ? PEEK(last->size) : 0;
    enum run_place place = PEEK(last->place);
    void *probe = run_probe(last);
    bool live = size >= LARGE_MIN && place != RUN_WINDOW && run_is_live(last, block);
    lock_drop(&arena_lock);
    if (live) large_learn(size, place, large_is_filled(block, size, place, probe));
    return live;
}

/* Is so much known of a doubling that its blocks get huge pages? */
static bool large_is_sure(unsigned filled) { return filled >= LARGE_FEW && filled != LARGE_SPARSE; }

/* A large run is freed for the first time, or its pages go back: was it filled? A long one shows that with huge pages,
 * too. If it was, at the first time, and its pages stay, it gets huge pages from now on. */
static NOINLINE void run_settle(struct span *run)
{
    enum run_place place = run->place;
    void *probe = run_probe(run);
    bool filled = large_is_filled(run->address, run->size, place, probe), stays = !large_goes(run->size);
    large_learn(run->size, place, filled);
    POKE(run->place, RUN_SETTLED);
    if (place == RUN_SETTLED || !filled || !stays) return;
    bool all = place == RUN_UNSETTLED;
    if (os_purge(all ? (void *)run->address : probe, all ? span_bytes(run) : LARGE_PROBE)) run_huge(run, true);
}

/* A large run whose pages nobody has touched goes to a caller: with huge pages? One that lies in another's huge page
 * already gets them, for it would tell nothing. */
static NOINLINE void run_unsettle(struct heap *heap, struct span *run, size_t size)
{
    bool lives = large_look(heap);
    unsigned doubling = log2_floor(size), filled = PEEK(large_filled[doubling]), since = PEEK(large_since[doubling]);
    bool sure = large_is_sure(filled);
    size_t weight = lives ? 1 : 1 + size / LARGE_LONG; /* of long ones that come and go, one at a time is trusted */
    size_t trusted = lives ? size_max(2, LARGE_TRUST / size) : UINT8_MAX; /* a sparse one costs all its bytes */
    size_t turn = sure ? size_min(weight << (filled - LARGE_FEW + 1), size_min(trusted, UINT8_MAX)) : 0;
    bool huge = sure && (since + 1 < turn || os_dense((void *)run->address, size, 1));
    bool probed = sure && !huge && size >= LARGE_PROBED;
    POKE(large_since[doubling], huge ? (uint8_t)size_min(since + 1, UINT8_MAX) : 0);
    POKE(run->place, huge ? RUN_SETTLED : probed ? RUN_PROBED : RUN_UNSETTLED);
    if (sure || PEEK(regions_huge)) run_huge(run, huge || probed); /* in a region's huge page it would tell nothing */
    if (probed) os_huge(run_probe(run), LARGE_PROBE, false);
    heap->fresh = run;
}

static bool runs_given_many(const struct heap *heap) { return heap->run_given >= RUN_GIVEN_MANY << heap->peaks; }

/* Says how many bytes of runs the thread may keep beside those in hand: RUN_TIMES what its callers have, up to RUN_MORE
 * times what it may always keep, for an idle thread keeps them; and always that least, which doubles with each burst
 * (`peaks`). Of runs that other threads freed it does not know, so it counts no more than are out. Those in hand count
 * as its callers', who will soon ask for them, unless it gives one after the other. Where an idle thread's runs are
 * collected it may keep all that it had, up to RUN_WATCHED times the least. */
static void mid_allow(struct heap *heap)
{
    if (UNLIKELY(PEEK(heap->kept.taken) != 0)) heap->run_held -= size_min(heap->run_held, kept_learn(&heap->kept));
    size_t out = atomic_load_explicit(&run_units_out, memory_order_relaxed) << UNIT_SHIFT, shorts = 0;
    for (unsigned length = 1; runs_given_many(heap) && length <= RUN_SHORT; length++)
        shorts += shorts_count(heap, length) * length << UNIT_SHIFT;
    size_t held = size_min(heap->run_held, out), callers = held - size_min(held, shorts);
    size_t least = runs_least(), surplus = callers / (RUN_TIMES + 1) * RUN_TIMES;
    heap->run_allowed = size_max(least << heap->peaks, size_min(surplus, RUN_MORE * least));
    if (PEEK(runs_watched)) heap->run_allowed = size_max(heap->run_allowed, size_min(held, RUN_WATCHED * least));
    heap->kept.portion = size_max(heap->run_allowed / 4, RUN_PORTION);
}

/* As run_give, for a run of the heap's, where there is a heap. */
static void mid_spill(struct heap *heap, struct span *run, uint32_t life, uint64_t now)
{
    if (heap != NULL) {
        heap->run_held -= size_min(heap->run_held, run_touched_bytes(run));
        heap->run_given++;
        heap->given_ns = now;
        mid_allow(heap);
    }
    run_give(run, life, now);
}

static void short_spill(struct heap *heap, struct span *run, uint64_t now)
{
    mid_spill(heap, run, run_mark(run_block(run)), now);
}

/* Bounds the short runs in hand to so many bytes of each length; spills what is beyond. */
static void shorts_bound(struct heap *heap, size_t bytes)
{
    if (heap->short_bytes == bytes) return;
    uint64_t now = os_tick_ns();
    hand_enter(heap);
    shorts_limit(heap, bytes);
    for (unsigned length = 1; length <= RUN_SHORT; length++)
        while (heap->bins.shorts[length].top > heap->bins.shorts[length].limit)
            short_spill(heap, short_run(heap, length), now);
    hand_leave(heap);
}

static void shorts_flush(struct heap *heap, uint64_t now)
{
    hand_enter(heap);
    for (unsigned length = 1; length <= RUN_SHORT; length++)
        for (struct span *run; (run = short_run(heap, length)) != NULL;) short_spill(heap, run, now);
    hand_leave(heap);
}

/* Spills cached runs, longest first, until `keep` bytes are left; with 0, those in hand as well. */
static void mid_shrink(struct heap *heap, size_t keep, uint64_t now)
{
    if (keep == 0) shorts_flush(heap, now);
    for (struct span *run; (run = kept_longest(heap, keep)) != NULL;) mid_spill(heap, run, heap->kept.life, now);
    kept_enter(&heap->kept);
    kept_leave_told(&heap->kept); /* so that nobody collects here what has gone */
}

/* While a thread rests, runs can be collected from its lists, but not the uppermost ones in hand. So one that moves
 * runs from hand to lists again and again, and takes none, holds less in hand in the end (shorts_fall): it tears down
 * what it had. */
static bool shorts_fell(const struct heap *heap)
{
    return heap->shorts_kept == SHORTS_KEPT_MANY << heap->shorts_bursts;
}

/* It takes runs, and may have a full hand again. One that soon does so works in bursts, and falls later. */
static void shorts_rise(struct heap *heap)
{
    if (UNLIKELY(shorts_fell(heap))) {
        heap_regret(heap, &heap->shorts_bursts, SHORTS_BURSTS_MAX);
        shorts_limit(heap, shorts_bytes());
    }
    heap->shorts_kept = 0;
}

/* A run went to the arena since the thread had too much. What the thread keeps is brought down to what it may keep,
 * which falls with every run that goes; but no free pays for more than a few runs. A thread that gives one after the
 * other keeps a quarter of the short ones in hand, until it takes some. */
static void mid_fall(struct heap *heap, size_t bytes, uint64_t now)
{
    if (runs_given_many(heap)) shorts_bound(heap, shorts_bytes() / 4);
    size_t cached = PEEK(heap->kept.bytes), least = cached - size_min(cached, 2 * RUN_TIMES * bytes);
    struct span *run;
    while ((run = kept_longest(heap, size_max(heap->run_allowed, least))) != NULL)
        mid_spill(heap, run, heap->kept.life, now);
}

/* The thread takes runs that it did not keep, so it no longer gives one after the other. */
static void runs_taken(struct heap *heap)
{
    if (UNLIKELY(runs_given_many(heap))) heap_regret(heap, &heap->peaks, PEAKS_MAX);
    shorts_rise(heap);
    shorts_bound(heap, shorts_bytes());
    heap->run_given = 0;
}

static _Atomic size_t window_units; /* that may hold pages: in free growth windows, and spare ones in live ones */
static size_t (*windows_relieve)(uint64_t horizon); /* large.c's windows_purge; set at start */

/* A giant is asked for that no free memory with pages can serve. If that memory is much beside what callers have, it
 * goes back first, oldest first, so that what stayed does not raise the peak. Some of it stays where giants keep their
 * pages: as their sizes vary, now and then none serves, and all that went would be touched anew. */
static NOINLINE void giant_relieve(void)
{
    size_t much = (size_t)knob(KNOB_large_threshold) >> UNIT_SHIFT, keep = 0;
    if (PEEK(giants_stay)) keep = atomic_load_explicit(&run_units_out, memory_order_relaxed) / GIANT_KEEP;
    size_t in_windows = atomic_load_explicit(&window_units, memory_order_relaxed);
    size_t idle = atomic_load_explicit(&dirty_units, memory_order_relaxed) + in_windows;
    if (idle < size_max(much, keep) || !lock_try(&round_lock)) return;
    round_begin();
    if (in_windows > keep) windows_relieve(os_now_ns());
    arena_purge(os_now_ns(), keep);
    lock_drop(&round_lock);
}

/* A run from the arena, for at most SIZE_LIMIT bytes; NULL where memory ends. Runs lie side by side, so neighbours
 * share the huge pages at their ends. */
static struct span *mid_refill(struct heap *heap, size_t size)
{
    size_t units = run_units(size);
    unsigned bin = run_bin_ceil(run_length(units));
    uint32_t length = (uint32_t)(bin < RUN_BINS ? run_bin_units(bin) : units);
    bool huge = size >= LARGE_MIN && knob(KNOB_huge_pages), giant = large_goes(size);
    if (giant) large_came();
    lock_take(&arena_lock);
    struct span *run = arena_take_warm(length);
    lock_drop(&arena_lock);
    if (run == NULL) { /* no growth while pages lie idle: together with what lies beside them they may serve */
        if (PEEK(heap->kept.bytes) >= RUN_MUCH) mid_shrink(heap, 0, os_tick_ns());
        runs_relieve();
        depots_relieve_runs(atomic_load_explicit(&run_units_out, memory_order_relaxed));
        if (giant) giant_relieve();
        lock_take(&arena_lock);
        run = arena_take(length, 1);
        lock_drop(&arena_lock);
    }
    if (run == NULL) return NULL;
    stat_shared(STAT_spans_taken, 1);
    runs_taken(heap);
    if (UNLIKELY(PEEK(recycled_units) >= PEEK(recycled_due)) && knob(KNOB_huge_pages)) region_collapse(1);
    POKE(run->place, RUN_SETTLED);
    if (size < LARGE_MIN && run->zeroed) region_begin(run);
    else if (huge && run->zeroed) run_unsettle(heap, run, size);
    else if (huge && run->touched < units && large_is_sure(PEEK(large_filled[log2_floor(size)]))) run_huge(run, true);
    run_serve(run, size, units);
    heap->run_held += run_touched_bytes(run);
    if (run_row(run) != 0) hand_grew(heap, run_touched_bytes(run));
    atomic_fetch_add_explicit(&run_units_out, run->units, memory_order_relaxed);
    mid_allow(heap);
    return run;
}

static NOINLINE bool mid_keep_later(struct heap *heap, struct span *run)
{
    kept_enter(&heap->kept);
    kept_put(&heap->kept, run, run_touched_bytes(run));
    return kept_leave_fuller(&heap->kept);
}

static ALWAYS_INLINE bool mid_keep(struct heap *heap, struct span *run)
{
    struct kept *kept = &heap->kept;
    size_t bytes = run_touched_bytes(run);
    bool fits = PEEK(kept->bytes) + bytes <= heap->run_allowed;
    if (UNLIKELY(run->place || run->units >= RUN_UNITS_MAX || !fits)) return false;
    run_unsort(run);
    POKE(run->life, heap->kept.life);
    if (UNLIKELY(!kept_try(kept))) return mid_keep_later(heap, run);
    kept_put(kept, run, bytes);
    return kept_leave_fuller(kept);
}

/* The end of a round: what lay idle for all of it goes to the arena, lists of which none was taken first. So a thread
 * that needs less than it did keeps less. */
static NOINLINE void mid_age(struct heap *heap)
{
    uint64_t now = os_tick_ns();
    bool full = PEEK(heap->run_round) < RUN_ENDED;
    mid_allow(heap); /* there may be more threads, or nobody may collect any more */
    size_t keep = size_max(runs_least(), size_min(kept_used(&heap->kept), heap->run_allowed));
    struct span *unused;
    while (PEEK(heap->kept.bytes) > keep && (unused = kept_unused(heap)) != NULL)
        mid_spill(heap, unused, heap->kept.life, now);
    heap->kept.used = 0;
    mid_shrink(heap, keep, now);
    POKE(heap->run_round, 0);
    if (full && heap->run_held >= REGION_WORTH) { /* what a thread keeps and takes again is recycled, too */
        lock_take(&arena_lock);
        POKE(recycled_units, recycled_units + RUN_ROUND); /* each has a unit at least */
        lock_drop(&arena_lock);
        if (PEEK(recycled_units) >= PEEK(recycled_due) && knob(KNOB_huge_pages)) region_collapse(RUN_ROUND);
    }
}

static NOINLINE bool mid_keep_aged(struct heap *heap, struct span *run)
{
    bool kept = mid_keep(heap, run);
    mid_age(heap);
    return kept;
}

/* Keeps the run, which is not in hand, within the allowance; false where there is no room. */
static bool mid_free(struct heap *heap, struct span *run)
{
    uint32_t round = PEEK(heap->run_round) + 1;
    POKE(heap->run_round, round);
    if (UNLIKELY(round >= RUN_ROUND)) return mid_keep_aged(heap, run);
    return mid_keep(heap, run);
}
