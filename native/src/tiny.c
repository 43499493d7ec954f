/* tiny.c: blocks up to 1 KiB, one class every 16 bytes. A bin is 16 bytes long too, so a size rounded up is its bin's
 * offset. Owns the thread's front, through which malloc and free reach the heap's bins. Its hits are the hits of malloc
 * and of free. A free need not ask which pool a block belongs to: the bins of L2 and of short runs follow directly.
 *
 * A hit is thread-local: no lock, no atomic, no knob, no counter but the magazine's own top. Safety costs it seven
 * instructions for a malloc and its free. A block must know its slot (slab.c) before it is handed out, so one that was
 * overwritten, or is in two places, is noticed; and a freed pointer must be the start of a block of its slab. No block
 * holds the address of another while both are in a magazine, so none can be had by overwriting one. Nothing is written
 * to a block that is handed out: a series of calls waits for nothing but room in the core's store buffer.
 *
 * The compiler would spend a few more instructions, so on x86-64 some are written by hand. Everywhere else, and under a
 * sanitizer, the same code is plain C. */

static const struct bins no_bins = {.small = {[0 ... CLASSES - 1] = {NO_SLOT, NO_SLOT}},
                                    .shorts = {[0 ... RUN_SHORT] = {NO_SLOT, NO_SLOT}}};
#define NO_BINS ((struct bins *)&no_bins) /* never written, as nothing is taken out and nothing put in */

#define SIZES(bins) ((char *)(bins) + GRANULE - 1)

THREAD_LOCAL struct front front
    __attribute__((used, visibility("hidden"))) = {.bins = NO_BINS, .sizes = SIZES(NO_BINS)};
extern THREAD_LOCAL struct hak_front_t hak_front __attribute__((alias("front"), visibility("default")));
const struct hak_owners_t *const hak_owners = (const void *)&owners;

static void front_load(struct bins *bins)
{
    front.tiny_end = 0; /* so that a signal does not find what follows half changed */
    atomic_signal_fence(memory_order_seq_cst);
    front.bins = bins;
    front.sizes = SIZES(bins);
    atomic_signal_fence(memory_order_seq_cst);
    if (bins != NO_BINS) front.tiny_end = TINY_MAX + 1;
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define FRONT_WRITTEN 1
#else
#define FRONT_WRITTEN 0
#endif

/* The bin at an offset in a row of bins, with its address in one register. Intel's cores since Golden Cove pass a store
 * on to the next load within the cycle, but only if both name the address by one register. By base and index it takes
 * seven cycles, and as each call waits for the one before, that was a third of a call. */
static ALWAYS_INLINE struct bin *bin_at(struct bin *bins, size_t offset)
{
    char *bin = (char *)bins + offset;
    __asm__("" : "+r"(bin));
    return (struct bin *)bin;
}

/* The bin of a size up to TINY_MAX. */
static ALWAYS_INLINE struct bin *bin_of_size(size_t size)
{
#ifdef HAK_TINY_PUBLISHED8
    return bin_at(front.bins->small, tiny_round(size));
#else
    return (struct bin *)((uintptr_t)(front.sizes + size) & ~(uintptr_t)(GRANULE - 1));
#endif
}

/* The bin of a size above that, up to RUN_SHORT_MAX. */
static ALWAYS_INLINE struct bin *bin_of_big(size_t size) { return bin_at(front.bins->small, big_bin(size)); }

/* Pops a block; false where the magazine is empty, or its uppermost block was overwritten or is in use. The top is read
 * by observers in other threads, so it is an atomic without order.
 *
 * By hand, the slot is read at an index without a base. A core since Golden Cove foretells by which store a load at a
 * base was written. In most programs that is the last free, but not after one that a malloc followed at once: then the
 * core begins anew, and where this happens once in 16 calls, all take 2.5 times as long. At an index it foretells
 * nothing: where a malloc and its free take turns and every guess would be right, they take a sixth longer. */
static ALWAYS_INLINE bool bin_pop(struct bin *bin, uintptr_t *block)
{
    uintptr_t *top = bin->top;
#if FRONT_WRITTEN
    __asm__("movq -8(,%1,1), %0" : "=a"(*block) : "r"(top), "m"(top[-1])); /* the register of malloc's result */
#else
    *block = top[-1];
#endif
    if (UNLIKELY(block_words(*block)[0] != (uintptr_t)top)) return false;
    __asm__("" : "+r"(top)); /* not the equal word in the block: the next call would wait for that load too */
    POKE(bin->top, top - 1);
    return true;
}

/* Pushes a block; false where the magazine has no room. The top is stored last: else the next load of it would wait
 * where the block lies a multiple of 4 KiB from the bin. It is not raised in memory, which would load it again, behind
 * two stores to who knows where: where two classes take turns by chance, a core guesses wrong whether these are its
 * source, and a malloc and its free take twice as long. */
static ALWAYS_INLINE bool bin_push(struct bin *bin, uintptr_t block)
{
    uintptr_t *top = bin->top;
    if (UNLIKELY(top >= bin->limit)) return false;
    slot_fill(top, block);
    POKE(bin->top, top + 1);
    return true;
}

/* Does a carved block of a slab begin here, or that of a short run? `row`: twice its row. */
static ALWAYS_INLINE bool front_has(uintptr_t block, size_t *row)
{
#if FRONT_WRITTEN /* map_index by a multiplication in place of a copy and a mask; and compared in memory */
    uintptr_t upper;
    __asm__("imulq %2, %1, %0" : "=r"(upper) : "r"(block), "i"(1 << (64 - MAP_BITS - UNIT_SHIFT)) : "cc");
    const uint32_t *bound = &owners.bound[upper >> (64 - MAP_BITS)];
    *row = *(const uint8_t *)bound;
#else
    uint32_t read = PEEK(owners.bound[map_index(block)]), *bound = &read;
    *row = read & BOUND_ROW;
#endif
    const struct layout *layout = (void *)((const char *)owners.layout + *row * (sizeof *layout / 2));
    return ((uint32_t)block & layout->within) * layout->start < *bound;
}

/* Frees a block; false where no such block begins here, or the magazine has no room. */
static ALWAYS_INLINE bool front_free(uintptr_t block)
{
    size_t row;
    if (UNLIKELY(!front_has(block, &row))) return false;
    MUST(block_is_of((unsigned)row / 2, block), block);
    return bin_push(bin_at(front.bins->small, row * (sizeof(struct bin) / 2)), block);
}
