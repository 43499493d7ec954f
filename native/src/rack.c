/* rack.c: slots of the longest magazines, which travel through the depot with what they hold. They lie in boxes, and
 * these in mappings of their own, where no block that overflows reaches. When memory is tidied, pages go back of boxes
 * of which nobody has a rack. */

static struct lock racks_lock;
static struct rack *racks_free;                  /* linked by their seals */
static struct rack_box *boxes_open, *boxes_bare; /* those with racks, and those without, nor pages but the first */
static uint32_t racks_out, boxes_idle;           /* racks that somebody has; open boxes of which nobody has one */
static uintptr_t boxes_begin = UINTPTR_MAX, boxes_end; /* all lie between */

static struct rack *rack_of(const uintptr_t *slots)
{
    return (struct rack *)((uintptr_t)slots - offsetof(struct rack, slots));
}

/* May a word be the address of a slot? Of a program's words hardly one lies there. */
static ALWAYS_INLINE bool word_is_of_rack(uintptr_t word)
{
    return UNLIKELY(word >= PEEK(boxes_begin)) && word < PEEK(boxes_end);
}

static void boxes_map(void)
{
    struct rack_box *boxes = os_map(BOXES_AT_ONCE * sizeof *boxes);
    if (boxes == NULL) return;
    for (unsigned i = BOXES_AT_ONCE; i-- > 0; boxes_bare = &boxes[i]) boxes[i].next = boxes_bare;
    if ((uintptr_t)boxes < boxes_begin) POKE(boxes_begin, (uintptr_t)boxes);
    if ((uintptr_t)&boxes[BOXES_AT_ONCE] > boxes_end) POKE(boxes_end, (uintptr_t)&boxes[BOXES_AT_ONCE]);
}

static void box_open(void)
{
    if (boxes_bare == NULL) boxes_map();
    struct rack_box *box = boxes_bare;
    if (box == NULL) return;
    boxes_bare = box->next;
    box->next = boxes_open;
    boxes_open = box;
    box->free = RACKS_A_BOX;
    boxes_idle++;
    for (unsigned i = RACKS_A_BOX; i-- > 0; racks_free = &box->racks[i]) {
        box->racks[i].box = box;
        box->racks[i].seal = (uintptr_t)racks_free;
    }
}

/* Slots for MAGAZINE_MAX blocks; NULL where memory ends. */
static uintptr_t *rack_take(void)
{
    lock_take(&racks_lock);
    if (racks_free == NULL) box_open();
    struct rack *rack = racks_free;
    if (rack != NULL) {
        racks_free = (struct rack *)rack->seal;
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

/* Pages go back of the boxes of which nobody has a rack. */
static void racks_trim(void)
{
    lock_take(&racks_lock);
    struct rack *rack = boxes_idle != 0 ? racks_free : NULL, *next;
    if (rack != NULL) racks_free = NULL;
    for (; rack != NULL; rack = next) {
        next = (struct rack *)rack->seal;
        if (rack->box->free == RACKS_A_BOX) continue;
        POKE(rack->seal, (uintptr_t)racks_free);
        racks_free = rack;
    }
    for (struct rack_box **at = &boxes_open, *box; boxes_idle != 0 && (box = *at) != NULL;) {
        if (box->free != RACKS_A_BOX) {
            at = &box->next;
            continue;
        }
        *at = box->next;
        box->next = boxes_bare;
        boxes_bare = box;
        boxes_idle--;
        uintptr_t begin = align_up((uintptr_t)(box + 1) - sizeof box->racks, os_page);
        uintptr_t end = align_down((uintptr_t)(box + 1), os_page);
        if (begin < end) (void)os_purge((void *)begin, end - begin);
    }
    lock_drop(&racks_lock);
}

/* Does a rack in the depot hold the block whose first word this is? */
static NOINLINE bool racks_hold(uintptr_t word, uintptr_t block)
{
    bool found = false;
    lock_take(&racks_lock); /* so that no box's pages go */
    for (struct rack_box *box = boxes_open; box != NULL && !found; box = box->next) {
        uintptr_t number = (word - (uintptr_t)box->racks) / sizeof *box->racks;
        if (word < (uintptr_t)box->racks || number >= RACKS_A_BOX) continue;
        /* Another thread may take it meanwhile, or fill it again: who sees that it is in the depot sees what it holds.
         */
        const struct rack *rack = &box->racks[number];
        uintptr_t blocks = (__atomic_load_n(&rack->seal, __ATOMIC_ACQUIRE) ^ link_key) >> POINTER_BITS;
        uintptr_t slot = (word - (uintptr_t)rack->slots) / sizeof *rack->slots;
        found = blocks <= MAGAZINE_MAX && slot - 1 < blocks && PEEK(rack->slots[slot]) == block;
    }
    lock_drop(&racks_lock);
    return found;
}
