/* snapshot.c - saves and loads a run, on all ranks together.
 *
 * After each step that may fail on one rank only, the ranks agree (agree.c) before the next collective:
 * either all go on, or all return the first error. So no rank waits in a collective for a rank that has
 * failed. */
#include "checkpoint/snapshot.h"

#include "base/file.h"
#include "base/opts.h"
#include "base/text.h"
#include "checkpoint/agree.h"
#include "tensor/field.h"

#include <tern/checkpoint.h>
#include <tern/collectives.h>

#include <errno.h>
#include <string.h>

/* ---- new and free ---- */

tern_snapshot_opts tern_snapshot_defaults(void)
{
    return (tern_snapshot_opts){.size = sizeof(tern_snapshot_opts), .keep_last = 3};
}

static tern_snapshot *new_snapshot(const char *dir, tern_group *group, const tern_snapshot_opts *user,
                                   tern_error *err)
{
    const char *func = "tern_snapshot_new";
    tern_snapshot_opts opts = tern_snapshot_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, func, err)) return NULL;
    if (!dir || !*dir) tern__error_set(err, func, TERN_E_INVALID, "the directory has no name");
    if (opts.keep_last < 0)
        tern__error_set(err, func, TERN_E_RANGE, "keep_last is %d, expected at least 0", opts.keep_last);
    tern_snapshot *snapshot = tern__is_set(err) ? NULL : tern__alloc(sizeof(*snapshot), func, err);
    if (!snapshot) return NULL;
    *snapshot = (tern_snapshot){.group = group,
                                .opts = opts,
                                .step = -1,
                                .rank = group ? tern_group_rank(group) : 0,
                                .world = group ? tern_group_size(group) : 1};
    snapshot->dir = tern__strdup(dir, func, err);
    snapshot->lines = tern__alloc(TERN__SNAPSHOT_LINES, func, err);
    if (!tern__is_set(err) && snapshot->rank == 0) tern__snapshot_dir_open(dir, &snapshot->lock, err);
    return snapshot;
}

tern_snapshot *tern_snapshot_new(const char *dir, tern_group *group, const tern_snapshot_opts *opts,
                                 tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_snapshot *snapshot = new_snapshot(dir, group, opts, e);
    if (!tern__agree(group, __func__, e)) return snapshot;
    tern_snapshot_free(snapshot);
    return NULL;
}

void tern_snapshot_free(tern_snapshot *snapshot)
{
    if (!snapshot) return;
    for (int i = 0; i < snapshot->count; i++) {
        tern__free(snapshot->items[i].name);
        tern__free(snapshot->items[i].packed);
    }
    tern__snapshot_lock_close(snapshot->lock);
    tern__free(snapshot->items);
    tern__free(snapshot->dir);
    tern__free(snapshot->lines);
    tern__free(snapshot);
}

int64_t tern_snapshot_step(const tern_snapshot *snapshot)
{
    return snapshot ? snapshot->step : -1;
}

static int check_name(const tern_snapshot *snapshot, const char *func, const char *name, tern_error *err)
{
    char quoted[TERN__QUOTE_TEXT];
    if (!name || !*name) return tern__error_set(err, func, TERN_E_INVALID, "the name is empty");
    if (tern__utf8_check(name, strlen(name)) >= 0)
        return tern__error_set(err, func, TERN_E_INVALID, "the name %s is not UTF-8",
                               tern__quote(name, strlen(name), quoted));
    bool taken = !strcmp(name, "step") || !strcmp(name, "world_size") || !strcmp(name, "choices");
    for (int i = 0; i < snapshot->count; i++) taken |= !strcmp(snapshot->items[i].name, name);
    return taken ? tern__error_set(err, func, TERN_E_INVALID, "the snapshot already has a \"%s\"", name)
                 : TERN_OK;
}

int tern__snapshot_add(tern_snapshot *snapshot, const char *func, const tern__snapshot_item *like,
                       tern_error *err)
{
    if (!snapshot) return tern__error_set(err, func, TERN_E_INVALID, "the snapshot is NULL");
    int status = check_name(snapshot, func, like->name, err);
    if (status) return status;
    size_t size = sizeof(*snapshot->items), count = (size_t)snapshot->count;
    void *items = tern__realloc_array(snapshot->items, count * size, (count + 1) * size, func, err);
    if (!items) return TERN_E_MEMORY;
    snapshot->items = items;
    tern__snapshot_item item = *like;
    item.name = tern__strdup(like->name, func, err);
    if (item.name && item.own)
        item.packed = tern__alloc((size_t)(snapshot->world + 1) * item.own->bytes, func, err);
    if (item.name && (!item.own || item.packed)) {
        snapshot->items[snapshot->count++] = item;
        return TERN_OK;
    }
    tern__free(item.name);
    return TERN_E_MEMORY;
}

/* ---- saving ---- */

/* Gathers what every rank has packed, and returns it on rank 0 as a list. The end of `packed` is the rank's
 * own buffer. */
