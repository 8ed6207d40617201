/* scope.c - the life of a scope: two arenas, the first error, kept casts, and the tensors made in it. */
#include "autograd/autograd.h"
#include "comm/group.h"

#include <string.h>

/* ---- arena: chunks that are kept from step to step ---- */

#define CHUNK ((size_t)64 << 10)

typedef struct chunk {
    struct chunk *next;
    size_t bytes, used;
} __attribute__((aligned(TERN__LINE))) chunk;

struct tern__arena {
    chunk *first, *current;
};

static void *arena_alloc(struct tern__arena *arena, size_t bytes, tern_error *err)
{
    bytes = tern__align_up(bytes, TERN__LINE);
    chunk **link = arena->current ? &arena->current : &arena->first;
    while (*link && (*link)->bytes - (*link)->used < bytes) link = &(*link)->next;
    if (!*link) {
        size_t size = TERN__MAX(bytes, CHUNK);
        chunk *grown = tern__alloc(sizeof(*grown) + size, "tern_scope", err);
        if (!grown) return NULL;
        grown->bytes = size;
        *link = grown;
    }
    arena->current = *link;
    void *data = (char *)(arena->current + 1) + arena->current->used;
    arena->current->used += bytes;
    return memset(data, 0, bytes);
}

static void arena_free(struct tern__arena *arena)
{
    if (!arena) return;
    for (chunk *c = arena->first, *next; c; c = next) {
        next = c->next;
        tern__free(c);
    }
    tern__free(arena);
}

/* ---- life ---- */

/* The error of a NULL scope: its ops do nothing, and the end of each step reports this. */
static const tern_error no_scope = {
    .code = TERN_E_INVALID, .func = "tern_scope_end", .text = "the scope is NULL"};

struct tern__borrowed {
    void (*give_back)(void *ctx);
    void *ctx;
    struct tern__borrowed *next;
};

static tern_scope *make_scope(tern_device *device, tern_group *group, tern_error *err)
{
    static const char func[] = "tern_scope_new";
    if (!device) {
        tern__error_set(err, func, TERN_E_INVALID, "the device is NULL");
        return NULL;
    }
    tern_scope *scope = tern__alloc(sizeof(*scope), func, err);
    if (!scope) return NULL;
    *scope = (tern_scope){.device = device, .here = device, .group = group, .grad = true, .generation = 1};
    if (group) scope->trace = group->trace;
    scope->stream = group ? (uint64_t)tern_group_world_rank(group, tern_group_rank(group)) : 0;
    for (int i = 0; i < 2; i++) scope->arenas[i] = tern__alloc(sizeof(*scope->arenas[i]), func, err);
    if (scope->arenas[0] && scope->arenas[1]) return scope;
    tern_scope_free(scope);
    return NULL;
}

/* A rank without a scope could not take part in collectives, so a failure here aborts the group. */
tern_scope *tern_scope_new(tern_device *device, tern_group *group, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_scope *scope = tern__is_set(e) ? NULL : make_scope(device, group, e);
    if (!scope && group) tern__group_fail(group, e);
    return scope;
}

/* Drops what an entry holds. After a failed backward its output may still have a gradient, and the output
 * may be on no list of tensors any more. */
static void drop_node(tern__node *node)
{
    for (int i = 0; i < TERN__NODE_SAVES; i++) tern__saved_drop(&node->saved[i]);
    tern__saved_drop(&node->remade);
    tern__storage_drop(node->out->grad_storage);
    node->out->grad_storage = NULL;
}

static void scope_release(tern_tensor *tensor)
{
    tern__storage_drop(tensor->storage);
    tern__storage_drop(tensor->grad_storage);
    tensor->storage = tensor->grad_storage = NULL;
}

/* Drops the scope's references; the tape still holds the casts that backward needs. */
static void drop_casts(tern_scope *scope)
{
    for (int b = 0; b < TERN__CASTS; b++) {
        for (tern__kept_cast *cast = scope->autocast.casts[b]; cast; cast = cast->next)
            scope_release(cast->tensor);
        scope->autocast.casts[b] = NULL;
    }
}

