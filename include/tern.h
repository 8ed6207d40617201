/* tern.h - distributed data-parallel training in C: all public headers, in the order of a training step. */
#ifndef TERN_H
#define TERN_H

#include <tern/base.h>
#include <tern/rng.h>
#include <tern/comm.h>
#include <tern/data.h>

#endif
