/* half.h - the two 16-bit floating-point types as their bits, to and from f32: round to nearest, ties to
 * even; a NaN stays one. Inline, so that loops over them are vectorised. */
#ifndef TERN_SRC_BASE_HALF_H
#define TERN_SRC_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* bf16 is the upper half of an f32. */
static inline float tern__bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint16_t tern__bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value == value ? rounded : (bits >> 16 | 0x40));
}

/* IEEE 754 binary16, the compiler's _Float16. */
static inline float tern__f16_to_f32(uint16_t half)
{
    _Float16 value;
    memcpy(&value, &half, sizeof(value));
    return (float)value;
}

static inline uint16_t tern__f16_from_f32(float value)
{
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof(bits));
    return bits;
}

#endif
