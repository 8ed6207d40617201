/* progress_line.c - formats a progress bar as tqdm does (its format_meter), but for rates below one per
 * second, which stay rates, and percentages. */
#include "report/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER 32 /* bytes of a number with its SI prefix */

/* Writes "00:42" or "1:02:03", as tqdm.format_interval. */
static void format_interval(char text[NUMBER], double seconds)
{
    long long s = seconds < 1e15 ? (long long)seconds : (long long)1e15;
    if (s >= 3600)
        snprintf(text, NUMBER, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, NUMBER, "%02lld:%02lld", s / 60, s % 60);
}

/* Writes three digits and a prefix, "27.0k", as tqdm.format_sizeof. */
static void format_scaled(char text[NUMBER], double number)
{
    static const char prefixes[] = "\0kMGTPEZ";
    int p = 0;
    for (; p < 7 && fabs(number) >= 999.5; p++) number /= 1000;
    int digits = fabs(number) >= 99.95 ? 0 : fabs(number) >= 9.995 ? 1 : 2;
    snprintf(text, NUMBER, "%.*f%.1s", digits, number, prefixes + p);
}

static void format_count(char text[NUMBER], const tern__progress_state *state, int64_t count)
{
    if (state->unit_scale)
        format_scaled(text, (double)count);
    else
        snprintf(text, NUMBER, "%lld", (long long)count);
}

/* Writes "2712.51img/s", or "0.31img/s" with two digits for less than one per second. */
static void format_rate(char *text, size_t size, const tern__progress_state *state)
{
    double rate = state->rate;
    char digits[NUMBER] = "?";
    if (rate > 0 && rate < 0.995)
        snprintf(digits, sizeof(digits), "%.*f", (int)TERN__MIN(1 - floor(log10(rate)), 20), rate);
    else if (rate > 0 && state->unit_scale)
        format_scaled(digits, rate);
    else if (rate > 0)
        snprintf(digits, sizeof(digits), "%5.2f", rate);
    snprintf(text, size, "%s%s/s", digits, state->unit);
}

/* Writes three digits, "0.412", as tqdm.format_num: exponents have no leading zeros. */
static void format_value(char text[NUMBER], double value)
{
    snprintf(text, NUMBER, "%.3g", value);
    char *e = strchr(text, 'e');
    if (e && e[2] == '0') memmove(e + 2, e + 3, strlen(e + 3) + 1);
}

static void append_postfix(char *text, size_t size, const tern__progress_state *state)
{
    for (int i = 0; i < state->postfix_count; i++) {
        char value[NUMBER];
        size_t used = strlen(text);
        const char *name = state->postfix[i].name, *end = strrchr(name, ' ');
        bool is_percentage = end && !strcmp(end, " %");
        format_value(value, state->postfix[i].value);
        if (is_percentage)
            snprintf(text + used, size - used, ", %.*s %.1f %%", (int)(end - name), name,
                     state->postfix[i].value);
        else
            snprintf(text + used, size - used, ", %s=%s", name, value);
    }
}

/* Writes the text to the right of the bar: "27008/60000 [00:10<00:12, 2712.51img/s, loss=0.412]". */
static void format_numbers(char *text, size_t size, const tern__progress_state *state, bool known)
{
    char done[NUMBER], total[NUMBER], took[NUMBER], left[NUMBER] = "?", rate[2 * NUMBER];
    format_count(done, state, state->done);
    format_count(total, state, state->total);
    format_interval(took, state->seconds);
    format_rate(rate, sizeof(rate), state);
    if (known && state->rate > 0) format_interval(left, (double)(state->total - state->done) / state->rate);
    if (known)
        snprintf(text, size, "%s/%s [%s<%s, %s", done, total, took, left, rate);
    else
        snprintf(text, size, "%s%s [%s, %s", done, state->unit, took, rate);
    append_postfix(text, size, state);
    size_t used = strlen(text);
    snprintf(text + used, size - used, "]");
}

/* Writes `cells` characters, of which the share `done` is full; the partial one shows tenths or eighths. */
static void format_bar(char *text, size_t size, double done, int cells, tern__progress_bar bar)
{
    static const char *const tenths[] = {" ", "1", "2", "3", "4", "5", "6", "7", "8", "9", "#"};
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    const char *const *signs = bar == TERN__PROGRESS_ASCII ? tenths : eighths;
    int most = bar == TERN__PROGRESS_ASCII ? 10 : 8, parts = (int)(done * cells * most);
    text[0] = 0;
    for (int c = 0; c < cells; c++) {
        int part = TERN__MIN(TERN__MAX(parts - c * most, 0), most);
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s", signs[part]);
    }
}

/* Counts UTF-8 characters, not bytes. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++) width += (*text & 0xc0) != 0x80;
    return width;
}

/* Cuts the text after `columns` characters. */
static void cut_text(char *text, int columns)
{
    int width = 0;
    for (; *text; text++)
        if ((*text & 0xc0) != 0x80 && width++ == columns) break;
    *text = 0;
}

/* Returns the number of cells of a bar beside `taken` characters. */
static int cells_of(int columns, int taken)
{
    return columns ? TERN__MAX(TERN__MIN(columns - taken, 200), 1) : 10;
}

void tern__progress_line(char line[TERN__PROGRESS_LINE], const tern__progress_state *state,
                         tern__progress_bar bar, int columns)
{
    char head[160], numbers[512], cells[640];
    bool known = state->total > 0 && state->done <= state->total, titled = *state->title;
    double done = known ? (double)state->done / (double)state->total : 0;
    format_numbers(numbers, sizeof(numbers), state, known);
    int used = snprintf(head, sizeof(head), "%.128s%s", state->title, titled ? ": " : "");
    if (known) snprintf(head + used, sizeof(head) - (size_t)used, "%3.0f%%", 100 * done);
    if (!known || bar == TERN__PROGRESS_NONE) {
        snprintf(line, TERN__PROGRESS_LINE, "%s%s%s", head, known ? " " : "", numbers);
    } else {
        int taken = width_of(head) + width_of(numbers) + 3; /* "|", "| " */
        format_bar(cells, sizeof(cells), done, cells_of(columns, taken), bar);
        snprintf(line, TERN__PROGRESS_LINE, "%s|%s| %s", head, cells, numbers);
    }
    if (columns) cut_text(line, columns);
}
