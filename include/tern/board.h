/* board.h - what training leaves for TensorBoard: scalars, images, histograms and text in event files, as
 * torch.utils.tensorboard.SummaryWriter writes them; and the scalars as CSV and JSON lines for who wants to
 * read them by other means.
 *
 *     tern_board *board = tern_board_new(NULL, world, NULL, &err);
 *     tern_board_scalar(board, "loss", loss, step, NULL);
 *     ...
 *     tern_board_free(board);
 *
 * and `tensorboard --logdir runs` shows it, also while training goes on.
 *
 * Who writes: rank 0. On the other ranks every call returns at once, whatever it is given, so no call needs
 * an `if`. The same holds for a board that is NULL: training goes on without one.
 *
 * When: records wait in memory until there are `queue` of them, or more than a MiB, or the oldest has waited
 * for `flush_seconds`, and then go to the file in one write. No thread does that: it is the next call of the
 * board that looks, and tern_board_flush and tern_board_free write what waits. Whole records are appended and
 * nothing is changed later, so a process that is killed loses what waited and no more; what a reader finds at
 * the end of a file that was cut off in a write is not a record, and is passed by. After a restart in the
 * same folder a new file goes on, which TensorBoard joins with the older ones.
 *
 * Errors: a file that cannot be written (a full disk) is no reason to stop training. The records are lost,
 * the file is cut back to its last whole record, and the call that found out returns E_IO; later ones return
 * TERN_OK and try again, and when it works again a warning says how many records are missing. Without a
 * tern_error the failure itself is a warning in the log. So give these calls a tern_error of their own, or
 * NULL, not the one that ends the training loop. All of them also return E_INVALID (a tag is NULL or empty),
 * E_RANGE (a tag has more than 1023 bytes), E_FORMAT (a tag or text is not UTF-8, which would make the file
 * unreadable) and E_MEMORY.
 *
 * Threads: a board belongs to one thread at a time. A child of fork may not use its parent's. */
#ifndef TERN_BOARD_H
#define TERN_BOARD_H

#include <tern/comm.h>
#include <tern/nn.h>
#include <tern/object.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_board tern_board;

typedef struct tern_board_opts {
    size_t size;
    const char *tag;      /* ends the name of a dated folder; default NULL: nothing                        */
    bool all_ranks;       /* each rank writes, to a folder rank0, rank1, .. in the run's; default false    */
    double flush_seconds; /* default 120                                                                   */
    int queue;            /* default 10                                                                    */
    int64_t purge_step;   /* >= 0, after a resume: the first step that will be written again, from which on
                           * TensorBoard then hides what older files of the folder have; default -1: none.
                           * The tables below keep both, the later rows count                              */
    bool csv;             /* also scalars.csv: wall_time,step,tag,value under a line of these names         */
    bool jsonl; /* also scalars.jsonl: {"wall_time":1.5,"step":3,"tag":"loss","value":0.25} a line         */
} tern_board_opts;
TERN_API tern_board_opts tern_board_defaults(void);

/* Makes the folder `log_dir`, with those above it, and an event file in it; NULL: a folder of its own,
 * runs/Nov21_17-05-59_<host><tag>, with "_2" and so on behind it where there is one. `group`: NULL is one
 * rank. A collective if all ranks write, who then take rank 0's folder; otherwise none. Yours:
 * tern_board_free. E_IO: the folder or a file cannot be made; E_RANGE: an option or the length of the path;
 * E_PEER: of rank 0's path. */
TERN_API tern_board *tern_board_new(const char *log_dir, tern_group *group, const tern_board_opts *opts,
                                    tern_error *err);
/* Writes what waits; E_IO if that fails, each time. */
TERN_API int tern_board_flush(tern_board *board, tern_error *err);
TERN_API void tern_board_free(tern_board *board);

/* The folder that this rank writes to, for `tensorboard --logdir`; borrowed. NULL: it writes nothing. */
TERN_API const char *tern_board_dir(const tern_board *board);

