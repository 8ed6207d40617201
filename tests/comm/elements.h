/* elements.h - buffers of random elements of every dtype, and their expected reduction. It is computed one
 * element at a time without the library's code: halves are decoded and rounded by arithmetic, integers wrap
 * in 64 bits.
 *
 * Rank r's elements repeat after `elements_period`, and so does their reduction. A process computes each
 * period once and copies it from then on. */
#ifndef TERN_TESTS_COMM_ELEMENTS_H
#define TERN_TESTS_COMM_ELEMENTS_H

#include "ranks.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum { elements_period = 509 };

static inline uint64_t elements_random(tern_dtype dtype, int rank, size_t i)
{
    uint64_t x = (uint64_t)dtype * 1000003 + (uint64_t)rank * 7919 + (i % elements_period) * 104729 + 1;
    for (int round = 0; round < 3; round++) {
        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    }
    return x ^ x >> 31;
}

/* ---- halves: `fraction` bits after the point, normal numbers from exponent `lowest` on ---- */

typedef struct half_format {
    int fraction, lowest, highest;
} half_format;

static inline half_format half_format_of(tern_dtype dtype)
{
    return dtype == TERN_BF16 ? (half_format){7, -126, 127} : (half_format){10, -14, 15};
}

static inline double half_decode(uint16_t bits, half_format f)
{
    int ones = 1 << f.fraction, field = (bits & 0x7fff) >> f.fraction, rest = bits & (ones - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (field == f.highest - f.lowest + 2) return rest ? NAN : sign * INFINITY;
    return sign * (field ? ldexp(ones + rest, field - 1 + f.lowest - f.fraction)
                         : ldexp(rest, f.lowest - f.fraction));
}

/* Rounds to nearest, ties to even. */
static inline uint16_t half_encode(double value, half_format f)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0,
             infinite = (uint16_t)((f.highest - f.lowest + 2) << f.fraction);
    if (isnan(value)) return (uint16_t)(infinite | 1);
    if (isinf(value)) return sign | infinite;
    int exponent = value == 0 ? f.lowest : (int)fmax(ilogb(value), f.lowest);
    double steps = nearbyint(ldexp(fabs(value), f.fraction - exponent)); /* in units of the last place */
    uint64_t bits = ((uint64_t)(exponent - f.lowest) << f.fraction) + (uint64_t)steps;
    return (uint16_t)(sign | (bits < infinite ? bits : infinite));
}

/* ---- elements in a buffer ---- */

static inline double element_float(tern_dtype dtype, const void *at)
{
    float single;
    double value;
    uint16_t half;
    switch (dtype) {
    case TERN_F32: memcpy(&single, at, 4); return single;
    case TERN_F64: memcpy(&value, at, 8); return value;
    default: memcpy(&half, at, 2); return half_decode(half, half_format_of(dtype));
    }
}

static inline void element_float_put(tern_dtype dtype, void *at, double value)
{
    float single = (float)value;
    uint16_t half;
    switch (dtype) {
    case TERN_F32: memcpy(at, &single, 4); break;
    case TERN_F64: memcpy(at, &value, 8); break;
    default: half = half_encode(value, half_format_of(dtype)); memcpy(at, &half, 2);
    }
}

/* Returns an integer as 64 bits, of which an element keeps the low ones; signed ones are sign-extended, so
 * that comparisons work. */
static inline int64_t element_integer(tern_dtype dtype, const void *at)
{
    int64_t value;
    int32_t word;
    int16_t half;
    if (dtype == TERN_I64) return memcpy(&value, at, 8), value;
    if (dtype == TERN_I32) return memcpy(&word, at, 4), word;
    if (dtype == TERN_I16) return memcpy(&half, at, 2), half;
    if (dtype == TERN_I8) return *(const int8_t *)at;
    return *(const uint8_t *)at;
}

/* ---- a rank's elements ---- */

/* Writes an element. Floats vary in magnitude, so that sums are rounded. Some ranks have a NaN now and then,
 * and f16 has subnormals. */
