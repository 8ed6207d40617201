/* norm.c - the norms for LARC's and LAMB's updates: sums of squares, and the factors computed from them, in
 * the memory of the parameters. Kernels compute them, on the host, too.
 *
 * Squares are summed in sections: 4 KiB of one parameter, counted from where the optimizer's part of a range
 * begins. Slices are cut at the same places, so that all ranks, and a single process, add up the same numbers
 * in the same order. There are tables of the sections and of the parameters' rows of sums, so that one call
 * processes all neighbours, however many parameters they are. */
#include "kernels/norm_factors.h"
#include "kernels/sections.h"
#include "optim/optim.h"
#include "tensor/number.h"

enum { SUMS = 2, FACTORS = 3, COLUMNS = sizeof(tern__section) / sizeof(int64_t) };

/* ---- tables ---- */

/* Calls `visit` with the optimizer's leaves, range by range, in the order of their addresses. */
static void each_leaf(tern_optim *optim, void (*visit)(tern_optim *optim, int k, void *ctx), void *ctx)
{
    for (int r = 0; r < optim->seal->range_count; r++)
        for (int k = 0; k < optim->seal->leaf_count; k++)
            if (optim->seal->range_of[k] == r && optim->group_of[k] >= 0) visit(optim, k, ctx);
}

static size_t section_at(const tern_optim *optim, int r, size_t byte)
{
    return (byte - optim->all[r].begin) / TERN__SECTION;
}

/* Returns how many sections leaf k has in a slice; *section is the first. */
static int sections_of(const tern_optim *optim, int k, tern__slice slice, int *section)
{
    int r = optim->seal->range_of[k];
    tern__slice whole = {optim->seal->offset[k], tern__optim_end(optim, k)},
                part = tern__slice_cut(whole, slice);
    if (!tern__slice_bytes(part)) return 0;
    size_t first = section_at(optim, r, part.begin), last = section_at(optim, r, part.end - 1);
    *section = optim->norms.first[k] + (int)(first - section_at(optim, r, whole.begin));
    return (int)(last - first) + 1;
}

int tern__norm_sections(const tern_optim *optim, int first, int last, tern__slice slice, int *section)
{
    int count = 0;
    for (int k = first, at = 0; k <= last; k++) {
        if (optim->seal->range_of[k] != optim->seal->range_of[first]) continue;
        int more = sections_of(optim, k, slice, &at);
        if (more && !count) *section = at;
        count += more;
    }
    return count;
}

static void number_leaf(tern_optim *optim, int k, void *ctx)
{
    tern__norms *norms = &optim->norms;
    int unused;
    (void)ctx;
    norms->first[k] = norms->sections;
    norms->place[k] = norms->leaves++;
    norms->sections += sections_of(optim, k, optim->all[optim->seal->range_of[k]], &unused);
}

/* Writes leaf k's rows in the table of sections, and its row in the table of parameters behind it. */
static void fill_leaf(tern_optim *optim, int k, void *ctx)
{
    tern__section *table = ctx;
    const tern__norms *norms = &optim->norms;
    int r = optim->seal->range_of[k], section = norms->first[k];
    size_t start = optim->all[r].begin, end = tern__optim_end(optim, k);
    int64_t bytes = (int64_t)tern_dtype_bytes(optim->seal->ranges[r].dtype);
    for (size_t at = optim->seal->offset[k], next; at < end; at = next) {
        next = TERN__MIN(end, start + (section_at(optim, r, at) + 1) * TERN__SECTION);
        table[section++] = (tern__section){(int64_t)(at - start) / bytes, (int64_t)(next - at) / bytes, k};
    }
    table[norms->sections + norms->place[k]] = (tern__section){norms->first[k], section - norms->first[k], k};
}

static int make_tables(const char *func, tern_optim *optim, tern_error *err)
{
    tern__norms *norms = &optim->norms;
    size_t bytes = (size_t)(norms->sections + norms->leaves) * sizeof(tern__section);
    tern__section *table = tern__alloc(bytes, func, err);
    if (!table) return TERN_E_MEMORY;
    each_leaf(optim, fill_leaf, table);
    norms->table = tern__memory_new(optim->device, bytes, func, err);
    int status = norms->table ? tern__memory_copy(norms->table, table, bytes, err) : TERN_E_MEMORY;
    tern__free(table);
    return status;
}

