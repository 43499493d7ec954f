/* The bandits from within: arithmetic against libm, memories against a recount, rules against their definitions.
 * Built by inclusion (-I native/src); needs -lm, for the comparison only. */
#include "promise.h"
#include <math.h>

#include "base.h"
#include "../include/hakmem.h"
#include "types.h"
#include "ace/arithmetic.c"
#include "ace/bandit.c"
#include "ace/ucb.c"
#include "ace/policy.c"
#include "ace/simulate.c"

static const double six[] = {.1, .2, .3, .4, .5, .6};
static const uint64_t from_start = 0;

static double relative_error(double value, double exact) { return fabs(value - exact) / fabs(exact); }

static hak_bandit_t bandit(const char *policy, int arms)
{
    hak_bandit_t b;
    HOLDS(hak_bandit_init(&b, hak_policy_find(policy), arms, 7) == 0);
    return b;
}

static void play_exactly(hak_bandit_t *b, const double *mean, int plays)
{
    for (int t = 0; t < plays; t++) {
        int arm = hak_bandit_select(b);
        hak_bandit_update(b, arm, mean[arm]);
    }
}

PROMISE(logarithm_and_exponential_agree_with_libm)
{
    uint64_t random = 1;
    for (int i = 0; i < 1000000; i++) {
        double whole = (double)(i + 2), any = exp(1400 * random_uniform(&random) - 700),
               x = 1400 * random_uniform(&random) - 700;
        HOLDS(relative_error(natural_log(whole), log(whole)) < 4e-16);
        HOLDS(relative_error(natural_log(any), log(any)) < 4e-16);
        HOLDS(relative_error(exponential(x), exp(x)) < 4e-16);
        HOLDS(square_root(any) == sqrt(any));
    }
    HOLDS(natural_log(1.0) == 0.0 && exponential(0.0) == 1.0);
}

PROMISE(draws_have_their_moments)
{
    uint64_t random = 2;
    double n = 400000, normal = 0, squares = 0, beta = 0, uniform = 0;
    for (int i = 0; i < (int)n; i++) {
        double x = random_normal(&random);
        normal += x / n, squares += x * x / n;
        beta += random_beta(&random, 3, 5) / n;
        uniform += random_uniform(&random) / n;
    }
    HOLDS(fabs(normal) < 5 / sqrt(n) && fabs(squares - 1) < 5 * sqrt(2 / n));
    HOLDS(fabs(beta - 3. / 8) < 5 * sqrt(15. / 64 / 9 / n) && fabs(uniform - .5) < 5 * sqrt(1 / 12. / n));
}

PROMISE(ucb1_meets_the_published_pulls)
{
    hak_bandit_t b = bandit("ucb1", 6);
    const char *first = "012345543210543251405342531450";
    for (int t = 0; t < 100; t++) {
        int arm = hak_bandit_select(&b);
        if (t < 30) HOLDS(arm == first[t] - '0');
        hak_bandit_update(&b, arm, six[arm]);
    }
    const uint64_t pulls[] = {9, 10, 13, 16, 22, 30};
    HOLDS(memcmp(b.pulls, pulls, sizeof pulls) == 0);
}

PROMISE(ucb1s_shortcut_never_changes_a_choice)
{
    uint64_t random = 3;
    hak_bandit_t b = bandit("ucb1", 16);
    for (int t = 0; t < 200000; t++) {
        int arm = hak_bandit_select(&b), definition = 0;
        for (int i = 1; i < 16; i++)
            if (ucb_index(&b, i) > ucb_index(&b, definition)) definition = i;
        HOLDS(arm == definition);
        hak_bandit_update(&b, arm, random_uniform(&random) < (arm % 4) * .25 ? 1 : 0); /* four arms alike: many ties */
    }
}

PROMISE(equal_arms_are_played_in_turn)
{
    const double same[] = {.3, .3, .3, .3};
    const char *fair[] = {"ucb1", "ucb1-tuned", "kl-ucb"};
    for (int p = 0; p < 3; p++) {
        hak_bandit_t b = bandit(fair[p], 4);
        play_exactly(&b, same, 4000);
        for (int i = 0; i < 4; i++) HOLDS(b.pulls[i] == 1000);
    }
}

