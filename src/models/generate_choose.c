/* generate_choose.c - chooses a token from logits: the repetition penalty, the temperature, top-k and top-p
 * in the order of transformers' logits processors, and a draw.
 *
 * Nothing is sorted. Top-k asks for the largest number that k logits reach, and top-p for the largest weight
 * such that it and those above it are at least p of the sum of all. Both are found by the bits of the
 * numbers, eleven at a time from the highest on: the mass of all numbers with the same bits is added up, and
 * the search goes on among those in whose sum the wanted mass is reached. */
#include "models/generate.h"
#include "kernels/cpu/exps.h"

#include <math.h>
#include <string.h>

/* ---- numbers in order ---- */

#define KEY_LEAST (INT32_MIN + (1 << 23) - 1) /* -infinity; keys below are those of NaN    */
#define KEY_MOST  (INT32_MAX - (1 << 23))     /* FLT_MAX; above are +infinity's and NaN's */

/* A float's bits as an integer in the order of the numbers. */
TERN__INLINE int32_t key_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x == 0) return 0; /* -0 is 0 */
    return bits ^ ((bits >> 31) & INT32_MAX);
}

static float key_value(int32_t key)
{
    int32_t bits = key ^ ((key >> 31) & INT32_MAX);
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Finds the largest and the smallest number. */
TERN__SIMD static void find_ends(const float *x, int64_t n, int32_t *least, int32_t *most)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        int32_t key = key_of(x[i]);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    *least = low;
    *most = high;
}

static int64_t find_first(const float *x, int64_t n, int32_t key)
{
    for (int64_t i = 0; i < n; i++)
        if (key_of(x[i]) == key) return i;
    return 0;
}

/* ---- the number at which a mass is reached ---- */

enum { DIGIT = 11, DIGITS = 1 << DIGIT };

typedef struct reach {
    uint32_t key;      /* of the number, moved to begin at 0      */
    double above, all; /* the mass of larger numbers, and of all */
} reach;

static uint32_t reach_key(float x)
{
    return (uint32_t)key_of(x) ^ (uint32_t)1 << 31;
}

static float reach_value(const reach *r)
{
    return key_value((int32_t)(r->key ^ (uint32_t)1 << 31));
}

/* Finds the largest number that together with the larger ones has at least the mass `count`, or the part
 * `part` of all mass if that is not 0. The mass of a number is 1 in the first case, and the number itself in
 * the second. */
static reach find_reach(const float *x, int64_t n, double count, double part)
{
    reach found = {0, 0, 0};
    for (int done = 0; done < 32;) {
        int bits = TERN__MIN(DIGIT, 32 - done), shift = 32 - done - bits, digit = 0;
        double mass[DIGITS] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = reach_key(x[i]);
            if (done && key >> (32 - done) != found.key >> (32 - done)) continue;
            mass[key >> shift & ((1u << bits) - 1)] += part > 0 ? (double)x[i] : 1;
        }
        for (int d = 0; d < DIGITS && !done; d++) found.all += mass[d];
        double wanted = part > 0 ? part * found.all : count;
        for (int d = (1 << bits) - 1; d >= 0; d--) {
            if (mass[d] == 0) continue;
            digit = d;
            if (found.above + mass[d] >= wanted) break;
            found.above += mass[d];
        }
        found.key |= (uint32_t)digit << shift;
        done += bits;
    }
    return found;
}

/* ---- logits processors ---- */

/* Applies the repetition penalty to each token of the history once. A pass over the history takes as many
 * tokens of the vocabulary as a set on the stack holds. */
static void penalize(float *logits, int64_t vocabulary, const int32_t *history, int64_t count, double penalty)
{
    enum { AT_ONCE = 1 << 16 };
    const float factor = (float)penalty;
    for (int64_t first = 0; first < vocabulary; first += AT_ONCE) {
        uint64_t seen[AT_ONCE / 64] = {0};
        for (int64_t i = 0; i < count; i++) {
            uint64_t at = (uint64_t)(history[i] - first), bit = (uint64_t)1 << (at % 64);
            if (at >= AT_ONCE || seen[at / 64] & bit) continue;
            seen[at / 64] |= bit;
            float *logit = &logits[history[i]];
            *logit = *logit < 0 ? *logit * factor : *logit / factor;
        }
    }
}

TERN__SIMD static void divide(float *x, int64_t n, float divisor)
{
    for (int64_t i = 0; i < n; i++) x[i] /= divisor;
}

/* Replaces logits by exp(logit - top), and those below `least` by 0. Blocks of one size make equal weights of
 * equal logits: the rest of a loop over vectors would be computed by another function, which rounds
 * otherwise. */
TERN__SIMD static void weigh(float *x, int64_t n, float top, float least)
{
    enum { BLOCK = 256 };
    float block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t count = TERN__MIN(BLOCK, n - first);
        for (int64_t i = 0; i < count; i++) block[i] = x[first + i] < least ? -INFINITY : x[first + i] - top;
        for (int64_t i = count; i < BLOCK; i++) block[i] = 0;
        tern__exps(block, block, BLOCK);
        memcpy(x + first, block, (size_t)count * sizeof(*x));
    }
}

