/* The CRC-32 is zlib's, of any length, alignment and beginning, also in pieces. */
#include "check.h"
#include "checkpoint/crc32.h"

#include <zlib.h>

static uint8_t bytes[5000];

static void fill(void)
{
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
}

static void every_length_and_alignment(void **state)
{
    (void)state;
    fill();
    for (size_t length = 0; length < 700; length++)
        for (size_t from = 0; from < 17; from += 3)
            assert_int_equal(tern__crc32(0, bytes + from, length), crc32(0, bytes + from, (uInt)length));
}

static void in_pieces(void **state)
{
    (void)state;
    fill();
    for (size_t cut = 0; cut <= sizeof(bytes); cut += 37) {
        uint32_t first = tern__crc32(0, bytes, cut);
        assert_int_equal(tern__crc32(first, bytes + cut, sizeof(bytes) - cut),
                         crc32(0, bytes, sizeof(bytes)));
    }
}

/* The check value of the algorithm's definition. */
static void a_known_value(void **state)
{
    (void)state;
    assert_int_equal(tern__crc32(0, "123456789", 9), 0xcbf43926);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(a_known_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
