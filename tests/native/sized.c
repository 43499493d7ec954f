/* A free that is told a size, in the code that programs inline: it believes the block. */
#include "promise.h"
#include "../../native/include/hakmem.h"
#include <dlfcn.h>

enum { LONGEST = 1100 }; /* bytes: past the longest size of which malloc is inlined */

static long calls; /* of the library's own free */

void hak_free(void *block) {
    calls++;
    ((void (*)(void *))dlsym(RTLD_NEXT, "hak_free"))(block);
}

PROMISE(a_block_that_is_freed_by_its_size_serves_the_next_of_that_size) {
    for (size_t size = 1; size <= LONGEST; size++) {
        void *block = hak_malloc_inline(size);
        memset(block, 7, size);
        hak_free_sized_inline(block, size);
        HOLDS(hak_malloc_inline(size) == block);
        calls = 0;
        hak_free_sized_inline(block, size);
        HOLDS(calls == 0);
    }
}

PROMISE(a_block_that_is_freed_by_another_size_serves_no_other_size) {
    for (size_t size = 1; size <= LONGEST; size += 13)
        for (size_t told = 0; told <= LONGEST; told += 7) {
            size_t usable = hak_usable_size(hak_malloc_inline(told));
            void *block = hak_malloc_inline(size);
            memset(block, 7, size);
            hak_free_sized_inline(block, told);
            void *next = hak_malloc_inline(told);
            HOLDS(hak_usable_size(next) == usable);
            HOLDS(hak_usable_size(block) == usable || next != block);
        }
}

PROMISE(null_and_blocks_that_are_aligned_or_long_are_freed) {
    for (size_t size = 0; size <= LONGEST; size++) hak_free_sized_inline(NULL, size);
    for (size_t alignment = 16; alignment <= 4096; alignment *= 2)
        for (int i = 0; i < 1000; i++) hak_free_sized_inline(hak_aligned_alloc(alignment, 40), 40);
    for (size_t size = 1 << 10; size <= 64 << 20; size *= 2) hak_free_sized_inline(hak_malloc_inline(size), size);
    hak_free_sized_inline(hak_malloc_inline(40), SIZE_MAX);
    void *block = hak_malloc_inline(40);
    hak_free_sized_inline(block, SIZE_MAX - 8);
    HOLDS(hak_malloc_inline(40) == block);
}
