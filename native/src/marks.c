/* marks.c: which blocks of a slab are returned, for slabs of more blocks than one word has bits. Each slab has a row of
 * words, in a place that no overflowing block reaches. The rows are given out and taken back under arena_lock; what a
 * row says is its slab's business. A free row reads zero but for its link, and one never used costs no page. */

struct marks {
    uint64_t words[MARKS_WORDS];
};

static _Alignas(CACHE_LINE) struct marks marks_first[MARKS_AT_ONCE]; /* for usual programs, without a system call */
static struct marks *marks_fresh = marks_first, *marks_end = marks_first + MARKS_AT_ONCE; /* never used */
static struct marks *marks_free;                                                          /* linked by first words */

/* A row that reads zero; NULL where memory ends. */
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

/* Takes a row back, of which at most the first `count` words were written to. */
static void marks_give(uint64_t *words, size_t count)
{
    memset(words, 0, count * sizeof *words);
    words[0] = (uintptr_t)marks_free;
    marks_free = (struct marks *)words;
}
