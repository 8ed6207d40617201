/* backend.h - what a kind of device with memory of its own is: one const struct in a shared object,
 * tern_cuda.so, found beside the library.
 *
 * Everything that is asked of one *stream* of a device happens in the order in which it was asked; streams
 * run beside each other, and meet at events. What names no stream is of the stream of the step: kernels,
 * copies, memory that is given back and given out again. Nothing waits for the device but what says so. A
 * stream serves one thread at a time; `alloc`, `free`, `bytes` and what is of the host's memory may be called
 * from any.
 *
 * A plug-in sees the library's inner types, so it fits only the library that it was built with: `version` and
 * `device_size` are compared. Functions that return int return TERN_OK or a negative status with *err set. */
#ifndef TERN_SRC_DEVICE_BACKEND_H
#define TERN_SRC_DEVICE_BACKEND_H

#include "device/device.h"

#define TERN__DEVICE_SYMBOL "tern__device_plugin"

struct tern__call;

typedef enum tern__device_stream {
    TERN__STREAM_STEP, /* kernels, and all that names no stream */
    TERN__STREAM_COPY, /* batches that come while a step computes */
    TERN__STREAM_COMM, /* what goes over by way of the host while backward computes */
    TERN__STREAM_COUNT,
    TERN__STREAMS = 256 /* with those of stream_new */
} tern__device_stream;

/* A place in the order of a stream. */
typedef struct tern__device_event tern__device_event;

typedef struct tern__device_backend {
    const char *version; /* TERN_VERSION of its build    */
    size_t device_size;  /* sizeof(tern_device)          */
    const char *name;    /* "cuda", as device names begin */

    /* How many devices this process may use, or a negative status. */
    int (*count)(tern_error *err);
    /* "NVIDIA H200, 139.8 GiB, compute capability 9.0", of the device with this number. */
    void (*describe)(int index, char *text, size_t size);
    /* Of the libraries below it: "CUDA 13.0, cuDNN 9.16.0, cuBLAS 13.1.2". */
    void (*libraries)(char *text, size_t size);

    /* Fills device->state, device->memory, in which all addresses that it gives out lie, and
     * device->workspace. */
    int (*open)(tern_device *device, int index, tern_error *err);
    /* Waits for what was asked. */
    void (*close)(tern_device *device);

    /* At least `bytes` bytes, 256-byte aligned, not zeroed; from its cache if it can. NULL: out of memory. */
    void *(*alloc)(tern_device *device, size_t bytes);
    void (*free)(tern_device *device, void *data);
    /* What it has taken from the system, cached or not. */
    size_t (*bytes)(tern_device *device);

    /* Between the device and the host, or within the device. Of the host's memory, what is read may be
     * changed and what is written is there when it returns, so a copy to the host waits for all that was
     * asked before. */
    int (*copy)(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
    /* From memory of another device of this back end, which the other's work before and this one's after wait
     * for. */
    int (*copy_from)(tern_device *device, void *to, tern_device *other, const void *from, size_t bytes,
                     tern_error *err);
    int (*zero)(tern_device *device, void *to, size_t bytes, tern_error *err);
    /* The end of a step: what was asked, and held back to be launched as one (device->graphs), is so no
     * longer, and what has failed by then is said. Waits for nothing. Without `err` errors are kept for the
     * next. */
    int (*flush)(tern_device *device, tern_error *err);
    /* Waits for all that was asked; and says what has failed meanwhile. */
    int (*wait)(tern_device *device, tern_error *err);

    /* Memory of the host that the device reads and writes by itself, so that copies need not wait. NULL: out
     * of memory. */
    void *(*pinned_new)(tern_device *device, size_t bytes);
    void (*pinned_free)(tern_device *device, void *data);
    /* Makes such of memory that is there already; whole pages. */
    int (*pin)(tern_device *device, void *base, size_t bytes, tern_error *err);
    void (*unpin)(tern_device *device, void *base);

    /* One more stream, for who must not wait for what another one has been asked. It is given back when it
     * has nothing more to do. */
    int (*stream_new)(tern_device *device, tern__device_stream *stream, tern_error *err);
    void (*stream_free)(tern_device *device, tern__device_stream stream);
    /* A copy in a stream. Of the host's memory only what is pinned, which stays as it is until the stream has
     * come to an event behind the copy. A block of the device must not be freed before the step's stream
     * follows such an event. */
    int (*stream_copy)(tern_device *device, tern__device_stream stream, void *to, const void *from,
                       size_t bytes, tern_error *err);
    /* What the stream is for libraries that put work into it themselves: a cudaStream_t. */
    void *(*stream_native)(tern_device *device, tern__device_stream stream);

    /* NULL: E_MEMORY or E_SYSTEM. An event that was never set is passed. */
    tern__device_event *(*event_new)(tern_device *device, tern_error *err);
    void (*event_free)(tern_device *device, tern__device_event *event);
    /* Behind all that the stream was asked so far. */
    int (*event_record)(tern_device *device, tern__device_stream stream, tern__device_event *event,
                        tern_error *err);
    /* What the stream is asked from here on comes after the event. */
    int (*stream_wait)(tern_device *device, tern__device_stream stream, tern__device_event *event,
                       tern_error *err);
    /* TERN_OK: the stream has passed it; TERN_PENDING; or an error. Any thread, as is the next one. */
    int (*event_query)(tern_device *device, tern__device_event *event, tern_error *err);
    int (*event_wait)(tern_device *device, tern__device_event *event, tern_error *err);

    /* An event that tells when it was passed. */
    tern__device_event *(*timer_new)(tern_device *device, tern_error *err);
    /* Milliseconds between two of them; waits for both. Negative: one was never set. */
    double (*timer_ms)(tern_device *device, tern__device_event *from, tern__device_event *to);

    /* By tern__kernel; NULL, or E_UNSUPPORTED: the host computes it from copies. All operands are in the
     * device's memory. */
    int (*const *kernels)(const struct tern__call *call);
} tern__device_backend;

/* The plug-in of that name ("cuda"); it stays loaded. NULL: E_UNSUPPORTED saying what is missing. */
const tern__device_backend *tern__device_backend_open(const char *name, tern_error *err);

#endif
