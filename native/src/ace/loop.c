/* loop.c: one step of the fast loop or of the slow one. Time is an argument and every decision is an event, so a
 * notebook can replay what happened: the same rewards into the same policy with the same seed choose the same arms. */

enum { PLACEBO_WINDOWS = 32 }; /* that the placebo draws from: so many that chance evens out which arms were in force */

struct learner {
    enum knob knob, rule; /* the one it learns; the one that names its policy */
    uint8_t class;        /* fast: the size class */
    bool outside;         /* hak_ace_choose chooses, not the policy */
    bool taken;           /* the program has set the knob since ACE began: it is the program's until ACE begins anew */
    uint32_t sets;        /* times the program had set it when ACE began */
    int arms, arm;
    int64_t settings[HAK_BANDIT_ARMS];
    int64_t given; /* slow: the knob's value before ACE */
    int64_t seen;  /* slow: its value as ACE last read or wrote it */
    uint64_t windows, seed;
    double reward, told, price; /* reward of the last window; reward and price as told to the policy */
    int kept;                   /* placebo: windows to draw from */
    double kept_reward[PLACEBO_WINDOWS], kept_price[PLACEBO_WINDOWS];
    uint64_t chance;     /* placebo: state of the generator that draws */
    hak_window_t before; /* counts when the window began */
    uint64_t state;      /* fast: state of the magazines then */
    hak_bandit_t bandit;
};

/* magazine_bytes bounds the magazines of a class without a learner. Where visits to the depot are seen to cost, a
 * learner may go up to this. */
#define LEARNT_BYTES (1 * MIB)
_Static_assert(LEARNT_BYTES / L2_MAX > MAGAZINE_MIN, "every class has two capacities to choose from");

enum { IDLE_SHARE = 32, IDLE_DOUBLINGS = 4 }; /* idle: less than 1/32 of a core used; then 16 fast intervals at most */
enum {
    LEARNERS_SLOW = 4,
    LEARNER_IDLE_RETURN = 3,
    LEARNERS_MAX = LEARNERS_SLOW + CLASSES,
    TRAFFIC_MIN = 4
}; /* TRAFFIC_MIN: refills, spills and swaps of a class until it gets a learner */

static const int64_t arms_magazine[] = {16, 32, 64, 128, 256, 512};
static const int64_t arms_idle[] = {1, 0}; /* as in every table, the arm that takes more of the resource comes later */
static const int64_t arms_superslab[] = {SUPERSLAB_SMALL, SUPERSLAB_LARGE};
static const int64_t arms_delay[] = {50, 100, 250, 500, 1000, 2000, 5000, 10000};
static const int64_t arms_threshold[] = {512 * KIB, 768 * KIB, 1 * MIB, 1536 * KIB, 2 * MIB,  3 * MIB,
                                         4 * MIB,   6 * MIB,   8 * MIB, 12 * MIB,   16 * MIB, 32 * MIB};

static struct lock ace_lock;
static struct learner *learners; /* LEARNERS_MAX of them, mapped when ACE first runs */
static _Atomic int learner_count;
static int8_t learner_of_class[CLASSES];  /* number; 0: none */
static uint64_t ace_fired[2], ace_due[2]; /* fast, slow */
static uint32_t magazine_sets, sets_seen; /* knob_sets of magazine_blocks when ACE began, and at its last step */
static bool ace_steers;                   /* knobs hold what learners chose: from start or step until stop */
static _Atomic uint32_t ace_phase;
static struct {
    double value;
    bool set;
} ace_parameters[P_COUNT]; /* what hak_ace_parameter set, also for learners yet to come */

static void learner_settle(struct learner *learner, int arm)
{
    learner->arm = arm;
    if (learner->knob == KNOB_magazine_blocks)
        atomic_store_explicit(&class_capacity[learner->class], (uint16_t)learner->settings[arm], memory_order_relaxed);
    else knob_exchange(learner->knob, &learner->seen, learner->settings[arm]);
}

