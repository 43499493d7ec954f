/* slab.c: a slab is one unit or a few, cut into equal blocks of one class.
 *
 * carved = handed out + in magazines + in the depot + returned. A heap carves its current slab without a lock. Blocks
 * come back in any order from any thread, under the class lock, into `returned`. A slab that nobody carves and whose
 * blocks are all returned goes back to its superslab.
 *
 * Returned blocks are bits. The lowest ones are known without looking into any block, so blocks are taken in the order
 * of their addresses, as from a new slab, whatever the order in which they were freed. And a block that is given back
 * twice is noticed. */

/* Added to every link, and to the addresses in the depot. Random once the allocator has started, but for its top bits,
 * so a word that is less, compared as signed numbers, is no link. At most one in 2^15 of all words passes. */
static uintptr_t link_key = LINK_LEAST;
static const uintptr_t empty_block[1]; /* ends every magazine and list: its word is no link and no slot's address */

static ALWAYS_INLINE void link_set(uintptr_t block, uintptr_t next) { block_words(block)[0] = next + link_key; }
static ALWAYS_INLINE uintptr_t link_next(uintptr_t block) { return block_words(block)[0] - link_key; }
static ALWAYS_INLINE bool link_valid(uintptr_t block) { return (intptr_t)block_words(block)[0] >= (intptr_t)link_key; }

#define LIST_END ((uintptr_t)empty_block)

/* Ends the program where a returned block was written to. */
static ALWAYS_INLINE void slab_expect_free(uintptr_t block)
{
    if (UNLIKELY(link_next(block) != LIST_END)) fatal("free block overwritten, or freed twice,", block);
}

/* A slot holds a free block's address, and the block's first word that of the next slot: the magazine's top while the
 * block is its uppermost. So of two slots that hold the same block, freed twice, only one is right; and none whose
 * block was overwritten, or is in use. */
static ALWAYS_INLINE void slot_name(const uintptr_t *slot, uintptr_t block)
{
    block_words(block)[0] = (uintptr_t)(slot + 1);
}

static ALWAYS_INLINE void slot_fill(uintptr_t *slot, uintptr_t block)
{
    POKE(*slot, block);
    slot_name(slot, block);
}

/* The slot that a free block's first word names; of other blocks, any address. */
static ALWAYS_INLINE uintptr_t block_slot(uintptr_t block) { return block_words(block)[0] - sizeof(uintptr_t); }

static ALWAYS_INLINE bool slot_is_right(const uintptr_t *slot)
{
    uintptr_t at = (uintptr_t)slot;
    __asm__("" : "+r"(at)); /* not the equal word in the block: from slot to slot, a loop would wait for that load */
    return block_slot(*slot) == at;
}

static void slot_expect_right(const uintptr_t *slot)
{
    if (UNLIKELY(!slot_is_right(slot))) fatal("free block overwritten, or freed twice,", *slot);
}

/* Threads are dealt to parts in turn, and a slab belongs to the part of the thread that took it new. Threads take from
 * slabs of their own part first: two that build and tear down at the same time neither wait for one another nor mix
 * their blocks. */
static _Atomic uint32_t parts_used = 1; /* the most threads that there were at a time, up to PARTS */

static uint32_t parts_count(void) { return atomic_load_explicit(&parts_used, memory_order_relaxed); }

static struct class_slabs class_slabs[PARTS][CLASSES];
static _Atomic size_t returned_bytes; /* of returned blocks in slabs of which other blocks are out */

/* Threads without a heap belong to the first part. */
static uint32_t heap_part(const struct heap *heap) { return heap->number != 0 ? (heap->number - 1) % PARTS : 0; }

static struct class_slabs *slabs_own(const struct heap *heap, unsigned class)
{
    return &class_slabs[heap_part(heap)][class];
}

static struct class_slabs *slabs_of(const struct span *slab) { return &class_slabs[slab->part][slab->class]; }

/* A list with slabs of a part whose threads moved little lately; NULL where there is none. */
static struct class_slabs *slabs_idle(unsigned class)
{
    uint32_t parts = parts_count();
    if (parts == 1) return NULL;
    uint64_t now = os_tick_ns();
    for (uint32_t part = 0; part < parts; part++) {
        struct class_slabs *slabs = &class_slabs[part][class];
        if (PEEK(slabs->partial) != NULL && now > PEEK(slabs->used_ns) + SLABS_IDLE_NS) return slabs;
    }
    return NULL;
}

