/* A rule of the call site says which pool serves, while it is in force; and promise 3 holds too. */
#include "../library.h"
#include "../serve.h"
#include <stdbool.h>

/* All that were seen get the rule. */
static void rule_all(int rule) {
    int (*set)(uint64_t, int) = (int (*)(uint64_t, int))library("hak_site_set");
    size_t (*read)(hak_site_t *, size_t) = (size_t (*)(hak_site_t *, size_t))library("hak_site_read");
    static hak_site_t rows[1024];
    for (size_t i = read(rows, 1024); i-- > 0;) HOLDS(set(rows[i].address, rule) == 0);
}

PROMISE(alignment_is_honoured_under_every_rule) {
    set_knob("site_rules", 1);
    for (int rule = HAK_SITE_NONE; rule <= HAK_SITE_GROWTH; rule++)
        for (size_t alignment = 32; alignment <= 128 * KIB; alignment *= 2)
            for (int again = 0; again < 8; again++) {
                char *block = aligned_alloc(alignment, 2 * alignment);
                HOLDS(block != NULL && (uintptr_t)block % alignment == 0);
                memset(block, 1, 2 * alignment);
                rule_all(rule);
                free(block);
            }
}

/* The one site of what follows. */
static __attribute__((noinline)) char *ask(size_t size) {
    char *block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory"); /* it is no tail call */
    return block;
}

/* Its row, NULL while it has none. */
static hak_site_t *site_of_ask(void) {
    size_t (*read)(hak_site_t *, size_t) = (size_t (*)(hak_site_t *, size_t))library("hak_site_read");
    static hak_site_t rows[1024];
    for (size_t i = read(rows, 1024); i-- > 0;)
        if (rows[i].address - (uintptr_t)ask < 64) return &rows[i];
    return NULL;
}

static void rule_ask(int rule) {
    int (*set)(uint64_t, int) = (int (*)(uint64_t, int))library("hak_site_set");
    HOLDS(set(site_of_ask()->address, rule) == 0);
    HOLDS(site_of_ask()->rule == rule && site_of_ask()->by_hand == (rule != HAK_SITE_NONE));
}

static unsigned asked_in(size_t size) {
    char *block = ask(size);
    unsigned kind = span_of(block).kind;
    free(block);
    return kind;
}

PROMISE(a_rule_says_which_pool_serves) {
    enum { SIZE = 5000, LONG = 100 * KIB };
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && site_of_ask() == NULL);
    set_knob("site_rules", 1);
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && asked_in(LONG) == HAK_SPAN_RUN && counter("site_routed") == 0);
    HOLDS(site_of_ask()->allocations == 2);
    rule_ask(HAK_SITE_RUN);
    HOLDS(asked_in(SIZE) == HAK_SPAN_RUN && asked_in(LONG) == HAK_SPAN_RUN && counter("site_routed") == 2);
    char *idle = ask(LONG);
    free(idle);
    HOLDS(ask(LONG) == idle);
    free(idle);
    rule_ask(HAK_SITE_FRESH);
    HOLDS(ask(LONG) != idle && asked_in(SIZE) == HAK_SPAN_RUN);
    rule_ask(HAK_SITE_GROWTH);
    HOLDS(asked_in(SIZE) == HAK_SPAN_WINDOW && asked_in(LONG) == HAK_SPAN_WINDOW);
    HOLDS(counter("site_routed") == 8);
    set_knob("site_rules", 0);
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && asked_in(LONG) == HAK_SPAN_RUN && counter("site_routed") == 8);
    set_knob("site_rules", 1);
    rule_ask(HAK_SITE_NONE);
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && asked_in(LONG) == HAK_SPAN_RUN && counter("site_routed") == 8);
}

PROMISE(a_site_whose_blocks_grow_is_routed_to_where_they_can) {
    set_knob("site_rules", 1);
    for (int i = 0; i < 40; i++) {
        bool routed = i != 0 && site_of_ask()->rule == HAK_SITE_GROWTH;
        char *block = ask(100 * KIB);
        HOLDS(span_of(block).kind == (routed ? HAK_SPAN_WINDOW : HAK_SPAN_RUN));
        free(realloc(block, 1 * MIB));
    }
    HOLDS(site_of_ask()->rule == HAK_SITE_GROWTH && !site_of_ask()->by_hand);
}
