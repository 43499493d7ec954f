/* rack.c: racks, the slots of long magazines, which travel through the depot together with the blocks they hold.
 * Racks lie in boxes, and boxes in mappings of their own, which no overflowing block reaches. When memory is tidied,
 * the pages of boxes whose racks are all free go back. */

static struct lock racks_lock;
static struct rack *racks_free;                        /* linked by their seals */
static struct rack_box *boxes_open, *boxes_bare;       /* in use; closed, with the first page alone */
static struct rack_box *box_carved;                    /* an open one, not all of whose racks were used yet */
static struct rack_box *boxes_fresh, *boxes_fresh_end; /* never used */
static uint32_t racks_out, boxes_idle;                 /* racks out with heaps and depots; open boxes with none out */
static struct rack_box *mappings[RACK_MAPPINGS];       /* the first box of each, twice as long as the one before */
static _Atomic uint32_t mapping_count;
static uintptr_t mappings_begin = UINTPTR_MAX, mappings_end; /* all lie between, and maybe what others mapped */

static struct rack *rack_of(const uintptr_t *slots)
{
    return (struct rack *)((uintptr_t)slots - offsetof(struct rack, slots));
}

static size_t mapping_boxes(uint32_t mapping) { return (size_t)BOXES_AT_ONCE << mapping; }

/* The box that the address lies in; NULL where it lies in none. */
static NOINLINE struct rack_box *box_of(uintptr_t address)
{
    uint32_t count = atomic_load_explicit(&mapping_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        size_t box = (address - (uintptr_t)mappings[i]) / sizeof *mappings[i];
        if (address >= (uintptr_t)mappings[i] && box < mapping_boxes(i)) return mappings[i] + box;
    }
    return NULL;
}

/* Does a word lie where all racks lie, and maybe other things? */
static ALWAYS_INLINE bool word_is_near_racks(uintptr_t word)
{
    return UNLIKELY(word >= PEEK(mappings_begin)) && word < PEEK(mappings_end);
}

/* May a word be the address of a rack's slot? */
static ALWAYS_INLINE bool word_is_of_rack(uintptr_t word) { return word_is_near_racks(word) && box_of(word) != NULL; }

static void boxes_map(void)
{
    uint32_t count = atomic_load_explicit(&mapping_count, memory_order_relaxed);
    if (count == RACK_MAPPINGS) return;
    struct rack_box *boxes = os_map(mapping_boxes(count) * sizeof *boxes);
    if (boxes == NULL) return;
    mappings[count] = boxes_fresh = boxes;
    boxes_fresh_end = boxes + mapping_boxes(count);
    atomic_store_explicit(&mapping_count, count + 1, memory_order_release);
    if ((uintptr_t)boxes < mappings_begin) POKE(mappings_begin, (uintptr_t)boxes);
    if ((uintptr_t)boxes_fresh_end > mappings_end) POKE(mappings_end, (uintptr_t)boxes_fresh_end);
}

static void box_open(void)
{
    if (boxes_bare == NULL && boxes_fresh == boxes_fresh_end) boxes_map();
    struct rack_box *box = boxes_bare != NULL ? boxes_bare : boxes_fresh != boxes_fresh_end ? boxes_fresh++ : NULL;
    if (box == NULL) return;
    if (box == boxes_bare) boxes_bare = box->next;
    box->next = boxes_open;
    boxes_open = box_carved = box;
    box->free = RACKS_A_BOX;
    box->carved = 0;
    boxes_idle++;
}

/* From how many blocks on has a magazine a rack? */
static uint32_t rack_least(unsigned class) { return class < TINY_CLASSES ? RACK_TINY_LEAST : RACK_L2_LEAST; }

