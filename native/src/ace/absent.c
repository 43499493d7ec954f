/* absent.c: the interface of ACE in a build without it (HAK_ACE=0): it says so and does nothing. */

int hak_ace_start(void) { return -2; }
void hak_ace_stop(void) {}
int hak_ace_step(uint64_t now) { return (void)now, 0; }
uint64_t hak_ace_firings(int slow) { return (void)slow, 0; }
hak_ace_costs_t hak_ace_costs(void) { return (hak_ace_costs_t){0}; }
int hak_ace_learner_count(void) { return 0; }
int hak_ace_learner_read(int learner, hak_learner_t *out) { return (void)learner, (void)out, -1; }
int hak_ace_observe(int learner, uint64_t now, hak_window_t *window, double *reward)
{
    return (void)learner, (void)now, (void)window, (void)reward, -1;
}
int hak_ace_choose(int learner, int arm) { return (void)learner, (void)arm, -1; }
int hak_ace_learner_of(uint32_t block_size) { return (void)block_size, -1; }
int hak_ace_parameter(const char *name, double value) { return (void)name, (void)value, -1; }
void hak_ace_phase(uint32_t mark) { (void)mark; }

static void ace_prepare(void) {}
static void ace_begin(void)
{
    if (!knob(KNOB_ace_enabled)) return;
    struct line line = {0};
    line_text(&line, "hakmem: this build has no ACE, so ace_enabled does nothing: take another variant");
    line_end(&line);
    knob_write(KNOB_ace_enabled, 0);
}
static void ace_each_lock(void (*verb)(struct lock *)) { (void)verb; }
static void ace_child(void) {}
