/* grains.c - generates a random polycrystal from a seed.
 *
 * Each cube of CELL voxels holds one point at a random position; the grains are the Voronoi cells of these
 * points. The nearest point of a voxel is searched in the voxel's own cube and the 26 around it. Boundaries
 * of Voronoi cells are flat. To make them wavy, a smooth random field moves each voxel before distances are
 * measured. A voxel belongs to a boundary if its distance to the plane between its two nearest points, (b -
 * a) / (2 |p - q|) for squared distances a <= b, is at most 3/2 voxels.
 *
 * In the image each grain has a grey level and boundaries are darker. Some boundaries fade until they are
 * invisible, as with etching, so that a model must continue the visible rest. Dark pits are added that are
 * not boundaries; then everything is blurred and noise is added. */
#include "grains.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CELL = 36,      /* approximate voxels between the grains' points  */
    WAVE = 16,      /* voxels between the nodes of smooth fields      */
    FINE = 4,       /* length units per voxel                         */
    SWAY = 5,       /* largest shift of a voxel by a field, in voxels */
    PIT = 30,       /* voxels between pits                            */
    PIT_MOST = 4,   /* the largest radius of a pit                    */
    NOISE = 22,     /* standard deviation in grey levels              */
    DEPTH_MOST = 90 /* grey levels that the darkest boundary subtracts */
};

enum { FIELD_Z, FIELD_Y, FIELD_X, FIELD_FADE, FIELDS };
enum { DRAW_POINT = FIELDS, DRAW_GREY, DRAW_PIT, DRAW_NOISE };

typedef struct point {
    int z, y, x; /* in FINE units, as squared distances are */
    int grey;
} point;

/* A coarse lattice of nodes over the volume. */
typedef struct lattice {
    int step, count[3];
} lattice;

typedef struct crystal {
    int size[3]; /* depth, height, width */
    uint64_t seed;
    lattice cells, waves;
    point *points;          /* [cells]                                     */
    int16_t *nodes[FIELDS]; /* [waves], in 1/256                           */
    int *line[FIELDS];      /* the fields of a row at the nodes along x    */
    uint8_t *grey, *blurred;
} crystal;

/* ---- random numbers, each a function of seed, kind and place ---- */

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t draw(const crystal *c, int kind, int64_t place)
{
    return mix(mix(c->seed * 16 + (uint64_t)kind) + (uint64_t)place);
}

/* Returns an integer in [0, n) from 16 bits of a number. */
static int part(uint64_t number, int which, int n)
{
    return (int)((number >> (16 * which) & 0xffff) * (uint64_t)n >> 16);
}

/* ---- points and fields ---- */

/* Makes a lattice with one node before the volume and enough nodes after it. */
static lattice lattice_of(const int size[3], int step)
{
    lattice l = {.step = step};
    for (int d = 0; d < 3; d++) l.count[d] = size[d] / step + 3;
    return l;
}

static int64_t node_count(const lattice *l)
{
    return (int64_t)l->count[0] * l->count[1] * l->count[2];
}

static void place_points(crystal *c)
{
    const int *n = c->cells.count;
    for (int64_t i = 0; i < node_count(&c->cells); i++) {
        uint64_t where = draw(c, DRAW_POINT, i), grey = draw(c, DRAW_GREY, i);
        c->points[i] = (point){FINE * ((int)(i / n[2] / n[1]) - 1) * CELL + part(where, 0, FINE * CELL),
                               FINE * ((int)(i / n[2] % n[1]) - 1) * CELL + part(where, 1, FINE * CELL),
                               FINE * ((int)(i % n[2]) - 1) * CELL + part(where, 2, FINE * CELL),
                               120 + part(grey, 0, 80)};
    }
}

static void place_nodes(crystal *c)
{
    for (int field = 0; field < FIELDS; field++)
        for (int64_t i = 0; i < node_count(&c->waves); i++)
            c->nodes[field][i] = (int16_t)(part(draw(c, field, i), 0, 513) - 256);
}