static inline void element_put(tern_dtype dtype, void *at, int rank, size_t i)
{
    uint64_t random = elements_random(dtype, rank, i);
    double sign = random & 1 ? -1 : 1, mantissa = 1 + (double)(random >> 12) / 0x1p52;
    double value = ldexp(sign * mantissa, (int)(random >> 1 & 31) - 16);
    if (elements_random(dtype, 99, i) % 40 == (uint64_t)rank) value = NAN;
    if (dtype == TERN_BOOL)
        *(uint8_t *)at = elements_random(TERN_BOOL, 98, i) % 3 == 0 ? random & 1 : random % 3 == 0;
    else if (tern__dtype_is_float(dtype))
        element_float_put(dtype, at, value);
    else
        memcpy(at, &random, tern_dtype_bytes(dtype));
}

/* One period of elements. */
typedef struct elements_table {
    bool is_filled;
    int world, hosts[RANKS_MAX]; /* of a reduction */
    char at[elements_period * 8];
} elements_table;

/* Returns one period of a rank's elements, which does not change. */
static inline const elements_table *elements_of(tern_dtype dtype, int rank)
{
    static elements_table all[TERN_DTYPE_COUNT][RANKS_MAX];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* ranks may be threads */
    elements_table *table = &all[dtype][rank];
    size_t size = tern_dtype_bytes(dtype);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < elements_period && !table->is_filled; i++)
        element_put(dtype, table->at + i * size, rank, i);
    table->is_filled = true;
    pthread_mutex_unlock(&lock);
    return table;
}

/* Writes elements [first, first + count) of a table. */
static inline void elements_copy(tern_dtype dtype, void *buf, const elements_table *table, size_t first,
                                 size_t count)
{
    size_t size = tern_dtype_bytes(dtype), at = first % elements_period;
    for (size_t done = 0, part; done < count; done += part, at = 0) {
        part = TERN__MIN(elements_period - at, count - done);
        memcpy((char *)buf + done * size, table->at + at * size, part * size);
    }
}

/* Writes elements [first, first + count) of rank `rank`. */
static inline void elements_put(tern_dtype dtype, void *buf, int rank, size_t first, size_t count)
{
    elements_copy(dtype, buf, elements_of(dtype, rank), first, count);
}

/* ---- the expected reduction, pairwise in rank order ---- */

static inline double reduce_two_floats(tern_reduce_op op, double a, double b, bool is_double)
{
    if (op == TERN_MIN || op == TERN_MAX)
        return isnan(a) || isnan(b) ? NAN : op == TERN_MIN ? fmin(a, b) : fmax(a, b);
    double result = op == TERN_PRODUCT ? a * b : a + b;
    return is_double
               ? result
               : (float)result; /* a float operation in double, then rounded once: the same as in float */
}

static inline uint64_t reduce_two_integers(tern_reduce_op op, int64_t a, int64_t b)
{
    switch (op) {
    case TERN_MIN: return (uint64_t)(a < b ? a : b);
    case TERN_MAX: return (uint64_t)(a > b ? a : b);
    case TERN_PRODUCT: return (uint64_t)a * (uint64_t)b;
    case TERN_BAND: return (uint64_t)(a & b);
    case TERN_BOR: return (uint64_t)(a | b);
    case TERN_BXOR: return (uint64_t)(a ^ b);
    default: return (uint64_t)a + (uint64_t)b;
    }
}

static inline uint64_t reduce_two_bools(tern_reduce_op op, bool a, bool b)
{
    switch (op) {
    case TERN_SUM:
    case TERN_MAX:
    case TERN_BOR: return a || b;
    case TERN_BXOR: return a != b;
    default: return a && b;
    }
}

/* True if the dtype has the operation: means are for floats, bitwise operations for the others. */
static inline bool element_has_op(tern_dtype dtype, tern_reduce_op op)
{
    bool is_float = tern__dtype_is_float(dtype);
    return op == TERN_AVG ? is_float : op >= TERN_BAND ? !is_float && op <= TERN_BXOR : true;
}

/* [rank]: the first rank on the same host. Float sums are computed per host first. */
static _Thread_local int elements_host[64];

static inline void elements_note_hosts(const tern_group *group)
{
    for (int rank = 0; rank < tern_group_size(group); rank++) {
        const char *host = ranks_host_of(tern_group_world_rank(group, rank));
        int first = 0;
        while (first < rank && ranks_host_of(tern_group_world_rank(group, first)) != host) first++;
        elements_host[rank] = first;
    }
}

