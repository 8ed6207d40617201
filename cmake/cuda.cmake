# The plug-in for NVIDIA's GPUs, built with nvcc. If there is a C++ compiler, the tests also build it for CPUs, with the
# emulation in tests/cuda/emulated in place of CUDA's headers and of the files that call its libraries.
option(TERN_CUDA "Build the plug-in for NVIDIA's GPUs: nvcc, cuDNN 9.16, cuBLASLt, NCCL" OFF)
set(TERN_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities of the GPUs for which the plug-in has code")

file(GLOB_RECURSE TERN_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.c ${PROJECT_SOURCE_DIR}/src/cuda/*.cc ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
# Sources that the library and the plug-in share: pure functions on views, errors and dtypes.
set(TERN_CUDA_COMMON ${PROJECT_SOURCE_DIR}/src/tensor/view.c ${PROJECT_SOURCE_DIR}/src/base/error.c ${PROJECT_SOURCE_DIR}/src/base/text.c ${PROJECT_SOURCE_DIR}/src/base/dtype.c
                     ${PROJECT_SOURCE_DIR}/src/kernels/plan.c ${PROJECT_SOURCE_DIR}/src/kernels/compute.c ${PROJECT_SOURCE_DIR}/src/kernels/product.c
                     ${PROJECT_SOURCE_DIR}/src/kernels/labels.c)

function(tern_cuda_properties target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE TERN_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${target} PRIVATE m)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME tern_cuda CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden
                        CUDA_STANDARD 17 CUDA_VISIBILITY_PRESET hidden)
endfunction()

function(tern_nccl_properties target)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/base/error.c ${PROJECT_SOURCE_DIR}/src/base/text.c ${PROJECT_SOURCE_DIR}/src/base/dtype.c)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE TERN_VERSION="${PROJECT_VERSION}")
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME tern_nccl CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden)
endfunction()

# header_version(VARIABLE FILE MAJOR MINOR PATCH): sets VARIABLE to "9.14.0", from the header's macros of these names.
function(header_version variable file)
  set(version)
  foreach(name ${ARGN})
    file(STRINGS ${file} line REGEX "^#define ${name}[ ]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*[ ]" "" number "${line}")
    list(APPEND version ${number})
  endforeach()
  list(JOIN version "." version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

if(TERN_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${TERN_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  find_package(CUDAToolkit 12.5 REQUIRED) # the first with cudaGetDriverEntryPointByVersion
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
  header_version(CUDNN_VERSION ${CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  if(CUDNN_VERSION VERSION_LESS 9.16) # earlier versions do not know some GPUs, or compute some convolutions of volumes wrongly
    message(FATAL_ERROR "the plug-in for NVIDIA's GPUs needs cuDNN 9.16 or newer; ${CUDNN_INCLUDE_DIR} has \"${CUDNN_VERSION}\"")
  endif()
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
  header_version(NCCL_VERSION ${NCCL_INCLUDE_DIR}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  add_library(tern_cuda MODULE ${TERN_CUDA_SOURCES} ${TERN_CUDA_COMMON})
  tern_cuda_properties(tern_cuda)
  target_include_directories(tern_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
  target_link_libraries(tern_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt ${CUDNN_LIBRARY})
  add_library(tern_nccl MODULE ${PROJECT_SOURCE_DIR}/src/plugins/nccl.cc)
  tern_nccl_properties(tern_nccl)
  target_include_directories(tern_nccl SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE_DIR})
  target_link_libraries(tern_nccl PRIVATE CUDA::cudart_static ${NCCL_LIBRARY})
  set_target_properties(tern_cuda tern_nccl PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON) # CUDA may be installed anywhere
endif()
