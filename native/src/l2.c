/* l2.c: blocks above 1 KiB up to 32 KiB. The class comes from a table, without a branch; a slab keeps its free slots in
 * one word; nothing is ever cleared that nobody asked to be cleared. Up to 8 KiB, where a slab is one unit, the
 * magazines are the front's; above, where it is wider, they are the heap's. */

static ALWAYS_INLINE struct bin *wide_bin(struct heap *heap, unsigned class)
{
    return &heap->wide[class - FRONT_CLASSES];
}

static uintptr_t wide_allocate(struct heap *heap, unsigned class)
{
    uintptr_t block;
    return LIKELY(bin_pop(wide_bin(heap, class), &block)) ? block : 0;
}

static ALWAYS_INLINE uintptr_t l2_allocate(struct heap *heap, unsigned class)
{
    return LIKELY(class < FRONT_CLASSES) ? front_allocate(class) : wide_allocate(heap, class);
}

/* Pushes a block of a wide class; false where the magazine has no room. */
static ALWAYS_INLINE bool wide_free(struct heap *heap, struct span *slab, uintptr_t block)
{
    if (UNLIKELY(!class_is_start(slab->class, block - slab->address))) fatal("free of no block's start", block);
    return bin_push(wide_bin(heap, slab->class), block);
}
