/* choice.c - a device's table of cases, and how a case gets its algorithm.
 *
 * A case is decided when it first occurs: by what another rank has told, else by what the user's file has,
 * else by measuring. Only algorithms that the device's rules allow at that moment count: the file has
 * times, and the fastest allowed algorithm is taken; if one of these has no time yet, all are measured
 * anew. A device that follows another rank ignores measurements, including its own earlier ones: until it
 * is told it uses the fixed table, as it does if it was told something it may not or cannot run. A case
 * for which the table has no algorithm is not measured either: it goes through f32 copies, which are a
 * case of their own.
 *
 * A device learns a bounded number of cases: a run with new shapes in every step would otherwise measure
 * in every step and keep what it never sees again. Further cases use the fixed table, which is consulted
 * each time: nothing is stored for them, and no rank needs to be told. */
#include "kernels/cpu/conv/choice.h"
#include "kernels/choices.h"

#include <string.h>

#define BUCKETS 256
#define TRIES   3 /* timed runs; the fastest counts */

/* From the one that takes the most cases to the fastest ones, which take few. */
const tern__conv_algorithm *const tern__conv_algorithms[TERN__CHOICE_ALGORITHMS + 1] = {
    &tern__conv_direct, &tern__conv_winograd, &tern__conv_tiles, &tern__conv_taps};

typedef struct entry entry;
struct entry {
    tern__choice choice;                   /* .chosen -1: not measured */
    const tern__conv_algorithm *algorithm; /* NULL: not decided since news of it came */
    bool told;                             /* by another rank or device, not by the file or by measuring */
    uint64_t serial;                       /* number when it was learned; 0: not learned */
    entry *next, *before;                  /* next in the bucket; next older among the learned */
};

typedef struct table {
    entry *buckets[BUCKETS];
    entry *learned; /* measured, used from the file, or told: newest first */
    int learned_count;
    uint64_t serial;
    bool has_read_file;
} table;

/* ---- the table ---- */

static void table_free(void *data)
{
    table *all = data;
    for (int b = 0; b < BUCKETS; b++)
        for (entry *one; (one = all->buckets[b]);) {
            all->buckets[b] = one->next;
            tern__free(one);
        }
    tern__free(all);
}

static table *table_of(tern_device *device, tern_error *err)
{
    if (!device->slots[TERN__SLOT_CONV].data) {
        device->slots[TERN__SLOT_CONV].data = tern__alloc(sizeof(table), __func__, err);
        device->slots[TERN__SLOT_CONV].free = table_free;
    }
    return device->slots[TERN__SLOT_CONV].data;
}

static entry *find(const table *all, const tern__prim_key *key)
{
    entry *one = all->buckets[tern__prim_key_hash(key) % BUCKETS];
    while (one && memcmp(&one->choice.key, key, sizeof(*key)) != 0) one = one->next;
    return one;
}

static entry *add(table *all, const tern__prim_key *key, tern_error *err)
{
    entry **bucket = &all->buckets[tern__prim_key_hash(key) % BUCKETS];
    entry *one = tern__alloc(sizeof(*one), __func__, err);
    if (!one) return NULL;
    *one = (entry){.choice = {.key = *key, .chosen = -1}, .next = *bucket};
    return *bucket = one;
}

static void take_out(table *all, const entry *one)
{
    entry **at = &all->learned;
    while (*at != one) at = &(*at)->before;
    *at = one->before;
}

static void learn(table *all, entry *one)
{
    if (one->serial)
        take_out(all, one);
    else
        all->learned_count++;
    one->before = all->learned;
    all->learned = one;
    one->serial = ++all->serial;
}

/* Whether a choice changes the entry. Others' choices take precedence over the file's. A case that is
 * decided, or was told, is reopened only if they chose differently. */
static bool is_news(const entry *one, const tern__choice *choice, bool told)
{
    bool is_open = !one->algorithm && !one->told;
    return is_open || (told && one->choice.chosen != choice->chosen);
}

static void hear(table *all, const tern__choice *choice, bool told)
{
    entry *one = find(all, &choice->key);
    if (!one) one = add(all, &choice->key, NULL);
    bool news = one && is_news(one, choice, told);
    if (one && told) one->told = true;
    if (!news) return;
    one->choice = *choice;
    one->algorithm = NULL;
    if (told) learn(all, one);
}

/* The reader of lines: where they go, and where they came from. */
typedef struct listener {
    table *all;
    const tern__choice_machine *machine; /* NULL: from any machine             */
    bool told;                           /* by another rank, not by the file   */
} listener;

static void take(void *ctx, const char *line, size_t bytes)
{
    const listener *l = ctx;
    tern__choice choice;
    if (tern__choice_parse(line, bytes, l->machine, &choice)) hear(l->all, &choice, l->told);
}

/* ---- the fixed table ---- */

static bool is_allowed(const tern__conv *c, const tern__conv_algorithm *a)
{
    const tern_device_conv_opts *rules = &c->call->device->conv;
    bool rounds = a->rounds_f32 && c->op[TERN__CONV_X].view->dtype == TERN_F32;
    return !(rounds && rules->exact) && a->takes(c) && (!a->scratch || a->scratch(c) <= rules->workspace);
}

