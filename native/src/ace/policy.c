/* policy.c: which arm to play, from UCB1 to the plain rules it has to beat. Arms and arithmetic only: no clock, no
 * allocation, no global state. ACE's loop and the simulator call the same functions, so what the notebooks study is
 * what ships.
 *
 * One table, `policies`, names every policy, its rule, its source and its parameters with their presets. Ties always go
 * to the lowest index. An arm without weight has an infinite index, so a policy that plays the highest index first
 * plays each arm once. */

struct takes {
    enum parameter id;
    double preset;
};

struct policy {
    const char *name, *what;
    int (*pick)(hak_bandit_t *b);
    double (*index)(const hak_bandit_t *b, int arm);
    void (*learn)(hak_bandit_t *b, int arm, double reward, double busy); /* NULL: bandit.c remembers enough for it */
    double root_factor;                                                  /* UCB: of xi ln t / N_i under the root */
    bool has_bonus;                                                      /* index = mean + bonus */
    int parameters;
    struct takes takes[7];
};

/* --- epsilon-greedy ----------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE int greedy(hak_bandit_t *b, double (*index)(const hak_bandit_t *, int))
{
    int choice = highest(b, index);
    if (b->weight[choice] <= 0.0) return choice;
    return random_uniform(&b->random) < b->parameter[P_EPSILON] ? random_below(&b->random, b->arms) : choice;
}

static int epsilon_pick(hak_bandit_t *b) { return greedy(b, mean_index); }
static int average_pick(hak_bandit_t *b) { return greedy(b, state_index); }

static void average_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)busy;
    double weight = b->weight[arm] == 1.0 ? 1.0 : b->parameter[P_ALPHA];
    b->state[arm] += weight * (reward - b->state[arm]);
}

/* --- Thompson sampling: state holds the samples of the last selection --------------------------------------------- */

static int beta_pick(hak_bandit_t *b)
{
    for (int i = 0; i < b->arms; i++) {
        double n = b->weight[i], wins = b->sum[i] < 0.0 ? 0.0 : b->sum[i] > n ? n : b->sum[i];
        b->state[i] = random_beta(&b->random, 1.0 + wins, 1.0 + n - wins);
    }
    int choice = 0;
    for (int i = 1; i < b->arms; i++)
        if (b->state[i] > b->state[choice]) choice = i;
    return choice;
}

static int gauss_pick(hak_bandit_t *b) /* flat prior: posterior of arm i is N(mean_i, scale^2 / N_i) */
{
    double scale = bonus_scale(b);
    for (int i = 0; i < b->arms; i++) {
        if (b->weight[i] <= 0.0) return i;
        b->state[i] = b->mean[i] + scale * random_normal(&b->random) / square_root(b->weight[i]);
    }
    return highest(b, state_index);
}

/* --- Exp3: state holds the logarithms of the weights -------------------------------------------------------------- */

static double exp3_index(const hak_bandit_t *b, int arm) /* the probability of playing the arm */
{
    double top = b->state[0], total = 0.0, mix = b->parameter[P_MIX];
    for (int i = 1; i < b->arms; i++) top = b->state[i] > top ? b->state[i] : top;
    for (int i = 0; i < b->arms; i++) total += exponential(b->state[i] - top);
    return (1.0 - mix) * exponential(b->state[arm] - top) / total + mix / b->arms;
}

static int exp3_pick(hak_bandit_t *b)
{
    double u = random_uniform(&b->random);
    for (int i = 0; i < b->arms - 1; i++) {
        u -= exp3_index(b, i);
        if (u < 0.0) return i;
    }
    return b->arms - 1;
}

static void exp3_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)busy;
    double gain = reward < 0.0 ? 0.0 : reward > 1.0 ? 1.0 : reward;
    b->state[arm] += b->parameter[P_MIX] / b->arms * gain / exp3_index(b, arm);
}

/* --- a trial, then its winner: Elo and successive halving --------------------------------------------------------- */

#define ELO_START 1500.0 /* points */

static double elo_index(const hak_bandit_t *b, int arm) { return ELO_START + b->state[arm]; }

/* A match is one play each of two arms drawn at random. `stage` 0: draw them; 1: the first plays; 2: the rival
 * plays. */
