/* frame.c - scans queries and answers by their shapes (wire.h), as bytes arrive, and reads their fields. */
#include "comm/store/frame.h"

#include <string.h>

typedef struct shape {
    uint8_t code1;
    const char *query, *answer; /* NULL: no such code */
} shape;

static const shape shapes[256] = {
#define X(name, code, code1, query, answer) [code] = {code1, query, answer},
    TERN__QUERY_LIST(X)
#undef X
};

uint8_t tern__code_to(tern__dialect dialect, uint8_t code)
{
    return dialect == TERN__DIALECT_TORCH2 ? code : shapes[code].code1;
}

uint8_t tern__code_from(tern__dialect dialect, uint8_t code)
{
    if (dialect == TERN__DIALECT_TORCH2) return shapes[code].query ? code : TERN__NO_CODE;
    for (int i = 0; i < 256; i++)
        if (shapes[i].query && shapes[i].code1 == code && code != TERN__NO_CODE) return (uint8_t)i;
    return TERN__NO_CODE;
}

tern__frame_state tern__frame_query(tern__frame *frame, tern__dialect dialect, uint8_t code)
{
    uint8_t known = tern__code_from(dialect, code);
    if (known == TERN__NO_CODE) return TERN__FRAME_BAD;
    *frame = (tern__frame){.field = shapes[known].query, .at = 1, .need = 1};
    return TERN__FRAME_MORE;
}

void tern__frame_answer(tern__frame *frame, uint8_t code, uint64_t keys)
{
    *frame = (tern__frame){.field = shapes[code].answer};
    if (*frame->field != '*') return;
    frame->again = ++frame->field;
    frame->left = keys;
    if (!keys) frame->field = "";
}

/* ---- scanning ---- */

static tern__frame_state frame_need(tern__frame *frame, tern__bytes in, size_t bytes)
{
    frame->need = frame->at + bytes;
    return in.bytes < frame->need ? TERN__FRAME_MORE : TERN__FRAME_DONE;
}

static tern__frame_state scan_number(tern__frame *frame, tern__bytes in, size_t bytes)
{
    tern__frame_state state = frame_need(frame, in, bytes);
    if (state == TERN__FRAME_DONE) frame->at += bytes;
    return state;
}

/* Checks a length against its limit before anybody waits for that many bytes. */
static tern__frame_state scan_string(tern__frame *frame, tern__bytes in, size_t limit)
{
    uint64_t bytes;
    tern__frame_state state = frame_need(frame, in, sizeof(bytes));
    if (state != TERN__FRAME_DONE) return state;
    memcpy(&bytes, in.data + frame->at, sizeof(bytes));
    if (bytes > limit || frame->at + bytes > TERN__QUERY_BYTES_MAX) return TERN__FRAME_BAD;
    return scan_number(frame, in, sizeof(bytes) + (size_t)bytes);
}

/* Scans a count, which says how often the rest of the shape is repeated. */
static tern__frame_state scan_count(tern__frame *frame, tern__bytes in, bool once)
{
    tern__frame_state state = frame_need(frame, in, sizeof(frame->left));
    if (state != TERN__FRAME_DONE) return state;
    memcpy(&frame->left, in.data + frame->at, sizeof(frame->left));
    frame->at += sizeof(frame->left);
    if (once && frame->left) frame->left = 1;
    if (frame->left > TERN__QUERY_KEYS_MAX) return TERN__FRAME_BAD;
    frame->again = frame->left ? frame->field + 1 : NULL;
    if (!frame->left) frame->field = " "; /* a single character, so that the next one is the end */
    return TERN__FRAME_DONE;
}

static tern__frame_state scan_field(tern__frame *frame, tern__bytes in)
{
    switch (*frame->field) {
    case '1': return scan_number(frame, in, 1);
    case '4': return scan_number(frame, in, 4);
    case '8': return scan_number(frame, in, 8);
    case 'k': return scan_string(frame, in, TERN_STORE_KEY_MAX);
    case 'v': return scan_string(frame, in, TERN_STORE_VALUE_MAX);
    default: return scan_count(frame, in, *frame->field == '?');
    }
}

tern__frame_state tern__frame_scan(tern__frame *frame, tern__bytes in)
{
    if (in.bytes < frame->need) return TERN__FRAME_MORE;
    while (*frame->field) {
        tern__frame_state state = scan_field(frame, in);
        if (state != TERN__FRAME_DONE) return state;
        frame->field++;
        if (!*frame->field && frame->again && --frame->left) frame->field = frame->again;
    }
    return TERN__FRAME_DONE;
}

/* ---- reading ---- */

uint8_t tern__take_byte(tern__frame_cursor *cursor)
{
    return *cursor->at++;
}

uint64_t tern__take_number(tern__frame_cursor *cursor)
{
    uint64_t number;
    memcpy(&number, cursor->at, sizeof(number));
    cursor->at += sizeof(number);
    return number;
}

tern__bytes tern__take_string(tern__frame_cursor *cursor)
{
    size_t bytes = (size_t)tern__take_number(cursor);
    tern__bytes string = {cursor->at, bytes};
    cursor->at += bytes;
    return string;
}
