! split.f90 - a Fortran program that initialises MPI and trains on some of its ranks. Rank 0 does something
! else. The others form a group and fit a line to points, of which each has a part. Every rank of the group
! prints its loss.
program split
    use, intrinsic :: iso_c_binding
    use mpi_f08
    use tern
    implicit none
    interface
        function tern_group_from_mpi(comm, opts, err) bind(c) result(group)
            import
            integer(c_int), value :: comm
            type(c_ptr), value :: opts
            type(tern_error), intent(inout) :: err
            type(c_ptr) :: group
        end function
        function tern_all_reduce(group, buf, count, dtype, op, err) bind(c) result(status)
            import
            type(c_ptr), value :: group
            real(c_float), intent(inout) :: buf(*)
            integer(c_size_t), value :: count
            integer(c_int), value :: dtype, op
            type(tern_error), intent(inout) :: err
            integer(c_int) :: status
        end function
    end interface
    integer(c_int), parameter :: TERN_SUM = 0
    type(MPI_Comm) :: part
    integer :: rank, ranks, colour, sum

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    colour = merge(0, 1, rank == 0)
    call MPI_Comm_split(MPI_COMM_WORLD, colour, -rank, part)
    if (rank > 0) call learn()
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    call MPI_Allreduce(1, sum, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (sum /= ranks) error stop "MPI does not add up"
    call MPI_Finalize()

contains

    subroutine learn()
        type(tern_error) :: err
        type(tern_sgd_opts) :: sgd
        type(c_ptr) :: group, dev, rng, net, ddp, optim, scope, input, expected
        real(c_float), target :: x(1, 8), y(1, 8)
        real(c_float) :: ones(3)
        integer(c_int) :: status
        integer :: step, i
        group = tern_group_from_mpi(int(part%MPI_VAL, c_int), c_null_ptr, err)
        ones = 1
        status = tern_error_print(err)
        status = tern_all_reduce(group, ones, 3_c_size_t, int(TERN_F32, c_int), TERN_SUM, err)
        if (status /= TERN_OK .or. any(nint(ones) /= tern_group_size(group))) error stop 1
        do i = 1, 8
            x(1, i) = real(tern_group_rank(group) * 8 + i, c_float) / 24
        end do
        y = 2 * x - 1
        dev = tern_device_open(c_null_ptr, err)
        rng = tern_rng_new(0_c_int64_t, err)
        net = tern_mlp_new(int([1, 1], c_int64_t), 2, rng, err)
        ddp = tern_ddp_new(net, group, c_null_ptr, err)
        sgd = tern_sgd_defaults()
        sgd%lr = 0.5
        optim = tern_sgd_new(net, sgd, err)
        scope = tern_scope_new(dev, group, err)
        input = tern_tensor_wrap(c_loc(x), TERN_F32, 2, [8_c_int64_t, 1_c_int64_t], c_null_funptr, c_null_ptr, err)
        expected = tern_tensor_wrap(c_loc(y), TERN_F32, 2, [8_c_int64_t, 1_c_int64_t], c_null_funptr, c_null_ptr, err)
        do step = 1, 400
            status = tern_backward(scope, tern_mse_loss(scope, tern_forward(net, scope, input), expected, TERN_LOSS_MEAN))
            call tern_optim_step(optim, scope)
            if (tern_scope_end(scope, err) /= TERN_OK) error stop 1
        end do
        print '("rank ", i0, " of ", i0, "  loss ", es10.3)', tern_group_rank(group), tern_group_size(group), &
            tern_ddp_loss_mean(ddp)
        call tern_tensor_free(expected)
        call tern_tensor_free(input)
        call tern_scope_free(scope)
        call tern_optim_free(optim)
        call tern_ddp_free(ddp)
        call tern_module_free(net)
        call tern_rng_free(rng)
        call tern_device_close(dev)
        call tern_group_close(group)
    end subroutine

end program