/* Is the knob somebody else's: chosen from outside, or set by the program since ACE began? While ACE is frozen it only
 * looks on, so the program may turn the knob and ACE does not lose it. Either way a magazine's learner then leaves the
 * capacity to the knob. */
static bool learner_yields(struct learner *learner)
{
    uint32_t sets = PEEK(knob_sets[learner->knob]);
    bool set = sets != learner->sets;
    if (set && knob(KNOB_ace_frozen)) {
        learner->sets = sets;
        learner->seen = learner->given = knob(learner->knob);
    } else learner->taken |= set;
    if ((set || learner->taken) && !learner->outside && learner->knob == KNOB_magazine_blocks)
        atomic_store_explicit(&class_capacity[learner->class], 0, memory_order_relaxed);
    return learner->outside || learner->taken;
}

static int learner_arm_of(const struct learner *learner, int64_t setting)
{
    int near = 0;
    for (int arm = 1; arm < learner->arms; arm++)
        if (llabs(learner->settings[arm] - setting) <= llabs(learner->settings[near] - setting)) near = arm;
    return near;
}

/* Its bandit begins anew, under the policy that the knob names now. */
static void learner_begin(struct learner *learner)
{
    hak_bandit_init(&learner->bandit, (int)knob(learner->rule), learner->arms, learner->seed);
    hak_bandit_set(&learner->bandit, "arm", learner->arm);
    for (int id = 0; id < P_COUNT; id++)
        if (ace_parameters[id].set)
            hak_bandit_set(&learner->bandit, bandit_parameters[id].name, ace_parameters[id].value);
}

/* Does so only where the program has named another policy meanwhile. */
static void learner_heed(struct learner *learner)
{
    if (learner->bandit.policy != (int)knob(learner->rule)) learner_begin(learner);
}

static int learner_add(enum knob row, unsigned class, const int64_t *settings, int arms, enum knob policy)
{
    int number = atomic_load(&learner_count);
    bool fast = row == KNOB_magazine_blocks;
    struct learner *learner = &learners[number];
    *learner = (struct learner){.knob = row,
                                .rule = policy,
                                .class = (uint8_t) class,
                                .sets = fast ? magazine_sets : PEEK(knob_sets[row]),
                                .arms = arms,
                                .given = knob(row),
                                .seen = knob(row),
                                .seed = (uint64_t)knob(KNOB_ace_seed) + (uint64_t)number};
    learner->chance = random_stream(learner->seed, 0);
    memcpy(learner->settings, settings, (size_t)arms * sizeof *settings);
    learner->arm = learner_arm_of(learner, fast ? magazine_capacity(class) : knob(row));
    if (!fast) learner->settings[learner->arm] = knob(row); /* the value in force becomes an arm, so it is not lost */
    if (fast && knob(KNOB_ace_arm) < learner->arm) learner->arm = (int)knob(KNOB_ace_arm);
    learner_begin(learner);
    atomic_store_explicit(&learner_count, number + 1, memory_order_release);
    return number;
}

static bool learners_ready(uint64_t now)
{
    if (learners != NULL) return true;
    learners = os_map(LEARNERS_MAX * sizeof *learners);
    if (learners == NULL) return false;
    learner_add(KNOB_superslab_bytes, 0, arms_superslab, COUNT(arms_superslab), KNOB_ace_slow_policy);
    learner_add(KNOB_purge_delay_ms, 0, arms_delay, COUNT(arms_delay), KNOB_ace_slow_policy);
    learner_add(KNOB_large_threshold, 0, arms_threshold, COUNT(arms_threshold), KNOB_ace_slow_policy);
    learner_add(KNOB_idle_return, 0, arms_idle, COUNT(arms_idle), KNOB_ace_slow_policy);
    for (int i = 0; i < LEARNERS_SLOW; i++) learners[i].before = whole_read(now);
    costs_measure();
    return true;
}

