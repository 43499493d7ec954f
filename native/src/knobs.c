/* knobs.c: THE table of tunables. A row is named here and nowhere else: the environment variable (HAKMEM_ and the name
 * in capitals), the profiles, ACE's actions and the notebooks' tables all derive from it.
 *
 * Order of precedence, lowest first: default, profile, environment, hak_knob_set. The last one refuses knobs that are
 * read only when a process starts. Each read is one relaxed load. Hits up to 1 KiB read no knob; above that, malloc
 * reads site_rules; all other knobs are read on slow paths (refill, spill, purge). */

#define KIB INT64_C(1024)
#define MIB (KIB * KIB)

/* clang-format off */
/*   name                   unit     default    minimum  maximum   learn start why */
#define KNOBS(X)                                                                                                          \
    X(magazine_blocks,      "blocks", MAGAZINE_MAX, MAGAZINE_MIN, MAGAZINE_MAX, 1, 0, "most blocks that a magazine holds: more save exchanges, fewer save memory") \
    X(magazine_bytes,       "bytes",  64 * KIB, 4 * KIB, 16 * MIB, 0, 0, "most bytes that a magazine holds, fewer where there are more than two threads a core, but always 16 blocks, or with dozens of threads a core 64 KiB; up to 32 times as many, for up to 128 blocks or 512 KiB, where a class comes and goes in bursts, or its free blocks sway about a magazine's room") \
    X(depot_bytes,          "bytes", 256 * MIB,     0, 1024 * MIB, 0, 0, "bytes that the shared depot of full magazines may hold; beyond that, blocks go back to their slabs at once, short runs to the arena") \
    X(superslab_bytes,      "bytes", SUPERSLAB_LARGE, SUPERSLAB_SMALL, SUPERSLAB_LARGE, 1, 0, "region from which slabs are taken, a power of two: 2 MiB suits huge pages, 1 MiB suits small heaps") \
    X(run_cache_bytes,      "bytes",   2 * MIB,     0, 1024 * MIB, 0, 0, "bytes of idle runs that a thread may always keep, and three quarters as many of each short length besides; up to 64 times as many if it used them and the helper can take them while it rests, else 8 times; less where there are two threads a core or more") \
    X(large_threshold,      "bytes", LARGE_THRESHOLD_MAX, 512 * KIB, LARGE_THRESHOLD_MAX, 1, 0, "blocks of this size or more go back to the kernel when freed, smaller ones are kept; at 32 MiB, such blocks are kept for the purge delay too if they come again soon") \
    X(purge_delay_ms,       "ms",        500,       0,    60000,   1, 0, "how long free memory waits before it goes back to the kernel: longer saves faults") \
    X(purge_batch_bytes,    "bytes",   8 * MIB,     0, 1024 * MIB, 0, 0, "free bytes that must have gathered before a thread purges inline") \
    X(purge_range_bytes,    "bytes",  64 * KIB, 4 * KIB, 2 * MIB,  0, 0, "shortest range worth an madvise of its own; parts of a half-free slab may be shorter") \
    X(idle_return,          "bool",        1,       0,        1,   1, 0, "give back everything aged when the program is idle, once an eighth of purge_batch_bytes has gathered") \
    X(background,           "bool",        1,       0,        1,   0, 0, "a helper thread may be started once much memory was taken: it purges without waiting for a call") \
    X(background_bytes,     "bytes",  16 * MIB,     0, 1024 * MIB, 0, 0, "bytes taken at which the helper thread is started, and free bytes that wake it") \
    X(huge_pages,           "bool",        1,       0,        1,   0, 0, "ask for huge pages once the heap has grown: fewer faults and TLB misses, but whole 2 MiB are resident") \
    X(huge_after_bytes,     "bytes",  32 * MIB,     0, 1024 * MIB, 0, 0, "bytes in superslabs at which a new one asks for huge pages, if half of them were touched; at an eighth, if hardly anything is free, too; at half, one asks when half of it is taken and that half was touched; bytes of heap at which new regions of runs ask, if runs were filled; large blocks ask once some were") \
    X(growth_windows,       "bool",        1,       0,        1,   0, 0, "a block that grows past 32 KiB, or often past 16 KiB, gets address space to grow in place") \
    X(placement,            "policy",      0,       0,        3,   0, 0, "node of new memory: 0 no request, 1 local, 2 interleaved, 3 bound to placement_node") \
    X(placement_node,       "node",        0,       0,     1023,   0, 0, "the node that placement 3 binds to; it must be one that this process may use") \
    X(site_rules,           "bool",        0,       0,        1,   0, 0, "route blocks above 1 KiB by the call site that asks for them") \
    X(quarantine,           "blocks",      0,       0, QUARANTINE_MAX, 0, 1, "freed blocks held back and checked before reuse; also guards every block, as canaries does (hardened)") \
    X(canaries,             "bool",        0,       0,        1,   0, 1, "guard bytes behind every block, checked when it is freed (hardened)") \
    X(ace_enabled,          "bool",        0,       0,  HAK_ACE,   0, 0, "the learner runs") \
    X(ace_log_level,        "level",       0,       0,        3,   0, 0, "0 silent, 1 start and stop, 2 decisions, 3 windows; on stderr") \
    X(ace_fast_interval_ms, "ms",        500,       1,    60000,   0, 0, "window of the fast loop: magazines") \
    X(ace_slow_interval_ms, "ms",      30000,       1,  3600000,   0, 0, "window of the slow loop: superslabs, purging, the large threshold") \
    X(ace_policy,           "policy", POLICY_DEFAULT,     0, POLICY_LAST, 0, 0, "row of the policy table for magazines (20 is ucb-near); HAKMEM_ACE_POLICY takes a name") \
    X(ace_slow_policy,      "policy", POLICY_DEFAULT,     0, POLICY_LAST, 0, 0, "row of the policy table for the slow loop (20 is ucb-near); HAKMEM_ACE_SLOW_POLICY takes a name") \
    X(ace_arm,              "arm",         5,       0,        5,   0, 0, "highest arm at which a magazine's learner begins (0 is 16 blocks, 5 is 512); it begins at the capacity that the other knobs give, if that is lower") \
    X(ace_price_ppm,        "ppm",     10000,       0,  1000000,   0, 0, "what caching costs: this times cached bytes over resident bytes is taken off the reward") \
    X(ace_shuffled,         "bool",        0,       0,        1,   0, 0, "placebo: the policy is told the reward of one of the first windows, drawn at random") \
    X(ace_seed,             "number",      1,       0, INT32_MAX,  0, 0, "seed of the policies that draw at random") \
    X(ace_frozen,           "bool",        0,       0,        1,   0, 0, "windows are observed and logged, but no arm is changed") \
    X(ss_os_stats,          "bool",        0,       0,        1,   0, 1, "print the system calls by kind when the program ends") \
    X(force_libc_alloc,     "bool",        0,       0,        1,   0, 1, "serve everything from libc's allocator behind the same entry points")