/* Sets weights below `least` to 0, and returns how many are as large. */
TERN__SIMD static int64_t drop_below(float *x, int64_t n, float least)
{
    int32_t equal = 0;
    for (int64_t i = 0; i < n; i++) {
        equal += x[i] == least;
        x[i] = x[i] < least ? 0 : x[i];
    }
    return equal;
}

/* Sets all weights but those of top-p to 0. Of equal ones the first stay. */
static void keep_top_p(float *weights, int64_t n, double top_p)
{
    reach at = find_reach(weights, n, 0, top_p);
    float least = reach_value(&at);
    double kept = TERN__MAX(1, ceil((top_p * at.all - at.above) / (double)least));
    if ((double)drop_below(weights, n, least) <= kept) return;
    for (int64_t i = 0; i < n; i++)
        if (weights[i] == least && --kept < 0) weights[i] = 0;
}

/* ---- the draw ---- */

TERN__SIMD static double weights_sum(const float *weights, int64_t n)
{
    return tern__dot(weights, NULL, n);
}

/* Returns the first token up to which the weights are more than the part `where` of all: first by stretches,
 * then within one. Where rounding leaves none it is the last one with a weight. */
static int32_t draw_by_weight(const float *weights, int64_t n, double where)
{
    double left = where * weights_sum(weights, n);
    for (int64_t first = 0; first < n; first += TERN__SUM_STRETCH) {
        int64_t end = TERN__MIN(n, first + TERN__SUM_STRETCH);
        double part = weights_sum(weights + first, end - first);
        for (int64_t i = first; i < end && part > left; i++)
            if (weights[i] > 0 && (left -= (double)weights[i]) < 0) return (int32_t)i;
        left -= part > left ? 0 : part;
    }
    int64_t last = n - 1;
    while (last > 0 && !(weights[last] > 0)) last--;
    return (int32_t)last;
}

/* Returns a number in [0, 1) of 53 bits. */
static double draw_where(tern_rng *rng)
{
    return (double)(tern_rng_u64(rng) >> 11) * 0x1p-53;
}

/* ---- the choice ---- */

static int logits_refuse(const float *logits, int64_t n, const char *func, tern_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!(logits[i] < INFINITY))
            return tern__error_set(err, func, TERN_E_FORMAT, "the logit of token %lld is %g", (long long)i,
                                   (double)logits[i]);
    return tern__error_set(err, func, TERN_E_FORMAT, "the logits of all tokens are -infinity");
}

/* Draws from the logits of which `most` is the key of the largest. */
static int32_t draw_token(float *logits, int64_t n, int32_t most, const tern_generate_opts *o, tern_rng *rng)
{
    float least = -INFINITY, temperature = (float)o->temperature;
    divide(logits, n, temperature);
    if (o->top_k > 0 && o->top_k < n) {
        reach at = find_reach(logits, n, (double)o->top_k, 0);
        least = reach_value(&at);
    }
    weigh(logits, n, key_value(most) / temperature, least);
    if (o->top_p < 1) keep_top_p(logits, n, o->top_p);
    return draw_by_weight(logits, n, draw_where(rng));
}

int tern__generate_choose(float *logits, int64_t vocabulary, const int32_t *history, int64_t count,
                          const tern_generate_opts *o, int32_t *id, const char *func, tern_error *err)
{
    int32_t least, most;
    if (o->repetition_penalty != 1) penalize(logits, vocabulary, history, count, o->repetition_penalty);
    find_ends(logits, vocabulary, &least, &most);
    if (least < KEY_LEAST || most > KEY_MOST || most == KEY_LEAST)
        return logits_refuse(logits, vocabulary, func, err);
    if (!o->do_sample) {
        *id = (int32_t)find_first(logits, vocabulary, most);
        return TERN_OK;
    }
    if (isinf(key_value(most) / (float)o->temperature))
        return tern__error_set(err, func, TERN_E_FORMAT, "the logits overflow at a temperature of %g",
                               o->temperature);
    *id = draw_token(logits, vocabulary, most, o, o->rng);
    return TERN_OK;
}

int tern_generate_choose(float *logits, int64_t vocabulary, const int32_t *history, int64_t count,
                         const tern_generate_opts *opts, int32_t *id, tern_error *err)
{
    tern_generate_opts o;
    int status = tern__need(logits, "array of logits", __func__, err);
    if (!status) status = tern__need(id, "id", __func__, err);
    if (!status && count > 0) status = tern__need(history, "history", __func__, err);
    if (!status) status = tern__generate_opts_read(&o, opts, __func__, err);
    if (!status && (vocabulary < 1 || vocabulary > INT32_MAX))
        status = tern__error_set(err, __func__, TERN_E_RANGE, "expected at least 1 logit, got %lld",
                                 (long long)vocabulary);
    if (!status) status = tern__generate_ids_check(history, count, vocabulary, __func__, err);
    tern_rng *own = !status && o.do_sample && !o.rng ? tern_rng_new(0, err) : NULL;
    if (own) o.rng = own;
    if (!status && o.do_sample && !o.rng) status = TERN_E_MEMORY;
    if (!status) status = tern__generate_choose(logits, vocabulary, history, count, &o, id, __func__, err);
    tern_rng_free(own);
    return status;
}
