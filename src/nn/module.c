/* module.c - the module tree: making, members, children, calling, freeing. */
#include "base/text.h"
#include "nn/nn.h"

#include <string.h>

/* ---- life ---- */

static int attach_tree(tern_module *module, const char *kind, tern_forward_fn forward, bool heap,
                       tern_error *err)
{
    tern__module_tree *tree = tern__alloc(sizeof(*tree), "tern_module_init", err);
    if (!tree) return TERN_E_MEMORY;
    *tree = (tern__module_tree){.module = module, .heap = heap, .forward = forward};
    module->kind = kind;
    module->forward = forward;
    module->training = true;
    module->tree = tree;
    return TERN_OK;
}

int tern_module_init(tern_module *module, const char *kind, tern_forward_fn forward, tern_error *err)
{
    if (!module) return tern__error_set(err, __func__, TERN_E_INVALID, "the module is NULL");
    *module = (tern_module){.kind = kind};
    if (tern__is_set(err)) return err->code;
    return attach_tree(module, kind, forward, false, err);
}

void *tern__module_new(size_t bytes, const char *kind, tern_forward_fn forward, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    tern_module *module = tern__alloc(bytes, "tern_module_init", err);
    if (!module || attach_tree(module, kind, forward, true, err) == TERN_OK) return module;
    tern__free(module);
    return NULL;
}

static void state_free(tern__module_tree *tree)
{
    for (int i = 0; i < tree->entry_count; i++) tern__free((char *)tree->state[i].name);
    tern__free(tree->state);
    tree->state = NULL;
    tree->state_count = tree->entry_count = 0;
}

static void member_free(tern__member *member)
{
    tern__packs_free(&member->leaf.packs);
    tern__free(member->leaf.grad);
    tern__memory_free(member->memory);
    tern__free(member->name);
    tern__free(member);
}

static void release_children(tern__module_tree *tree)
{
    for (tern__module_tree *child = tree->children, *next; child; child = next) {
        next = child->next;
        child->parent = NULL;
        if (child->heap)
            tern_module_free(child->module);
        else
            tern_module_release(child->module);
    }
}

void tern_module_release(tern_module *module)
{
    if (!module || !module->tree) return;
    tern__module_tree *tree = module->tree;
    module->tree = NULL;
    if (module->release) module->release(module);
    release_children(tree);
    for (tern__member *member = tree->members, *next; member; member = next) {
        next = member->next;
        member_free(member);
    }
    tern__seal_free(tree->seal);
    state_free(tree);
    tern__free(tree->name);
    tern__free(tree);
}

void tern_module_free(tern_module *module)
{
    if (!module) return;
    tern_module_release(module);
    tern__free(module);
}

/* ---- tree ---- */

tern_module *tern__module_root(tern_module *module)
{
    while (module->tree->parent) module = module->tree->parent;
    return module;
}

int tern__module_count(const tern_module *module)
{
    int count = 1;
    for (const tern__module_tree *child = module->tree->children; child; child = child->next)
        count += tern__module_count(child->module);
    return count;
}

/* True if a module may be added to: it was made, and nothing has failed before. */
static bool can_grow(const tern_module *module, const char *func, const char *name, tern_error *err)
{
    if (tern__is_set(err)) return false;
    if (tern__need(name, "name", func, err)) return false;
    if (module && module->tree) return true;
    tern__error_set(err, func, TERN_E_INVALID, "the module that \"%s\" is added to was never made", name);
    return false;
}

int tern__tree_open(tern_module *module, const char *func, const char *name, tern_error *err)
{
    char quoted[TERN__QUOTE_TEXT];
    tern_module *root = tern__module_root(module);
    if (root->tree->seal)
        return tern__error_set(err, func, TERN_E_STATE,
                               "\"%s\" cannot be added to %s after its first backward, ddp or optimizer: "
                               "build the whole model first",
                               name, module->kind);
    if (root->tree->precision.set)
        return tern__error_set(
            err, func, TERN_E_STATE,
            "\"%s\" cannot be added to %s, which amp has made: build the whole model first", name,
            module->kind);
    if (!*name || strchr(name, '.'))
        return tern__error_set(err, func, TERN_E_INVALID,
                               "\"%s\" is no name: expected at least one character, no dot", name);
    if (tern__utf8_check(name, strlen(name)) >= 0)
        return tern__error_set(err, func, TERN_E_INVALID, "the name %s is not UTF-8",
                               tern__quote(name, strlen(name), quoted));
    for (tern_module *m = module; m; m = m->tree->parent) state_free(m->tree);
    return TERN_OK;
}