static bool pays(const tern__conv *c, const tern__conv_algorithm *a)
{
    return !a->pays || a->pays(c);
}

/* The fixed table: the last algorithm that is allowed and pays; NULL: none. */
static const tern__conv_algorithm *look_up(const tern__conv *c)
{
    const tern__conv_algorithm *best = NULL;
    for (int i = 0; tern__conv_algorithms[i]; i++)
        if (is_allowed(c, tern__conv_algorithms[i]) && pays(c, tern__conv_algorithms[i]))
            best = tern__conv_algorithms[i];
    return best;
}

/* ---- measuring ---- */

/* A copy of the case whose results go elsewhere. */
typedef struct trial {
    tern__conv c;
    tern__call call;
    tern__view views[TERN__CONV_OPERANDS];
    void *blocks[TERN__CONV_OPERANDS];
} trial;

static size_t span(const tern__view *view)
{
    if (view->layout != TERN__PLAIN) return tern__view_bytes(view);
    return (size_t)(view->shape[0] * view->stride[0]) * tern_dtype_bytes(view->dtype);
}

/* Weights are packed in every run, as in a training step. */
static bool trial_open(trial *t, const tern__conv *c)
{
    bool fits = true;
    *t = (trial){.c = *c, .call = *c->call};
    t->c.call = &t->call;
    t->call.err = NULL;
    t->call.add[0] = t->call.add[1] = false;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        tern__conv_operand *op = &t->c.op[i];
        if (!op->view) continue;
        t->views[i] = *op->view;
        t->views[i].packs = NULL;
        if (op->result) t->views[i].data = t->blocks[i] = tern__device_alloc(c->call->device, span(op->view));
        fits = fits && t->views[i].data;
        op->view = &t->views[i];
        op->add = false;
        if (op->result) t->call.out[i == TERN__CONV_B] = op->view;
    }
    if (!t->c.op[TERN__CONV_W].result) t->call.in[1] = t->c.op[TERN__CONV_W].view;
    return fits;
}

/* Frees scratch memory: algorithms that are not chosen may have used much. */
static void trial_close(trial *t)
{
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) tern__device_release(t->call.device, t->blocks[i]);
    tern__device_scratch_free(t->call.device);
}

/* For one thread its processor time, which is not affected by other processes; several threads wait for
 * each other, so for them the elapsed time. */
static int64_t clock_of(const trial *t)
{
    return t->call.device->threads > 1 ? tern__now_ns() : tern__thread_ns();
}

/* Returns the nanoseconds of the fastest run; INT64_MAX: it failed. The first run creates what is created
 * once. */
static int64_t time_of(const trial *t, const tern__conv_algorithm *a)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i <= TRIES; i++) {
        tern__conv c = t->c;
        int64_t started = clock_of(t);
        if (a->run(&c)) return INT64_MAX;
        if (i > 0) best = TERN__MIN(best, clock_of(t) - started);
    }
    return best;
}

/* False: out of memory. */
static bool measure(const tern__conv *c, int64_t ns[TERN__CHOICE_ALGORITHMS])
{
    trial t;
    bool fits = trial_open(&t, c);
    for (int i = 0; fits && tern__conv_algorithms[i]; i++)
        if (is_allowed(c, tern__conv_algorithms[i])) ns[i] = time_of(&t, tern__conv_algorithms[i]);
    trial_close(&t);
    return fits;
}

/* ---- deciding ---- */

/* A gain below a tenth is not worth an error in the last places, nor a choice that the next measurement
 * would reverse. */
static bool is_faster(int64_t ns, int64_t than)
{
    return ns < than - than / 10;
}

/* Returns the fastest of the algorithms that are allowed and have a time. */
static int fastest(const tern__conv *c, const int64_t ns[TERN__CHOICE_ALGORITHMS])
{
    int best = -1;
    for (int i = 0; tern__conv_algorithms[i]; i++)
        if (is_allowed(c, tern__conv_algorithms[i]) && (best < 0 || is_faster(ns[i], ns[best]))) best = i;
    return best;
}

static bool has_alternatives(const tern__conv *c)
{
    int count = 0;
    for (int i = 0; tern__conv_algorithms[i]; i++) count += is_allowed(c, tern__conv_algorithms[i]);
    return count > 1;
}

static bool knows_all_times(const entry *one, const tern__conv *c)
{
    bool all = true;
    for (int i = 0; tern__conv_algorithms[i]; i++)
        all = all && (one->choice.ns[i] || !is_allowed(c, tern__conv_algorithms[i]));
    return all;
}

static void read_file(table *all, bool told)
{
    const tern__choice_machine machine = tern__choice_machine_get();
    listener l = {all, &machine, told};
    tern__choice_file_read(take, &l);
}

