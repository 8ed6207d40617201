/* test_progress_line.c - the text of a progress bar, compared with tqdm 4.64's format_meter for the same
 * numbers, but for slow rates, which tqdm shows as seconds per unit. */
#include "report/progress.h"
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct golden {
    const char *title, *unit;
    bool unit_scale;
    int64_t done, total;
    double seconds, rate;
    int columns;
    tern__progress_bar bar;
    const char *line;
} golden;

static const golden goldens[] = {
    {"epoch 3", "img", false, 27008, 60000, 10.4, 2712.51, 0, TERN__PROGRESS_ASCII,
     "epoch 3:  45%|####5     | 27008/60000 [00:10<00:12, 2712.51img/s]"},
    {"epoch 3", "img", false, 27008, 60000, 10.4, 2712.51, 99, TERN__PROGRESS_ASCII,
     "epoch 3:  45%|###################8                        | 27008/60000 [00:10<00:12, 2712.51img/s]"},
    {"epoch 3", "img", false, 27008, 60000, 10.4, 2712.51, 99, TERN__PROGRESS_BLOCKS,
     "epoch 3:  45%|███████████████████▊                        | 27008/60000 [00:10<00:12, 2712.51img/s]"},
    {"", "it", false, 0, 100, 0.0, NAN, 60, TERN__PROGRESS_ASCII,
     "  0%|                               | 0/100 [00:00<?, ?it/s]"},
    {"", "it", false, 3, 0, 7, 0.5, 0, TERN__PROGRESS_ASCII, "3it [00:07, 0.50it/s]"},
    {"slow", "it", false, 3, 7, 9000.9, 0.0003, 70, TERN__PROGRESS_ASCII,
     "slow:  43%|#########8             | 3/7 [2:30:00<3:42:13, 0.00030it/s]"},
    {"slow", "s", false, 7, 7, 9000.9, 0.31, 70, TERN__PROGRESS_BLOCKS,
     "slow: 100%|█████████████████████████████| 7/7 [2:30:00<00:00, 0.31s/s]"},
    {"big", "B", true, 123456789, 999999999999, 259200, 51234.5, 80, TERN__PROGRESS_ASCII,
     "big:   0%|                          | 123M/1.00T [72:00:00<5421:01:28, 51.2kB/s]"},
    {"big", "B", true, 999, 9999, 5, 99.96, 80, TERN__PROGRESS_ASCII,
     "big:  10%|###6                                 | 999/10.0k [00:05<01:30, 100B/s]"},
    {"over", "it", false, 8, 7, 5, 1.6, 50, TERN__PROGRESS_ASCII, "over: 8it [00:05,  1.60it/s]"},
    {"narrow", "it", false, 5, 10, 5, 1, 20, TERN__PROGRESS_ASCII, "narrow:  50%|5| 5/10"},
    {"p", "it", false, 1, 64, 1, 70, 44, TERN__PROGRESS_BLOCKS,
     "p:   2%|     | 1/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 8, 64, 1, 70, 44, TERN__PROGRESS_ASCII,
     "p:  12%|6    | 8/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 15, 64, 1, 70, 44, TERN__PROGRESS_BLOCKS,
     "p:  23%|▉   | 15/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 22, 64, 1, 70, 44, TERN__PROGRESS_ASCII,
     "p:  34%|#3  | 22/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 29, 64, 1, 70, 44, TERN__PROGRESS_BLOCKS,
     "p:  45%|█▊  | 29/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 36, 64, 1, 70, 44, TERN__PROGRESS_ASCII,
     "p:  56%|##2 | 36/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 43, 64, 1, 70, 44, TERN__PROGRESS_BLOCKS,
     "p:  67%|██▋ | 43/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 50, 64, 1, 70, 44, TERN__PROGRESS_ASCII,
     "p:  78%|###1| 50/64 [00:01<00:00, 70.00it/s]"},
    {"p", "it", false, 57, 64, 1, 70, 44, TERN__PROGRESS_BLOCKS,
     "p:  89%|███▌| 57/64 [00:01<00:00, 70.00it/s]"},
    {"trouble", "it", false, 0, 10, 0, NAN, 0, TERN__PROGRESS_ASCII,
     "trouble:   0%|          | 0/10 [00:00<?, ?it/s]"},
};