static int name_is_free(const tern__module_tree *tree, const char *func, const char *name, tern_error *err)
{
    bool taken = false;
    for (const tern__module_tree *child = tree->children; child; child = child->next)
        taken |= !strcmp(child->name, name);
    for (const tern__member *member = tree->members; member; member = member->next)
        taken |= !strcmp(member->name, name);
    return taken ? tern__error_set(err, func, TERN_E_INVALID, "%s already has a \"%s\"", tree->module->kind,
                                   name)
                 : TERN_OK;
}

static int adopt(tern_module *module, const char *name, tern_module *child, tern_error *err)
{
    tern__module_tree *tree = module->tree;
    if (child->tree->seal)
        return tern__error_set(
            err, "tern_module_add", TERN_E_STATE,
            "%s \"%s\" has had a backward, ddp or optimizer already: build the whole model first",
            child->kind, name);
    int status = tern__tree_open(module, "tern_module_add", name, err);
    if (!status) status = name_is_free(tree, "tern_module_add", name, err);
    if (status) return status;
    child->tree->name = tern__strdup(name, "tern_module_add", err);
    if (!child->tree->name) return TERN_E_MEMORY;
    child->tree->parent = module;
    if (tree->last_child)
        tree->last_child->next = child->tree;
    else
        tree->children = child->tree;
    tree->last_child = child->tree;
    return TERN_OK;
}

/* True if `child` has a parent already, or is the root of `module`: it would be freed twice. */
static bool has_owner(const tern_module *module, const tern_module *child)
{
    if (child->tree && child->tree->parent) return true;
    while (module && module->tree && module != child) module = module->tree->parent;
    return module == child;
}

void tern__child_drop(tern_module *child)
{
    if (child && child->tree && child->tree->heap)
        tern_module_free(child);
    else if (child)
        tern_module_release(child);
}

tern_module *tern_module_add(tern_module *module, const char *name, tern_module *child, tern_error *err)
{
    if (!child) {
        tern__error_set(err, __func__, TERN_E_INVALID, "child \"%s\" is NULL", name ? name : "");
        return NULL;
    }
    if (has_owner(module, child)) {
        tern__error_set(err, __func__, TERN_E_STATE, "%s \"%s\" already belongs to a module", child->kind,
                        name ? name : "");
        return NULL;
    }
    if (child->tree && can_grow(module, __func__, name, err) && adopt(module, name, child, err) == TERN_OK)
        return child;
    tern__child_drop(child);
    return NULL;
}

/* ---- members ---- */

static tern__member *new_member(tern_module *module, const char *func, const char *name,
                                const tern__view *view, tern_error *err)
{
    tern__member *member = tern__alloc(sizeof(*member), func, err);
    if (!member) return NULL;
    member->name = tern__strdup(name, func, err);
    member->memory = tern__alloc(tern__view_bytes(view), func, err);
    if (!member->name || !member->memory) {
        member_free(member);
        return NULL;
    }
    member->tensor.view = *view;
    member->tensor.view.data = member->memory;
    member->leaf.module = module;
    return member;
}

static tern_tensor *add_member(tern_module *module, const char *func, const char *name, tern_dtype dtype,
                               int ndim, const int64_t *shape, tern_error *err)
{
    if (!can_grow(module, func, name, err) || tern__tree_open(module, func, name, err) ||
        name_is_free(module->tree, func, name, err) || tern__shape_check(func, dtype, ndim, shape, err))
        return NULL;
    tern__view view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    tern__member *member = new_member(module, func, name, &view, err);
    if (!member) return NULL;
    tern__module_tree *tree = module->tree;
    if (tree->last_member)
        tree->last_member->next = member;
    else
        tree->members = member;
    tree->last_member = member;
    return &member->tensor;
}

static int seal_for_backward(tern_module *module, tern_error *err)
{
    return tern__module_seal(module, err) ? TERN_OK : err->code;
}

tern_tensor *tern_parameter_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                                const int64_t *shape, tern_error *err)
{
    tern_tensor *tensor = add_member(module, __func__, name, dtype, ndim, shape, err);
    if (!tensor) return NULL;
    tern__leaf *leaf = &module->tree->last_member->leaf;
    leaf->parameter = tensor;
    leaf->seal = seal_for_backward;
    leaf->describe = tern__leaf_describe;
    tensor->leaf = leaf;
    tensor->requires_grad = true;
    tensor->view.packs = &leaf->packs;
    return tensor;
}

