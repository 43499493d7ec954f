/* tiny.c: blocks up to 1 KiB, one class every 16 bytes. Owns the thread's front; its hits are the hits of malloc and
 * free. The front also has the bins of the smaller L2 classes, so that a free need not ask which pool a block is of.
 *
 * A hit is thread-local: no lock, no atomic, no knob, no counter but the magazine's own length. Safety costs it eight
 * instructions a pair: a link's tag is checked before its block is handed out, the link is cleared then, so a block
 * that is in two places is noticed the second time, links are stored under a random key, and a freed pointer must be
 * the start of a block of its slab.
 *
 * On x86-64 the bins are reached through the segment register, which saves the address of the thread; everywhere else,
 * and where a sanitizer watches, the same code is plain C. */

THREAD_LOCAL struct front front __attribute__((used, visibility("hidden"))) = {
    .bins = {[0 ... FRONT_CLASSES - 1] = {.head = LIST_END}},
};
extern THREAD_LOCAL struct hak_front_t hak_front __attribute__((alias("front"), visibility("default")));

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define FRONT_SEGMENT 1
typedef struct bin __seg_fs *bin_pointer;
#else
#define FRONT_SEGMENT 0
typedef struct bin *bin_pointer;
#endif

/* The bin at an offset into the front. */
static ALWAYS_INLINE bin_pointer front_bin(size_t offset)
{
#if FRONT_SEGMENT
    __asm__("add front@gottpoff(%%rip), %0" : "+d"(offset) : : "cc"); /* rdx leaves rax to the result */
    return (bin_pointer)offset;
#else
    return (bin_pointer)((char *)front.bins + offset);
#endif
}

/* Is the address no start of a block of the bin's size? One multiplication, see sizeclass.c. */
static ALWAYS_INLINE bool front_misplaced(bin_pointer bin, uintptr_t block)
{
    uint32_t product = (uint32_t)(block & (UNIT_BYTES - 1));
#if FRONT_SEGMENT
    bool misplaced;
    __asm__("imul %%fs:12(%2), %1\n\tcmp %%fs:12(%2), %1" : "=@ccae"(misplaced), "+r"(product) : "r"(bin));
    return misplaced;
#else
    return product * bin->magic >= bin->magic;
#endif
}

/* Head and length are read by observers in other threads, so elsewhere than on x86-64 they are atomics without
 * order. */
static ALWAYS_INLINE int32_t front_room_add(bin_pointer bin, int32_t n)
{
#if FRONT_SEGMENT
    return bin->room += n;
#else
    int32_t room = __atomic_load_n(&bin->room, __ATOMIC_RELAXED) + n;
    __atomic_store_n(&bin->room, room, __ATOMIC_RELAXED);
    return room;
#endif
}

static ALWAYS_INLINE void front_head_set(bin_pointer bin, uintptr_t head)
{
#if FRONT_SEGMENT
    bin->head = head;
#else
    __atomic_store_n(&bin->head, head, __ATOMIC_RELAXED);
#endif
}

/* May this block be handed out? Not where the magazine is empty, nor where the block was overwritten or is in use. */
static ALWAYS_INLINE bool front_ready(uintptr_t block) { return ((const uint16_t *)block)[3] == LINK_TAG; }

/* Pops the bin's first block, which is ready. */
static ALWAYS_INLINE uintptr_t front_pop(bin_pointer bin, uintptr_t block)
{
    front_head_set(bin, link_next(block));
    block_words(block)[0] = 0;
    front_room_add(bin, 1);
    return block;
}

/* Pushes a block; false where its class is not the front's, it is no block's start, or the magazine has no room. */
static ALWAYS_INLINE bool front_free(uintptr_t block)
{
    bin_pointer bin = front_bin(owner_map[map_index(block)]);
    if (UNLIKELY(front_misplaced(bin, block))) return false;
    if (UNLIKELY(front_room_add(bin, -1) < 0)) return false; /* the spill that follows sets the room anew */
    link_set(block, bin->head);
    front_head_set(bin, block);
    return true;
}

/* Pops a block of a class of the front; 0 where the magazine is empty. */
static ALWAYS_INLINE uintptr_t front_allocate(unsigned class)
{
    bin_pointer bin = front_bin(class * GRANULE);
    uintptr_t block = bin->head;
    return LIKELY(front_ready(block)) ? front_pop(bin, block) : 0;
}

static bool front_refill(struct heap *heap, unsigned class)
{
    struct bin *bin = &front.bins[class];
    if (bin->head != LIST_END) fatal("free block overwritten, or freed twice,", bin->head);
    return magazine_refill(heap, bin, class);
}

static void front_spill(struct heap *heap, unsigned class)
{
    POKE(front.bins[class].room, front.bins[class].room + (front.bins[class].room < 0)); /* the failed free took one */
    magazine_spill(heap, &front.bins[class], class);
}
