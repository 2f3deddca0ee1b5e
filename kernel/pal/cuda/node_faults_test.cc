// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/node_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "kernel/pal/cuda/nodes_for_tests.h"

namespace djinn::pal::cuda {
namespace {

std::string said(const Nodes& nodes) {
  const auto fault = fault_of_nodes(nodes.directory());
  return fault ? fault->message : "";
}

TEST(NodeFaults, the_first_that_is_missing_is_told_with_what_makes_it) {
  Nodes nodes{};
  EXPECT_EQ(said(nodes).find(nodes.path("nvidiactl") + " is missing: there is no NVIDIA GPU"), 0u)
      << said(nodes);
  nodes.add("nvidiactl");
  EXPECT_EQ(
      said(nodes).find(nodes.path("nvidia0") + " is missing: make it ('nvidia-modprobe -c 0'"), 0u)
      << said(nodes);
  nodes.add("nvidia2");
  EXPECT_EQ(said(nodes).find(nodes.path("nvidia-uvm") + " is missing: load the module nvidia-uvm"),
            0u)
      << said(nodes);
  EXPECT_EQ(fault_of_nodes(nodes.directory())->code, ErrorCode::kNotFound);
  nodes.add("nvidia-uvm");
  EXPECT_FALSE(fault_of_nodes(nodes.directory()).has_value());
}

TEST(NodeFaults, one_of_another_gpu_that_may_not_be_opened_is_told_with_its_mode_and_group) {
  const Nodes nodes{"nvidiactl", "nvidia0", "nvidia-uvm"};
  ASSERT_EQ(::close(::creat(nodes.path("nvidia1").c_str(), 0)), 0);
  const int before = ::setfsuid(65534);  // root may open everything
  const auto fault = fault_of_nodes(nodes.directory());
  ::setfsuid(static_cast<uid_t>(before));
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, ErrorCode::kPermissionDenied);
  EXPECT_NE(fault->message.find("nvidia1 may not be opened by user"), std::string::npos);
  EXPECT_NE(fault->message.find("mode 0000 and group"), std::string::npos) << fault->message;
  EXPECT_NE(fault->message.find("SupplementaryGroups="), std::string::npos) << fault->message;
}

TEST(NodeFaults, what_is_no_gpus_is_not_looked_at) {
  const Nodes nodes{"nvidiactl", "nvidia0", "nvidia-uvm"};
  for (const char* name : {"nvidia", "nvidia-modeset", "nvidia-caps", "nvidia0x"}) {
    std::filesystem::create_symlink("/nonexistent", nodes.path(name));
  }
  EXPECT_EQ(said(nodes), "");
}

TEST(NodeFaults, each_refusal_has_its_own_sentence_and_says_what_to_do) {
  const std::string node = "/dev/nvidia-uvm";
  EXPECT_NE(fault_of_node(node, ENXIO).message.find("no module behind it: load the module"),
            std::string::npos);
  const Error permit = fault_of_node(node, EPERM);
  EXPECT_EQ(permit.code, ErrorCode::kPermissionDenied);
  EXPECT_NE(permit.message.find("install the package djinn-cuda"), std::string::npos);
  EXPECT_EQ(fault_of_node(node, EIO).code, ErrorCode::kIo);
  std::set<std::string> all;
  for (const int number : {ENOENT, ENXIO, EACCES, EPERM, EIO})
    all.insert(fault_of_node(node, number).message);
  EXPECT_EQ(all.size(), 5u);
}

}  // namespace
}  // namespace djinn::pal::cuda