static void recycle(tern_scope *scope)
{
    drop_casts(scope);
    for (tern__node *node = scope->tape; node; node = node->previous) drop_node(node);
    for (tern_tensor *tensor = scope->tensors; tensor; tensor = tensor->next) scope_release(tensor);
    for (struct tern__borrowed *b = scope->borrowed; b; b = b->next) b->give_back(b->ctx);
    scope->tape = NULL;
    scope->tensors = NULL;
    scope->borrowed = NULL;
}

int tern_scope_end(tern_scope *scope, tern_error *err)
{
    tern_error why = {0};
    if (!scope && err && !err->code) *err = no_scope;
    if (!scope) return err ? err->code : no_scope.code;
    if (tern__device_flush(scope->device, &why)) tern__scope_fail_with(scope, &why);
    recycle(scope);
    scope->generation++;
    scope->step++;
    scope->draws = 0;
    scope->first = ++scope->made;
    scope->marked = 0;
    scope->backwards = 0;
    scope->refused = 0;
    scope->forward_began = 0;
    scope->watch = NULL;
    tern__trace_flush(scope->trace);
    struct tern__arena *older = scope->arenas[1];
    scope->arenas[1] = scope->arenas[0];
    scope->arenas[0] = older;
    for (chunk *c = older->first; c; c = c->next) c->used = 0;
    older->current = older->first;
    int code = scope->error.code;
    if (code && err && !err->code) *err = scope->error;
    scope->error = (tern_error){0};
    return code;
}

void tern_scope_free(tern_scope *scope)
{
    if (!scope) return;
    tern_scope_free(scope->checkpoint.child);
    tern__device_flush(scope->device, NULL);
    recycle(scope);
    if (scope->one.data) tern__storage_drop(&scope->one);
    for (int i = 0; i < 2; i++) arena_free(scope->arenas[i]);
    tern__free(scope);
}

/* ---- random numbers ---- */

void tern_scope_seed(tern_scope *scope, uint64_t seed, uint64_t step)
{
    if (!scope) return;
    scope->seed = seed;
    scope->step = step;
    scope->draws = 0;
}

void tern_scope_seed_rank_set(tern_scope *scope, uint64_t rank)
{
    if (scope) scope->stream = rank;
}

/* Keys of neighbouring ranks are 2^64 divided by the golden ratio apart, so neighbouring seeds share none. */
tern__draw tern__scope_draw(tern_scope *scope)
{
    return (tern__draw){scope->seed + scope->stream * 0x9e3779b97f4a7c15u, scope->step, scope->draws++};
}

/* ---- errors ---- */

bool tern__scope_is_of(const tern_scope *scope, const tern_group *group)
{
    return scope->group && tern__group_root(scope->group) == tern__group_root(group);
}

const tern_error *tern_scope_error(const tern_scope *scope)
{
    return scope ? &scope->error : &no_scope;
}

int tern__scope_fail_with(tern_scope *scope, const tern_error *err)
{
    if (scope->error.code) return scope->error.code;
    scope->error = *err;
    if (scope->group) tern__group_fail(scope->group, err);
    return err->code;
}

int tern__scope_fail(tern_scope *scope, const char *func, int code, const char *fmt, ...)
{
    tern_error err = {0};
    va_list args;
    va_start(args, fmt);
    tern__error_vset(&err, func, code, 0, fmt, args);
    va_end(args);
    return tern__scope_fail_with(scope, &err);
}

/* ---- memory ---- */

void *tern__scope_alloc(tern_scope *scope, size_t bytes)
{
    tern_error err = {0};
    void *data = arena_alloc(scope->arenas[0], bytes, &err);
    if (!data) tern__scope_fail_with(scope, &err);
    return data;
}

int tern__scope_borrow(tern_scope *scope, void (*give_back)(void *ctx), void *ctx)
{
    struct tern__borrowed *entry = tern__scope_alloc(scope, sizeof(*entry));
    if (!entry) return scope->error.code;
    *entry = (struct tern__borrowed){.give_back = give_back, .ctx = ctx, .next = scope->borrowed};
    scope->borrowed = entry;
    return TERN_OK;
}

