/* print.c - prints a tensor. */
#include "tensor/host.h"
#include "tensor/tensor.h"

#include <stdio.h>

#define EDGE 3 /* values shown at each end of a dimension */

static void print_value(const tern__view *view, int64_t i)
{
    if (tern__dtype_is_float(view->dtype))
        printf("%9.4f", tern__view_get(view, i));
    else if (view->dtype == TERN_BOOL)
        printf(tern__view_get_int(view, i) ? "true" : "false");
    else
        printf("%lld", (long long)tern__view_get_int(view, i));
}

/* Prints dimension `d` and those below it, from the element with row-major index `base` on. */
static void print_dimension(const tern__view *view, int d, int64_t base)
{
    if (d == view->ndim) {
        print_value(view, base);
        return;
    }
    int64_t inner = 1, size = view->shape[d];
    for (int k = d + 1; k < view->ndim; k++) inner *= view->shape[k];
    printf("[");
    for (int64_t i = 0; i < size; i++) {
        if (i) printf(d + 1 < view->ndim ? ",\n%*s" : ", ", d + 1 < view->ndim ? d + 1 : 0, "");
        if (i == EDGE && size > 2 * EDGE) {
            printf("..., ");
            i = size - EDGE;
        }
        print_dimension(view, d + 1, base + i * inner);
    }
    printf("]");
}

void tern_print(const tern_tensor *tensor)
{
    tern_error err = {0};
    char shape[TERN__SHAPE_TEXT];
    if (tern__tensor_check(tensor, __func__, &err)) {
        printf("tensor: %s\n", err.text);
        return;
    }
    printf("tensor %s %s\n", tern__shape_text(&tensor->view, shape), tern_dtype_name(tensor->view.dtype));
    tern__host host;
    if (tern__host_open(&host, &tensor->view, NULL)) return;
    if (tern__view_count(&tensor->view)) print_dimension(&host.view, 0, 0);
    tern__host_close(&host, false, NULL);
    printf("\n");
}
