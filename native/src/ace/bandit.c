/* bandit.c: what a bandit remembers, and how it forgets: parameters, the arms' weights and means, the noise, changes.
 *
 * What is remembered of an arm is N_i (weight), S_i (sum) and the mean, over all plays, over a sliding window (tau) or
 * discounted (gamma). Accounting: plays = sum of pulls; without tau, gamma and restarts, weight = pulls and steps =
 * plays.
 *
 * A learner may restart when it detects a change. The detector is a two-sided CUSUM (Page, Biometrika 1954) of the
 * played arm's rewards against its mean, in units of the noise. Above the threshold `restart`, everything but the noise
 * is forgotten (Liu, Lee, Shroff, AAAI 2018, run the same per arm). The noise is estimated from differences of
 * successive rewards of one arm (von Neumann 1941), which a change of level hardly disturbs.
 *
 * Programs repeat their phases. With `recall`, what is known when a change is seen is put on a shelf, and the arm is
 * played once more, because the window that raised the alarm may lie half in each phase and the next one does not. That
 * reward decides. If it fits what a shelf knows of the arm, the regime on that shelf goes on where it stopped; this may
 * be the regime just left, because an alarm can be false. Otherwise a new regime begins. */

/* ORDER PARAMETER: rows of `bandit_parameters` */
enum parameter {
    P_SCALE,
    P_XI,
    P_TAU,
    P_GAMMA,
    P_C,
    P_EPSILON,
    P_ALPHA,
    P_MIX,
    P_K,
    P_BUDGET,
    P_ARM,
    P_BUSY,
    P_RESTART,
    P_SLACK,
    P_RECALL,
    P_LEAST,
    P_COUNT
};
_Static_assert((int)P_COUNT <= (int)HAK_BANDIT_PARAMETERS, "hak_bandit_t has room for every parameter (hakmem.h)");
_Static_assert(HAK_BANDIT_ARMS <= 256, "window_arm is a byte");

static const struct {
    const char *name;
    double unused, minimum, maximum; /* unused: its value in policies that do not take it */
    const char *what;
} bandit_parameters[P_COUNT] = {
    /* ORDER PARAMETER */
    {"scale", 1.0, 0.0, 1e9, "unit of the bonus in reward units; 0: the noise, estimated"},
    {"xi", 2.0, 0.0, 1e6, "exploration: factor before the logarithm"},
    {"tau", 0.0, 1.0, HAK_BANDIT_WINDOW, "plays the window remembers"},
    {"gamma", 1.0, 0.0, 1.0, "discount a play; 1: forget nothing"},
    {"c", 0.0, 0.0, 1e6, "factor before ln ln t"},
    {"epsilon", 0.0, 0.0, 1.0, "share of plays at random"},
    {"alpha", 1.0, 1e-6, 1.0, "weight of the newest reward in the moving average"},
    {"mix", 0.0, 1e-6, 1.0, "share of the uniform distribution, gamma of the paper"},
    {"k", 0.0, 0.0, 1e6, "rating points a match can move"},
    {"budget", 0.0, 1.0, 1e9, "plays of the trial; after them its winner is played"},
    {"arm", 0.0, 0.0, HAK_BANDIT_ARMS - 1, "arm played or started from, 0 the first"},
    {"busy", 0.0, 0.0, 1.0, "share of busy depot visits above which the next larger arm is taken"},
    {"restart", 0.0, 0.0, 1e9, "CUSUM threshold of a change, in noise units; 0: never"},
    {"slack", 0.5, 0.0, 1e9, "CUSUM allowance a play, in noise units"},
    {"recall", 0.0, 0.0, HAK_BANDIT_REGIMES, "earlier regimes kept, and returned to when their rewards come back"},
    {"least", 0.0, 0.0, 1.0, "gain below which no other arm is tried; no reward is above 1"},
};

static double bandit_noise(const hak_bandit_t *b)
{
    return b->noise_count > 0.0 ? square_root(0.5 * b->noise_squares / b->noise_count) : 0.0;
}

/* The noise is unknown until there are as many differences as arms. */
static ALWAYS_INLINE bool noise_known(const hak_bandit_t *b) { return b->noise_count >= b->arms; }