/* Fills in the capacities to choose from. Result: how many, two or more. Those that the bound in bytes makes equal are
 * one arm. The capacity that the knobs give takes the place of the nearest arm, so that to get a learner changes
 * nothing by itself; only what a thread holds beyond it for its bursts has to be learned again. (Among many threads it
 * may have up to twice as much from then on: capacity_part.) */
static int capacity_arms(unsigned class, int64_t *settings)
{
    int64_t bytes = (int64_t)size_max(LEARNT_BYTES, (size_t)knob(KNOB_magazine_bytes));
    int64_t fit = bytes / (int64_t)classes[class].size, given = magazine_capacity(class);
    int arms = 0, near = 0;
    do settings[arms] = arms_magazine[arms] < fit ? arms_magazine[arms] : fit;
    while (arms_magazine[arms++] < fit && arms < COUNT(arms_magazine));
    while (near + 1 < arms && settings[near] * settings[near + 1] < given * given) near++;
    settings[near] = given;
    return arms;
}

/* The learner of a class, made if need be; its first window begins with `counts`. */
static int learner_for_class(unsigned class, const struct class_counts *counts)
{
    int64_t settings[COUNT(arms_magazine)];
    if (learner_of_class[class] != 0) return learner_of_class[class];
    int number = learner_add(KNOB_magazine_blocks, class, settings, capacity_arms(class, settings), KNOB_ace_policy);
    learner_of_class[class] = (int8_t)number;
    learners[number].before = counts->window;
    learners[number].state = counts->state;
    if (ace_steers && !knob(KNOB_ace_frozen) && !learner_yields(&learners[number]))
        learner_settle(&learners[number], learners[number].arm);
    return number;
}

/* --- one decision ------------------------------------------------------------------------------------------------- */

static void decision_record(int number, const hak_window_t *window, int arm, int reason, uint64_t rss)
{
    struct learner *learner = &learners[number];
    hak_event_t event = {.time_ns = window->end_ns,
                         .learner = number,
                         .threads = atomic_load(&heaps_alive),
                         .block_size = learner->knob == KNOB_magazine_blocks ? classes[learner->class].size : 0,
                         .phase = atomic_load(&ace_phase),
                         .policy = learner->outside ? -1 : learner->bandit.policy,
                         .reason = reason,
                         .arm = arm,
                         .next_arm = learner->arm,
                         .setting = learner->settings[arm],
                         .pulls = hak_bandit_pulls(&learner->bandit, arm),
                         .reward = learner->reward,
                         .told = learner->told,
                         .price = learner->price,
                         .mean = hak_bandit_mean(&learner->bandit, arm),
                         .bonus = hak_bandit_bonus(&learner->bandit, arm),
                         .window = *window,
                         .rss_bytes = rss,
                         .seed = learner->seed};
    for (int i = 0; i < learner->arms; i++) event.index[i] = hak_bandit_index(&learner->bandit, i);
    event_append(&event);
    if (knob(KNOB_ace_log_level) < 2) return;
    struct line line = {0};
    line_text(&line, "hakmem: ace: ");
    line_text(&line, knob_rows[learner->knob].name);
    if (event.block_size != 0) {
        line_text(&line, " of ");
        line_number(&line, event.block_size);
        line_text(&line, " B");
    }
    line_text(&line, ": ");
    line_number(&line, event.setting);
    line_text(&line, " -> ");
    line_number(&line, learner->settings[learner->arm]);
    line_text(&line, ", reward ppm ");
    line_number(&line, (int64_t)(event.reward * 1e6));
    if (knob(KNOB_ace_log_level) >= 3) {
        const struct {
            const char *name;
            uint64_t n;
        } counts[] = {{"cpu ns", window->cpu_ns},       {"refills", window->refills},     {"spills", window->spills},
                      {"swaps", window->swaps},         {"contended", window->contended}, {"faults", window->faults},
                      {"purged", window->purged_bytes}, {"cached", window->cached_bytes}};
        for (int i = 0; i < COUNT(counts); i++) {
            line_text(&line, ", ");
            line_text(&line, counts[i].name);
            line_text(&line, " ");
            line_number(&line, (int64_t)counts[i].n);
        }
    }
    line_end(&line);
}

