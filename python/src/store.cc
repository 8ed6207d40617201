/* store.cc - the functions of a custom store of tern that call c10d's store. An exception becomes an error. */
#include "store.h"

#include "group.h"

#include <cmath>

namespace torch_tern
{
namespace
{
using Bytes = std::vector<uint8_t>;

c10d::Store *of(void *ctx)
{
    return static_cast<c10d::Store *>(ctx);
}

Bytes bytes_of(const void *data, size_t bytes)
{
    const auto *at = static_cast<const uint8_t *>(data);
    return Bytes(at, at + bytes);
}

std::vector<std::string> keys_of(const char *const *keys, size_t count)
{
    return std::vector<std::string>(keys, keys + count);
}

/* c10d has no name for "for ever". */
std::chrono::milliseconds milliseconds_of(double seconds)
{
    const double year = 365 * 86400.0;
    return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(seconds, year) * 1e3)));
}

/* The text of an exception, without the stack of C++ that PyTorch puts behind it. */
std::string text_of(const std::exception &why)
{
    const auto *error = dynamic_cast<const c10::Error *>(&why);
    return error ? error->what_without_backtrace() : why.what();
}

template <class Function> auto guarded(tern_error *err, const Function &function) -> decltype(function())
{
    try {
        return function();
    } catch (const std::exception &why) {
        return tern_error_set(err, "torch.distributed.Store", TERN_E_PEER, "%s", text_of(why).c_str());
    }
}

int store_set(void *ctx, const char *key, const void *value, size_t bytes, tern_error *err)
{
    return guarded(err, [&]() -> int {
        of(ctx)->set(key, bytes_of(value, bytes));
        return TERN_OK;
    });
}

int store_check(void *ctx, const char *const *keys, size_t count, tern_error *err)
{
    return guarded(err, [&]() -> int { return of(ctx)->check(keys_of(keys, count)); });
}

/* Which exception means that the time is over differs between the stores and versions: so ask again. */
int store_wait(void *ctx, const char *const *keys, size_t count, double timeout_s, tern_error *err)
{
    try {
        of(ctx)->wait(keys_of(keys, count), milliseconds_of(timeout_s));
        return TERN_OK;
    } catch (const std::exception &why) {
        tern_error lost = {};
        if (store_check(ctx, keys, count, &lost) >= 0)
            return tern_error_set(err, "torch.distributed.Store", TERN_E_TIMEOUT, "%s", text_of(why).c_str());
        return tern_error_set(err, "torch.distributed.Store", TERN_E_PEER, "%s", text_of(why).c_str());
    }
}

int store_get(void *ctx, const char *key, double timeout_s, tern_store_answer *value, tern_error *err)
{
    const int status = store_wait(ctx, &key, 1, timeout_s, err);
    if (status) return status;
    return guarded(err, [&]() -> int {
        const Bytes found = of(ctx)->get(key);
        return tern_store_answer_set(value, found.data(), found.size(), err);
    });
}

int store_add(void *ctx, const char *key, int64_t delta, int64_t *sum, tern_error *err)
{
    return guarded(err, [&]() -> int {
        *sum = of(ctx)->add(key, delta);
        return TERN_OK;
    });
}

/* PyTorch's file stores cannot delete. What a meeting leaves there harms nobody: c10d uses a prefix once. */
int store_remove(void *ctx, const char *key, tern_error *err)
{
    (void)err;
    try {
        return of(ctx)->deleteKey(key);
    } catch (const std::exception &) {
        return 0;
    }
}
} // namespace

StoreHandle::StoreHandle(const c10::intrusive_ptr<c10d::Store> &store)
{
    tern_error err = {};
    tern_store_methods methods = {};
    methods.size = sizeof(methods);
    methods.set = store_set;
    methods.get = store_get;
    methods.add = store_add;
    methods.check = store_check;
    methods.wait = store_wait;
    methods.remove = store_remove;
    store_ = tern_store_custom_new("torch.distributed's store", &methods, store.get(), &err);
    if (!store_) throw_error(err);
}

StoreHandle::~StoreHandle()
{
    tern_store_close(store_);
}
} // namespace torch_tern