tern_tensor *tern_buffer_add(tern_module *module, const char *name, tern_dtype dtype, int ndim,
                             const int64_t *shape, tern_error *err)
{
    tern_tensor *tensor = add_member(module, __func__, name, dtype, ndim, shape, err);
    if (tensor) module->tree->last_member->is_buffer = true;
    return tensor;
}

int tern_buffer_persistent_set(tern_module *module, const char *name, bool persistent, tern_error *err)
{
    if (!can_grow(module, __func__, name, err)) return err->code;
    tern__member *member = module->tree->members;
    while (member && (!member->is_buffer || strcmp(member->name, name) != 0)) member = member->next;
    if (!member)
        return tern__error_set(err, __func__, TERN_E_INVALID, "%s has no buffer \"%s\"", module->kind, name);
    int status = tern__tree_open(module, __func__, name, err);
    if (!status) member->is_transient = !persistent;
    return status;
}

/* ---- use ---- */

tern_tensor *tern__module_return(const tern_module *module, tern_scope *scope, int64_t mark, tern_tensor *y)
{
    if (scope->error.code) return NULL;
    tern__scope_release(scope, mark, TERN__RELEASED_BY_CALL, 1, &y);
    if (scope->observer) scope->observer->called(scope->observer, module, y);
    return y;
}

/* Only the first rank of a ddp and the first replica measure convolutions; the others follow their choices.
 */
static void module_follow(tern_module *module, const tern_scope *scope)
{
    const tern__seal *seal = tern__module_root(module)->tree->seal;
    bool is_led = seal && seal->attached && tern_group_rank(seal->group) != 0;
    scope->here->follows = is_led || scope->role.follows;
}

tern_tensor *tern__forward_once(tern_module *module, tern_scope *scope, tern_tensor *x,
                                tern_forward_fn forward)
{
    if (!module || !TERN__ENTER(scope, "tern_forward", 1, &x)) return NULL;
    module_follow(module, scope);
    int64_t mark = tern_scope_mark(scope);
    return tern__module_return(module, scope, mark, tern__module_call(module, scope, x, forward));
}

/* True if the call is computed again in backward, which without gradients does not come. */
static bool module_is_checkpointed(const tern_module *module, const tern_scope *scope)
{
    return module && scope && scope->grad && module->tree->is_checkpointed;
}

tern_tensor *tern__forward_by(tern_module *module, tern_scope *scope, tern_tensor *x, tern_forward_fn forward)
{
    return module_is_checkpointed(module, scope) ? tern__checkpoint_by(module, scope, x, forward)
                                                 : tern__forward_once(module, scope, x, forward);
}

tern_tensor *tern_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern__forward_by(module, scope, x, module ? module->forward : NULL);
}

tern_tensor *tern__forward_inputs_once(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                       tern_tensor **x, const void *opts)
{
    if (!module || !tern__op_enter(scope, kind->func, kind->needed, kind->count, x)) return NULL;
    if (module->forward != kind->made) {
        tern__scope_fail(scope, kind->func, TERN_E_INVALID, "expected a %s with its own forward, got %s",
                         kind->kind, module->kind);
        return NULL;
    }
    module_follow(module, scope);
    int64_t mark = tern_scope_mark(scope);
    return tern__module_return(module, scope, mark, tern__module_call_inputs(kind, module, scope, x, opts));
}

tern_tensor *tern__forward_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                  tern_tensor **x, const void *opts)
{
    return module_is_checkpointed(module, scope) ? tern__checkpoint_inputs(kind, module, scope, x, opts)
                                                 : tern__forward_inputs_once(kind, module, scope, x, opts);
}

static void set_training(tern_module *module, bool training)
{
    if (!module || !module->tree) return;
    module->training = training;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        set_training(child->module, training);
}

void tern_train(tern_module *module)
{
    set_training(module, true);
}

void tern_eval(tern_module *module)
{
    set_training(module, false);
}

/* ---- options as text, which ranks compare besides kinds and shapes (parallel/signature.c) ---- */

void tern__options_add(tern_module *module, const char *name, int count, const int64_t *values)
{
    char *text = module->tree->options;
    size_t size = sizeof(module->tree->options);
    tern__text_append(text, size, " %s", name);
    for (int i = 0; i < count; i++)
        tern__text_append(text, size, "%c%lld", i ? 'x' : ' ', (long long)values[i]);
}

void tern__options_add_real(tern_module *module, const char *name, double value)
{
    tern__text_append(module->tree->options, sizeof(module->tree->options), " %s %.9g", name, value);
}