static tern_object *gather_own(const tern_snapshot *s, const tern__snapshot_item *item, tern_error *err)
{
    size_t bytes = item->own->bytes;
    char *mine = item->packed + (size_t)s->world * bytes;
    item->own->pack(item->ctx, mine);
    if (s->world == 1)
        memcpy(item->packed, mine, bytes);
    else if (tern_all_gather(s->group, mine, item->packed, bytes, TERN_U8, err))
        return NULL;
    if (s->rank > 0) return NULL;
    tern_object *list = tern_object_list(err);
    for (int r = 0; r < s->world; r++)
        tern_object_append(list, item->own->show(item->packed + (size_t)r * bytes, err), err);
    return list;
}

/* Uses an error of its own: a rank on which one item fails must still take part in the collectives of the
 * others. */
static tern_object *save_item(const tern_snapshot *s, const tern__snapshot_item *item, tern_error *err)
{
    tern_error own = {0};
    tern_object *state = item->own ? gather_own(s, item, &own) : item->save(item->ctx, &own);
    if (!own.code && s->rank == 0 && !state)
        tern__error_set(&own, "tern_snapshot_save", TERN_E_INVALID,
                        "\"%s\": its save function returned NULL without setting *err", item->name);
    if (own.code) tern__error_set(err, own.func, own.code, "\"%s\": %s", item->name, own.text);
    return state;
}

/* Uses an error of its own, for the same reason. */
static void save_choices(const tern_snapshot *s, tern_object *state, tern_error *err)
{
    tern_error own = {0};
    tern_object *lines = tern__snapshot_choices_save(s, &own);
    if (own.code && !tern__is_set(err)) *err = own;
    if (lines && !tern__is_set(err))
        tern_object_set(state, "choices", lines, err);
    else
        tern_object_free(lines);
}

static tern_object *save_all(const tern_snapshot *s, int64_t step, tern_error *err)
{
    tern_object *state = tern_object_dict(err);
    for (int i = 0; i < s->count; i++) {
        tern_object *item = save_item(s, &s->items[i], err);
        if (s->rank == 0 && !tern__is_set(err))
            tern_object_set(state, s->items[i].name, item, err);
        else
            tern_object_free(item);
    }
    save_choices(s, state, err);
    tern_object_set(state, "step", tern_object_int(step, err), err);
    tern_object_set(state, "world_size", tern_object_int(s->world, err), err);
    return state;
}

/* Called on rank 0 only. */
static void snapshot_write_file(const tern_snapshot *s, int64_t step, const tern_object *state,
                                tern_error *err)
{
    char name[TERN__SNAPSHOT_NAME];
    tern__snapshot_name(step, name);
    char *path = tern__path_join(s->dir, name, "tern_snapshot", err);
    bool done = path && !tern_save(path, state, err) && !tern__snapshot_publish(s->dir, name, err);
    if (done && s->opts.keep_last) tern__snapshot_prune(s->dir, step, s->opts.keep_last);
    tern__free(path);
}

static int snapshot_save(tern_snapshot *s, int64_t step, tern_error *err)
{
    if (step < 0)
        tern__error_set(err, "tern_snapshot_save", TERN_E_RANGE, "step is %lld, expected at least 0",
                        (long long)step);
    if (tern__agree(s->group, "tern_snapshot_save", err)) return err->code;
    tern_object *state = save_all(s, step, err);
    if (!tern__agree(s->group, "tern_snapshot_save", err)) {
        if (s->rank == 0) snapshot_write_file(s, step, state, err);
        tern__agree(s->group, "tern_snapshot_save", err);
    }
    tern_object_free(state);
    if (!err->code) s->step = step;
    return err->code;
}

int tern_snapshot_save(tern_snapshot *snapshot, int64_t step, tern_error *err)
{
    tern_error own = {0};
    if (!snapshot) return tern__error_set(err, __func__, TERN_E_INVALID, "the snapshot is NULL");
    return snapshot_save(snapshot, step, err ? err : &own);
}

/* ---- loading ---- */

static const char load_func[] = "tern_snapshot_load";

/* Loads a file and checks that it has every item. Its other keys may hold anything. */
static tern_object *snapshot_read_file(const tern_snapshot *s, const char *path, tern_error *err)
{
    tern_load_opts opts = tern_load_defaults();
    opts.records = true;
    tern_object *state = tern_load(path, &opts, err);
    if (!state) return NULL;
    for (int i = 0; i < s->count; i++)
        if (!tern_object_get(state, s->items[i].name))
            tern__error_set(err, load_func, TERN_E_INVALID, "%s has no \"%s\"", path, s->items[i].name);
    if (!tern__is_set(err)) return state;
    tern_object_free(state);
    return NULL;
}

/* A file that this process may not or cannot open now is not damaged, and an older one is no substitute. */
static bool is_damage(const tern_error *why)
{
    if (tern__is_shortage(why->native) || why->native == EACCES || why->native == EPERM) return false;
    return why->code == TERN_E_FORMAT || why->code == TERN_E_IO || why->code == TERN_E_UNSUPPORTED;
}

