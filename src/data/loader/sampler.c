/* sampler.c - decides which samples this rank sees in an epoch, and in which order.
 *
 * Three samplers are one: the epoch's order is 0 .. n-1 or a permutation of that, and rank r of R takes
 * its blocks of positions r, r + R, r + 2R, ... Padding repeats the order from its start, so position p is
 * order[p % n]. The sequential and the random sampler have one rank. A fourth sampler asks a function of the
 * user's. */
#include "data/loader/sampler.h"

#include "base/base.h"
#include "base/opts.h"

#define MAX_SAMPLES (INT64_C(1) << 56) /* so that no product overflows */

struct tern_sampler {
    int64_t n;
    int64_t count; /* positions of this rank */
    int ranks, rank;
    int64_t block; /* positions that a rank gets at a time */
    uint64_t seed;
    int64_t epoch;
    tern_rng *rng;      /* NULL: the order is 0 .. n-1 */
    int64_t *order;     /* (n) with rng, else NULL */
    tern_order_fn fill; /* the user's function, or NULL */
    void *ctx;
};

tern_distributed_opts tern_distributed_defaults(void)
{
    return (tern_distributed_opts){
        .size = sizeof(tern_distributed_opts), .shuffle = true, .pad = true, .block = 1};
}

static int64_t positions(int64_t n, int ranks, int rank, const tern_distributed_opts *opts)
{
    int64_t all = ranks * opts->block, full = n / all * opts->block, rest = n % all - rank * opts->block;
    if (opts->drop_last) return full;
    if (opts->pad) return full + (n % all ? opts->block : 0);
    return full + TERN__MIN(TERN__MAX(rest, 0), opts->block);
}

static tern_sampler *sampler_new(int64_t n, int ranks, int rank, const tern_distributed_opts *opts,
                                 const char *func, tern_error *err)
{
    if (n < 0 || n > MAX_SAMPLES) {
        tern__error_set(err, func, TERN_E_INVALID, "n is %lld, expected [0, %lld]", (long long)n,
                        (long long)MAX_SAMPLES);
        return NULL;
    }
    tern_sampler *sampler = tern__alloc(sizeof(*sampler), func, err);
    if (!sampler) return NULL;
    *sampler = (tern_sampler){.n = n, .ranks = ranks, .rank = rank, .block = opts->block, .seed = opts->seed};
    sampler->count = positions(n, ranks, rank, opts);
    if (!opts->shuffle) return sampler;
    sampler->rng = tern_rng_new(opts->seed, err);
    sampler->order = tern__alloc((size_t)n * sizeof(int64_t), func, err);
    if (sampler->rng && sampler->order) return sampler;
    tern_sampler_free(sampler);
    return NULL;
}

tern_sampler *tern_sequential_sampler_new(int64_t n, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    return sampler_new(n, 1, 0, &(tern_distributed_opts){.block = 1}, "tern_sequential_sampler_new", err);
}

tern_sampler *tern_random_sampler_new(int64_t n, uint64_t seed, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern_distributed_opts opts = {.shuffle = true, .seed = seed, .block = 1};
    return sampler_new(n, 1, 0, &opts, "tern_random_sampler_new", err);
}

tern_sampler *tern_distributed_sampler_new(int64_t n, int ranks, int rank, const tern_distributed_opts *user,
                                           tern_error *err)
{
    static const char func[] = "tern_distributed_sampler_new";
    tern_distributed_opts opts = tern_distributed_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, func, err)) return NULL;
    if (ranks < 1) {
        tern__error_set(err, func, TERN_E_RANGE, "ranks is %d, expected at least 1", ranks);
        return NULL;
    }
    if (rank < 0 || rank >= ranks) {
        tern__error_set(err, func, TERN_E_RANGE, "rank is %d, expected [0, %d] for %d ranks", rank, ranks - 1,
                        ranks);
        return NULL;
    }
    if (opts.block < 1 || opts.block > MAX_SAMPLES / ranks) {
        tern__error_set(err, func, TERN_E_RANGE, "block is %lld, expected [1, %lld] for %d ranks",
                        (long long)opts.block, (long long)(MAX_SAMPLES / ranks), ranks);
        return NULL;
    }
    return sampler_new(n, ranks, rank, &opts, func, err);
}