PROMISE(a_window_remembers_exactly_its_plays)
{
    enum { TAU = 50, PLAYS = 1000 };
    hak_bandit_t b = bandit("sw-ucb", 5);
    HOLDS(hak_bandit_set(&b, "tau", TAU) == 0);
    int arm[PLAYS];
    double reward[PLAYS];
    uint64_t random = 4;
    for (int t = 0; t < PLAYS; t++) {
        arm[t] = hak_bandit_select(&b);
        hak_bandit_update(&b, arm[t], reward[t] = random_uniform(&random) * 1e6);
        double count[5] = {0}, sum[5] = {0};
        for (int s = t < TAU ? 0 : t - TAU + 1; s <= t; s++) count[arm[s]]++, sum[arm[s]] += reward[s];
        for (int i = 0; i < 5; i++)
            HOLDS(b.weight[i] == count[i] && fabs(b.mean[i] * count[i] - sum[i]) <= 1e-15 * 1e6 * TAU);
    }
}

PROMISE(a_discount_is_the_sum_of_powers)
{
    hak_bandit_t b = bandit("d-ucb", 2);
    HOLDS(hak_bandit_set(&b, "gamma", 0.5) == 0);
    const int arm[] = {0, 1, 1, 0};
    for (int t = 0; t < 4; t++) hak_bandit_update(&b, arm[t], t);
    HOLDS(b.weight[0] == 1.125 && b.weight[1] == 0.75 && b.mean[0] == 3 / 1.125 && b.mean[1] == (0.25 + 1) / 0.75);
    HOLDS(relative_error(hak_bandit_bonus(&b, 1), 2 * sqrt(0.5 * log(1.875) / 0.75)) < 1e-14);
}

PROMISE(kl_ucb_solves_its_equation)
{
    hak_bandit_t b = bandit("kl-ucb", 2);
    uint64_t random = 5;
    for (int t = 0; t < 3000; t++) {
        int arm = hak_bandit_select(&b);
        hak_bandit_update(&b, arm, random_uniform(&random) < .3 ? 1 : 0);
        double p = b.mean[arm], q = hak_bandit_index(&b, arm);
        if (p <= 0 || p >= 1) continue;
        double kl = p * log(p / q) + (1 - p) * log((1 - p) / (1 - q));
        HOLDS(q < 1 && fabs(b.weight[arm] * kl - log(t + 1)) < 1e-8);
    }
}

PROMISE(ucb1_tuned_learns_where_rounding_drowns_the_variance)
{
    hak_bandit_t b = bandit("ucb1-tuned", 3);
    uint64_t random = 12;
    for (int t = 0; t < 300; t++) {
        int arm = hak_bandit_select(&b);
        hak_bandit_update(&b, arm, 1e9 + 50 * arm + random_normal(&random));
        HOLDS(t < 3 || isfinite(hak_bandit_index(&b, arm)));
    }
    HOLDS(b.pulls[2] > 290);
}

PROMISE(noise_is_estimated_and_scales_the_bonus)
{
    hak_bandit_t b = bandit("ucb-scaled", 2);
    uint64_t random = 6;
    for (int t = 0; t < 20000; t++) hak_bandit_update(&b, t & 1, 100 * (t & 1) + 3 * random_normal(&random));
    HOLDS(fabs(hak_bandit_noise(&b) - 3) < 0.15);
    HOLDS(relative_error(hak_bandit_bonus(&b, 0), hak_bandit_noise(&b) * sqrt(2 * log(20000) / 10000)) < 1e-12);
}

PROMISE(a_change_restarts_and_noise_does_not)
{
    hak_bandit_t b = bandit("ucb-restart", 3);
    uint64_t random = 7;
    for (int t = 0; t < 300; t++) hak_bandit_update(&b, t % 3, 5 + 0.1 * random_normal(&random));
    HOLDS(b.restarts == 0);
    for (int t = 0; t < 30; t++) hak_bandit_update(&b, t % 3, 4 + 0.1 * random_normal(&random));
    HOLDS(b.restarts == 1 && b.steps <= 30 && b.plays == 330 && b.pulls[0] == 110 && b.mean[0] < 4.2);
}

