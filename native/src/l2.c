/* l2.c: blocks above 1 KiB up to 32 KiB. The class comes from a table, without a branch; magazines as in tiny, in the heap;
 * a slab keeps its free slots in one word. Nothing is ever cleared that nobody asked to be cleared. */

static ALWAYS_INLINE uintptr_t l2_allocate(struct heap *heap, unsigned class)
{
    struct bin *bin = &heap->l2[class - TINY_CLASSES];
    uintptr_t block = bin->head;
    if (UNLIKELY(!link_valid(block))) return 0;
    bin->head = link_next(block);
    block_words(block)[0] = 0;
    bin->room++;
    return block;
}

static ALWAYS_INLINE bool l2_free(struct heap *heap, struct span *slab, uintptr_t block)
{
    struct bin *bin = &heap->l2[slab->class - TINY_CLASSES];
    if (UNLIKELY(!class_is_start(slab->class, block - slab->address))) fatal("free of no block's start", block);
    if (UNLIKELY(bin->room <= 0)) return false;
    bin->room--;
    link_set(block, bin->head);
    bin->head = block;
    return true;
}

static bool l2_refill(struct heap *heap, unsigned class)
{
    struct bin *bin = &heap->l2[class - TINY_CLASSES];
    if (bin->head != LIST_END) fatal("free block overwritten, or freed twice,", bin->head);
    return magazine_refill(heap, bin, class);
}

static void l2_spill(struct heap *heap, unsigned class) { magazine_spill(heap, &heap->l2[class - TINY_CLASSES], class); }
