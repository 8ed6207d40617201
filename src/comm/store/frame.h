/* frame.h - finds the end of a query or an answer as its bytes arrive, and reads its fields. Knows neither
 * sockets nor tables. */
#ifndef TERN_SRC_COMM_STORE_FRAME_H
#define TERN_SRC_COMM_STORE_FRAME_H

#include "comm/store/buffer.h"
#include "comm/store/wire.h"

typedef enum tern__dialect { TERN__DIALECT_TORCH2, TERN__DIALECT_TORCH1 } tern__dialect;

/* Translate a dialect's code to PyTorch 2's, and back. TERN__NO_CODE if there is none. */
uint8_t tern__code_from(tern__dialect dialect, uint8_t code);
uint8_t tern__code_to(tern__dialect dialect, uint8_t code);

typedef enum tern__frame_state { TERN__FRAME_DONE, TERN__FRAME_MORE, TERN__FRAME_BAD } tern__frame_state;

/* The state of a scan, kept so that bytes that arrive one by one are scanned only once. */
typedef struct tern__frame {
    const char *field; /* the current field in the shape               */
    const char *again; /* the fields that are repeated, or NULL        */
    uint64_t left;     /* repetitions left, including the current one  */
    size_t at;         /* bytes scanned                                */
    size_t need;       /* bytes needed before the scan can go on       */
} tern__frame;

/* Begins the scan of a query, whose first byte is `code`. BAD: the dialect has no such code. */
tern__frame_state tern__frame_query(tern__frame *frame, tern__dialect dialect, uint8_t code);
/* Begins the scan of the answer to a query with `keys` keys and PyTorch 2's `code`. */
void tern__frame_answer(tern__frame *frame, uint8_t code, uint64_t keys);
/* Continues the scan with the bytes so far. DONE: frame->at is the frame's length. BAD: a length or count is
 * over its limit. */
tern__frame_state tern__frame_scan(tern__frame *frame, tern__bytes in);

/* ---- reading the fields of a frame that is DONE, in order ---- */

typedef struct tern__frame_cursor {
    const uint8_t *at;
} tern__frame_cursor;

uint8_t tern__take_byte(tern__frame_cursor *cursor);
uint64_t tern__take_number(tern__frame_cursor *cursor);
tern__bytes tern__take_string(tern__frame_cursor *cursor);

#endif
