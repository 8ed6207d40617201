/* blue_marble.c - makes a real segmentation task from Debian's package marble-qt-data: NASA's Blue Marble, an
 * image of the whole earth from space, with labels from Natural Earth's polygons of land, lakes and ice.
 * Writes both in the layout of Cityscapes, for any program that reads Cityscapes.
 *
 *     build/examples/blue_marble [folder] [marble's data]      blue_marble /usr/share/marble/data
 *
 * The image is cut into ten bands of 36 degrees of longitude. Every fifth band (from 180 W, and from 0 to 36
 * E) is `val`, the others are `train`. At the end it prints how well a pixel's colour alone predicts its
 * class: each of 32 x 32 x 32 colours gets its most frequent class in `train`. A network, which sees the
 * surroundings, must beat this baseline.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tern.h>

#include "usage.h"

enum { OCEAN, LAND, LAKE, ICE, CLASSES };
static const char *const class_names[CLASSES] = {"ocean", "land", "lake", "ice"};

#define BANDS 10
#define FIFTH 5   /* every fifth band is val */
#define UNITS 120 /* Natural Earth's coordinate units per degree */

typedef struct earth {
    tern_image picture; /* RGB */
    uint8_t *labels;    /* (height, width) */
    int64_t height, width;
} earth;

static int fail(tern_error *err, int code, const char *what, const char *path)
{
    return tern_error_set(err, "blue_marble", code, "%.300s: %s", path, what);
}

/* ---- Natural Earth's polygons ----
 *
 * A .pn2 file is big-endian: a version, the number of polygons including inner ones, and a flag for colours,
 * then polygons to the end of the file. Each polygon has a kind, the number of a place, the number of nodes,
 * and the nodes; one of kind MULTI has polygons instead of nodes. A node has a latitude, a longitude, the
 * number of offsets that follow, and these offsets, which are relative to the node. */

enum { MULTI = 4 };

typedef struct reader {
    const uint8_t *at, *end;
    bool short_of; /* the file ended too early */
} reader;

static int64_t take(reader *r, int bytes)
{
    int64_t value = 0;
    if (r->end - r->at < bytes) {
        r->short_of = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++) value = value << 8 | *r->at++;
    return value;
}

static int64_t take_signed(reader *r, int bytes)
{
    int64_t value = take(r, bytes), sign = 1LL << (8 * bytes - 1);
    return (value ^ sign) - sign;
}

/* A polygon being drawn: its first and its last node, as (longitude, latitude). */
typedef struct pen {
    const earth *e;
    uint8_t *crossed; /* (height, width + 1): an edge crosses the middle of the row left of this pixel */
    double first[2], last[2];
    bool down;
} pen;

/* In every row whose middle the edge crosses, marks the first pixel whose middle is right of the edge. */
static void draw_edge(pen *p, const double a[2], const double b[2])
{
    double scale = (double)p->e->width / (360 * UNITS);
    double x[] = {(a[0] + 180 * UNITS) * scale, (b[0] + 180 * UNITS) * scale};
    double y[] = {(90 * UNITS - a[1]) * scale, (90 * UNITS - b[1]) * scale};
    int up = y[1] < y[0];
    for (int64_t row = (int64_t)(y[up] + 0.5); row < p->e->height && (double)row + 0.5 <= y[!up]; row++) {
        double middle = (double)row + 0.5;
        if (row < 0 || middle <= y[up]) continue;
        double at = x[0] + (middle - y[0]) / (y[1] - y[0]) * (x[1] - x[0]);
        int64_t column = at < 0.5 ? 0 : (int64_t)(at + 0.5);
        p->crossed[row * (p->e->width + 1) + (column < p->e->width ? column : p->e->width)] ^= 1;
    }
}

static void draw_to(pen *p, double longitude, double latitude)
{
    const double to[] = {longitude, latitude};
    if (p->down)
        draw_edge(p, p->last, to);
    else
        memcpy(p->first, to, sizeof(to));
    memcpy(p->last, to, sizeof(to));
    p->down = true;
}

static void draw_polygon(pen *p, reader *r)
{
    int64_t kind = take(r, 1), count;
    take(r, 4);
    if (kind == MULTI) {
        count = take(r, 1);
        for (int64_t i = 0; i < count && !r->short_of; i++) draw_polygon(p, r);
        return;
    }
    count = take(r, 4);
    p->down = false;
    for (int64_t i = 0; i < count && !r->short_of; i++) {
        double latitude = (double)take_signed(r, 2), longitude = (double)take_signed(r, 2);
        int64_t offsets = take(r, 2);
        draw_to(p, longitude, latitude);
        for (int64_t k = 0; k < offsets && !r->short_of; k++) {
            double north = (double)take_signed(r, 1), east = (double)take_signed(r, 1);
            draw_to(p, longitude + east, latitude + north);
        }
    }
    if (p->down) draw_edge(p, p->last, p->first);
}

