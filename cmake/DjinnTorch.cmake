# SPDX-License-Identifier: Apache-2.0

# LibTorch from the Python wheel: three libraries and the headers beside them. find_package(Torch)
# would demand a CUDA toolkit, which nothing here needs (kernel/exec/README.md).

if(DJINN_WITH_TORCH)
  set(DJINN_VENV ${CMAKE_SOURCE_DIR}/.venv CACHE PATH "Virtual environment that holds torch")
  file(GLOB DJINN_TORCH_DIR ${DJINN_VENV}/lib/python3*/site-packages/torch)
  if(NOT DJINN_TORCH_DIR)
    message(FATAL_ERROR
      "No torch under ${DJINN_VENV}. Run './dev build', which installs it, or configure with "
      "-DDJINN_VENV=DIR, or with -DDJINN_WITH_TORCH=OFF for the parts that do not link LibTorch.")
  endif()

  foreach(lib c10 torch_cpu)
    add_library(torch-${lib} SHARED IMPORTED)
    set_target_properties(torch-${lib} PROPERTIES
      IMPORTED_LOCATION ${DJINN_TORCH_DIR}/lib/lib${lib}.so)
  endforeach()
  file(GLOB DJINN_TORCH_GOMP ${DJINN_TORCH_DIR}/lib/libgomp*.so.1)
  add_library(torch-gomp SHARED IMPORTED)
  set_target_properties(torch-gomp PROPERTIES IMPORTED_LOCATION ${DJINN_TORCH_GOMP})

  # All that a program needs at run time: libtorch_cpu.so is linked with the last two.
  set(DJINN_TORCH_RUNTIME ${DJINN_TORCH_GOMP})
  foreach(file torch/lib/libc10.so torch/lib/libtorch_cpu.so
      nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13)
    list(APPEND DJINN_TORCH_RUNTIME ${DJINN_TORCH_DIR}/../${file})
  endforeach()

  # CUDA's runtime and cuBLAS under libtorch_cuda.so have fakes for tests (tests/fake_cuda/runtime)
  # where NVIDIA's headers are, which no program needs: `./dev build` alone does not install them,
  # and who tests later has them then.
  set(DJINN_CUDA_HEADERS ${DJINN_TORCH_DIR}/../nvidia/cu13/include)
  file(GLOB cublas_headers CONFIGURE_DEPENDS ${DJINN_CUDA_HEADERS}/cublasLt.h)
  if(DJINN_WITH_TESTS AND cublas_headers AND EXISTS ${DJINN_TORCH_DIR}/lib/libtorch_cuda.so)
    set(DJINN_FAKES_CUDA_RUNTIME ON)
  endif()

  add_library(djinn-torch INTERFACE)
  # -idirafter: as system headers, for they do not meet our warning level, and after the system's
  # own, for the wheel carries another fmt than the one that we link.
  target_compile_options(djinn-torch INTERFACE
    "SHELL:-idirafter ${DJINN_TORCH_DIR}/include"
    "SHELL:-idirafter ${DJINN_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(djinn-torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  # Without -fopenmp at::parallel_for in our own files is silently serial.
  target_compile_options(djinn-torch INTERFACE -fopenmp)
  target_link_libraries(djinn-torch INTERFACE torch-torch_cpu torch-c10 torch-gomp)
endif()
