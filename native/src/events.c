/* events.c: the ring of events, ACE's record of what it saw and did. There is one writer at a time (whoever holds ACE's
 * lock) and any number of readers, each with a cursor of its own. The oldest rows are overwritten; a reader is told how
 * many it missed. */

#include <pthread.h>
#include <stdio.h>

enum { EVENT_ROWS = 4096 };
static hak_event_t *event_rows;     /* mapped when the first event comes */
static _Atomic uint64_t event_last; /* number of the newest complete row */

/* Rows are copied word by word. The writer sets a row's number to 0 before it stores the other words, and to its new
 * value after them; a reader looks at the number before and after its copy. So a row that is being written is never
 * taken for a complete one. */
typedef uint64_t __attribute__((may_alias)) event_word;
enum { EVENT_WORDS = sizeof(hak_event_t) / sizeof(event_word) };
_Static_assert(offsetof(hak_event_t, number) == 0 && sizeof(hak_event_t) % sizeof(event_word) == 0,
               "a row is words, its number the first");

static ACE_ONLY void event_append(hak_event_t *event)
{
    if (event_rows == NULL && (event_rows = os_map(EVENT_ROWS * sizeof *event_rows)) == NULL) return;
    event->number = atomic_load_explicit(&event_last, memory_order_relaxed) + 1;
    event_word *to = (event_word *)&event_rows[event->number % EVENT_ROWS], *from = (event_word *)event;
    POKE(to[0], 0); /* withdrawn */
    for (int i = 1; i < EVENT_WORDS; i++) __atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
    __atomic_store_n(&to[0], from[0], __ATOMIC_RELEASE);
    atomic_store_explicit(&event_last, event->number, memory_order_release);
}

size_t hak_event_read(uint64_t *cursor, hak_event_t *rows, size_t capacity, uint64_t *lost)
{
    size_t n = 0;
    uint64_t last = atomic_load_explicit(&event_last, memory_order_acquire), missed = 0;
    if (last > EVENT_ROWS && *cursor < last - EVENT_ROWS) {
        missed = last - EVENT_ROWS - *cursor;
        *cursor = last - EVENT_ROWS;
    }
    for (; n < capacity && *cursor < last; ++*cursor) {
        uint64_t number = *cursor + 1;
        const event_word *from = (const event_word *)&event_rows[number % EVENT_ROWS];
        event_word *to = (event_word *)&rows[n];
        for (int i = 0; i < EVENT_WORDS; i++) to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
        if (to[0] == number && PEEK(from[0]) == number) n++;
        else missed++;
    }
    if (lost != NULL) *lost += missed;
    return n;
}

/* --- the history on disk ------------------------------------------------------------------------------------------ */

static struct lock event_writing;
static uint64_t event_written;   /* number of the last row written to the file */
static uint64_t event_unwritten; /* rows overwritten before they were written to it */

static ACE_ONLY uint64_t event_pending(void)
{
    return atomic_load_explicit(&event_last, memory_order_acquire) - PEEK(event_written);
}

/* In a forked child: events from before the fork are the parent's to write. A fork does not wait for this lock, whose
 * holder may be blocked on a file, so the child resets it. */
static ACE_ONLY void event_skip(void)
{
    lock_reset(&event_writing);
    event_written = atomic_load(&event_last);
    event_unwritten = 0;
}

static int event_header(char *text, size_t room)
{
    int n = snprintf(text, room,
                     "number,time_ns,learner,block_size,threads,phase,policy,reason,arm,next_arm,setting,pulls,reward,"
                     "told,price,mean,bonus,");
    for (int arm = 0; arm < HAK_BANDIT_ARMS; arm++) n += snprintf(text + n, room - (size_t)n, "index_%d,", arm);
    return n +
           snprintf(text + n, room - (size_t)n,
                    "begin_ns,end_ns,cpu_ns,refills,spills,swaps,contended,faults,syscalls,purged_bytes,cached_bytes,"
                    "live_bytes,rss_bytes,seed,lost\n");
}

/* A value and a comma, with a decimal point: snprintf writes the separator of the program's locale, of a byte or
 * more. */
static int event_value(char *text, size_t room, int digits, double value)
{
    int n = snprintf(text, room, "%.*g", digits, value), to = 0;
    for (int at = 0; at < n; at++) {
        char c = text[at];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+';
        if (plain || to == 0 || text[to - 1] != '.') text[to++] = plain ? c : '.';
    }
    text[to++] = ',';
    return to;
}

#define U(x) ((unsigned long long)(x))
static int event_row(char *text, size_t room, const hak_event_t *e)
{
    const hak_window_t *w = &e->window;
    int n = snprintf(text, room, "%llu,%llu,%d,%u,%u,%u,%d,%d,%d,%d,%lld,%llu,", U(e->number), U(e->time_ns),
                     e->learner, e->block_size, e->threads, e->phase, e->policy, e->reason, e->arm, e->next_arm,
                     (long long)e->setting, U(e->pulls));
    const double whole[] = {e->reward, e->told, e->price}, shown[] = {e->mean, e->bonus};
    for (int i = 0; i < COUNT(whole); i++) n += event_value(text + n, room - (size_t)n, 17, whole[i]);
    for (int i = 0; i < COUNT(shown); i++) n += event_value(text + n, room - (size_t)n, 9, shown[i]);
    for (int arm = 0; arm < HAK_BANDIT_ARMS; arm++) n += event_value(text + n, room - (size_t)n, 9, e->index[arm]);
    return n + snprintf(text + n, room - (size_t)n,
                        "%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%llu\n", U(w->begin_ns),
                        U(w->end_ns), U(w->cpu_ns), U(w->refills), U(w->spills), U(w->swaps), U(w->contended),
                        U(w->faults), U(w->syscalls), U(w->purged_bytes), U(w->cached_bytes), U(w->live_bytes),
                        U(e->rss_bytes), U(e->seed), U(event_unwritten));
}
#undef U

int hak_event_write(const char *path)
{
    char text[2048];
    hak_event_t event;
    int rows = 0, cancel, file = os_open_append(path);
    if (file < 0) return -1;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* a cancelled thread would leave the lock taken */
    lock_take(&event_writing);
    bool good = !os_file_is_empty(file) || os_append(file, text, (size_t)event_header(text, sizeof text));
    uint64_t cursor = event_written;
    while (good && cursor != atomic_load_explicit(&event_last, memory_order_acquire)) {
        if (hak_event_read(&cursor, &event, 1, &event_unwritten) == 0) continue; /* overwritten, and counted as lost */
        good = os_append(file, text, (size_t)event_row(text, sizeof text, &event));
        if (good) rows++;
        else cursor--; /* to be written next time */
    }
    POKE(event_written, cursor);
    lock_drop(&event_writing);
    os_close(file);
    pthread_setcancelstate(cancel, NULL);
    return good ? rows : -1;
}
