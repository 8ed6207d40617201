/* half.h - converts the bits of the two 16-bit floating-point types to and from f32: rounds to nearest, ties
 * to even, and keeps NaN a NaN. Inline, so that loops over them are vectorised. */
#ifndef TERN_SRC_BASE_HALF_H
#define TERN_SRC_BASE_HALF_H

#include "base/host_device.h"

#include <stdint.h>
#include <string.h>

TERN__ANYWHERE float tern__float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

TERN__ANYWHERE uint32_t tern__bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* bf16 is the upper half of an f32. */
TERN__ANYWHERE float tern__bf16_to_f32(uint16_t half)
{
    return tern__float_of((uint32_t)half << 16);
}

TERN__ANYWHERE uint16_t tern__bf16_from_f32(float value)
{
    uint32_t bits = tern__bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value == value ? rounded : (bits >> 16 | 0x40));
}

/* IEEE 754 binary16, with integers, since compilers do not vectorise _Float16. The bits without the sign are
 * shifted to f32's position; the exponent then needs 112 added. For a subnormal, an exponent of 1 is added,
 * and its value subtracted in f32. */
TERN__ANYWHERE float tern__f16_to_f32(uint16_t half)
{
    const uint32_t bias = 112u << 23, least = 113u << 23, infinity = 0x7f800000;
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t normal = rest + bias;
    uint32_t small = tern__bits_of(tern__float_of(rest + least) - tern__float_of(least));
    uint32_t bits = rest < 1u << 23 ? small : rest >= 31u << 23 ? rest | infinity : normal;
    return tern__float_of(sign | bits);
}

/* Adding 0.5 to a small number rounds it to the bits of a subnormal half. A normal number is rounded by
 * adding almost half a unit in the last place, plus the unit's lowest bit. A carry out of the largest number
 * gives infinity. */
TERN__ANYWHERE uint16_t tern__f16_from_f32(float value)
{
    const uint32_t least = 113u << 23, most = 143u << 23, infinity = 0x7f800000;
    uint32_t bits = tern__bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t small = tern__bits_of(tern__float_of(rest) + 0.5f) - tern__bits_of(0.5f);
    uint32_t normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    uint32_t large = rest > infinity ? 0x7e00 : 0x7c00;
    return (uint16_t)(sign | (rest < least ? small : rest < most ? normal : large));
}

#endif
