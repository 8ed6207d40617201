/* sequence.c - a sequence of schedules, one after another. */
#include "optim/schedule.h"

#include <math.h>
#include <string.h>

/* Returns the part that is active at time t, and when it began. */
static const tern_schedule *part_at(const tern_schedule *s, int64_t t, int64_t *since)
{
    int i = 0;
    while (i < s->count && s->milestones[i] <= t) i++;
    *since = i ? s->milestones[i - 1] : 0;
    return s->parts[i];
}

static double sequence_rate_at(const tern_schedule *s, int64_t t, int group, double rate)
{
    int64_t since;
    const tern_schedule *part = part_at(s, t, &since);
    return part->kind->rate(part, t - since, group, rate);
}

static double momentum_at(const tern_schedule *s, int64_t t)
{
    int64_t since;
    const tern_schedule *part = part_at(s, t, &since);
    return part->kind->momentum ? part->kind->momentum(part, t - since) : NAN;
}

const tern__schedule_kind tern__sequence_kind = {.rate = sequence_rate_at, .momentum = momentum_at};

static int check_part(const char *func, const tern_schedule *s, const tern_schedule *part, int i,
                      tern_error *err)
{
    const char *wrong = !part                     ? "is NULL"
                        : part->optim != s->optim ? "is of another optimizer"
                        : part->sequence          ? "is a part of a sequence already"
                        : part->unit != s->unit   ? "counts in the other unit"
                        : part->t > 0             ? "has begun"
                                                  : NULL;
    for (int k = 0; k < i && !wrong; k++)
        if (s->parts[k] == part) wrong = "is there twice";
    if (part && part->kind == &tern__plateau_kind)
        return tern__error_set(err, func, TERN_E_UNSUPPORTED,
                               "part %d is a plateau, which counts metrics: let it stand beside the sequence",
                               i);
    return wrong ? tern__error_set(err, func, TERN_E_INVALID, "part %d %s", i, wrong) : TERN_OK;
}

static int sequence_fill(const char *func, tern_schedule *s, tern_schedule *const *parts,
                         const int64_t *milestones, tern_error *err)
{
    size_t bytes = (size_t)(s->count + 1) * sizeof(*s->parts);
    s->parts = tern__alloc(bytes, func, err);
    if (!s->parts) return TERN_E_MEMORY;
    memcpy(s->parts, parts, bytes);
    for (int i = 0; i <= s->count; i++) {
        int status = check_part(func, s, parts[i], i, err);
        if (status) return status;
    }
    return tern__milestones_copy(func, s->count, milestones, 1, &s->milestones, err);
}

/* Returns the last part's end, if it has one. */
static int64_t end_of(const tern_schedule *s)
{
    int64_t last = s->parts[s->count]->done;
    return last && s->count ? last + s->milestones[s->count - 1] : last;
}

tern_schedule *tern_sequential_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                            tern_schedule *const *parts, const int64_t *milestones,
                                            tern_error *err)
{
    if (tern__schedule_check(__func__, optim, unit, err)) return NULL;
    if (count < 1 || !parts || (count > 1 && !milestones)) {
        tern__error_set(err, __func__, TERN_E_INVALID,
                        "expected at least one part and one milestone fewer, got %d parts",
                        parts ? count : 0);
        return NULL;
    }
    tern_schedule like = {.optim = optim, .unit = unit, .kind = &tern__sequence_kind, .count = count - 1};
    int status = sequence_fill(__func__, &like, parts, milestones, err);
    if (!status) like.done = end_of(&like);
    tern_schedule *sequence = status ? NULL : tern__schedule_new(__func__, &like, err);
    if (sequence) {
        for (int i = 0; i <= sequence->count; i++) {
            tern__schedule_unlink(sequence->parts[i]);
            sequence->parts[i]->sequence = sequence;
        }
        return sequence;
    }
    tern__free(like.parts);
    tern__free(like.milestones);
    return NULL;
}
