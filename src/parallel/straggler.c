/* straggler.c - finds the rank that the others wait for.
 *
 * In a synchronised backward all ranks finish together, when the last one has posted its buckets. So the time
 * from a rank's own last bucket until the end shows how much earlier than the last rank it was. Each rank
 * adds up these times. Every TERN__STRAGGLER_STEPS steps the ranks gather the sums, in one small work
 * together with the next backward's works, until the window is long enough for a verdict. The rank that
 * waited least is the one that the others waited for. Its cost is the mean time that they waited longer than
 * it did, as a share of the window's time. A rank counts as slow if this share is large and the others waited
 * for it in most of the steps: one long pause (a checkpoint, say) does not make a rank slow. */
#include "parallel/straggler.h"

#include "parallel/ddp.h"

/* ---- the verdict ---- */

static void find_rank(tern__straggler *self, int world)
{
    const tern__waits *sums = self->sums;
    double others = 0;
    self->rank = 0;
    for (int rank = 1; rank < world; rank++)
        if (sums[rank].waited < sums[self->rank].waited) self->rank = rank;
    for (int rank = 0; rank < world; rank++) others += (double)(sums[rank].waited - sums[self->rank].waited);
    self->share = others / (world - 1) / (double)TERN__MAX(sums[0].window, 1);
}

static bool is_slow(const tern__straggler *self, int world)
{
    int64_t steps = 0;
    for (int rank = 0; rank < world; rank++) steps += rank == self->rank ? 0 : self->sums[rank].steps;
    return self->share > TERN__STRAGGLER_SHARE && 2 * steps > (int64_t)(world - 1) * self->steps;
}

bool tern__straggler_judge(tern__straggler *self, int world)
{
    find_rank(self, world);
    if (self->share < TERN__STRAGGLER_CALM)
        for (int rank = 0; rank < world; rank++) self->named[rank] = false;
    bool is_due = is_slow(self, world) && !self->named[self->rank];
    if (is_due) self->named[self->rank] = true;
    return is_due;
}

/* ---- life ---- */

static bool straggler_is_on(const tern_ddp *ddp)
{
    return tern_group_size(ddp->group) > 1;
}

static int straggler_open(tern_ddp *ddp, tern_error *err)
{
    size_t world = (size_t)tern_group_size(ddp->group);
    tern__straggler *self = ddp->straggler;
    self->rank = -1;
    self->sums = tern__ddp_alloc(ddp, NULL, world * sizeof(*self->sums), err);
    self->named = tern__ddp_alloc(ddp, NULL, world * sizeof(*self->named), err);
    if (!self->sums || !self->named) return TERN_E_MEMORY;
    uint64_t count = world * sizeof(tern__waits) / sizeof(int64_t);
    return tern__ddp_extent_open(ddp, TERN_I64, count, &self->gathered, err);
}

/* ---- a window ---- */

static tern__waits *gathered(const tern_ddp *ddp)
{
    return tern__ddp_window_base(ddp, ddp->straggler->gathered.window);
}

/* Posts the exchange when it is due. */
static int straggler_post(tern_ddp *ddp, tern_error *err)
{
    tern__straggler *self = ddp->straggler;
    self->is_posted = self->count == TERN__STRAGGLER_STEPS;
    if (!self->is_posted) return TERN_OK;
    gathered(ddp)[tern_group_rank(ddp->group)] = self->own;
    return tern__ddp_post_all(ddp, TERN__ALL_GATHER, TERN_I64, &self->gathered, 1, err);
}

static void warn_of_rank(const tern_ddp *ddp)
{
    char who[128];
    const tern__straggler *self = ddp->straggler;
    tern__group_describe(ddp->group, self->rank, who, sizeof(who));
    tern__log(TERN_LOG_WARN, "%s is slow: the others waited %.0f %% of the last %d steps for it", who,
              100 * self->share, self->steps);
}

/* A rank without inputs waits for those that still have some, which does not make them slow. */
static bool has_shadows(const tern__waits *told, int world)
{
    int64_t shadows = 0;
    for (int rank = 0; rank < world; rank++) shadows += told[rank].shadows;
    return shadows > 0;
}

/* Adds up the gathered waits. All ranks reach the same verdict. */
static void add_gathered(tern_ddp *ddp)
{
    tern__straggler *self = ddp->straggler;
    const tern__waits *told = gathered(ddp);
    int world = tern_group_size(ddp->group);
    if (has_shadows(told, world)) return;
    for (int rank = 0; rank < world; rank++) {
        self->sums[rank].window += told[rank].window;
        self->sums[rank].waited += told[rank].waited;
        self->sums[rank].steps += told[rank].steps;
    }
    self->steps += TERN__STRAGGLER_STEPS;
    if (self->sums[0].window < TERN__STRAGGLER_WINDOW) return;
    bool is_due = tern__straggler_judge(self, world);
    if (is_due && ddp->opts.straggler_warn && tern_group_rank(ddp->group) == 0) warn_of_rank(ddp);
    for (int rank = 0; rank < world; rank++) self->sums[rank] = (tern__waits){0};
    self->steps = 0;
}

static void count_step(tern__straggler *self, int64_t waited, int64_t took)
{
    self->own.window += took;
    self->own.waited += waited;
    self->own.steps += (double)waited > TERN__STRAGGLER_SHARE * (double)took;
    self->count++;
}

/* The first backward only starts the clock. */
static int straggler_take(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    tern__straggler *self = ddp->straggler;
    int64_t now = ddp->round.ended;
    if (self->is_posted) {
        add_gathered(ddp);
        self->own = (tern__waits){0};
        self->count = 0;
    }
    if (self->before) count_step(self, now - ddp->round.arrived, now - self->before);
    self->own.shadows += ddp->shadow;
    self->before = now;
    return TERN_OK;
}

int tern__straggler_rank(const tern_ddp *ddp, double *share)
{
    *share = ddp->straggler ? ddp->straggler->share : 0;
    return ddp->straggler ? ddp->straggler->rank : -1;
}

const tern__ddp_part tern__straggler_part = {TERN__DDP_STATE(straggler), .is_on = straggler_is_on,
                                             .at = {[TERN__DDP_OPEN] = straggler_open,
                                                    [TERN__DDP_POST] = straggler_post,
                                                    [TERN__DDP_TAKE] = straggler_take}};
