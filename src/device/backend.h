/* backend.h - the interface to a kind of device with memory of its own: one const struct in a shared
 * object, tern_cuda.so, found beside the library.
 *
 * Work given to one *stream* of a device runs in the order in which it was given. Streams run concurrently
 * and are ordered by events. Functions without a stream argument use the step's stream: kernels, copies,
 * and memory that is freed and allocated again. No function waits for the device unless its comment says
 * so. A stream is used by one thread at a time; `alloc`, `free`, `bytes` and the functions for host memory
 * may be called from any thread.
 *
 * A plug-in sees the library's internal types, so it works only with the library that it was built with:
 * `version` and `device_size` are compared. Functions that return int return TERN_OK or a negative status
 * with *err set. */
#ifndef TERN_SRC_DEVICE_BACKEND_H
#define TERN_SRC_DEVICE_BACKEND_H

#include "device/device.h"

#define TERN__DEVICE_SYMBOL "tern__device_plugin"

struct tern__call;

typedef enum tern__device_stream {
    TERN__STREAM_STEP, /* kernels, and every call without a stream */
    TERN__STREAM_COPY, /* copies batches while a step computes */
    TERN__STREAM_COMM, /* transfers through the host while backward computes */
    TERN__STREAM_COUNT,
    TERN__STREAMS = 256 /* including those of stream_new */
} tern__device_stream;

/* A point in the order of a stream. */
typedef struct tern__device_event tern__device_event;

typedef struct tern__device_backend {
    const char *version; /* TERN_VERSION of its build    */
    size_t device_size;  /* sizeof(tern_device)          */
    const char *name;    /* "cuda", as device names begin */

    /* Returns how many devices this process may use, or a negative status. */
    int (*count)(tern_error *err);
    /* Writes a description of device `index`: "NVIDIA H200, 139.8 GiB, compute capability 9.0". */
    void (*describe)(int index, char *text, size_t size);
    /* Writes the versions of the libraries below: "CUDA 13.0, cuDNN 9.16.0, cuBLAS 13.1.2". */
    void (*libraries)(char *text, size_t size);

    /* Fills device->state, device->memory (a range that holds all its addresses) and device->workspace. */
    int (*open)(tern_device *device, int index, tern_error *err);
    /* Waits for all work. */
    void (*close)(tern_device *device);

    /* At least `bytes` bytes, 256-byte aligned, not zeroed; from its cache if possible. NULL: out of
     * memory. */
    void *(*alloc)(tern_device *device, size_t bytes);
    void (*free)(tern_device *device, void *data);
    /* Bytes allocated from the system, cached or in use. */
    size_t (*bytes)(tern_device *device);

    /* Copies between the device and the host, or within the device. When it returns, host memory that was
     * read may be changed and host memory that was written holds the data. So a copy to the host waits for
     * all work before it. */
    int (*copy)(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
    /* Copies from memory of another device of this back end, after that device's work so far and before
     * this one's later work. */
    int (*copy_from)(tern_device *device, void *to, tern_device *other, const void *from, size_t bytes,
                     tern_error *err);
    int (*zero)(tern_device *device, void *to, size_t bytes, tern_error *err);
    /* Ends a step. Launches work that was held back to be launched as a graph (device->graphs), and
     * reports failures found so far. Does not wait. Without `err` errors are kept for the next call. */
    int (*flush)(tern_device *device, tern_error *err);
    /* Waits for all work and reports what has failed. */
    int (*wait)(tern_device *device, tern_error *err);

    /* Pinned host memory, which the device reads and writes by itself, so that copies need not wait. NULL:
     * out of memory. */
    void *(*pinned_new)(tern_device *device, size_t bytes);
    void (*pinned_free)(tern_device *device, void *data);
    /* Pins existing host memory; whole pages. */
    int (*pin)(tern_device *device, void *base, size_t bytes, tern_error *err);
    void (*unpin)(tern_device *device, void *base);

    /* Creates a stream, for work that must not wait for another stream. A stream is freed when all its
     * work is done. */
    int (*stream_new)(tern_device *device, tern__device_stream *stream, tern_error *err);
    void (*stream_free)(tern_device *device, tern__device_stream stream);
    /* Enqueues a copy in a stream. Host memory must be pinned and must stay unchanged until the stream has
     * passed an event recorded after the copy. Device memory must not be freed before the step's stream
     * waits for such an event. */
    int (*stream_copy)(tern_device *device, tern__device_stream stream, void *to, const void *from,
                       size_t bytes, tern_error *err);
    /* Returns the stream for libraries that enqueue work themselves: a cudaStream_t. */
    void *(*stream_native)(tern_device *device, tern__device_stream stream);

    /* NULL: E_MEMORY or E_SYSTEM. An event that was never recorded counts as passed. */
    tern__device_event *(*event_new)(tern_device *device, tern_error *err);
    void (*event_free)(tern_device *device, tern__device_event *event);
    /* Records the event after all work that the stream has been given. */
    int (*event_record)(tern_device *device, tern__device_stream stream, tern__device_event *event,
                        tern_error *err);
    /* Makes later work of the stream wait for the event. */
    int (*stream_wait)(tern_device *device, tern__device_stream stream, tern__device_event *event,
                       tern_error *err);
    /* TERN_OK: the stream has passed it; TERN_PENDING; or an error. Any thread, also the next one. */
    int (*event_query)(tern_device *device, tern__device_event *event, tern_error *err);
    int (*event_wait)(tern_device *device, tern__device_event *event, tern_error *err);

    /* An event that records the time at which it was passed. */
    tern__device_event *(*timer_new)(tern_device *device, tern_error *err);
    /* Returns the milliseconds between two timers; waits for both. Negative: one was never recorded. */
    double (*timer_ms)(tern_device *device, tern__device_event *from, tern__device_event *to);

    /* Indexed by tern__kernel. NULL, or a kernel that returns E_UNSUPPORTED: the host computes the call on
     * copies. All operands are in the device's memory. */
    int (*const *kernels)(const struct tern__call *call);
} tern__device_backend;

/* Opens the plug-in of that name ("cuda"); it stays loaded. NULL: E_UNSUPPORTED, saying what is missing. */
const tern__device_backend *tern__device_backend_open(const char *name, tern_error *err);

#endif