/* Slots for MAGAZINE_MAX blocks; NULL where memory ends. */
static uintptr_t *rack_take(void)
{
    lock_take(&racks_lock);
    if (racks_free == NULL && (box_carved == NULL || box_carved->carved == RACKS_A_BOX)) box_open();
    struct rack *rack = racks_free;
    if (rack != NULL) {
        racks_free = (struct rack *)rack->seal;
    } else if (box_carved != NULL && box_carved->carved < RACKS_A_BOX) {
        rack = &box_carved->racks[box_carved->carved++];
        rack->box = box_carved;
    }
    if (rack != NULL) {
        boxes_idle -= rack->box->free-- == RACKS_A_BOX;
        POKE(racks_out, racks_out + 1);
        POKE(rack->seal, 0);
        POKE(rack->slots[0], LIST_END);
    }
    lock_drop(&racks_lock);
    return rack != NULL ? rack->slots : NULL;
}

static void rack_give(uintptr_t *slots)
{
    struct rack *rack = rack_of(slots);
    lock_take(&racks_lock);
    POKE(rack->seal, (uintptr_t)racks_free);
    racks_free = rack;
    boxes_idle += ++rack->box->free == RACKS_A_BOX;
    POKE(racks_out, racks_out - 1);
    lock_drop(&racks_lock);
}

/* Gives back the racks that a heap's magazines have. The heap is nobody's. */
static void racks_return(const struct heap *heap)
{
    for (unsigned class = 1; class < CLASSES; class ++) {
        if (heap->loaded[class].room == MAGAZINE_MAX) rack_give(heap->loaded[class].slots);
        if (heap->spare[class].room == MAGAZINE_MAX) rack_give(heap->spare[class].slots);
    }
}

/* Closes the open boxes of which nobody has a rack, and takes their racks off the free list. Result: these boxes,
 * linked. Under racks_lock. */
static struct rack_box *boxes_close(void)
{
    struct rack_box *idle = NULL, *box;
    struct rack *rack = boxes_idle != 0 ? racks_free : NULL, *next;
    if (rack != NULL) racks_free = NULL;
    for (; rack != NULL; rack = next) {
        next = (struct rack *)rack->seal;
        if (rack->box->free == RACKS_A_BOX) continue;
        POKE(rack->seal, (uintptr_t)racks_free);
        racks_free = rack;
    }
    for (struct rack_box **at = &boxes_open; boxes_idle != 0 && (box = *at) != NULL;) {
        if (box->free != RACKS_A_BOX) {
            at = &box->next;
            continue;
        }
        *at = box->next;
        box->next = idle;
        idle = box;
        boxes_idle--;
        if (box == box_carved) box_carved = NULL;
    }
    return idle;
}

/* Closes the boxes of which nobody has a rack, and gives back their pages, but for the first. */
static void racks_trim(void)
{
    lock_take(&racks_lock);
    struct rack_box *idle = boxes_close();
    lock_drop(&racks_lock);
    while (idle != NULL) {
        struct rack_box *box = idle;
        uintptr_t begin = align_up((uintptr_t)box->racks, os_page), end = align_down((uintptr_t)(box + 1), os_page);
        if (begin < end) (void)os_purge((void *)begin, end - begin);
        idle = box->next;
        lock_take(&racks_lock);
        box->next = boxes_bare;
        boxes_bare = box;
        lock_drop(&racks_lock);
    }
}

/* Does a rack in the depot hold the block, whose first word names the slot at this address, if a slot lies there? So do
 * live blocks that were not written to yet, or not whole: no lock, so that threads that resize such do not wait for
 * each other. Another thread may take or fill the rack meanwhile, or its box's pages may go: who reads the seal that it
 * has in the depot sees the blocks that it holds there, and no other word is like one. */
static NOINLINE bool racks_hold(uintptr_t at, uintptr_t block)
{
    const struct rack_box *box = box_of(at);
    if (box == NULL || at < (uintptr_t)box->racks) return false;
    const struct rack *rack = &box->racks[(at - (uintptr_t)box->racks) / sizeof *box->racks];
    uintptr_t blocks = (__atomic_load_n(&rack->seal, __ATOMIC_ACQUIRE) ^ link_key) >> POINTER_BITS;
    uintptr_t slot = (at - (uintptr_t)rack->slots) / sizeof *rack->slots;
    return blocks <= MAGAZINE_MAX && slot - 1 < blocks && PEEK(rack->slots[slot]) == block;
}
