# SPDX-License-Identifier: Apache-2.0

# Headers of others that most files include, compiled once for each set of flags: reading them anew
# was a quarter of a build. They hide includes that a file forgets; the tsan preset does without
# them.
#
#   djinn_headers(TARGET KIND)   KIND: library, throws (a library with exceptions), test
#
# A precompiled header fits one set of flags and macros, and none that LibTorch has to do with.

# Of fmt::fmt, which not every folder links.
add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:FMT_SHARED>)
# ccache's manual: it takes part in this only so.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)

set(DJINN_HEADERS
  <algorithm> <array> <atomic> <chrono> <cstddef> <cstdint> <cstring> <deque> <functional> <limits>
  <list> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread>
  <unordered_map> <utility> <variant> <vector> <fmt/format.h>)

file(WRITE ${CMAKE_BINARY_DIR}/headers/none.cc "")
foreach(kind library throws test)
  if(kind STREQUAL "test" AND NOT DJINN_WITH_TESTS)
    continue()
  endif()
  add_library(djinn-headers-${kind} OBJECT ${CMAKE_BINARY_DIR}/headers/none.cc)
  target_precompile_headers(djinn-headers-${kind} PRIVATE ${DJINN_HEADERS})
endforeach()
target_compile_options(djinn-headers-library PRIVATE -fno-exceptions -fno-rtti)
if(DJINN_WITH_TESTS)
  target_precompile_headers(djinn-headers-test PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  target_compile_options(djinn-headers-test PRIVATE -O0)
  target_link_libraries(djinn-headers-test PRIVATE GTest::gmock)
endif()

function(djinn_headers target kind)
  target_precompile_headers(${target} REUSE_FROM djinn-headers-${kind})
endfunction()