/* A pixel is inside if the number of edges left of it is odd. */
static void fill(const pen *p, uint8_t label)
{
    for (int64_t row = 0; row < p->e->height; row++) {
        uint8_t inside = 0;
        for (int64_t column = 0; column < p->e->width; column++) {
            inside ^= p->crossed[row * (p->e->width + 1) + column];
            if (inside) p->e->labels[row * p->e->width + column] = label;
        }
    }
}

static uint8_t *read_file(const char *path, size_t *size, tern_error *err)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = file && !fstat(fileno(file), &info) ? malloc((size_t)info.st_size + 1) : NULL;
    *size = bytes ? fread(bytes, 1, (size_t)info.st_size, file) : 0;
    if (!bytes) fail(err, TERN_E_IO, strerror(errno), path);
    if (file) fclose(file);
    return bytes;
}

static void draw_layer(earth *e, const char *marble, const char *name, uint8_t label, tern_error *err)
{
    char path[512];
    size_t size;
    if (err->code) return;
    snprintf(path, sizeof(path), "%s/naturalearth/ne_50m_%s.pn2", marble, name);
    uint8_t *bytes = read_file(path, &size, err);
    pen p = {.e = e, .crossed = calloc((size_t)e->height, (size_t)e->width + 1)};
    reader r = {bytes, bytes + size, false};
    if (bytes && p.crossed) {
        take(&r, 6);
        while (r.at < r.end && !r.short_of) draw_polygon(&p, &r);
        if (r.short_of) fail(err, TERN_E_FORMAT, "not a file of polygons in Marble's format", path);
        fill(&p, label);
    }
    free(p.crossed);
    free(bytes);
}

#define MARBLE "/usr/share/marble/data"

/* Names the package in the error if that is not installed. */
static void name_package(const char *marble, tern_error *err)
{
    size_t used = strlen(err->text);
    if (err->code && !strcmp(marble, MARBLE) && access(MARBLE, F_OK))
        snprintf(err->text + used, sizeof(err->text) - used, "; apt install marble-qt-data brings it");
}

static void open_earth(earth *e, const char *marble, tern_error *err)
{
    char path[512];
    tern_image_opts opts = tern_image_defaults();
    opts.channels = 3;
    snprintf(path, sizeof(path), "%s/maps/earth/bluemarble/bluemarble.jpg", marble);
    if (tern_image_load(path, &opts, &e->picture, err)) return;
    e->height = e->picture.height;
    e->width = e->picture.width;
    e->labels = calloc((size_t)e->height, (size_t)e->width);
    if (e->picture.sample != TERN_IMAGE_U8 || e->width != 2 * e->height || e->width % BANDS || !e->labels)
        fail(err, TERN_E_FORMAT, "not an image of the whole earth", path);
    draw_layer(e, marble, "land", LAND, err);
    draw_layer(e, marble, "lakes", LAKE, err);
    draw_layer(e, marble, "glaciated_areas", ICE, err);
    draw_layer(e, marble, "antarctic_ice_shelves_polys", ICE, err);
}

static bool is_val(int64_t band)
{
    return band % FIFTH == 0;
}

/* ---- Cityscapes' layout: FOLDER/leftImg8bit/train/CITY/CITY_000000_000000_leftImg8bit.png and
 * FOLDER/gtFine/train/CITY/CITY_000000_000000_gtFine_labelIds.png; each band is a "city" ---- */

/* Makes the parent folders of a path. */
static void make_folders(char *path, tern_error *err)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0777) && errno != EEXIST) fail(err, TERN_E_IO, strerror(errno), path);
        *slash = '/';
    }
}

typedef struct tile {
    int64_t top, left, height, width;
    char city[16];
    int number;
} tile;

static void save_part(const char *folder, const char *kind, const char *ending, bool val, const tile *t,
                      const uint8_t *pixels, int channels, int64_t across, tern_error *err)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s/%s/%s/%s_%06d_000000_%s.png", folder, kind, val ? "val" : "train",
             t->city, t->city, t->number, ending);
    size_t line = (size_t)(t->width * channels);
    uint8_t *part = malloc((size_t)t->height * line);
    tern_image image = {
        .height = t->height, .width = t->width, .channels = channels, .pages = 1, .data = part};
    if (!part) fail(err, TERN_E_MEMORY, "out of memory", path);
    for (int64_t row = 0; part && row < t->height; row++)
        memcpy(part + (size_t)row * line, pixels + ((t->top + row) * across + t->left) * channels, line);
    if (part && !err->code) make_folders(path, err);
    if (!err->code) tern_image_save(path, &image, NULL, err);
    free(part);
}

