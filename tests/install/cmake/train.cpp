// A C++17 program against the installed library. It puts what _new and _open functions return into unique_ptrs
// and turns errors into exceptions. Trains an MLP on two vectors and prints the version and a loss per step.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include <tern.h>

template <auto give_back> struct giver {
    template <class T> void operator()(T *what) const
    {
        give_back(what);
    }
};
template <class T, auto give_back> using own = std::unique_ptr<T, giver<give_back>>;

using group = own<tern_group, tern_group_close>;
using device = own<tern_device, tern_device_close>;
using rng = own<tern_rng, tern_rng_free>;
using module = own<tern_module, tern_module_free>;
using optim = own<tern_optim, tern_optim_free>;
using scope = own<tern_scope, tern_scope_free>;
using tensor = own<tern_tensor, tern_tensor_free>;

static void check(const tern_error &err)
{
    if (err.code) throw std::runtime_error(err.text);
}

static tensor wrap(std::vector<float> &values, std::vector<std::int64_t> shape)
{
    tern_error err{};
    tensor wrapped(tern_tensor_wrap(values.data(), TERN_F32, static_cast<int>(shape.size()), shape.data(),
                                    nullptr, nullptr, &err));
    check(err);
    return wrapped;
}

static void train()
{
    constexpr std::int64_t n = 32, in = 4, sizes[] = {in, 16, 1};
    tern_error err{};
    group world(tern_group_open(nullptr, &err));
    device cpu(tern_device_open(nullptr, &err));
    rng random(tern_rng_new(0, &err));
    module net(tern_mlp_new(sizes, 3, random.get(), &err));
    tern_adam_opts opts = tern_adam_defaults();
    opts.lr = 0.02;
    optim adam(tern_adam_new(net.get(), &opts, &err));
    scope step(tern_scope_new(cpu.get(), world.get(), &err));
    check(err);

    std::vector<float> x(n * in), y(n);
    tern_rng_normal(random.get(), x.data(), x.size(), 0, 1);
    for (std::size_t i = 0; i < y.size(); i++) y[i] = x[i * in] - 2 * x[i * in + 1];
    tensor input = wrap(x, {n, in}), target = wrap(y, {n, 1});

    std::printf("tern %s\n", tern_version());
    for (int i = 0; i < 8; i++) {
        tern_tensor *loss = tern_mse_loss(step.get(), tern_forward(net.get(), step.get(), input.get()),
                                          target.get(), TERN_LOSS_MEAN);
        tern_backward(step.get(), loss);
        tern_optim_step(adam.get(), step.get());
        std::printf("loss %.6f\n", tern_item(loss));
        tern_scope_end(step.get(), &err);
        check(err);
    }
    // Shapes that do not fit raise an exception.
    tern_forward(net.get(), step.get(), target.get());
    tern_scope_end(step.get(), &err);
    try {
        check(err);
    } catch (const std::runtime_error &e) {
        std::printf("caught %s\n", e.what());
    }
}

int main()
{
    try {
        train();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
