/* learner.c: starts and stops ACE at run time and steps it from the helper thread. Its history is written before the
 * ring of events can overrun it, and when the program ends. */

static _Atomic bool ace_on;
static char ace_history[4096]; /* HAKMEM_ACE_EVENTS: where the events go; %p becomes the process number. "": nowhere */

#define HISTORY_NS UINT64_C(500000000) /* what a program that is killed loses of its history at most */

static void ace_complain_history(const char *path)
{
    struct line line = {0};
    line_text(&line, "hakmem: ace: the history cannot be written to ");
    line_quote(&line, path);
    line_text(&line, "; set HAKMEM_ACE_EVENTS to a file in a folder that can be written");
    line_end(&line);
    ace_history[0] = 0; /* so this is said once */
}

/* Keeps an absolute name, and a copy: programs change their directory, and some overwrite their environment. */
static void ace_history_set(const char *name)
{
    size_t n = 0, room = sizeof ace_history - 1;
    if (name == NULL || *name == 0) return;
    if (*name != '/' && (n = os_folder(ace_history, room - 1)) != 0) ace_history[n++] = '/';
    if (strlen(name) > room - n) ace_complain_history(name);
    else memcpy(ace_history + n, name, strlen(name) + 1);
}

static void ace_write_history(void)
{
    char path[sizeof ace_history + 24];
    size_t n = 0;
    if (ace_history[0] == 0) return;
    for (const char *at = ace_history; *at != 0 && n < sizeof path - 24; at++) {
        if (at[0] != '%' || at[1] != 'p') path[n++] = *at;
        else n += (size_t)snprintf(path + n, 24, "%d", (int)getpid()), at++;
    }
    path[n] = 0;
    if (hak_event_write(path) < 0) ace_complain_history(path);
}

/* Called by the helper in each of its rounds. Result: ns until the next step, 0 while ACE is off. While the program is
 * idle, the fast interval doubles at each step, a few times, so that ACE sleeps with it. */
static uint64_t ace_round(uint64_t now)
{
    static int doublings;
    static uint64_t written_ns;
    if (!atomic_load_explicit(&ace_on, memory_order_relaxed)) return 0;
    lock_take(&ace_lock);
    if (now >= ace_due[0]) doublings = ace_idle(now) ? doublings + (doublings < IDLE_DOUBLINGS) : 0;
    if (atomic_load(&ace_on)) ace_step(now, doublings); /* again: it may have been stopped before the lock was ours */
    uint64_t due = ace_due[0] < ace_due[1] ? ace_due[0] : ace_due[1];
    lock_drop(&ace_lock);
    uint64_t pending = event_pending();
    if (pending > EVENT_ROWS / 2 || (pending != 0 && now > written_ns + HISTORY_NS)) {
        ace_write_history();
        written_ns = now;
    }
    return due > now ? due - now : 1;
}

static void ace_log(const char *what)
{
    if (knob(KNOB_ace_log_level) < 1) return;
    struct line line = {0};
    line_text(&line, "hakmem: ace: ");
    line_text(&line, what);
    line_end(&line);
}

int hak_ace_start(void)
{
    lock_take(&ace_lock);
    bool runs = atomic_exchange(&ace_on, true);
    if (!runs) learners_apply(true);
    lock_drop(&ace_lock);
    knob_write(KNOB_ace_enabled, 1);
    if (runs) return -1;
    ace_log("starts");
    atomic_store(&helper_wanted, true);
    helper_start();
    helper_poke();
    return 0;
}

void hak_ace_stop(void)
{
    atomic_store(&helper_wanted, false);
    lock_take(&ace_lock);
    bool ran = atomic_exchange(&ace_on, false);
    if (ace_steers) learners_apply(false);
    lock_drop(&ace_lock);
    knob_write(KNOB_ace_enabled, 0);
    if (ran) ace_log("stops");
}

static void ace_switch(bool on)
{
    if (on) hak_ace_start();
    else hak_ace_stop();
}

static void ace_complain_policy(const char *variable, size_t length, const char *name)
{
    struct line line = {0};
    line_setting(&line, variable, length, name);
    line_text(&line, " is not a policy; allowed:");
    for (int i = 0; i < POLICIES; i++) {
        line_text(&line, " ");
        line_text(&line, policies[i].name);
    }
    line_end(&line);
}

/* Runs before the knobs are read: sets the hooks through which knobs.c and helper.c reach ACE. */
static void ace_prepare(void)
{
    knob_policy_of_name = hak_policy_find;
    knob_policy_complain = ace_complain_policy;
    helper_ace = ace_round;
    knob_ace_switch = ace_switch;
}

extern void *dlsym(void *scope, const char *name) __attribute__((weak));

/* Is this the copy of the library in a program that links one and runs under a preloaded one? The settings are then for
 * the preloaded one, which the dynamic linker finds first. */
static bool ace_is_second(void)
{
    void *first = dlsym != NULL ? dlsym(NULL, "hak_ace_start") : NULL; /* NULL: RTLD_DEFAULT */
    return first != NULL && first != (void *)hak_ace_start;
}

static void ace_begin(void)
{
    if (ace_is_second()) {
        knob_write(KNOB_ace_enabled, 0);
        return;
    }
    ace_history_set(os_variable("HAKMEM_ACE_EVENTS"));
    if (knob(KNOB_ace_enabled)) hak_ace_start();
}

/* Held across a fork: learning stands still, so that it is whole in the child. */
static void ace_each_lock(void (*verb)(struct lock *)) { verb(&ace_lock); }

/* The child keeps what its parent had learned. Its history is its own, and its helper starts at its first slow path. */
static void ace_child(void)
{
    event_skip();
    cpu_then = asked_ns = ace_due[0] = ace_due[1] = 0; /* CPU time and faults begin at 0, so its windows begin anew */
    for (int number = 0; number < atomic_load(&learner_count); number++)
        learners[number].before.cpu_ns = learners[number].before.faults = 0; /* learners driven from outside, too */
}

__attribute__((destructor)) static void ace_end(void)
{
    if (learners != NULL || atomic_load(&ace_on)) ace_write_history();
}
