/* choices.c - a device's choices: the CPU's algorithms, or the notes of its back end. */
#include "kernels/choices.h"
#include "device/notes.h"
#include "kernels/cpu/conv/choice.h"

uint64_t tern__choices_serial(const tern_device *device)
{
    return device->notes ? tern__notes_serial(device) : tern__conv_choices_serial(device);
}

size_t tern__choices_write(const tern_device *device, char *text, size_t size)
{
    return device->notes ? tern__notes_write(device, text, size)
                         : tern__conv_choices_write(device, text, size);
}

void tern__choices_read(tern_device *device, const char *text, size_t bytes)
{
    if (device->notes)
        tern__notes_read(device, text, bytes);
    else
        tern__conv_choices_read(device, true, text, bytes);
}

void tern__choices_restore(tern_device *device, const char *text, size_t bytes)
{
    if (device->notes)
        tern__notes_read(device, text, bytes);
    else
        tern__conv_choices_read(device, false, text, bytes);
}

/* Choices are copied only between devices of the same kind. */
void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to)
{
    if (from == to) return;
    if (from->notes && to->notes) tern__notes_copy(from, since, to);
    if (!from->notes && !to->notes) tern__conv_choices_copy(from, since, to);
}

void tern__choosers_add(tern__choosers *list, tern_device *device)
{
    for (int i = 0; i < list->count; i++)
        if (list->device[i] == device) return;
    if (device && list->count < (int)TERN__COUNT(list->device)) list->device[list->count++] = device;
}

uint64_t tern__choosers_serial(const tern__choosers *list)
{
    uint64_t sum = 0;
    for (int i = 0; i < list->count; i++) sum += tern__choices_serial(list->device[i]);
    return sum;
}

size_t tern__choosers_write(const tern__choosers *list, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < list->count; i++)
        used += tern__choices_write(list->device[i], text + used, size - used);
    return used;
}
