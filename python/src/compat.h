/* compat.h - what differs between the versions of PyTorch: 1.13, 2.6 and the newest. */
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h> /* torch/extension.h would include all of libtorch: twice the time */
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#define TORCH_TERN_NEWER(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#define TORCH_TERN_NEWER(minor) 0
#endif

namespace torch_tern
{
#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup; /* a back end is a process group there */
#endif

#if TORCH_VERSION_MAJOR >= 2
#define TORCH_TERN_THROW(text) C10_THROW_ERROR(DistBackendError, text)
#else
#define TORCH_TERN_THROW(text) TORCH_CHECK(false, text)
#endif

/* True unless the options say that the caller waits at once. Before 2.7 they do not say it. */
template <class Options> auto is_async(const Options &options, int) -> decltype(options.asyncOp)
{
    return options.asyncOp;
}
template <class Options> bool is_async(const Options &, long)
{
    return true;
}

/* A connection of one's own, since a wait on a store keeps its other users out. Old stores cannot be copied. */
template <class Store> auto store_clone(const c10::intrusive_ptr<Store> &store, int) -> decltype(store->clone())
{
    return store->clone();
}
template <class Store> c10::intrusive_ptr<Store> store_clone(const c10::intrusive_ptr<Store> &store, long)
{
    return store;
}

/* The factor of PREMUL_SUM. */
inline double factor_of(const c10d::ReduceOp &op)
{
    const auto *of = dynamic_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    TORCH_CHECK(of, "tern: PREMUL_SUM without a factor");
#if TORCH_VERSION_MAJOR >= 2
    return of->tensor_factor.defined() ? of->tensor_factor.item<double>() : of->double_factor;
#else
    return of->tensor_factors.empty() ? of->double_factor : of->tensor_factors[0].item<double>();
#endif
}
} // namespace torch_tern
