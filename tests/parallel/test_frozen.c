/* test_frozen.c - a ddp's bucket of the parameters that are frozen when it is made: it has no others, and
 * their gradients are left alone until they require some; then they are the mean as all others. */
#include "ddp_fixture.h"

enum { ROWS = 8, STEPS = 6, UNFROZEN = 3 };

static tern_module *frozen_mlp(tern_rng *rng, tern_error *err)
{
    tern_module *net = fixture_mlp(rng, err);
    for (int i = 0; net && i < tern_state_count(net);
         i++) /* every other parameter, and all of the first layer */
        if (i < 2 || i % 2) tern_requires_grad_set(tern_state_get(net, i).tensor, false, err);
    return net;
}

static bool are_apart(const tern_ddp *ddp)
{
    int frozen = 0;
    for (int b = 0; b < ddp->bucket_count; b++) {
        const tern__bucket *bucket = &ddp->buckets[b];
        for (int i = 0; i < bucket->count; i++) {
            const tern__seal *seal = ddp->seal;
            int first = ddp->order[bucket->first], k = ddp->order[bucket->first + i];
            bool is_frozen = seal->ranges[seal->range_of[k]].is_frozen;
            if (is_frozen != seal->ranges[seal->range_of[first]].is_frozen) return false;
            frozen += i == 0 && is_frozen;
        }
    }
    return frozen == 1;
}

/* Their gradients' memory still has the value that the test has put there. */
static bool are_untouched(const tern_module *net, double value)
{
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *tensor = tern_state_get(net, i).tensor;
        for (int64_t k = 0; !tensor->requires_grad && k < tern_tensor_count(tensor); k++)
            if (tern__view_get(&tensor->leaf->grad->view, k) != value) return false;
    }
    return true;
}

static void mark(const tern_module *net, double value)
{
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *tensor = tern_state_get(net, i).tensor;
        for (int64_t k = 0; !tensor->requires_grad && k < tern_tensor_count(tensor); k++)
            tern__view_set(&tensor->leaf->grad->view, k, value);
    }
}

static int frozen_body(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    fixture f, alone;
    tern_ddp_opts opts = tern_ddp_defaults();
    tern_rng *rng = tern_rng_new(7, &err);
    opts.first_bucket_bytes = opts.bucket_bytes = *(size_t *)arg;
    fixture_open(&f, boot, frozen_mlp(rng, &err), &opts, &err);
    fixture_open_alone_with(&alone, frozen_mlp, &err);
    tern_rng_free(rng);
    RANK_CHECK_OK(rank, err);
    mark(f.net, rank + 0.5);
    for (int step = 0; step < STEPS; step++) {
        bool frees = step == UNFROZEN;
        if (frees) tern_module_requires_grad_set(f.net, true);
        if (frees) tern_module_requires_grad_set(alone.net, true);
        fixture_step(&f, step, rank * ROWS, ROWS, &err);
        fixture_step(&alone, step, 0, boot->world * ROWS, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, are_apart(f.ddp));
        RANK_CHECK(rank, are_untouched(f.net, rank + 0.5));
        RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
        RANK_CHECK(rank, fixture_difference(f.net, alone.net) <= 2e-6);
    }
    fixture_close(&alone);
    fixture_close(&f);
    return 0;
}

static void frozen_gradients_are_not_reduced(void **state)
{
    (void)state;
    size_t caps[] = {64, (size_t)1 << 20};
    for (int world = 1; world <= 3; world++)
        for (size_t i = 0; i < TERN__COUNT(caps); i++)
            assert_ranks_ok(ranks_run(world, frozen_body, &caps[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(frozen_gradients_are_not_reduced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
