/* test_philox.c - Philox, compared with Random123's test vectors (kat_vectors, philox4x32 with 10 rounds). */
#include "check.h"

#include "base/base.h"
#include "base/philox.h"

typedef struct vector {
    uint32_t counter[4], key[2], want[4];
} vector;

static const vector vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void the_published_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(vectors); i++) {
        const vector *v = &vectors[i];
        const uint32_t *c = v->counter;
        uint64_t key = (uint64_t)v->key[1] << 32 | v->key[0];
        tern__philox_words got = tern__philox(key, (tern__philox_words){{c[0], c[1], c[2], c[3]}});
        assert_memory_equal(got.word, v->want, sizeof(v->want));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_published_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
