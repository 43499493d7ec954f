/* l2.c: blocks above 1 KiB up to 32 KiB. The class comes from a table, without a branch; a slab keeps its free slots in
 * one word; nothing is ever cleared that nobody asked to be cleared. Up to 8 KiB, where a slab is one unit, the
 * magazines are the front's; above, where it is wider, they are the heap's. */

static ALWAYS_INLINE struct bin *wide_bin(struct heap *heap, unsigned class)
{
    return &heap->wide[class - FRONT_CLASSES];
}

static ALWAYS_INLINE uintptr_t wide_allocate(struct heap *heap, unsigned class)
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

/* Does a block of this wide class serve so many bytes well enough: is it long enough, and longer by half at most? */
static bool wide_is_near(unsigned class, size_t size)
{
    return class >= FRONT_CLASSES && classes[class].size >= size && classes[class].size <= size + size / 2;
}

/* A cached block of a longer class, for when none of this class lies ready with the thread, in its part of the depot or
 * in a slab; it is aligned as well as this one's are. These blocks are pages long: those of the longer one are there
 * already, those of a new one would be touched for the first time. 0: there is none. */
static NOINLINE uintptr_t wide_allocate_near(struct heap *heap, unsigned class)
{
    uint32_t size = classes[class].size, alignment = size & -size;
    bool ready = heap->spare[class].blocks != 0 || PEEK(depot_own(heap, class)->top) != 0 ||
                 PEEK(class_slabs[class].partial) != NULL;
    uintptr_t block = 0;
    for (class ++; !ready && block == 0 && class < CLASSES && wide_is_near(class, size); class ++)
        if (classes[class].size % alignment == 0) block = wide_allocate(heap, class);
    return block;
}