static int elo_pick(hak_bandit_t *b)
{
    if ((double)b->steps >= b->parameter[P_BUDGET] || b->arms == 1) return highest(b, elo_index);
    if (b->stage == 0) {
        b->current = random_below(&b->random, b->arms);
        b->rival = random_below(&b->random, b->arms - 1);
        b->rival += b->rival >= b->current;
        b->stage = 1;
    }
    return b->stage == 1 ? b->current : b->rival;
}

static void elo_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)busy;
    if (b->stage == 1 && arm == b->current) {
        b->previous = reward;
        b->stage = 2;
    } else if (b->stage == 2 && arm == b->rival) {
        const double ln10_400 = 2.302585092994046 / 400.0; /* 400 points: ten to one */
        double expected = 1.0 / (1.0 + exponential((b->state[arm] - b->state[b->current]) * ln10_400));
        double score = b->previous > reward ? 1.0 : b->previous < reward ? 0.0 : 0.5;
        double points = b->parameter[P_K] * (score - expected);
        b->state[b->current] += points;
        b->state[arm] -= points;
        b->stage = 0;
    }
}

static int halving_alive(const hak_bandit_t *b)
{
    int alive = 0;
    for (int i = 0; i < b->arms; i++) alive += b->state[i] == 0.0;
    return alive;
}

static void halving_drop(hak_bandit_t *b) /* drops the worse half, rounded down; of equals the higher index */
{
    for (int drop = halving_alive(b) / 2; drop > 0; drop--) {
        int worst = -1;
        for (int i = 0; i < b->arms; i++)
            if (b->state[i] == 0.0 && (worst < 0 || b->mean[i] <= b->mean[worst])) worst = i;
        b->state[worst] = 1.0;
    }
}

/* ceil(log2 arms) rounds share the budget evenly; in a round each arm alive gets the same number of plays. */
static int halving_share(const hak_bandit_t *b)
{
    int rounds = 0;
    while (1 << rounds < b->arms) rounds++;
    double share = b->parameter[P_BUDGET] / ((double)halving_alive(b) * (rounds ? rounds : 1));
    return share < 1.0 ? 1 : (int)share;
}

static int halving_pick(hak_bandit_t *b)
{
    if (b->stage == 0) b->stage = halving_share(b);
    for (;;) {
        int least = -1;
        for (int i = 0; i < b->arms; i++)
            if (b->state[i] == 0.0 && (least < 0 || b->weight[i] < b->weight[least])) least = i;
        if (halving_alive(b) == 1 || b->weight[least] < b->stage) return least;
        halving_drop(b);
        b->stage += halving_share(b);
    }
}

/* --- rules without statistics ------------------------------------------------------------------------------------- */

static int current_pick(hak_bandit_t *b) { return b->current; }
static int random_pick(hak_bandit_t *b) { return random_below(&b->random, b->arms); }
static int robin_pick(hak_bandit_t *b) { return (int)(b->steps % (uint64_t)b->arms); }

static void busy_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)arm, (void)reward;
    if (busy > b->parameter[P_BUSY] && b->current + 1 < b->arms) b->current++;
}

static void doubling_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)arm, (void)busy;
    if (b->steps > 1 && reward < b->previous) b->stage = !b->stage;
    int next = b->stage ? b->current - 1 : b->current + 1;
    if (next < 0 || next >= b->arms) {
        b->stage = !b->stage;
        next = b->current;
    }
    b->current = next;
    b->previous = reward;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define TAKES(...) COUNT(((struct takes[]){__VA_ARGS__})), {__VA_ARGS__} /* the parameters, counted */
#define RESTART(threshold) {P_RESTART, threshold}, {P_SLACK, 0.5}

