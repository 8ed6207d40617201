/* board.h - records for TensorBoard: scalars, images, histograms and text in event files, as
 * torch.utils.tensorboard.SummaryWriter writes them. Scalars can also be written as CSV and JSON lines.
 *
 *     tern_board *board = tern_board_new(NULL, world, NULL, &err);
 *     tern_board_scalar(board, "loss", loss, step, NULL);
 *     ...
 *     tern_board_free(board);
 *
 * `tensorboard --logdir runs` shows them, also during training.
 *
 * Ranks: rank 0 writes. On other ranks every call returns at once, whatever its arguments, so no call needs
 * an `if`. A NULL board is accepted as well; training then goes on without one.
 *
 * Buffering: records are kept in memory until there are `queue` of them, or more than 1 MiB, or the oldest is
 * `flush_seconds` old; then they are written in one go. There is no thread for this: the next call on the
 * board checks, and tern_board_flush and tern_board_free write the rest. Records are only appended. A process
 * that is killed loses its buffered records and no others; if its last write was cut off, readers ignore the
 * incomplete record. After a restart a new file is begun in the same folder, which TensorBoard joins with the
 * older ones.
 *
 * Errors: if a file cannot be written (a full disk), training should not stop. The buffered records are lost,
 * the file is truncated to its last complete record, and this call returns E_IO. Later calls return TERN_OK
 * and try again; when it works again, a warning gives the number of lost records. Without a tern_error, the
 * failure is logged as a warning. So give these calls a tern_error of their own, or NULL, but not the one
 * that ends the training loop. All of them also return E_INVALID (a tag is NULL or empty), E_RANGE (a tag of
 * more than 1023 bytes), E_FORMAT (a tag or text is not UTF-8, which would make the file unreadable),
 * E_MEMORY.
 *
 * Threads: a board belongs to one thread at a time. A forked child cannot use its parent's board. */
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
    const char *tag;      /* appended to the name of a dated folder; default NULL: nothing                 */
    bool all_ranks;       /* every rank writes, to folders rank0, rank1, .. in the run's; default false    */
    double flush_seconds; /* default 120                                                                   */
    int queue;            /* records; default 10                                                           */
    int64_t purge_step;   /* after a resume: the first step that will be written again, >= 0. TensorBoard then
                           * hides records of older files from this step on; in CSV and JSON both stay, and
                           * the later rows count. Default -1: none                                        */
    bool csv;   /* also write scalars.csv: lines wall_time,step,tag,value, with these names as a header    */
    bool jsonl; /* also write scalars.jsonl: lines {"wall_time":1.5,"step":3,"tag":"loss","value":0.25}    */
} tern_board_opts;
/* Returns the default options. */
TERN_API tern_board_opts tern_board_defaults(void);

/* Makes the folder `log_dir`, with its parents, and an event file in it. If `log_dir` is NULL, it makes a new
 * folder runs/Nov21_17-05-59_<host><tag>, with "_2" and so on appended if that exists. `group` may be NULL
 * for a single rank. With all_ranks it is collective, and all ranks take rank 0's folder. Yours:
 * tern_board_free. NULL on error: E_IO (the folder or a file cannot be made), E_RANGE (an option, or the
 * length of the path), E_PEER. */
TERN_API tern_board *tern_board_new(const char *log_dir, tern_group *group, const tern_board_opts *opts,
                                    tern_error *err);
/* Writes the buffered records; returns E_IO each time that this fails. */
TERN_API int tern_board_flush(tern_board *board, tern_error *err);
/* Writes the buffered records and frees the board. */
TERN_API void tern_board_free(tern_board *board);

/* Returns the folder that this rank writes to, for `tensorboard --logdir`, borrowed; NULL if it does not
 * write. */
TERN_API const char *tern_board_dir(const tern_board *board);

/* Adds a point to the chart `tag`. "loss/train" and "loss/test" are shown side by side under "loss".
 * TensorBoard stores an f32. JSON has no NaN: such values are the strings "NaN", "Infinity" and "-Infinity",
 * as in protobuf's JSON. SummaryWriter.add_scalar. */