/* Loads one snapshot of the directory. A damaged file sets *damage; any other failure sets *err. */
static tern_object *try_step(const tern_snapshot *s, int64_t step, tern_error *damage, tern_error *err)
{
    char name[TERN__SNAPSHOT_NAME];
    tern_error why = {0};
    tern__snapshot_name(step, name);
    char *path = tern__path_join(s->dir, name, "tern_snapshot", err);
    tern_object *state = path ? snapshot_read_file(s, path, &why) : NULL;
    tern__free(path);
    if (!why.code) return state;
    tern_error *to = is_damage(&why) ? damage : err;
    if (!to->code) *to = why;
    if (to == damage)
        tern__log(TERN_LOG_WARN, "%s/%s is damaged, trying an older snapshot: %s", s->dir, name, why.text);
    return NULL;
}

/* Loads the first snapshot that is not damaged, on rank 0. NULL without an error: there is none. */
static tern_object *read_latest(const tern_snapshot *s, int64_t *step, tern_error *err)
{
    int64_t *steps = NULL;
    tern_error damage = {0};
    tern_object *state = NULL;
    int count = tern__snapshot_list(s->dir, &steps, err);
    for (int i = 0; i < count && !state && !tern__is_set(err); i++)
        state = try_step(s, *step = steps[i], &damage, err);
    tern__free(steps);
    if (!state && damage.code && !tern__is_set(err)) *err = damage;
    return state;
}

/* Loads the file `given` or, if that is NULL, the snapshot of `step`. */
static tern_object *read_chosen(const tern_snapshot *s, const char *given, int64_t step, tern_error *err)
{
    char name[TERN__SNAPSHOT_NAME];
    tern__snapshot_name(TERN__MAX(step, 0), name);
    char *path = given ? NULL : tern__path_join(s->dir, name, "tern_snapshot", err);
    tern_object *state = tern__is_set(err) ? NULL : snapshot_read_file(s, given ? given : path, err);
    tern__free(path);
    return state;
}

/* Loads the file on all ranks; *state stays NULL if there is none. Fails on all ranks or on none. */
static int read_everywhere(const tern_snapshot *s, const char *given, tern_object **state, tern_error *err)
{
    int64_t step = -1;
    bool chooses = !given && s->rank == 0;
    if (chooses) *state = read_latest(s, &step, err);
    if (chooses && !*state) step = -1;
    if (tern__agree(s->group, load_func, err)) return err->code;
    if (!given && s->world > 1 && tern_broadcast(s->group, &step, 1, TERN_I64, 0, err)) return err->code;
    if (!chooses && (given || step >= 0)) *state = read_chosen(s, given, step, err);
    return tern__agree(s->group, load_func, err);
}

/* Returns this rank's entry in the list of all ranks, or NULL. */
static const tern_object *snapshot_own_part(const tern_snapshot *s, const tern__snapshot_item *item,
                                            const tern_object *list)
{
    bool is_there = s->rank < tern_object_count(list);
    return is_there || item->own->spreads ? tern_object_at(list, is_there ? s->rank : 0) : NULL;
}

/* `path`: the file or the folder, for errors. */
static void load_item(const tern_snapshot *s, const tern__snapshot_item *item, const char *path,
                      const tern_object *state, tern_error *err)
{
    tern_error own = {0};
    if (item->own && tern_object_kind_get(state) != TERN_OBJECT_LIST) {
        tern__error_set(err, load_func, TERN_E_INVALID,
                        "%s: \"%s\" is a %s, expected a list with an entry per rank", path, item->name,
                        tern_object_kind_name(tern_object_kind_get(state)));
        return;
    }
    if (item->own) state = snapshot_own_part(s, item, state);
    if (item->own && !state) return;
    int status = item->load(state, item->ctx, &own);
    if (status < 0 && !own.code)
        tern__error_set(&own, load_func, status, "its load function returned %d without setting *err",
                        status);
    if (own.code) tern__error_set(err, own.func, own.code, "%s: \"%s\": %s", path, item->name, own.text);
}

static int load_items(const tern_snapshot *s, const char *path, const tern_object *state, int64_t *step,
                      tern_error *err)
{
    tern__field_int(load_func, state, "step", 0, INT64_MAX, step, err);
    if (tern__agree(s->group, load_func, err)) return err->code;
    for (int i = 0; i < s->count && !tern__is_set(err); i++)
        load_item(s, &s->items[i], path, tern_object_get(state, s->items[i].name), err);
    return tern__agree(s->group, load_func, err);
}

static int snapshot_load(tern_snapshot *s, const char *path, tern_error *err)
{
    int64_t step;
    tern_object *state = NULL;
    if (tern__agree(s->group, load_func, err)) return err->code;
    int status = read_everywhere(s, path, &state, err), found = state != NULL;
    if (!status && found) status = load_items(s, path ? path : s->dir, state, &step, err);
    if (!status && found) status = tern__snapshot_choices_load(s, tern_object_get(state, "choices"), err);
    tern_object_free(state);
    if (!status && found) s->step = step;
    return status ? status : found;
}

int tern_snapshot_load(tern_snapshot *snapshot, const char *path, tern_error *err)
{
    tern_error own = {0};
    if (!snapshot) return tern__error_set(err, __func__, TERN_E_INVALID, "the snapshot is NULL");
    return snapshot_load(snapshot, path, err ? err : &own);
}