static const struct policy policies[] = {
    {"ucb1", "mean + sqrt(2 ln t / n) (Auer, Cesa-Bianchi, Fischer 2002)",
     ucb_pick, ucb_index, NULL, 1.0, true, TAKES(RESTART(0))},
    {"ucb1-tuned", "UCB1 with the variance's upper bound for the 2, at most 1/4 (the same paper, section 4)",
     tuned_pick, tuned_index, tuned_learn, 0.0, true, TAKES(RESTART(0))},
    {"ucb-scaled", "mean + s sqrt(2 ln t / n), s the noise of the rewards",
     ucb_pick, ucb_index, NULL, 1.0, true, TAKES({P_SCALE, 0.0}, {P_GAMMA, 1.0}, RESTART(0))},
    {"ucb-restart", "ucb-scaled that forgets all when a change is detected",
     ucb_pick, ucb_index, NULL, 1.0, true, TAKES({P_SCALE, 0.0}, {P_GAMMA, 1.0}, RESTART(8))},
    {"ucb-recall", "ucb-restart that returns to what it knew of an earlier phase when its rewards come back",
     ucb_pick, ucb_index, NULL, 1.0, true, TAKES({P_SCALE, 0.0}, {P_GAMMA, 1.0}, RESTART(4), {P_RECALL, 4})},
    /* tau = 4 sqrt(T ln T) and gamma = 1 - 1 / (4 sqrt T) of the paper for T = 1e4 */
    {"sw-ucb", "window mean + B sqrt(xi ln min(t, tau) / N), B = scale (Garivier, Moulines 2011)",
     ucb_pick, ucb_index, NULL, 1.0, true, TAKES({P_TAU, 1214}, {P_XI, 0.5}, {P_SCALE, 1.0})},
    {"d-ucb", "discounted mean + 2 B sqrt(xi ln n / N), B = scale (Garivier, Moulines 2011)",
     ucb_pick, ucb_index, NULL, 4.0, true, TAKES({P_GAMMA, 0.9975}, {P_XI, 0.5}, {P_SCALE, 1.0})},
    {"kl-ucb", "largest q with n kl(mean, q) <= ln t + c ln ln t (Garivier, Cappe 2011)",
     kl_pick, kl_index, NULL, 0.0, true, TAKES({P_C, 0.0}, RESTART(0))},
    {"epsilon-greedy", "the best mean, a random arm with probability epsilon",
     epsilon_pick, mean_index, NULL, 0.0, false, TAKES({P_EPSILON, 0.1}, RESTART(0))},
    {"epsilon-ema", "the best moving average, a random arm with probability epsilon",
     average_pick, state_index, average_learn, 0.0, false, TAKES({P_EPSILON, 0.1}, {P_ALPHA, 0.1})},
    {"thompson", "the best of one draw an arm from Beta(1 + wins, 1 + losses) (Thompson 1933)",
     beta_pick, state_index, NULL, 0.0, false, TAKES({P_GAMMA, 1.0}, RESTART(0))},
    {"thompson-gaussian", "the best of one draw an arm from N(mean, s^2 / n), s the noise of the rewards",
     gauss_pick, state_index, NULL, 0.0, false, TAKES({P_SCALE, 0.0}, {P_GAMMA, 1.0}, RESTART(0))},
    {"exp3", "exponential weights on rewards over probabilities (Auer et al. 2002, adversarial)",
     exp3_pick, exp3_index, exp3_learn, 0.0, false, TAKES({P_MIX, 0.1})},
    {"elo", "matches of two random arms rated by Elo for `budget` plays, then the highest rated",
     elo_pick, elo_index, elo_learn, 0.0, false, TAKES({P_BUDGET, 600}, {P_K, 32}, RESTART(0))},
    {"halving", "successive halving over `budget` plays, then the winner (Karnin et al. 2013)",
     halving_pick, mean_index, NULL, 0.0, false, TAKES({P_BUDGET, 600}, RESTART(0))},
    {"doubling", "one arm further in the same direction, turning round when the reward fell",
     current_pick, mean_index, doubling_learn, 0.0, false, TAKES({P_ARM, 0})},
    {"bonwick", "one arm larger when the depot was busy, never smaller (Bonwick, Adams 2001)",
     current_pick, mean_index, busy_learn, 0.0, false, TAKES({P_BUSY, 0.01}, {P_ARM, 0})},
    {"fixed", "always the same arm",
     current_pick, mean_index, NULL, 0.0, false, TAKES({P_ARM, 0})},
    {"random", "every arm with the same probability",
     random_pick, mean_index, NULL, 0.0, false, 0, {{0}}},
    {"round-robin", "the arms in turn",
     robin_pick, mean_index, NULL, 0.0, false, 0, {{0}}},
    [POLICY_DEFAULT] = {"ucb-near", "ucb-scaled among the best arm and its neighbours (after Combes, Proutiere 2014)",
     near_pick, ucb_index, NULL, 1.0, true,
     TAKES({P_SCALE, 0.0}, {P_GAMMA, 0.98}, RESTART(0), {P_ARM, 0}, {P_LEAST, 0.005})},
};
/* clang-format on */
#define POLICIES COUNT(policies)
_Static_assert(POLICIES == POLICY_LAST + 1, "the knobs ace_policy and ace_slow_policy name each row (types.h)");