TERN_API int tern_board_scalar(tern_board *board, const char *tag, double value, int64_t step,
                               tern_error *err);

/* Adds values[i] to the curve names[i], for `count` curves in the one chart `tag`. TensorBoard draws one
 * curve per run, so each curve becomes a run of its own, in a folder <tag>_<name> ('/' in the tag becomes
 * '_'), as with SummaryWriter.add_scalars. In CSV and JSON the tag is <tag>/<name>. E_RANGE: a folder's name
 * is too long. */
TERN_API int tern_board_scalars(tern_board *board, const char *tag, int count, const char *const *names,
                                const double *values, int64_t step, tern_error *err);

/* Adds a text in Markdown, not empty. SummaryWriter.add_text. */
TERN_API int tern_board_text(tern_board *board, const char *tag, const char *text, int64_t step,
                             tern_error *err);

/* Adds this run to TensorBoard's table of runs: its hyper-parameters, a dict of bools, numbers and strings
 * (None is left out), and the tags of `count` charts whose last values are shown beside them. Call it once
 * per run. E_INVALID: no dict, or a key that is not a string; E_DTYPE: a value of another kind.
 * SummaryWriter.add_hparams, which makes another run for it; here it is part of the board's run. */
TERN_API int tern_board_hparams(tern_board *board, const tern_object *hparams, int count,
                                const char *const *metrics, tern_error *err);

/* ---- tensors of any dtype, layout and device; they are read, and no gradient is recorded ---- */

typedef struct tern_board_image_opts {
    size_t size;
    const char *format; /* the dimensions: H and W, and optionally N (batch), C (1, 3 or 4 channels) and D
                         * (the depth of a volume), as SummaryWriter's dataformats. Default NULL: HW, CHW,
                         * NCHW or NCDHW, by their number */
    int64_t slice;      /* the index along D; default 0                                                     */
    double threshold;   /* draw a mask: white where the value is above it, else black. For scores before a
                         * sigmoid, 0 stands for one half after it. Default NaN: no mask                    */
    int across;         /* images of a batch in one row; default 8                                          */
} tern_board_image_opts;
/* Returns the default options. */
TERN_API tern_board_image_opts tern_board_image_defaults(void);

/* Adds an image, or a batch of images in rows as one. u8 values are 0 to 255, bool is black or white. In all
 * other dtypes 0 is black and 1 is white; values outside are clamped, and NaN counts as 0. E_UNSUPPORTED: the
 * plug-in tern_png.so, which needs libpng, cannot be loaded; E_SHAPE: no pixels, or a wrong number of
 * dimensions or channels; E_RANGE: `slice`, `across`, or more than 2^28 bytes of pixels; E_INVALID: the
 * format. SummaryWriter.add_image and add_images. */
TERN_API int tern_board_image(tern_board *board, const char *tag, const tern_tensor *image, int64_t step,
                              const tern_board_image_opts *opts, tern_error *err);

/* Adds a histogram of the tensor's values, with SummaryWriter's default buckets, each 10 % wider than the one
 * before; values above 1e20 are in the last. Values that are not finite are left out; if there are any, their
 * number is a point of the chart <tag>/nonfinite. E_SHAPE: no elements. SummaryWriter.add_histogram. */
TERN_API int tern_board_histogram(tern_board *board, const char *tag, const tern_tensor *values, int64_t step,
                                  tern_error *err);

/* Adds a histogram of every parameter of the module as "parameters/<name>"; a shared one under its first
 * name. One without elements has none. */
TERN_API int tern_board_parameters(tern_board *board, const tern_module *module, int64_t step,
                                   tern_error *err);
/* Adds a histogram of every existing gradient as "gradients/<name>". Call it after a backward and before the
 * optimizer's step, which forgets the gradients. */
TERN_API int tern_board_gradients(tern_board *board, const tern_module *module, int64_t step,
                                  tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
