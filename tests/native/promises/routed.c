/* A rule of the call site says which pool serves, while it is in force; and promise 3 holds too. */
#include "../library.h"
#include "../serve.h"
#include <stdbool.h>

static int rule_set(uint64_t address, int rule) {
    return ((int (*)(uint64_t, int))library("hak_site_set"))(address, rule);
}

static size_t sites_read(hak_site_t *rows, size_t room) {
    return ((size_t(*)(hak_site_t *, size_t))library("hak_site_read"))(rows, room);
}

/* All that were seen get the rule. */
static void rule_all(int rule) {
    static hak_site_t rows[1024];
    for (size_t i = sites_read(rows, 1024); i-- > 0;) HOLDS(rule_set(rows[i].address, rule) == 0);
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

PROMISE(no_block_grows_to_all_there_is_under_rules) {
    set_knob("site_rules", 1);
    for (size_t i = 0; i < 100; i++) {
        char *block = malloc(40000);
        HOLDS(realloc(block, SIZE_MAX - i * 1000) == NULL && errno == ENOMEM);
        HOLDS(reallocarray(block, SIZE_MAX / 3, 3) == NULL);
        free(block);
    }
}

/* A function whose one call is a site. */
static __attribute__((noinline)) char *ask(size_t size) {
    char *block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory"); /* it is no tail call */
    return block;
}

/* The site's row, NULL while it has none. */
static hak_site_t *site_of(char *(*asks)(size_t)) {
    static hak_site_t rows[1024];
    for (size_t i = sites_read(rows, 1024); i-- > 0;)
        if (rows[i].address - (uintptr_t)asks < 64) return &rows[i];
    return NULL;
}

static void rule_ask(int rule) {
    HOLDS(rule_set(site_of(ask)->address, rule) == 0);
    HOLDS(site_of(ask)->rule == rule && site_of(ask)->by_hand == (rule != HAK_SITE_NONE));
}

static unsigned asked_in(size_t size) {
    char *block = ask(size);
    unsigned kind = span_of(block).kind;
    free(block);
    return kind;
}

PROMISE(a_rule_says_which_pool_serves) {
    enum { SIZE = 5000, LONG = 100 * KIB };
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && site_of(ask) == NULL);
    set_knob("site_rules", 1);
    HOLDS(asked_in(SIZE) == HAK_SPAN_SLAB && asked_in(LONG) == HAK_SPAN_RUN && counter("site_routed") == 0);
    HOLDS(site_of(ask)->allocations == 2);
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
        bool routed = i != 0 && site_of(ask)->rule == HAK_SITE_GROWTH;
        char *block = ask(100 * KIB);
        HOLDS(span_of(block).kind == (routed ? HAK_SPAN_WINDOW : HAK_SPAN_RUN));
        free(realloc(block, 1 * MIB));
    }
    HOLDS(site_of(ask)->rule == HAK_SITE_GROWTH && !site_of(ask)->by_hand);
}

/* Its blocks are watched to see whether they move, which one in ten does. */
PROMISE(a_site_whose_blocks_seldom_grow_is_left_alone) {
    set_knob("site_rules", 1);
    for (int i = 0; i < 400; i++) {
        char *block = ask(100 * KIB);
        free(i % 10 == 0 ? realloc(block, 1 * MIB) : block);
    }
    HOLDS(site_of(ask)->rule == HAK_SITE_NONE && site_of(ask)->growths > 0);
}

PROMISE(a_rule_set_by_hand_is_not_unlearnt) {
    set_knob("site_rules", 1);
    free(ask(100 * KIB));
    rule_ask(HAK_SITE_RUN);
    for (int i = 0; i < 40; i++) free(realloc(ask(100 * KIB), 1 * MIB));
    HOLDS(site_of(ask)->rule == HAK_SITE_RUN && site_of(ask)->by_hand);
}

/* More sites than there are rows: a new one takes the row of an old one, but neither its counts nor a rule that was set
 * by hand. */
PROMISE(sites_give_way_to_others_but_not_rules_set_by_hand) {
    enum { ADDRESSES = 20000, ROWS = 1024 };
    static hak_site_t rows[ROWS];
    static bool taken[ADDRESSES];
    set_knob("site_rules", 1);
    for (int i = 0; i < 10; i++) free(realloc(ask(100 * KIB), 1 * MIB));
    HOLDS(site_of(ask)->growths > 0);
    HOLDS(rule_set(1, HAK_SITE_GROWTH + 1) == -1 && rule_set(1, HAK_SITE_NONE - 1) == -1);
    HOLDS(rule_set(0, HAK_SITE_RUN) == -1);
    for (uint64_t address = 1; site_of(ask) != NULL; address++) HOLDS(rule_set(address, HAK_SITE_NONE) == 0);
    for (size_t i = sites_read(rows, ROWS); i-- > 0;) HOLDS(rows[i].growths == 0);
    size_t set_by_hand = 0, seen = 0;
    for (uint64_t address = 1; address < ADDRESSES; address++)
        set_by_hand += taken[address] = rule_set(address, HAK_SITE_FRESH) == 0;
    for (size_t i = sites_read(rows, ROWS); i-- > 0;) seen += rows[i].by_hand && taken[rows[i].address];
    HOLDS(seen == set_by_hand && seen > ROWS / 2);
}

static __attribute__((noinline)) char *ask_for_zeros(size_t size) {
    char *block = calloc(1, size);
    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

/* Several at a time, so that some of each length are new, and read zero, and come again when they do not. */
PROMISE(zeroed_blocks_are_routed_and_zero_under_every_rule) {
    enum { HELD = 8 };
    char *held[HELD];
    static const size_t sizes[] = {5000, 20 * KIB, 100 * KIB, 600 * KIB, 3 * MIB, 40 * MIB};
    set_knob("site_rules", 1);
    free(ask_for_zeros(100 * KIB));
    HOLDS(site_of(ask_for_zeros)->allocations == 1);
    for (int rule = HAK_SITE_NONE; rule <= HAK_SITE_GROWTH; rule++) {
        HOLDS(rule_set(site_of(ask_for_zeros)->address, rule) == 0);
        for (int again = 0; again < 40; again++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += again < 4 ? 1 : 3) {
                int count = again < 4 && sizes[i] < 4 * MIB ? HELD : 1;
                for (int n = 0; n < count; n++) {
                    uint64_t routed = counter("site_routed");
                    char *block = held[n] = ask_for_zeros(sizes[i]);
                    HOLDS(counter("site_routed") - routed == (rule != HAK_SITE_NONE));
                    HOLDS(rule != HAK_SITE_GROWTH || span_of(block).kind == HAK_SPAN_WINDOW);
                    for (size_t at = 0; at < sizes[i]; at += 512) HOLDS(block[at] == 0);
                    memset(block, 1, sizes[i]);
                }
                for (int n = 0; n < count; n++) free(held[n]);
            }
    }
}

PROMISE(a_zeroed_giant_is_touched_by_its_caller_alone_under_every_rule) {
    set_knob("site_rules", 1);
    long before = resident_bytes();
    for (int rule = HAK_SITE_NONE; rule <= HAK_SITE_GROWTH; rule++) {
        HOLDS(ask_for_zeros(60 * MIB) != NULL); /* kept: the next one is new, too */
        HOLDS(rule_set(site_of(ask_for_zeros)->address, rule) == 0);
    }
    HOLDS(resident_bytes() - before < 8 * MIB);
}
