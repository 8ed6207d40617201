/* describe.c - describes works in words, for errors, for peers that ask, and for the timeline. */
#include "comm/meet/meeting.h"

#include "base/hash.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {
    [TERN__ALL_REDUCE] = "all_reduce",
    [TERN__BROADCAST] = "broadcast",
    [TERN__ALL_GATHER] = "all_gather",
    [TERN__REDUCE_SCATTER] = "reduce_scatter",
    [TERN__BARRIER] = "barrier",
    [TERN__MONITORED_BARRIER] = "monitored_barrier",
    [TERN__REDUCE] = "reduce",
    [TERN__GATHER] = "gather",
    [TERN__SCATTER] = "scatter",
    [TERN__ALL_TO_ALL] = "all_to_all",
    [TERN__ALL_GATHER_V] = "all_gather_v",
    [TERN__ALL_TO_ALL_V] = "all_to_all_v",
};
static const char *const op_names[] = {
    [TERN_SUM] = "sum", [TERN_AVG] = "avg",   [TERN_PRODUCT] = "product",
    [TERN_MIN] = "min", [TERN_MAX] = "max",   [TERN_BAND] = "band",
    [TERN_BOR] = "bor", [TERN_BXOR] = "bxor", [TERN_PREMUL_SUM] = "premul_sum",
};

int tern__post_check(const tern__post *post, tern_error *err)
{
    bool weighs = post->op == TERN_AVG || post->op == TERN_PREMUL_SUM;
    if (!post->terms.weighted) return TERN_OK;
    if (!tern__kind_reduces(post->kind) || !weighs)
        return tern__error_set(err, "tern_backward", TERN_E_INVALID,
                               "a weight is set, but only an avg or a premul_sum takes one");
    if (!isfinite(post->terms.weight) || !isfinite(post->terms.share) || post->terms.share < 0)
        return tern__error_set(err, "tern_backward", TERN_E_RANGE,
                               "weight %g, share %g: expected finite numbers, and a share of at least 0",
                               post->terms.weight, post->terms.share);
    return TERN_OK;
}

/* ---- kinds of labels ---- */

#define KINDS 8

static _Atomic(const tern__label_kind *) kinds[KINDS];

void tern__label_kind_add(const tern__label_kind *kind)
{
    atomic_store(&kinds[kind->id], kind);
}

/* NULL: a collective of the user's, or a kind that this process does not have. */
static const tern__label_kind *kind_of(const tern__desc *desc)
{
    return desc->label < KINDS ? atomic_load(&kinds[desc->label]) : NULL;
}

static tern__label label_of(const tern__desc *desc)
{
    return (tern__label){
        .user = desc->user, .part = desc->part, .detail = desc->detail, .number = desc->number};
}

/* Hashes the extents of a work that is not placed. */
static uint64_t extents_digest(const tern__post *post)
{
    uint64_t hash = TERN__FNV;
    for (int i = 0; i < post->extent_count; i++) {
        const tern__extent *e = &post->extents[i];
        hash = tern__fnv_word(tern__fnv_word(tern__fnv_word(hash, e->window), e->offset), e->count);
    }
    return hash;
}

void tern__desc_write(tern__desc *desc, const tern__post *post)
{
    uint64_t count = 0;
    uint32_t flags = (post->terms.weighted ? TERN__WEIGHTED : 0) | (post->terms.shadow ? TERN__SHADOW : 0) |
                     (post->terms.idle ? TERN__IDLE : 0) | (post->is_vote ? TERN__VOTE : 0) |
                     (post->is_placed ? TERN__PLACED : 0);
    tern__extent own = {0};
    if (post->is_placed && post->extent_count) own = *post->extents;
    if (post->has_table) own = (tern__extent){.window = post->table_window, .offset = post->table_offset};
    for (int i = 0; i < post->extent_count; i++) count += post->extents[i].count;
    *desc = (tern__desc){.kind = (uint8_t)post->kind,
                         .label = post->label.kind ? (uint8_t)post->label.kind->id : 0,
                         .dtype = (uint8_t)post->dtype,
                         .op = (uint8_t)post->op,
                         .root = (uint32_t)post->root,
                         .user = post->label.user,
                         .part = post->label.part,
                         .detail = post->label.detail,
                         .flags = flags,
                         .number = post->label.number,
                         .count = count,
                         .total = post->total ? post->total : count,
                         .window = own.window,
                         .place = post->is_placed ? own.offset : extents_digest(post)};
}

