/* sections.h - parts of one long run of memory that a call keeps apart: where updates depend on norms, one
 * call is about many parameters. */
#ifndef TERN_SRC_KERNELS_SECTIONS_H
#define TERN_SRC_KERNELS_SECTIONS_H

#include "base/host_device.h"
#include "tensor/view.h"

/* A row of an operand i64 (sections, 3). Sections follow each other, and there may be gaps between them. They
 * are counted as in a longer run, of which a call has what lies from its first section on. Those of
 * parameters begin with a cache line. */
typedef struct tern__section {
    int64_t begin, count;
    int64_t row; /* of the factors that it goes by */
} tern__section;

static inline int64_t tern__section_count(const tern__view *sections)
{
    return sections ? sections->shape[0] : 1;
}

static inline const tern__section *tern__section_table(const tern__view *sections)
{
    return sections ? (const tern__section *)sections->data : NULL;
}

/* Section i, counted from where the call's operands begin; without a table the one that is all. */
TERN__ANYWHERE tern__section tern__section_get(const tern__section *table, int64_t i, int64_t all)
{
    tern__section section = {0, all, 0};
    if (!table) return section;
    section = table[i];
    section.begin -= table[0].begin;
    return section;
}

#endif
