/* short.c: short runs on their way: between a thread's hand and its lists, and through the depot to other threads. Half
 * a hand moves at once. */

/* Short runs of the length that leave the hand at once: half of them, or as many as make room for one. */
static uint32_t shorts_leaving(const struct heap *heap, size_t length)
{
    const struct bin *bin = &heap->bins.shorts[length];
    size_t count = shorts_count(heap, length), over = bin->top < bin->limit ? 0 : (size_t)(bin->top - bin->limit) + 1;
    return (uint32_t)size_min(size_max((count + 1) / 2, over), count);
}

/* So many short runs left the hand. */
static void runs_count(struct heap *heap, uint32_t runs)
{
    POKE(heap->run_round, PEEK(heap->run_round) + runs);
    if (UNLIKELY(PEEK(heap->run_round) >= RUN_ROUND)) mid_age(heap);
}

/* Short runs left the hand for the lists. What is in hand beyond the new limits follows when more are freed. */
static void shorts_fall(struct heap *heap)
{
    heap->shorts_kept++;
    if (LIKELY(!shorts_fell(heap))) return;
    shorts_limit(heap, shorts_bytes() / 4);
    heap->short_bytes = 0;
    heap->given_ns = os_tick_ns();
}

/* Makes room in hand for short runs of this length: those freed last are kept with accounts, as many as may be. Their
 * first words name their descriptors meanwhile (kept_expect), and free would still take them. Result: how many. */
static NOINLINE uint32_t shorts_keep(struct heap *heap, size_t length)
{
    struct kept *kept = &heap->kept;
    size_t longest = (length + 1) << UNIT_SHIFT;
    uint32_t runs = 0;
    uint32_t leaving = shorts_fell(heap) ? (uint32_t)shorts_count(heap, length) : shorts_leaving(heap, length);
    kept_enter(kept);
    for (; runs < leaving && kept->bytes + longest <= heap->run_allowed; runs++) {
        struct span *run = short_run(heap, length);
        block_words(run_block(run))[0] = (uintptr_t)run;
        POKE(run->life, kept->life);
        kept_put(kept, run, run_touched_bytes(run));
    }
    kept_leave_fuller(kept);
    if (runs != 0 && !shorts_fell(heap)) shorts_fall(heap);
    return runs;
}

/* Takes short runs that are kept with accounts, at most half of what may be in hand, which holds none. The one that was
 * freed last is the result, as its block; the others are in hand. 0 where there is none. */
static NOINLINE uintptr_t shorts_unkeep(struct heap *heap, size_t length)
{
    struct kept *kept = &heap->kept;
    struct bin *bin = &heap->bins.shorts[length];
    shorts_rise(heap);
    size_t half = (size_t)(bin->limit - bin->top + 1) / 2;
    uintptr_t block = 0;
    kept_enter(kept);
    kept->used |= UINT64_C(1) << (length - 1);
    while (kept->runs[length - 1] != NULL) {
        struct span *run = kept_take_first(kept, (unsigned)length - 1);
        if (LIKELY(run_row(run) == CLASSES + length)) POKE(run->life, run_mark(run_block(run)));
        else run_serve(run, short_size(length), length);
        if (block != 0) bin_push(bin, block);
        block = run_block(run);
        if (half-- <= 1 || run_row(run) == 0) break;
    }
    kept_leave(kept);
    return block;
}

/* They go from thread to thread by one part of the depot, which holds few of them. There their descriptors are not
 * touched. */
static struct depot *shorts_depot(size_t length) { return &depots[0][CLASSES + length]; }

/* Makes room in hand by passing short runs on. Result: how many; 0 where nobody wants them. */
static NOINLINE uint32_t shorts_pass(struct heap *heap, size_t length)
{
    struct depot *depot = shorts_depot(length);
    struct bin *bin = &heap->bins.shorts[length];
    uint32_t runs = shorts_leaving(heap, length);
    bool wanted = PEEK(depot->given) < 0 && PEEK(depot->magazines) < SHORTS_PASSED;
    if (!wanted || runs == 0 || depots_hold((size_t)knob(KNOB_depot_bytes))) return 0;
    struct chain chain = chain_pack(CLASSES + (unsigned)length, bin->top - runs, runs);
    POKE(bin->top, bin->top - runs);
    depot_push(depot, CLASSES + (unsigned)length, chain);
    heap->run_held -= size_min(heap->run_held, runs * length << UNIT_SHIFT);
    return runs;
}

/* Takes what was passed on into the hand, which holds none. Result: the block of one; 0 where there is none. */
static NOINLINE uintptr_t shorts_receive(struct heap *heap, size_t length)
{
    struct depot *depot = shorts_depot(length);
    if (atomic_load_explicit(&heaps_alive, memory_order_relaxed) != 1) depot_ask(depot, 1, DEPOT_ASKED);
    struct chain chain = depot_pop(depot, CLASSES + (unsigned)length);
    if (chain.blocks == 0) return 0;
    if (UNLIKELY(chain.blocks > shorts_most(length))) fatal("free block overwritten, or freed twice,", chain.head);
    runs_taken(heap);
    hand_enter(heap);
    uintptr_t *slots = shorts_slots(heap, length);
    chain_unpack(CLASSES + (unsigned)length, chain, slots);
    POKE(heap->bins.shorts[length].top, slots + chain.blocks);
    hand_leave(heap);
    heap->run_held += chain.blocks * length << UNIT_SHIFT;
    hand_grew(heap, chain.blocks * length << UNIT_SHIFT);
    return short_pop(heap, length);
}

