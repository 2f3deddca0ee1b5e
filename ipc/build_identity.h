// SPDX-License-Identifier: Apache-2.0

// Build identity: which djinnd, djinn-worker, djinn-loader and djinn-mover belong together.
//
// They agree on messages, arguments and the layout of shared memory without asking each other, and
// an upgrade exchanges the files while djinnd runs. So djinnd's first argument to a child is the
// build that it expects, and a child of another build exits with kOtherBuildStatus before it reads
// any other argument or touches what it was given.
#pragma once

#include <string_view>

namespace djinn::ipc {

// The version, and a digest of the sources that all must have in common (ipc/CMakeLists.txt).
[[nodiscard]] std::string_view build_identity();

// Followed by an identity.
inline constexpr const char* kBuildOption = "--build";
// EX_PROTOCOL of sysexits.h, which nothing else in a child gives.
inline constexpr int kOtherBuildStatus = 76;

// Whether a program was started as a child of another build. First thing in main() of a child.
[[nodiscard]] bool started_by_other_build(int argc, const char* const* argv);

}  // namespace djinn::ipc