static void save_tile(const earth *e, const char *folder, bool val, const tile *t, tern_error *err)
{
    save_part(folder, "leftImg8bit", "leftImg8bit", val, t, e->picture.data, 3, e->width, err);
    save_part(folder, "gtFine", "gtFine_labelIds", val, t, e->labels, 1, e->width, err);
}

/* Cuts every band into squares and saves them. */
static void save_all(const earth *e, const char *folder, tern_error *err)
{
    int64_t side = e->width / BANDS;
    for (int64_t band = 0; band < BANDS; band++) {
        int degrees = (int)(band * 360 / BANDS) - 180;
        for (int64_t i = 0; i < e->height / side; i++) {
            tile t = {i * side, band * side, side, side, "", (int)i};
            snprintf(t.city, sizeof(t.city), "%c%03d", degrees < 0 ? 'w' : 'e', abs(degrees));
            save_tile(e, folder, is_val(band), &t, err);
        }
    }
}

/* ---- the baseline: classes from colours alone ---- */

#define COLOURS (32 * 32 * 32)

static int colour_of(const earth *e, int64_t pixel)
{
    const uint8_t *rgb = (const uint8_t *)e->picture.data + 3 * pixel;
    return rgb[0] / 8 * 1024 + rgb[1] / 8 * 32 + rgb[2] / 8;
}

static int most(const int64_t counts[CLASSES])
{
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        if (counts[c] > counts[best]) best = c;
    return best;
}

/* Fills in counts[colour][label] over train, and pairs[label][guess] over val. */
static void compare_colours(const earth *e, int64_t (*counts)[CLASSES], int64_t pairs[CLASSES][CLASSES])
{
    int64_t wide = e->width / BANDS, pixels = e->height * e->width;
    for (int64_t i = 0; i < pixels; i++)
        if (!is_val(i % e->width / wide)) counts[colour_of(e, i)][e->labels[i]]++;
    for (int64_t i = 0; i < pixels; i++)
        if (is_val(i % e->width / wide)) pairs[e->labels[i]][most(counts[colour_of(e, i)])]++;
}

static void print_shares(const earth *e)
{
    int64_t all[CLASSES] = {0}, pixels = e->height * e->width;
    for (int64_t i = 0; i < pixels; i++) all[e->labels[i]]++;
    printf("%lld x %lld pixels:", (long long)e->width, (long long)e->height);
    for (int c = 0; c < CLASSES; c++)
        printf(" %s %.2f %%", class_names[c], 100.0 * (double)all[c] / (double)pixels);
    printf("\n");
}

static void print_colours(const earth *e)
{
    int64_t pairs[CLASSES][CLASSES] = {{0}};
    int64_t(*counts)[CLASSES] = calloc(COLOURS, sizeof(*counts));
    double sum = 0;
    if (!counts) return;
    compare_colours(e, counts, pairs);
    printf("by colour alone, val: IoU");
    for (int c = 0; c < CLASSES; c++) {
        int64_t either = -pairs[c][c];
        for (int k = 0; k < CLASSES; k++) either += pairs[c][k] + pairs[k][c];
        double iou = either ? (double)pairs[c][c] / (double)either : 0;
        printf(" %s %.3f", class_names[c], iou);
        sum += iou / CLASSES;
    }
    printf(", mean %.3f\n", sum);
    free(counts);
}

int main(int argc, char **argv)
{
    usage_read(argc, argv, "[FOLDER] [MARBLE]",
               "Writes a segmentation task in Cityscapes' layout to FOLDER (default blue_marble), from the "
               "data of Debian's\n"
               "package marble-qt-data in MARBLE (default /usr/share/marble/data).");
    const char *folder = argc > 1 ? argv[1] : "blue_marble";
    const char *marble = argc > 2 ? argv[2] : MARBLE;
    tern_error err = {0};
    earth e = {0};
    open_earth(&e, marble, &err);
    name_package(marble, &err);
    if (!err.code) save_all(&e, folder, &err);
    if (!err.code) {
        print_shares(&e);
        print_colours(&e);
        printf("wrote %s\n", folder);
    }
    free(e.labels);
    tern_image_free(&e.picture);
    return tern_error_print(&err);
}
