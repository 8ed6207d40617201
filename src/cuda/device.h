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

/* ---- lanes.cc ---- */

void *tern__cuda_pinned_new(tern_device *device, size_t bytes);
void tern__cuda_pinned_free(tern_device *device, void *data);
int tern__cuda_pin(tern_device *device, void *base, size_t bytes, tern_error *err);
void tern__cuda_unpin(tern_device *device, void *base);
int tern__cuda_lane_new(tern_device *device, tern__lane *lane, tern_error *err);
void tern__cuda_lane_free(tern_device *device, tern__lane lane);
int tern__cuda_lane_copy(tern_device *device, tern__lane lane, void *to, const void *from, size_t bytes,
                         tern_error *err);
void *tern__cuda_lane_stream(tern_device *device, tern__lane lane);
tern__mark *tern__cuda_mark_new(tern_device *device, tern_error *err);
void tern__cuda_mark_free(tern_device *device, tern__mark *mark);
int tern__cuda_mark_set(tern_device *device, tern__lane lane, tern__mark *mark, tern_error *err);
int tern__cuda_mark_follow(tern_device *device, tern__lane lane, tern__mark *mark, tern_error *err);
int tern__cuda_mark_test(tern_device *device, tern__mark *mark, tern_error *err);
int tern__cuda_mark_wait(tern_device *device, tern__mark *mark, tern_error *err);
tern__mark *tern__cuda_timer_new(tern_device *device, tern_error *err);
double tern__cuda_timer_ms(tern_device *device, tern__mark *from, tern__mark *to);

/* ---- pool.cc ---- */

void *tern__cuda_alloc(tern_device *device, size_t bytes);
void tern__cuda_free(tern_device *device, void *data);
size_t tern__cuda_bytes(tern_device *device);

#ifdef __cplusplus
}
#endif
#endif
