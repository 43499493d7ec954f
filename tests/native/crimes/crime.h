/* What every crime shares. A program here commits one misuse and then does what an attacker would: it allocates and
 * looks for a block that is handed out twice, that lies at TARGET, or whose contents somebody else has written. If the
 * allocator has not ended the program by then, one word on stdout tells how it stood:
 *     corrupt      two owners for one byte, or a block at an address of the attacker's choice
 *     overwritten  data of a live block changed by other hands than the program's
 *     silent       nothing happened */
#ifndef CRIME_H
#define CRIME_H
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL = 48, MEDIUM = 12 << 10, MID = 200 << 10, LARGE = 4 << 20 }; /* bytes; one for each kind of pool */
enum { OWNERS_MAX = 40000, BYTES_OF_AN_ATTACK = 48 << 20, BLOCKS_OF_AN_ATTACK = 5000, UNKNOWN = -1 };

static struct owner {
    char *start;
    size_t size;
    int content; /* the byte it is filled with, or UNKNOWN */
} owners[OWNERS_MAX];
static int owner_count;

/* What the attacker wants to own: no heap memory, readable and aligned as a block would be. */
static char target_area[8192] __attribute__((aligned(4096)));
#define TARGET (target_area + 4096)

static inline void own(char *start, size_t size, int content) {
    owners[owner_count++] = (struct owner){start, size, content};
}

static inline struct owner *owner_of(const char *start) {
    for (struct owner *owner = owners + owner_count; owner-- > owners;)
        if (owner->start == start) return owner;
    abort();
}

/* A block of the program's, filled; from here on nobody else may have it or write to it. */
static inline char *take(size_t size) {
    char *block = malloc(size);
    int content = owner_count % 127 + 1;
    own(block, size, content);
    return memset(block, content, size);
}

static inline void disown(char *block) {
    struct owner *owner = owner_of(block);
    memmove(owner, owner + 1, (size_t)(owners + --owner_count - owner) * sizeof *owner);
}

/* A free as it should be. */
static inline void drop(char *block) {
    disown(block);
    free(block);
}

static inline void *thread_frees(void *block) {
    free(block);
    return NULL;
}

static inline void *thread_takes(void *size) { return take(*(size_t *)size); }

static inline void *on_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, run, argument);
    pthread_join(thread, &result);
    return result;
}

/* Leaves free blocks behind, so that a block freed next is not the only one of its list. */
static inline void take_and_drop(size_t size, int count) {
    int first = owner_count;
    for (int i = 0; i < count; i++) take(size);
    for (int i = owner_count; i-- > first;) free(owners[i].start);
    owner_count = first;
}

/* Two of many blocks with the least distance between them. Their content counts as unknown: the crime is near. */
struct pair {
    char *low, *high;
};

static inline int by_address(const void *one, const void *two) {
    const char *a = ((const struct owner *)one)->start, *b = ((const struct owner *)two)->start;
    return a < b ? -1 : a > b;
}

static inline struct pair neighbours(size_t size) {
    int first = owner_count, best = first;
    for (int i = 0; i < 64; i++) take(size);
    qsort(owners + first, 64, sizeof *owners, by_address);
    for (int i = first; i + 1 < owner_count; i++)
        if (owners[i + 1].start - owners[i].start < owners[best + 1].start - owners[best].start) best = i;
    owners[best].content = owners[best + 1].content = UNKNOWN;
    return (struct pair){owners[best].start, owners[best + 1].start};
}

/* A silent end is an ordinary one, so that an allocator may look at its heap once more. */
static inline void verdict(const char *word, const char *where) {
    printf("%s %p\n", word, (void *)where);
    fflush(stdout);
    if (strcmp(word, "silent") == 0) exit(0);
    _exit(0);
}

static inline void judge(void) {
    static struct owner sorted[OWNERS_MAX];
    memcpy(sorted, owners, sizeof *owners * (size_t)owner_count);
    qsort(sorted, (size_t)owner_count, sizeof *sorted, by_address);
    for (int i = 0; i + 1 < owner_count; i++)
        if (sorted[i].start + sorted[i].size > sorted[i + 1].start) verdict("corrupt", sorted[i + 1].start);
    for (struct owner *owner = owners; owner < owners + owner_count; owner++)
        for (size_t i = 0; owner->content != UNKNOWN && i < owner->size; i++)
            if (owner->start[i] != owner->content) verdict("overwritten", owner->start + i);
}

static inline void *allocate_much(void *size_pointer) {
    size_t size = *(size_t *)size_pointer, count = BYTES_OF_AN_ATTACK / size;
    for (size_t i = 0; i < count && i < BLOCKS_OF_AN_ATTACK; i++) take(size);
    return NULL;
}

/* The attack: allocate here and in another thread, judge; free all and allocate again, judge. */
static inline int aftermath(size_t size) {
    own(target_area, sizeof target_area, UNKNOWN);
    for (int round = 0; round < 2; round++) {
        allocate_much(&size);
        on_thread(allocate_much, &size);
        judge();
        for (int i = owner_count; i-- > 0;)
            if (owners[i].start != target_area) drop(owners[i].start);
    }
    verdict("silent", NULL);
    return 0;
}
#endif