/* Interpolates the fields of row (z, y) linearly along z and y, at the nodes along x, in 1/256. */
static void fill_lines(crystal *c, int z, int y)
{
    const int *n = c->waves.count, in_z = z % WAVE, in_y = y % WAVE;
    int64_t first = ((int64_t)(z / WAVE + 1) * n[1] + y / WAVE + 1) * n[2];
    for (int field = 0; field < FIELDS; field++)
        for (int i = 0; i < n[2]; i++) {
            const int16_t *at = c->nodes[field] + first + i;
            int near = at[0] * (WAVE - in_y) + at[n[2]] * in_y;
            at += n[1] * n[2];
            int far = at[0] * (WAVE - in_y) + at[n[2]] * in_y;
            c->line[field][i] = (near * (WAVE - in_z) + far * in_z) / (WAVE * WAVE);
        }
}

static int field_at(const crystal *c, int field, int x)
{
    const int *at = c->line[field] + x / WAVE + 1;
    return (at[0] * (WAVE - x % WAVE) + at[1] * (x % WAVE)) / WAVE;
}

/* ---- grains ---- */

typedef struct nearest {
    const point *first, *second;
    int a, b; /* squared distances */
} nearest;

static nearest find_nearest(const crystal *c, const int cell[3], int z, int y, int x)
{
    nearest n = {.a = 1 << 30, .b = 1 << 30};
    const int *count = c->cells.count;
    for (int i = 0; i < 27; i++) {
        int64_t at =
            ((int64_t)(cell[0] + i / 9) * count[1] + cell[1] + i / 3 % 3) * count[2] + cell[2] + i % 3;
        const point *p = c->points + at;
        int dz = z - p->z, dy = y - p->y, dx = x - p->x, d = dz * dz + dy * dy + dx * dx;
        if (d < n.a) {
            n.second = n.first, n.b = n.a;
            n.first = p, n.a = d;
        } else if (d < n.b) {
            n.second = p, n.b = d;
        }
    }
    return n;
}

/* Returns the squared double distance to the boundary. HALF is that value at half the boundary's thickness,
 * 3/2 voxels. */
enum { HALF = 3 * FINE * 3 * FINE };
static int64_t boundary_distance(const nearest *n)
{
    int64_t dz = n->first->z - n->second->z, dy = n->first->y - n->second->y, dx = n->first->x - n->second->x;
    int64_t apart = dz * dz + dy * dy + dx * dx, difference = n->b - n->a;
    return apart ? difference * difference / apart : 0;
}

/* Returns the grey level, darker at a boundary unless the boundary has faded. */
static int grey_of(const crystal *c, const nearest *n, int64_t distance, int x)
{
    int fade = field_at(c, FIELD_FADE, x) + 110; /* 256: fully visible; below 0: invisible */
    int depth = fade < 0 ? 0 : fade > 256 ? DEPTH_MOST : fade * DEPTH_MOST / 256;
    return distance <= HALF ? n->first->grey - depth : n->first->grey;
}

static void fill_row(crystal *c, int z, int y, uint8_t *grey, float *label)
{
    fill_lines(c, z, y);
    for (int x = 0; x < c->size[2]; x++) {
        int cell[3] = {z / CELL, y / CELL, x / CELL};
        nearest n = find_nearest(c, cell, FINE * z + field_at(c, FIELD_Z, x) * SWAY * FINE / 256,
                                 FINE * y + field_at(c, FIELD_Y, x) * SWAY * FINE / 256,
                                 FINE * x + field_at(c, FIELD_X, x) * SWAY * FINE / 256);
        int64_t distance = boundary_distance(&n);
        grey[x] = (uint8_t)grey_of(c, &n, distance, x);
        if (label) label[x] = distance <= HALF;
    }
}

static void fill_rows(crystal *c, float *label)
{
    int64_t width = c->size[2];
    for (int z = 0; z < c->size[0]; z++)
        for (int y = 0; y < c->size[1]; y++) {
            int64_t row = ((int64_t)z * c->size[1] + y) * width;
            fill_row(c, z, y, c->grey + row, label ? label + row : NULL);
        }
}

/* ---- pits ---- */

static void dig(crystal *c, const int at[3], int radius)
{
    int from[3], to[3];
    for (int d = 0; d < 3; d++) {
        from[d] = at[d] - radius < 0 ? 0 : at[d] - radius;
        to[d] = at[d] + radius >= c->size[d] ? c->size[d] - 1 : at[d] + radius;
    }
    for (int z = from[0]; z <= to[0]; z++)
        for (int y = from[1]; y <= to[1]; y++)
            for (int x = from[2]; x <= to[2]; x++) {
                int dz = z - at[0], dy = y - at[1], dx = x - at[2];
                if (dz * dz + dy * dy + dx * dx <= radius * radius)
                    c->grey[((int64_t)z * c->size[1] + y) * c->size[2] + x] = 50;
            }
}