/* Are there slabs with returned blocks for the heap? */
static bool slabs_wait(const struct heap *heap, unsigned class)
{
    return PEEK(slabs_own(heap, class)->partial) != NULL || slabs_idle(class) != NULL;
}

/* Would blocks for the heap need a new slab? */
static bool slabs_grow(const struct heap *heap, unsigned class)
{
    return heap->current[class] == NULL && !slabs_wait(heap, class);
}

/* Counts bytes that a thread of the part took from slabs or gave back. A lost update does no harm. */
static void slabs_use(struct class_slabs *slabs, size_t bytes, uint64_t now)
{
    size_t used = PEEK(slabs->used) + bytes;
    POKE(slabs->used, used < SLABS_USED ? used : 0);
    if (used >= SLABS_USED) POKE(slabs->used_ns, now);
}

/* Are many blocks of a part's class free, `cached` more in magazines included? If they were `before`, half as many will
 * do. */
static bool slabs_are_sparse(const struct class_slabs *slabs, unsigned class, uint32_t cached, bool before)
{
    size_t all = ((size_t)PEEK(slabs->slabs) * classes[class].slab_units) << UNIT_SHIFT;
    size_t free = ((size_t)PEEK(slabs->returned) + cached) * classes[class].size << before;
    return free >= SPARSE_LEAST && free * SPARSE_SHARE >= all;
}

/* Lists a slab with returned blocks. A stripped one comes last: its idle pages may be gone, so blocks are taken from
 * the others first. */
static void partial_link(struct class_slabs *slabs, struct span *slab)
{
    bool last = slab->quiet == SLAB_STRIPPED;
    POKE(slab->place, SLAB_PARTIAL);
    slab->prev = last ? slabs->last : NULL;
    slab->next = last ? NULL : slabs->partial;
    if (slab->prev != NULL) slab->prev->next = slab;
    else POKE(slabs->partial, slab);
    if (slab->next != NULL) slab->next->prev = slab;
    else slabs->last = slab;
}

static void partial_unlink(struct class_slabs *slabs, struct span *slab)
{
    POKE(slab->place, SLAB_NOWHERE);
    if (slabs->cursor == slab) slabs->cursor = slab->next;
    if (slab->prev != NULL) slab->prev->next = slab->next;
    else POKE(slabs->partial, slab->next);
    if (slab->next != NULL) slab->next->prev = slab->prev;
    else slabs->last = slab->prev;
}

static ALWAYS_INLINE bool slab_is_tiny(const struct span *slab) { return slab->class < TINY_CLASSES; }

static ALWAYS_INLINE uintptr_t slab_block(const struct span *slab, size_t index)
{
    return slab->address + index * classes[slab->class].size;
}

/* `words`: the row of bits for a tiny slab; NULL for others. */
static void slab_begin(struct span *slab, unsigned class, uint32_t part, uint64_t *words)
{
    slab->class = (uint8_t) class;
    slab->part = (uint8_t)part;
    slab->place = SLAB_NOWHERE;
    slab->carved = slab->returned = slab->heap = slab->lifeless = 0;
    slab->bare = slab->quiet = 0;
    if (words != NULL) slab->words = words;
    else slab->word = 0;
}

/* The bits of the slab's returned blocks. Those of blocks that begin in a bare part are not set. */
static ALWAYS_INLINE uint64_t *slab_words(struct span *slab) { return slab_is_tiny(slab) ? slab->words : &slab->word; }

static size_t slab_words_count(const struct span *slab) { return ((size_t)classes[slab->class].slab_blocks + 63) / 64; }

static bool slab_is_marked(struct span *slab, size_t index) { return bit_of(slab_words(slab), index); }

/* Marks some blocks of one word. Ends the program where one is marked already. */
static ALWAYS_INLINE void slab_mark(struct span *slab, size_t word, uint64_t bits)
{
    uint64_t *at = &slab_words(slab)[word], twice = *at & bits;
    if (UNLIKELY(twice != 0)) fatal("block freed twice", slab_block(slab, word * 64 + lowest_bit(twice)));
    *at |= bits;
}