/* Takes in one difference of successive rewards. It counts as four of the usual ones at most (Huber 1964): a window in
 * which the program was held up says nothing of all the others. */
static ALWAYS_INLINE void noise_learn(hak_bandit_t *b, double step)
{
    double square = step * step, four = 16.0 * b->noise_squares; /* four usual ones, squared, times noise_count */
    bool wild = noise_known(b) && four > 0.0 && square * b->noise_count > four;
    if (UNLIKELY(wild)) square = four / b->noise_count;
    b->noise_squares += square;
    b->noise_count += 1.0;
}

/* Unit of the bonus: the parameter or, where that is 0, the noise. While the noise is unknown it is 1, as for rewards
 * within [0, 1]. */
static ALWAYS_INLINE double bonus_scale(const hak_bandit_t *b)
{
    if (b->parameter[P_SCALE] > 0.0) return b->parameter[P_SCALE];
    return noise_known(b) ? bandit_noise(b) : 1.0;
}

static ALWAYS_INLINE bool forgetting(const hak_bandit_t *b)
{
    return b->parameter[P_TAU] >= 1.0 || b->parameter[P_GAMMA] != 1.0;
}

static double remembered_plays(const hak_bandit_t *b) /* t, min(t, tau) or n, the discounted count */
{
    double t = (double)b->steps, tau = b->parameter[P_TAU], n = 0.0;
    if (!forgetting(b)) return t;
    if (tau >= 1.0) return t < tau ? t : tau;
    for (int i = 0; i < b->arms; i++) n += b->weight[i];
    return n;
}

/* Adds to a running sum without losing what rounding drops (Neumaier). So a reward that leaves the window takes away
 * exactly what it brought, and equal arms stay equal. */
static void carried_add(double *sum, double *carry, double x)
{
    double total = *sum + x;
    double big = *sum, small = x;
    if ((big < 0 ? -big : big) < (x < 0 ? -x : x)) big = x, small = *sum;
    *carry += (big - total) + small;
    *sum = total;
}

static void window_remember(hak_bandit_t *b, int arm, double reward)
{
    int size = (int)b->parameter[P_TAU], slot = b->oldest;
    if (b->steps >= (uint64_t)size) {
        int leaving = b->window_arm[slot];
        double old = b->window_reward[slot];
        b->weight[leaving] -= 1.0;
        carried_add(&b->sum[leaving], &b->carry[leaving], -old);
        b->mean[leaving] = b->weight[leaving] > 0.0 ? (b->sum[leaving] + b->carry[leaving]) / b->weight[leaving] : 0.0;
    }
    b->window_arm[slot] = (unsigned char)arm;
    b->window_reward[slot] = reward;
    b->oldest = slot + 1 < size ? slot + 1 : 0;
    b->weight[arm] += 1.0;
    carried_add(&b->sum[arm], &b->carry[arm], reward);
    b->mean[arm] = (b->sum[arm] + b->carry[arm]) / b->weight[arm];
}

static ALWAYS_INLINE void plain_remember(hak_bandit_t *b, int arm, double reward)
{
    double gamma = b->parameter[P_GAMMA];
    if (gamma != 1.0)
        for (int i = 0; i < b->arms; i++) b->weight[i] *= gamma, b->sum[i] *= gamma;
    b->weight[arm] += 1.0;
    b->sum[arm] += reward;
    b->mean[arm] = b->sum[arm] / b->weight[arm];
    b->width[arm] = 1.0 / square_root(b->weight[arm]);
}

static void bandit_forget(hak_bandit_t *b) /* what is known of the arms; not parameters, counts, chance and noise */
{
    const size_t row = sizeof(double) * HAK_BANDIT_ARMS;
    b->steps = 0;
    memset(b->weight, 0, row);
    memset(b->sum, 0, row);
    memset(b->carry, 0, row);
    memset(b->mean, 0, row);
    memset(b->state, 0, row);
    memset(b->rise, 0, row);
    memset(b->fall, 0, row);
    b->previous = 0.0;
    b->current = (int)b->parameter[P_ARM] < b->arms ? (int)b->parameter[P_ARM] : b->arms - 1;
    b->rival = b->stage = b->oldest = b->probation = 0;
}