/* The placebo: the policy is told of one of the first windows, drawn at random, whatever the arm. Not of one of the
 * last: the arm that is preferred was in force in most of these, so they would teach nearly as well as the truth. Of
 * the first window itself it is told the truth. */
static void learner_mislead(struct learner *learner)
{
    double reward = learner->reward, price = learner->price;
    if (learner->kept > 0) {
        int any = random_below(&learner->chance, learner->kept);
        learner->told = learner->kept_reward[any], learner->price = learner->kept_price[any];
    }
    if (learner->kept == PLACEBO_WINDOWS) return;
    learner->kept_reward[learner->kept] = reward;
    learner->kept_price[learner->kept++] = price;
}

/* Ends a window: the arm that was in force is rewarded, and the next one chosen. */
static void learner_decide(int number, const hak_window_t *window, int arm, uint64_t rss)
{
    struct learner *learner = &learners[number];
    learner_heed(learner);
    int reason = HAK_REASON_POLICY;
    uint64_t visits = window->refills + window->spills, restarts = learner->bandit.restarts;
    learner->reward = window_reward(window, rss);
    learner->windows++;
    learner->price = window_price(window, rss);
    learner->told = learner->reward;
    if (knob(KNOB_ace_shuffled)) learner_mislead(learner);
    double busy = visits != 0 ? (double)window->contended / (double)visits : 0.0;
    hak_bandit_price(&learner->bandit, arm, learner->price);
    hak_bandit_update_busy(&learner->bandit, arm, learner->told, busy);
    if (learner_yields(learner)) reason = HAK_REASON_OUTSIDE;
    else if (knob(KNOB_ace_frozen)) reason = HAK_REASON_FROZEN;
    else learner_settle(learner, hak_bandit_select(&learner->bandit));
    if (reason == HAK_REASON_POLICY && learner->bandit.restarts != restarts) reason = HAK_REASON_RESTART;
    decision_record(number, window, arm, reason, rss);
}

/* Ends the window of a fast learner. False: the class was not used in it. */
static bool class_window(struct learner *learner, const struct class_counts *now, hak_window_t *window)
{
    *window = window_between(&learner->before, &now->window);
    bool used = window->refills + window->spills + window->swaps != 0 || now->state != learner->state;
    learner->before = now->window;
    learner->state = now->state;
    return used;
}

/* Steps one class; true: it decided. Windows in which the class was not used are dropped: nothing was tried, nothing is
 * learned. */
static bool class_step(unsigned class, uint64_t now, uint64_t *rss)
{
    struct class_counts counts = class_read(class, now);
    bool known = learner_of_class[class] != 0;
    if (!known && counts.window.refills + counts.window.spills + counts.window.swaps < TRAFFIC_MIN) return false;
    int number = learner_for_class(class, &counts);
    hak_window_t window;
    if (learner_yields(&learners[number]) || !class_window(&learners[number], &counts, &window)) return false;
    if (*rss == 0) *rss = os_rss();
    learner_decide(number, &window, learner_arm_of(&learners[number], counts.capacity), *rss);
    return true;
}

static int fast_step(uint64_t now)
{
    int decisions = 0;
    uint64_t rss = 0;
    for (unsigned class = 1; class < CLASSES; class ++) decisions += class_step(class, now, &rss);
    return decisions;
}

static int slow_step(uint64_t now)
{
    hak_window_t after = whole_read(now);
    int decisions = 0;
    for (int number = 0; number < LEARNERS_SLOW; number++) {
        struct learner *learner = &learners[number];
        if (learner_yields(learner)) continue;
        hak_window_t window = window_between(&learner->before, &after);
        learner->before = after;
        if (window.cpu_ns < (window.end_ns - window.begin_ns) / IDLE_SHARE) continue;
        learner_decide(number, &window, learner_arm_of(learner, learner->seen), os_rss());
        decisions++;
    }
    return decisions;
}

