/* chain.c: how a magazine, of a class or of short runs, lies in the depot: either in a rack, or packed into its own
 * blocks. Packed blocks form several lists side by side, the strands: the first word of each block leads, under the
 * key, to a block further down. So reading a magazine back waits for many blocks at a time instead of for one after the
 * other. The very first word, of the first block or of the rack, holds the next magazine and the length. */

static struct rack *chain_rack(struct chain chain) { return (struct rack *)(chain.head & ~CHAIN_RACK); }

/* Words that a block of the row has. */
static uint32_t chain_words(unsigned row) { return (uint32_t)(row_size(row) / sizeof(uintptr_t)); }

static void chain_seal(struct chain chain, uintptr_t below)
{
    uintptr_t word = (below | (uintptr_t)chain.blocks << POINTER_BITS) ^ link_key;
    __atomic_store_n(block_words(chain.head & ~CHAIN_RACK), word, __ATOMIC_RELEASE); /* racks_hold reads it */
}

static struct chain chain_open(uintptr_t head, uintptr_t *below)
{
    uintptr_t word = block_words(head & ~CHAIN_RACK)[0] ^ link_key;
    *below = word & (((uintptr_t)1 << POINTER_BITS) - 1);
    return (struct chain){head, (uint32_t)(word >> POINTER_BITS)};
}

/* Strands of a packed magazine. The words of the first block, all but its own first, say where they begin; where these
 * are too few, those of the second do, and so on. So short blocks have fewer strands, or finding the strands would
 * itself go from one block to the next. */
static uint32_t chain_strands(unsigned row)
{
    uint32_t others = chain_words(row) - 1;
    return (uint32_t)size_max(others, size_min(others * STRANDS_A_WORD, STRANDS_ENOUGH));
}

/* Packs the blocks of so many slots into a chain; the uppermost is its first. Only a block's first word holds an
 * address under the key alone; the other words hold one more. So what stays in them is no link when a program copies
 * it, unread, to where another block begins. */
static struct chain chain_pack(unsigned row, const uintptr_t *slots, uint32_t blocks)
{
    const uintptr_t key = link_key;
    uint32_t strands = chain_strands(row), words = chain_words(row), last = blocks - 1;
    uint32_t from = last, word = 1, i;
    slot_expect_right(&slots[last]);
    for (i = last; i > 0 && last - i < strands; i--, word++) { /* first, or the depot's lock waits for these lines */
        if (word == words) {
            from--, word = 1;
            slot_expect_right(&slots[from]);
        }
        block_words(slots[from])[word] = slots[i - 1] + key + 1;
    }
    for (i = 0; i < blocks && i < strands; i++) {
        slot_expect_right(&slots[i]);
        block_words(slots[i])[0] = key;
    }
    for (; i < blocks; i++) {
        slot_expect_right(&slots[i]);
        block_words(slots[i])[0] = slots[i - strands] + key;
    }
    return (struct chain){slots[last], blocks};
}

/* The address in a word of the block; ends the program where it was overwritten or the block is in use. */
static ALWAYS_INLINE uintptr_t chain_follow(uintptr_t block, uint32_t word, uintptr_t key)
{
    uintptr_t to = block_words(block)[word];
    if (UNLIKELY((intptr_t)to < (intptr_t)key)) fatal("free block overwritten, or freed twice,", block);
    return to - key;
}

/* The reverse: puts the blocks into slots, which their first words name from then on. */
static void chain_unpack(unsigned row, struct chain chain, uintptr_t *slots)
{
    const uintptr_t key = link_key;
    uint32_t strands = chain_strands(row), words = chain_words(row), last = chain.blocks - 1;
    uint32_t from = last, word = 1, i = last;
    POKE(slots[last], chain.head);
    for (; i > 0 && last - i < strands; i--, word++) {
        if (word == words) from--, word = 1;
        POKE(slots[i - 1], chain_follow(slots[from], word, key + 1));
    }
    slot_fill(&slots[last], chain.head);
    for (i = last; i > strands; i--) {
        uintptr_t block = slots[i - 1];
        POKE(slots[i - 1 - strands], chain_follow(block, 0, key));
        slot_name(&slots[i - 1], block);
    }
    for (uint32_t end = 0; end < i; end++) {
        uintptr_t block = slots[end];
        if (UNLIKELY(block_words(block)[0] != key)) fatal("free block overwritten, or freed twice,", block);
        slot_name(&slots[end], block);
    }
}

/* Does a block of the row begin here, whose words may be read? */
static bool row_has(unsigned row, uintptr_t block)
{
    if (row < CLASSES) return block_is_of(row, block);
    const struct span *span = span_of(block);
    return span != NULL && span->kind == SPAN_RUN && run_row(span) == row && run_block(span) == block;
}

/* Does a packed magazine of the depot hold the block? `slots`: room for all its blocks. Nothing is written to blocks,
 * and where one was overwritten the search ends: whoever takes that block will say so. */
static bool chain_holds(unsigned row, struct chain chain, uintptr_t *slots, uintptr_t block)
{
    uint32_t strands = chain_strands(row), words = chain_words(row), last = chain.blocks - 1;
    uint32_t from = last, word = 1;
    slots[last] = chain.head;
    for (uint32_t i = last; i > 0; i--, word++) {
        bool begins = last - i < strands;
        if (begins && word == words) from--, word = 1;
        slots[i - 1] = begins ? block_words(slots[from])[word] - link_key - 1 : link_next(slots[i - 1 + strands]);
        if (!row_has(row, slots[i - 1])) return false;
    }
    for (uint32_t i = 0; i < chain.blocks; i++)
        if (slots[i] == block) return true;
    return false;
}