static void dig_all(crystal *c)
{
    lattice l = lattice_of(c->size, PIT);
    for (int64_t i = 0; i < node_count(&l); i++) {
        uint64_t number = draw(c, DRAW_PIT, i);
        int at[3] = {((int)(i / l.count[2] / l.count[1]) - 1) * PIT + part(number, 0, PIT),
                     ((int)(i / l.count[2] % l.count[1]) - 1) * PIT + part(number, 1, PIT),
                     ((int)(i % l.count[2]) - 1) * PIT + part(number, 2, PIT)};
        dig(c, at, part(number, 3, PIT_MOST + 1));
    }
}

/* ---- blur and noise ---- */

/* Filters with (1 2 1) / 4 along one dimension, repeating the border. */
static void blur(const crystal *c, const uint8_t *from, uint8_t *to, int dimension)
{
    int64_t step = dimension == 2 ? 1 : dimension == 1 ? c->size[2] : (int64_t)c->size[1] * c->size[2];
    int64_t count = (int64_t)c->size[0] * c->size[1] * c->size[2];
    for (int64_t i = 0; i < count; i++) {
        int64_t place = i / step % c->size[dimension];
        int before = from[place ? i - step : i], after = from[place + 1 < c->size[dimension] ? i + step : i];
        to[i] = (uint8_t)((before + 2 * from[i] + after + 2) / 4);
    }
}

/* Returns almost normal noise: the sum of eight random bytes has mean 1020 and standard deviation 209. */
static int noise(const crystal *c, int64_t i)
{
    uint64_t number = draw(c, DRAW_NOISE, i);
    int sum = -1020;
    for (int byte = 0; byte < 8; byte++) sum += (int)(number >> (8 * byte) & 255);
    return sum * NOISE / 209;
}

static void expose(crystal *c, float *values)
{
    int64_t count = (int64_t)c->size[0] * c->size[1] * c->size[2];
    blur(c, c->grey, c->blurred, 2);
    blur(c, c->blurred, c->grey, 1);
    blur(c, c->grey, c->blurred, 0);
    for (int64_t i = 0; i < count; i++) {
        int grey = c->blurred[i] + noise(c, i);
        values[i] = (float)(grey < 0 ? 0 : grey > 255 ? 255 : grey);
    }
}

/* ---- the volume ---- */

static bool open_crystal(crystal *c)
{
    size_t voxels = (size_t)c->size[0] * (size_t)c->size[1] * (size_t)c->size[2];
    bool ok = (c->points = malloc((size_t)node_count(&c->cells) * sizeof(*c->points))) != NULL;
    for (int field = 0; field < FIELDS; field++) {
        ok &= (c->nodes[field] = malloc((size_t)node_count(&c->waves) * sizeof(int16_t))) != NULL;
        ok &= (c->line[field] = malloc((size_t)c->waves.count[2] * sizeof(int))) != NULL;
    }
    ok &= (c->grey = malloc(voxels)) != NULL;
    ok &= (c->blurred = malloc(voxels)) != NULL;
    return ok;
}

static void close_crystal(crystal *c)
{
    free(c->points);
    for (int field = 0; field < FIELDS; field++) {
        free(c->nodes[field]);
        free(c->line[field]);
    }
    free(c->grey);
    free(c->blurred);
}

int grains_make(tern_volume *image, tern_volume *label, uint64_t seed, tern_error *err)
{
    const int64_t *s = image->shape;
    crystal c = {.size = {(int)s[1], (int)s[2], (int)s[3]}, .seed = seed};
    c.cells = lattice_of(c.size, CELL);
    c.waves = lattice_of(c.size, WAVE);
    if (open_crystal(&c)) {
        place_points(&c);
        place_nodes(&c);
        fill_rows(&c, label ? label->values : NULL);
        dig_all(&c);
        expose(&c, image->values);
    } else if (!err->code) {
        *err = (tern_error){.code = TERN_E_MEMORY, .func = "grains_make"};
        snprintf(err->text, sizeof(err->text), "no memory for a volume of %lld x %lld x %lld",
                 (long long)s[1], (long long)s[2], (long long)s[3]);
    }
    close_crystal(&c);
    return err->code;
}
