/* Where the kernel maps, and what of it the kernel refuses, is its own affair: blocks are as good as ever. */
#include "../serve.h"
#include <sys/mman.h>
#include <sys/syscall.h>

extern char **environ;
static _Atomic int refusing, refused;

/* The library's own calls come here. A large reservation is asked for at an address that ends in 46 zeros; while
 * `refusing`, what is short, and so no memory for blocks, is refused. */
void *mmap(void *hint, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (bytes >= (size_t)1024 * MIB && hint == NULL) hint = (void *)((uintptr_t)1 << 46);
    if (refusing && bytes < 1 * MIB) {
        refused = 1;
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, hint, bytes, protection, flags, file, offset);
}

PROMISE(free_of_null_does_nothing_wherever_the_heap_lies) {
    void *held[64];
    for (int i = 0; i < 64; i++) held[i] = malloc((size_t)i * 16 + 1); /* what held them has room now */
    for (int i = 0; i < 100; i++) free((void *)opaque(0));
    for (int i = 0; i < 64; i++) free(held[i]);
}

/* Takes as many blocks as there are places, each of its own. */
static void take(size_t **blocks, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) {
        HOLDS((blocks[i] = malloc(size)) != NULL);
        *blocks[i] = i;
    }
    for (size_t i = 0; i < count; i++) HOLDS(*blocks[i] == i);
}

STEP(refused_mappings_lose_no_block_and_give_none_twice) {
    enum { MANY = 1100, SOME = 300 };
    static size_t *many[MANY], *some[SOME];
    for (size_t size = 1152; size < 4 * KIB; size += 512) { /* a few of each: these magazines are narrow still */
        take(some, 40, size);
        for (int i = 0; i < 40; i++) free(some[i]);
    }
    refusing = 1;
    for (size_t size = 64; size <= 32 * KIB; size += size < 4 * KIB ? 64 : 1 * KIB) {
        take(many, MANY, size);
        for (int i = 0; i < MANY; i++) {
            free(many[i]);
            if (i % 64 != 0) continue;
            take(some, SOME, size);
            for (int j = 0; j < SOME; j++) free(some[j]);
        }
    }
    if (!refused) UNTRIED("this allocator maps nothing short");
}

PROMISE(while_short_mappings_are_refused_no_block_is_lost_or_given_twice) {
    setenv("HAKMEM_MAGAZINE_BYTES", "16M", 1); /* magazines of every class may be long, so their slots need more */
    keep_in_new_process("refused_mappings_lose_no_block_and_give_none_twice", NULL, environ);
}
