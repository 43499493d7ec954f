/* simulate.c: a bandit against a problem whose means are known, many times, without leaving C.
 *
 * Only the loop is here: the environments are three lines, the policies are those of policy.c, and statistics are left
 * to Python. Replication r draws from two streams of the run's seed: rewards from 2r, the learner's chance from 2r + 1.
 * So results do not depend on how replications are shared out, and every policy meets rewards made of the same random
 * numbers. */

static ALWAYS_INLINE double draw_reward(const hak_problem_t *problem, double mean, uint64_t *random)
{
    if (problem->rewards == HAK_REWARDS_BERNOULLI) return random_uniform(random) < mean ? 1.0 : 0.0;
    if (problem->rewards == HAK_REWARDS_GAUSSIAN) return mean + problem->deviation * random_normal(random);
    return mean;
}

static void gaps_of(const double *mean, int arms, double *gap) /* best mean - mean of each arm */
{
    double best = mean[0];
    for (int i = 1; i < arms; i++) best = mean[i] > best ? mean[i] : best;
    for (int i = 0; i < arms; i++) gap[i] = best - mean[i];
}

/* One replication. `row`: where its results go; of the first one every play is recorded, too. */
static void replicate(hak_bandit_t *b, const hak_problem_t *problem, uint64_t horizon, uint64_t random, uint64_t row,
                      hak_outcome_t *out)
{
    double gap[HAK_BANDIT_ARMS], regret = 0.0;
    const double *mean = problem->mean;
    uint64_t best = 0, t = 0;
    int segment = 0;
    gaps_of(mean, problem->arms, gap);
    for (int point = 0; point <= out->points; point++) {
        uint64_t until = point < out->points ? out->point[point] : horizon;
        for (; t < until; t++) {
            if (segment + 1 < problem->segments && t >= problem->start[segment + 1]) {
                mean = problem->mean + (size_t)++segment * (size_t)problem->arms;
                gaps_of(mean, problem->arms, gap);
            }
            int arm = bandit_select(b);
            double reward = draw_reward(problem, mean[arm], &random);
            bandit_update(b, arm, reward, 0.0);
            regret += gap[arm];
            best += gap[arm] == 0.0;
            if (row == 0 && out->arm) out->arm[t] = (unsigned char)arm;
            if (row == 0 && out->reward) out->reward[t] = reward;
        }
        if (point == out->points) break;
        out->regret[row * (uint64_t)out->points + (uint64_t)point] = regret;
        out->best[row * (uint64_t)out->points + (uint64_t)point] = best;
    }
    memcpy(out->pulls + row * (uint64_t)b->arms, b->pulls, (size_t)b->arms * sizeof *out->pulls);
    out->restarts[row] = b->restarts;
}

int hak_simulate(const hak_bandit_t *learner, const hak_problem_t *problem, uint64_t horizon, uint64_t first,
                 uint64_t count, uint64_t seed, hak_outcome_t *outcome)
{
    if (problem->arms != learner->arms || problem->segments < 1) return -1;
    for (uint64_t row = 0; row < count; row++) {
        hak_bandit_t b = *learner;
        b.random = random_stream(seed, 2 * (first + row) + 1);
        replicate(&b, problem, horizon, random_stream(seed, 2 * (first + row)), row, outcome);
    }
    return 0;
}
