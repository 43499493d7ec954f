/* l2.c: blocks above 1 KiB up to 32 KiB. The class comes from a table, without a branch; a slab keeps its free slots in
 * one word; nothing is ever cleared that nobody asked to be cleared. Up to 8 KiB, where a slab is one unit, the
 * magazines are the front's; above, where it is wider, they are the heap's. */

/* Which of the two rows a class's bin lies in is chosen without a branch: no core foretells it where sizes vary. */
static ALWAYS_INLINE struct bin *l2_bin(struct far_bins *far, unsigned class)
{
    struct bin *row = front_bins(), *wide = far->wide - FRONT_CLASSES;
    if (class >= FRONT_CLASSES) row = wide;
    return row + class;
}

/* A block of a class above TINY_MAX; 0 where its magazine is empty. */
static ALWAYS_INLINE uintptr_t l2_allocate(struct far_bins *far, unsigned class)
{
    uintptr_t block;
    return LIKELY(bin_pop(l2_bin(far, class), &block)) ? block : 0;
}

/* The slab that one of its units lies in; NULL where the unit is no slab's. */
static ALWAYS_INLINE struct span *slab_of(struct span *unit)
{
    _Static_assert(SPAN_SLAB % 2 == 0 && SPAN_SLAB_INSIDE == SPAN_SLAB + 1, "ORDER KIND");
    return (PEEK(unit->kind) & ~1) == SPAN_SLAB ? unit - unit->back : NULL;
}

/* Pushes a block of a slab of a wide class; false where it is no block's start, or the magazine has no room. */
static ALWAYS_INLINE bool wide_free(struct far_bins *far, const struct span *slab, uintptr_t block)
{
    unsigned class = slab->class;
    return class >= FRONT_CLASSES && LIKELY(slab_has(slab, block)) &&
           bin_push(&far->wide[class - FRONT_CLASSES], block);
}

/* Does a block of this wide class serve so many bytes well enough: is it long enough, and longer by half at most? */
static bool wide_is_near(unsigned class, size_t size)
{
    return class >= FRONT_CLASSES && classes[class].size >= size && classes[class].size <= size + size / 2;
}

/* A cached block of a longer class, for when none of this class lies ready with the thread, in its part of the depot or
 * in a slab; it is aligned as well as this one's are. These blocks are pages long: those of the longer one are there
 * already, those of a new one would be touched for the first time. But a class that is served so again and again gets
 * a block of its own each time NEAR_MANY were lent, or it would never have any. 0: there is none. */
static NOINLINE uintptr_t wide_allocate_near(struct heap *heap, unsigned class)
{
    uint32_t size = classes[class].size, alignment = size & -size;
    uint8_t *lent = &heap->lent[class - FRONT_CLASSES];
    *lent = (uint8_t)((*lent + 1) % NEAR_MANY);
    if (*lent == 0) return 0;
    bool ready = heap->spare[class].blocks != 0 || PEEK(depot_own(heap, class)->top) != 0 ||
                 PEEK(class_slabs[class].partial) != NULL;
    uintptr_t block = 0;
    for (class ++; !ready && block == 0 && class < CLASSES && wide_is_near(class, size); class ++)
        if (classes[class].size % alignment == 0) block = l2_allocate(&heap->far, class);
    return block;
}
