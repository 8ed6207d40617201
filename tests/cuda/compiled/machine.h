/* machine.h - what the instructions of a kernel (ptx.h) need of the thread that runs them, and of its
 * block: the emulation has all of it. */
#ifndef TERN_TESTS_CUDA_MACHINE_H
#define TERN_TESTS_CUDA_MACHINE_H

#include <cstddef>
#include <cstdint>

struct machine {
    unsigned tid[3], ctaid[3], ntid[3], nctaid[3];
    void (*wait_for_previous)();
    void (*let_next_begin)();
    void (*meet_block)();
    void (*meet_warp)(unsigned mask);
    void (*arrive_at_cluster)();
    void (*wait_for_cluster)();
    int (*lane)();
    uint64_t (*shuffle)(uint64_t value, int from_lane);
    unsigned (*rank)(); /* the block's in its cluster */
    /* The address of bytes at an offset in the shared memory of a block of the cluster. */
    char *(*shared)(unsigned rank, size_t offset, size_t bytes);
    void (*copy_async)(void *to, const void *from, size_t bytes, size_t zeros);
    void (*copy_commit)();
    void (*copy_wait)(size_t groups);
    void (*stop)(const char *what); /* ends the test */
};

/* A kernel; args: the addresses of its arguments. */
typedef void compiled_kernel(const machine *m, void **args);

#endif