/* The user's own works are named by the number of the call. */
static void label_text(const tern__desc *desc, uint64_t seq, char *text, size_t size)
{
    const tern__label_kind *kind = kind_of(desc);
    tern__label label = label_of(desc);
    if (kind)
        kind->text(&label, text, size);
    else
        snprintf(text, size, "%s(work %llu)", !desc->label && desc->detail ? "in a list " : "",
                 (unsigned long long)(desc->number ? desc->number : seq));
}

void tern__desc_text(const tern__desc *desc, uint64_t seq, char *text, size_t size)
{
    char place[80];
    label_text(desc, seq, place, sizeof(place));
    if (desc->flags & TERN__VOTE) {
        snprintf(text, size, "tern_group_new or tern_group_split %s", place);
        return;
    }
    const char *kind = desc->kind < TERN__COUNT(kind_names) ? kind_names[desc->kind] : "?";
    int used = snprintf(text, size, "%s", kind);
    char *rest = text + used;
    size_t room = size - (size_t)used;
    unsigned long long total = desc->total;
    const char *dtype = tern_dtype_name((tern_dtype)desc->dtype);
    switch (desc->kind) {
    case TERN__ALL_REDUCE:
    case TERN__REDUCE_SCATTER:
        snprintf(rest, room, " of %llu %s, %s %s", total, dtype, op_names[desc->op], place);
        break;
    case TERN__REDUCE:
        snprintf(rest, room, " of %llu %s, %s to rank %u %s", total, dtype, op_names[desc->op], desc->root,
                 place);
        break;
    case TERN__BROADCAST:
    case TERN__SCATTER:
        snprintf(rest, room, " of %llu %s from rank %u %s", total, dtype, desc->root, place);
        break;
    case TERN__GATHER:
        snprintf(rest, room, " to %llu %s on rank %u %s", total, dtype, desc->root, place);
        break;
    case TERN__ALL_GATHER: snprintf(rest, room, " to %llu %s %s", total, dtype, place); break;
    case TERN__ALL_TO_ALL: snprintf(rest, room, " of %llu %s %s", total, dtype, place); break;
    case TERN__ALL_GATHER_V:
    case TERN__ALL_TO_ALL_V: snprintf(rest, room, " of %s %s", dtype, place); break;
    default: snprintf(rest, room, " %s", place);
    }
}

bool tern__meeting_last_text(const tern__meeting *m, int rank, char *text, size_t size)
{
    uint64_t posted = m ? atomic_load(&m->posted[rank].value) : 0;
    if (posted) tern__desc_text(&tern__meeting_desc(m, posted)[rank], posted, text, size);
    return posted;
}

void tern__meeting_last(const tern__shm_group *of, int rank, char *text, size_t size)
{
    char last[TERN__WORK_TEXT];
    if (of->shm->state && tern__deadlock_text(of->shm, of->group, rank, last))
        snprintf(text, size, ", which waits in %s", last);
    else if (tern__meeting_last_text(of->first, rank, last, sizeof(last)))
        snprintf(text, size, ", whose last collective was %s", last);
    else
        snprintf(text, size, ", which has called no collective yet");
}

enum {
    DESC_WORDS = sizeof(tern__desc) / sizeof(uint64_t),
    WHERE_WORDS = TERN__GROUP_TEXT / sizeof(uint64_t)
};

/* The words are the work's number, its descriptor and the group's text. */
static void said_text(const uint64_t *words, char *text, size_t size)
{
    tern__desc desc;
    memcpy(&desc, words + 1, sizeof(desc));
    tern__desc_text(&desc, words[0], text, size);
    tern__text_append(text, size, "%.*s", TERN__GROUP_TEXT - 1, (const char *)(words + 1 + DESC_WORDS));
}

