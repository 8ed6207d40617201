/* frame.h - where a query or an answer ends, found as its bytes come, and what is in it. No sockets, no
 * table. */
#ifndef TERN_SRC_COMM_STORE_FRAME_H
#define TERN_SRC_COMM_STORE_FRAME_H

#include "comm/store/buffer.h"
#include "comm/store/wire.h"

typedef enum tern__dialect { TERN__DIALECT_TORCH2, TERN__DIALECT_TORCH1 } tern__dialect;

/* The code of PyTorch 2 for one of a dialect, and back; TERN__NO_CODE if there is none. */
uint8_t tern__code_from(tern__dialect dialect, uint8_t code);
uint8_t tern__code_to(tern__dialect dialect, uint8_t code);

typedef enum tern__frame_state { TERN__FRAME_DONE, TERN__FRAME_MORE, TERN__FRAME_BAD } tern__frame_state;

/* How far a frame was looked at, so that bytes which come one by one are not looked at again and again. */
typedef struct tern__frame {
    const char *field; /* in its shape                            */
    const char *again; /* what is repeated, or NULL               */
    uint64_t left;     /* repetitions of it, this one included    */
    size_t at;         /* bytes that are dealt with               */
    size_t need;       /* bytes without which nothing more is known */
} tern__frame;

/* A query, whose first byte is a code of the dialect: BAD if it is none. */
tern__frame_state tern__frame_query(tern__frame *frame, tern__dialect dialect, uint8_t code);
/* The answer to a query of PyTorch 2's `code`, with `keys` keys. */
void tern__frame_answer(tern__frame *frame, uint8_t code, uint64_t keys);
/* Goes on with what has come. DONE: frame->at is its length. BAD: a length or count over its limit, which was
 * not believed. */
tern__frame_state tern__frame_scan(tern__frame *frame, tern__bytes in);

/* ---- reading a frame that is DONE: fields in their order ---- */

typedef struct tern__frame_cursor {
    const uint8_t *at;
} tern__frame_cursor;

uint8_t tern__take_byte(tern__frame_cursor *cursor);
uint64_t tern__take_number(tern__frame_cursor *cursor);
tern__bytes tern__take_string(tern__frame_cursor *cursor);

#endif