/* The first pass of tern_checkpoint runs without gradients anyway. Turning them off inside it only means that
 * parameters used there are not noted. */
bool tern_grad_enabled_set(tern_scope *scope, bool enabled)
{
    if (!scope) return false;
    bool is_tried = scope->checkpoint.traced != NULL,
         before = is_tried ? !scope->checkpoint.paused : scope->grad;
    if (is_tried)
        scope->checkpoint.paused = !enabled;
    else
        scope->grad = enabled;
    return before;
}

/* ---- policy and casts ---- */

const tern__policy *tern__policy_set(tern_scope *scope, const tern__policy *policy)
{
    const tern__policy *before = scope->autocast.policy;
    scope->autocast.policy = policy;
    if (!policy) drop_casts(scope);
    return before;
}

/* Returns the leaf's bucket in scope->autocast.casts. */
static unsigned scope_bucket_of(const tern__leaf *leaf)
{
    return (unsigned)((uintptr_t)leaf * 0x9e3779b97f4a7c15u >> 32) % TERN__CASTS;
}

/* True if the cast suits the parameter's need for a gradient. With gradients off, any cast does. */
static bool has_gradient(const tern_scope *scope, const tern_tensor *parameter, const tern_tensor *cast)
{
    return !scope->grad || cast->requires_grad == parameter->requires_grad;
}

tern_tensor *tern__cast_find(const tern_scope *scope, const tern_tensor *parameter, tern_dtype dtype)
{
    for (const tern__kept_cast *cast = scope->autocast.casts[scope_bucket_of(parameter->leaf)]; cast;
         cast = cast->next) {
        tern_tensor *tensor = cast->tensor;
        if (cast->leaf == parameter->leaf && cast->version == cast->leaf->packs.version &&
            tensor->view.dtype == dtype && tensor->device == scope->here &&
            has_gradient(scope, parameter, tensor))
            return tensor;
    }
    return NULL;
}

void tern__cast_keep(tern_scope *scope, const tern_tensor *parameter, tern_tensor *cast)
{
    tern__kept_cast *entry = tern__scope_alloc(scope, sizeof(*entry));
    if (!entry) return;
    tern__kept_cast **first = &scope->autocast.casts[scope_bucket_of(parameter->leaf)];
    *entry = (tern__kept_cast){parameter->leaf, parameter->leaf->packs.version, cast, *first};
    *first = entry;
    scope->tensors = cast->next;
    if (cast->node) cast->node->again = true;
}

/* ---- results ---- */

tern_device *tern__device_of(const tern_scope *scope, const tern_tensor *tensor)
{
    return tensor->scope || !scope->role.is_replica ? tensor->device : NULL;
}

static tern_tensor *new_handle(tern_scope *scope, const tern__view *view, tern_device *device)
{
    tern_tensor *tensor = tern__scope_alloc(scope, sizeof(*tensor));
    if (!tensor) return NULL;
    tensor->view = *view;
    tensor->device = device;
    tensor->view.packs = NULL;
    tensor->scope = scope;
    tensor->clock = &scope->generation;
    tensor->generation = scope->generation;
    tensor->order = ++scope->made;
    tensor->next = scope->tensors;
    scope->tensors = tensor;
    return tensor;
}

/* Allocates memory for `view` on the running op's device, with one reference. */
static tern__storage *new_storage(tern_scope *scope, const tern__view *view)
{
    tern__storage *storage = tern__scope_alloc(scope, sizeof(*storage));
    if (!storage) return NULL;
    size_t bytes = tern__view_bytes(view);
    *storage =
        (tern__storage){.refs = 1, .device = scope->here, .data = tern__device_alloc(scope->here, bytes)};
    if (storage->data) return storage;
    char shape[TERN__SHAPE_TEXT];
    tern__scope_fail(scope, "tern_scope", TERN_E_MEMORY, "out of memory: %zu bytes for a tensor %s of %s",
                     bytes, tern__shape_text(view, shape), tern_dtype_name(view->dtype));
    return NULL;
}

