/* note.c - the note that says why a meeting failed, left in the store by the first rank that knows. The other
 * ranks read it while they wait, so that all of them fail soon and with the same reason. */
#include "comm/meet/control/inner.h"

#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

typedef struct note {
    int32_t code;
    char text[TERN_ERROR_TEXT];
} note;

static const char note_key[] = "control/failure";

/* Returns only once the store has the first rank's note, because a rank that then misses this one will look
 * for it. */
void tern__note_leave(tern_store *store, int code, const char *text)
{
    int64_t count;
    note n = {.code = code};
    const char *key = note_key;
    if (tern_store_add(store, "control/failures", 1, &count, NULL)) return;
    snprintf(n.text, sizeof(n.text), "%s", text);
    if (count == 1) tern_store_set(store, key, &n, sizeof(n), NULL);
    tern_store_wait(store, &key, 1, TERN__NOTE_SECONDS, NULL);
}

int tern__note_check(tern_store *store, tern_error *err)
{
    note n;
    size_t bytes;
    if (tern__store_has(store, note_key, NULL) != 1) return TERN_OK;
    if (tern__store_read(store, note_key, &n, sizeof(n), &bytes, TERN__NOTE_SECONDS, NULL)) return TERN_OK;
    if (bytes != sizeof(n) || !memchr(n.text, 0, sizeof(n.text))) return TERN_OK;
    return tern__error_set(err, func, tern__code_here(n.code), "%s", n.text);
}
