/* arithmetic.c: logarithm, exponential, square root and random draws for the policies, without libm.
 *
 * The preloaded library depends on libc alone, so the handful of functions that a bandit needs stand here. They use
 * only + - * / and square root, which IEEE 754 rounds correctly: one seed gives one history on every machine, and the
 * bandit explorer repeats it in JavaScript. Their errors are checked against libm by tests/native/policy.c: natural_log
 * and exponential stay within one or two units in the last place (relative error < 4e-16). The only state is the
 * caller's seed. */

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LN2_HIGH 0x1.62e42fefap-1     /* ln 2 in 37 bits, so that an exponent times it is exact */
#define LN2_LOW 0x1.cf79abc9e3b3ap-40 /* the rest of it */
#define INFINITE __builtin_inf()

/* One instruction. __builtin_sqrt would add a call of libm's sqrt for the sake of errno. */
static ALWAYS_INLINE double square_root(double x)
{
#if defined(__SSE2__)
    __m128d v = _mm_set_sd(x);
    return _mm_cvtsd_f64(_mm_sqrt_sd(v, v));
#elif defined(__aarch64__)
    __asm__("fsqrt %d0, %d1" : "=w"(x) : "w"(x));
    return x;
#else
    if (!(x > 0.0)) return 0.0;
    double root = x < 1.0 ? 1.0 : x;
    for (double next = 0.5 * (root + x / root); next < root; next = 0.5 * (root + x / root)) root = next;
    return root;
#endif
}

/* ln x for finite, normal x > 0. x = 2^k (1 + f) with 1 + f within [sqrt 1/2, sqrt 2); with s = f / (2 + f),
 * ln(1 + f) = 2 artanh s = f - s (f - R), R = 2 s^2/3 + 2 s^4/5 + ...; |s| <= 0.172, so ten terms reach 2^-55. */
static ALWAYS_INLINE double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t root_half = 0x3fe6a09e667f3bcdu; /* bits of sqrt 1/2 */
    int64_t k = (int64_t)(bits - root_half) >> 52;
    bits -= (uint64_t)k << 52;
    memcpy(&x, &bits, sizeof bits);
    double f = x - 1.0, s = f / (2.0 + f), z = s * s, z2 = z * z, z4 = z2 * z2;
    double low = (2.0 / 3 + 2.0 / 5 * z) + (2.0 / 7 + 2.0 / 9 * z) * z2; /* Estrin's order: short chains */
    double high = (2.0 / 11 + 2.0 / 13 * z) + (2.0 / 15 + 2.0 / 17 * z) * z2 + (2.0 / 19 + 2.0 / 21 * z) * z4;
    double r = (low + high * z4) * z;
    return (double)k * LN2_HIGH - ((s * (f - r) - (double)k * LN2_LOW) - f);
}

/* e^x, with x limited to +-700: x = k ln 2 + r, |r| <= ln 2 / 2, fourteen terms of the series reach 2^-58. */
static double exponential(double x)
{
    x = x > 700.0 ? 700.0 : x < -700.0 ? -700.0 : x;
    int64_t k = (int64_t)(x * 0x1.71547652b82fep+0 + (x < 0 ? -0.5 : 0.5)); /* 1 / ln 2 */
    double r = (x - (double)k * LN2_HIGH) - (double)k * LN2_LOW, sum = 1.0;
    for (int n = 14; n > 0; n--) sum = 1.0 + sum * r / n;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits += (uint64_t)k << 52;
    memcpy(&sum, &bits, sizeof bits);
    return sum;
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): 64 bits of state, any seed is good. */
static ALWAYS_INLINE uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static ALWAYS_INLINE double random_uniform(uint64_t *state) /* [0, 1), multiples of 2^-53 */
{
    return (double)(int64_t)(random_bits(state) >> 11) * 0x1p-53;
}

static int random_below(uint64_t *state, int n) /* 0 .. n - 1 */ { return (int)(random_uniform(state) * n); }

static double random_normal(uint64_t *state) /* mean 0, variance 1: Marsaglia's polar method, one of its two values */
{
    for (;;) {
        double x = 2.0 * random_uniform(state) - 1.0, y = 2.0 * random_uniform(state) - 1.0, s = x * x + y * y;
        if (s > 0.0 && s < 1.0) return x * square_root(-2.0 * natural_log(s) / s);
    }
}

static double random_gamma(uint64_t *state, double shape) /* shape >= 1: Marsaglia and Tsang, ACM TOMS 2000 */
{
    double d = shape - 1.0 / 3.0, c = 1.0 / square_root(9.0 * d);
    for (;;) {
        double x = random_normal(state), v = 1.0 + c * x;
        if (v <= 0.0) continue;
        v = v * v * v;
        double u = 1.0 - random_uniform(state); /* (0, 1] */
        if (natural_log(u) < 0.5 * x * x + d - d * v + d * natural_log(v)) return d * v;
    }
}

static double random_beta(uint64_t *state, double a, double b) /* a, b >= 1 */
{
    double x = random_gamma(state, a), y = random_gamma(state, b);
    return x / (x + y);
}

/* The seed of stream `number` of a run: streams of one run and of neighbouring seeds do not overlap in practice. */
static uint64_t random_stream(uint64_t seed, uint64_t number)
{
    uint64_t state = random_bits(&seed) + number * 0xd1342543de82ef95u;
    return random_bits(&state);
}
