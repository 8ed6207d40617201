/* device.h - the functions of the back end's struct (device/backend.h). */
#ifndef TERN_SRC_CUDA_DEVICE_H
#define TERN_SRC_CUDA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/backend.h"

int tern__cuda_count(tern_error *err);
void tern__cuda_describe(int index, char *text, size_t size);
void tern__cuda_libraries(char *text, size_t size);
int tern__cuda_open(tern_device *device, int index, tern_error *err);
void tern__cuda_close(tern_device *device);
int tern__cuda_copy(tern_device *device, void *to, const void *from, size_t bytes, tern_error *err);
int tern__cuda_copy_from(tern_device *device, void *to, tern_device *other, const void *from, size_t bytes,
                         tern_error *err);
int tern__cuda_zero(tern_device *device, void *to, size_t bytes, tern_error *err);
int tern__cuda_wait(tern_device *device, tern_error *err);

/* ---- graph.cc ---- */

int tern__cuda_flush(tern_device *device, tern_error *err);

/* ---- stream.cc ---- */

void *tern__cuda_pinned_new(tern_device *device, size_t bytes);
void tern__cuda_pinned_free(tern_device *device, void *data);
int tern__cuda_pin(tern_device *device, void *base, size_t bytes, tern_error *err);
void tern__cuda_unpin(tern_device *device, void *base);
int tern__cuda_stream_new(tern_device *device, tern__device_stream *stream, tern_error *err);
void tern__cuda_stream_free(tern_device *device, tern__device_stream stream);
int tern__cuda_stream_copy(tern_device *device, tern__device_stream stream, void *to, const void *from,
                           size_t bytes, tern_error *err);
void *tern__cuda_stream_native(tern_device *device, tern__device_stream stream);
tern__device_event *tern__cuda_event_new(tern_device *device, tern_error *err);
void tern__cuda_event_free(tern_device *device, tern__device_event *event);
int tern__cuda_event_record(tern_device *device, tern__device_stream stream, tern__device_event *event,
                            tern_error *err);
int tern__cuda_stream_wait(tern_device *device, tern__device_stream stream, tern__device_event *event,
                           tern_error *err);
int tern__cuda_event_query(tern_device *device, tern__device_event *event, tern_error *err);
int tern__cuda_event_wait(tern_device *device, tern__device_event *event, tern_error *err);
tern__device_event *tern__cuda_timer_new(tern_device *device, tern_error *err);
double tern__cuda_timer_ms(tern_device *device, tern__device_event *from, tern__device_event *to);

/* ---- pool.cc ---- */

void *tern__cuda_alloc(tern_device *device, size_t bytes);
void tern__cuda_free(tern_device *device, void *data);
size_t tern__cuda_bytes(tern_device *device);

#ifdef __cplusplus
}
#endif
#endif