static int open_norms(const char *func, tern_optim *optim, tern_error *err)
{
    tern__norms *norms = &optim->norms;
    size_t leaves = (size_t)optim->seal->leaf_count;
    norms->first = tern__alloc(leaves * sizeof(*norms->first), func, err);
    norms->place = tern__alloc(leaves * sizeof(*norms->place), func, err);
    if (!norms->first || !norms->place) return TERN_E_MEMORY;
    each_leaf(optim, number_leaf, NULL);
    size_t bytes = (size_t)norms->sections * SUMS * sizeof(*norms->own);
    norms->sums = norms->own = tern__memory_new(optim->device, bytes, func, err);
    return norms->own ? make_tables(func, optim, err) : TERN_E_MEMORY;
}

int tern__norms_open(const char *func, tern_optim *optim, tern_error *err)
{
    int status = open_norms(func, optim, err);
    if (status) tern__norms_free(optim);
    return status;
}

int tern__norms_begin(tern_optim *optim, tern_error *err)
{
    static const char func[] = "tern_optim_step";
    tern__norms *norms = &optim->norms;
    size_t rows = (size_t)(optim->seal->leaf_count + optim->group_count);
    if (norms->factors) return TERN_OK;
    int status = norms->own ? TERN_OK : tern__norms_open(func, optim, err);
    if (status) return status;
    norms->factors = tern__memory_new(optim->device, rows * FACTORS * sizeof(*norms->factors), func, err);
    return norms->factors ? TERN_OK : TERN_E_MEMORY;
}

void tern__norms_free(tern_optim *optim)
{
    tern__norms *norms = &optim->norms;
    tern__free(norms->first);
    tern__free(norms->place);
    tern__memory_free(norms->table);
    tern__memory_free(norms->own);
    tern__memory_free(norms->factors);
    *norms = (tern__norms){0};
}

/* ---- operands ---- */

static tern__view norm_rows_of(tern__section *table, int first, int count)
{
    tern__view view = tern__view_make(TERN_I64, TERN__PLAIN, 2, (int64_t[]){count, COLUMNS});
    view.data = table + first;
    return view;
}

tern__view tern__norm_table(const tern_optim *optim, int section, int count)
{
    return norm_rows_of(optim->norms.table, section, count);
}

tern__view tern__norm_sums(const tern_optim *optim, int section, int count)
{
    tern__view view = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){count, SUMS});
    view.data = optim->norms.sums + (size_t)section * SUMS;
    return view;
}

tern__view tern__norm_factors_of_leaves(const tern_optim *optim)
{
    tern__view view =
        tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){optim->seal->leaf_count, FACTORS});
    view.data = optim->norms.factors;
    return view;
}

tern__view tern__norm_factors_of_group(const tern_optim *optim, int g)
{
    return tern__numbers_view(optim->norms.factors + (size_t)(optim->seal->leaf_count + g) * FACTORS,
                              FACTORS);
}

/* ---- kernels ---- */

bool tern__norm_squares(tern_scope *scope, const tern__view *x, const tern__view *sections,
                        const tern__view *sums)
{
    tern__power_attr attr = {2};
    tern__call call = {.kernel = TERN__POWER_SUM, .in = {x, sections}, .out = {sums}, .attr = &attr};
    tern__go_to(scope, x->data);
    return tern__run(scope, &call);
}

static bool run_factors(tern_scope *scope, const tern__norm_attr *attr, const tern__view *sums,
                        const tern__view *sections, const tern__view *factors)
{
    tern__call call = {.kernel = TERN__NORM_FACTORS, .in = {sums, sections}, .out = {factors}, .attr = attr};
    tern__go_to(scope, factors->data);
    return tern__run(scope, &call);
}

bool tern__norm_decide(tern_scope *scope, const tern__norm_attr *attr, const tern__view *sums,
                       const tern__view *factors)
{
    return run_factors(scope, attr, sums, NULL, factors);
}

bool tern__norm_decide_leaves(tern_optim *optim, tern_scope *scope, const tern__norm_attr *attr, int first,
                              int last)
{
    const tern__norms *norms = &optim->norms;
    int section = 0, sections = tern__norm_sections(optim, first, last,
                                                    optim->all[optim->seal->range_of[first]], &section);
    tern__view sums = tern__norm_sums(optim, section, sections),
               factors = tern__norm_factors_of_leaves(optim);
    tern__view leaves = norm_rows_of(norms->table, norms->sections + norms->place[first],
                                     norms->place[last] - norms->place[first] + 1);
    return run_factors(scope, attr, &sums, &leaves, &factors);
}