static void slab_inspect(struct span *slab)
{
    for (size_t i = 0; i < slab->carved; i++)
        if (slab_is_marked(slab, i)) slab_expect_free(slab_block(slab, i));
}

/* In hardened mode free units read zero, so a write to one is found when it becomes part of a slab, and ends the
 * program. */
static bool slabs_inspected;

static void slab_expect_empty(const struct span *slab)
{
    const uint64_t *at = (const uint64_t *)slab->address, *end = at + span_bytes(slab) / sizeof *at;
    for (; at < end; at++)
        if (UNLIKELY(*at != 0)) fatal("block written after it was freed", (uintptr_t)at);
}

static void slab_empty(const struct span *slab)
{
    if (!os_purge((void *)slab->address, span_bytes(slab))) memset((void *)slab->address, 0, span_bytes(slab));
}

/* Sets the bound of all the slab's units, by which free tells its blocks. Index 0 stays as it is: NULL lies there. */
static void slab_bound(const struct span *slab, uint32_t bound)
{
    size_t first = map_index(slab->address);
    for (size_t index = first; index < first + slab->units; index++)
        if (index != 0) POKE(owners.bound[index], bound);
}

/* Adds to the number of slabs and of returned blocks. */
static void slabs_count(struct class_slabs *slabs, int32_t more, int32_t returned)
{
    lock_take(&slabs->lock);
    POKE(slabs->slabs, slabs->slabs + (uint32_t)more);
    POKE(slabs->returned, slabs->returned + (uint32_t)returned);
    lock_drop(&slabs->lock);
}

/* A fresh slab of the class for a part; NULL where memory ends. Before a new superslab is taken for it, runs that
 * threads keep go to the arena, which may then serve. */
static struct span *slab_new(unsigned class, uint32_t part)
{
    bool marked = class < TINY_CLASSES;
    uint32_t units = classes[class].slab_units;
    unsigned at;
    lock_take(&arena_lock);
    struct superslab *first = superslab_first(units, &at);
    if (first == NULL && runs_are_worth()) { /* else it is not searched for again: there may be very many superslabs */
        lock_drop(&arena_lock);
        runs_relieve();
        lock_take(&arena_lock);
        first = superslab_first(units, &at);
    }
    uint64_t *words = marked ? marks_take() : NULL;
    struct span *slab = words != NULL || !marked ? superslab_take(first, at, units) : NULL;
    struct superslab *halved = slab != NULL ? superslab_halved(slab) : NULL;
    if (slab != NULL) slab_begin(slab, class, part, words); /* before observers, who hold the lock, can see it */
    else if (words != NULL) marks_give(words, 0);
    lock_drop(&arena_lock);
    if (slab == NULL) return NULL;
    slabs_count(slabs_of(slab), 1, 0);
    if (UNLIKELY(halved != NULL)) superslabs_grow(halved);
    if (UNLIKELY(slabs_inspected)) slab_expect_empty(slab);
    return slab;
}

/* Gives a slab back to its superslab: nobody carves it, it is in no list, and all its blocks are returned. */
static void slab_delete(struct span *slab, uint64_t now)
{
    if (UNLIKELY(slabs_inspected)) {
        slab_inspect(slab);
        slab_empty(slab);
    }
    MUST(slab->kind == SPAN_SLAB && slab->returned == slab->carved && slab->place == SLAB_NOWHERE, slab->address);
    size_t size = classes[slab->class].size;
    slab_bound(slab, 0);
    atomic_fetch_sub_explicit(&carved_bytes, slab->carved * size_min(size, os_page), memory_order_relaxed);
    atomic_fetch_sub_explicit(&returned_bytes, slab->carved * size, memory_order_relaxed);
    slabs_count(slabs_of(slab), -1, -(int32_t)slab->carved);
    lock_take(&arena_lock);
    if (slab->bare != 0) superslab_bare(slab, false);
    if (slab_is_tiny(slab)) marks_give(slab->words, slab_words_count(slab));
    superslab_give(slab, now);
    lock_drop(&arena_lock);
}

