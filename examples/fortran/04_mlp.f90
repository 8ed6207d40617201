! 04_mlp.f90 - trains an MLP from Fortran on the program's own arrays, which tern reads in place.
!
!     tern run -n 2 build/examples/04_mlp
!
! Learns the height(x, y) of a wave from 512 samples, which are split over the ranks. Prints the loss over all ranks and, at
! the end, learned and true heights. The results do not depend on the number of ranks.
program mlp
    use, intrinsic :: iso_c_binding
    use tern
    implicit none
    integer, parameter :: samples = 512, steps = 500, shown = 4
    type(tern_error) :: err
    type(tern_sgd_opts) :: sgd
    type(c_ptr) :: world, dev, rng, net, ddp, optim, scope, input, expected, guess
    real(c_float), allocatable, target :: place(:, :), level(:, :) ! this rank's samples: (2, n), (1, n)
    real(c_float), pointer :: learned(:)
    real(c_double) :: loss
    integer :: step, status, i

    call read_usage()
    world = tern_group_open(c_null_ptr, err)
    dev = tern_device_open(c_null_ptr, err)
    rng = tern_rng_new(0_c_int64_t, err)
    net = tern_mlp_new(int([2, 32, 32, 1], c_int64_t), 4, rng, err)
    ddp = tern_ddp_new(net, world, c_null_ptr, err)
    sgd = tern_sgd_defaults()
    sgd%lr = 0.1
    sgd%momentum = 0.9
    optim = tern_sgd_new(net, sgd, err)
    scope = tern_scope_new(dev, world, err)
    call check()
    call take_share()
    input = wrap(place)
    expected = wrap(level)
    call check()

    do step = 1, steps
        guess = tern_forward(net, scope, input)
        status = tern_backward(scope, tern_mse_loss(scope, guess, expected, TERN_LOSS_MEAN))
        call tern_optim_step(optim, scope)
        loss = tern_ddp_loss_mean(ddp)
        if (tern_scope_end(scope, err) /= TERN_OK) call check()
        if (is_first() .and. mod(step, 100) == 0) print '("step ", i0, "  loss ", f8.6)', step, loss
    end do

    guess = tern_forward(net, scope, input)
    if (is_first() .and. c_associated(guess)) then
        call c_f_pointer(tern_tensor_data(guess), learned, [shown])
        do i = 1, shown
            print '("height(", f5.2, ", ", f5.2, ")  true ", f5.2, "  learned ", f5.2)', place(:, i), level(1, i), learned(i)
        end do
    end if
    if (tern_scope_end(scope, err) /= TERN_OK) call check()

    call tern_tensor_free(expected)
    call tern_tensor_free(input)
    deallocate (place, level) ! after the tensors that wrap them
    call tern_scope_free(scope)
    call tern_optim_free(optim)
    call tern_ddp_free(ddp)
    call tern_module_free(net)
    call tern_rng_free(rng)
    call tern_device_close(dev)
    call tern_group_close(world)

contains
    ! It takes no arguments; --help says so.
    subroutine read_usage()
        character(len=8) :: word
        if (command_argument_count() == 0) return
        call get_command_argument(1, word)
        if (word /= '--help' .and. word /= '-h') error stop '04_mlp: expected no arguments; --help says what it does'
        print '(a)', 'usage: [tern run -n RANKS] 04_mlp', '', 'Trains an MLP from Fortran on the program''s own arrays.'
        stop
    end subroutine


    ! Every rank draws the same samples and takes its share of them.
    subroutine take_share()
        real(c_float) :: all(2, samples)
        integer :: share, first
        share = samples / tern_group_size(world)
        first = share * tern_group_rank(world)
        call tern_rng_uniform(rng, all, int(size(all), c_size_t), -1.0_c_double, 1.0_c_double)
        place = all(:, first + 1:first + share)
        level = reshape(sin(3 * place(1, :)) * cos(2 * place(2, :)), [1, share])
    end subroutine

    ! Wraps an array: columns in Fortran are rows in C. The program keeps the array, so there is no release function.
    function wrap(array) result(tensor)
        real(c_float), target, contiguous, intent(in) :: array(:, :)
        type(c_ptr) :: tensor
        integer(c_int64_t) :: rows_first(2)
        rows_first = [size(array, 2), size(array, 1)]
        tensor = tern_tensor_wrap(c_loc(array), TERN_F32, 2, rows_first, c_null_funptr, c_null_ptr, err)
    end function

    logical function is_first()
        is_first = tern_group_rank(world) == 0
    end function

    subroutine check()
        if (tern_error_print(err) /= 0) error stop 1
    end subroutine
end program
