/* colours.c - changes brightness, contrast, saturation and hue, as torchvision does for tensors. */
#include "data/augment/augment.h"

#include "kernels/kernel.h"

/* Not fminf and fmaxf: their rules for NaN are not those of the vector instructions. */
static inline float least(float a, float b)
{
    return a < b ? a : b;
}

static inline float largest(float a, float b)
{
    return a > b ? a : b;
}

static inline float clamp(float x)
{
    return least(largest(x, 0), 1);
}

TERN__SIMD static void blend(float *x, int64_t n, float factor, float other)
{
    for (int64_t i = 0; i < n; i++) x[i] = clamp(factor * x[i] + other);
}

static inline float grey_of(const float *x, int64_t pixels, int64_t i)
{
    return 0.2989f * x[i] + 0.587f * x[pixels + i] + 0.114f * x[2 * pixels + i];
}

TERN__SIMD static void grey_row(const float *x, int64_t pixels, int64_t n, float *grey)
{
    for (int64_t i = 0; i < n; i++) grey[i] = grey_of(x, pixels, i);
}

/* Sums in f64, in the order of the pixels. */
static double grey_mean(const float *x, int64_t channels, int64_t pixels)
{
    enum { ROW = 256 };
    float grey[ROW];
    double sum = 0;
    for (int64_t i = 0; i < pixels; i += ROW) {
        int64_t n = TERN__MIN(ROW, pixels - i);
        if (channels == 3) grey_row(x + i, pixels, n, grey);
        for (int64_t k = 0; k < n; k++) sum += (double)(channels == 3 ? grey[k] : x[i + k]);
    }
    return sum / (double)pixels;
}

TERN__SIMD static void saturate(float *x, int64_t pixels, float factor)
{
    for (int64_t i = 0; i < pixels; i++) {
        float grey = (1 - factor) * grey_of(x, pixels, i);
        for (int c = 0; c < 3; c++) x[c * pixels + i] = clamp(factor * x[c * pixels + i] + grey);
    }
}

/* Returns the hue in sixths of a turn, in [0, 6). */
static inline float sixths_of(float r, float g, float b, float most, float range)
{
    float sixths = most == r ? (g - b) / range : most == g ? 2 + (b - r) / range : 4 + (r - g) / range;
    return sixths < 0 ? sixths + 6 : sixths;
}

/* The share of the range by which a channel is below the maximum, at this hue. `offset` is the channel's. */
static inline float missing(float sixths, float offset)
{
    float k = sixths + offset;
    k = k >= 6 ? k - 6 : k;
    return largest(0, least(least(k, 4 - k), 1));
}

TERN__SIMD static void turn_hue(float *x, int64_t pixels, float angle)
{
    float *red = x, *green = x + pixels, *blue = x + 2 * pixels;
    for (int64_t i = 0; i < pixels; i++) {
        float r = red[i], g = green[i], b = blue[i];
        float most = largest(r, largest(g, b)), range = most - least(r, least(g, b));
        float sixths = sixths_of(r, g, b, most, range > 0 ? range : 1) + 6 * angle;
        sixths = sixths < 0 ? sixths + 6 : sixths >= 6 ? sixths - 6 : sixths;
        red[i] = most - range * missing(sixths, 5);
        green[i] = most - range * missing(sixths, 3);
        blue[i] = most - range * missing(sixths, 1);
    }
}

static void change_one(int which, double amount, int64_t channels, int64_t pixels, float *x)
{
    float factor = (float)amount;
    if (which == TERN__BRIGHTNESS && amount != 1) blend(x, channels * pixels, factor, 0);
    if (which == TERN__CONTRAST && amount != 1)
        blend(x, channels * pixels, factor, (float)((1 - amount) * grey_mean(x, channels, pixels)));
    if (which == TERN__SATURATION && amount != 1 && channels == 3) saturate(x, pixels, factor);
    if (which == TERN__HUE && amount != 0 && channels == 3) turn_hue(x, pixels, factor);
}

void tern__colours_change(const tern__change *change, int64_t channels, int64_t pixels, float *x)
{
    for (int i = 0; i < TERN__COLOURS; i++)
        change_one(change->order[i], change->colour[change->order[i]], channels, pixels, x);
}
