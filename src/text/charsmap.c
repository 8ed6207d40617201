/* charsmap.c - the normalizer Precompiled: SentencePiece's table of what characters become.
 *
 * The table is a trie in the form of Darts-clone (a double array), whose values are places in a list of texts
 * that end with 0. As in `tokenizers`, a grapheme cluster of up to 5 bytes becomes what the shortest key at
 * its start says; where there is none, or the cluster is longer, each character is looked for alone. Of ASCII
 * each character is a cluster, but for \r\n and one that is followed by a mark. */
#include "text/tokenizer.h"

#include "base/text.h"

#include <sodium.h>
#include <string.h>

enum { CLUSTER_MOST = 5 /* bytes of a cluster that is looked for as a whole */ };

struct tern__charsmap {
    uint8_t *blob; /* the trie's bytes, the units, the texts */
    const uint8_t *units;
    size_t unit_count;
    const char *texts;
    size_t text_bytes;
    bool is_same[128]; /* this character of ASCII becomes itself */
};

/* ---- looking up ---- */

static bool unit_get(const tern__charsmap *map, size_t at, uint32_t *unit)
{
    if (at >= map->unit_count) return false;
    memcpy(unit, map->units + 4 * at, 4);
    *unit = le32toh(*unit);
    return true;
}

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
}

/* Returns what the shortest key at the start of a text becomes, or NULL. */
static const char *charsmap_find(const tern__charsmap *map, const char *text, size_t bytes)
{
    uint32_t unit;
    if (!unit_get(map, 0, &unit)) return NULL;
    size_t at = unit_offset(unit);
    for (size_t i = 0; i < bytes && text[i]; i++) {
        at ^= (uint8_t)text[i];
        if (!unit_get(map, at, &unit) || (unit & 0x800000ff) != (uint8_t)text[i]) return NULL;
        at ^= unit_offset(unit);
        if (!(unit & 0x100)) continue;
        if (!unit_get(map, at, &unit)) return NULL;
        size_t place = unit & 0x7fffffff;
        return place < map->text_bytes ? map->texts + place : NULL;
    }
    return NULL;
}

/* ---- reading ---- */

void tern__charsmap_free(tern__charsmap *map)
{
    if (map) tern__free(map->blob);
    tern__free(map);
}

/* The first four bytes say how many follow for the trie. The texts have a 0 after the last one, so that each
 * of them ends. */
static bool blob_read(tern__charsmap *map, size_t bytes)
{
    uint32_t trie;
    if (bytes < 4) return false;
    memcpy(&trie, map->blob, 4);
    trie = le32toh(trie);
    if (trie > bytes - 4 || trie % 4) return false;
    map->units = map->blob + 4;
    map->unit_count = trie / 4;
    map->texts = (const char *)map->blob + 4 + trie;
    map->text_bytes = bytes - 4 - trie;
    return tern__utf8_check(map->texts, map->text_bytes) < 0;
}

int tern__charsmap_parse(tern__normalizer *n, const cJSON *part, const char *path, const char *func,
                         tern_error *err)
{
    const char *text = tern__part_string(part, "precompiled_charsmap");
    size_t room = text ? strlen(text) / 4 * 3 + 3 : 0, bytes = 0;
    tern__charsmap *map = n->charsmap = text ? tern__alloc(sizeof(*map), func, err) : NULL;
    if (map) map->blob = tern__alloc(room + 1, func, err);
    if (text && (!map || !map->blob)) return TERN_E_MEMORY;
    bool fine = text && !sodium_base642bin(map->blob, room, text, strlen(text), NULL, &bytes, NULL,
                                           sodium_base64_VARIANT_ORIGINAL);
    if (!fine || !blob_read(map, bytes))
        return tern__part_refuse(path, "normalizer", part, "this precompiled_charsmap", func, err);
    for (int c = 0; c < 128; c++) {
        const char one[2] = {(char)c, '\0'}, *found = charsmap_find(map, one, 1);
        map->is_same[c] = !found || !strcmp(found, one);
    }
    map->is_same['\r'] = false; /* a cluster with \n */
    return TERN_OK;
}

bool tern__charsmap_may_cut(const tern__charsmap *map)
{
    bool fine = map->is_same[' '];
    for (int c = 'A'; c <= 'Z'; c++) fine &= map->is_same[c] && map->is_same[c + 'a' - 'A'];
    return fine;
}

/* ---- normalizing ---- */

/* Returns where the cluster at `at` ends. */
static size_t cluster_end(const tern__normalizer *n, const char *text, size_t bytes, size_t at)
{
    uint32_t before = 0, after = 0;
    int32_t state = 0;
    size_t end = at + (size_t)tern__utf8_next(text + at, bytes - at, &before);
    while (end < bytes) {
        size_t next = end + (size_t)tern__utf8_next(text + end, bytes - end, &after);
        if (n->unicode->is_grapheme_end(before, after, &state)) break;
        before = after;
        end = next;
    }
    return end;
}

static int cluster_add(tern__encoding *e, const tern__charsmap *map, const char *text, size_t bytes,
                       tern_text *out)
{
    const char *found = bytes <= CLUSTER_MOST ? charsmap_find(map, text, bytes) : NULL;
    if (found) return tern__text_add(out, found, strlen(found), e->func, e->err);
    for (size_t at = 0, end; at < bytes; at = end) {
        end = tern__next_char(text, bytes, at);
        found = charsmap_find(map, text + at, end - at);
        const char *part = found ? found : text + at;
        if (tern__text_add(out, part, found ? strlen(found) : end - at, e->func, e->err))
            return TERN_E_MEMORY;
    }
    return TERN_OK;
}

int tern__charsmap_apply(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                         tern_text *out)
{
    const tern__charsmap *map = n->charsmap;
    for (size_t at = 0, end; at < bytes; at = end) {
        for (end = at; end < bytes && !(text[end] & 0x80) && map->is_same[(int)text[end]]; end++) {
        }
        /* The last one of a run may be the begin of a longer cluster. */
        if (end < bytes && end > at) end--;
        if (end > at) {
            if (tern__text_add(out, text + at, end - at, e->func, e->err)) return TERN_E_MEMORY;
            continue;
        }
        end = cluster_end(n, text, bytes, at);
        if (cluster_add(e, map, text + at, end - at, out)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}