static void lines_are_those_of_tqdm(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(goldens); i++) {
        const golden *g = &goldens[i];
        tern__progress_state shown = {.title = g->title,
                                      .unit = g->unit,
                                      .unit_scale = g->unit_scale,
                                      .done = g->done,
                                      .total = g->total,
                                      .seconds = g->seconds,
                                      .rate = g->rate};
        char line[TERN__PROGRESS_LINE];
        tern__progress_line(line, &shown, g->bar, g->columns);
        assert_string_equal(line, g->line);
    }
}

/* A rate below one per second has two digits, and none of them is lost to an exponent. */
static void slow_rates_are_rates(void **state)
{
    (void)state;
    for (double rate = 0.99; rate > 1e-9; rate *= 0.83)
        for (int scaled = 0; scaled < 2; scaled++) {
            tern__progress_state shown = {
                .title = "", .unit = " samples", .unit_scale = scaled, .done = 1, .seconds = 1, .rate = rate};
            char line[TERN__PROGRESS_LINE], unit[16];
            double printed;
            tern__progress_line(line, &shown, TERN__PROGRESS_NONE, 0);
            assert_int_equal(sscanf(strchr(line, ',') + 1, "%lf%15[^]]", &printed, unit), 2);
            assert_string_equal(unit, " samples/s");
            const char *number = strchr(line, ',') + 2;
            assert_int_equal(strspn(number, "0123456789."), strstr(number, " samples") - number);
            assert_true(fabs(printed / rate - 1) <= 0.05);
        }
}

static void percentages_have_one_decimal(void **state)
{
    (void)state;
    tern__progress_state shown = {
        .title = "x", .unit = "it", .done = 1, .seconds = 1, .rate = 2, .postfix_count = 4};
    shown.postfix[0] = (tern__progress_postfix){"data %", 1.3e-5};
    shown.postfix[1] = (tern__progress_postfix){"busy cores %", 99.96};
    shown.postfix[2] = (tern__progress_postfix){"%", 3};
    shown.postfix[3] = (tern__progress_postfix){"a %b", 4};
    char line[TERN__PROGRESS_LINE];
    tern__progress_line(line, &shown, TERN__PROGRESS_NONE, 0);
    assert_string_equal(line, "x: 1it [00:01,  2.00it/s, data 0.0 %, busy cores 100.0 %, %=3, a %b=4]");
}

static void values_stand_behind_the_rate(void **state)
{
    (void)state;
    tern__progress_state shown = {
        .title = "x", .unit = "it", .done = 1, .total = 3, .seconds = 61, .rate = 1, .postfix_count = 3};
    shown.postfix[0] = (tern__progress_postfix){"loss", 0.41234};
    shown.postfix[1] = (tern__progress_postfix){"lr", 1e-5};
    shown.postfix[2] = (tern__progress_postfix){"acc", 1234};
    char line[TERN__PROGRESS_LINE];
    tern__progress_line(line, &shown, TERN__PROGRESS_ASCII, 120);
    assert_string_equal(line, "x:  33%|################                                | 1/3 [01:01<00:02,  "
                              "1.00it/s, loss=0.412, lr=1e-5, acc=1.23e+3]");
    tern__progress_line(line, &shown, TERN__PROGRESS_NONE, 0);
    assert_string_equal(line, "x:  33% 1/3 [01:01<00:02,  1.00it/s, loss=0.412, lr=1e-5, acc=1.23e+3]");
}

/* For any numbers, the line fits its buffer and the terminal. */
static void nothing_is_too_long(void **state)
{
    (void)state;
    static char title[300];
    memset(title, 'T', sizeof(title) - 1);
    tern__progress_state shown = {.title = title,
                                  .unit = "furlongs of it",
                                  .done = INT64_MAX / 2,
                                  .total = INT64_MAX,
                                  .seconds = 1e300,
                                  .rate = 1e-300,
                                  .postfix_count = TERN__PROGRESS_POSTFIXES};
    for (int i = 0; i < TERN__PROGRESS_POSTFIXES; i++)
        shown.postfix[i] = (tern__progress_postfix){"fifteen letters", -1.23456e-300};
    for (int columns = 0; columns < 1000; columns += 7) {
        char line[TERN__PROGRESS_LINE];
        tern__progress_line(line, &shown, TERN__PROGRESS_BLOCKS, columns);
        size_t width = 0;
        for (const char *c = line; *c; c++) width += (*c & 0xc0) != 0x80;
        assert_true(!columns || width <= (size_t)columns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_those_of_tqdm),      cmocka_unit_test(slow_rates_are_rates),
        cmocka_unit_test(percentages_have_one_decimal), cmocka_unit_test(values_stand_behind_the_rate),
        cmocka_unit_test(nothing_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
