// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/authority.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace djinn::daemon {
namespace {

constexpr gid_t kAdmins = 77;

TEST(AuthorityTest, root_and_any_member_of_the_group_are_admins) {
  const Authority authority(kAdmins);
  const std::vector<gid_t> among_others{5, kAdmins, 9};
  EXPECT_TRUE(authority.judge(0, {}).admin);
  EXPECT_TRUE(authority.judge(1000, among_others).admin);
  EXPECT_TRUE(authority.judge(1000, among_others).may_steer(Owner::of_user(1001)));
}

TEST(AuthorityTest, others_steer_what_is_theirs) {
  const std::vector<gid_t> groups{5, 9};
  const Caller caller = Authority(kAdmins).judge(1000, groups);
  EXPECT_FALSE(caller.admin);
  EXPECT_TRUE(caller.may_steer(Owner::of_user(1000)));
  EXPECT_FALSE(caller.may_steer(Owner::of_user(0)));
  EXPECT_FALSE(caller.may_steer(Owner::of_user(1001)));
}

TEST(AuthorityTest, whose_own_djinnd_it_is_is_its_admin) {
  EXPECT_TRUE(Authority({}, 1000).judge(1000, {}).admin);
  EXPECT_FALSE(Authority({}, 1000).judge(1001, {}).admin);
}

TEST(AuthorityTest, a_principal_is_no_admin_and_steers_what_is_theirs_alone) {
  Authority authority(kAdmins, 0);
  const Caller ann = authority.judge("spiffe://lab/ann").value();
  const Caller ben = authority.judge("spiffe://lab/ben").value();
  EXPECT_FALSE(ann.admin);
  EXPECT_TRUE(ann.may_steer(ann.user));
  EXPECT_FALSE(ann.may_steer(ben.user));
  for (const uint32_t uid : {0u, 1000u}) EXPECT_FALSE(ann.may_steer(Owner::of_user(uid)));
  const Caller local = authority.judge(1000, std::vector<gid_t>{5});
  EXPECT_FALSE(local.may_steer(ann.user));
}

TEST(AuthorityTest, a_principal_is_whom_it_is_mapped_to_and_an_admin_though_they_are_one_is_not) {
  Authority authority(kAdmins, 1000);
  authority.set_map({{"spiffe://lab/ann", {"ann", 1000, {kAdmins}}},
                     {"spiffe://lab/gone", {"gone", {}, {}}},
                     {"spiffe://lab/root", {"root", 0, {0}}}});
  const Caller ann = authority.judge("spiffe://lab/ann").value();
  EXPECT_EQ(ann.user, Owner::of_user(1000));
  EXPECT_FALSE(ann.admin);
  EXPECT_EQ(authority.groups_of("spiffe://lab/ann"), std::vector<gid_t>{kAdmins});
  for (const char* const nobody : {"spiffe://lab/gone", "spiffe://lab/root"}) {
    const auto refused = authority.judge(nobody);
    ASSERT_FALSE(refused.ok()) << nobody;
    EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  }
  EXPECT_TRUE(authority.judge("spiffe://lab/ben").value().user.is_principal());
}

TEST(AuthorityTest, who_comes_for_principals_is_no_admin_whoever_they_are) {
  const Authority authority(kAdmins, 1000);
  const ipc::PeerCredentials peers[] = {
      {.pid = 1, .uid = 0, .groups = {}},
      {.pid = 1, .uid = 1000, .groups = {}},
      {.pid = 1, .uid = 1001, .groups = {kAdmins}},
  };
  for (const ipc::PeerCredentials& peer : peers) {
    EXPECT_TRUE(authority.judge(Visitor{peer, Entrance::kClients}).admin) << peer.uid;
    EXPECT_FALSE(authority.judge(Visitor{peer, Entrance::kGates}).admin) << peer.uid;
  }
}

TEST(AuthorityTest, a_refusal_names_the_group_that_may) {
  EXPECT_NE(only_administrators_may().message.find("the group djinn-admin"), std::string::npos);
}

TEST(AuthorityTest, where_users_have_no_number_theirs_is_known) {
  EXPECT_EQ(number_of_unmapped("         0          0 4294967295\n", "65534\n"), std::nullopt);
  EXPECT_EQ(number_of_unmapped("0 0 1\n", "65534\n"), 65534u);
  EXPECT_EQ(number_of_unmapped("0 100000 65536\n65536 1000 1\n", "99\n"), 99u);
  EXPECT_EQ(number_of_unmapped("0 0 1000\n1000 1001 4294966295\n", "65534\n"), std::nullopt);
  EXPECT_EQ(number_of_unmapped("0 0 1\n", ""), 65534u);
  EXPECT_EQ(number_of_unmapped("", "65534\n"), std::nullopt) << "there are no user namespaces";
}

TEST(AuthorityTest, without_the_group_root_alone_is_admin) {
  const std::vector<gid_t> groups{0, kAdmins};
  EXPECT_FALSE(Authority().judge(1000, groups).admin);
  EXPECT_FALSE(Authority(group_named("no-such-group")).judge(1000, groups).admin);
  EXPECT_TRUE(Authority().judge(0, {}).admin);
}

TEST(AuthorityTest, a_users_groups_are_found_by_name) {
  const std::vector<gid_t> groups = groups_of_user("root");
  EXPECT_NE(std::ranges::find(groups, gid_t{0}), groups.end());
  EXPECT_TRUE(groups_of_user("no-such-user").empty());
}

TEST(AuthorityTest, the_group_of_root_is_found_by_name) {
  EXPECT_EQ(group_named("root"), gid_t{0});
}

}  // namespace
}  // namespace djinn::daemon