tern_tensor *tern__result(tern_scope *scope, tern_dtype dtype, tern__layout layout, int ndim,
                          const int64_t *shape)
{
    tern__view view = tern__view_make(dtype, layout, ndim, shape);
    tern__storage *storage = new_storage(scope, &view);
    tern_tensor *tensor = storage ? new_handle(scope, &view, scope->here) : NULL;
    if (!tensor) {
        tern__storage_drop(storage);
        return NULL;
    }
    tensor->storage = storage;
    tensor->view.data = storage->data;
    return tensor;
}

tern_tensor *tern__result_over(tern_scope *scope, const tern__view *view)
{
    return new_handle(scope, view, scope->device);
}

static tern_tensor *handle_on(tern_scope *scope, const tern__view *view, tern__storage *storage,
                              tern_device *device)
{
    tern_tensor *tensor = new_handle(scope, view, device);
    if (tensor) tensor->storage = tern__storage_hold(storage);
    return tensor;
}

tern_tensor *tern__result_view(tern_scope *scope, const tern_tensor *source, const tern__view *view)
{
    return handle_on(scope, view, source->storage, tern__device_of(scope, source));
}

tern_tensor *tern__grad_tensor(tern_scope *scope, const tern_tensor *tensor)
{
    return handle_on(scope, &tensor->grad, tensor->grad_storage, tensor->device);
}

tern_tensor *tern__saved_tensor(tern_scope *scope, const tern__saved *saved)
{
    return handle_on(scope, &saved->view, saved->storage, saved->device);
}

tern__saved tern__temporary(tern_scope *scope, const tern__view *like)
{
    tern__saved saved = {.view = *like, .storage = new_storage(scope, like)};
    saved.view.packs = NULL;
    saved.view.data = saved.storage ? saved.storage->data : NULL;
    return saved;
}

tern_tensor *tern_tensor_from(tern_scope *scope, const void *data, tern_dtype dtype, int ndim,
                              const int64_t *shape)
{
    if (!scope || scope->error.code) return NULL;
    tern_error err = {0};
    if (tern__shape_check(__func__, dtype, ndim, shape, &err)) {
        tern__scope_fail_with(scope, &err);
        return NULL;
    }
    scope->here = scope->device;
    tern_tensor *tensor = tern__result(scope, dtype, TERN__PLAIN, ndim, shape);
    if (!tensor) return NULL;
    size_t bytes = tern__view_bytes(&tensor->view);
    int status = data ? tern__memory_copy(tensor->view.data, data, bytes, &err)
                      : tern__memory_zero(tensor->view.data, bytes, &err);
    if (!status) return tensor;
    tern__scope_fail_with(scope, &err);
    return NULL;
}

/* ---- marks ----
 *
 * Tensors, marks and steps of a scope are numbered in the order in which they were made, so marks may be
 * nested and released in any order. What a release keeps stays in the list with the number of the mark:
 * then the list remains sorted, and what encloses the mark releases it. */

int64_t tern_scope_mark(tern_scope *scope)
{
    return scope ? ++scope->made : 0;
}

void tern__scope_release(tern_scope *scope, int64_t mark, tern__released by, int count,
                         tern_tensor *const *kept)
{
    tern_tensor **link = &scope->tensors;
    while (*link && (*link)->order > mark) {
        tern_tensor *tensor = *link;
        int i = 0;
        while (i < count && kept[i] != tensor) i++;
        if (i < count) {
            tensor->order = mark;
            link = &tensor->next;
        } else {
            scope_release(tensor);
            tensor->released = by;
            *link = tensor->next;
        }
    }
}

void tern_scope_release(tern_scope *scope, int64_t mark, int count, tern_tensor *const *kept)
{
    if (!scope) return;
    if (mark <= scope->first || mark > scope->made)
        tern__scope_fail(scope, __func__, TERN_E_LIFETIME, "the mark is not of this step of the scope");
    else if (count < 0 || (count && !kept))
        tern__scope_fail(scope, __func__, TERN_E_INVALID, "expected the tensors to keep, got a count of %d%s",
                         count, kept ? "" : " without tensors");
    else
        tern__scope_release(scope, mark, TERN__RELEASED_BY_MARK, count, kept);
}
