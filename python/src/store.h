/* store.h - c10d's store as a store of tern, through which a group's ranks meet. */
#pragma once

#include "compat.h"

#include <tern/store.h>

namespace torch_tern
{
class StoreHandle
{
  public:
    explicit StoreHandle(const c10::intrusive_ptr<c10d::Store> &store);
    ~StoreHandle();
    StoreHandle(const StoreHandle &) = delete;
    StoreHandle &operator=(const StoreHandle &) = delete;
    tern_store *get() const
    {
        return store_;
    }

  private:
    tern_store *store_;
};
} // namespace torch_tern