static uint64_t asked_ns, asked_cpu_ns; /* time of the last ace_idle, 0: none in this process yet; CPU time then */

/* Is the program idle, by its CPU time since the last call? While it is, idle_return has the value from before ACE: an
 * idle program gives a policy nothing to judge it by. */
static bool ace_idle(uint64_t now)
{
    uint64_t cpu = os_cpu_ns();
    bool idle = asked_ns != 0 && cpu - asked_cpu_ns < (now - asked_ns) / IDLE_SHARE;
    asked_ns = now;
    asked_cpu_ns = cpu;
    if (idle && learners != NULL && !knob(KNOB_ace_frozen)) {
        struct learner *learner = &learners[LEARNER_IDLE_RETURN];
        int arm = learner_arm_of(learner, learner->given);
        if (!learner_yields(learner) && learner->arm != arm) {
            learner_settle(learner, arm);
            learner->before = whole_read(now); /* what the former arm did is no window of this one */
        }
    }
    return idle;
}

/* The first window of each fast, or slow, learner begins now, whatever was before. Those driven from outside keep
 * theirs. */
static void windows_begin(int slow, uint64_t now)
{
    hak_window_t whole = whole_read(now);
    for (int number = 0; number < atomic_load(&learner_count); number++) {
        struct learner *learner = &learners[number];
        if (learner->outside || slow != (number < LEARNERS_SLOW)) continue;
        struct class_counts counts = {.window = whole};
        if (!slow) counts = class_read(learner->class, now);
        learner->before = counts.window;
        learner->state = counts.state;
    }
}

/* Runs the loop or loops that are due at this time. `doublings`: of the fast interval. Under ACE's lock. Result:
 * decisions. */
static int ace_step(uint64_t now, int doublings)
{
    const uint64_t interval[] = {(uint64_t)knob(KNOB_ace_fast_interval_ms) * 1000000u << doublings,
                                 (uint64_t)knob(KNOB_ace_slow_interval_ms) * 1000000u};
    int decisions = 0;
    uint32_t sets = PEEK(knob_sets[KNOB_magazine_blocks]);
    if (knob(KNOB_ace_frozen)) magazine_sets += sets - sets_seen; /* they do not count, for learners to come either */
    sets_seen = sets;
    bool ready = learners_ready(now);
    for (int slow = 0; slow < 2; slow++) {
        if (now < ace_due[slow]) continue;
        if (ready && ace_due[slow] == 0) windows_begin(slow, now);
        else if (ready) {
            decisions += slow ? slow_step(now) : fast_step(now);
            ace_fired[slow]++;
        }
        ace_due[slow] = now + interval[slow];
    }
    return decisions;
}

/* On: ACE goes on from where it was. Off: its knobs return to their values from before. Neither touches knobs that the
 * program has set meanwhile, nor learners driven from outside. Under ACE's lock. */
static void learners_apply(bool on)
{
    if (on && !ace_steers) magazine_sets = sets_seen = PEEK(knob_sets[KNOB_magazine_blocks]);
    for (int number = 0; number < atomic_load(&learner_count); number++) {
        struct learner *learner = &learners[number];
        if (learner->outside) continue;
        if (on && !ace_steers) {
            learner->given = learner->seen = knob(learner->knob);
            learner->sets = PEEK(knob_sets[learner->knob]);
            learner->taken = false;
        }
        if (on) {
            learner_heed(learner);
            if (!knob(KNOB_ace_frozen) && !learner_yields(learner)) learner_settle(learner, learner->arm);
        } else if (number >= LEARNERS_SLOW)
            atomic_store_explicit(&class_capacity[learner->class], 0, memory_order_relaxed);
        else if (!learner_yields(learner)) knob_write(learner->knob, learner->given);
    }
    ace_due[0] = ace_due[1] = 0;
    ace_steers = on;
}

