# SPDX-License-Identifier: Apache-2.0

# Compiler settings that every target shares.

option(DJINN_WITH_TORCH "Build what links LibTorch: kernel/exec, djinn-worker, Python" ON)
option(DJINN_WITH_TESTS "Build tests and benchmarks, which need GoogleTest and Benchmark" ON)
set(DJINN_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, comma-separated; empty for none")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_program(DJINN_CCACHE ccache)
if(DJINN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DJINN_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DJINN_CCACHE})
endif()
find_program(DJINN_MOLD mold)
if(DJINN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wshadow -Werror $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
if(DJINN_SANITIZE)
  add_compile_options(
    -fsanitize=${DJINN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(DJINN_SANITIZE MATCHES undefined)
    # Undefined behaviour ends a program where it is, and AddressSanitizer tells the line (as of a
    # SIGILL, with handle_sigill=1): calls that say it in words are a quarter of a compilation.
    add_compile_options(-fsanitize-undefined-trap-on-error)
  endif()
  # GCC's own documentation: its uninitialised-use warnings are wrong where code is instrumented.
  add_compile_options(-Wno-maybe-uninitialized)
  # The vptr check needs the type information that most folders are built without.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)
  add_link_options(-fsanitize=${DJINN_SANITIZE})
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
if(DJINN_WITH_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
find_package(fmt REQUIRED)
find_package(CapnProto REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)
pkg_check_modules(ONIGURUMA REQUIRED IMPORTED_TARGET oniguruma)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(SSL REQUIRED IMPORTED_TARGET libssl)
# Its other parts bring an HTTP server and client along.
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
