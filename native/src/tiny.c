/* tiny.c: blocks up to 1 KiB, one class every 16 bytes. Owns the thread's front; its hits are the hits of malloc and
 * free. The front also has the bins of the smaller L2 classes, so that a free need not ask which pool a block is of.
 *
 * A hit is thread-local: no lock, no atomic, no knob, no counter but the magazine's own length. Safety costs it six
 * instructions a pair: a link must decode to an address before its block is handed out, the link is cleared then, so a
 * block that is in two places is noticed the second time, links are stored under a random key, and a freed pointer must
 * be the start of a block of its slab.
 *
 * The compiler would spend several instructions more on the bin's address and its room, so on x86-64 these are written
 * down; everywhere else, and where a sanitizer watches, the same code is plain C. Bins are not reached through the
 * segment register, which would save two: a core does not forward a store to a load by way of it without delay. */

THREAD_LOCAL struct front front __attribute__((used, visibility("hidden"))) = {
    .bins = {[0 ... FRONT_CLASSES - 1] = {.head = LIST_END}},
    .key = LINK_LEAST, /* nothing is above it, so no link is valid yet */
    .owners = &owners,
};
extern THREAD_LOCAL struct hak_front_t hak_front __attribute__((alias("front"), visibility("default")));

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define FRONT_WRITTEN 1
#else
#define FRONT_WRITTEN 0
#endif

/* The bin at an offset into the front. */
static ALWAYS_INLINE struct bin *front_bin(size_t offset)
{
#if FRONT_WRITTEN /* rdx leaves rax to the result */
    __asm__("add front@gottpoff(%%rip), %0\n\tadd %%fs:0, %0" : "+d"(offset) : : "cc");
    return (struct bin *)offset;
#else
    return (struct bin *)((char *)front.bins + offset);
#endif
}

/* Head and room are read by observers in other threads, so elsewhere than on x86-64 they are atomics without order. */
static ALWAYS_INLINE void front_room_add(struct bin *bin, int blocks)
{
#if FRONT_WRITTEN
    __asm__("addq %1, %0" : "+m"(bin->room) : "i"(blocks * BIN_ONE) : "cc");
#else
    POKE(bin->room, bin->room + (uint64_t)((int64_t)blocks * BIN_ONE));
#endif
}

static ALWAYS_INLINE void front_head_set(struct bin *bin, uintptr_t head)
{
#if FRONT_WRITTEN
    bin->head = head;
#else
    __atomic_store_n(&bin->head, head, __ATOMIC_RELAXED);
#endif
}

/* The block under this one in its bin. False where this one may not be handed out: the magazine is empty, or the block
 * was overwritten or is in use: then its link lies below the key, which its decoding tells. */
static ALWAYS_INLINE bool front_under(uintptr_t block, uintptr_t *next)
{
#if FRONT_WRITTEN /* rcx leaves rax to the result */
    bool below;
    *next = block_words(block)[0];
    __asm__("sub %2, %0" : "+c"(*next), "=@ccl"(below) : "m"(link_key));
    return !below;
#else
    *next = link_next(block);
    return link_valid(block);
#endif
}

/* Pops the bin's first block, under which `next` lies. */
static ALWAYS_INLINE uintptr_t front_pop(struct bin *bin, uintptr_t block, uintptr_t next)
{
    front_head_set(bin, next);
    block_words(block)[0] = 0;
    front_room_add(bin, 1);
    return block;
}

/* Pushes a block; false where its class is not the front's, it is no block's start, or the magazine has no room: then
 * the product is not below the room. */
static ALWAYS_INLINE bool front_free(uintptr_t block)
{
    size_t offset = owners.bin[map_index(block)];
    uint64_t product = (block & (UNIT_BYTES - 1)) * *(const uint64_t *)((const char *)owners.start + offset);
    struct bin *bin = front_bin(offset);
    if (UNLIKELY(product >= bin->room)) return false;
    front_room_add(bin, -1);
    link_set(block, bin->head);
    front_head_set(bin, block);
    return true;
}

/* Pops a block of a class of the front; 0 where the magazine is empty. */
static ALWAYS_INLINE uintptr_t front_allocate(unsigned class)
{
    struct bin *bin = front_bin(class * GRANULE);
    uintptr_t block = bin->head, next;
    return LIKELY(front_under(block, &next)) ? front_pop(bin, block, next) : 0;
}

static bool front_refill(struct heap *heap, unsigned class)
{
    struct bin *bin = &front.bins[class];
    if (bin->head != LIST_END) fatal("free block overwritten, or freed twice,", bin->head);
    return magazine_refill(heap, bin, class);
}

static void front_spill(struct heap *heap, unsigned class) { magazine_spill(heap, &front.bins[class], class); }
