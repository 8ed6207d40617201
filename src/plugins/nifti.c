/* nifti.c - the NIfTI plug-in, with libnifti: converts between the 348 bytes of a header and tern's
 * description.
 *
 * libnifti's own reader prints to stderr, allocates memory before it checks the file's size, and does not
 * notice a damaged end. So it gets headers only, and only after they have been checked. */
#include <tern/backend/nifti.h>

#include <tern/base.h>

#include <math.h>
#include <nifti1_io.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(nifti_1_header) == TERN_NIFTI_HEADER, "NIfTI-1's header");

/* ---- reading ---- */

static tern_nifti_status bad(char *why, size_t size, const char *text)
{
    snprintf(why, size, "%s", text);
    return TERN_NIFTI_BAD;
}

/* Makes the voxels' sizes positive, as nibabel does: programs that mirror an axis write negative ones, but
 * libnifti would take them for 1 in a qform. Unknown sizes become 1. */
static void mend_sizes(nifti_1_header *header)
{
    for (int d = 1; d <= 3; d++) {
        float size = fabsf(header->pixdim[d]);
        header->pixdim[d] = isfinite(size) && size > 0 ? size : 1;
    }
}

/* Converts the header to native byte order, in which dim[0] is in [1, 7]. Returns true if it had to swap. */
static bool to_native(nifti_1_header *header)
{
    bool swaps = header->dim[0] < 1 || header->dim[0] > 7;
    if (swaps) swap_nifti_header(header, 1);
    mend_sizes(header);
    return swaps;
}

/* Returns the length in mm of the unit in which the header gives sizes and places. Without one it is 1: files
 * that name no unit are in mm. */
static double unit_of(const nifti_1_header *header)
{
    int unit = XYZT_TO_SPACE(header->xyzt_units);
    return unit == NIFTI_UNITS_METER ? 1e3 : unit == NIFTI_UNITS_MICRON ? 1e-3 : 1;
}

static bool is_known(int datatype)
{
    switch (datatype) {
    case DT_UINT8:
    case DT_INT8:
    case DT_INT16:
    case DT_UINT16:
    case DT_INT32:
    case DT_UINT32:
    case DT_INT64:
    case DT_UINT64:
    case DT_FLOAT32:
    case DT_FLOAT64: return true;
    default: return false;
    }
}

/* Refuses headers about which libnifti would print to stderr, and those that the plug-in does not support. */
static tern_nifti_status nifti_check(const nifti_1_header *h, char *why, size_t size)
{
    if (h->sizeof_hdr != TERN_NIFTI_HEADER || memcmp(h->magic, "n+1", 4))
        return bad(why, size, "not a NIfTI-1 header of a single file (348 bytes, magic \"n+1\")");
    if (h->dim[0] < 1 || h->dim[0] > 7) return bad(why, size, "dim[0] is not in [1, 7]");
    for (int d = 1; d <= h->dim[0]; d++)
        if (h->dim[d] < 1) return bad(why, size, "a dimension is below 1");
    if (!(h->vox_offset >= 348 && h->vox_offset <= 1 << 30))
        return bad(why, size, "vox_offset is not in [348, 2^30]");
    for (int d = 5; d <= h->dim[0]; d++)
        if (h->dim[d] != 1) {
            snprintf(why, size, "it has %d dimensions, expected at most 4", h->dim[0]);
            return TERN_NIFTI_OTHER;
        }
    if (is_known(h->datatype)) return TERN_NIFTI_OK;
    snprintf(why, size, "the voxels have datatype %d (%s), expected real numbers", h->datatype,
             nifti_datatype_string(h->datatype));
    return TERN_NIFTI_OTHER;
}

static void nifti_place(const nifti_image *image, double unit, tern_nifti_info *info)
{
    const mat44 *to = image->sform_code > 0 ? &image->sto_xyz : &image->qto_xyz;
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 4; c++) info->affine[r][c] = to->m[r][c] * unit;
    info->spacing[0] = image->dz * unit;
    info->spacing[1] = image->dy * unit;
    info->spacing[2] = image->dx * unit;
}

static void nifti_scale(const nifti_image *image, tern_nifti_info *info)
{
    bool scaled = image->scl_slope != 0 && isfinite(image->scl_slope) && isfinite(image->scl_inter);
    info->slope = scaled ? image->scl_slope : 1;
    info->inter = scaled ? image->scl_inter : 0;
}