/* Does a carved block of the slab begin here? Then `index` says which. */
static ALWAYS_INLINE bool slab_finds(const struct span *slab, uintptr_t block, size_t *index)
{
    return class_is_start(slab->class, block - slab->address, index) && *index < PEEK(slab->carved);
}

static ALWAYS_INLINE bool slab_has(const struct span *slab, uintptr_t block)
{
    size_t index;
    return slab_finds(slab, block, &index);
}

/* Does a carved block of a slab of this class begin here, or a block that belongs in that row of short runs? Every
 * block on its way between magazines and slabs is one of the first kind. */
static bool block_is_of(unsigned row, uintptr_t block)
{
    const struct span *span = span_of(block);
    if (span == NULL || row >= CLASSES) return span != NULL && span->kind == SPAN_RUN && run_is_live(span, block);
    return span->kind == SPAN_SLAB && span->class == row && slab_has(span, block);
}

/* Carves up to `wanted` new blocks into slots, the lowest address on top. By the heap that carves the slab or, where
 * none does, under the class lock. Result: how many. */
static uint32_t slab_carve(struct span *slab, uint32_t wanted, uintptr_t *slots)
{
    uint32_t size = classes[slab->class].size, left = classes[slab->class].slab_blocks - slab->carved;
    uint32_t n = wanted < left ? wanted : left;
    size_t ahead = CARVE_AHEAD * size_max(size, CACHE_LINE);
    uintptr_t block = slab->address + (size_t)(slab->carved + n) * size;
    for (uint32_t i = 0; i < n; i++) {
        block -= size;
        __builtin_prefetch((void *)(block - ahead), 1); /* no core foretells all the lines of such stores */
        slot_fill(&slots[i], block);
    }
    POKE(slab->carved, slab->carved + n);
    slab_bound(slab, class_bound(slab->class, slab->carved));
    atomic_fetch_add_explicit(&carved_bytes, n * size_min(size, os_page), memory_order_relaxed);
    return n;
}

/* --- parts of slabs: pages go back while other blocks of the slab are in use -------------------------------------- */

static unsigned slab_part_shift(const struct span *slab)
{
    return log2_floor(size_max(span_bytes(slab) / SLAB_PARTS, os_page));
}

/* The part in which a byte of the slab lies. */
static unsigned slab_part(const struct span *slab, uintptr_t byte)
{
    return (unsigned)((byte - slab->address) >> slab_part_shift(slab));
}

/* The parts in which a block lies, as bits. */
static uint32_t slab_parts(const struct span *slab, uintptr_t block)
{
    return (2u << slab_part(slab, block + classes[slab->class].size - 1)) - (1u << slab_part(slab, block));
}

/* Does the block begin in a bare part, one without pages? */
static bool slab_is_bare(const struct span *slab, uintptr_t block)
{
    return slab->bare != 0 && (slab->bare >> slab_part(slab, block) & 1) != 0;
}

/* A bare part reads zero. Ends the program where a block that begins there was written to since, as by a second
 * free. */
static void slab_expect_bare(const struct span *slab, uintptr_t block)
{
    uintptr_t end = slab->address + ((size_t)(slab_part(slab, block) + 1) << slab_part_shift(slab));
    size_t words = size_min(end - block, classes[slab->class].size) / sizeof(uintptr_t);
    for (size_t i = 0; i < words; i++)
        if (UNLIKELY(block_words(block)[i] != 0)) fatal("free block overwritten, or freed twice,", block);
}

/* Marks a block as returned, by its bit and its first word. Ends the program where it is marked already. */
static ALWAYS_INLINE void slab_put(struct span *slab, uintptr_t block, size_t index)
{
    uint64_t *word = &slab_words(slab)[index / 64];
    if (UNLIKELY((*word >> index % 64 & 1) != 0)) fatal("block freed twice", block);
    *word |= UINT64_C(1) << index % 64;
    link_set(block, LIST_END);
}

/* The part is bare no longer: the blocks that begin there are marked as returned, like others. Under the class lock. */
static void slab_dress(struct span *slab, unsigned part)
{
    size_t size = classes[slab->class].size, begin = (size_t)part << slab_part_shift(slab);
    size_t end = begin + ((size_t)1 << slab_part_shift(slab));
    for (size_t i = size_min((end + size - 1) / size, slab->carved); i-- > (begin + size - 1) / size;) {
        slab_expect_bare(slab, slab_block(slab, i));
        slab_put(slab, slab_block(slab, i), i);
    }
    POKE(slab->bare, (uint16_t)(slab->bare & ~(1u << part)));
    if (slab->bare != 0) return;
    lock_take(&arena_lock);
    superslab_bare(slab, false);
    lock_drop(&arena_lock);
}

