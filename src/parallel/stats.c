/* stats.c - times the phases of a ddp's backwards, and prints them. */
#include "parallel/ddp.h"

#include <tern/stats.h>

#include <stdio.h>
#include <string.h>

struct tern__stats {
    tern_ddp_times last, sum;
    uint64_t iterations;
    int unused;
    size_t unused_bytes;
    size_t *initial; /* [initial_count] bytes of the first buckets, once they may be replaced */
    int initial_count;
};

static int stats_open(tern_ddp *ddp, tern_error *err)
{
    size_t buckets = (size_t)ddp->leaf_count + 2;
    ddp->stats->initial = tern__ddp_alloc(ddp, NULL, buckets * sizeof(size_t), err);
    return ddp->stats->initial ? TERN_OK : TERN_E_MEMORY;
}

/* ---- during a backward ---- */

static int stats_start(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    if (!ddp->rebuilt) ddp->stats->initial_count = ddp->bucket_count;
    for (int b = 0; b < ddp->bucket_count && !ddp->rebuilt; b++)
        ddp->stats->initial[b] = ddp->buckets[b].bytes;
    if (ddp->shadow) return TERN_OK;
    ddp->stats->unused = 0;
    ddp->stats->unused_bytes = 0;
    for (int i = 0; i < ddp->leaf_count; i++) {
        const tern__leaf *leaf = ddp->seal->leaves[ddp->order[i]];
        if (leaf->fresh || leaf->pending > 0) continue;
        ddp->stats->unused++;
        ddp->stats->unused_bytes += tern__view_bytes(&leaf->parameter->view);
    }
    return TERN_OK;
}

/* Another ddp may have ended its part before, so the time when the last gradient was written is the scope's.
 */
static int stats_take(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    struct tern__stats *stats = ddp->stats;
    const tern_scope *scope = ddp->round.scope;
    if (ddp->shadow) return TERN_OK;
    tern_ddp_times times = {.forward = scope->backward_began - scope->forward_began,
                            .backward = scope->backward_ended - scope->backward_began,
                            .communication = ddp->round.ended - ddp->round.posted,
                            .overlap = TERN__MAX(scope->backward_ended - ddp->round.posted, 0)};
    stats->last = times;
    stats->sum.forward += times.forward;
    stats->sum.backward += times.backward;
    stats->sum.communication += times.communication;
    stats->sum.overlap += times.overlap;
    stats->iterations++;
    return TERN_OK;
}

const tern__ddp_part tern__stats_part = {
    TERN__DDP_STATE(stats),
    .at = {[TERN__DDP_OPEN] = stats_open, [TERN__DDP_START] = stats_start, [TERN__DDP_TAKE] = stats_take}};

/* ---- for the user ---- */

static tern_ddp_times stats_mean(const struct tern__stats *stats)
{
    int64_t n = stats->iterations ? (int64_t)stats->iterations : 1;
    return (tern_ddp_times){stats->sum.forward / n, stats->sum.backward / n, stats->sum.communication / n,
                            stats->sum.overlap / n};
}

static tern_ddp_stats stats_of(const tern_ddp *ddp)
{
    const struct tern__stats *stats = ddp->stats;
    tern_ddp_stats out = {.rank = tern_group_rank(ddp->group),
                          .world = tern_group_size(ddp->group),
                          .iterations = stats->iterations,
                          .parameters = ddp->leaf_count,
                          .unused = stats->unused,
                          .unused_bytes = stats->unused_bytes,
                          .first_bucket_bytes = ddp->opts.first_bucket_bytes,
                          .bucket_bytes = ddp->opts.bucket_bytes,
                          .initial_buckets = ddp->rebuilt ? stats->initial_count : ddp->bucket_count,
                          .buckets = ddp->bucket_count,
                          .ready = ddp->round.ready_count,
                          .has_rebuilt = ddp->rebuilt,
                          .broadcast_buffers = ddp->opts.broadcast_buffers,
                          .last = stats->last,
                          .mean = stats_mean(stats)};
    out.slow_rank = tern__straggler_rank(ddp, &out.slow_share);
    for (int b = 0; b < ddp->bucket_count; b++) out.parameter_bytes += ddp->buckets[b].bytes;
    return out;
}