static tern_nifti_status parse(const void *bytes, tern_nifti_info *info, char *why, size_t size)
{
    nifti_1_header native;
    memcpy(&native, bytes, sizeof(native));
    bool swapped = to_native(&native);
    tern_nifti_status status = nifti_check(&native, why, size);
    if (status) return status;
    nifti_image *image = nifti_convert_nhdr2nim(native, NULL);
    if (!image) return bad(why, size, "libnifti cannot read the header");
    *info = (tern_nifti_info){.shape = {1, 1, 1, 1},
                              .offset = (int64_t)native.vox_offset,
                              .datatype = image->datatype,
                              .bytes = image->nbyper,
                              .swapped = swapped};
    for (int d = 1; d <= 4 && d <= native.dim[0]; d++) info->shape[4 - d] = native.dim[d];
    nifti_place(image, unit_of(&native), info);
    nifti_scale(image, info);
    nifti_image_free(image);
    return TERN_NIFTI_OK;
}

/* ---- voxels ---- */

#define CONVERT(type)                                                                                        \
    for (size_t i = 0; i < count; i++) values[i] = (float)(slope * (double)((const type *)voxels)[i] + inter)

static void values_of(const tern_nifti_info *info, void *voxels, size_t count, float *values)
{
    const double slope = info->slope, inter = info->inter;
    if (info->swapped && info->bytes > 1) nifti_swap_Nbytes(count, info->bytes, voxels);
    switch (info->datatype) {
    case DT_UINT8: CONVERT(uint8_t); break;
    case DT_INT8: CONVERT(int8_t); break;
    case DT_INT16: CONVERT(int16_t); break;
    case DT_UINT16: CONVERT(uint16_t); break;
    case DT_INT32: CONVERT(int32_t); break;
    case DT_UINT32: CONVERT(uint32_t); break;
    case DT_INT64: CONVERT(int64_t); break;
    case DT_UINT64: CONVERT(uint64_t); break;
    case DT_FLOAT32: CONVERT(float); break;
    default: CONVERT(double);
    }
}

/* ---- writing ---- */

static void write_place(nifti_1_header *header, const tern_nifti_info *info)
{
    mat44 to = {0};
    double unit = unit_of(header); /* the source's */
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 4; c++) to.m[r][c] = (float)(info->affine[r][c] / unit);
    for (int c = 0; c < 4; c++) {
        header->srow_x[c] = to.m[0][c];
        header->srow_y[c] = to.m[1][c];
        header->srow_z[c] = to.m[2][c];
    }
    to.m[3][3] = 1;
    float qfac;
    nifti_mat44_to_quatern(to, &header->quatern_b, &header->quatern_c, &header->quatern_d, &header->qoffset_x,
                           &header->qoffset_y, &header->qoffset_z, NULL, NULL, NULL, &qfac);
    header->pixdim[0] = qfac;
    for (int d = 0; d < 3; d++) header->pixdim[d + 1] = (float)(info->spacing[2 - d] / unit);
    if (!header->sform_code) header->sform_code = NIFTI_XFORM_SCANNER_ANAT;
}

/* A volume that has not moved keeps the source's sform and qform, which need not agree. */
static bool is_at_source(const void *source, const tern_nifti_info *info)
{
    tern_nifti_info old;
    char why[1];
    return source && !parse(source, &old, why, sizeof(why)) &&
           !memcmp(old.affine, info->affine, sizeof(old.affine)) &&
           !memcmp(old.spacing, info->spacing, sizeof(old.spacing));
}

static nifti_1_header start_from(const void *source)
{
    nifti_1_header header = {.sizeof_hdr = TERN_NIFTI_HEADER, .xyzt_units = NIFTI_UNITS_MM};
    if (source) {
        memcpy(&header, source, sizeof(header));
        to_native(&header);
    }
    return header;
}

static void nifti_file_bytes(const void *source, const tern_nifti_info *info, void *bytes)
{
    nifti_1_header header = start_from(source);
    int nbyper, swapsize;
    nifti_datatype_sizes(info->datatype, &nbyper, &swapsize);
    for (int d = 1; d < 8; d++) header.dim[d] = (short)(d <= 4 ? info->shape[4 - d] : 1);
    header.dim[0] = info->shape[0] > 1 ? 4 : 3;
    header.datatype = (short)info->datatype;
    header.bitpix = (short)(8 * nbyper);
    header.vox_offset = 352;
    header.scl_slope = 1;
    header.scl_inter = header.cal_min = header.cal_max = 0;
    memcpy(header.magic, "n+1", 4);
    if (!is_at_source(source, info)) write_place(&header, info);
    memcpy(bytes, &header, sizeof(header));
}

TERN_API extern const tern_nifti_backend tern_nifti_plugin;
const tern_nifti_backend tern_nifti_plugin = {.abi = TERN_NIFTI_ABI,
                                              .size = sizeof(tern_nifti_backend),
                                              .name = "libnifti",
                                              .parse = parse,
                                              .values = values_of,
                                              .make = nifti_file_bytes};