/* --- taking and giving -------------------------------------------------------------------------------------------- */

/* Takes up to `wanted` blocks of a slab that nobody carves: returned ones first, the lowest address on top, whose first
 * words do not name their slots yet (see slabs_take), then new ones. Under the class lock. Result: how many. */
static uint32_t slab_take(struct span *slab, uint32_t wanted, uintptr_t *slots)
{
    uint32_t n = (uint32_t)size_min(wanted, slab->returned);
    uint64_t *words = slab_words(slab), word = 0, count = slab_words_count(slab);
    size_t size = classes[slab->class].size;
    POKE(slab->quiet, 0);
    for (uint32_t i = n; i > 0;) {
        uint64_t bits = words[word];
        if (bits == 0) {
            if (++word < count) continue;
            slab_dress(slab, lowest_bit(slab->bare));
            word = 0;
        } else if (UNLIKELY(slab->bare != 0)) {
            uintptr_t block = slab_block(slab, word * 64 + lowest_bit(bits));
            words[word] &= bits - 1;
            for (uint32_t bare; (bare = slab->bare & slab_parts(slab, block)) != 0;) slab_dress(slab, lowest_bit(bare));
            POKE(slots[--i], block);
        } else {
            uintptr_t first = slab->address + word * 64 * size;
            for (; bits != 0 && i > 0; bits &= bits - 1) {
                uintptr_t block = first + lowest_bit(bits) * size;
                __builtin_prefetch((void *)block, 1);
                POKE(slots[--i], block);
            }
            words[word] = bits;
        }
    }
    POKE(slab->returned, slab->returned - n);
    POKE(slabs_of(slab)->returned, slabs_of(slab)->returned - n);
    atomic_fetch_sub_explicit(&returned_bytes, (size_t)n * classes[slab->class].size, memory_order_relaxed);
    while (UNLIKELY(n < wanted && slab->bare != 0)) /* no block is there, but what is carved now may be */
        slab_dress(slab, lowest_bit(slab->bare));
    return n + slab_carve(slab, wanted - n, slots + n);
}

/* The rest of slab_give, where the slab's place changes: a stripped one moves to the front of the list, one with its
 * first returned block enters it, and one that is free as a whole leaves it. True for the last. */
static NOINLINE bool slab_given(struct class_slabs *slabs, struct span *slab)
{
    if (UNLIKELY(slab->quiet == SLAB_STRIPPED && slab->place == SLAB_PARTIAL)) partial_unlink(slabs, slab);
    POKE(slab->quiet, 0);
    if (slab->returned == slab->carved) {
        if (slab->place == SLAB_PARTIAL) partial_unlink(slabs, slab);
        return true;
    }
    if (slab->place == SLAB_NOWHERE) partial_link(slabs, slab);
    return false;
}

/* Returns a block to its slab. Under the class lock. True where the slab is now free as a whole and out of every
 * list. */
static ALWAYS_INLINE bool slab_give(struct class_slabs *slabs, struct span *slab, uintptr_t block, size_t index)
{
    if (UNLIKELY(slab_is_bare(slab, block))) fatal("block freed twice", block);
    slab_put(slab, block, index);
    uint32_t returned = slab->returned + 1;
    POKE(slab->returned, returned);
    MUST(returned <= PEEK(slab->carved), block);
    if (LIKELY(slab->place == SLAB_PARTIAL && slab->quiet == 0 && returned != slab->carved)) return false;
    return slab->place != SLAB_CURRENT && slab_given(slabs, slab);
}

/* As slab_of, for a block that no bound covers: one in the unit of index 0, which is NULL's. Ends the program for all
 * others. */
static COLD struct span *slab_search(unsigned class, uintptr_t block)
{
    struct span *slab = span_of(block);
    if (slab == NULL || slab->kind != SPAN_SLAB || slab->class != class) fatal("free list overwritten", block);
    if (!slab_has(slab, block)) fatal("free of no block", block);
    return slab;
}