/* values[0..count) combined pairwise: those below the largest power of two that is below count, the rest, and
 * then both. */
static inline double pairwise_reduced(tern_dtype dtype, tern_reduce_op op, const double *values, int count)
{
    int cut = 1;
    if (count == 1) return values[0];
    while (cut * 2 < count) cut *= 2;
    double left = pairwise_reduced(dtype, op, values, cut);
    return reduce_two_floats(op, left, pairwise_reduced(dtype, op, values + cut, count - cut),
                             dtype == TERN_F64);
}

static inline double floats_reduced(tern_dtype dtype, tern_reduce_op op, int host, int world, size_t i)
{
    double values[64];
    int count = 0;
    for (int rank = host; rank < world; rank++)
        if (elements_host[rank] == host)
            values[count++] =
                element_float(dtype, elements_of(dtype, rank)->at + i * tern_dtype_bytes(dtype));
    return pairwise_reduced(dtype, op, values, count);
}

static inline void float_reduced(tern_dtype dtype, tern_reduce_op op, void *at, int world, size_t i)
{
    double values[64];
    int hosts = 0;
    for (int host = 0; host < world; host++)
        if (elements_host[host] == host) values[hosts++] = floats_reduced(dtype, op, host, world, i);
    double value = pairwise_reduced(dtype, op, values, hosts);
    if (op == TERN_AVG) value = dtype == TERN_F64 ? value / world : (float)value / (float)world;
    element_float_put(dtype, at, value);
}

/* Element i of the reduction; i is below the period. */
static inline void element_reduced(tern_dtype dtype, tern_reduce_op op, void *at, int world, size_t i)
{
    size_t size = tern_dtype_bytes(dtype);
    if (tern__dtype_is_float(dtype)) {
        float_reduced(dtype, op, at, world, i);
        return;
    }
    memcpy(at, elements_of(dtype, 0)->at + i * size, size);
    uint64_t integer = (uint64_t)element_integer(dtype, at);
    for (int rank = 1; rank < world; rank++) {
        const char *own = elements_of(dtype, rank)->at + i * size;
        if (dtype == TERN_BOOL)
            integer = reduce_two_bools(op, integer, own[0]);
        else {
            integer = reduce_two_integers(op, (int64_t)integer, element_integer(dtype, own));
            memcpy(at, &integer, size);
            integer = (uint64_t)element_integer(dtype, at);
        }
    }
    memcpy(at, &integer, size);
}

static inline void elements_reduced(tern_dtype dtype, tern_reduce_op op, void *buf, int world, size_t first,
                                    size_t count)
{
    static elements_table all[TERN_DTYPE_COUNT][TERN_BXOR + 1];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* groups of several worlds share the tables */
    elements_table *table = &all[dtype][op];
    size_t size = tern_dtype_bytes(dtype), hosts_bytes = sizeof(*elements_host) * (size_t)world;
    pthread_mutex_lock(&lock);
    if (!table->is_filled || table->world != world || memcmp(table->hosts, elements_host, hosts_bytes) != 0) {
        for (size_t i = 0; i < elements_period; i++)
            element_reduced(dtype, op, table->at + i * size, world, i);
        table->is_filled = true;
        table->world = world;
        memcpy(table->hosts, elements_host, hosts_bytes);
    }
    elements_copy(dtype, buf, table, first, count);
    pthread_mutex_unlock(&lock);
}

/* True if the bits are equal; NaNs and zeros may differ in bits and sign. */
static inline bool elements_match(tern_dtype dtype, const void *buf, const void *expected, size_t count)
{
    size_t size = tern_dtype_bytes(dtype);
    if (!memcmp(buf, expected, count * size)) return true;
    if (!tern__dtype_is_float(dtype)) return false;
    for (size_t i = 0; i < count; i++) {
        double a = element_float(dtype, (const char *)buf + i * size);
        double b = element_float(dtype, (const char *)expected + i * size);
        if (a != b && !(isnan(a) && isnan(b))) return false;
    }
    return true;
}

#endif
