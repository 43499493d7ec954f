/* Promise 3 holds too where a rule of the call site says which pool serves. */
#include "../library.h"
#include "../serve.h"

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
