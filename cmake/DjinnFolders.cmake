# SPDX-License-Identifier: Apache-2.0

# A folder is a library (or a program) made of all its .cc files; its *_test.cc files become one
# test program beside it, *_bench.cc one benchmark program, *_fuzz.cc one fuzzer. Nothing is listed
# by hand, so a new file is in the build as soon as it exists.
#
#   djinn_library(NAME [USES lib...] [LINKS external...] [ALONE FILES...] [THROWS] [TORCH])
#   djinn_program(NAME [USES lib...] [LINKS external...])
#   djinn_test(NAME [USES lib...] [LINKS external...] [TORCH])   all *_test.cc of this folder
#   djinn_on_fake_cuda(NAME)     that test runs on the driver of tests/fake_cuda
#   djinn_emulated_kernels(NAME FILES...)   that test has these kernels (*.cu), for the processor
#   djinn_bench(NAME [USES lib...] [LINKS external...])       all *_bench.cc of this folder; nothing
#                                                             with sanitizers, which no figure has
#   djinn_fuzz(NAME [USES lib...] [LINKS external...])        all *_fuzz.cc of this folder
#
# A library is built without exceptions and RTTI unless THROWS says otherwise. The code of a test
# is not optimised: compiling it is most of what it costs. TORCH: it links LibTorch, whose headers
# need other flags; it shares no precompiled headers with the rest, and its tests are optimised.
#
# But for TORCH, a test's files are compiled eight at a time (CMake's unity build); in asan all are,
# and in a release that ./dev test builds from nothing: what headers and templates cost is paid once
# for all, which halves such a build. So the anonymous namespaces of a folder's files must not use
# one name twice. The tsan preset compiles each file by itself, and sees what it forgets to include.
# ALONE: files that are always compiled by themselves, since the simulation of djinnd links its own
# in their place.

function(djinn_sources out)
  file(GLOB all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  list(FILTER all EXCLUDE REGEX "_(test|bench|fuzz)\\.cc$")
  set(${out} ${all} PARENT_SCOPE)
endfunction()

function(djinn_wire target)
  cmake_parse_arguments(ARG "THROWS" "" "USES;LINKS" ${ARGN})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  foreach(lib IN LISTS ARG_USES)
    target_link_libraries(${target} PUBLIC djinn-${lib})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ARG_LINKS})
endfunction()

function(djinn_library name)
  cmake_parse_arguments(ARG "THROWS;TORCH" "" "USES;LINKS;ALONE" ${ARGN})
  djinn_sources(sources)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  add_library(djinn-${name} STATIC ${sources})
  set_target_properties(djinn-${name} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME djinn_${name})
  djinn_wire(djinn-${name} USES ${ARG_USES} LINKS ${ARG_LINKS})
  if(ARG_ALONE)
    set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(NOT ARG_THROWS)
    target_compile_options(djinn-${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions> $<$<COMPILE_LANGUAGE:CXX>:-fno-rtti>)
  endif()
  if(NOT ARG_TORCH)
    set(kind library)
    if(ARG_THROWS)
      set(kind throws)
    endif()
    djinn_headers(djinn-${name} ${kind})
  endif()
endfunction()

function(djinn_program name)
  cmake_parse_arguments(ARG "" "" "USES;LINKS" ${ARGN})
  djinn_sources(sources)
  add_executable(${name} ${sources})
  djinn_wire(${name} USES ${ARG_USES} LINKS ${ARG_LINKS})
endfunction()

function(djinn_test name)
  cmake_parse_arguments(ARG "TORCH" "" "USES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  if(sources AND DJINN_WITH_TESTS)
    add_executable(${name}-test ${sources})
    djinn_wire(${name}-test USES ${ARG_USES} LINKS ${ARG_LINKS} GTest::gmock GTest::gtest_main)
    if(NOT ARG_TORCH)
      target_compile_options(${name}-test PRIVATE -O0 -fPIC)  # as libraries, whose flags it shares
      djinn_headers(${name}-test test)
      if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
        set_target_properties(${name}-test PROPERTIES UNITY_BUILD ON)
      endif()
    endif()
    add_test(NAME ${name} COMMAND ${name}-test)
  endif()
endfunction()

# The test NAME finds the driver of tests/fake_cuda where it looks for CUDA's.
function(djinn_on_fake_cuda name)
  if(TARGET ${name}-test)
    add_dependencies(${name}-test fake-cuda-driver fake-nvml)
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fake_cuda;DJINN_FAKE_CUDA=")
  endif()
endfunction()

# Kernels of CUDA C++ become a part of the target, where tests/fake_cuda/emulator runs them and a
# launch finds them by their names. They read elements of any type by whole vectors; the host's
# compiler is told so, and that it knows nothing of loops to be unrolled.
function(djinn_kernels_for_the_host target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "-O2;-fno-strict-aliasing;-Wno-unknown-pragmas"
    INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/tests/fake_cuda/emulator/device
    SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PUBLIC cuda-emulator ${CMAKE_DL_LIBS})
endfunction()

# Likewise of the test NAME, whose own names they then are.
function(djinn_emulated_kernels name)
  if(TARGET ${name}-test)
    djinn_kernels_for_the_host(${name}-test ${ARGN})
    set_target_properties(${name}-test PROPERTIES ENABLE_EXPORTS ON DEFINE_SYMBOL "")
  endif()
endfunction()

function(djinn_bench name)
  cmake_parse_arguments(ARG "" "" "USES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_bench.cc)
  if(sources AND DJINN_WITH_TESTS AND NOT DJINN_SANITIZE)
    add_executable(${name}-bench ${sources})
    djinn_wire(${name}-bench USES ${ARG_USES} LINKS ${ARG_LINKS} benchmark::benchmark)
  endif()
endfunction()

function(djinn_fuzz name)
  cmake_parse_arguments(ARG "" "" "USES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_fuzz.cc)
  if(sources AND DJINN_WITH_TESTS)
    add_executable(${name}-fuzz ${sources})
    djinn_wire(${name}-fuzz USES ${ARG_USES} LINKS ${ARG_LINKS})
  endif()
endfunction()
