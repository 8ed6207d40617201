/* signature.c - checks that all ranks have the same model.
 *
 * Every rank describes its model in lines: one for the options, one for the kernels that will run, one per
 * module with its options, and one per parameter or buffer. The ranks first compare a digest of the lines.
 * Only if the digests differ does rank 0 send its lines; then every rank looks for its first difference, and
 * all ranks report the difference of the lowest rank that has one. */
#include "parallel/ddp.h"

#include "nn/batch_norm.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#define LINE 224 /* two of them fit into an error */

typedef struct signature {
    int count;
    char (*lines)[LINE];
} signature;

/* ---- the lines ---- */

static void write_member(char line[LINE], const tern_state_entry *entry, bool ignored)
{
    char shape[TERN__SHAPE_TEXT];
    const tern__view *view = &entry->tensor->view;
    snprintf(line, LINE, "%s%s \"%s\" %s %s%s%s", ignored ? "ignored " : "",
             entry->is_buffer ? "buffer" : "parameter", entry->name, tern__shape_text(view, shape),
             tern_dtype_name(view->dtype), view->layout == TERN__PLAIN ? "" : " blocked",
             entry->is_buffer || entry->tensor->requires_grad ? "" : " without gradient");
}

/* Writes the line for a further name of a parameter that has a line already. */
static void write_name(char line[LINE], const tern_state_entry *entry)
{
    snprintf(line, LINE, "parameter \"%s\", which is \"%s\"", entry->name, entry->tensor->leaf->name);
}

static char (*write_modules(char (*line)[LINE], const tern_module *module))[LINE]
{
    char name[96] = "";
    tern__module_describe(module, name, sizeof(name));
    snprintf(*line++, LINE, *name ? "module \"%s\" %s%s" : "model%s %s%s", name, module->kind,
             module->tree->options);
    for (const tern__module_tree *child = module->tree->children; child; child = child->next)
        line = write_modules(line, child->module);
    return line;
}

/* True if the model's device, or the default device if the model has not been placed, is cpu:reference. */
static bool uses_reference(const tern_ddp *ddp)
{
    const tern_device *device = ddp->seal->leaves[0]->parameter->device;
    const char *name = device ? device->name : tern__env("TERN_DEVICE");
    return name && !strcmp(name, "cpu:reference");
}

static void write_kernels(char line[LINE], const tern_ddp *ddp)
{
    char choices[96];
    tern__kernel_choices(choices, sizeof(choices));
    if (ddp->opts.mixed_kernels)
        snprintf(line, LINE, "mixed_kernels");
    else
        snprintf(line, LINE, "kernels: %s; mixed_kernels allows others",
                 uses_reference(ddp) ? "cpu:reference" : choices);
}

/* Writes the options that all ranks must share; static_graph is not one of them, as each rank checks itself.
 */
static void write_opts(char line[LINE], const tern_ddp_opts *opts, int synced)
{
    int used = snprintf(line, LINE,
                        "%d sync_batch_norm, buckets of %zu and %zu bytes%s, buffers %s, gradients %s%s%s%s "
                        "divided by %g before the sum",
                        synced, opts->first_bucket_bytes, opts->bucket_bytes,
                        opts->delay_all_reduce ? " after backward" : "",
                        opts->broadcast_buffers ? "broadcast" : "local",
                        opts->normaliser == TERN_NORMALISER_LOSS ? "by the losses' normalisers" : "by rank",
                        opts->divide_by_initial_world_size ? "" : " (those not in a join)",
                        opts->reduce_dtype == TERN_F32 ? "" : " in ",
                        opts->reduce_dtype == TERN_F32 ? "" : tern_dtype_name(opts->reduce_dtype),
                        opts->gradient_predivide_factor);
    if (opts->checksum_every)
        used += snprintf(line + used, LINE - (size_t)used, ", checksums every %d", opts->checksum_every);
    if (opts->microbatches > 1)
        snprintf(line + used, LINE - (size_t)used, ", %d microbatches", opts->microbatches);
}

