/* ucb.c: optimism in the face of uncertainty: an arm's index is its mean plus a bonus for what is unknown of it. */

static ALWAYS_INLINE double ucb_bonus(double scale, double log_term, double weight)
{
    return scale * square_root(log_term / weight);
}

/* mean + scale sqrt(factor xi ln t / N_i): UCB1 with scale 1 and xi 2; SW-UCB and D-UCB with the t and N_i that they
 * remember. */
static double ucb_index(const hak_bandit_t *b, int arm)
{
    if (b->weight[arm] <= 0.0) return INFINITE;
    double log_term = b->root_factor * b->parameter[P_XI] * natural_log(remembered_plays(b));
    return b->mean[arm] + ucb_bonus(bonus_scale(b), log_term, b->weight[arm]);
}

static NOINLINE int ucb_pick_exactly(const hak_bandit_t *b, double scale, double log_term)
{
    double best = -INFINITE;
    int choice = 0;
    for (int i = 0; i < b->arms; i++) {
        if (b->weight[i] <= 0.0) return i;
        double index = b->mean[i] + ucb_bonus(scale, log_term, b->weight[i]);
        if (index > best) best = index, choice = i;
    }
    return choice;
}

/* ln t. Computes ln(t + 1) as well, while this selection is under way, so that it is ready when the next one asks. */
static ALWAYS_INLINE double log_steps(hak_bandit_t *b)
{
    double log_t = b->log_of == b->steps ? b->log_ahead : natural_log((double)b->steps);
    b->log_of = b->steps + 1;
    b->log_ahead = natural_log((double)b->log_of);
    return log_t;
}

/* The arm with the highest ucb_index. A play changes one arm's weight but every arm's bonus, and a division and a root
 * for each would be most of the work. So 1 / sqrt N_i is kept instead (only where nothing is forgotten), which is right
 * to a few units in the last place. Where the two best are closer than a thousand such errors, the indices are computed
 * as they are defined. */
static int ucb_pick(hak_bandit_t *b)
{
    double scale = bonus_scale(b), factor = b->root_factor * b->parameter[P_XI];
    if (forgetting(b)) return ucb_pick_exactly(b, scale, factor * natural_log(remembered_plays(b)));
    double log_term = factor * log_steps(b);
    double root = scale * square_root(log_term), index[HAK_BANDIT_ARMS];
    for (int i = 0; i < b->arms; i++) {
        if (b->weight[i] <= 0.0) return i;
        index[i] = b->mean[i] + root * b->width[i];
    }
    double best = -INFINITE, second = -INFINITE;
    for (int i = 0; i < b->arms; i++) {
        double behind = index[i] < best ? index[i] : best;
        second = behind > second ? behind : second;
        best = index[i] > best ? index[i] : best;
    }
    double error =
        1e-12 * ((best < 0.0 ? -best : best) + 2.0 * root); /* an arm near the best errs no more: width <= 1 */
    if (!(best - second > error)) return ucb_pick_exactly(b, scale, log_term);
    int choice = 0;
    while (index[choice] != best) choice++;
    return choice;
}

/* UCB1-tuned: an upper bound of the arm's variance, at most 1/4, takes the place of the 2 under the root. state holds
 * the sums of squared rewards. Where these are large against the variance, rounding may make it negative. */
static double tuned_index(const hak_bandit_t *b, int arm)
{
    double n = b->weight[arm], mean = b->mean[arm];
    if (n <= 0.0) return INFINITE;
    double log_t = natural_log((double)b->steps);
    double variance = b->state[arm] / n - mean * mean + square_root(2.0 * log_t / n);
    variance = variance < 0.0 ? 0.0 : variance < 0.25 ? variance : 0.25;
    return mean + square_root(log_t / n * variance);
}

/* KL-UCB: the largest q with n kl(mean, q) <= ln t + c ln ln t, kl the Bernoulli divergence. kl is convex right of the
 * mean, so Newton's steps from a point right of the root stay right of it; they start at the nearer of two such
 * points. */
static double kl_index(const hak_bandit_t *b, int arm)
{
    if (b->weight[arm] <= 0.0) return INFINITE;
    double log_t = natural_log((double)b->steps), p = b->mean[arm];
    if (b->parameter[P_C] > 0.0 && log_t > 1.0) log_t += b->parameter[P_C] * natural_log(log_t);
    double d = log_t / b->weight[arm];
    if (p >= 1.0 || d <= 0.0) return p;
    if (p < 0.0) p = 0.0;
    double entropy = (p > 0.0 ? p * natural_log(p) : 0.0) + (1.0 - p) * natural_log(1.0 - p);
    double q = p + square_root(0.5 * d), other = 1.0 - exponential((entropy - d) / (1.0 - p));
    if (other < q) q = other;
    for (int step = 0; step < 50 && q > p && q < 1.0; step++) {
        double excess = entropy - (p > 0.0 ? p * natural_log(q) : 0.0) - (1.0 - p) * natural_log(1.0 - q) - d;
        if (excess < 1e-13) break;
        q -= excess * q * (1.0 - q) / (q - p);
    }
    return q;
}

static double mean_index(const hak_bandit_t *b, int arm) { return b->weight[arm] > 0.0 ? b->mean[arm] : INFINITE; }
static double state_index(const hak_bandit_t *b, int arm) { return b->weight[arm] > 0.0 ? b->state[arm] : INFINITE; }

static ALWAYS_INLINE int highest(const hak_bandit_t *b, double (*index)(const hak_bandit_t *, int))
{
    int choice = 0;
    double best = index(b, 0);
    for (int i = 1; i < b->arms; i++) {
        double value = index(b, i);
        if (value > best) best = value, choice = i;
    }
    return choice;
}

/* Chooses among the best arm so far and its neighbours. Where rewards rise and then fall over the arms, as over
 * capacities, an arm that beats both neighbours is the best, and arms far off are never paid for. A neighbour is not
 * tried where it can win less than `least`: no reward is above 1, a smaller arm saves at most the price of the larger
 * one, a larger arm at most the rest of the loss. While the noise is unknown, bonuses of a wrong size would make the
 * first plays the dearest, so the means alone decide; and only the next arm up is tried, once, if it can win ten times
 * as much: more of a resource costs little for a play, less may cost much. */
static int near_pick(hak_bandit_t *b)
{
    bool known = b->parameter[P_SCALE] > 0.0 || noise_known(b);
    double (*index)(const hak_bandit_t *, int) = known ? ucb_index : mean_index;
    double least = b->parameter[P_LEAST] * (known ? 1.0 : 10.0);
    int leader = b->current;
    for (int i = 0; i < b->arms; i++)
        if (b->weight[i] > 0.0 && (b->weight[leader] <= 0.0 || b->mean[i] > b->mean[leader])) leader = i;
    if (b->weight[leader] <= 0.0) return leader;
    double loss = 1.0 - b->mean[leader], price = b->price[leader];
    double above = price < 0.0 ? loss : loss - price, below = price < 0.0 ? loss : price;
    int choice = leader;
    if (leader + 1 < b->arms && above >= least && index(b, leader + 1) > index(b, choice)) choice = leader + 1;
    if (known && leader > 0 && below >= least && index(b, leader - 1) > index(b, choice)) choice = leader - 1;
    return choice;
}

static int tuned_pick(hak_bandit_t *b) { return highest(b, tuned_index); }

static void tuned_learn(hak_bandit_t *b, int arm, double reward, double busy)
{
    (void)busy;
    b->state[arm] += reward * reward;
}

static int kl_pick(hak_bandit_t *b) { return highest(b, kl_index); }
