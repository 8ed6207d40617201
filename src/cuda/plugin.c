/* plugin.c - the struct that the library finds in this plug-in. */
#include "cuda/device.h"
#include "cuda/kernels.h"

static const tern__kernel_fn kernels[TERN__KERNEL_COUNT] = {
#define K(id, name, inputs, outputs) [TERN__##id] = tern__cuda_##name,
#define C(id, name, inputs, outputs)
#define B(id, name, inputs, outputs)
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__cuda_pointwise,
#include "kernels/kernels.def"
};

TERN_API const tern__device_backend tern__device_plugin = {
    .version = TERN_VERSION,
    .device_size = sizeof(tern_device),
    .name = "cuda",
    .count = tern__cuda_count,
    .describe = tern__cuda_describe,
    .libraries = tern__cuda_libraries,
    .open = tern__cuda_open,
    .close = tern__cuda_close,
    .alloc = tern__cuda_alloc,
    .free = tern__cuda_free,
    .bytes = tern__cuda_bytes,
    .copy = tern__cuda_copy,
    .copy_from = tern__cuda_copy_from,
    .zero = tern__cuda_zero,
    .flush = tern__cuda_flush,
    .wait = tern__cuda_wait,
    .pinned_new = tern__cuda_pinned_new,
    .pinned_free = tern__cuda_pinned_free,
    .pin = tern__cuda_pin,
    .unpin = tern__cuda_unpin,
    .stream_new = tern__cuda_stream_new,
    .stream_free = tern__cuda_stream_free,
    .stream_copy = tern__cuda_stream_copy,
    .stream_native = tern__cuda_stream_native,
    .event_new = tern__cuda_event_new,
    .event_free = tern__cuda_event_free,
    .event_record = tern__cuda_event_record,
    .stream_wait = tern__cuda_stream_wait,
    .event_query = tern__cuda_event_query,
    .event_wait = tern__cuda_event_wait,
    .timer_new = tern__cuda_timer_new,
    .timer_ms = tern__cuda_timer_ms,
    .kernels = kernels,
};
