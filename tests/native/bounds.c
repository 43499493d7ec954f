/* What the comparison of a free tells, here in the code that programs inline: blocks that were carved, and nothing else
 * in their slab; and the block of a short run, and nothing else in its units. */
#include "promise.h"
#include "../../native/include/hakmem.h"

PROMISE(every_place_in_a_slab_is_told_apart) {
    enum { UNIT = 1 << HAK_SLAB_SHIFT, LONGEST = 32768 };
    for (size_t size = 16; size <= LONGEST; size = hak_usable_size(hak_malloc(size)) + 1)
        for (int more = 0; more < 3; more++) {
            uintptr_t block = (uintptr_t)hak_malloc(size);
            size_t step = hak_usable_size((void *)block), blocks = 0;
            uint32_t bound = hak_owners->bound[block / UNIT & HAK_INLINE_MASK];
            struct hak_layout_t layout = hak_owners->layout[(bound & 255) / 2];
            size_t slab = (size_t)layout.within + 1, offset = block & layout.within;
            for (uintptr_t at = block - offset; at < block - offset + slab; at += UNIT)
                HOLDS(hak_owners->bound[at / UNIT & HAK_INLINE_MASK] == bound);
            for (uint32_t place = 0; place < slab; place++)
                if (place * layout.start < bound) HOLDS(place == blocks++ * step);
            HOLDS(offset % step == 0 && offset / step < blocks && blocks <= slab / step);
        }
}

PROMISE(every_place_in_a_short_run_is_told_apart) {
    enum { UNIT = 1 << HAK_SLAB_SHIFT, RUNS = 200, LENGTHS = 8, ROWS = 105, LEAST = 32768 / UNIT + 1 };
    static uint8_t firsts[64];
    for (size_t units = LEAST; units <= LENGTHS; units++)
        for (int more = 0; more < RUNS; more++) {
            uintptr_t block = (uintptr_t)hak_malloc(units * UNIT - (units * UNIT <= 192 << 10 ? 4096 : 0));
            if ((block / UNIT & HAK_INLINE_MASK) == 0) continue; /* NULL's: no block is told by it */
            uint32_t bound = hak_owners->bound[block / UNIT & HAK_INLINE_MASK], length = (bound & 255) / 2 - ROWS;
            HOLDS(length >= units && length <= units + 1 && length <= LENGTHS);
            struct hak_layout_t layout = hak_owners->layout[ROWS + length];
            firsts[block / UNIT % 64] = 1;
            for (uintptr_t at = block / UNIT * UNIT; at < (block / UNIT + 1) * UNIT; at++)
                HOLDS(((uint32_t)at & layout.within) * layout.start < bound == (at == block));
            for (size_t unit = 1; unit < length; unit++)
                HOLDS(hak_owners->bound[block / UNIT + unit & HAK_INLINE_MASK] == 0);
        }
    for (int unit = 0; unit < 64; unit++) HOLDS(firsts[unit]);
}
