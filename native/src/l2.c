/* l2.c: blocks above 8 KiB, up to 32 KiB. They are pages long, so where no block of a class lies ready, an idle one of
 * a longer class serves. */

/* A block of a class longer by half at most, from the thread's own magazine, for when none of this class lies ready
 * with the thread, in its part of the depot or in a slab. It is aligned as well as this one's are. Such blocks are
 * pages long: those of the longer one are there already, those of a new one would be touched for the first time. One
 * request in NEAR_MANY is refused, or a class that is served so again and again would never get blocks of its own. 0:
 * there is none. */
static NOINLINE uintptr_t wide_allocate_near(struct heap *heap, unsigned class)
{
    uint32_t size = classes[class].size, alignment = size & -size;
    uint8_t *lent = &heap->lent[class - WIDE_CLASS];
    *lent = (uint8_t)((*lent + 1) % NEAR_MANY);
    if (*lent == 0) return 0;
    bool behind = heap->spare[class].blocks != 0 && heap->apart[class].frees == 0; /* else these go home */
    bool ready = behind || PEEK(depot_own(heap, class)->top) != 0 || slabs_wait(heap, class);
    uintptr_t block;
    for (class ++; !ready && class < CLASSES && classes[class].size <= size + size / 2; class ++)
        if (classes[class].size % alignment == 0 && bin_pop(&heap->bins.small[class], &block)) return block;
    return 0;
}