static int write_signature(const tern_ddp *ddp, signature *sig, tern_error *err)
{
    int members = tern__entry_count(ddp->module);
    sig->count = 2 + tern__module_count(ddp->module) + members;
    sig->lines = tern__alloc((size_t)sig->count * LINE, "tern_ddp_new", err);
    if (!sig->lines) return TERN_E_MEMORY;
    write_opts(sig->lines[0], &ddp->opts, tern__batch_norm_sync_count(ddp->module));
    write_kernels(sig->lines[1], ddp);
    char(*line)[LINE] = write_modules(sig->lines + 2, ddp->module);
    for (int i = 0; i < members; i++) {
        tern_state_entry entry = tern__entry_get(ddp->module, i);
        if (tern__state_repeats(ddp->module, i))
            write_name(*line++, &entry);
        else
            write_member(*line++, &entry, ddp->ignored[i]);
    }
    return TERN_OK;
}

/* ---- comparing them ---- */

#define DIGEST crypto_generichash_BYTES

static int all_equal(tern_ddp *ddp, const signature *sig, bool *equal, tern_error *err)
{
    int world = tern_group_size(ddp->group);
    uint8_t mine[DIGEST];
    crypto_generichash(mine, DIGEST, (const uint8_t *)sig->lines, (size_t)sig->count * LINE, NULL, 0);
    uint8_t *all = tern__alloc((size_t)world * DIGEST, "tern_ddp_new", err);
    if (!all) return TERN_E_MEMORY;
    int status = tern_all_gather(ddp->group, mine, all, DIGEST, TERN_U8, err);
    *equal = true;
    for (int r = 0; r < world && !status; r++) *equal &= !memcmp(all + r * DIGEST, mine, DIGEST);
    tern__free(all);
    return status;
}

/* Describes this rank's first difference from rank 0's lines, or writes "". */
static void find_difference(const tern_ddp *ddp, const signature *sig, const signature *root, char *text,
                            size_t size)
{
    *text = 0;
    for (int i = 0; i < sig->count || i < root->count; i++) {
        const char *mine = i < sig->count ? sig->lines[i] : "nothing";
        const char *theirs = i < root->count ? root->lines[i] : "nothing";
        if (!strcmp(mine, theirs)) continue;
        snprintf(text, size, "the models differ: rank %d has %s, rank %d has %s",
                 tern_group_world_rank(ddp->group, 0), theirs,
                 tern_group_world_rank(ddp->group, tern_group_rank(ddp->group)), mine);
        return;
    }
}

/* Gathers the ranks' texts; the first that is not empty becomes the error of all ranks. */
static int report(tern_ddp *ddp, const char *mine, tern_error *err)
{
    int world = tern_group_size(ddp->group);
    size_t each = 2 * LINE + 64;
    char *all = tern__alloc((size_t)world * each, "tern_ddp_new", err);
    if (!all) return TERN_E_MEMORY;
    int status = tern_all_gather(ddp->group, mine, all, each, TERN_U8, err);
    for (int r = 0; r < world && !status; r++)
        if (all[(size_t)r * each])
            status = tern__error_set(err, "tern_ddp_new", TERN_E_MISMATCH, "%s", all + (size_t)r * each);
    tern__free(all);
    return status;
}

static int explain(tern_ddp *ddp, const signature *sig, tern_error *err)
{
    int64_t count = sig->count;
    int status = tern_broadcast(ddp->group, &count, 1, TERN_I64, 0, err);
    if (status) return status;
    signature root = {.count = (int)count, .lines = tern__alloc((size_t)count * LINE, "tern_ddp_new", err)};
    if (!root.lines) return TERN_E_MEMORY;
    if (tern_group_rank(ddp->group) == 0) memcpy(root.lines, sig->lines, (size_t)count * LINE);
    status = tern_broadcast(ddp->group, root.lines, (size_t)count * LINE, TERN_U8, 0, err);
    char text[2 * LINE + 64] = "";
    if (!status) find_difference(ddp, sig, &root, text, sizeof(text));
    if (!status) status = report(ddp, text, err);
    tern__free(root.lines);
    return status;
}

int tern__signature_check(tern_ddp *ddp, tern_error *err)
{
    signature sig = {0};
    bool equal = true;
    int status = write_signature(ddp, &sig, err);
    if (!status) status = all_equal(ddp, &sig, &equal, err);
    if (!status && !equal) status = explain(ddp, &sig, err);
    tern__free(sig.lines);
    return status;
}
