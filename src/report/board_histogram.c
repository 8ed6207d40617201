/* board_histogram.c - histograms.
 *
 * The buckets' edges are 0 and +-1e-12 times powers of 1.1, up to 1e20. A value's bucket is guessed from its
 * logarithm. The guess may be off by one near an edge, so it is corrected by comparing with the edges
 * themselves. Each edge is the rounded product of the one before and 1.1, as PyTorch's are. */
#include "report/board.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define POSITIVE 774            /* edges above zero            */
#define BUCKETS  (2 * POSITIVE) /* between 2 * POSITIVE + 1 edges */

static double ends[BUCKETS + 1];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_ends(void)
{
    double end = 1e-12;
    for (int i = 1; i <= POSITIVE; i++, end *= 1.1) {
        ends[POSITIVE + i] = end;
        ends[POSITIVE - i] = -end;
    }
}

typedef struct tally {
    int64_t counts[BUCKETS];
    int64_t finite, other;
    double min, max, sum, sum_squares;
} tally;

/* Returns the bucket i with ends[i] <= value < ends[i + 1]; the first and the last reach to infinity. */
static int histogram_bucket_of(double value)
{
    double size = fabs(value),
           steps = size > 0 ? log2(size * 1e12) * (1 / 0.13750352374993502) : 0; /* log2 1.1 */
    int guess = steps > 0 ? 1 + (int)steps : 0;
    int i = value < 0 ? POSITIVE - 1 - guess : POSITIVE + guess;
    i = TERN__MIN(TERN__MAX(i, 0), BUCKETS - 1);
    while (i > 0 && value < ends[i]) i--;
    while (i < BUCKETS - 1 && value >= ends[i + 1]) i++;
    return i;
}

static void count_value(tally *t, double value)
{
    if (!isfinite(value)) {
        t->other++;
        return;
    }
    t->counts[histogram_bucket_of(value)]++;
    if (!t->finite || value < t->min) t->min = value;
    if (!t->finite || value > t->max) t->max = value;
    t->sum += value;
    t->sum_squares += value * value;
    t->finite++;
}

/* The order does not matter, so a dense view is read in memory order. */
static void count_view(tally *t, const tern__view *view)
{
    size_t bytes = tern_dtype_bytes(view->dtype);
    int64_t count = tern__view_count(view);
    tern__view one = {.data = view->data, .dtype = view->dtype};
    for (int64_t i = 0; i < count; i++, one.data = (char *)one.data + bytes)
        count_value(t, tern__view_get(&one, 0));
}

/* Writes the buckets from the first that is not empty to the last. An empty one before them gives the first
 * one's lower edge. */
static int put_tally(const tern_board *board, const char *tag, const tally *t, int64_t step, const char *func,
                     tern_error *err)
{
    double counts[BUCKETS + 1] = {0};
    int first = 0, last = BUCKETS - 1;
    while (!t->counts[first]) first++;
    while (!t->counts[last]) last--;
    for (int i = first; i <= last; i++) counts[i - first + 1] = (double)t->counts[i];
    Tern__Pb__Histogram histogram = TERN__PB__HISTOGRAM__INIT;
    Tern__Pb__Value value = TERN__PB__VALUE__INIT;
    histogram.min = t->min;
    histogram.max = t->max;
    histogram.count = (double)t->finite;
    histogram.sum = t->sum;
    histogram.sum_squares = t->sum_squares;
    histogram.n_bucket_limit = histogram.n_bucket = (size_t)(last - first + 2);
    histogram.bucket_limit = ends + first;
    histogram.bucket = counts;
    value.tag = (char *)tag;
    value.what_case = TERN__PB__VALUE__WHAT_HISTOGRAM;
    value.histogram = &histogram;
    return tern__board_put(board, board->runs, &value, step, func, err);
}

static int put_other(const tern_board *board, const char *tag, int64_t other, int64_t step, const char *func,
                     tern_error *err)
{
    char full[TERN__TAG_ROOM + 16];
    snprintf(full, sizeof(full), "%s/nonfinite", tag);
    return tern__board_put_scalar(board, board->runs, full, (double)other, step, func, err);
}

static int put_histogram(tern_board *board, const char *tag, const tern_tensor *tensor, int64_t step,
                         const char *func, tern_error *err)
{
    tern__view view;
    char shape[TERN__SHAPE_TEXT];
    tally t = {.finite = 0};
    if (tern__tag_check(tag, func, err) || tern__board_view(board, tensor, true, &view, func, err))
        return err->code;
    if (!tern__view_count(&view))
        return tern__error_set(err, func, TERN_E_SHAPE, "a tensor of shape %s has no elements",
                               tern__shape_text(&view, shape));
    pthread_once(&made, make_ends);
    count_view(&t, &view);
    if (t.finite && put_tally(board, tag, &t, step, func, err)) return err->code;
    return t.other ? put_other(board, tag, t.other, step, func, err) : TERN_OK;
}

int tern_board_histogram(tern_board *board, const char *tag, const tern_tensor *values, int64_t step,
                         tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    put_histogram(board, tag, values, step, __func__, &why);
    return tern__board_end(&why, err);
}

/* ---- modules ---- */

static bool is_repeat(const tern_module *module, int index)
{
    const tern_tensor *tensor = tern_state_get(module, index).tensor;
    for (int i = 0; i < index; i++)
        if (tern_state_get(module, i).tensor == tensor) return true;
    return false;
}

typedef tern_tensor *(*part_fn)(const tern_tensor *parameter);

static void put_parameters(tern_board *board, const tern_module *module, const char *group, part_fn part,
                           int64_t step, const char *func, tern_error *err)
{
    char tag[TERN__TAG_ROOM + 16];
    if (!module) tern__error_set(err, func, TERN_E_INVALID, "the module is NULL");
    for (int i = 0; !tern__is_set(err) && i < tern_state_count(module); i++) {
        tern_state_entry entry = tern_state_get(module, i);
        if (entry.is_buffer || is_repeat(module, i)) continue;
        const tern_tensor *tensor = part ? part(entry.tensor) : entry.tensor;
        snprintf(tag, sizeof(tag), "%s/%s", group, entry.name);
        if (tensor && tern_tensor_count(tensor)) put_histogram(board, tag, tensor, step, func, err);
    }
}

int tern_board_parameters(tern_board *board, const tern_module *module, int64_t step, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    put_parameters(board, module, "parameters", NULL, step, __func__, &why);
    return tern__board_end(&why, err);
}

int tern_board_gradients(tern_board *board, const tern_module *module, int64_t step, tern_error *err)
{
    tern_error why = {0};
    if (tern__board_is_off(board, err)) return tern__board_skip(err);
    put_parameters(board, module, "gradients", tern_grad_get, step, __func__, &why);
    return tern__board_end(&why, err);
}
