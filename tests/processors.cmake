# How many tests run side by side: `ctest -j N` gives each test its PROCESSORS out of N. scripts/test.sh has six for two cores, since
# many tests mostly wait: for a rank that is late, for a time-out, for a process to end. Those take one. A process that computes takes
# two, and so do ranks that mostly start their interpreters or wait for other hosts' messages. Ranks that compute take three. Tests that
# expect a choice that was made by measuring run alone. Those that wait start first, so that they run beside each other: beside ranks that
# compute, a rank would more often come later than a test of time-outs expects. Threads of OpenMP do not spin: beside other tests a thread
# without a core keeps the others of its process spinning, ten times as long as they compute. OpenBLAS has one thread: its threads wait for
# each other by giving up the core, and beside other tests get it back so late that a second becomes a minute.
set(waits "^(cli|comm|launchers|mpi)/")
set(ranks_compute "^comm/(collectives|hosts|lists|many_elements|moves|p2p_hosts|p2p_storm)|^mpi/device|^(bench|examples|parallel)/|^cli/bench")
set(one_computes "^bench/(gpu|images)$")
set(hosts_wait "_(hosts[23]|partial)$")
# `ctest -L quick` is for the time between two edits: a part of everything in a minute and a half.
set(quick "^(amp|autograd|base|checkpoint|data|device|gguf|image|models|nn|ops|optim|report|tensor|text)/[a-z0-9_]*$|^comm/(bootstrap|bytes|choice|collectives|messages|moves|native|p2p|query|refused|round|store_file|subgroup|weighted)$|^parallel/(any_function|ddp|ddp_options|join|stats)$|^kernels/(conv_cases|half|lanes|matmul|reorder|taps|winograd)$|^torch/(adam|conv2d|files|linear|safetensors|sgd)$|^cli/(command|inspect|run)$")
set(long "_by_clock$|_compiled$|^c10d/|^cuda/(dice_loss|kernels)$|^torch/(deeplabv3|resnet)$|^docs/") # 30 seconds: not at the end
# Open MPI 4 keeps the sessions of all of a user's jobs in one folder. A job that ends removes it, at times just when another's first file
# is to be made, and that job fails. So each test that starts mpirun has a folder of its own.
set(mpirun "^mpi/|^bench/(collectives|peers)$|^install/programs$|^launchers/slurm$")
set(chooses "^kernels/(conv_choice|signals)")

# For the tests of the folder that calls it.
function(set_processors)
  get_property(tests DIRECTORY PROPERTY TESTS)
  list(FILTER tests EXCLUDE REGEX "^gpu/") # scripts/gpu.sh chooses how many share a GPU
  foreach(test ${tests})
    get_test_property(${test} LABELS labels)
    get_property(around TEST ${test} PROPERTY ENVIRONMENT)
    set(processors 2)
    set(cost 1)
    if(test MATCHES "${long}")
      set(cost 1.5)
    elseif("single" IN_LIST labels AND test MATCHES "_(newest|peers)$") # near each other, or their server ends, whose imports take six seconds
      set(cost 1.2)
    endif()
    if(NOT test MATCHES "${chooses}|^(cli|launchers)/") # programs of those set their own
      list(APPEND around OMP_WAIT_POLICY=passive)
    endif()
    if(test MATCHES "${mpirun}")
      list(APPEND around OMPI_MCA_orte_tmpdir_base=${CMAKE_BINARY_DIR}/Testing/openmpi/${test})
    endif()
    if("single" IN_LIST labels)
      list(APPEND around OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1)
    elseif(test MATCHES "${chooses}")
      set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
    elseif(test MATCHES "${ranks_compute}" AND NOT test MATCHES "${one_computes}")
      set(processors 3)
      if(test MATCHES "${hosts_wait}")
        set(processors 2)
      endif()
      set(cost 2)
    elseif(test MATCHES "${waits}")
      set(processors 1)
      set(cost 3)
    endif()
    set_tests_properties(${test} PROPERTIES PROCESSORS ${processors} COST ${cost} ENVIRONMENT "${around}")
    if(test MATCHES "${quick}" AND NOT test MATCHES "_(bound|debug)$")
      set_property(TEST ${test} APPEND PROPERTY LABELS quick)
    endif()
  endforeach()
endfunction()