/* clang-format on */

#define KNOB_ENUM(name, ...) KNOB_##name,
enum knob { KNOBS(KNOB_ENUM) KNOB_COUNT };

static const hak_knob_t knob_rows[KNOB_COUNT] = {
#define KNOB_ROW(name, unit, preset, minimum, maximum, learnable, at_start, why)                                       \
    {#name, unit, why, preset, preset, minimum, maximum, learnable, at_start},
    KNOBS(KNOB_ROW)};

static _Atomic int64_t knob_values[KNOB_COUNT] = {
#define KNOB_VALUE(name, unit, preset, ...) preset,
    KNOBS(KNOB_VALUE)};
static int64_t knob_presets[KNOB_COUNT] = {KNOBS(KNOB_VALUE)};
static uint32_t knob_sets[KNOB_COUNT]; /* times the program set it: what ACE writes is not counted */

/* A profile presets some knobs; one row a setting. */
static const struct preset {
    const char *profile;
    enum knob knob;
    int64_t value;
} presets[] = {
    {"lean", KNOB_magazine_blocks, 32},
    {"lean", KNOB_magazine_bytes, 16 * KIB},
    {"lean", KNOB_run_cache_bytes, 1 * MIB},
    {"lean", KNOB_depot_bytes, 1 * MIB},
    {"lean", KNOB_purge_delay_ms, 100},
    {"lean", KNOB_purge_batch_bytes, 1 * MIB},
    {"lean", KNOB_huge_pages, 0},
    {"lean", KNOB_background_bytes, 4 * MIB},
    {"keep", KNOB_purge_delay_ms, 60000},
    {"keep", KNOB_purge_batch_bytes, 1024 * MIB},
    {"keep", KNOB_background, 0},
    {"keep", KNOB_run_cache_bytes, 256 * MIB},
    {"hardened", KNOB_quarantine, 256},
    {"hardened", KNOB_canaries, 1},
    {"learning", KNOB_ace_enabled, 1},
};

static const char *profile_name = "default";

static ALWAYS_INLINE int64_t knob(enum knob row)
{
    return atomic_load_explicit(&knob_values[row], memory_order_relaxed);
}

static ALWAYS_INLINE void knob_write(enum knob row, int64_t value)
{
    atomic_store_explicit(&knob_values[row], value, memory_order_relaxed);
}

/* Writes a knob only if it still holds *said, and then sets *said to the new value: what the program has set meanwhile
 * stays. */
static ACE_ONLY void knob_exchange(enum knob row, int64_t *said, int64_t value)
{
    int64_t was = *said;
    if (atomic_compare_exchange_strong(&knob_values[row], &was, value)) *said = value;
}

static bool knob_takes(enum knob row, int64_t value)
{
    if (row == KNOB_superslab_bytes && !is_power_of_two((size_t)value)) return false;
    return value >= knob_rows[row].minimum && value <= knob_rows[row].maximum;
}

/* "HAKMEM_" and the row's name in capitals, compared without building it. */
static bool knob_is_variable(enum knob row, const char *variable, size_t length)
{
    const char *name = knob_rows[row].name;
    for (size_t i = 0; i < length; i++)
        if (name[i] == 0 || (name[i] >= 'a' && name[i] <= 'z' ? name[i] - 32 : name[i]) != variable[i]) return false;
    return name[length] == 0;
}

/* Parses a decimal number, with an optional K, M or G (powers of 1024) behind it. False, with *value unchanged, if it
 * is anything else or too large. */
static bool knob_parse(const char *text, int64_t *value)
{
    int64_t n = 0;
    const char *at = text + (*text == '-');
    if (*at < '0' || *at > '9') return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (n > INT64_MAX / 10 - 1) return false;
        else n = n * 10 + (*at - '0');
    int shift = (*at | 32) == 'k' ? 10 : (*at | 32) == 'm' ? 20 : (*at | 32) == 'g' ? 30 : 0;
    at += shift != 0;
    if (*at != 0 || n > (INT64_MAX >> shift)) return false;
    n <<= shift;
    *value = *text == '-' ? -n : n;
    return true;
}

/* How a line about a setting from the environment begins. */
static COLD void line_setting(struct line *line, const char *variable, size_t length, const char *value)
{
    line_text(line, "hakmem: HAKMEM_");
    line_bytes(line, variable, length);
    line_text(line, "=");
    line_quote(line, value);
}

/* Prints one line about a setting that is refused; the value that was in force stays. */
static COLD void knob_complain(const char *variable, size_t length, const char *value, enum knob row)
{
    struct line line = {0};
    line_setting(&line, variable, length, value);
    line_text(&line, " is not taken; allowed: ");
    line_number(&line, knob_rows[row].minimum);
    line_text(&line, " to ");
    line_number(&line, knob_rows[row].maximum);
    line_text(&line, " ");
    line_text(&line, knob_rows[row].unit);
    if (row == KNOB_superslab_bytes) line_text(&line, ", a power of two");
    line_text(&line, "; in force: ");
    line_number(&line, knob(row));
    line_end(&line);
}

static COLD void knob_complain_profile(const char *name)
{
    struct line line = {0};
    line_setting(&line, "PROFILE", strlen("PROFILE"), name);
    line_text(&line, " is not known; allowed: default");
    const char *last = "";
    for (int i = 0; i < COUNT(presets); i++) {
        if (strcmp(presets[i].profile, last) == 0) continue;
        line_text(&line, ", ");
        line_text(&line, last = presets[i].profile);
    }
    line_end(&line);
}

/* Keeps the name as this file's own string, because some programs overwrite their environment. */
static void knob_take_profile(const char *name)
{
    const char *known = strcmp(name, "default") == 0 ? "default" : NULL;
    for (int i = 0; i < COUNT(presets); i++) {
        if (strcmp(presets[i].profile, name) != 0) continue;
        known = presets[i].profile;
        knob_write(presets[i].knob, presets[i].value);
    }
    if (known != NULL) profile_name = known;
    else knob_complain_profile(name);
}

/* Hooks, set by files further down the list in hakmem.c, which this file cannot call. The first two turn the name of a
 * policy into its row and report an unknown name. */
static int (*knob_policy_of_name)(const char *name);
static void (*knob_policy_complain)(const char *variable, size_t length, const char *name);
static void (*knob_ace_switch)(bool on); /* set by ACE: starts and stops it when ace_enabled changes */
static void (*knob_told)(void);          /* set at start, after all knobs were read; called when one changes */

static void knob_take_variable(const char *variable, size_t length, const char *text)
{
    for (enum knob row = 0; row < KNOB_COUNT; row++) {
        if (!knob_is_variable(row, variable, length)) continue;
        int64_t value;
        if ((row == KNOB_ace_policy || row == KNOB_ace_slow_policy) && knob_policy_of_name != NULL) {
            value = knob_policy_of_name(text);
            if (value < 0) knob_policy_complain(variable, length, text);
            else knob_write(row, value);
        } else if (knob_parse(text, &value) && knob_takes(row, value)) {
            knob_write(row, value);
        } else {
            knob_complain(variable, length, text, row);
        }
        return;
    }
}

/* Runs once, before the first thread has a heap: the profile first, then single knobs. Unknown HAKMEM_ names are left
 * alone: they may be another version's. */
static void knobs_init(char **environment)
{
    static const char prefix[] = "HAKMEM_", profile[] = "PROFILE=";
    for (char **at = environment; at != NULL && *at != NULL; at++)
        if (strncmp(*at, prefix, sizeof prefix - 1) == 0 &&
            strncmp(*at + sizeof prefix - 1, profile, sizeof profile - 1) == 0)
            knob_take_profile(*at + sizeof prefix + sizeof profile - 2);
    for (char **at = environment; at != NULL && *at != NULL; at++) {
        const char *equals;
        if (strncmp(*at, prefix, sizeof prefix - 1) == 0 && (equals = strchr(*at, '=')) != NULL)
            knob_take_variable(*at + sizeof prefix - 1, (size_t)(equals - *at) - (sizeof prefix - 1), equals + 1);
    }
    for (enum knob row = 0; row < KNOB_COUNT; row++) knob_presets[row] = knob(row);
}

int hak_knob_count(void) { return KNOB_COUNT; }

int hak_knob_read(int row, hak_knob_t *out)
{
    if (row < 0 || row >= KNOB_COUNT) return -1;
    *out = knob_rows[row];
    out->value = knob((enum knob)row);
    out->preset = knob_presets[row];
    return 0;
}

int hak_knob_set(const char *name, int64_t value)
{
    for (enum knob row = 0; row < KNOB_COUNT; row++) {
        if (strcmp(knob_rows[row].name, name) != 0) continue;
        if (!knob_takes(row, value)) return -2;
        if (knob_rows[row].at_start && knob_told != NULL) return -3;
        __atomic_fetch_add(&knob_sets[row], 1, __ATOMIC_RELAXED);
        knob_write(row, value);
        if (row == KNOB_ace_enabled && knob_ace_switch != NULL) knob_ace_switch(value != 0);
        if (knob_told != NULL) knob_told();
        return 0;
    }
    return -1;
}

const char *hak_profile(void) { return profile_name; }