PROMISE(a_phase_that_returns_is_recalled)
{
    hak_bandit_t b = bandit("ucb-recall", 4);
    const double phase[2][4] = {{1.0, 0.9, 0.8, 0.7}, {0.6, 0.7, 0.8, 0.95}};
    uint64_t random = 8, best = 0;
    for (int t = 0; t < 1200; t++) {
        int arm = hak_bandit_select(&b), now = t / 40 % 2;
        hak_bandit_update(&b, arm, phase[now][arm] + 0.02 * random_normal(&random));
        best += t >= 600 && arm == (now ? 3 : 0);
    }
    HOLDS(b.restarts == 29 && b.regimes == 2); /* every change seen, both phases known */
    HOLDS(best > 600 * 9 / 10);
}

PROMISE(nothing_is_tried_where_less_than_the_least_can_be_won)
{
    uint64_t random = 10;
    for (int dear = 0; dear < 2; dear++) {
        hak_bandit_t b = bandit("ucb-near", 6);
        HOLDS(hak_bandit_set(&b, "arm", 3) == 0 && hak_bandit_set(&b, "least", 0.01) == 0);
        for (int t = 0; t < 400; t++)
            hak_bandit_update(&b, hak_bandit_select(&b), (dear ? 0.97 : 0.995) + 0.001 * random_normal(&random));
        HOLDS(dear ? b.pulls[2] > 0 && b.pulls[4] > 0 : b.pulls[3] == 400);
    }
}

PROMISE(a_smaller_arm_is_tried_for_its_price_a_larger_one_for_the_rest)
{
    for (int dear = 0; dear < 2; dear++) {
        hak_bandit_t b = bandit("ucb-near", 6);
        hak_bandit_set(&b, "arm", 3);
        for (int t = 0; t < 400; t++) {
            int arm = hak_bandit_select(&b);
            hak_bandit_price(&b, arm, dear ? 0.1 : 0.0);
            hak_bandit_update(&b, arm, 0.9 - 0.02 * abs(arm - 3));
        }
        HOLDS(dear ? b.pulls[2] > 0 && b.pulls[4] == 0 : b.pulls[2] == 0 && b.pulls[4] > 0);
        HOLDS(b.pulls[3] > 320);
    }
}

PROMISE(where_much_is_lost_the_next_arm_up_is_tried_at_once)
{
    const double reward[] = {0.4, 0.5, 0.66, 0.92, 0.99, 0.997};
    const int played[] = {2, 3, 4, 4, 4, 4};
    hak_bandit_t b = bandit("ucb-near", 6);
    HOLDS(hak_bandit_set(&b, "arm", 2) == 0);
    for (int t = 0; t < 6; t++) {
        int arm = hak_bandit_select(&b);
        HOLDS(arm == played[t]);
        hak_bandit_update(&b, arm, reward[arm]);
    }
    hak_bandit_t top = bandit("ucb-near", 6); /* from the top nothing is hurried */
    hak_bandit_set(&top, "arm", 5);
    for (int t = 0; t < 6; t++) hak_bandit_update(&top, hak_bandit_select(&top), 0.5);
    HOLDS(top.pulls[5] == 6);
}

PROMISE(with_one_shelf_every_new_regime_is_counted)
{
    hak_bandit_t b = bandit("ucb-recall", 2);
    HOLDS(hak_bandit_set(&b, "recall", 1) == 0);
    uint64_t random = 11;
    for (int t = 0; t < 300; t++) {
        int arm = hak_bandit_select(&b);
        hak_bandit_update(&b, arm, 1.0 - 0.2 * (t / 100) - 0.1 * arm + 0.01 * random_normal(&random));
    }
    HOLDS(b.restarts == 2);
}

PROMISE(a_single_odd_reward_is_no_new_phase)
{
    hak_bandit_t b = bandit("ucb-recall", 2);
    uint64_t random = 9;
    for (int t = 0; t < 390; t++) {
        int arm = hak_bandit_select(&b);
        hak_bandit_update(&b, arm, t % 50 == 49 ? 0.0 : 1.0 - 0.1 * arm + 0.01 * random_normal(&random));
    }
    HOLDS(b.restarts == 0 && b.regimes == 1 && b.mean[0] > 0.95 && b.pulls[0] > 350);
}

