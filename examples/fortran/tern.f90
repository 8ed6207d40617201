! tern.f90 - Fortran interfaces of the functions that 04_mlp.f90 calls.
!
! Every function of tern can be declared in this way. A handle (tern_module *, ..) is a type(c_ptr). Options are a bind(c) type,
! which the _defaults function returns. A Fortran array x(4, n) is the C tensor (n, 4). Pass c_null_ptr for NULL.
module tern
    use, intrinsic :: iso_c_binding
    implicit none

    enum, bind(c) ! tern_status
        enumerator :: TERN_OK = 0
    end enum
    enum, bind(c) ! tern_dtype
        enumerator :: TERN_F32 = 0
    end enum
    enum, bind(c) ! tern_reduction
        enumerator :: TERN_LOSS_MEAN = 0
    end enum

    type, bind(c) :: tern_error
        integer(c_int) :: code = TERN_OK, native = 0
        type(c_ptr) :: func = c_null_ptr
        character(kind=c_char) :: text(512) = c_null_char
    end type

    type, bind(c) :: tern_sgd_opts
        integer(c_size_t) :: size
        real(c_double) :: lr, momentum, dampening, weight_decay
        logical(c_bool) :: nesterov, maximize
    end type

    interface
        function tern_error_print(err) bind(c) result(status)
            import
            type(tern_error), intent(in) :: err
            integer(c_int) :: status
        end function

        ! ---- ranks, device, random numbers ----

        function tern_group_open(opts, err) bind(c) result(group)
            import
            type(c_ptr), value :: opts
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: group
        end function
        subroutine tern_group_close(group) bind(c)
            import
            type(c_ptr), value :: group
        end subroutine
        function tern_group_rank(group) bind(c) result(rank)
            import
            type(c_ptr), value :: group
            integer(c_int) :: rank
        end function
        function tern_group_size(group) bind(c) result(ranks)
            import
            type(c_ptr), value :: group
            integer(c_int) :: ranks
        end function

        function tern_device_open(name, err) bind(c) result(device)
            import
            type(c_ptr), value :: name
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: device
        end function
        subroutine tern_device_close(device) bind(c)
            import
            type(c_ptr), value :: device
        end subroutine

        function tern_rng_new(seed, err) bind(c) result(rng)
            import
            integer(c_int64_t), value :: seed
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: rng
        end function
        subroutine tern_rng_free(rng) bind(c)
            import
            type(c_ptr), value :: rng
        end subroutine
        subroutine tern_rng_uniform(rng, out, n, from, to) bind(c)
            import
            type(c_ptr), value :: rng
            real(c_float), intent(out) :: out(*)
            integer(c_size_t), value :: n
            real(c_double), value :: from, to
        end subroutine

        ! ---- tensors ----

        function tern_tensor_wrap(data, dtype, ndim, shape, release, ctx, err) bind(c) result(tensor)
            import
            type(c_ptr), value :: data, ctx
            integer(c_int), value :: dtype, ndim
            integer(c_int64_t), intent(in) :: shape(*)
            type(c_funptr), value :: release
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: tensor
        end function
        function tern_tensor_data(tensor) bind(c) result(data)
            import
            type(c_ptr), value :: tensor
            type(c_ptr) :: data
        end function
        subroutine tern_tensor_free(tensor) bind(c)
            import
            type(c_ptr), value :: tensor
        end subroutine

        ! ---- model, optimizer, data parallelism ----

        function tern_mlp_new(sizes, count, rng, err) bind(c) result(mlp)
            import
            integer(c_int64_t), intent(in) :: sizes(*)
            integer(c_int), value :: count
            type(c_ptr), value :: rng
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: mlp
        end function
        subroutine tern_module_free(module) bind(c)
            import
            type(c_ptr), value :: module
        end subroutine

        function tern_ddp_new(module, group, opts, err) bind(c) result(ddp)
            import
            type(c_ptr), value :: module, group, opts
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: ddp
        end function
        subroutine tern_ddp_free(ddp) bind(c)
            import
            type(c_ptr), value :: ddp
        end subroutine
        function tern_ddp_loss_mean(ddp) bind(c) result(loss)
            import
            type(c_ptr), value :: ddp
            real(c_double) :: loss
        end function

        function tern_sgd_defaults() bind(c) result(opts)
            import
            type(tern_sgd_opts) :: opts
        end function
        function tern_sgd_new(module, opts, err) bind(c) result(optim)
            import
            type(c_ptr), value :: module
            type(tern_sgd_opts), intent(in) :: opts
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: optim
        end function
        subroutine tern_optim_free(optim) bind(c)
            import
            type(c_ptr), value :: optim
        end subroutine

        ! ---- a step ----

        function tern_scope_new(device, group, err) bind(c) result(scope)
            import
            type(c_ptr), value :: device, group
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: scope
        end function
        subroutine tern_scope_free(scope) bind(c)
            import
            type(c_ptr), value :: scope
        end subroutine
        function tern_scope_end(scope, err) bind(c) result(status)
            import
            type(c_ptr), value :: scope
            type(tern_error), intent(inout) :: err
            integer(c_int) :: status
        end function

        function tern_forward(module, scope, x) bind(c) result(y)
            import
            type(c_ptr), value :: module, scope, x
            type(c_ptr) :: y
        end function
        function tern_mse_loss(scope, x, target, reduction) bind(c) result(loss)
            import
            type(c_ptr), value :: scope, x, target
            integer(c_int), value :: reduction
            type(c_ptr) :: loss
        end function
        function tern_backward(scope, loss) bind(c) result(status)
            import
            type(c_ptr), value :: scope, loss
            integer(c_int) :: status
        end function
        subroutine tern_optim_step(optim, scope) bind(c)
            import
            type(c_ptr), value :: optim, scope
        end subroutine
    end interface
end module
