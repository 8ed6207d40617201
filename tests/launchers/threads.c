/* threads.c - a rank that any launcher can start. It prints how many threads its kernels use.
 *
 *     threads [INIT_METHOD [RANK WORLD]]
 *
 * It prints "2 before, 1 after": for a device opened before the group, and for one opened after it. */
#include <stdio.h>
#include <stdlib.h>

#include <tern.h>

static int threads_of_a_device(tern_error *err)
{
    tern_device *device = tern_device_open("cpu", err);
    int threads = tern_device_threads_get(device);
    tern_device_close(device);
    return threads;
}

int main(int argc, char **argv)
{
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.connect_timeout_s = 20;
    if (argc > 1) opts.init_method = argv[1];
    if (argc > 3) {
        opts.rank = atoi(argv[2]);
        opts.world = atoi(argv[3]);
    }
    int before = threads_of_a_device(&err);
    tern_group *world = tern_group_open(&opts, &err);
    int after = threads_of_a_device(&err);
    if (!err.code) printf("%d before, %d after\n", before, after);
    tern_barrier(world, &err);
    tern_group_close(world);
    return tern_error_print(&err);
}