/* Takes a reward into the arm's CUSUM; true above the threshold. The mean must rest on a few plays before rewards are
 * held against it, or its own error looks like a change. */
static bool change_detected(hak_bandit_t *b, int arm, double reward)
{
    const double enough = 8.0; /* plays: the mean's own error is then 0.35 noise units, below the usual slack */
    double noise = bandit_noise(b);
    if (b->weight[arm] < enough || noise == 0.0) return false;
    double z = (reward - b->mean[arm]) / noise, slack = b->parameter[P_SLACK];
    double rise = b->rise[arm] + z - slack, fall = b->fall[arm] - z - slack;
    b->rise[arm] = rise > 0.0 ? rise : 0.0;
    b->fall[arm] = fall > 0.0 ? fall : 0.0;
    return rise > b->parameter[P_RESTART] || fall > b->parameter[P_RESTART];
}

/* --- regimes ------------------------------------------------------------------------------------------------------ */

static void regime_keep(hak_bandit_t *b)
{
    hak_regime_t *shelf = &b->regime[b->shelf];
    shelf->steps = b->steps;
    memcpy(shelf->weight, b->weight, sizeof b->weight);
    memcpy(shelf->sum, b->sum, sizeof b->sum);
    memcpy(shelf->mean, b->mean, sizeof b->mean);
    if (b->regimes <= b->shelf) b->regimes = b->shelf + 1;
}

static void regime_resume(hak_bandit_t *b, int shelf)
{
    const hak_regime_t *regime = &b->regime[shelf];
    b->shelf = shelf;
    b->steps = regime->steps;
    memcpy(b->weight, regime->weight, sizeof b->weight);
    memcpy(b->sum, regime->sum, sizeof b->sum);
    memcpy(b->mean, regime->mean, sizeof b->mean);
    for (int i = 0; i < b->arms; i++)
        if (b->weight[i] > 0.0) b->width[i] = 1.0 / square_root(b->weight[i]);
}

/* The shelf whose mean of the arm is nearest to the reward, and within three standard errors of it; -1: none. */
static int regime_matching(const hak_bandit_t *b, int arm, double reward)
{
    double nearest = 3.0;
    int shelf = -1;
    for (int i = 0; i < b->regimes; i++) {
        const hak_regime_t *regime = &b->regime[i];
        if (regime->weight[arm] <= 0.0) continue;
        double error = bandit_noise(b) * square_root(1.0 + 1.0 / regime->weight[arm]);
        double distance = (reward - regime->mean[arm]) / error;
        if (distance < 0.0) distance = -distance;
        if (distance < nearest) nearest = distance, shelf = i;
    }
    return shelf;
}

static void change_begin(hak_bandit_t *b, int arm) /* an alarm: with recall, one play on probation, else a restart */
{
    bool recall = b->parameter[P_RECALL] >= 1.0;
    if (recall) regime_keep(b);
    bandit_forget(b);
    if (!recall) {
        b->restarts++;
        return;
    }
    b->current = arm;
    b->probation = 1;
}

static void change_end(hak_bandit_t *b, int arm, double reward)
{
    int before = b->shelf, match = regime_matching(b, arm, reward), room = (int)b->parameter[P_RECALL];
    b->probation = 0;
    if (match >= 0) regime_resume(b, match);
    else b->shelf = b->regimes < room ? b->regimes : (before + 1) % room;
    b->restarts += match != before;
}

/* Takes in one play: updates the noise, looks for a change, then updates the arm's memory. With recall, the reward that
 * raises the alarm is left out, because it may belong to neither regime. */
static ALWAYS_INLINE void bandit_remember(hak_bandit_t *b, int arm, double reward)
{
    if (b->pulls[arm] > 0) noise_learn(b, reward - b->last[arm]);
    b->last[arm] = reward;
    if (b->parameter[P_RESTART] > 0.0) {
        if (b->probation) change_end(b, arm, reward);
        else if (change_detected(b, arm, reward)) change_begin(b, arm);
        if (b->probation) return;
    }
    if (b->parameter[P_TAU] >= 1.0) window_remember(b, arm, reward);
    else plain_remember(b, arm, reward);
    b->steps++;
}
