/* number.c - numbers in the host's or in a device's memory. */
#include "tensor/number.h"
#include "device/device.h"

bool tern__number_is_on_device(const void *at)
{
    return tern__memory_device(at) != NULL;
}

tern__view tern__numbers_view(const double *at, int64_t count)
{
    tern__view view = tern__view_make(TERN_F64, TERN__PLAIN, 1, &count);
    view.data = (void *)at;
    return view;
}

tern__view tern__number_view(const double *at)
{
    tern__view view = tern__view_make(TERN_F64, TERN__PLAIN, 0, NULL);
    view.data = (void *)at;
    return view;
}

const tern__view *tern__number_operand(const double *at, tern__view *view)
{
    if (!tern__number_is_on_device(at)) return NULL;
    *view = tern__number_view(at);
    return view;
}

int tern__numbers_follow(void **numbers, size_t bytes, tern_device *device, const char *func, tern_error *err)
{
    if (!device || tern__number_is_on_device(*numbers)) return TERN_OK;
    void *place = tern__memory_new(device, bytes, func, err);
    int status = place ? tern__memory_copy(place, *numbers, bytes, err) : TERN_E_MEMORY;
    if (status) {
        tern__memory_free(place);
        return status;
    }
    tern__memory_free(*numbers);
    *numbers = place;
    return TERN_OK;
}
