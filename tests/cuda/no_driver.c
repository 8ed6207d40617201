/* no_driver.c - without NVIDIA's driver the plug-in is still loaded and names what is missing. */
#include "../skips.h"

#include <stdio.h>
#include <string.h>

#include <tern.h>

int main(void)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cuda:0", &err);
    if (device || err.code == TERN_E_RANGE) {
        tern_device_close(device);
        return skip_program("a driver is here");
    }
    puts(err.text);
    return err.code == TERN_E_UNSUPPORTED && strstr(err.text, "libcuda.so.1") ? 0 : 1;
}
