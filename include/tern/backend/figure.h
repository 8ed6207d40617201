/* figure.h - what a figure plug-in offers: one const struct in a shared object of its own, found beside the
 * library.
 *
 * Threads: any. */
#ifndef TERN_BACKEND_FIGURE_H
#define TERN_BACKEND_FIGURE_H

#include <tern/report.h>

#define TERN_FIGURE_ABI    3
#define TERN_FIGURE_SYMBOL "tern_figure_plugin"

/* Where a PNG goes: `write` takes its next bytes, and returns false if it cannot take any more. */
typedef struct tern_figure_out {
    bool (*write)(void *to, const void *bytes, size_t count);
    void *to;
} tern_figure_out;

typedef struct tern_figure_backend {
    int abi;     /* TERN_FIGURE_ABI */
    size_t size; /* sizeof(tern_figure_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Draws and writes the PNG. Blocks. 0, or -1 with a reason in why[0..why_size). */
    int (*grid_save)(const tern_figure_out *out, const char *title, const tern_picture *pictures, int count,
                     int across, char *why, size_t why_size);
    int (*chart_save)(const tern_figure_out *out, const tern_chart *chart, char *why, size_t why_size);
    int (*figure_save)(const tern_figure_out *out, const tern_figure *figure, char *why, size_t why_size);
} tern_figure_backend;

#endif