int hak_ace_step(uint64_t now)
{
    lock_take(&ace_lock);
    if (!ace_steers) learners_apply(true);
    int decisions = ace_step(now, 0);
    lock_drop(&ace_lock);
    return decisions;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

uint64_t hak_ace_firings(int slow) { return __atomic_load_n(&ace_fired[slow != 0], __ATOMIC_RELAXED); }
hak_ace_costs_t hak_ace_costs(void) { return ace_costs; }
int hak_ace_learner_count(void) { return atomic_load_explicit(&learner_count, memory_order_acquire); }
void hak_ace_phase(uint32_t mark) { atomic_store(&ace_phase, mark); }

int hak_ace_learner_read(int number, hak_learner_t *out)
{
    if (number < 0 || number >= hak_ace_learner_count()) return -1;
    lock_take(&ace_lock);
    const struct learner *learner = &learners[number];
    *out = (hak_learner_t){.knob = knob_rows[learner->knob].name,
                           .arms = learner->arms,
                           .arm = learner->arm,
                           .block_size = learner->knob == KNOB_magazine_blocks ? classes[learner->class].size : 0,
                           .policy = learner->outside ? -1 : learner->bandit.policy,
                           .windows = learner->windows,
                           .reward = learner->reward,
                           .noise = hak_bandit_noise(&learner->bandit)};
    memcpy(out->settings, learner->settings, sizeof out->settings);
    lock_drop(&ace_lock);
    return 0;
}

int hak_ace_learner_of(uint32_t block_size)
{
    if (block_size < 1 || block_size > L2_MAX) return -1;
    int number = -1;
    lock_take(&ace_lock);
    uint64_t now = os_now_ns();
    struct class_counts counts = class_read(small_class(block_size), now);
    if (learners_ready(now)) number = learner_for_class(small_class(block_size), &counts);
    lock_drop(&ace_lock);
    return number;
}

int hak_ace_choose(int number, int arm)
{
    if (number < 0 || number >= hak_ace_learner_count() || arm < -1 || arm >= learners[number].arms) return -1;
    lock_take(&ace_lock);
    learners[number].outside = arm >= 0;
    if (arm >= 0) {
        learners[number].seen = knob(learners[number].knob); /* so that learner_settle writes it, whoever set it */
        learner_settle(&learners[number], arm);
    }
    lock_drop(&ace_lock);
    return 0;
}

int hak_ace_observe(int number, uint64_t now, hak_window_t *window, double *reward)
{
    if (number < 0 || number >= hak_ace_learner_count()) return -1;
    lock_take(&ace_lock);
    struct learner *learner = &learners[number];
    int arm = learner->arm;
    if (number < LEARNERS_SLOW) {
        hak_window_t after = whole_read(now);
        *window = window_between(&learner->before, &after);
        learner->before = after;
    } else {
        struct class_counts counts = class_read(learner->class, now);
        class_window(learner, &counts, window);
    }
    learner_decide(number, window, arm, os_rss()); /* even without traffic: the driver knows whether there was work */
    *reward = learner->reward;
    lock_drop(&ace_lock);
    return 0;
}

int hak_ace_parameter(const char *name, double value)
{
    int took = 0, id = 0;
    while (id < P_COUNT && strcmp(bandit_parameters[id].name, name) != 0) id++;
    if (id == P_COUNT || !(value >= bandit_parameters[id].minimum && value <= bandit_parameters[id].maximum)) return -1;
    lock_take(&ace_lock);
    ace_parameters[id].value = value, ace_parameters[id].set = true;
    for (int i = 0; i < atomic_load(&learner_count); i++) took += hak_bandit_set(&learners[i].bandit, name, value) == 0;
    lock_drop(&ace_lock);
    return took;
}