PROMISE(elo_is_zero_sum_and_halving_keeps_the_best)
{
    hak_bandit_t elo = bandit("elo", 6), halving = bandit("halving", 6);
    play_exactly(&elo, six, 700);
    play_exactly(&halving, six, 700);
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += elo.state[i];
    HOLDS(fabs(sum) < 1e-9 && hak_bandit_select(&elo) == 5 && hak_bandit_select(&halving) == 5);
    HOLDS(halving.pulls[0] == 600 / (6 * 3) && halving.plays == 700);
}

PROMISE(the_rules_without_statistics_follow_their_rule)
{
    hak_bandit_t grow = bandit("bonwick", 3), climb = bandit("doubling", 6), robin = bandit("round-robin", 3);
    hak_bandit_update_busy(&grow, 0, 0, 0);
    HOLDS(hak_bandit_select(&grow) == 0);
    for (int i = 0; i < 5; i++) hak_bandit_update_busy(&grow, hak_bandit_select(&grow), 0, 0.5);
    HOLDS(hak_bandit_select(&grow) == 2);
    const double hill[] = {1, 2, 4, 3, 2, 1};
    play_exactly(&climb, hill, 100);
    HOLDS(climb.pulls[2] > 40 && climb.pulls[5] == 0);
    play_exactly(&robin, six, 9);
    HOLDS(robin.pulls[0] == 3 && robin.pulls[1] == 3 && robin.pulls[2] == 3);
}

PROMISE(misuse_is_refused_and_harmless)
{
    hak_bandit_t b = bandit("ucb1", 2), before = b;
    HOLDS(hak_bandit_init(&b, 0, 17, 0) == -1 && hak_bandit_init(&b, 0, 0, 0) == -1 &&
          hak_bandit_init(&b, 99, 2, 0) == -1);
    HOLDS(hak_bandit_set(&b, "tau", 5) == -1 && hak_bandit_set(&b, "restart", -1) == -2 &&
          hak_bandit_set(&b, "restart", NAN) == -2);
    hak_bandit_update(&b, 2, 1), hak_bandit_update(&b, -1, 1), hak_bandit_update(&b, 0, NAN),
        hak_bandit_update(&b, 0, INFINITY);
    HOLDS(memcmp(&b, &before, sizeof b) == 0);
    for (int p = 0; p < hak_policy_count(); p++)
        for (int arms = 1; arms <= HAK_BANDIT_ARMS; arms++) {
            HOLDS(hak_bandit_init(&b, p, arms, 1) == 0);
            for (int t = 0; t < 300; t++) {
                int arm = hak_bandit_select(&b);
                HOLDS(arm >= 0 && arm < arms);
                hak_bandit_update(&b, arm, t & 64 ? 1e300 : -1e300); /* far from what any rule was made for */
            }
        }
}

PROMISE(a_simulation_may_be_cut_in_any_way)
{
    const double means[] = {.2, .8, .8, .2};
    const uint64_t start[] = {0, 100}, point[] = {50, 150, 200};
    hak_problem_t problem = {2, 2, start, means, HAK_REWARDS_BERNOULLI, 0};
    double regret[2][12];
    uint64_t best[2][12], pulls[2][8], restarts[2][4];
    hak_bandit_t b = bandit("thompson", 2);
    hak_outcome_t whole = {3, point, regret[0], best[0], pulls[0], restarts[0], NULL, NULL};
    HOLDS(hak_simulate(&b, &problem, 200, 0, 4, 9, &whole) == 0);
    for (uint64_t r = 0; r < 4; r++) {
        hak_outcome_t one = {3,    point, regret[1] + 3 * r, best[1] + 3 * r, pulls[1] + 2 * r, restarts[1] + r,
                             NULL, NULL};
        HOLDS(hak_simulate(&b, &problem, 200, r, 1, 9, &one) == 0);
    }
    HOLDS(memcmp(regret[0], regret[1], sizeof *regret) == 0 && memcmp(pulls[0], pulls[1], sizeof *pulls) == 0);
    for (int r = 0; r < 4; r++) HOLDS(fabs(regret[0][3 * r + 2] - .6 * (200 - (double)best[0][3 * r + 2])) < 1e-9);
    hak_problem_t other = {3, 1, &from_start, six, HAK_REWARDS_EXACT, 0};
    HOLDS(hak_simulate(&b, &other, 200, 0, 1, 9, &whole) == -1);
}
