/* tiny.c: blocks up to 1 KiB, one class every 16 bytes, which a table of all sizes tells. Owns the thread's front, by
 * which malloc and free get at the heap's bins; its hits are the hits of both. A free need not ask which pool a block
 * is of: the bins of L2 are the next ones.
 *
 * A hit is thread-local: no lock, no atomic, no knob, no counter but the magazine's own top. Safety costs it seven
 * instructions a pair: a block must know its slot (slab.c) before it is handed out, so one that was overwritten, or is
 * in two places, is noticed; and a freed pointer must be the start of a block of its slab. No block's address lies in
 * another block while both are in a magazine, so none is to be had by overwriting one. Nothing is written to a block
 * that is handed out: a row of calls waits for nothing but the room in which a core keeps its stores.
 *
 * The compiler would spend several instructions more on a bin's top, so on x86-64 some are written down; everywhere
 * else, and where a sanitizer watches, the same code is plain C. */

static const uintptr_t no_run[1];
#define NO_RUN ((uintptr_t *)no_run + 1) /* top and limit of a bin that is empty and full */
static const struct bins no_bins = {.small = {[0 ... CLASSES - 1] = {NO_SLOT, NO_SLOT}},
                                    .shorts = {[0 ... RUN_SHORT + 1] = {NO_RUN, NO_RUN}}};
#define NO_BINS ((struct bins *)&no_bins) /* never written, as nothing is taken out and nothing put in */

THREAD_LOCAL struct front front __attribute__((used, visibility("hidden"))) = {.bins = NO_BINS, .owners = &owners};
extern THREAD_LOCAL struct hak_front_t hak_front __attribute__((alias("front"), visibility("default")));

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define FRONT_WRITTEN 1
#else
#define FRONT_WRITTEN 0
#endif

/* The bin of a row, twice a class: found by base and index each time, an instruction less than once for all. */
static ALWAYS_INLINE struct bin *bin_of_row(struct bins *bins, size_t *row)
{
    __asm__("" : "+r"(*row));
    return (struct bin *)((char *)bins->small + *row * (sizeof(struct bin) / 2));
}

/* Pops a block; false where the magazine is empty, or its uppermost block was overwritten or is in use. The top is read
 * by observers in other threads, so elsewhere than on x86-64 it is an atomic without order. */
static ALWAYS_INLINE bool bins_pop(struct bins *bins, size_t row, uintptr_t *block)
{
    uintptr_t *top = bin_of_row(bins, &row)->top;
    *block = top[-1];
    if (UNLIKELY(!slot_is_right(top - 1))) return false;
#if FRONT_WRITTEN
    __asm__("subq %1, %0" : "+m"(bin_of_row(bins, &row)->top) : "i"(sizeof *top) : "cc");
#else
    POKE(bin_of_row(bins, &row)->top, top - 1);
#endif
    return true;
}

/* Pushes a block; false where the magazine has no room. The top is stored last: a load of it that follows would else
 * wait where the block lies 4 KiB or a multiple from the bin. */
static ALWAYS_INLINE bool bin_push(struct bin *bin, uintptr_t block)
{
    uintptr_t *top = bin->top;
    if (UNLIKELY(top >= bin->limit)) return false;
    slot_fill(top, block);
    POKE(bin->top, top + 1);
    return true;
}

/* Has a slab a block here that was carved? `row`: twice its class. */
static ALWAYS_INLINE bool front_has(uintptr_t block, size_t *row)
{
#if FRONT_WRITTEN /* compared where it lies */
    const uint32_t *bound = &owners.bound[map_index(block)];
    *row = *(const uint8_t *)bound;
#else
    uint32_t read = PEEK(owners.bound[map_index(block)]), *bound = &read;
    *row = read & BOUND_ROW;
#endif
    const struct layout *layout = (void *)((const char *)owners.layout + *row * (sizeof *layout / 2));
    return ((uint32_t)block & layout->within) * layout->start < *bound;
}

/* Frees a block; false where it is no block's start, nobody was given it yet, or the magazine has no room. As
 * bin_push. */
static ALWAYS_INLINE bool front_free(uintptr_t block)
{
    size_t row;
    if (UNLIKELY(!front_has(block, &row))) return false;
    MUST(block_is_of((unsigned)row / 2, block), block);
    struct bins *bins = front.bins;
    uintptr_t *top = bin_of_row(bins, &row)->top;
    if (UNLIKELY(top >= bin_of_row(bins, &row)->limit)) return false;
    slot_fill(top, block);
    POKE(bin_of_row(bins, &row)->top, top + 1);
    return true;
}

/* Bytes of the tiny block that starts here; 0 where none does. */
static ALWAYS_INLINE size_t tiny_size(uintptr_t block)
{
    size_t row;
    return front_has(block, &row) && row < 2 * TINY_CLASSES ? row * (GRANULE / 2) : 0;
}