/* --- verbs -------------------------------------------------------------------------------------------------------- */

int hak_policy_count(void) { return POLICIES; }

int hak_policy_read(int policy, hak_policy_t *row)
{
    if (policy < 0 || policy >= POLICIES) return -1;
    *row = (hak_policy_t){policies[policy].name, policies[policy].what, policies[policy].parameters};
    return 0;
}

int hak_policy_find(const char *name)
{
    for (int i = 0; i < POLICIES; i++)
        if (strcmp(policies[i].name, name) == 0) return i;
    return -1;
}

int hak_policy_parameter(int policy, int number, hak_parameter_t *parameter)
{
    if (policy < 0 || policy >= POLICIES || number < 0 || number >= policies[policy].parameters) return -1;
    enum parameter id = policies[policy].takes[number].id;
    *parameter =
        (hak_parameter_t){bandit_parameters[id].name, bandit_parameters[id].what, policies[policy].takes[number].preset,
                          bandit_parameters[id].minimum, bandit_parameters[id].maximum};
    return 0;
}

int hak_bandit_init(hak_bandit_t *b, int policy, int arms, uint64_t seed)
{
    if (policy < 0 || policy >= POLICIES || arms < 1 || arms > HAK_BANDIT_ARMS) return -1;
    const struct policy *p = &policies[policy];
    *b = (hak_bandit_t){.policy = policy, .arms = arms, .random = seed, .root_factor = p->root_factor};
    for (int id = 0; id < P_COUNT; id++) b->parameter[id] = bandit_parameters[id].unused;
    for (int n = 0; n < p->parameters; n++) b->parameter[p->takes[n].id] = p->takes[n].preset;
    for (int arm = 0; arm < HAK_BANDIT_ARMS; arm++) b->price[arm] = -1.0;
    bandit_forget(b);
    return 0;
}

/* Forgets what was learned: under the old value, it says nothing of the new one. */
int hak_bandit_set(hak_bandit_t *b, const char *name, double value)
{
    const struct policy *p = &policies[b->policy];
    for (int n = 0; n < p->parameters; n++) {
        enum parameter id = p->takes[n].id;
        if (strcmp(bandit_parameters[id].name, name) != 0) continue;
        if (!(value >= bandit_parameters[id].minimum && value <= bandit_parameters[id].maximum)) return -2;
        b->parameter[id] = value;
        bandit_forget(b);
        b->shelf = b->regimes = 0;
        return 0;
    }
    return -1;
}

static ALWAYS_INLINE int bandit_select(hak_bandit_t *b)
{
    return b->probation ? b->current : policies[b->policy].pick(b);
}

static ALWAYS_INLINE void bandit_update(hak_bandit_t *b, int arm, double reward, double busy)
{
    if (arm < 0 || arm >= b->arms || !(reward - reward == 0.0)) return; /* a reward must be finite to teach anything */
    bandit_remember(b, arm, reward);
    if (policies[b->policy].learn) policies[b->policy].learn(b, arm, reward, busy);
    b->pulls[arm]++;
    b->plays++;
}

int hak_bandit_select(hak_bandit_t *b) { return bandit_select(b); }
void hak_bandit_update(hak_bandit_t *b, int arm, double reward) { bandit_update(b, arm, reward, 0.0); }

void hak_bandit_update_busy(hak_bandit_t *b, int arm, double reward, double busy)
{
    bandit_update(b, arm, reward, busy);
}

void hak_bandit_price(hak_bandit_t *b, int arm, double price)
{
    if (arm >= 0 && arm < b->arms) b->price[arm] = price;
}

double hak_bandit_index(const hak_bandit_t *b, int arm) { return policies[b->policy].index(b, arm); }
double hak_bandit_mean(const hak_bandit_t *b, int arm) { return b->mean[arm]; }
double hak_bandit_noise(const hak_bandit_t *b) { return bandit_noise(b); }
uint64_t hak_bandit_pulls(const hak_bandit_t *b, int arm) { return b->pulls[arm]; }

double hak_bandit_bonus(const hak_bandit_t *b, int arm)
{
    return policies[b->policy].has_bonus ? hak_bandit_index(b, arm) - b->mean[arm] : 0.0;
}