tern_sampler *tern_sampler_new(int64_t n, int64_t count, tern_order_fn order, void *ctx, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!order || count < 0 || count > MAX_SAMPLES) {
        tern__error_set(err, __func__, TERN_E_INVALID,
                        "expected a function and a count in [0, %lld], got %lld%s", (long long)MAX_SAMPLES,
                        (long long)count, order ? "" : " and NULL");
        return NULL;
    }
    tern_sampler *sampler = sampler_new(n, 1, 0, &(tern_distributed_opts){.block = 1}, __func__, err);
    if (!sampler) return NULL;
    sampler->count = count;
    sampler->fill = order;
    sampler->ctx = ctx;
    return sampler;
}

void tern_sampler_free(tern_sampler *sampler)
{
    if (!sampler) return;
    tern_rng_free(sampler->rng);
    tern__free(sampler->order);
    tern__free(sampler);
}

int64_t tern_sampler_length(const tern_sampler *sampler)
{
    return sampler ? sampler->count : 0;
}

int64_t tern__sampler_span(const tern_sampler *sampler)
{
    return sampler->n;
}

int64_t tern__sampler_place(const tern_sampler *sampler, int64_t position)
{
    return position / (sampler->ranks * sampler->block) * sampler->block;
}

int64_t tern__sampler_position(const tern_sampler *sampler, int64_t place)
{
    return place * sampler->ranks;
}

bool tern__sampler_shuffles(const tern_sampler *sampler)
{
    return sampler->rng != NULL;
}

uint64_t tern__sampler_seed_get(const tern_sampler *sampler)
{
    return sampler->seed;
}

void tern__sampler_seed_set(tern_sampler *sampler, uint64_t seed)
{
    sampler->seed = seed;
}

void tern_sampler_epoch_set(tern_sampler *sampler, int64_t epoch)
{
    if (sampler) sampler->epoch = epoch;
}

int64_t tern_sampler_epoch_get(const tern_sampler *sampler)
{
    return sampler ? sampler->epoch : 0;
}

/* The user's order, of which every index is checked. */
static int ask_order(const tern_sampler *sampler, int64_t *out, const char *func, tern_error *err)
{
    tern_error why = {0};
    int status = sampler->fill(sampler->epoch, sampler->count, out, sampler->ctx, &why);
    if (why.code) return tern_error_set(err, why.func, why.code, "%s", why.text);
    if (status)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "the sampler's function returned %d without setting *err", status);
    for (int64_t i = 0; i < sampler->count; i++)
        if (out[i] < 0 || out[i] >= sampler->n)
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "the sampler's function gave index %lld at place %lld of epoch %lld, "
                                   "expected one in [0, %lld)",
                                   (long long)out[i], (long long)i, (long long)sampler->epoch,
                                   (long long)sampler->n);
    return TERN_OK;
}

int tern_sampler_indices(tern_sampler *sampler, int64_t *out, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!sampler) return tern__error_set(err, __func__, TERN_E_INVALID, "the sampler is NULL");
    if (sampler->fill) return ask_order(sampler, out, __func__, err);
    if (sampler->rng) {
        tern_rng_seed(sampler->rng, sampler->seed + (uint64_t)sampler->epoch);
        tern_rng_permutation(sampler->rng, sampler->order, sampler->n);
    }
    for (int64_t i = 0; i < sampler->count; i++) {
        int64_t turn = i / sampler->block * sampler->ranks + sampler->rank;
        int64_t position = (turn * sampler->block + i % sampler->block) % sampler->n;
        out[i] = sampler->order ? sampler->order[position] : position;
    }
    return TERN_OK;
}