/* The slab of a freed block, and the block's index in it: the upper half of the product by which free tells blocks
 * (sizeclass.c). Ends the program for what is no block of the class. */
static struct span *slab_of(unsigned class, uintptr_t block, uint32_t *index)
{
    struct layout layout = owners.layout[class];
    uint64_t product = (uint64_t)((uint32_t)block & layout.within) * layout.start;
    *index = (uint32_t)(product >> 32);
    if (UNLIKELY((uint32_t)product >= PEEK(owners.bound[map_index(block)]))) return slab_search(class, block);
    struct span *slab = span_of(block);
    if (UNLIKELY(slab == NULL || slab->class != class)) fatal("free list overwritten", block);
    return slab;
}

static bool slab_has_blocks(const struct span *slab)
{
    return slab->returned > 0 || slab->carved < classes[slab->class].slab_blocks;
}

/* The heap stops carving its slab of the class: it is listed if it has blocks to give, and deleted if all of its blocks
 * are returned. */
static void heap_abandon(struct heap *heap, unsigned class, uint64_t now)
{
    struct span *slab = heap->current[class];
    if (slab == NULL) return;
    heap->current[class] = NULL;
    struct class_slabs *slabs = slabs_of(slab);
    lock_take(&slabs->lock);
    POKE(slab->place, SLAB_NOWHERE);
    POKE(slab->heap, 0);
    bool whole = slab->returned == slab->carved;
    if (!whole && slab_has_blocks(slab)) partial_link(slabs, slab);
    lock_drop(&slabs->lock);
    if (whole) slab_delete(slab, now);
}

/* The state of most slabs to which blocks return: listed in this part, with all their pages, and not quiet. */
static uint64_t slab_usual(unsigned class, uint8_t part)
{
    const uint8_t bytes[sizeof(uint64_t)] = {[offsetof(struct span, kind)] = SPAN_SLAB,
                                             [offsetof(struct span, class)] = (uint8_t) class,
                                             [offsetof(struct span, place)] = SLAB_PARTIAL,
                                             [offsetof(struct span, part)] = part};
    uint64_t state;
    memcpy(&state, bytes, sizeof state);
    return state;
}

/* Returns tiny blocks as slab_of and slab_give would, until one is damaged, free already or none of ours, or its slab
 * is not as most are: in the first arena, in the usual state, and not whole by that block. Nothing is done for that
 * one. Under the part's class lock. Result: how many. */
static NOINLINE uint32_t slabs_give_usual(unsigned class, uint8_t part, const uintptr_t *slots, uint32_t blocks)
{
    const uint64_t usual = slab_usual(class, part);
    const struct layout layout = owners.layout[class];
    const uintptr_t base = arenas[0].base, end = LIST_END + link_key;
    const size_t bytes = PEEK(arenas[0].bytes);
    struct span *spans = arenas[0].spans;
    const uintptr_t *slot = slots;
    for (const uintptr_t *last = slots + blocks; slot != last; slot++) {
        uintptr_t block = *slot, offset = block - base;
        if (UNLIKELY(!slot_is_right(slot) || offset >= bytes)) break;
        struct span *slab = &spans[offset >> UNIT_SHIFT];
        if (UNLIKELY(PEEK(slab->state) != usual)) break;
        uint32_t index = (uint32_t)((uint64_t)((uint32_t)block & layout.within) * layout.start >> 32);
        uint32_t returned = slab->returned + 1;
        uint64_t *word = &slab->words[index / 64], bits = *word;
        if (UNLIKELY(returned == slab->carved || (bits >> index % 64 & 1) != 0)) break;
        MUST(block_is_of(class, block), block);
        *word = bits | UINT64_C(1) << index % 64;
        block_words(block)[0] = end;
        POKE(slab->returned, returned);
    }
    return (uint32_t)(slot - slots);
}

/* Returns the blocks in so many slots, each to its slab. Result: bytes. A block that is not free, or none of ours, ends
 * the program. */