int tern_ddp_stats_get(const tern_ddp *ddp, tern_ddp_stats *out, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!ddp || !out) return tern__error_set(err, __func__, TERN_E_INVALID, "the ddp or `out` is NULL");
    if (out->size < sizeof(out->size))
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "out->size is %zu, expected sizeof(tern_ddp_stats)", out->size);
    if (out->size > sizeof(*out))
        return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                               "out->size is %zu, this version of the library knows %zu bytes", out->size,
                               sizeof(*out));
    tern_ddp_stats all = stats_of(ddp);
    all.size = out->size;
    memcpy(out, &all, all.size);
    return TERN_OK;
}

size_t tern_ddp_initial_bucket_bytes(const tern_ddp *ddp, int bucket)
{
    if (!ddp || !ddp->rebuilt) return tern_ddp_bucket_bytes(ddp, bucket);
    return bucket >= 0 && bucket < ddp->stats->initial_count ? ddp->stats->initial[bucket] : 0;
}

const char *tern_ddp_ready_name(const tern_ddp *ddp, int place)
{
    if (!ddp || place < 0 || place >= ddp->round.ready_count) return NULL;
    return ddp->seal->leaves[ddp->ready[place]]->name;
}

/* ---- the table ---- */

static double mb(size_t bytes)
{
    return (double)bytes / 1e6;
}

static void print_times(const char *what, int64_t last, int64_t mean)
{
    printf("  %-24s %12.3f %12.3f\n", what, (double)last / 1e6, (double)mean / 1e6);
}

static void print_buckets(const tern_ddp *ddp, const tern_ddp_stats *s)
{
    printf("\n  %-24s %12s %12s\n", "bucket", "MB at first", "MB now");
    for (int b = 0; b < TERN__MAX(s->initial_buckets, s->buckets); b++) {
        char before[16] = "", now[16] = "";
        if (b < s->initial_buckets)
            snprintf(before, sizeof(before), "%.3f", mb(tern_ddp_initial_bucket_bytes(ddp, b)));
        if (b < s->buckets) snprintf(now, sizeof(now), "%.3f", mb(tern_ddp_bucket_bytes(ddp, b)));
        printf("  %-24d %12s %12s\n", b, before, now);
    }
}

static void print_ready(const tern_ddp *ddp)
{
    int column = printf("\n  ready in this order:") - 1;
    const char *name;
    for (int i = 0; (name = tern_ddp_ready_name(ddp, i)); i++) {
        if (column + 1 + (int)strlen(name) > 100) column = printf("\n   ") - 1;
        column += printf(" %s", name);
    }
    printf("\n");
}

void tern_ddp_stats_print(const tern_ddp *ddp)
{
    if (!ddp) return;
    tern_ddp_stats s = stats_of(ddp);
    printf("ddp on rank %d of %d after %llu synchronised backwards\n", s.rank, s.world,
           (unsigned long long)s.iterations);
    printf("  %d parameters, %.3f MB; %d unused, %.3f MB\n", s.parameters, mb(s.parameter_bytes), s.unused,
           mb(s.unused_bytes));
    printf("  buckets closed at %.3f MB, then at %.3f MB; %s; buffers %s\n", mb(s.first_bucket_bytes),
           mb(s.bucket_bytes), s.has_rebuilt ? "rebuilt in rank 0's ready order" : "not yet rebuilt",
           s.broadcast_buffers ? "from rank 0" : "each rank's own");
    printf("\n  %-24s %12s %12s\n", "", "last ms", "mean ms");
    print_times("forward", s.last.forward, s.mean.forward);
    print_times("backward", s.last.backward, s.mean.backward);
    print_times("communication", s.last.communication, s.mean.communication);
    print_times("  beside backward", s.last.overlap, s.mean.overlap);
    if (s.slow_rank >= 0)
        printf("  the others waited %.1f %% of the time for rank %d\n", 100 * s.slow_share, s.slow_rank);
    print_buckets(ddp, &s);
    print_ready(ddp);
}