static void append_to_file(const tern__choice *choice)
{
    const tern__choice_machine machine = tern__choice_machine_get();
    char line[TERN__CHOICE_LINE];
    tern__choice_file_append(line, tern__choice_print(choice, &machine, line));
}

/* Decides by the file's times, or by measuring. */
static void decide_by_times(table *all, entry *one, const tern__conv *c)
{
    if (!all->has_read_file) {
        all->has_read_file = true;
        read_file(all, false);
    }
    bool is_known = knows_all_times(one, c);
    if (!is_known) {
        memset(one->choice.ns, 0, sizeof(one->choice.ns));
        if (!measure(c, one->choice.ns)) return;
    }
    one->choice.chosen = fastest(c, one->choice.ns);
    one->algorithm = tern__conv_algorithms[one->choice.chosen];
    learn(all, one);
    if (!is_known) append_to_file(&one->choice);
    if (all->learned_count == TERN__CHOICE_CASES)
        tern__log(
            TERN_LOG_INFO,
            "%d cases of convolutions have been measured: further ones are not measured and use a fixed "
            "table's algorithms (docs/conv.md)",
            TERN__CHOICE_CASES);
}

static void decide_as_told(entry *one, const tern__conv *c)
{
    const tern__conv_algorithm *told = tern__conv_algorithms[one->choice.chosen];
    if (is_allowed(c, told)) one->algorithm = told;
}

static bool has_choice(const tern__conv *c)
{
    return !c->call->device->conv.deterministic && has_alternatives(c);
}

static bool may_measure(const table *all, const tern__conv *c)
{
    return !c->call->device->follows && all->learned_count < TERN__CHOICE_CASES && has_choice(c);
}

static void decide(table *all, entry *one, const tern__conv *c)
{
    if (one->told && has_choice(c)) decide_as_told(one, c);
    if (!one->algorithm && may_measure(all, c)) decide_by_times(all, one, c);
    if (!one->algorithm) one->algorithm = look_up(c);
}

/* Whether an entry's choice counts: what others told always does, times only on a device that may measure. */
static bool counts(const table *all, const entry *one, const tern__conv *c)
{
    bool is_decided = one->algorithm && !c->call->device->follows;
    return one->told || is_decided || may_measure(all, c);
}

/* Sets *out to the case's entry; NULL: use the fixed table. */
static int entry_of(table *all, const tern__conv *c, entry **out)
{
    tern__prim_key key = tern__conv_key(c);
    entry *one = find(all, &key);
    if (one && !counts(all, one, c)) one = NULL;
    if (!one && may_measure(all, c) && !(one = add(all, &key, c->call->err))) return TERN_E_MEMORY;
    *out = one;
    return TERN_OK;
}

int tern__conv_choose(const tern__conv *c, const tern__conv_algorithm **chosen)
{
    table *all = table_of(c->call->device, c->call->err);
    entry *one = NULL;
    if (!all || entry_of(all, c, &one)) return TERN_E_MEMORY;
    if (one && !one->algorithm) decide(all, one, c);
    *chosen = one ? one->algorithm : look_up(c);
    return *chosen ? TERN_OK : TERN_E_UNSUPPORTED;
}

/* ---- telling others (kernels/choices.h) ---- */

static const table *learned_by(const tern_device *device)
{
    return device->slots[TERN__SLOT_CONV].data;
}

uint64_t tern__conv_choices_serial(const tern_device *device)
{
    return learned_by(device) ? learned_by(device)->serial : 0;
}

size_t tern__conv_choices_write(const tern_device *device, char *text, size_t size)
{
    const tern__choice_machine machine = tern__choice_machine_get();
    const entry *one = learned_by(device) ? learned_by(device)->learned : NULL;
    char line[TERN__CHOICE_LINE];
    size_t used = 0;
    for (; one; one = one->before) {
        size_t bytes = tern__choice_print(&one->choice, &machine, line);
        if (used + bytes >= size) break;
        memcpy(text + used, line, bytes);
        used += bytes;
    }
    text[used] = '\0';
    return used;
}

void tern__conv_choices_read(tern_device *device, bool anywhere, const char *text, size_t bytes)
{
    const tern__choice_machine here = tern__choice_machine_get();
    listener l = {table_of(device, NULL), anywhere ? NULL : &here, true};
    if (l.all) tern__choice_lines_take(text, bytes, take, &l);
}

/* Copies the oldest first, so that the newest comes first there as well. */
static void copy_before(const entry *one, uint64_t since, table *to)
{
    if (!one || one->serial <= since) return;
    copy_before(one->before, since, to);
    hear(to, &one->choice, true);
}

void tern__conv_choices_copy(const tern_device *from, uint64_t since, tern_device *to)
{
    table *all = tern__conv_choices_serial(from) > since ? table_of(to, NULL) : NULL;
    if (all) copy_before(learned_by(from)->learned, since, all);
}

int tern__choices_count(void)
{
    table *all = tern__alloc(sizeof(*all), __func__, NULL);
    if (!all) return 0;
    read_file(all, true); /* told, so that it learns every case */
    int count = all->learned_count;
    table_free(all);
    return count;
}
