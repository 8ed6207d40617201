/* missing.c - finds the ranks that did not join a meeting. It looks for each rank's key, for a second at
 * most: with a world of millions, written by mistake, the ranks after that count as missing without a look.
 */
#include "comm/store/store.h"
#include "comm/sys.h"

#include <stdio.h>

static const double asking_s = 1;

typedef struct roll {
    int missing;
    size_t used;
    bool is_full;
    char text[256];
} roll;

static void add(roll *r, int rank)
{
    size_t room = sizeof(r->text) - r->used;
    r->missing++;
    if (r->is_full) return;
    r->is_full = room < sizeof(", 2147483647, ..");
    int used = r->is_full ? snprintf(r->text + r->used, room, ", ..")
                          : snprintf(r->text + r->used, room, "%s%d", r->used ? ", " : "", rank);
    r->used += (size_t)used;
}

int tern__store_fail_missing(tern_store *store, const char *name, int first, int world, tern_error *err)
{
    roll r = {0};
    int64_t end = tern__deadline(asking_s);
    for (int rank = first; rank < world; rank++) {
        char key[32];
        snprintf(key, sizeof(key), "%.16s%d", name, rank);
        int has = tern__now_ns() < end ? tern__store_has(store, key, err) : 0;
        if (has < 0) return has;
        if (!has) add(&r, rank);
    }
    if (!r.missing) return TERN_OK;
    return tern__error_set(err, "tern_group_open", TERN_E_TIMEOUT,
                           "%d of %d ranks joined; missing: rank%s %s", world - r.missing, world,
                           r.missing > 1 ? "s" : "", r.text);
}
