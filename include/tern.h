/* tern.h - includes all public headers of tern, distributed data-parallel training in C, in the order of a
 * training step. */
#ifndef TERN_H
#define TERN_H

#include <tern/base.h>
#include <tern/rng.h>
#include <tern/device.h>
#include <tern/tensor.h>
#include <tern/object.h>
#include <tern/store.h>
#include <tern/comm.h>
#include <tern/collectives.h>
#include <tern/p2p.h>
#include <tern/mpi.h>
#include <tern/spawn.h>
#include <tern/preempt.h>
#include <tern/autograd.h>
#include <tern/ops.h>
#include <tern/attention.h>
#include <tern/pad.h>
#include <tern/conv.h>
#include <tern/loss.h>
#include <tern/function.h>
#include <tern/recompute.h>
#include <tern/nn.h>
#include <tern/transformer.h>
#include <tern/init.h>
#include <tern/models.h>
#include <tern/language_model.h>
#include <tern/lora.h>
#include <tern/optim.h>
#include <tern/schedule.h>
#include <tern/amp.h>
#include <tern/parallel.h>
#include <tern/data_parallel.h>
#include <tern/stats.h>
#include <tern/image.h>
#include <tern/data.h>
#include <tern/tokenizer.h>
#include <tern/generate.h>
#include <tern/token_data.h>
#include <tern/gguf.h>
#include <tern/augment.h>
#include <tern/image_data.h>
#include <tern/volume.h>
#include <tern/metrics.h>
#include <tern/confusion.h>
#include <tern/state_dict.h>
#include <tern/snapshot.h>
#include <tern/checkpoint.h>
#include <tern/report.h>
#include <tern/board.h>

#endif
