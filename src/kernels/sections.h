/* sections.h - parts of a contiguous buffer that one call treats separately: where updates depend on
 * norms, one call updates many parameters. */
#ifndef TERN_SRC_KERNELS_SECTIONS_H
#define TERN_SRC_KERNELS_SECTIONS_H

#include "base/host_device.h"
#include "tensor/view.h"

/* A row of an operand i64 (sections, 3). Sections are in ascending order, with possible gaps. Their
 * offsets count from the start of a larger buffer; the call's operands begin at its first section. A
 * parameter's sections begin at a cache line. */
typedef struct tern__section {
    int64_t begin, count;
    int64_t row; /* of the factors for this section */
} tern__section;

static inline int64_t tern__section_count(const tern__view *sections)
{
    return sections ? sections->shape[0] : 1;
}

static inline const tern__section *tern__section_table(const tern__view *sections)
{
    return sections ? (const tern__section *)sections->data : NULL;
}

/* Returns section i, relative to the start of the call's operands. Without a table the only section is
 * everything. */
TERN__ANYWHERE tern__section tern__section_get(const tern__section *table, int64_t i, int64_t all)
{
    tern__section section = {0, all, 0};
    if (!table) return section;
    section = table[i];
    section.begin -= table[0].begin;
    return section;
}

#endif