/* A point of the chart `tag`; "loss/train" and "loss/test" stand side by side under "loss". TensorBoard keeps
 * an f32. JSON has no NaN: there such values are the strings "NaN", "Infinity" and "-Infinity", as in
 * protobuf's JSON. SummaryWriter.add_scalar. */
TERN_API int tern_board_scalar(tern_board *board, const char *tag, double value, int64_t step,
                               tern_error *err);

/* values[i] is a point of the curve names[i], all in the one chart `tag`. As SummaryWriter.add_scalars does,
 * each curve becomes a run of its own, in a folder <tag>_<name> of the board's ('/' in the tag is '_' there),
 * because TensorBoard draws one curve a run. In CSV and JSON the tag is <tag>/<name>. E_RANGE: a folder's
 * name is too long. */
TERN_API int tern_board_scalars(tern_board *board, const char *tag, int count, const char *const *names,
                                const double *values, int64_t step, tern_error *err);

/* Markdown, not empty. SummaryWriter.add_text. */
TERN_API int tern_board_text(tern_board *board, const char *tag, const char *text, int64_t step,
                             tern_error *err);

/* A row of TensorBoard's table of runs: the run's hyper-parameters, a dict of bools, numbers and strings
 * (None is left out), and the tags of `count` charts whose last values stand beside them. Once a run.
 * E_INVALID: no dict, or a key that is no string; E_DTYPE: a value of another kind.
 * SummaryWriter.add_hparams, which makes a run of its own for it; here it is the board's. */
TERN_API int tern_board_hparams(tern_board *board, const tern_object *hparams, int count,
                                const char *const *metrics, tern_error *err);

/* ---- tensors: of any dtype, layout and device; they are read, and nothing is recorded ---- */

typedef struct tern_board_image_opts {
    size_t size;
    const char *format; /* what the dimensions are: H and W, and at will N, a batch, C, 1, 3 or 4 channels,
                         * and D, the depth of a volume: SummaryWriter's dataformats. Default NULL: HW, CHW,
                         * NCHW or NCDHW by their number */
    int64_t slice;      /* which one of the D; default 0                                                    */
    double threshold;   /* a mask: white where the value is above it, else black. Default NaN: no mask. Of the
                         * scores before a sigmoid, above 0 is above one half after it                       */
    int across;         /* images of a batch in one row of the picture; default 8                           */
} tern_board_image_opts;
TERN_API tern_board_image_opts tern_board_image_defaults(void);

/* An image, or a batch as one picture of all, row by row. u8 is 0 to 255 and bool black or white; of all
 * other dtypes 0 is black and 1 is white, what is outside is taken for the nearer of them, and NaN for 0.
 * E_UNSUPPORTED: the plug-in tern_png.so, which needs libpng, cannot be loaded; E_SHAPE: no pixels, or
 * another number of dimensions or channels; E_RANGE: `slice`, `across`, or more than 2^28 bytes of pixels;
 * E_INVALID: the format. SummaryWriter.add_image and add_images. */
TERN_API int tern_board_image(tern_board *board, const char *tag, const tern_tensor *image, int64_t step,
                              const tern_board_image_opts *opts, tern_error *err);

/* How the tensor's values are distributed, over SummaryWriter's default buckets, each a tenth wider than the
 * one before; what is above 1e20 counts to the last. Values that are not finite are left out, and if there
 * are any, their number is a point of the chart <tag>/nonfinite. E_SHAPE: no elements.
 * SummaryWriter.add_histogram. */
TERN_API int tern_board_histogram(tern_board *board, const char *tag, const tern_tensor *values, int64_t step,
                                  tern_error *err);

/* A histogram of every parameter of the module, as "parameters/<name>", a shared one under its first name. */
TERN_API int tern_board_parameters(tern_board *board, const tern_module *module, int64_t step,
                                   tern_error *err);
/* And of every gradient that there is, as "gradients/<name>": after a backward and before the optimizer's
 * step, which forgets them. */
TERN_API int tern_board_gradients(tern_board *board, const tern_module *module, int64_t step,
                                  tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
