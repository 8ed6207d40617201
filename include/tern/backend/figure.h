/* figure.h - the interface of a figure plug-in: one const struct in a shared object that is installed beside
 * the library.
 *
 * Threads: any. */
#ifndef TERN_BACKEND_FIGURE_H
#define TERN_BACKEND_FIGURE_H

#include <tern/report.h>

#define TERN_FIGURE_ABI    5
#define TERN_FIGURE_SYMBOL "tern_figure_plugin"

/* Receives a PNG: `write` takes its next bytes, and returns false if it cannot take any more. */
typedef struct tern_figure_out {
    bool (*write)(void *to, const void *bytes, size_t count);
    void *to;
} tern_figure_out;

typedef struct tern_figure_backend {
    int abi;     /* TERN_FIGURE_ABI */
    size_t size; /* sizeof(tern_figure_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Each draws and writes a PNG, and blocks. Returns 0, or -1 with a reason in why[0..why_size). */
    int (*grid_save)(const tern_figure_out *out, const char *title, const tern_picture *pictures, int count,
                     int across, char *why, size_t why_size);
    int (*chart_save)(const tern_figure_out *out, const tern_chart *chart, char *why, size_t why_size);
    int (*figure_save)(const tern_figure_out *out, const tern_figure *figure, char *why, size_t why_size);
} tern_figure_backend;

#endif
