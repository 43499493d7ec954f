/* marks.c: which blocks of a slab are returned, where they are more than one word has bits for: a row of words a slab,
 * where no block that overflows reaches. All under arena_lock but for what a row says, which is its slab's. A row that
 * nobody has reads zero, so one that never said anything costs no page. */

struct marks {
    uint64_t words[MARKS_WORDS];
};

static _Alignas(CACHE_LINE) struct marks marks_first[MARKS_AT_ONCE]; /* for programs of usual size, without a call */
static struct marks *marks_fresh = marks_first, *marks_end = marks_first + MARKS_AT_ONCE; /* never used */
static struct marks *marks_free;                                                          /* linked by first words */

/* NULL where memory ends. */
static uint64_t *marks_take(void)
{
    struct marks *marks = marks_free;
    if (marks != NULL) {
        marks_free = (struct marks *)(uintptr_t)marks->words[0];
        marks->words[0] = 0;
        return marks->words;
    }
    if (marks_fresh == marks_end) {
        struct marks *more = os_map(sizeof marks_first);
        if (more == NULL) return NULL;
        marks_fresh = more;
        marks_end = more + MARKS_AT_ONCE;
    }
    return marks_fresh++->words;
}

/* The first `count` words were written to. */
static void marks_give(uint64_t *words, size_t count)
{
    memset(words, 0, count * sizeof *words);
    words[0] = (uintptr_t)marks_free;
    marks_free = (struct marks *)words;
}
