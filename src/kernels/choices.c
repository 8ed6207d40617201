/* choices.c - who keeps a device's choices: the CPU's algorithms, or what its back end's are noted in. */
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
        tern__conv_choices_read(device, text, bytes);
}

/* A device of the other kind has no use for them. */
void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to)
{
    if (from->notes && to->notes) tern__notes_copy(from, since, to);
    if (!from->notes && !to->notes) tern__conv_choices_copy(from, since, to);
}
