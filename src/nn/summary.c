/* summary.c - a table of a model's layers. It runs the model once on zeros, in evaluation mode and without
 * gradients, and adds a line for every module call that returns. */
#include "nn/nn.h"

#include <stdio.h>
#include <string.h>

typedef struct line {
    char name[96], output[TERN__SHAPE_TEXT];
    const char *kind;
    int64_t elements; /* in its own parameters */
    size_t bytes;     /* of its result         */
    struct line *next;
} line;

typedef struct table {
    tern__observer observer; /* first: the observer is the table */
    tern_scope *scope;
    line *first, **last;
} table;

/* Writes the full name, "layer1.0.conv1"; for the root, its kind. */
static void full_name(const tern_module *module, char *text, size_t size)
{
    const tern__module_tree *tree = module->tree;
    const char *name = tree->name ? tree->name : module->kind;
    if (!tree->parent || !tree->parent->tree->parent) {
        snprintf(text, size, "%s", name);
        return;
    }
    full_name(tree->parent, text, size);
    size_t used = strlen(text);
    snprintf(text + used, size - used, ".%s", name);
}

static int64_t own_elements(const tern_module *module)
{
    int64_t elements = 0;
    for (const tern__member *member = module->tree->members; member; member = member->next)
        if (!member->is_buffer && tern__member_owns(member))
            elements += tern__view_count(&member->tensor.view);
    return elements;
}

/* Adds a line. Containers without parameters of their own are skipped: their children have lines. */
static void add_line(tern__observer *observer, const tern_module *module, const tern_tensor *y)
{
    table *self = (table *)observer;
    int64_t elements = own_elements(module);
    if (!y || (module->tree->children && elements == 0)) return;
    line *l = tern__scope_alloc(self->scope, sizeof(*l));
    if (!l) return;
    full_name(module, l->name, sizeof(l->name));
    tern__shape_text(&y->view, l->output);
    l->kind = module->kind;
    l->elements = elements;
    l->bytes = tern__view_bytes(&y->view);
    *self->last = l;
    self->last = &l->next;
}

static void print_table(const table *self, const tern_module *module)
{
    int wide = 5, kinds = 16;
    size_t bytes = 0;
    int64_t elements = tern_module_element_count(module);
    for (const line *l = self->first; l; l = l->next) {
        wide = TERN__MAX(wide, (int)strlen(l->name));
        kinds = TERN__MAX(kinds, (int)strlen(l->kind));
        bytes += l->bytes;
    }
    printf("%-*s  %-*s %-24s %12s %10s\n", wide, "layer", kinds, "kind", "output", "parameters", "output MB");
    for (const line *l = self->first; l; l = l->next)
        printf("%-*s  %-*s %-24s %12lld %10.3f\n", wide, l->name, kinds, l->kind, l->output,
               (long long)l->elements, (double)l->bytes / 1e6);
    printf("%-*s  %-*s %-24s %12lld %10.3f\n", wide, "total", kinds, "", "", (long long)elements,
           (double)bytes / 1e6);
}

/* ---- saving and restoring every module's training mode ---- */

static bool *save_modes(const tern__module_tree *tree, bool *modes)
{
    *modes++ = tree->module->training;
    for (const tern__module_tree *child = tree->children; child; child = child->next)
        modes = save_modes(child, modes);
    return modes;
}

static const bool *restore_modes(const tern__module_tree *tree, const bool *modes)
{
    tree->module->training = *modes++;
    for (const tern__module_tree *child = tree->children; child; child = child->next)
        modes = restore_modes(child, modes);
    return modes;
}

/* Returns the dtype of the model's input, judging by its first layer: an embedding takes indices. */
static tern_dtype input_dtype(const tern_module *module)
{
    const tern__module_tree *tree = module->tree;
    while (tree->children) tree = tree->children;
    return strcmp(tree->module->kind, "embedding") == 0 ? TERN_I64 : TERN_F32;
}

static int summary_run(tern_module *module, tern_scope *scope, int ndim, const int64_t *shape,
                       tern_error *err)
{
    table rows = {.observer = {add_line}, .scope = scope};
    rows.last = &rows.first;
    scope->observer = &rows.observer;
    tern_grad_enabled_set(scope, false);
    tern_forward(module, scope, tern_tensor_from(scope, NULL, input_dtype(module), ndim, shape));
    if (!scope->error.code) print_table(&rows, module);
    return tern_scope_end(scope, err);
}

int tern_summary(tern_module *module, tern_device *device, int ndim, const int64_t *shape, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!module || !module->tree)
        return tern__error_set(err, __func__, TERN_E_INVALID, "the module is NULL or was never made");
    bool *modes = tern__alloc((size_t)tern__module_count(module), __func__, err);
    tern_scope *scope = modes ? tern_scope_new(device, NULL, err) : NULL;
    int status = TERN_E_MEMORY;
    if (scope) {
        save_modes(module->tree, modes);
        tern_eval(module);
        status = summary_run(module, scope, ndim, shape, err);
        restore_modes(module->tree, modes);
    }
    tern_scope_free(scope);
    tern__free(modes);
    return status;
}
