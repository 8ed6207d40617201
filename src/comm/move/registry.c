/* registry.c - the names of the communication back ends, and the choice of a group's back end. */
#include "comm/move/backend.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define ROW(name, kind, transport, help) {name, TERN__COMM_##kind, transport, help},
const tern__comm_row tern__comm_rows[] = {TERN__COMM_ROWS(ROW)};
const int tern__comm_row_count = TERN__COUNT(tern__comm_rows);

/* Removes the prefix "WORD" or "WORD+" from `name`. Returns the rest, NULL if nothing is left, or `name`
 * itself if it has no such prefix. */
static const char *skip_word(const char *name, const char *word)
{
    size_t length = strlen(word);
    if (!name || strncmp(name, word, length) != 0) return name;
    if (name[length] == '+') return name + length + 1;
    return name[length] ? name : NULL;
}

/* Returns the name of the back end that moves host data, without "debug" and "nccl"; NULL: not given. */
static const char *name_behind(const char *name)
{
    return skip_word(skip_word(name, "debug"), "nccl");
}

/* Returns the name of the back end that moves host data, for two ranks or more. */
static const char *name_mover(const char *wish, bool has_mpi, bool is_one_host)
{
    const char *host_wish = name_behind(wish);
    bool is_flat = host_wish && strcmp(host_wish, "native") && !strchr(host_wish, '+');
    if (is_one_host && !is_flat) return "native";
    return host_wish ? host_wish : has_mpi ? "native+mpi" : "native+gloo";
}

static void write_name(const char *wish, const char *mover, char text[TERN__BACKEND_NAME])
{
    const char *rest = skip_word(wish, "debug");
    snprintf(text, TERN__BACKEND_NAME, "%s%s%.32s", rest != wish ? "debug+" : "",
             skip_word(rest, "nccl") != rest ? "nccl+" : "", mover);
}

tern__comm_choice tern__comm_choose(const char *wish, bool has_mpi)
{
    tern__comm_choice choice = {.on_one_host = ""};
    write_name(wish, name_mover(wish, has_mpi, true), choice.on_one_host);
    write_name(wish, name_mover(wish, has_mpi, false), choice.on_several);
    return choice;
}

/* Writes the names of one kind, and of those only the ones between hosts if so asked: "native, mpi or gloo";
 * with `plus`, "nccl+ or debug+". */
static void write_names(tern__comm_row_kind kind, bool between_hosts, const char *plus, char *text,
                        size_t size)
{
    const char *names[sizeof(tern__comm_rows) / sizeof(*tern__comm_rows)];
    int count = 0;
    for (int i = 0; i < tern__comm_row_count; i++) {
        const tern__comm_row *row = &tern__comm_rows[i];
        if (row->kind == kind && (!between_hosts || *row->transport)) names[count++] = row->name;
    }
    *text = '\0';
    for (int i = 0; i < count; i++) {
        const char *comma = i == 0 ? "" : i == count - 1 ? " or " : ", ";
        tern__text_append(text, size, "%s%s%s", comma, names[i], plus);
    }
}

int tern__comm_check(const char *name, const char *func, tern_error *err)
{
    char movers[128], fronts[64];
    name = name_behind(name);
    if (!name) return TERN_OK;
    for (int i = 0; i < tern__comm_row_count; i++)
        if (tern__comm_rows[i].kind == TERN__COMM_MOVER && !strcmp(name, tern__comm_rows[i].name))
            return TERN_OK;
    write_names(TERN__COMM_MOVER, false, "", movers, sizeof(movers));
    write_names(TERN__COMM_FRONT, false, "+", fronts, sizeof(fronts));
    return tern__error_set(err, func, TERN_E_INVALID,
                           "back end \"%s\": expected %s, with %s in front if wanted", name, movers, fronts);
}

/* Returns a rank on another host than the group's first one; -1: all are on one host. */
static int find_stranger(const tern_group *group)
{
    int first = tern__control_host(group->control, tern_group_world_rank(group, 0));
    for (int rank = 1; rank < group->boot.world; rank++)
        if (tern__control_host(group->control, tern_group_world_rank(group, rank)) != first) return rank;
    return -1;
}

static int fail_hosts(const tern_group *group, int stranger, tern_error *err)
{
    char one[128], other[128], movers[128];
    write_names(TERN__COMM_MOVER, true, "", movers, sizeof(movers));
    tern__group_describe(group, 0, one, sizeof(one));
    tern__group_describe(group, stranger, other, sizeof(other));
    return tern__error_set(
        err, "tern_group_open", TERN_E_UNSUPPORTED,
        "%s and %s are on different hosts, and the back end \"native\" connects ranks of one "
        "host only: expected %s",
        one, other, movers);
}

static void add_fronts(tern_group *group, const char *name)
{
    const char *rest = skip_word(name, "debug");
    bool has_debug = rest != name, has_nccl = skip_word(rest, "nccl") != rest;
    write_name(name, group->backend_name, group->shown_name);
    if (has_debug || has_nccl) group->behind = group->backend;
    if (has_debug) group->backend = &tern__comm_debug;
    group->second = group->backend;
    if (has_nccl) group->backend = &tern__comm_nccl;
}

int tern__comm_pick(tern_group *group, tern_error *err)
{
    int stranger = group->boot.world > 1 ? find_stranger(group) : -1;
    const char *name = tern__comm_choice_name(&group->boot.choice, stranger < 0), *mover = name_behind(name);
    bool is_alone = group->boot.world == 1, is_native = !strcmp(mover, "native");
    if (is_native && stranger >= 0) return fail_hosts(group, stranger, err);
    group->backend_name = is_alone ? "self" : mover;
    group->backend = is_alone ? &tern__comm_self : is_native ? &tern__comm_native : &tern__comm_hosts;
    add_fronts(group, name);
    return TERN_OK;
}