static size_t slabs_return(unsigned class, const uintptr_t *slots, uint32_t blocks, uint64_t now)
{
    size_t bytes = (size_t)blocks * classes[class].size;
    atomic_fetch_add_explicit(&returned_bytes, bytes, memory_order_relaxed);
    for (uint32_t n = 0, asked = 0; n < blocks;) {
        uint32_t index, begin = n, end = (uint32_t)size_min(n + 64, blocks);
        for (; asked < end; asked++) /* blocks of many classes have left the near caches meanwhile */
            __builtin_prefetch((void *)slots[asked], 1);
        slot_expect_right(&slots[n]);
        struct span *slab = slab_of(class, slots[n], &index), *whole = NULL;
        const uint8_t part = slab->part; /* blocks of one part in a row share a hold of its lock */
        struct class_slabs *slabs = &class_slabs[part][class];
        lock_take(&slabs->lock);
        while (whole == NULL) {
            if (slab_give(slabs, slab, slots[n], index)) whole = slab;
            n++;
            if (LIKELY(class < TINY_CLASSES)) n += slabs_give_usual(class, part, slots + n, end - n);
            if (n == end) break;
            slot_expect_right(&slots[n]);
            slab = slab_of(class, slots[n], &index);
            if (UNLIKELY(slab->part != part)) break;
        }
        POKE(slabs->returned, slabs->returned + n - begin);
        lock_drop(&slabs->lock);
        if (whole != NULL) slab_delete(whole, now);
    }
    stat_shared(STAT_returned_blocks, blocks);
    return bytes;
}

/* Fills up to `wanted` slots with blocks of slabs that nobody carves. Result: how many. */
static uint32_t slabs_take(struct heap *heap, struct class_slabs *slabs, uint32_t wanted, uintptr_t *slots)
{
    uint32_t n = 0;
    lock_take(&slabs->lock);
    while (n < wanted && slabs->partial != NULL) {
        struct span *slab = slabs->partial;
        uint32_t carved = slab->carved;
        n += slab_take(slab, wanted - n, slots + n);
        stat_add(heap, STAT_carved_blocks, slab->carved - carved);
        if (!slab_has_blocks(slab)) partial_unlink(slabs, slab);
    }
    lock_drop(&slabs->lock); /* before the blocks are looked at: most of them are in no cache */
    const uintptr_t end = LIST_END + link_key;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t block = slots[i];
        if (LIKELY(block_words(block)[0] == end)) slot_name(&slots[i], block);
        else if (UNLIKELY(!slot_is_right(&slots[i]))) slab_expect_free(block); /* else a new one */
    }
    return n;
}

/* The same where memory ends, from any part's list. */
static COLD uint32_t slabs_take_any(struct heap *heap, unsigned class, uint32_t wanted, uintptr_t *slots)
{
    uint32_t n = 0;
    for (uint32_t part = 0; part < parts_count() && n == 0; part++)
        n = slabs_take(heap, &class_slabs[part][class], wanted, slots);
    return n;
}

/* Fills up to `wanted` slots with blocks: from slabs of the heap's part with returned blocks, then from the heap's
 * current slab, then from slabs of an idle part, then from a new one. Result: how many, 0 where memory ends. */
static uint32_t slabs_fill(struct heap *heap, unsigned class, uint32_t wanted, uintptr_t *slots)
{
    struct class_slabs *own = slabs_own(heap, class);
    if (PEEK(own->partial) != NULL) {
        uint32_t n = slabs_take(heap, own, wanted, slots);
        slabs_use(own, (size_t)n * classes[class].size, os_tick_ns());
        if (n != 0) return n;
    }
    struct span *slab = heap->current[class];
    if (slab == NULL) {
        struct class_slabs *idle = slabs_idle(class);
        uint32_t n = idle != NULL ? slabs_take(heap, idle, wanted, slots) : 0;
        if (n != 0) return n;
        slab = slab_new(class, heap_part(heap));
        heap->current[class] = slab;
        if (slab == NULL) return slabs_take_any(heap, class, wanted, slots);
        POKE(slab->place, SLAB_CURRENT);
        POKE(slab->heap, heap->number);
    }
    uint32_t n = slab_carve(slab, wanted, slots);
    stat_add(heap, STAT_carved_blocks, n);
    if (slab->carved == classes[class].slab_blocks) /* so that what comes back is listed */
        heap_abandon(heap, class, os_tick_ns());
    return n;
}