/* Every post calls this, but in a job of one host no rank asks, so it returns at once. */
void tern__desc_say(tern__control *control, const tern__desc *desc, uint64_t seq, const char *where)
{
    if (tern__control_hosts(control) == 1) return;
    uint64_t words[1 + DESC_WORDS + WHERE_WORDS] = {seq};
    _Static_assert(TERN__COUNT(words) <= TERN__LAST_WORDS, "a descriptor and its group fit");
    size_t bytes = strlen(where) + 1;
    memcpy(words + 1, desc, sizeof(*desc));
    memcpy(words + 1 + DESC_WORDS, where, bytes);
    int count = 1 + DESC_WORDS + (int)((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    tern__control_last_set(control, said_text, words, count);
}

bool tern__rank_text(const tern_group *group, int rank, char *text, size_t size)
{
    bool is_stopped = tern__group_is_stopped(group, rank);
    tern__group_describe(group, rank, text, size);
    if (is_stopped) tern__text_append(text, size, ", which is stopped (by SIGSTOP or a debugger)");
    return is_stopped;
}

/* Fields that may differ are copied from `like` before the comparison. */
bool tern__desc_is_same(const tern__desc *desc, const tern__desc *like)
{
    tern__desc said = *desc;
    said.flags = (like->flags & ~(uint32_t)TERN__PLACED) | (desc->flags & TERN__PLACED);
    if (desc->flags & TERN__SHADOW) {
        said.number = like->number;
        said.detail = like->detail;
    }
    return tern__desc_is_equal(&said, like);
}

/* Says why two works do not match. Works with the same text may use different memory. */
static const char *explain_difference(const tern__desc *one, const tern__desc *other, bool same)
{
    const tern__label_kind *kind = one->label == other->label ? kind_of(one) : NULL;
    tern__label labels[] = {label_of(one), label_of(other)};
    const char *why = kind && kind->differ ? kind->differ(&labels[0], &labels[1]) : "";
    bool are_lists = !one->label && !other->label && one->detail && other->detail;
    if (*why) return why;
    if (are_lists && one->detail != other->detail)
        return "; their lists of buffers differ in length or counts";
    if (same) return "; the same, but in different memory: at another offset of a window, or on a device";
    return "";
}

void tern__desc_differ(const tern__desc *one, const tern__desc *other, int one_rank, int other_rank,
                       uint64_t seq, char *text, size_t size)
{
    char first[TERN__WORK_TEXT], second[TERN__WORK_TEXT];
    tern__desc_text(one, seq, first, sizeof(first));
    tern__desc_text(other, seq, second, sizeof(second));
    snprintf(text, size, "rank %d: %s; rank %d: %s%s", one_rank, first, other_rank, second,
             explain_difference(one, other, strcmp(first, second) == 0));
}

void tern__desc_hint(const tern__meeting *m, uint64_t seq, int rank, tern__elsewhere where, char *text,
                     size_t size)
{
    const tern__desc *desc = &tern__meeting_desc(m, seq)[m->of->rank];
    const tern__label_kind *kind = kind_of(desc);
    uint64_t noted = atomic_load_explicit(&m->noted[rank].value, memory_order_relaxed);
    tern__label own = label_of(desc),
                theirs = {.number = noted >> TERN__TAG_BITS, .detail = (uint32_t)(noted & TERN__TAG_MAX)};
    *text = '\0';
    if (kind && kind->hint)
        kind->hint(&own, tern_group_world_rank(m->of->group, rank), &theirs, where, text, size);
}

const char *tern__desc_left(const tern__meeting *m, uint64_t seq)
{
    const tern__label_kind *kind = kind_of(&tern__meeting_desc(m, seq)[m->of->rank]);
    return kind ? kind->left : "closed its channel";
}

void tern__work_trace(const tern__meeting *m, uint64_t seq, tern__track track, int64_t began)
{
    tern__trace *trace = m->of->group->trace;
    if (!trace) return;
    const tern__met *work = tern__meeting_work(m, seq);
    const tern__post *post = &work->post;
    const tern__label_kind *kind = post->label.kind;
    tern__trace_event event = {
        .name = track == TERN__TRACK_WAIT ? "wait" : kind_names[post->kind],
        .track = track,
        .began = began,
        .ended = tern__now_ns(),
        .args = {{"bytes", (int64_t)(work->count * tern_dtype_bytes(post->dtype))},
                 {kind ? kind->part : "work", (int64_t)(kind ? post->label.part : seq)},
                 {kind ? kind->number : NULL, (int64_t)post->label.number}}};
    tern__trace_add(trace, &event);
}
