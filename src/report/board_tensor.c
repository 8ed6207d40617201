/* board_tensor.c - makes a tensor of any layout and device readable for the board. */
#include "report/board.h"

void *tern__board_room(tern_board *board, tern__room which, size_t bytes, const char *func, tern_error *err)
{
    if (board->spaces[which].bytes >= bytes) return board->spaces[which].data;
    void *data = tern__alloc(bytes, func, err);
    if (!data) return NULL;
    tern__free(board->spaces[which].data);
    board->spaces[which].data = data;
    board->spaces[which].bytes = bytes;
    return data;
}

int tern__board_view(tern_board *board, const tern_tensor *tensor, bool dense, tern__view *view,
                     const char *func, tern_error *err)
{
    if (tern__tensor_check(tensor, func, err)) return err->code;
    const tern__view *own = &tensor->view;
    *view = *own;
    bool is_here = !tern__memory_device(own->data);
    if (is_here && (dense ? tern__view_is_dense(own) : own->layout == TERN__PLAIN)) return TERN_OK;
    *view = tern__view_make(own->dtype, TERN__PLAIN, own->ndim, own->shape);
    view->data = tern__board_room(board, TERN__ROOM_PLAIN, tern__view_bytes(view), func, err);
    if (!view->data) return TERN_E_MEMORY;
    return tern__view_copy(view, own, err);
}
