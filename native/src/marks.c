/* marks.c: which blocks of a slab are returned, where they are more than one word has bits for: a row of words a slab,
 * where no block that overflows reaches. All under arena_lock but for what a row says, which
 * is its slab's. A row that nobody has reads zero, so one that never said anything costs no page. */

struct marks {
    uint64_t words[MARKS_WORDS];
};

static _Alignas(CACHE_LINE) struct marks marks_first[MARKS_AT_ONCE]; /* for programs of usual size, without a call */
static uintptr_t marks_origins[MARKS_MAPPINGS]; /* where row 0 would lie of each mapping; the first is these */
static uint32_t marks_fresh, marks_end;         /* numbers of rows never used */
static uint32_t marks_free;                     /* linked by their first words; 0: none */

/* Mapping m has the rows from MARKS_AT_ONCE << m on, as many. */
static ALWAYS_INLINE uint64_t *marks_at(uint32_t number)
{
    uintptr_t origin = marks_origins[log2_floor(number) - log2_floor(MARKS_AT_ONCE)];
    return ((struct marks *)(origin + number * sizeof(struct marks)))->words;
}

static bool marks_map(void)
{
    uint32_t begin = marks_end != 0 ? marks_end : MARKS_AT_ONCE;
    unsigned mapping = log2_floor(begin) - log2_floor(MARKS_AT_ONCE);
    struct marks *rows = mapping == 0 ? marks_first : mapping < MARKS_MAPPINGS ? os_map(sizeof *rows * begin) : NULL;
    if (rows == NULL) return false;
    marks_origins[mapping] = (uintptr_t)rows - sizeof *rows * begin;
    marks_fresh = begin;
    marks_end = 2 * begin;
    return true;
}

/* The number of a row; 0 where memory ends. */
static uint32_t marks_take(void)
{
    uint32_t number = marks_free;
    if (number == 0) return marks_fresh != marks_end || marks_map() ? marks_fresh++ : 0;
    marks_free = (uint32_t)marks_at(number)[0];
    marks_at(number)[0] = 0;
    return number;
}

/* Its first `words` words were written to. */
static void marks_give(uint32_t number, size_t words)
{
    memset(marks_at(number), 0, words * sizeof(uint64_t));
    marks_at(number)[0] = marks_free;
    marks_free = number;
}