/* Where no short run of the length for the size was found in hand, which may just have been asked for in vain: one that
 * is kept with accounts, else one of the next length in hand, if that is near enough and it is not the turn of
 * mid_allocate_near to refuse it, else one that was passed on. Result: its block; 0 where there is none. */
static uintptr_t short_take_more(struct heap *heap, size_t size)
{
    size_t units = run_units(size), length = run_length(units), next = run_length(length + 1);
    uint8_t *lent = &heap->short_lent[length];
    bool near = next <= RUN_SHORT && run_is_near(next, units) && *lent < NEAR_MANY - 1;
    hand_enter(heap);
    uintptr_t block = short_pop(heap, length);
    if (block == 0 && PEEK(heap->kept.runs[length - 1]) != NULL) block = shorts_unkeep(heap, length);
    else if (block == 0 && near && (block = short_pop(heap, next)) != 0) *lent += 1;
    hand_leave(heap);
    return block != 0 ? block : shorts_receive(heap, length);
}

/* Could the block's first word be that of a short run in the depot? All but the first of a magazine lead nowhere, for
 * it has a strand for each. */
static bool short_leads_on(unsigned row, uintptr_t block)
{
    uintptr_t below;
    struct chain chain = chain_open(block, &below);
    return link_next(block) == 0 || (chain.blocks - 1 < RUN_SHORT_MOST && (below == 0 || row_has(row, below)));
}

/* Is this a short run that is free, in the thread's own hand or in the depot? The first word of a live one seldom says
 * so. */
static bool short_is_free(struct heap *heap, const struct span *span)
{
    unsigned row = span->kind == SPAN_RUN ? run_row(span) : 0;
    if (row == 0) return false;
    uintptr_t block = run_block(span);
    if (slots_hold(shorts_slots(heap, row - CLASSES), heap->bins.shorts[row - CLASSES].top, block)) return true;
    bool leads = (intptr_t)block_words(block)[0] >= (intptr_t)CHAIN_LEAST && short_leads_on(row, block);
    return leads && depot_holds(shorts_depot(row - CLASSES), row, block);
}

/* May it be? For one whose block starts in the first arena, as a bound says. The descriptor of a run that the thread
 * keeps tells, and the first word of one in its hand or in the depot. */
static ALWAYS_INLINE bool short_seems_free(const struct heap *heap, unsigned row, uintptr_t block)
{
    uintptr_t word = block_words(block)[0], slots = (uintptr_t)heap->short_slots[row - CLASSES];
    return (intptr_t)word >= (intptr_t)CHAIN_LEAST || word - slots <= (RUN_SHORT_MOST + 1) * sizeof word ||
           !run_is_live(&arenas[0].spans[(block - arenas[0].base) >> UNIT_SHIFT], block);
}

/* A short run is freed, for which there is no room in hand, unless that was only shut: makes room, if it can. */
static bool short_put(struct heap *heap, struct span *run)
{
    unsigned row = run_row(run);
    uintptr_t block = run_block(run);
    if (row == 0) return false;
    if (UNLIKELY(short_is_free(heap, run))) fatal("block freed twice", block);
    hand_enter(heap);
    uint32_t left = 0;
    bool put = bin_push(&heap->bins.shorts[row - CLASSES], block);
    if (!put && (left = shorts_keep(heap, row - CLASSES)) == 0) left = shorts_pass(heap, row - CLASSES);
    if (left != 0) put = bin_push(&heap->bins.shorts[row - CLASSES], block);
    hand_leave(heap);
    runs_count(heap, left);
    return put;
}

/* The same, where no room can be made. The run takes the place of the one freed before it, which is the result: where
 * two threads free a run at a time, both have it in hand, and one finds that out when it takes it. All other runs are
 * their own result. */
static struct span *short_trade(struct heap *heap, struct span *run)
{
    unsigned row = run_row(run);
    if (row == 0) return run;
    hand_enter(heap);
    uintptr_t last = short_pop(heap, row - CLASSES);
    struct bin *bin = &heap->bins.shorts[row - CLASSES];
    if (last != 0) {
        slot_fill(bin->top, run_block(run)); /* whatever the limit is by now */
        POKE(bin->top, bin->top + 1);
    }
    hand_leave(heap);
    return last != 0 ? span_of(last) : run;
}

/* Keeps a freed run, or one that makes room for it. False where neither can be: then the caller has to give `run`
 * away. */
static ALWAYS_INLINE bool run_keep(struct heap *heap, struct span **run)
{
    if (short_put(heap, *run)) return true;
    *run = short_trade(heap, *run);
    return mid_free(heap, *run);
}
